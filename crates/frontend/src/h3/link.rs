//! A stream of HTTP/3, for the code that is common to several protocols.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::h3::Http3ErrorCode;
use http::h3::qpack::Qpack;
use io::segments::Source;
use io::sys::TcpInfo;
use io::{Errno, Segments};

use crate::h3::shared::{Http3Shared, Http3Stream};
use crate::h3::stream;
use crate::streams::Link;
use exchange::request::Request;
use exchange::thread::Thread;
use transfer::incoming::BodyAborted;

/// A stream and its connection.
#[derive(Clone)]
pub(super) struct Http3Link {
    /// The connection.
    pub(super) shared: Rc<Http3Shared>,
    /// The stream itself.
    pub(super) stream: Rc<Http3Stream>,
}

/// The codes of HTTP/2 (RFC 9113 section 7) that an upstream's reset is passed on with.
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

impl Link for Http3Link {
    type Code = Http3ErrorCode;
    type Blocks = Qpack;

    fn thread(&self) -> &Rc<Thread> {
        &self.shared.thread
    }

    // A stream of HTTP/3 needs no preparation.
    fn begin_response(&self, _: &Request) {}

    fn send(&self, head: &[u8], ends: bool) -> Result<(), Errno> {
        self.shared.push_head(&self.stream, head, ends)?;
        self.shared.flush(&self.stream);
        Ok(())
    }

    fn send_complete(&self, head_len: usize, mut data: Segments) -> Result<(usize, bool), Errno> {
        // The header section is compressed, so it is copied; the body is not.
        let has_body = data.len() > head_len;
        let head: Vec<u8> = data.parts().flat_map(|part| part.bytes()).copied().take(head_len).collect();
        let head_bytes = self.shared.push_head(&self.stream, &head, !has_body)?;
        if has_body {
            data.advance(head_len);
            self.shared.push_body(&self.stream, data, Some(&[]))?;
        }
        self.shared.flush(&self.stream);
        Ok((head_bytes, self.stream.is_done()))
    }

    fn send_interim(&self, block: &[u8]) {
        self.shared.push_interim(&self.stream, block);
        self.shared.flush(&self.stream);
    }

    fn add(&self, data: Segments, end: Option<Vec<u8>>) -> Result<(), Errno> {
        self.shared.push_body(&self.stream, data, end.as_deref())?;
        self.shared.flush(&self.stream);
        Ok(())
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
        self.stream.moved()
    }

    fn first_progress(&self) -> Option<u64> {
        self.shared.is_blocked(&self.stream).then(|| self.progress())
    }

    fn moved(&self) -> u64 {
        self.stream.moved()
    }

    fn send_space(&self) -> u64 {
        if self.shared.is_blocked(&self.stream) { 0 } else { self.shared.read_ahead() }
    }

    fn discard(&self) {
        self.shared.discard(&self.stream);
    }

    fn pass_reset(&self, code: u32) {
        match code {
            CANCEL => self.shared.reset(&self.stream, Http3ErrorCode::RequestCancelled),
            ENHANCE_YOUR_CALM => self.shared.reset(&self.stream, Http3ErrorCode::ExcessiveLoad),
            _ => {}
        }
    }

    fn reset_timed_out(&self) {
        self.shared.reset(&self.stream, Http3ErrorCode::RequestCancelled);
    }

    fn code_without_response() -> Http3ErrorCode {
        Http3ErrorCode::GeneralProtocol
    }

    fn release(&self, reset: Option<Http3ErrorCode>) {
        self.shared.release(&self.stream, reset);
    }

    fn is_tunnel(&self) -> bool {
        self.stream.codec.borrow().is_tunnel()
    }

    fn poll_piece(&self, context: &Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        // Received bytes may contain no body: frames of unknown types, or a part of a frame's header.
        while self.stream.inbox.borrow().held() == 0
            && self.stream.has_more.get()
            && self.shared.readable(&self.stream) > 0
        {
            stream::receive_body(&self.shared, &self.stream);
        }
        self.stream.inbox.borrow_mut().poll_piece(context)
    }

    // `quinn-proto` has extended the windows when the bytes were read, unless memory is scarce.
    fn take(&self, _: usize) {
        self.shared.adapt_window();
    }

    fn widen(&self, _: u32) {}

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
        None
    }
}
