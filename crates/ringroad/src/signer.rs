//! The signing process of `sandbox strict`: it holds the private keys of TLS, and signs for workers, which hold none.
//!
//! The master starts it as `/proc/self/exe signer` with a control channel as standard input, and restarts it if it exits. It has no
//! listening socket, opens no file, and cannot be traced by processes of its user. Each socket to a worker has a thread here, so a
//! request never waits for a slow signature of another. The worker's side is in `signatures`.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::{Calls, FileRules, RefusedCalls};
use tls::apart::{SecretKey, Signer};

use crate::control::signer::{FromSigner, ToSigner};
use crate::control::{Channel, FROM_MASTER, Packet, Received};
use crate::limits::raise_to_hard_limit;
use crate::privilege::Credentials;
use crate::signals::{Signals, timeout_until};
use crate::signatures::{NUMBER_BYTES, REQUEST_BYTES_MAX};
use crate::worker::take_channel;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "signer";

/// Stack of a thread in bytes: a signature needs some tens of KiB.
const STACK_BYTES: usize = 256 << 10;

/// Number of descriptors that are not sockets to workers: the standard streams, the channel, signals, refused calls, and a reserve.
const OWN_DESCRIPTORS: usize = 16;

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
        let _ = channel.send(&FromSigner::Line(reason).encode(), Vec::new());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Handles the master's messages until it closes the channel.
fn serve(channel: &mut Channel) -> Result<(), String> {
    let mut refused = Vec::new();
    raise_to_hard_limit(&mut refused);
    let mut messages: Vec<FromSigner> = refused.into_iter().map(FromSigner::Line).collect();
    let mut serving = SigningProcess::new(sockets_of(getrlimit(Resource::Nofile).current));
    loop {
        while let Received::Packet(packet) = channel.receive().map_err(|error| error.to_string())? {
            messages.extend(serving.handle(packet)?);
        }
        let due = serving.signer.forget_unused(Instant::now());
        messages.extend(serving.refused_calls().into_iter().map(FromSigner::Line));
        for message in messages.drain(..) {
            let _ = channel.send(&message.encode(), Vec::new());
        }
        let mut polled = vec![PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        polled.extend(serving.refused.iter().map(|refused| PollFd::new(refused, PollFlags::IN)));
        match poll(&mut polled, due.map(timeout_until).as_ref()) {
            Ok(_) if polled[0].revents().contains(PollFlags::HUP) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("poll() failed ({errno})")),
        }
    }
}

/// Returns the number of sockets to workers that a process with this limit on open files serves.
fn sockets_of(descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.and_then(|count| usize::try_from(count).ok());
    descriptors.unwrap_or(usize::MAX).saturating_sub(OWN_DESCRIPTORS)
}

/// Returns the number of sockets to workers that the signing process of this master serves: it raises its limit to the hard limit.
pub(crate) fn sockets_max() -> usize {
    sockets_of(getrlimit(Resource::Nofile).maximum)
}

/// The keys, and the sockets to workers. Each socket has a thread.
#[derive(Debug)]
struct SigningProcess {
    signer: Arc<Signer>,
    /// The thread of each socket holds a clone, so the number of clones is that of open sockets.
    open: Arc<()>,
    /// Maximum number of sockets to all workers.
    sockets_max: usize,
    /// Keys that take effect with those of the next message.
    arriving: Vec<SecretKey>,
    /// System calls that the kernel has refused, after [`restrict`].
    refused: Option<RefusedCalls>,
}

/// The work of a thread.
type Work = Box<dyn FnOnce() + Send>;

impl SigningProcess {
    fn new(sockets_max: usize) -> SigningProcess {
        let (signer, open) = (Arc::default(), Arc::new(()));
        SigningProcess { signer, open, sockets_max, arriving: Vec::new(), refused: None }
    }

    /// Handles a message. Returns a message to the master if one worker is not served; an error ends the process.
    fn handle(&mut self, packet: Packet) -> Result<Option<FromSigner>, String> {
        let message = ToSigner::decode(&packet.body);
        // The bytes contain keys.
        drop(zeroize::Zeroizing::new(packet.body));
        match message.map_err(|_| "a malformed message from the master process".to_owned())? {
            ToSigner::Start { credentials } => self.refused = Some(restrict(credentials.as_ref())?),
            ToSigner::Keys { keys, is_complete, has_more } => {
                self.arriving.extend(keys);
                if has_more {
                    return Ok(None);
                }
                let keys = std::mem::take(&mut self.arriving);
                let unusable = self.signer.set(keys, is_complete, Instant::now());
                if unusable > 0 {
                    return Err(format!("{unusable} private keys cannot be used"));
                }
            }
            ToSigner::Serve { line, sockets } => {
                let connected = self.connect(sockets, packet.fds, spawn);
                return Ok(connected.err().map(|reason| FromSigner::Refused { line, reason }));
            }
        }
        Ok(None)
    }

