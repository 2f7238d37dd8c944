//! A client of HTTP/3 over `quinn-proto` and the codec of `http::h3`, in one thread. It can lose packets, change its address and stop
//! reading.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::h3::qpack::{push_field, push_request};
use http::h3::{
    DecodedSection, Http3Limits, Http3Output, Http3Session, RequestEvent, RequestStream, StreamFailure,
};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ReadError, StreamEvent, StreamId, TokenMemoryCache, TokenStore, TransportConfig,
    VarInt, WriteError,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// The code of the end of a connection without an error, and of a request that the client may repeat on another connection (RFC 9114 section 8.1).
const NO_ERROR: u32 = 0x100;
const REQUEST_REJECTED: u64 = 0x10b;

/// Settings of a client.
#[derive(Clone)]
pub(crate) struct Options {
    /// Window of each stream in bytes.
    pub(crate) stream_window: u32,
    /// Number of bytes that the client stores until the server has acknowledged them.
    pub(crate) send_window: u64,
    /// Idle timeout.
    pub(crate) idle: Duration,
    /// Share of lost packets in both directions, in percent.
    pub(crate) loss: u32,
    /// Delay of packets in each direction.
    pub(crate) delay: Duration,
    /// Share of packets that are not delayed and overtake others, in percent.
    pub(crate) reorder: u32,
    /// Maximum length of packets; longer ones are lost.
    pub(crate) mtu: usize,
    /// Address validation tokens of earlier connections.
    pub(crate) tokens: Arc<dyn TokenStore>,
    /// Protocol for ALPN.
    pub(crate) alpn: Vec<u8>,
    /// Sessions of earlier connections.
    pub(crate) tls: Arc<rustls::ClientConfig>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            stream_window: 1 << 20,
            send_window: 8 << 20,
            idle: LIMIT,
            loss: 0,
            delay: Duration::ZERO,
            reorder: 0,
            mtu: usize::MAX,
            tokens: Arc::new(TokenMemoryCache::default()),
            alpn: b"h3".to_vec(),
            tls: tls_config(b"h3"),
        }
    }
}

/// A response as far as it was received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) interim: Vec<u16>,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) is_complete: bool,
    /// The code of a reset.
    pub(crate) reset: Option<u64>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// One stream.
struct Exchange {
    codec: Option<RequestStream>,
    reply: Reply,
    unsent: Vec<u8>,
    sent: usize,
    ends: bool,
    is_finished: bool,
    /// Whether the response is read.
    reads: bool,
}

pub(crate) struct Client {
    socket: UdpSocket,
    server: SocketAddr,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    pub(crate) connection: Connection,
    session: Http3Session,
    out: Http3Output,
    control: Option<StreamId>,
    exchanges: HashMap<StreamId, Exchange>,
    is_connected: bool,
    pub(crate) lost: Option<ConnectionError>,
    /// Whether requests wait for a call of `packets` or `transmit`.
    pub(crate) is_held: bool,
    /// Identifiers of received GOAWAY frames.
    pub(crate) goaways: Vec<u64>,
    options: Options,
    random: u64,
    /// Packets on their way, with their arrival; sent ones, or received ones.
    delayed: Vec<(Instant, bool, Vec<u8>)>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// Returns settings that accept any certificate.
pub(crate) fn tls_config(alpn: &[u8]) -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3");
    let verifier = Arc::new(AnyServer);
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    Arc::new(config)
}

impl Client {
    /// Connects, and completes the handshake.
    pub(crate) fn connect(server: SocketAddr) -> Client {
        Client::with(server, Options::default())
    }

    pub(crate) fn with(server: SocketAddr, options: Options) -> Client {
        let mut client = Client::begin(server, options);
        client.drive_until(|client| client.is_connected || client.lost.is_some());
        client
    }

