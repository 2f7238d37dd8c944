//! A stream of HTTP/2, for the code that is common to several protocols.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::h2::ErrorCode;
use http::h2::hpack::Hpack;
use io::segments::Source;
use io::sys::TcpInfo;
use io::{Errno, Segments};

use crate::h2::shared::{Shared, Stream};
use crate::streams::Link;
use exchange::http2::Http2;
use exchange::request::Request;
use exchange::thread::Thread;
use transfer::incoming::BodyAborted;

/// A stream and its connection.
#[derive(Clone)]
pub(super) struct Http2Link {
    /// The connection.
    pub(super) shared: Rc<Shared>,
    /// The stream itself.
    pub(super) stream: Rc<Stream>,
}

impl Http2Link {
    /// Returns the link of a stream.
    pub(super) fn new(shared: &Rc<Shared>, stream: &Rc<Stream>) -> Http2Link {
        Http2Link { shared: Rc::clone(shared), stream: Rc::clone(stream) }
    }
}

impl Link for Http2Link {
    type Code = ErrorCode;
    type Blocks = Hpack;

    fn thread(&self) -> &Rc<Thread> {
        &self.shared.thread
    }

    fn begin_response(&self, request: &Request) {
        let chunk = request.scope().of::<Http2>().chunk_size;
        self.stream.chunk_bytes.set(usize::try_from(chunk).unwrap_or(usize::MAX).max(1));
    }

    fn send(&self, head: &[u8], ends: bool) -> Result<(), Errno> {
        self.shared.send(&self.stream, head, ends)
    }

    fn send_complete(&self, head_len: usize, data: Segments) -> Result<(usize, bool), Errno> {
        self.shared.send_complete(&self.stream, head_len, data)
    }

    fn send_interim(&self, block: &[u8]) {
        self.shared.send_interim(&self.stream, block);
    }

    fn add(&self, data: Segments, end: Option<Vec<u8>>) -> Result<(), Errno> {
        self.shared.add(&self.stream, data, end)
    }

    fn poll_framed(&self, context: &Context<'_>) -> Poll<Result<(), Errno>> {
        self.shared.poll_framed(&self.stream, context)
    }

    fn poll_space(&self, context: &Context<'_>) -> Poll<Result<u64, Errno>> {
        self.shared.poll_space(&self.stream, context)
    }

    fn poll_closed(&self, context: &Context<'_>) -> Poll<Errno> {
        self.shared.poll_closed(&self.stream, context)
    }

    fn read_ahead(&self) -> u64 {
        self.shared.read_ahead()
    }

    fn progress(&self) -> u64 {
        self.shared.progress(&self.stream)
    }

    fn first_progress(&self) -> Option<u64> {
        self.shared.first_progress(&self.stream)
    }

    fn moved(&self) -> u64 {
        self.shared.moved(&self.stream)
    }

    fn send_space(&self) -> u64 {
        self.shared.send_space(&self.stream)
    }

    fn discard(&self) {
        self.shared.discard(&self.stream);
    }

    fn pass_reset(&self, code: u32) {
        self.shared.pass_reset(&self.stream, code);
    }

    fn reset_timed_out(&self) {
        // The code of nginx.
        self.shared.reset(&self.stream, ErrorCode::Protocol);
    }

    fn code_without_response() -> ErrorCode {
        // The code of nginx.
        ErrorCode::Protocol
    }

    fn release(&self, reset: Option<ErrorCode>) {
        self.shared.release(&self.stream, reset);
    }

    fn is_tunnel(&self) -> bool {
        self.shared.with(|state| state.session.is_tunnel(self.stream.id))
    }

    fn poll_piece(&self, context: &Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        self.stream.inbox.borrow_mut().poll_piece(context)
    }

    fn take(&self, bytes: usize) {
        self.shared.take(&self.stream, bytes);
    }

    fn widen(&self, window: u32) {
        self.shared.widen(&self.stream, window);
    }

    fn held(&self) -> usize {
        self.stream.inbox.borrow().held()
    }

    fn is_body_complete(&self) -> bool {
        self.stream.inbox.borrow().is_complete()
    }

    fn clear_body(&self) {
        self.stream.inbox.borrow_mut().clear();
    }

    fn received_trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.stream.inbox.borrow().trailers.clone()
    }

    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(Rc::clone(&self.stream).hung_up())
    }

    fn note_slot_wait(&self, waits: bool) {
        self.stream.slot_waits.note(waits);
        self.shared.wake_driver();
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.shared.handle.tcp_info()
    }
}
