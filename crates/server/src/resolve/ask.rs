//! One question to name servers: over UDP, again where nothing comes, over TCP where the response did not fit.
//!
//! ```text
//!   next server -- UDP --> response -- truncated --> TCP --> response
//!       ^                     |                                |
//!       +-- nothing in time, refused, it has failed -----------+
//! ```
//! Each try has a port and an identifier of its own, which nobody can guess who does not see the query (RFC 5452).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use io::op::{PeerAddr, Source};
use io::{Errno, Segments};
use rt::net::{ConnectOptions, Datagram};
use rt::{Socket, Timer};

use super::wire::{Fault, Kind, NXDOMAIN, Name, Question, Response};

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicUsize);

/// How long the first try waits for a response; each further one twice as long as the one before, up to the last. A
/// name server that has to ask others needs some hundred milliseconds, and a datagram that was lost should not cost
/// the five seconds that nginx waits.
const TRY_MIN: Duration = Duration::from_secs(1);
const TRY_MAX: Duration = Duration::from_secs(5);

/// How long a response may take over TCP, the connection counted: nginx's.
const TCP_TIME: Duration = Duration::from_secs(5);

/// Datagrams of one try that are no response to its question: somebody guesses, and the try is given up.
const STRAY_MAX: u32 = 64;

/// Room for a datagram. Without an extension that says otherwise servers send 512 bytes at most (RFC 1035 section
/// 4.2.1); nginx has as much.
const DATAGRAM_MAX: usize = 4096;

/// No name server has answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence;

/// What a try has brought.
enum Tried {
    /// A response, of which a code other than those of success and of names that do not exist is a failure of the server.
    Response(Response),
    /// Nothing: another server may do better, at once where this one could not be asked.
    Nothing { at_once: bool },
}

/// Asks until a server answers or the time is over.
///
/// # Errors
/// [`Silence`]; a server that answers that it has failed is an answer when all have been asked.
pub(super) async fn ask(
    servers: &[SocketAddr],
    turn: &Turn,
    name: &Name,
    kind: Kind,
    deadline: Instant,
) -> Result<Response, Silence> {
    if servers.is_empty() {
        return Err(Silence);
    }
    let first = turn.0.fetch_add(1, Ordering::Relaxed);
    let (mut patience, mut failed, mut unreachable) = (TRY_MIN, None, 0);
    for tries in 0usize.. {
        if rt::now() >= deadline {
            break;
        }
        let server = servers[first.wrapping_add(tries) % servers.len()];
        let question = Question { id: random_id(), name: name.clone(), kind };
        let end = deadline.min(rt::now() + patience);
        match once(server, &question, end).await {
            Tried::Response(response) if matches!(response.code, 0 | NXDOMAIN) => return Ok(response),
            Tried::Response(response) => failed = Some(response),
            Tried::Nothing { at_once: true } => unreachable += 1,
            Tried::Nothing { at_once: false } => {}
        }
        if (tries + 1) % servers.len() == 0 {
            if let Some(failed) = failed.take() {
                return Ok(failed);
            }
            // Nobody is there at all: not asked in a busy loop.
            if unreachable == servers.len() {
                rt::sleep_until(end).await;
            }
            unreachable = 0;
            patience = TRY_MAX.min(patience * 2);
        }
    }
    failed.ok_or(Silence)
}

/// An identifier from the kernel's generator. Should it not be ready, the port has to be secret enough.
fn random_id() -> u16 {
    let mut bytes = [0; 2];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u16::from_be_bytes(bytes)
}

/// One try with one server.
async fn once(server: SocketAddr, question: &Question, end: Instant) -> Tried {
    let timer = Timer::new();
    timer.set(end);
    match timer.limit(over_udp(server, question)).await {
        Ok(Ok(Some(response))) => Tried::Response(response),
        Ok(Ok(None)) => {
            timer.set(rt::now() + TCP_TIME);
            match timer.limit(over_tcp(server, question)).await {
                Ok(Ok(Some(response))) => Tried::Response(response),
                Ok(Ok(None) | Err(_)) => Tried::Nothing { at_once: true },
                Err(rt::Elapsed) => Tried::Nothing { at_once: false },
            }
        }
        Ok(Err(_)) => Tried::Nothing { at_once: true },
        Err(rt::Elapsed) => Tried::Nothing { at_once: false },
    }
}

/// Sends the question in a datagram and waits for the response; `None` where that did not fit into one.
async fn over_udp(server: SocketAddr, question: &Question) -> Result<Option<Response>, Errno> {
    let mut socket = Datagram::connect(server, &ConnectOptions::default())?;
    let mut query = Segments::new();
    query.push(Source::Vec(question.to_bytes()));
    socket.send(query).await.0?;
    let mut buf = rt::pool().get(DATAGRAM_MAX).ok_or(Errno::NOBUFS)?;
    for _ in 0..STRAY_MAX {
        buf = socket.recv(buf).await?;
        match Response::parse(&buf, question) {
            Ok(response) => return Ok(Some(response)),
            Err(Fault::Truncated) => return Ok(None),
            // One that is broken may be forged like one that is not ours: the right one may follow.
            Err(Fault::NotOurs | Fault::Malformed) => {}
        }
        buf.set_len(0);
    }
    Err(Errno::BADMSG)
}

/// Asks over TCP, where messages have their length in front (RFC 1035 section 4.2.2); `None` where what comes is no
/// response.
async fn over_tcp(server: SocketAddr, question: &Question) -> Result<Option<Response>, Errno> {
    let mut socket = Socket::connect(PeerAddr::Inet(server)).await?;
    let message = question.to_bytes();
    let mut query = Segments::new();
    // A name is 255 bytes at most.
    query.push(Source::Vec([&(message.len() as u16).to_be_bytes()[..], &message].concat()));
    let (reader, writer) = socket.split();
    writer.send(query, false).await.0?;
    let mut received = Vec::new();
    loop {
        if let Some((length, rest)) = received.split_first_chunk::<2>()
            && let Some(message) = rest.get(..usize::from(u16::from_be_bytes(*length)))
        {
            return Ok(Response::parse(message, question).ok());
        }
        match reader.recv().await? {
            Some(buf) => received.extend_from_slice(&buf),
            None => return Ok(None),
        }
    }
}
