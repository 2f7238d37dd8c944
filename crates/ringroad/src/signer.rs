//! The signing process of `sandbox strict`: it holds the private keys of TLS, and signs for workers, which hold none.
//!
//! The master starts it as `/proc/self/exe signer` with a control channel as standard input, and restarts it if it exits. It has no
//! listening socket, opens no file, and cannot be traced by processes of its user. Each socket to a worker has a thread here, so a
//! request never waits for a slow signature of another. The worker's side is in `signatures`.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Resource, Rlimit, setrlimit};
use sandbox::{Calls, RefusedCalls};
use tls::apart::Signer;

use crate::control::signer::{FromSigner, ToSigner};
use crate::control::{Channel, FROM_MASTER, Received};
use crate::privilege::Credentials;
use crate::signals::{Signals, timeout_until};
use crate::signatures::{NUMBER_BYTES, REQUEST_BYTES_MAX};
use crate::worker::take_channel;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "signer";

/// Stack of a thread in bytes: a signature needs some tens of KiB.
const STACK_BYTES: usize = 256 << 10;

/// Locks pages when they are first used, mlockall(2); crate `nix` has no name for it.
const MCL_ONFAULT: MlockAllFlags = MlockAllFlags::from_bits_retain(4);

/// Runs until the master has exited or no longer needs the process.
pub(crate) fn run() -> ExitCode {
    // Such as files that the shell of the operator has left open.
    sandbox::close_unexpected();
    let _ = nix::sys::prctl::set_name(c"ringroad");
    let _ = nix::sys::prctl::set_dumpable(false);
    // A signal to the process group, such as that of Ctrl-C, must not end this process before the workers.
    let (Ok(_signals), Ok(mut channel)) = (Signals::block(), take_channel(FROM_MASTER)) else {
        return ExitCode::FAILURE;
    };
    if let Err(reason) = serve(&mut channel) {
        let _ = channel.send(&FromSigner(reason).encode(), Vec::new());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Handles the master's messages until it closes the channel.
fn serve(channel: &mut Channel) -> Result<(), String> {
    let signer = Arc::new(Signer::default());
    let mut refused: Option<RefusedCalls> = None;
    loop {
        while let Received::Packet(packet) = channel.receive().map_err(|error| error.to_string())? {
            let message = ToSigner::decode(&packet.body);
            // The bytes contain keys.
            drop(zeroize::Zeroizing::new(packet.body));
            match message.map_err(|_| "a malformed message from the master process".to_owned())? {
                ToSigner::Start { credentials } => refused = Some(restrict(credentials.as_ref())?),
                ToSigner::Keys { keys, is_complete } => {
                    let unusable = signer.set(keys, is_complete, Instant::now());
                    if unusable > 0 {
                        return Err(format!("{unusable} private keys cannot be used"));
                    }
                }
                ToSigner::Serve => {
                    for socket in packet.fds {
                        start(&signer, socket)?;
                    }
                }
            }
        }
        let due = signer.forget_unused(Instant::now());
        let mut polled = vec![PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        polled.extend(refused.iter().map(|refused| PollFd::new(refused, PollFlags::IN)));
        match poll(&mut polled, due.map(timeout_until).as_ref()) {
            Ok(_) if polled[0].revents().contains(PollFlags::HUP) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("poll() failed ({errno})")),
        }
        for call in refused.iter().flat_map(RefusedCalls::take) {
            let line = format!("a system call was refused: {call}");
            let _ = channel.send(&FromSigner(line).encode(), Vec::new());
        }
    }
}

/// Drops the privileges, before the first key arrives: afterwards the process can use only memory, threads and its open descriptors.
fn restrict(credentials: Option<&Credentials>) -> Result<RefusedCalls, String> {
    let failed = |error: sandbox::Error| error.to_string();
    // Keys must not reach a swap area or a core file. Without privileges the limit on locked memory may prevent the former.
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_ok() {
        let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | MCL_ONFAULT;
        let _ = mlockall(flags);
    }
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    sandbox::empty_bounding_set().map_err(failed)?;
    if let Some(credentials) = credentials {
        credentials.assume(false).map_err(|error| error.to_string())?;
    }
    // The process must not outlive the master. The change of the user has cleared this signal, and has made the process dumpable.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    sandbox::drop_privileges(false, false).map_err(failed)?;
    // What the kernel lacks is reported for the worker, which needs more.
    sandbox::restrict_files(&[], Some(&BTreeSet::new())).map_err(failed)?;
    sandbox::restrict_calls(Calls::Signer).map_err(failed)
}

/// Starts a thread that answers the requests on a socket until the worker closes it.
fn start(signer: &Arc<Signer>, socket: OwnedFd) -> Result<(), String> {
    let signer = Arc::clone(signer);
    let builder = std::thread::Builder::new().name("signer".to_owned()).stack_size(STACK_BYTES);
    let started = builder.spawn(move || answer(&signer, &socket));
    started.map(drop).map_err(|error| format!("starting a thread failed ({error})"))
}

/// Answers requests, each a packet that begins with a number; the response begins with the same number.
fn answer(signer: &Signer, socket: &OwnedFd) {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    loop {
        let length = match recv(socket, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, length)) => length,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        // The worker has exited (an empty packet), or a packet is longer than any request.
        let Some((number, request)) =
            buffer.get(..length).and_then(|packet| packet.split_at_checked(NUMBER_BYTES))
        else {
            return;
        };
        let response = [number, &signer.answer(request)].concat();
        if send(socket, &response, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signatures::{RESPONSE_TIME, RESTART_TIME, SignerSockets, pair};
    use tls::apart::Connection;

    #[test]
    fn a_malformed_packet_closes_only_its_socket() {
        let signer = Arc::new(Signer::default());
        for packet in [vec![1; NUMBER_BYTES - 1], vec![1; REQUEST_BYTES_MAX + 1]] {
            let (ours, theirs) = pair().expect("a socket pair");
            start(&signer, theirs).expect("a thread");
            send(&ours, &packet, SendFlags::NOSIGNAL).expect("it fits");
            let mut response = [0; 16];
            assert_eq!(recv(&ours, &mut response[..], RecvFlags::empty()).expect("the end").1, 0);
        }
    }

    #[test]
    fn requests_are_answered_until_the_sockets_are_replaced() {
        let signer = Arc::new(Signer::default());
        let (ours, theirs) = pair().expect("a socket pair");
        start(&signer, theirs).expect("a thread");
        let client = SignerSockets::new(vec![ours]);
        // The largest request, which is refused for its content.
        let request = vec![0; REQUEST_BYTES_MAX - NUMBER_BYTES];
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        let (ours, theirs) = pair().expect("a socket pair");
        drop(theirs);
        client.replace(vec![ours]);
        assert_eq!(client.exchange(&request), Err("it has exited".to_owned()));
        // No further request waits.
        let begun = Instant::now();
        assert_eq!(client.exchange(&request), Err("it has exited".to_owned()));
        assert!(begun.elapsed() < RESTART_TIME, "{:?}", begun.elapsed());
        let (ours, theirs) = pair().expect("a socket pair");
        start(&signer, theirs).expect("a thread");
        client.replace(vec![ours]);
        assert_eq!(client.exchange(&request), Ok(vec![2]));
    }

    #[test]
    fn a_closed_socket_and_a_long_message_leave_the_other_sockets_in_use() {
        let signer = Arc::new(Signer::default());
        let (ours, theirs) = pair().expect("a socket pair");
        start(&signer, theirs).expect("a thread");
        let (closed, _) = pair().expect("a socket pair");
        // The last one is used first.
        let client = SignerSockets::new(vec![ours, closed]);
        let request = vec![0; 40];
        let long = vec![0; REQUEST_BYTES_MAX - NUMBER_BYTES + 1];
        assert_eq!(client.exchange(&long), Err("the message is too long".to_owned()));
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        let none = SignerSockets::new(Vec::new());
        let begun = Instant::now();
        assert_eq!(none.exchange(&request), Err("it has exited".to_owned()));
        assert!(begun.elapsed() < RESPONSE_TIME / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_process_that_does_not_respond_delays_one_request() {
        let (ours, theirs) = pair().expect("a socket pair");
        let client = SignerSockets::new(vec![ours]);
        let request = vec![0; 40];
        assert_eq!(client.exchange(&request), Err("it does not respond".to_owned()));
        let begun = Instant::now();
        assert_eq!(client.exchange(&request), Err("it does not respond".to_owned()));
        assert!(begun.elapsed() < RESPONSE_TIME / 2, "{:?}", begun.elapsed());
        // It responds late: the response to the first request is not taken for one to a later request.
        start(&Arc::new(Signer::default()), theirs).expect("a thread");
        let responds = || (client.exchange(&request) == Ok(vec![2])).then_some(());
        testkit::wait::until("a response", testkit::Deadline::default(), responds).expect("it responds");
    }
}
