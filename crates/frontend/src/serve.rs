//! A connection from its accept to its end.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rt::local::Counted;

use crate::listen_socket::ListenSocket;
use crate::opening::{self, Opened, Protocol};
use crate::{h1, h2, stream};
use exchange::thread::Thread;

/// Opens a connection and serves it by its protocol.
pub async fn serve(
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    fd: OwnedFd,
    _counted: (Counted, Counted),
) {
    if let Some(index) = listen_socket.stream_index(&thread.thread_config()) {
        return Box::pin(serve_stream(thread, listen_socket, fd, index)).await;
    }
    let Some(opened) = opening::open(thread, listen_socket, fd).await else { return };
    // As in `serve_opened`, whose future would need memory for its argument in each connection.
    match opened.protocol {
        Protocol::Http1 => h1::serve(opened).await,
        Protocol::Http2 => Box::pin(h2::serve(opened)).await,
    }
}

/// Serves a connection of `stream`, which may continue in `http`.
async fn serve_stream(thread: Rc<Thread>, listen_socket: Rc<ListenSocket>, fd: OwnedFd, index: usize) {
    let Some(handed_over) = Box::pin(stream::serve(thread, listen_socket, fd, index)).await else { return };
    // Boxed, because few sessions continue in `http`.
    let Some(opened) = Box::pin(handed_over.opening.open()).await else { return };
    Box::pin(serve_opened(opened)).await;
}

/// Serves an opened connection of `http`.
async fn serve_opened(opened: Opened) {
    match opened.protocol {
        Protocol::Http1 => h1::serve(opened).await,
        Protocol::Http2 => Box::pin(h2::serve(opened)).await,
    }
}
