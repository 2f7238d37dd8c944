//! One connection over QUIC: its socket, its requests in flight, and the responses being received.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Instant;

use bare::Noise;
use bytes::BytesMut;
use http::h3::{Http3Limits, Http3Output, Http3Session, RequestEvent, RequestStream};
use io::sys::{self, DatagramsToSend};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointEvent, Event,
    ReadError, StreamEvent, StreamId, VarInt,
};

use crate::failure::Failure;
use crate::load::link::Pending;
use crate::load::outcome::Failed;
use crate::load::reader::{Response, START};

/// Number of datagrams that the kernel may split from one message.
const SEGMENTS_MAX: usize = 10;

/// The error code H3_NO_ERROR (RFC 9114 section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// A request whose response is incomplete.
struct SentRequest {
    id: StreamId,
    /// The frames of the stream, as far as they were read.
    codec: RequestStream,
    pending: Pending,
    /// The response as far as it was received.
    response: Response,
    /// Bytes of the request that the connection has not accepted yet.
    unsent: Vec<u8>,
}

/// A request with its response, or its failure.
pub(super) type Ended = (Pending, Result<Response, Failed>);

/// A connection of `quinn-proto`, which the endpoint of the thread created, and the state of HTTP/3 above it.
pub(super) struct QuicLink {
    /// Each connection has another port, as those of different clients.
    pub(super) socket: UdpSocket,
    handle: ConnectionHandle,
    connection: Connection,
    session: Http3Session,
    /// Bytes for the control stream. The other stream of [`Http3Output`] is not used, because the announced table of QPACK is empty.
    out: Http3Output,
    requests: Vec<SentRequest>,
    /// Whether requests may be sent: the handshake is complete, or permits early data.
    pub(super) is_open: bool,
    /// Whether the connection has ended.
    pub(super) is_lost: bool,
    /// Whether packets may be ready.
    is_dirty: bool,
    /// Whether the checksums of bodies are computed.
    has_checksum: bool,
    /// Share of datagrams that are lost in each direction, in percent.
    loss_percent: u32,
}

impl QuicLink {
    /// Begins a handshake with this server.
    pub(super) fn new(
        endpoint: &mut Endpoint,
        config: ClientConfig,
        server: SocketAddr,
        (has_checksum, loss_percent): (bool, u32),
        now: Instant,
    ) -> Result<QuicLink, Failure> {
        let failed = |error: std::io::Error| Failure::Other(format!("a socket for UDP: {error}"));
        let local = SocketAddr::new(if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
        let socket = UdpSocket::bind(local).map_err(failed)?;
        socket.connect(server).map_err(failed)?;
        sys::prepare_datagrams(socket.as_fd(), server.is_ipv6()).map_err(|errno| failed(errno.into()))?;
        let (handle, connection) =
            endpoint.connect(now, config, server, "localhost").map_err(Failure::other)?;
        let mut out = Http3Output::default();
        let session = Http3Session::client(Http3Limits::default(), &mut out);
        let mut link = QuicLink {
            socket,
            handle,
            connection,
            session,
            out,
            requests: Vec::new(),
            is_open: false,
            is_lost: false,
            is_dirty: true,
            has_checksum,
            loss_percent,
        };
        if link.connection.has_0rtt() {
            link.open();
        }
        Ok(link)
    }

    /// Number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Sends the settings, after which requests may follow.
    fn open(&mut self) {
        self.is_open = true;
        let Some(id) = self.connection.streams().open(Dir::Uni) else { return self.lose() };
        // The window of each stream is larger than the settings (RFC 9114 section 6.2).
        match self.connection.send_stream(id).write(&self.out.control) {
            Ok(written) if written == self.out.control.len() => self.out.control.clear(),
            _ => self.lose(),
        }
    }

    /// Notes that the connection is of no use; the worker closes it.
    fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Sends a request: a header block, and a body. Returns whether the connection has a stream for it.
    pub(super) fn request(&mut self, block: &[u8], body: &[u8], pending: Pending) -> bool {
        let Some(id) = self.connection.streams().open(Dir::Bi) else { return false };
        let Some(mut codec) = self.session.open(id.into()) else {
            self.lose();
            return false;
        };
        let mut unsent = Vec::new();
        self.session.push_head(&mut codec, block, &mut unsent);
        if !body.is_empty() {
            self.session.push_data(body.len() as u64, &mut unsent);
            unsent.extend_from_slice(body);
        }
        self.session.finish(&mut codec);
        self.requests.push(SentRequest { id, codec, pending, response: START, unsent });
        self.flush(self.requests.len() - 1);
        self.is_dirty = true;
        true
    }

    /// Passes the unsent bytes of a request to the connection, as far as the windows of flow control permit.
    fn flush(&mut self, index: usize) {
        let SentRequest { id, unsent, .. } = &mut self.requests[index];
        let mut stream = self.connection.send_stream(*id);
        // A server that has stopped reading may still respond.
        while let Ok(written @ 1..) = stream.write(unsent) {
            unsent.drain(..written);
            if unsent.is_empty() {
                let _ = stream.finish();
            }
        }
    }

    /// Receives the datagrams in the socket, and collects the requests that have ended.
    pub(super) fn receive(
        &mut self,
        endpoint: &mut Endpoint,
        space: &mut [u8],
        noise: &mut Noise,
        now: Instant,
        ended: &mut Vec<Ended>,
    ) {
        let mut responses = Vec::new();
        let (connection, loss_percent) = (&mut self.connection, self.loss_percent);
        loop {
            let received = sys::receive_datagrams(self.socket.as_fd(), space, |facts, bytes| {
                for datagram in bytes.chunks(facts.segment.max(1)) {
                    if is_lost(noise, loss_percent) {
                        continue;
                    }
                    let ecn = quinn_proto::EcnCodepoint::from_bits(facts.ecn);
                    let data = BytesMut::from(datagram);
                    let event = endpoint.handle(now, facts.from, facts.to, ecn, data, &mut responses);
                    if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                        connection.handle_event(event);
                    }
                    responses.clear();
                }
            });
            match received {
                Ok(count) if count * sys::DATAGRAM_BYTES >= space.len() => {}
                // The server's port is closed (ECONNREFUSED), or the socket is empty.
                _ => break,
            }
        }
        self.is_dirty = true;
        self.handle_events(endpoint, ended);
    }

