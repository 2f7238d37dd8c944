//! The interface between a request and its client: the stream, and the connection below it.

use std::pin::Pin;

use http::multiplexed::BlockWriter;
use http::response::encode::check_field;
use io::sys::TcpInfo;

use crate::streams::{Link, is_of_connection};
use exchange::client::{Client, Interim};

/// A stream, as its request may use it.
pub(crate) struct StreamClient<L>(pub(crate) L);

impl<L: Link> Client for StreamClient<L> {
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.hung_up()
    }

    fn note_slot_wait(&self, waits: bool) {
        self.0.note_slot_wait(waits);
    }

    fn send_space(&self) -> u64 {
        self.0.send_space()
    }

    fn send_interim(&self, interim: &Interim) -> Pin<Box<dyn Future<Output = ()>>> {
        let Interim { status, fields } = interim;
        let mut block = Vec::new();
        L::Blocks::push_status(&mut block, status.code());
        for (name, value) in fields {
            // An invalid field is omitted: the final response will report the error.
            if check_field(name, value).is_ok() && !is_of_connection(name) {
                L::Blocks::push_field(&mut block, name, value);
            }
        }
        self.0.send_interim(&block);
        Box::pin(std::future::ready(()))
    }

    fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.0.received_trailers()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.0.tcp_info()
    }
}
