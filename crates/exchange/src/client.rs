//! The interface of a request to its client's connection, for every protocol.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use io::sys::TcpInfo;

/// The client's side of a connection. A response that needs no wait does not use it.
pub trait Client {
    /// Waits until the client has closed its side or the connection has failed.
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Returns the number of response bytes that can be sent without waiting.
    fn send_space(&self) -> u64;

    /// Sends an interim response, which may be omitted if the client does not read. A closed connection is not reported
    /// here.
    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Returns the trailer section of the request (RFC 9110 section 6.5), once the body has ended. Protocols without
    /// trailers that may be passed on return nothing.
    fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        Vec::new()
    }

    /// Notes whether the request waits for a slot for its upstream. Meanwhile it does not protect its connection, if other requests on it
    /// stall.
    fn note_slot_wait(&self, _waits: bool) {}

    /// Returns the kernel's `TCP_INFO` of the connection; `None` if it is not TCP.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// An interim response (1xx), which precedes the final response.
#[derive(Debug)]
pub struct Interim {
    /// The status, below 200.
    pub status: StatusCode,
    /// Names and values of its fields.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Time until a request to an upstream starts to watch for a closed client connection.
const WATCH_AFTER: Duration = Duration::from_millis(20);

/// Waits until this client has closed its connection, but at least for `WATCH_AFTER`. Most responses arrive within this
/// time, and watching costs an operation of the engine. Without a client, this waits forever.
pub async fn closed(client: Option<Rc<dyn Client>>) {
    let Some(client) = client else { return std::future::pending().await };
    let timer = rt::SpareTimer::until(rt::now() + WATCH_AFTER);
    poll_fn(|context| timer.poll_elapsed(context)).await;
    drop(timer);
    client.hung_up().await;
}