    /// Begins a handshake.
    pub(crate) fn begin(server: SocketAddr, options: Options) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut endpoint = Endpoint::new(Arc::new(endpoint_config()), None, true, None);
        let crypto = QuicClientConfig::try_from(Arc::clone(&options.tls)).expect("TLS 1.3");
        let mut config = ClientConfig::new(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(options.stream_window.into());
        transport.send_window(options.send_window);
        transport.max_idle_timeout(options.idle.try_into().ok());
        config.transport_config(Arc::new(transport));
        config.token_store(Arc::clone(&options.tokens));
        let now = Instant::now();
        let (handle, connection) = endpoint.connect(now, config, server, "localhost").expect("a connection");
        let mut out = Http3Output::default();
        let session = Http3Session::client(Http3Limits::default(), &mut out);
        Client {
            socket,
            server,
            endpoint,
            handle,
            connection,
            session,
            out,
            control: None,
            exchanges: HashMap::new(),
            is_connected: false,
            lost: None,
            is_held: false,
            goaways: Vec::new(),
            options,
            delayed: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// Returns the certificate of the server.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        let chain = self.connection.crypto_session().peer_identity().expect("a complete handshake");
        chain.downcast::<Vec<CertificateDer<'static>>>().expect("that of rustls")[0].to_vec()
    }

    /// Returns the socket of a client that is silent from now on.
    pub(crate) fn take_socket(self) -> UdpSocket {
        self.socket
    }

    /// Continues from another port, as after a change of a NAT.
    pub(crate) fn rebind(&mut self) {
        self.socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    }

    /// Begins a request with a body, which ends the request.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> StreamId {
        let id = self.open(method, path, fields, body.is_none());
        if let Some(body) = body {
            self.send_data(id, body, true);
        }
        id
    }

    /// Begins a request. `ends` means that no body follows.
    pub(crate) fn open(&mut self, method: &str, path: &str, fields: &[(&str, &str)], ends: bool) -> StreamId {
        let mut opened = None;
        self.drive_until(|client| {
            opened = client.connection.streams().open(Dir::Bi);
            opened.is_some()
        });
        let id = opened.expect("a stream");
        let mut block = Vec::new();
        push_request(&mut block, method.as_bytes(), b"https", path.as_bytes(), b"localhost");
        for (name, value) in fields {
            push_field(&mut block, name.as_bytes(), value.as_bytes());
        }
        let is_http3 = self.options.alpn == b"h3";
        let mut codec = self.session.open(id.into());
        let mut unsent = Vec::new();
        match &mut codec {
            Some(codec) if is_http3 => {
                self.session.push_head(codec, &block, &mut unsent);
            }
            _ => unsent.extend_from_slice(format!("{method} {path}\r\n").as_bytes()),
        }
        let exchange = Exchange {
            codec: codec.filter(|_| is_http3),
            reply: Reply::default(),
            unsent,
            sent: 0,
            ends,
            is_finished: false,
            reads: true,
        };
        self.exchanges.insert(id, exchange);
        self.flush(id);
        if !self.is_held {
            self.transmit();
        }
        id
    }

    /// Sends bytes of a body.
    pub(crate) fn send_data(&mut self, id: StreamId, bytes: &[u8], ends: bool) {
        let exchange = self.exchanges.get_mut(&id).expect("an open stream");
        if !bytes.is_empty() {
            self.session.push_data(bytes.len() as u64, &mut exchange.unsent);
            exchange.unsent.extend_from_slice(bytes);
        }
        exchange.ends = ends;
        self.flush(id);
        self.transmit();
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, id: StreamId, bytes: &[u8]) {
        self.exchanges.get_mut(&id).expect("an open stream").unsent.extend_from_slice(bytes);
        self.flush(id);
        self.transmit();
    }

