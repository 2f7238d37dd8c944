//! A stream as the transport of a request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use io::Segments;
use rt::Timer;

use crate::listen_socket::ListenSocket;
use crate::streams::duplex::StreamDuplex;
use crate::streams::outlet::StreamOutlet;
use crate::streams::{Link, WINDOW_MIN, head};
use crate::wire::ProgressTimeout;
use exchange::course::BodyNeed;
use exchange::cut_off;
use exchange::error_page;
use exchange::request::{Request, ThreadConfig};
use exchange::request_body::{BodyFailure, Feed};
use exchange::response::Body;
use exchange::takeover::{Takeover, TakeoverEnd};
use exchange::transport::Transport;
use site::settings::core::Core;
use site::settings::listen::Listen;
use telemetry::Level;
use transfer::body::{BodyError, Rate, SendError};
use transfer::incoming::IncomingBody;

/// One stream.
pub(crate) struct StreamTransport<L> {
    /// The stream itself.
    pub(super) link: L,
    /// The listening socket that the connection arrived at.
    pub(super) listen_socket: Rc<ListenSocket>,
    /// Timer for the body, then for the response.
    pub(super) timer: Timer,
    /// Number of bytes of the body that were received before its feed.
    pub(super) earlier: u64,
    /// Window in bytes of a body that its handler stores, until its first bytes have arrived.
    pub(super) stored_window: Option<u32>,
}

impl<L: Link> Transport for StreamTransport<L> {
    type Unsent = ProgressTimeout;
    type UnreadBody = ();
    type Outlet<'a> = StreamOutlet<'a, L>;

    fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen> {
        self.listen_socket.listen(thread_config)
    }

    fn release_buffers(&mut self) {}

    fn body_is_broken(&self, _: &Request) -> bool {
        // A frame with an invalid body has reset the stream.
        false
    }

    fn has_complete_body(&self, request: &Request) -> bool {
        self.holds_complete_body(request)
    }

    fn read_body(
        &mut self,
        request: &mut Request,
        body_need: BodyNeed,
    ) -> impl Future<Output = Result<Option<Box<Feed<()>>>, BodyFailure>> {
        self.receive_complete_body(request, body_need)
    }

    async fn begin_feed(&mut self, request: &mut Request, is_stored: bool) -> Result<Feed<()>, BodyFailure> {
        self.prepare_feed(request, is_stored)
    }

    async fn feed(&mut self, mut feed: Feed<()>) -> Infallible {
        let result = self.feed_to_end(&mut feed).await;
        // The handler is notified of the end, and decides on the request.
        feed.incoming.end(result);
        std::future::pending().await
    }

    fn continue_feeding(&mut self, request: &Request, incoming: &IncomingBody) {
        incoming.continue_from(Box::new(self.body_remainder(request, incoming.received())));
    }

    async fn discard_body(&mut self, _: &mut Request) -> bool {
        // The end of the stream stops the client.
        self.link.clear_body();
        true
    }

    fn begin_response(&mut self, request: &mut Request, _: &Core) -> bool {
        self.link.begin_response(request);
        self.refuse_tunnel(request);
        // The response shows a client that expects a 100 response that its body is not needed.
        false
    }

    fn write_head(&mut self, request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
        head::write::<L::Blocks>(request, core, out)
    }

    fn send(&mut self, request: &mut Request, data: Segments) -> Result<Option<ProgressTimeout>, BodyError> {
        // Only the header section is encoded in another form: it is compressed.
        let head_len = request.sent_head as usize;
        debug_assert!(head_len <= data.len(), "the header section is part of the response");
        let len = data.len() - head_len;
        let sent = self.link.send_complete(head_len, data);
        let (head_bytes, is_done) = sent.map_err(|errno| BodyError::Send(SendError::Closed(errno)))?;
        // The frame headers of the body are not counted, so that the difference is the length of the body (`$body_bytes_sent`).
        request.sent_head = head_bytes as u64;
        request.sent = (head_bytes + len) as u64;
        let timeout = request.scope().core.sending.send_timeout;
        Ok((!is_done).then(|| ProgressTimeout::new(timeout)))
    }

    async fn send_remaining(
        &mut self,
        request: &mut Request,
        progress_timeout: &mut ProgressTimeout,
    ) -> Result<(), BodyError> {
        let StreamTransport { link, timer, .. } = self;
        let sent = poll_fn(|context| {
            let polled = link.poll_framed(context);
            let first = || link.first_progress();
            match progress_timeout.follow_from(context, timer, polled, first, || link.progress()) {
                Poll::Pending if cut_off::has_begun() => Poll::Ready(Err(SendError::CutOff)),
                polled => polled,
            }
        });
        let sent = sent.await;
        if sent.is_err() {
            // Only bytes in frames count as sent.
            request.sent = request.sent_head + link.moved();
            link.discard();
        }
        Ok(sent?)
    }

    fn outlet<'a>(
        &'a mut self,
        _: &Request,
        core: &Core,
        rate: Option<Rate>,
        _: bool,
    ) -> StreamOutlet<'a, L> {
        StreamOutlet::new(&self.link, &self.timer, &core.sending, rate)
    }

    async fn wait_for_delivery(&mut self, _: &Request, _: &Core, _: &BodyError) {}

    fn break_off(&mut self, _: &Request, error: &BodyError) {
        // The unsent bytes are discarded, so the response has no end, and the stream is reset when the request ends. Some codes of
        // an upstream are passed on immediately.
        self.link.discard();
        if let BodyError::Reset(code) = error {
            self.link.pass_reset(*code);
        } else if matches!(error, BodyError::Send(SendError::TimedOut)) {
            // The client has not extended its window in time.
            self.link.reset_timed_out();
        }
    }

    async fn take_over(
        &mut self,
        _: &mut Request,
        head: Vec<u8>,
        by: Box<dyn Takeover>,
    ) -> Result<TakeoverEnd, BodyError> {
        let StreamTransport { link, timer, .. } = self;
        link.widen(WINDOW_MIN);
        link.send(&head, false).map_err(|errno| BodyError::Send(SendError::Closed(errno)))?;
        Ok(by.run(&mut StreamDuplex::new(link), timer, &[]).await)
    }
}

/// Status of the response to an extended CONNECT for which no handler has switched the protocol.
const NO_TUNNEL: u16 = 501;

impl<L: Link> StreamTransport<L> {
    /// Replaces a successful response to extended CONNECT if the protocol is not switched: the client would use the stream as a
    /// tunnel (RFC 8441 section 5).
    fn refuse_tunnel(&self, request: &mut Request) {
        let response = &request.response;
        let is_success = (200..300).contains(&response.status) && !matches!(response.body, Body::Tunnel(_));
        if is_success && self.link.is_tunnel() {
            let status = response.status;
            request.log(
                Level::Info,
                format_args!(
                    "response {status} to extended CONNECT switches no protocol; {NO_TUNNEL} is sent"
                ),
            );
            request.response.clear();
            error_page::respond(request, NO_TUNNEL);
        }
    }
}