    /// Handles the timeouts that are due.
    pub(super) fn time(&mut self, endpoint: &mut Endpoint, now: Instant, ended: &mut Vec<Ended>) {
        if self.connection.poll_timeout().is_some_and(|at| at <= now) {
            self.connection.handle_timeout(now);
            self.is_dirty = true;
            self.handle_events(endpoint, ended);
        }
    }

    /// Handles the events that packets and timeouts have caused.
    fn handle_events(&mut self, endpoint: &mut Endpoint, ended: &mut Vec<Ended>) {
        loop {
            while let Some(event) = self.connection.poll_endpoint_events() {
                if let Some(event) = endpoint.handle_event(self.handle, event) {
                    self.connection.handle_event(event);
                }
            }
            let Some(event) = self.connection.poll() else { break };
            match event {
                Event::Connected if !self.is_open => self.open(),
                // The server has discarded the early data, with the request.
                Event::Connected if !self.connection.accepted_0rtt() => self.lose(),
                Event::ConnectionLost { .. } => self.lose(),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.connection.streams().accept(Dir::Uni) {
                        self.read_uni(id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Uni => self.read_uni(id),
                Event::Stream(StreamEvent::Readable { id }) => self.read(id, ended),
                Event::Stream(StreamEvent::Writable { id }) => {
                    if let Some(index) = self.requests.iter().position(|request| request.id == id) {
                        self.flush(index);
                    }
                }
                _ => {}
            }
        }
        if self.is_lost {
            let failed = |request: SentRequest| (request.pending, Err(Failed::Reset));
            ended.extend(self.requests.drain(..).map(failed));
        }
    }

    /// Reads a stream of the server's settings and instructions.
    fn read_uni(&mut self, id: StreamId) {
        let mut bytes = Vec::new();
        if let Ok(mut chunks) = self.connection.recv_stream(id).read(true) {
            while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                bytes.extend_from_slice(&chunk.bytes);
            }
            let _ = chunks.finalize();
        }
        let mut input = &bytes[..];
        while !input.is_empty() {
            match self.session.receive_uni(id.into(), input, &mut self.out) {
                Ok(step) => input = &input[step.used..],
                Err(_) => return self.lose(),
            }
        }
    }

    /// Reads a response as far as it has arrived.
    fn read(&mut self, id: StreamId, ended: &mut Vec<Ended>) {
        let Some(index) = self.requests.iter().position(|request| request.id == id) else { return };
        let request = &mut self.requests[index];
        let mut end = None;
        if let Ok(mut chunks) = self.connection.recv_stream(id).read(true) {
            while end.is_none() {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        let read =
                            parse(&mut self.session, &mut self.out, request, &chunk.bytes, self.has_checksum);
                        end = read.err().map(Err);
                    }
                    Ok(None) => end = Some(Ok(())),
                    Err(ReadError::Blocked) => break,
                    Err(ReadError::Reset(_)) => end = Some(Err(Failed::Reset)),
                }
            }
            let _ = chunks.finalize();
        }
        let Some(end) = end else { return };
        let mut request = self.requests.swap_remove(index);
        let end = end.and_then(|()| match self.session.receive_end(&mut request.codec) {
            Ok(()) => Ok(request.response),
            Err(_) => Err(Failed::ShortBody),
        });
        if end.is_err() {
            let _ = self.connection.recv_stream(id).stop(NO_ERROR);
        }
        ended.push((request.pending, end));
    }

    /// Sends the packets that are ready.
    pub(super) fn transmit(&mut self, packets: &mut Vec<u8>, noise: &mut Noise, now: Instant) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        loop {
            packets.clear();
            let Some(ready) = self.connection.poll_transmit(now, SEGMENTS_MAX, packets) else { break };
            let send = |bytes: &[u8], segment: Option<usize>| {
                let message = DatagramsToSend {
                    to: ready.destination,
                    from: None,
                    ecn: ready.ecn.map_or(0, |ecn| ecn as u8),
                    segment: segment.and_then(|segment| u16::try_from(segment).ok()),
                    bytes,
                };
                // A full send buffer loses the packets, as a network does.
                let _ = sys::send_datagrams(self.socket.as_fd(), &message);
            };
            let segment = ready.segment_size.filter(|&segment| segment < ready.size);
            if self.loss_percent == 0 {
                send(&packets[..ready.size], segment);
                continue;
            }
            for packet in packets[..ready.size].chunks(segment.unwrap_or(ready.size)) {
                if !is_lost(noise, self.loss_percent) {
                    send(packet, None);
                }
            }
        }
    }

    /// Removes the requests that were sent before this time.
    pub(super) fn expire(&mut self, before: u64, ended: &mut Vec<Ended>) {
        for request in self.requests.extract_if(.., |request| request.pending.sent <= before) {
            let _ = self.connection.recv_stream(request.id).stop(NO_ERROR);
            let _ = self.connection.send_stream(request.id).reset(NO_ERROR);
            ended.push((request.pending, Err(Failed::Timeout)));
        }
        self.is_dirty = true;
    }

    /// Ends the connection, and returns the requests that were in flight.
    pub(super) fn close(
        mut self,
        endpoint: &mut Endpoint,
        packets: &mut Vec<u8>,
        noise: &mut Noise,
        now: Instant,
    ) -> impl Iterator<Item = Pending> {
        self.connection.close(now, NO_ERROR, bytes::Bytes::new());
        self.is_dirty = true;
        self.transmit(packets, noise, now);
        endpoint.handle_event(self.handle, EndpointEvent::drained());
        self.requests.into_iter().map(|request| request.pending)
    }
}