    /// Starts a thread for each socket of a worker, of which the master has sent `count`. An error is the reason why sockets of
    /// this worker were closed, so that its handshakes fail. Workers may keep the sockets of their predecessors open, so the
    /// number of all sockets has a limit. One worker gets half of it, because two workers run during a reload.
    fn connect(
        &self,
        count: u64,
        sockets: Vec<OwnedFd>,
        spawn: impl Fn(Work) -> io::Result<()>,
    ) -> Result<(), String> {
        let (arrived, open) = (sockets.len(), Arc::strong_count(&self.open) - 1);
        let refused = |why: String| Err(format!("{count} sockets to a worker process are closed: {why}"));
        if arrived as u64 != count {
            return refused("the signing process has too many open files".to_owned());
        }
        if arrived > self.sockets_max / 2 {
            return refused(format!("one worker may have {}", self.sockets_max / 2));
        }
        if arrived + open > self.sockets_max {
            return refused(format!("{open} of {} are open", self.sockets_max));
        }
        for (index, socket) in sockets.into_iter().enumerate() {
            let (signer, token) = (Arc::clone(&self.signer), Arc::clone(&self.open));
            let work = Box::new(move || {
                answer(&signer, &socket);
                drop(token);
            });
            if let Err(error) = spawn(work) {
                let left = arrived - index;
                return Err(format!(
                    "{left} of {count} sockets to a worker process are closed: starting a thread failed ({error})"
                ));
            }
        }
        Ok(())
    }