    /// Sends trailers, which end a request.
    pub(crate) fn send_trailers(&mut self, id: StreamId, fields: &[(&str, &str)]) {
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| push_field(&mut block, name.as_bytes(), value.as_bytes()));
        let exchange = self.exchanges.get_mut(&id).expect("an open stream");
        self.session.push_trailers(&block, &mut exchange.unsent);
        exchange.ends = true;
        self.flush(id);
        self.transmit();
    }

    /// Sets whether the response of a stream is read.
    pub(crate) fn set_reading(&mut self, id: StreamId, reads: bool) {
        self.exchanges.get_mut(&id).expect("an open stream").reads = reads;
        if reads {
            self.read(id);
            self.transmit();
        }
    }

    /// Cancels a request in both directions.
    pub(crate) fn cancel(&mut self, id: StreamId) {
        let code = VarInt::from_u32(0x10c);
        let _ = self.connection.send_stream(id).reset(code);
        let _ = self.connection.recv_stream(id).stop(code);
        self.exchanges.remove(&id);
        self.transmit();
    }

    /// Declines the response of a request, without ending the request.
    pub(crate) fn decline(&mut self, id: StreamId) {
        let _ = self.connection.recv_stream(id).stop(VarInt::from_u32(0x10c));
        self.transmit();
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self) {
        self.connection.close(Instant::now(), VarInt::from_u32(NO_ERROR), bytes::Bytes::new());
        self.transmit();
    }

    /// Waits for a response.
    pub(crate) fn reply(&mut self, id: StreamId) -> Reply {
        self.drive_until(|client| client.is_over(id) || client.lost.is_some());
        let reply = &self.exchanges[&id].reply;
        let (status, received) = (reply.status, reply.body.len());
        assert!(self.is_over(id), "{:?}: status {status}, {received} bytes", self.lost);
        self.exchanges.remove(&id).expect("an open stream").reply
    }

    /// Waits for a response. `None` if the server has refused the request.
    pub(crate) fn reply_unless_refused(&mut self, id: StreamId) -> Option<Reply> {
        self.drive_until(|client| client.is_over(id) || client.lost.is_some());
        if self.is_refused(id) { None } else { Some(self.reply(id)) }
    }

    /// Whether the server has not begun a request that was sent after its GOAWAY frame: its client may repeat it on another connection (RFC 9114
    /// section 5.2).
    pub(crate) fn is_refused(&self, id: StreamId) -> bool {
        let reply = &self.exchanges[&id].reply;
        reply.reset == Some(REQUEST_REJECTED) || self.is_ended() && !reply.is_complete && reply.status == 0
    }

    /// Whether the server has ended the connection, without an error, after a GOAWAY frame.
    pub(crate) fn is_ended(&self) -> bool {
        let is_closed = matches!(&self.lost, Some(ConnectionError::ApplicationClosed(close))
            if close.error_code == VarInt::from_u32(NO_ERROR));
        is_closed && !self.goaways.is_empty()
    }

    /// Waits until the header section of a response was received.
    pub(crate) fn wait_for_head(&mut self, id: StreamId) -> u16 {
        self.drive_until(|client| client.exchanges[&id].reply.status >= 200 || client.lost.is_some());
        self.exchanges[&id].reply.status
    }

    /// Returns the received part of a response.
    pub(crate) fn partial(&self, id: StreamId) -> &Reply {
        &self.exchanges[&id].reply
    }

    fn is_over(&self, id: StreamId) -> bool {
        let reply = &self.exchanges[&id].reply;
        reply.is_complete || reply.reset.is_some()
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        let id = self.send("GET", path, &[], None);
        self.reply(id)
    }

    /// Handles packets and timeouts until a condition holds.
    pub(crate) fn drive_until(&mut self, mut is_met: impl FnMut(&mut Client) -> bool) {
        let end = Instant::now() + LIMIT;
        self.transmit();
        while !is_met(self) {
            assert!(Instant::now() < end, "nothing happened: {:?}", self.lost);
            self.step(Duration::from_millis(20));
        }
    }

    /// Receives packets for this time.
    pub(crate) fn drive_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step(Duration::from_millis(5));
        }
    }

    fn step(&mut self, wait: Duration) {
        let now = Instant::now();
        let timeout = self.connection.poll_timeout().map_or(wait, |at| at.saturating_duration_since(now));
        let arrival = self.delayed.iter().map(|(at, _, _)| at.saturating_duration_since(now)).min();
        let timeout = arrival.map_or(timeout, |arrival| arrival.min(timeout));
        let timeout = timeout.clamp(Duration::from_micros(200), wait);
        self.socket.set_read_timeout(Some(timeout)).expect("a socket");
        let mut space = [0; 2048];
        match self.socket.recv(&mut space) {
            Ok(count) => {
                self.received_bytes += count as u64;
                self.pass(false, &space[..count]);
                // Further datagrams are handled before packets are sent.
                self.socket.set_nonblocking(true).expect("a socket");
                while let Ok(count) = self.socket.recv(&mut space) {
                    self.received_bytes += count as u64;
                    self.pass(false, &space[..count]);
                }
                self.socket.set_nonblocking(false).expect("a socket");
            }
            Err(_) => {
                let now = Instant::now();
                if self.connection.poll_timeout().is_some_and(|at| at <= now) {
                    self.connection.handle_timeout(now);
                }
            }
        }
        self.deliver();
        self.handle_events();
        self.transmit();
    }

    /// Processes received packets, and sends nothing.
    pub(crate) fn absorb(&mut self) {
        let mut space = [0; 2048];
        self.socket.set_nonblocking(true).expect("a socket");
        while let Ok(count) = self.socket.recv(&mut space) {
            self.take_datagram(&space[..count]);
        }
        self.socket.set_nonblocking(false).expect("a socket");
        self.handle_events();
    }

    /// Whether an event of this probability, in percent, happens.
    fn happens(&mut self, percent: u32) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % 100) < u64::from(percent)
    }

    /// Passes a packet through the network.
    fn pass(&mut self, is_sent: bool, packet: &[u8]) {
        if packet.len() > self.options.mtu || self.happens(self.options.loss) {
            return;
        }
        let is_first = self.happens(self.options.reorder);
        if self.options.delay.is_zero() || is_first {
            return self.arrive(is_sent, packet);
        }
        self.delayed.push((Instant::now() + self.options.delay, is_sent, packet.to_vec()));
    }

    /// Delivers the packets whose delay has passed.
    fn deliver(&mut self) {
        let now = Instant::now();
        let (due, delayed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.delayed).into_iter().partition(|(at, _, _)| *at <= now);
        self.delayed = delayed;
        for (_, is_sent, packet) in due {
            self.arrive(is_sent, &packet);
        }
    }

    fn arrive(&mut self, is_sent: bool, packet: &[u8]) {
        if is_sent {
            let _ = self.socket.send_to(packet, self.server);
        } else {
            self.take_datagram(packet);
        }
    }

    fn take_datagram(&mut self, bytes: &[u8]) {
        let now = Instant::now();
        let mut response = Vec::new();
        let data = BytesMut::from(bytes);
        let event = self.endpoint.handle(now, self.server, None, None, data, &mut response);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    fn handle_events(&mut self) {
        loop {
            while let Some(event) = self.connection.poll_endpoint_events() {
                if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                    self.connection.handle_event(answer);
                }
            }
            let Some(event) = self.connection.poll() else { break };
            match event {
                Event::Connected => self.begin_session(),
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.connection.streams().accept(Dir::Uni) {
                        self.read_uni(id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Uni => self.read_uni(id),
                Event::Stream(StreamEvent::Readable { id }) => self.read(id),
                Event::Stream(StreamEvent::Writable { id }) => self.flush(id),
                Event::Stream(StreamEvent::Stopped { id, .. }) => {
                    let _ = self.connection.send_stream(id).reset(VarInt::from_u32(0x10c));
                    if let Some(exchange) = self.exchanges.get_mut(&id) {
                        exchange.unsent.clear();
                        exchange.sent = 0;
                        exchange.is_finished = true;
                    }
                }
                _ => {}
            }
        }
    }

    fn begin_session(&mut self) {
        self.is_connected = true;
        if self.options.alpn != b"h3" {
            return;
        }
        let id = self.connection.streams().open(Dir::Uni).expect("a control stream");
        self.control = Some(id);
        let bytes = std::mem::take(&mut self.out.control);
        let written = self.connection.send_stream(id).write(&bytes).expect("a window");
        assert_eq!(written, bytes.len());
    }

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
            let step = self.session.receive_uni(id.into(), input, &mut self.out).expect("a valid stream");
            if let http::h3::UniEvent::GoAway { id } = step.event {
                self.goaways.push(id);
            }
            input = &input[step.used..];
        }
    }

    fn read(&mut self, id: StreamId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        if !exchange.reads {
            return;
        }
        let (mut chunks, mut end) = (Vec::new(), None);
        if let Ok(mut reader) = self.connection.recv_stream(id).read(true) {
            loop {
                match reader.next(usize::MAX) {
                    Ok(Some(chunk)) => chunks.push(chunk.bytes),
                    Ok(None) => {
                        end = Some(Ok(()));
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                    Err(ReadError::Reset(code)) => {
                        end = Some(Err(code.into_inner()));
                        break;
                    }
                }
            }
            let _ = reader.finalize();
        }
        let Exchange { codec, reply, .. } = exchange;
        for chunk in &chunks {
            let Some(codec) = codec else {
                reply.body.extend_from_slice(chunk);
                continue;
            };
            receive(&mut self.session, &mut self.out, codec, reply, chunk).expect("a valid response");
        }
        match end {
            Some(Ok(())) => reply.is_complete = true,
            Some(Err(code)) => reply.reset = Some(code),
            None => {}
        }
    }

    fn flush(&mut self, id: StreamId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let mut sender = self.connection.send_stream(id);
        while exchange.sent < exchange.unsent.len() {
            match sender.write(&exchange.unsent[exchange.sent..]) {
                Ok(written) => exchange.sent += written,
                Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => return,
            }
        }
        exchange.unsent.clear();
        exchange.sent = 0;
        if exchange.ends && !std::mem::replace(&mut exchange.is_finished, true) {
            let _ = sender.finish();
        }
    }

    pub(crate) fn transmit(&mut self) {
        for packet in self.packets() {
            self.pass(true, &packet);
        }
    }

    /// Returns the packets that are ready to be sent.
    pub(crate) fn packets(&mut self) -> Vec<Vec<u8>> {
        let (mut ready, mut packets) = (Vec::new(), Vec::new());
        while let Some(transmit) = self.connection.poll_transmit(Instant::now(), 1, &mut packets) {
            self.sent_bytes += transmit.size as u64;
            ready.push(packets[..transmit.size].to_vec());
            packets.clear();
        }
        ready
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

/// Processes bytes of a response.
fn receive(
    session: &mut Http3Session,
    out: &mut Http3Output,
    codec: &mut RequestStream,
    reply: &mut Reply,
    mut input: &[u8],
) -> Result<(), StreamFailure> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while !input.is_empty() {
        let step = session.receive(codec, input)?;
        match step.event {
            RequestEvent::More => {}
            RequestEvent::Data { start, end } => reply.body.extend_from_slice(&input[start..end]),
            RequestEvent::Head { block } => {
                let mut fields = Vec::new();
                let field = |name: &[u8], value: &[u8]| fields.push((text(name), text(value)));
                let decoded = session.decode(codec, block, input, out, field)?;
                assert_eq!(decoded, DecodedSection::Fields);
                let status =
                    fields.iter().find(|(name, _)| name == ":status").map(|(_, value)| value.clone());
                let status = status.and_then(|status| status.parse().ok()).expect("a status");
                if status < 200 {
                    reply.interim.push(status);
                    codec.expect_another_head();
                } else {
                    (reply.status, reply.fields) = (status, fields);
                }
            }
            RequestEvent::Trailers { block } => {
                let trailers = session.decode_trailers(codec, block, input, out)?.unwrap_or_default();
                reply.trailers = trailers.iter().map(|(name, value)| (text(name), text(value))).collect();
            }
        }
        input = &input[step.used..];
    }
    Ok(())
}

fn endpoint_config() -> EndpointConfig {
    EndpointConfig::default()
}

/// Accepts any certificate.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
