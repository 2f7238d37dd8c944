//! HTTP/1 as a transport of requests: a connection is the transport of its single current request.
//!
//! Each method delegates to the other files: [`input`](super::input) and [`body`](super::body) receive, [`head`](super::head),
//! [`respond`](super::respond) and [`outlet`](super::outlet) send.

use std::convert::Infallible;

use io::Segments;

use crate::h1::outlet::Http1Outlet;
use crate::h1::respond::{self, Sending};
use crate::h1::rest::BodyRemainder;
use crate::h1::{Connection, head};
use exchange::course::BodyNeed;
use exchange::request::{Request, ThreadConfig};
use exchange::request_body::{BodyFailure, Feed};
use exchange::takeover::{Takeover, TakeoverEnd};
use exchange::transport::Transport;
use site::settings::core::Core;
use site::settings::listen::Listen;
use transfer::body::{BodyError, Rate, SendError};

impl Transport for Connection {
    type Unsent = Sending;
    type UnreadBody = BodyRemainder;
    type Outlet<'a> = Http1Outlet<'a>;

    fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen> {
        self.listen_socket.listen(thread_config)
    }

    fn release_buffers(&mut self) {
        self.input.release_buffer();
        if rt::buffers_are_scarce() {
            self.wire.disarm();
        }
    }

    fn body_is_broken(&self, request: &Request) -> bool {
        self.begins_badly(request)
    }

    fn has_complete_body(&self, request: &Request) -> bool {
        self.holds_complete_body(request)
    }

    fn read_body(
        &mut self,
        request: &mut Request,
        body_need: BodyNeed,
    ) -> impl Future<Output = Result<Option<Box<Feed<BodyRemainder>>>, BodyFailure>> {
        self.receive_complete_body(request, body_need)
    }

    fn begin_feed(
        &mut self,
        request: &mut Request,
        _: bool,
    ) -> impl Future<Output = Result<Feed<BodyRemainder>, BodyFailure>> {
        self.prepare_feed(request)
    }

    async fn feed(&mut self, mut feed: Feed<BodyRemainder>) -> Infallible {
        let result = self.feed_to_end(&mut feed).await;
        // The handler is notified of the end, and decides on the request.
        feed.incoming.end(result);
        std::future::pending().await
    }

    fn discard_body(&mut self, request: &mut Request) -> impl Future<Output = bool> {
        self.receive_and_discard(request)
    }

    fn begin_response(&mut self, request: &mut Request, core: &Core) -> bool {
        self.decide_keep_alive(request, core)
    }

    fn write_head(&mut self, request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
        head::write(request, core, out)
    }

    fn send(&mut self, request: &mut Request, data: Segments) -> Result<Option<Sending>, BodyError> {
        self.begin_to_send(request, data, true)
    }

    fn send_remaining(
        &mut self,
        request: &mut Request,
        rest: &mut Sending,
    ) -> impl Future<Output = Result<(), BodyError>> {
        self.continue_sending(request, rest)
    }

    fn outlet<'a>(
        &'a mut self,
        request: &Request,
        core: &Core,
        rate: Option<Rate>,
        sends_continue: bool,
    ) -> Http1Outlet<'a> {
        let chunked = request.response.chunked;
        let mut outlet = Http1Outlet::new(&mut self.wire, &self.timer, &core.sending, rate, chunked);
        outlet.observe(&self.thread);
        outlet.call_directly(self.thread.calls_directly);
        if sends_continue {
            outlet.send_continue();
        }
        outlet
    }

    async fn wait_for_delivery(&mut self, request: &Request, core: &Core, error: &BodyError) {
        // A reset could destroy bytes that the client has not acknowledged.
        if respond::ends_in_reset(error, request) {
            self.acknowledged(core.sending.send_timeout).await;
        }
    }

    fn break_off(&mut self, request: &Request, error: &BodyError) {
        // A reset immediately frees bytes that the kernel holds for a client that reads none.
        let is_timeout = *error == BodyError::Send(SendError::TimedOut);
        let resets = is_timeout && request.scope().core.keepalive.reset_timedout_connection;
        let is_reclaimed = *error == BodyError::Send(SendError::Reclaimed);
        if resets || is_reclaimed || respond::ends_in_reset(error, request) {
            self.wire.set_reset_on_close();
        }
    }

    async fn take_over(
        &mut self,
        request: &mut Request,
        head: Vec<u8>,
        by: Box<dyn Takeover>,
    ) -> Result<TakeoverEnd, BodyError> {
        if request.scope().core.sending.tcp_nodelay {
            // Tunnelled messages are short and must not wait for more bytes (TCP_NODELAY), as on the upstream's connection.
            self.wire.set_nodelay();
        }
        if let Some(mut sending) = self.begin_to_send(request, Segments::from(head), false)? {
            self.continue_sending(request, &mut sending).await?;
        }
        // Bytes after the client's request already belong to the other protocol.
        let early = std::mem::take(&mut self.input);
        Ok(by.run(&mut self.wire, &self.timer, early.bytes()).await)
    }
}
