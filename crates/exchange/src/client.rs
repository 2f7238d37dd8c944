//! The interface of a request to its client's connection, for every protocol.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use io::sys::TcpInfo;

/// The client's side of a connection. A response that leaves at once asks nothing of it.
pub trait Client {
    /// Waits until the client has closed its side, or the connection is broken.
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Bytes of a response that can be sent now without a wait.
    fn room(&self) -> u64;

    /// Sends an interim response. A client that is gone is noticed elsewhere.
    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>>;

    /// The fields behind the body of the request (RFC 9110 section 6.5), once that has ended. Protocols that have none that may be
    /// passed on return nothing.
    fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        Vec::new()
    }

    /// The kernel's `TCP_INFO` of the connection; nothing if it is not TCP.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// A response ahead of the one that counts (1xx).
#[derive(Debug)]
pub struct Interim {
    /// Its status, below 200.
    pub status: StatusCode,
    /// Names and values of its fields.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// How long an upstream has before it is looked whether the client still waits.
const WATCH_AFTER: Duration = Duration::from_millis(20);

/// Waits until this client has gone, where there is one that matters, but not before the upstream had a little time:
/// most responses are here before that, and to watch costs an operation of the engine.
pub async fn gone(client: Option<Rc<dyn Client>>) {
    let Some(client) = client else { return std::future::pending().await };
    rt::sleep_until(rt::now() + WATCH_AFTER).await;
    client.hung_up().await;
}
