//! Transport of an exchange with an upstream: a socket, TLS over a socket, or a stream of an HTTP/2 connection.
//!
//! Main types: [`Wire`], which a link owns, and [`WireWriter`], which sends concurrently. Each call has one branch.

use std::future::poll_fn;
use std::io::IoSlice;
use std::task::{Context, Poll};

use crate::h2::{Cut, Follows, StreamEnd, StreamWriter as H2Writer};
use http::fields::Method;
use http::h2::hpack::NeverIndexed;
use http::response::parse::Limits;
use io::op::PeerAddr;
use io::{Buf, Errno, Segments};
use rt::Socket;
use rt::net::Writer;
use tls::Stream;
use tls::handshake::Handshaken;
use tls::stream::StreamWriter;
use transfer::duplex::Duplex;

/// A connection to an upstream.
pub(super) enum Wire {
    /// A plain socket.
    Plain(Socket),
    /// TLS over a socket.
    Tls(Box<Stream>),
    /// A stream of HTTP/2.
    Stream(StreamEnd),
}

impl Wire {
    /// Wraps the socket in TLS after the handshake.
    pub(super) fn secured(self, handshaken: Handshaken) -> Wire {
        match self {
            Wire::Plain(socket) => Wire::Tls(Box::new(handshaken.over(socket))),
            wire => wire,
        }
    }

    /// Returns the sending half, for use while the other half receives. Only one writer may have bytes in flight.
    pub(super) fn writer(&self) -> WireWriter {
        match self {
            Wire::Plain(socket) => WireWriter::Plain(Writer::second(socket.fd())),
            Wire::Tls(stream) => WireWriter::Tls(stream.writer()),
            Wire::Stream(stream) => WireWriter::Stream(stream.writer()),
        }
    }

    /// Sends the bytes that a plain socket accepts immediately, by a direct call, and returns their number; see
    /// [`Writer::send_slices_now`]. Other transports send nothing.
    pub(super) fn send_now(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match self {
            Wire::Plain(socket) => socket.writer.send_slices_now(parts, false),
            Wire::Tls(_) | Wire::Stream(_) => Ok(0),
        }
    }

    /// See [`Stream::queue_output`].
    pub(super) fn queue_output(&mut self) {
        if let Wire::Tls(stream) = self {
            stream.queue_output();
        }
    }

    /// Returns the local address.
    pub(super) fn local(&self) -> Result<PeerAddr, Errno> {
        match self {
            Wire::Plain(socket) => socket.local(),
            Wire::Tls(stream) => stream.socket().local(),
            Wire::Stream(_) => Err(Errno::NOTCONN),
        }
    }

    /// Receives bytes; `None` at the end of the stream.
    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.poll_recv(context),
            Wire::Tls(stream) => stream.poll_recv(context),
            Wire::Stream(stream) => stream.poll_recv(context),
        }
    }

    /// Works like [`Wire::poll_recv`].
    pub(super) async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Works like [`Wire::recv`], into the caller's buffer if the transport permits it.
    pub(super) async fn recv_into(&mut self, buf: Buf) -> Result<Option<Buf>, Errno> {
        match self {
            Wire::Plain(socket) => socket.reader.recv_into(buf).await,
            Wire::Tls(stream) => stream.recv_into(buf).await,
            Wire::Stream(_) => self.recv().await,
        }
    }

    /// Receives bytes that are already in the socket by a direct call, into a buffer of this size. `None` if there are none, if
    /// memory is scarce, or if the transport needs more than a plain receive.
    pub(super) fn recv_now(&mut self, size: usize) -> Option<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => {
                let mut buf = rt::pool().get(size)?;
                let received = socket.reader.recv_append_now(&mut buf)?;
                Some(received.map(|count| (count > 0).then_some(buf)))
            }
            Wire::Tls(_) | Wire::Stream(_) => None,
        }
    }

    /// Waits until data can be received, and arms a receive for it; see [`rt::net::Reader::readable`].
    pub(super) async fn readable(&mut self) {
        match self {
            Wire::Plain(socket) => socket.reader.readable().await,
            Wire::Tls(stream) => stream.socket_mut().reader.readable().await,
            Wire::Stream(_) => {}
        }
    }

    /// Whether the peer has ended the TLS session, after which it sends no bytes.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.has_ended())
    }

    /// Whether nothing is pending: neither received bytes, nor the end of the connection, nor an error.
    pub(super) fn is_quiet(&mut self) -> bool {
        match self {
            Wire::Plain(socket) => socket.reader.is_quiet(),
            Wire::Tls(stream) => stream.is_quiet(),
            Wire::Stream(stream) => stream.is_quiet(),
        }
    }

    /// Passes the method and limits of the request to a stream, which needs them to parse the response.
    pub(super) fn set_request(&self, method: Method, limits: Limits) {
        if let Wire::Stream(stream) = self {
            stream.set_request(method, limits);
        }
    }

    /// Takes the names of the never-indexed fields of the last header section. Only HTTP/2 has such fields.
    pub(super) fn take_never_indexed(&self) -> Option<Box<NeverIndexed>> {
        match self {
            Wire::Plain(_) | Wire::Tls(_) => None,
            Wire::Stream(stream) => stream.take_never_indexed(),
        }
    }

    /// Returns why an HTTP/2 stream has ended early. Other connections report this only by their errors.
    pub(super) fn cut(&self) -> Option<Cut> {
        match self {
            Wire::Plain(_) | Wire::Tls(_) => None,
            Wire::Stream(stream) => stream.cut(),
        }
    }
}

