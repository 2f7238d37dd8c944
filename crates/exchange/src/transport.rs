//! The interface of a request to its client's protocol.
//!
//! Main trait: [`Transport`], implemented by an HTTP/1 connection and by a stream of a later version.
//! [`pump`](crate::pump) drives a request with it and is compiled for each protocol, so that operations without a wait
//! stay plain calls. [`client`](crate::client) has further calls on a client's connection.

use std::convert::Infallible;

use io::Segments;

use crate::course::BodyNeed;
use crate::request::{Request, ThreadConfig};
use crate::request_body::{BodyFailure, Feed};
use crate::takeover::{Takeover, TakeoverEnd};
use site::settings::core::Core;
use site::settings::listen::Listen;
use transfer::body::{BodyError, Outlet, Rate};
use transfer::incoming::IncomingBody;

/// The result of reading the header section of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The header section is valid and stored in the request.
    Head,
    /// The header section is invalid; the request is rejected with this status.
    Refused(u16),
    /// The header section did not arrive in time, or the client closed the connection during it. As in nginx this
    /// status is logged and no response is sent.
    Abandoned(u16),
    /// The client closed the connection, or the connection has to end.
    Closed,
}

/// The state after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Another request may follow.
    KeepAlive,
    /// The connection is closed after the client had time to read (lingering close).
    Close,
    /// The connection is closed immediately; if it has streams, only this stream.
    Drop,
}

/// The protocol operations of one request.
pub trait Transport {
    /// The unsent bytes of a response in memory.
    type Unsent;

    /// State of the unread bytes of a request's body.
    type UnreadBody;

    /// The outlet for bodies that are not completely in memory.
    type Outlet<'a>: Outlet
    where
        Self: 'a;

    /// Returns the listening socket that the client connected to; `None` if a reload removed it.
    fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen>;

    /// Releases the receive buffers, because the request may take long.
    fn release_buffers(&mut self);

    /// Whether the body bytes received with the header section are invalid, so that the request can still be refused.
    fn body_is_broken(&self, request: &Request) -> bool;

    /// Whether the complete body was received and is in memory.
    fn has_complete_body(&self, request: &Request) -> bool;

    /// Reads the complete body into the request. If no temporary file can be used and the handler accepts pieces
    /// ([`BodyNeed::Buffered`]), returns a feed for the handler: the received bytes, and the state of the remaining ones.
    fn read_body(
        &mut self,
        request: &mut Request,
        body_need: BodyNeed,
    ) -> impl Future<Output = Result<Option<Box<Feed<Self::UnreadBody>>>, BodyFailure>>;

    /// Prepares the feed for [`Transport::feed`]. `is_stored` is whether the handler writes the body to a file, so that it
    /// consumes the body at the speed of the disk.
    fn begin_feed(
        &mut self,
        request: &mut Request,
        is_stored: bool,
    ) -> impl Future<Output = Result<Feed<Self::UnreadBody>, BodyFailure>>;

    /// Reads the body as fast as the handler consumes it. This future never completes; the caller drops it when the handler
    /// ends.
    fn feed(&mut self, feed: Feed<Self::UnreadBody>) -> impl Future<Output = Infallible>;

    /// Continues to pass the body to its reader while the response is sent, if possible. The feed has ended, and the
    /// reader needs more.
    fn continue_feeding(&mut self, _: &Request, _: &IncomingBody) {}

    /// Discards an unread body; returns `false` if no further request can follow.
    fn discard_body(&mut self, request: &mut Request) -> impl Future<Output = bool>;

    /// Prepares for a final response, with the connection's decision about keep-alive. Returns whether the client waits for
    /// a 100 response, which is sent before the final response.
    fn begin_response(&mut self, request: &mut Request, core: &Core) -> bool;

    /// Appends the header section of the response in the form of the protocol. Returns `false`, with nothing appended,
    /// if one of its values is not allowed.
    fn write_head(&mut self, request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool;

    /// Sends a response that is completely in memory, as far as possible without waiting. Returns `None` if all bytes were
    /// sent. The first [`Request::sent_head`] bytes are the header section.
    ///
    /// # Errors
    /// The client has closed the connection.
    fn send(&mut self, request: &mut Request, data: Segments) -> Result<Option<Self::Unsent>, BodyError>;

    /// Sends the bytes that [`Transport::send`] did not send.
    fn send_remaining(
        &mut self,
        request: &mut Request,
        rest: &mut Self::Unsent,
    ) -> impl Future<Output = Result<(), BodyError>>;

    /// Returns the outlet for a response whose body is not completely in memory. With `sends_continue` a 100 response
    /// is sent first.
    fn outlet<'a>(
        &'a mut self,
        request: &Request,
        core: &Core,
        rate: Option<Rate>,
        sends_continue: bool,
    ) -> Self::Outlet<'a>;

    /// If closing now would discard bytes in flight to the client, waits until they have arrived.
    fn wait_for_delivery(
        &mut self,
        request: &Request,
        core: &Core,
        error: &BodyError,
    ) -> impl Future<Output = ()>;

    /// Aborts a partly sent response so that it does not look complete to the client.
    fn break_off(&mut self, request: &Request, error: &BodyError);

    /// Sends the header section of a response, then hands the connection over to another protocol.
    fn take_over(
        &mut self,
        request: &mut Request,
        head: Vec<u8>,
        by: Box<dyn Takeover>,
    ) -> impl Future<Output = Result<TakeoverEnd, BodyError>>;
}
