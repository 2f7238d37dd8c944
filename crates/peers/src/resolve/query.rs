//! One query to name servers: over UDP, repeated if no response arrives, and over TCP if the response was truncated.
//!
//! ```text
//!   next server -- UDP --> response -- truncated --> TCP --> response
//!       ^                     |                                |
//!       +-- timeout, refused, or server failure ---------------+
//! ```
//! The resolver listens to every queried server until one responds. A repeated query is identical and uses the same port, so that
//! responses to both attempts count and an attacker has only one query to guess. Each query has a port and an ID that cannot be
//! guessed without seeing the query (RFC 5452).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use io::op::PeerAddr;
use io::segments::Source;
use io::{Errno, Segments};
use rt::local::Event;
use rt::net::{ConnectOptions, Datagram};
use rt::{Either, Socket, Timer, select};

use super::wire::{MessageFault, NXDOMAIN, Name, Question, RecordType, Response};

/// Index of the next server.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicUsize);

/// Time until the next server, or the same server, is queried again: doubled each round, up to `TRY_MAX`. A recursive name server
/// needs some hundred ms, and a lost datagram should not cost the five seconds that nginx waits.
const TRY_MIN: Duration = Duration::from_secs(1);
const TRY_MAX: Duration = Duration::from_secs(5);

/// Maximum time of a query over TCP including the connection, as in nginx.
const TCP_TIME: Duration = Duration::from_secs(5);

/// Maximum number of datagrams from one server that do not match the query. They are forgery attempts; the socket is then closed.
const UNMATCHED_MAX: u32 = 64;

/// Buffer size for a datagram in bytes, as in nginx. Without EDNS, servers send at most 512 bytes (RFC 1035 section 4.2.1).
const DATAGRAM_MAX: usize = 4096;

/// No name server responded in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence;

/// Result of an attempt.
enum QueryResult {
    /// A response. Any code except success and "name does not exist" is a failure of the server.
    Response(Response),
    /// No response: the server could not be queried, and another may succeed.
    Nothing,
}

/// Queries servers until one responds or the time is over. The resolver listens to each queried server until then, so that a late
/// response to any attempt counts.
///
/// # Errors
/// [`Silence`]. If all servers fail, the failure response of one of them is returned.
pub(super) async fn query(
    servers: &[SocketAddr],
    turn: &Turn,
    name: &Name,
    kind: RecordType,
    deadline: Instant,
) -> Result<Response, Silence> {
    if servers.is_empty() {
        return Err(Silence);
    }
    let first = turn.0.fetch_add(1, Ordering::Relaxed);
    let mut queried: Vec<Option<QueriedServer>> = servers.iter().map(|_| None).collect();
    let (mut patience, mut failed, mut unreachable) = (TRY_MIN, None, 0);
    for tries in 0usize.. {
        if rt::now() >= deadline {
            break;
        }
        let index = first.wrapping_add(tries) % servers.len();
        match &queried[index] {
            Some(queried) => queried.again.pulse(),
            None => queried[index] = Some(QueriedServer::start(servers[index], name, kind)),
        }
        let timer = Timer::new();
        let end = deadline.min(rt::now() + patience);
        timer.set(end);
        while let Ok((from, tried)) = timer.limit(first_of(&mut queried)).await {
            match tried {
                QueryResult::Response(response) if matches!(response.code, 0 | NXDOMAIN) => {
                    return Ok(response);
                }
                QueryResult::Response(response) => failed = Some(response),
                QueryResult::Nothing => unreachable += 1,
            }
            if from == index {
                break;
            }
        }
        if (tries + 1) % servers.len() == 0 {
            if let Some(failed) = failed.take() {
                return Ok(failed);
            }
            // No server is reachable: avoids a busy loop.
            if unreachable >= servers.len() {
                rt::sleep_until(end).await;
            }
            unreachable = 0;
            patience = TRY_MAX.min(patience * 2);
        }
    }
    failed.ok_or(Silence)
}

/// A queried name server that may still respond.
struct QueriedServer {
    /// Triggers a repetition of the query.
    again: Event,
    outcome: Pin<Box<dyn Future<Output = QueryResult>>>,
}

impl QueriedServer {
    fn start(server: SocketAddr, name: &Name, kind: RecordType) -> QueriedServer {
        let (again, question) = (Event::new(), Question { id: random_id(), name: name.clone(), kind });
        let outcome = Box::pin(outcome(server, question, again.clone()));
        QueriedServer { again, outcome }
    }
}

/// Returns the outcome of the first server that has one, with its index; the server is removed.
async fn first_of(queried: &mut [Option<QueriedServer>]) -> (usize, QueryResult) {
    poll_fn(|context| {
        for (index, slot) in queried.iter_mut().enumerate() {
            if let Some(queried) = slot
                && let Poll::Ready(tried) = queried.outcome.as_mut().poll(context)
            {
                *slot = None;
                return Poll::Ready((index, tried));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns a random ID from the kernel's generator. If that is not ready, the random port must suffice.
fn random_id() -> u16 {
    let mut bytes = [0; 2];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u16::from_be_bytes(bytes)
}

/// Returns the response of one server, however late.
async fn outcome(server: SocketAddr, question: Question, again: Event) -> QueryResult {
    match query_udp(server, &question, &again).await {
        Ok(Some(response)) => QueryResult::Response(response),
        Ok(None) => {
            let timer = Timer::new();
            timer.set(rt::now() + TCP_TIME);
            match timer.limit(query_tcp(server, &question)).await {
                Ok(Ok(Some(response))) => QueryResult::Response(response),
                Ok(Ok(None) | Err(_)) | Err(rt::Elapsed) => QueryResult::Nothing,
            }
        }
        Err(_) => QueryResult::Nothing,
    }
}

/// Sends the query in a datagram, repeats it on request, and waits for the response; `None` if the response was truncated.
async fn query_udp(
    server: SocketAddr,
    question: &Question,
    again: &Event,
) -> Result<Option<Response>, Errno> {
    let mut socket = Datagram::connect(server, &ConnectOptions::default())?;
    let query = || Segments::from(question.to_bytes());
    socket.send(query()).await.0?;
    let mut strays = 0;
    while strays < UNMATCHED_MAX {
        let buf = rt::pool().get(DATAGRAM_MAX).ok_or(Errno::NOBUFS)?;
        let received = match select(socket.recv(buf), again.wait()).await {
            Either::Left(received) => received?,
            Either::Right(()) => {
                socket.send(query()).await.0?;
                continue;
            }
        };
        match Response::parse(&received, question) {
            Ok(response) => return Ok(Some(response)),
            Err(MessageFault::Truncated) => return Ok(None),
            // A malformed response may be forged like an unrelated one: the correct response may follow.
            Err(MessageFault::NoMatch | MessageFault::Malformed) => strays += 1,
        }
    }
    Err(Errno::BADMSG)
}

/// Queries over TCP, where messages are length-prefixed (RFC 1035 section 4.2.2); `None` if the message is not a response to the
/// query.
async fn query_tcp(server: SocketAddr, question: &Question) -> Result<Option<Response>, Errno> {
    let mut socket = Socket::connect(PeerAddr::Inet(server)).await?;
    let message = question.to_bytes();
    let mut query = Segments::new();
    // A name has at most 255 bytes.
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