    /// Returns a line for each system call that the kernel has refused.
    fn refused_calls(&self) -> Vec<String> {
        let calls = self.refused.iter().flat_map(RefusedCalls::take);
        calls.map(|call| format!("a system call was refused: {call}")).collect()
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
    let rules = FileRules::new(Some(&BTreeSet::new()), Some(&BTreeSet::new())).map_err(failed)?;
    rules.enforce().map_err(failed)?;
    sandbox::restrict_calls(Calls::Signer).map_err(failed)
}

/// Starts a thread, which ends when the worker closes the socket.
fn spawn(work: Work) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("signer".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(work).map(drop)
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
    use crate::signatures::{RESPONSE_TIME, RESTART_TIME, SILENT, SignerSockets, WAS_SILENT, pair};
    use std::time::Duration;
    use tls::apart::Connection;

    /// Returns a process that serves this number of sockets.
    fn serving(sockets_max: usize) -> SigningProcess {
        SigningProcess::new(sockets_max)
    }

    /// Serves a socket.
    fn start(serving: &SigningProcess, socket: OwnedFd) {
        serving.connect(1, vec![socket], spawn).expect("a thread");
    }

    /// Returns the sockets of a worker, and those of the signing process.
    fn pairs(count: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        (0..count).map(|_| pair().expect("a socket pair")).unzip()
    }

    /// Returns the time of the fastest of some calls: a busy machine may delay each.
    fn fastest(count: usize, mut call: impl FnMut()) -> Duration {
        let timed = (0..count).map(|_| {
            let begun = Instant::now();
            call();
            begun.elapsed()
        });
        timed.min().expect("calls")
    }

    /// Whether a request on a socket is answered.
    fn is_served(socket: OwnedFd) -> bool {
        SignerSockets::new(vec![socket]).exchange(&[0; 40]) == Ok(vec![2])
    }

    #[test]
    fn a_worker_with_too_many_sockets_is_refused_and_others_are_served() {
        let serving = serving(8);
        let (_, theirs) = pairs(5);
        let reason = serving.connect(5, theirs, spawn).expect_err("more than half");
        assert_eq!(reason, "5 sockets to a worker process are closed: one worker may have 4");
        let (_, theirs) = pairs(3);
        let reason = serving.connect(4, theirs, spawn).expect_err("one is missing");
        assert!(reason.ends_with("the signing process has too many open files"), "{reason}");
        let (first, theirs) = pairs(4);
        assert_eq!(serving.connect(4, theirs, spawn), Ok(()));
        let (second, theirs) = pairs(4);
        assert_eq!(serving.connect(4, theirs, spawn), Ok(()));
        let (_, theirs) = pairs(1);
        let reason = serving.connect(1, theirs, spawn).expect_err("the table is full");
        assert!(reason.ends_with("8 of 8 are open"), "{reason}");
        assert!(second.into_iter().all(is_served));
        // The sockets of a worker that has exited are free.
        drop(first);
        let connect = || {
            let (mut ours, theirs) = pairs(1);
            serving.connect(1, theirs, spawn).ok().and_then(|()| ours.pop())
        };
        let next = testkit::wait::until("a free socket", testkit::Deadline::default(), connect);
        assert!(is_served(next.expect("the threads end")));
    }

    #[test]
    fn a_thread_that_cannot_be_started_closes_the_sockets_of_one_worker() {
        let serving = serving(8);
        let left = std::cell::Cell::new(1);
        let fail_second = |work: Work| match left.replace(0) {
            1 => spawn(work),
            _ => Err(io::Error::from(io::ErrorKind::WouldBlock)),
        };
        let (mut ours, theirs) = pairs(3);
        let reason = serving.connect(3, theirs, fail_second).expect_err("the second thread does not start");
        assert!(reason.starts_with("2 of 3 sockets to a worker process are closed: "), "{reason}");
        let closed = ours.split_off(1);
        assert!(ours.into_iter().all(is_served) && !closed.into_iter().any(is_served));
        let (other, theirs) = pairs(1);
        start(&serving, theirs.into_iter().next().expect("one"));
        assert!(other.into_iter().all(is_served));
    }

    #[test]
    fn a_malformed_packet_closes_only_its_socket() {
        let serving = serving(8);
        for packet in [vec![1; NUMBER_BYTES - 1], vec![1; REQUEST_BYTES_MAX + 1]] {
            let (ours, theirs) = pair().expect("a socket pair");
            start(&serving, theirs);
            send(&ours, &packet, SendFlags::NOSIGNAL).expect("it fits");
            let mut response = [0; 16];
            assert_eq!(recv(&ours, &mut response[..], RecvFlags::empty()).expect("the end").1, 0);
        }
    }

    #[test]
    fn requests_are_answered_until_the_sockets_are_replaced() {
        let serving = serving(8);
        let (ours, theirs) = pair().expect("a socket pair");
        start(&serving, theirs);
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
        let time = fastest(10, || assert_eq!(client.exchange(&request), Err("it has exited".to_owned())));
        assert!(time < RESTART_TIME, "{time:?}");
        let (ours, theirs) = pair().expect("a socket pair");
        start(&serving, theirs);
        client.replace(vec![ours]);
        assert_eq!(client.exchange(&request), Ok(vec![2]));
    }

    #[test]
    fn a_closed_socket_and_a_long_message_leave_the_other_sockets_in_use() {
        let serving = serving(8);
        let (ours, theirs) = pair().expect("a socket pair");
        start(&serving, theirs);
        let (closed, _) = pair().expect("a socket pair");
        // The last one is used first.
        let client = SignerSockets::new(vec![ours, closed]);
        let request = vec![0; 40];
        let long = vec![0; REQUEST_BYTES_MAX - NUMBER_BYTES + 1];
        assert_eq!(client.exchange(&long), Err("the message is too long".to_owned()));
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        assert_eq!(client.exchange(&request), Ok(vec![2]));
        let none = SignerSockets::new(Vec::new());
        let time = fastest(10, || assert_eq!(none.exchange(&request), Err("it has exited".to_owned())));
        assert!(time < RESTART_TIME, "{time:?}");
    }

    #[test]
    fn a_process_that_does_not_respond_delays_one_request() {
        let (ours, theirs) = pair().expect("a socket pair");
        let client = SignerSockets::new(vec![ours]);
        let request = vec![0; 40];
        assert_eq!(client.exchange(&request), Err(SILENT.to_owned()));
        assert_eq!(client.exchange(&request), Err(WAS_SILENT.to_owned()));
        // It responds late: the response to the first request is not taken for one to a later request.
        start(&serving(8), theirs);
        let responds = || (client.exchange(&request) == Ok(vec![2])).then_some(());
        testkit::wait::until("a response", testkit::Deadline::default(), responds).expect("it responds");
    }

    #[test]
    fn late_responses_to_other_requests_do_not_prolong_the_wait() {
        let time = fastest(3, || {
            let (ours, theirs) = pair().expect("a socket pair");
            let client = SignerSockets::new(vec![ours]);
            let late = std::thread::spawn(move || {
                let mut request = [0; NUMBER_BYTES + 40];
                recv(&theirs, &mut request[..], RecvFlags::empty()).expect("a request");
                testkit::wait::let_pass(RESPONSE_TIME * 3 / 4);
                send(&theirs, &[0; NUMBER_BYTES + 1], SendFlags::NOSIGNAL).expect("it fits");
                theirs
            });
            assert_eq!(client.exchange(&[0; 40]), Err(SILENT.to_owned()));
            drop(late.join());
        });
        assert!(time < RESPONSE_TIME * 3 / 2, "{time:?}");
    }
}
