//! Sockets: connections, listeners, datagrams, and system calls on them that do not block.

pub mod address;
mod connect;
mod datagram;
mod listener;
mod reader;
mod receiving;
mod socket;
mod writer;

pub use connect::{ConnectError, ConnectOptions, ConnectStep};
pub use datagram::Datagram;
pub use listener::{Listener, Stopper};
pub use reader::{Appended, QUEUE_DEFAULT, Reader, is_silent};
pub use socket::{Socket, hung_up};
pub use writer::{FilePart, Sending, UNSENT_MAX, Writer, progress, send_interim, send_space, unacknowledged};
