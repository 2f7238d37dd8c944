//! Sockets: connections, listeners, datagrams, and system calls on them that do not block.

pub mod address;
mod connect;
mod datagram;
mod datagram_listener;
mod listener;
mod pipe;
mod reader;
mod receiving;
mod socket;
mod writer;

pub use connect::{ConnectError, ConnectOptions, ConnectStep};
pub use datagram::Datagram;
pub use datagram_listener::DatagramListener;
pub use listener::{Listener, Stopper};
pub use pipe::{PIPES_MAX, Pipe, SPLICE_BYTES, close_unused_pipes};
pub use reader::{Appended, Filled, QUEUE_DEFAULT, Reader, is_silent};
pub use socket::{Socket, hung_up};
pub use writer::{FilePart, Sending, UNSENT_MAX, Writer, progress, send_interim, send_space, unacknowledged};
