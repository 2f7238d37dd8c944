//! What a request may ask of a client that speaks HTTP/1.

use std::os::fd::AsFd;
use std::pin::Pin;

use io::op::Source;
use io::sys::TcpInfo;
use io::{Fd, Segments};

use exchange::client::{Client, Interim};

/// The socket of an HTTP/1 connection.
pub(super) struct Http1Client(pub(super) Fd);

impl Client for Http1Client {
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let socket = self.0.clone();
        Box::pin(async move { rt::net::hung_up(&socket).await })
    }

    fn room(&self) -> u64 {
        rt::net::room(&self.0)
    }

    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>> {
        let Interim { status, fields } = interim;
        let mut head = format!("HTTP/1.1 {} {}\r\n", status.code(), status.reason()).into_bytes();
        for (name, value) in fields {
            // A field that must not be sent is left out: the response itself will show what is wrong.
            let _ = http::response::push_field(&mut head, name, value);
        }
        head.extend_from_slice(b"\r\n");
        let mut data = Segments::new();
        data.push(Source::Vec(head));
        let socket = self.0.clone();
        Box::pin(async move {
            let _ = rt::net::send_aside(&socket, data).await;
        })
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        io::sys::tcp_info(self.0.as_fd()).ok()
    }
}
