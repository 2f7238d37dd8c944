//! The interface between a request and its HTTP/1 client.

use std::pin::Pin;

use io::Segments;
use io::sys::TcpInfo;

use crate::wire::WireHandle;
use exchange::client::{Client, Interim};

/// The connection, as requests may use it.
pub(super) struct Http1Client(pub(super) WireHandle);

impl Client for Http1Client {
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.0.hung_up())
    }

    fn send_space(&self) -> u64 {
        self.0.send_space()
    }

    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>> {
        let Interim { status, fields } = interim;
        let mut head = format!("HTTP/1.1 {} {}\r\n", status.code(), status.reason()).into_bytes();
        for (name, value) in fields {
            // An invalid field is omitted: the final response will report the error.
            let _ = http::response::encode::push_field(&mut head, name, value);
        }
        head.extend_from_slice(b"\r\n");
        // An interim response is optional (RFC 9110 section 15.2). A client that does not read must not make the upstream wait.
        if self.0.send_space() < head.len() as u64 {
            return Box::pin(std::future::ready(()));
        }
        let sending = self.0.send(Segments::from(head));
        Box::pin(async move {
            let _ = sending.await;
        })
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.0.tcp_info()
    }
}
