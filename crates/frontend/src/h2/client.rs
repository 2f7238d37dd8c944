//! The interface between a request and its HTTP/2 client: the stream, and the connection below it.

use std::pin::Pin;
use std::rc::Rc;

use http::h2::hpack::{push_field, push_status};
use http::response::encode::check_field;
use io::sys::TcpInfo;

use crate::h2::head::is_of_connection;
use crate::h2::shared::{Shared, Stream};
use exchange::client::{Client, Interim};

/// A stream, as its request may use it.
pub(super) struct Http2Client {
    /// Its connection.
    pub(super) shared: Rc<Shared>,
    /// The stream itself.
    pub(super) stream: Rc<Stream>,
}

impl Client for Http2Client {
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(Rc::clone(&self.stream).hung_up())
    }

    fn send_space(&self) -> u64 {
        self.shared.send_space(&self.stream)
    }

    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>> {
        let Interim { status, fields } = interim;
        let mut block = Vec::new();
        push_status(&mut block, status.code());
        for (name, value) in fields {
            // An invalid field is omitted: the final response will report the error.
            if check_field(name, value).is_ok() && !is_of_connection(name) {
                push_field(&mut block, name, value);
            }
        }
        self.shared.send_interim(&self.stream, &block);
        Box::pin(std::future::ready(()))
    }

    fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.stream.inbox.borrow().trailers.clone()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.shared.handle.tcp_info()
    }
}