impl Duplex for Wire {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        Wire::poll_recv(self, context)
    }

    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.try_recv(),
            Wire::Tls(stream) => stream.try_recv(),
            Wire::Stream(_) => None,
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>> {
        match self {
            Wire::Plain(socket) => socket.writer.poll_send(context, data, false),
            Wire::Tls(stream) => stream.poll_send(context, data, false),
            // No other protocol can take over a stream (RFC 9113 section 8.6).
            Wire::Stream(_) => Poll::Ready(Err(Errno::INVAL)),
        }
    }

    fn end_sending(&mut self) {
        match self {
            Wire::Plain(socket) => socket.writer.shutdown(),
            Wire::Tls(stream) => stream.shutdown_write(),
            Wire::Stream(_) => {}
        }
    }

    fn plain(&mut self) -> Option<&mut Socket> {
        match self {
            Wire::Plain(socket) => Some(socket),
            Wire::Tls(_) | Wire::Stream(_) => None,
        }
    }
}

/// The sending half of a [`Wire`].
pub(super) enum WireWriter {
    /// To the socket itself.
    Plain(Writer),
    /// Through TLS.
    Tls(StreamWriter),
    /// On a stream of HTTP/2.
    Stream(H2Writer),
}

impl WireWriter {
    /// Sends all of `data`; must be polled again with the same segments until it is ready.
    pub(super) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        follows: Follows,
    ) -> Poll<Result<(), Errno>> {
        let more = follows == Follows::More;
        match self {
            WireWriter::Plain(writer) => writer.poll_send(context, data, more),
            WireWriter::Tls(writer) => writer.poll_send(context, data, more),
            WireWriter::Stream(writer) => writer.poll_send(context, data, follows),
        }
    }

    /// Sets the trailers to send after the body, if the protocol supports them.
    pub(super) fn set_trailers(&mut self, fields: &[(Vec<u8>, Vec<u8>)]) {
        if let WireWriter::Stream(writer) = self {
            writer.set_trailers(fields);
        }
    }

    /// Returns the number of request bytes sent.
    pub(super) fn sent(&self) -> u64 {
        match self {
            WireWriter::Plain(writer) => writer.sent(),
            WireWriter::Tls(writer) => writer.sent(),
            WireWriter::Stream(writer) => writer.sent(),
        }
    }

    /// Returns a number that increases as the upstream accepts bytes; see [`Writer::progress`].
    pub(super) fn progress(&self) -> u64 {
        match self {
            WireWriter::Plain(writer) => writer.progress(),
            WireWriter::Tls(writer) => writer.progress(),
            WireWriter::Stream(writer) => writer.sent(),
        }
    }
}
