//! The interface of a request to its client's protocol: the seam between this crate and the protocols of clients.
//!
//! Main trait: [`Transport`], of a connection of HTTP/1, or of one stream of a later version. [`pump`](crate::pump)
//! drives a request with it; it is compiled for each protocol, so that operations without a wait stay plain calls.
//! [`client`](crate::client) has further calls on a client's connection.

use std::convert::Infallible;

use io::Segments;

use crate::request::{Generation, Request};
use crate::request_body::{BodyFailure, Feed};
use crate::settings::core::Core;
use crate::settings::listen::Listen;
use crate::takeover::{Takeover, TakeoverEnd};
use transfer::body::{BodyError, Outlet, Rate};
use transfer::incoming::IncomingBody;

/// How reading the header section of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It is in the request.
    Head,
    /// It is wrong; this is the status to answer with.
    Refused(u16),
    /// It did not come in time, or the client went away in the middle of it. As in nginx that is logged with this
    /// status and not answered.
    Abandoned(u16),
    /// The client is gone, or it was time to end.
    Closed,
}

/// The state after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Another request may come.
    KeepAlive,
    /// The connection ends, after the client had time to read.
    Close,
    /// The connection ends at once; if it has streams, only this one.
    Drop,
}

/// One request's way to its client.
pub trait Transport {
    /// The rest of a response in memory that was not sent at once.
    type Rest;

    /// State of the rest of a request's body.
    type BodyRest;

    /// Where bodies go that are not in memory as a whole.
    type Outlet<'a>: Outlet
    where
        Self: 'a;

    /// The servers behind the address that the client has reached; `None` when a reload took it away.
    fn listen<'g>(&self, generation: &'g Generation) -> Option<&'g Listen>;

    /// Leaves the buffers that were received into to others: the request may take long.
    fn leave_buffers(&mut self);

    /// Whether the body bytes received with the header section are invalid, so that the request can still be refused.
    fn body_is_broken(&self, request: &Request) -> bool;

    /// Whether all of the body is here, and in memory as a whole.
    fn has_whole_body(&self, request: &Request) -> bool;

    /// Reads the whole body into the request. If no temporary file takes it and the handler accepts pieces
    /// (`takes_pieces`), the received bytes and the rest are returned to be fed to it.
    fn read_body(
        &mut self,
        request: &mut Request,
        takes_pieces: bool,
    ) -> impl Future<Output = Result<Option<Box<Feed<Self::BodyRest>>>, BodyFailure>>;

    /// Makes everything ready for [`Transport::feed`].
    fn begin_feed(
        &mut self,
        request: &mut Request,
    ) -> impl Future<Output = Result<Feed<Self::BodyRest>, BodyFailure>>;

    /// Reads the body as fast as it is taken. It never returns: the reader of the body ends first.
    fn feed(&mut self, feed: Feed<Self::BodyRest>) -> impl Future<Output = Infallible>;

    /// Lets a body continue to its reader while the response is sent, if possible: the feed has ended, and more is
    /// taken.
    fn go_on_feeding(&mut self, _: &Request, _: &IncomingBody) {}

    /// Discards the rest of an unread body; `false` where no request can follow it.
    fn discard_body(&mut self, request: &mut Request) -> impl Future<Output = bool>;

    /// The response is final, except for keep-alive, which its connection decides. Returns whether the client waits for
    /// a 100 response, which is sent before the final one.
    fn begin_response(&mut self, request: &mut Request, core: &Core) -> bool;

    /// Appends the header section of the response in the protocol's own form; `false`, with nothing appended, when one
    /// of its values must not be sent.
    fn write_head(&mut self, request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool;

    /// Sends a response that is in memory as a whole, as far as that goes without a wait; then there is nothing left of
    /// it. Its first [`Request::sent_head`] bytes are the head.
    ///
    /// # Errors
    /// The client is gone.
    fn send(&mut self, request: &mut Request, data: Segments) -> Result<Option<Self::Rest>, BodyError>;

    /// Sends what [`Transport::send`] has left.
    fn send_rest(
        &mut self,
        request: &mut Request,
        rest: &mut Self::Rest,
    ) -> impl Future<Output = Result<(), BodyError>>;

    /// The outlet of a response whose body is not completely in memory. With `tells_to_go_on` a 100 response is sent
    /// first.
    fn outlet<'a>(
        &'a mut self,
        request: &Request,
        core: &Core,
        rate: Option<Rate>,
        tells_to_go_on: bool,
    ) -> Self::Outlet<'a>;

    /// If the end of this response would discard bytes on their way to the client, waits until they have arrived.
    fn settle(&mut self, request: &Request, core: &Core, error: &BodyError) -> impl Future<Output = ()>;

    /// The client has at most a part of the response: ensures that it does not look complete.
    fn break_off(&mut self, request: &Request, error: &BodyError);

    /// Sends the header section of a response behind which another protocol begins, and leaves the connection to that.
    fn take_over(
        &mut self,
        request: &mut Request,
        head: Vec<u8>,
        by: Box<dyn Takeover>,
    ) -> impl Future<Output = Result<TakeoverEnd, BodyError>>;
}