/// Whether the next datagram is lost.
fn is_lost(noise: &mut Noise, percent: u32) -> bool {
    percent > 0 && (noise.number() >> 32) % 100 < u64::from(percent)
}

/// Parses received bytes of a response.
fn parse(
    session: &mut Http3Session,
    out: &mut Http3Output,
    request: &mut SentRequest,
    mut input: &[u8],
    has_checksum: bool,
) -> Result<(), Failed> {
    let SentRequest { codec, response, .. } = request;
    while !input.is_empty() {
        let step = session.receive(codec, input).map_err(|_| Failed::Parse)?;
        match step.event {
            RequestEvent::More => {}
            RequestEvent::Data { start, end } => {
                response.body_bytes += (end - start) as u64;
                if has_checksum {
                    response.crc32c = crc32c::crc32c_append(response.crc32c, &input[start..end]);
                }
            }
            RequestEvent::Head { block } => {
                let mut status = None;
                let field = |name: &[u8], value: &[u8]| {
                    if name == b":status" {
                        status = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
                    }
                };
                session.decode(codec, block, input, out, field).map_err(|_| Failed::Parse)?;
                response.status = status.ok_or(Failed::Parse)?;
                if response.status < 200 {
                    codec.expect_another_head();
                }
            }
            RequestEvent::Trailers { block } => {
                session.decode_trailers(codec, block, input, out).map_err(|_| Failed::Parse)?;
            }
        }
        input = &input[step.used..];
    }
    Ok(())
}
