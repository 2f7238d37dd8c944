//! One stream, from its first bytes to the end of its request.

use std::cell::RefCell;
use std::rc::Rc;

use http::fields::{BodyLength, HeaderId, Version};
use http::h3::{
    Block, DecodedSection, HeadFault, HeadReader, Http3ErrorCode, Http3Fault, Malformed, RequestEvent,
    RequestFault, Scratch, StreamFailure,
};
use io::segments::Source;
use quinn_proto::StreamId;

use crate::h3::link::Http3Link;
use crate::h3::shared::{Http3Shared, Http3Stream, Pulled, StreamEnd};
use crate::listen_socket::ListenSocket;
use crate::quic::canonical;
use crate::streams::client::StreamClient;
use crate::streams::held::HeldRequest;
use crate::streams::{requests, run};
use exchange::effect;
use exchange::request::{Address, ConnInfo, Request};
use exchange::transport::Received;
use site::config::Section;
use telemetry::Level;
use transfer::incoming::BodyAborted;

/// A request with a decoded header section.
pub(super) struct Http3Request {
    /// The stream that delivers its body and gets its response.
    pub(super) stream: Rc<Http3Stream>,
    /// The request with its header section.
    request: Box<Request>,
    /// Whether the header section is valid.
    received: Received,
    /// Error code to end the stream with after the response, if the request violated the protocol.
    reset: Option<Http3ErrorCode>,
}

impl HeldRequest for Http3Request {
    fn is_cancelled(&self) -> bool {
        self.stream.is_closed()
    }
}

impl Http3Request {
    /// Returns the request to be ended without processing, as nginx logs it.
    pub(super) fn abandoned(self) -> Http3Request {
        Http3Request { received: Received::Abandoned(requests::CLIENT_CLOSED), ..self }
    }
}

/// The parts of a connection that decoding needs.
pub(super) struct Decoding<'a> {
    /// The connection.
    pub(super) shared: &'a Rc<Http3Shared>,
    /// The listening socket that it arrived at.
    pub(super) listen_socket: &'a ListenSocket,
    /// Its facts.
    pub(super) info: &'a Rc<ConnInfo>,
    /// Memory for decoding.
    pub(super) scratch: &'a mut Scratch,
}

/// Opens a stream. `None` if no more streams are served: it is refused, and the client may repeat the request elsewhere.
pub(super) fn open(shared: &Rc<Http3Shared>, id: StreamId) -> Option<Rc<Http3Stream>> {
    let codec = shared.with(|state| state.session.open(id.into()));
    let Some(codec) = codec else {
        shared.stop(id, Http3ErrorCode::RequestRejected);
        let code = (Http3ErrorCode::RequestRejected as u32).into();
        let _ = shared.connection.proto.borrow_mut().send_stream(id).reset(code);
        return None;
    };
    let stream = Http3Stream::new(id, codec, &shared.share);
    shared.insert(&stream);
    Some(stream)
}

impl Decoding<'_> {
    /// Processes received bytes of a stream. Returns the request when its header section is complete.
    ///
    /// # Errors
    /// The connection must end.
    pub(super) fn receive(&mut self, stream: &Rc<Http3Stream>) -> Result<Option<Http3Request>, Http3Fault> {
        loop {
            let received = self.receive_some(stream)?;
            self.shared.adapt_window();
            // `quinn-proto` reports bytes once, so those of an incomplete header section are read until there are no more.
            let has_more = stream.has_more.get() && self.shared.readable(stream) > 0;
            if received.is_some() || stream.has_head.get() || !has_more {
                return Ok(received);
            }
        }
    }

    /// Processes a limited number of received bytes.
    fn receive_some(&mut self, stream: &Rc<Http3Stream>) -> Result<Option<Http3Request>, Http3Fault> {
        let most = self.shared.readable(stream);
        if most == 0 {
            stream.has_more.set(true);
            return if self.shared.is_reset(stream) {
                cancelled(self.shared, stream).map(|()| None)
            } else {
                Ok(None)
            };
        }
        let pulled = self.shared.pull(stream, most);
        if self.shared.is_hq {
            return Ok(self.receive_line(stream, &pulled));
        }
        let mut decoded = None;
        match self.process(stream, &pulled, &mut decoded) {
            Ok(()) => Ok(decoded),
            Err(StreamFailure::Connection(fault)) => {
                if let Some(decoded) = decoded {
                    self.shared.thread.recycle_request(decoded.request);
                }
                Err(fault)
            }
            Err(StreamFailure::Stream(fault)) => Ok(self.fail(stream, fault, decoded)),
        }
    }

    /// Processes received bytes of HTTP/0.9. Returns the request when its line is complete.
    fn receive_line(&mut self, stream: &Rc<Http3Stream>, pulled: &Pulled) -> Option<Http3Request> {
        stream.is_received.set(stream.is_received.get() || pulled.end.is_some());
        if stream.has_head.get() {
            return None;
        }
        let mut request = self.take_request(stream);
        let policy = effect::policy(&request.scope().core);
        let mut is_complete = pulled.end.is_some();
        let mut result = Ok(());
        for chunk in &pulled.chunks {
            match stream.line.borrow_mut().receive(chunk, &policy) {
                Ok(complete) => is_complete |= complete,
                Err(error) => (is_complete, result) = (true, Err(error)),
            }
        }
        if !is_complete {
            self.shared.thread.recycle_request(request);
            return None;
        }
        stream.has_head.set(true);
        stream.inbox.borrow_mut().finish(Ok(()));
        self.count_request(&request);
        let mut raw = Vec::with_capacity(requests::RAW_BYTES);
        let read = result.and_then(|()| stream.line.borrow().read(&mut request.head, &mut raw, &policy));
        request.received = raw.len() as u64;
        request.take_head(Source::Vec(raw), 0);
        request.keepalive = true;
        let (received, _) = requests::verdict(&mut request, read.map_err(HeadFault::Refused));
        Some(Http3Request { stream: Rc::clone(stream), request, received, reset: None })
    }

    /// Returns a request of a stream without its header section.
    fn take_request(&self, stream: &Rc<Http3Stream>) -> Box<Request> {
        let thread = &self.shared.thread;
        let thread_config = thread.thread_config();
        let server = self.listen_socket.default_server(Section::Http, &thread_config, self.info);
        thread.take_request(&thread_config, &info_of(self.shared, stream, self.info), server)
    }

    /// Counts a request of the connection.
    fn count_request(&self, request: &Request) {
        let info = self.info;
        info.requests.set(info.requests.get() + 1);
        request.conn.requests.set(info.requests.get());
        // The settings of the server apply: the requests of a connection may use several locations.
        let opened = rt::now().duration_since(info.opened);
        let keepalive = &request.scope().core.keepalive;
        self.shared.is_ending.set(!keepalive.permits(info.requests.get(), opened));
    }

    fn process(
        &mut self,
        stream: &Rc<Http3Stream>,
        pulled: &Pulled,
        decoded: &mut Option<Http3Request>,
    ) -> Result<(), StreamFailure> {
        for (index, chunk) in pulled.chunks.iter().enumerate() {
            let mut input = &chunk[..];
            while !input.is_empty() {
                let step =
                    self.shared.with(|state| state.session.receive(&mut stream.codec.borrow_mut(), input))?;
                match step.event {
                    RequestEvent::Head { block } => {
                        let is_last = step.used == input.len() && index + 1 == pulled.chunks.len();
                        let ends = is_last && pulled.end == Some(StreamEnd::Complete);
                        *decoded = Some(self.begin(stream, block, input, ends)?);
                    }
                    event => body_event(self.shared, stream, event, input)?,
                }
                debug_assert!(step.used <= input.len(), "the session uses at most the input");
                input = &input[step.used..];
            }
        }
        end(self.shared, stream, pulled.end)
    }

    /// Decodes the header section of a request.
    fn begin(
        &mut self,
        stream: &Rc<Http3Stream>,
        block: Block,
        input: &[u8],
        ends: bool,
    ) -> Result<Http3Request, StreamFailure> {
        let mut request = self.take_request(stream);
        self.count_request(&request);
        let Decoding { shared, listen_socket, info, scratch } = self;
        let thread = &shared.thread;
        let thread_config = Rc::clone(&request.thread_config);
        let policy = effect::policy(&request.scope().core);
        let mut raw = Vec::with_capacity(requests::RAW_BYTES);
        // The server that `:authority` selects may accept field names that the default server drops.
        let choose = |host: &[u8]| listen_socket.named_policy(&thread_config, &info.local, host, policy);
        let reader = HeadReader::new(scratch, &mut request.head, &mut raw, &policy).version(Version::Http3);
        let mut reader = reader.choosing(&choose);
        let (size, result, never_indexed) = shared.with(|state| {
            let codec = &mut stream.codec.borrow_mut();
            let size = codec.block_len(block);
            let field = |name: &[u8], value: &[u8]| reader.field(name, value);
            let result = state.session.decode(codec, block, input, &mut state.out, field);
            (size, result, state.session.take_never_indexed())
        });
        let mut finished = reader.finish(ends);
        match result {
            Ok(DecodedSection::Fields) => {}
            Ok(DecodedSection::Blocked) => unreachable!("the table of the client is empty"),
            Err(failure) => {
                thread.recycle_request(request);
                return Err(failure.into());
            }
        }
        stream.has_head.set(true);
        let length = match request.head.body() {
            BodyLength::Exactly(length) => Some(length),
            BodyLength::None | BodyLength::Unknown => None,
        };
        // RFC 9114 section 4.1.2: a body is announced but the stream ends.
        if finished.is_ok() && ends && length.is_some_and(|length| length > 0) {
            finished = Err(HeadFault::Malformed(Malformed::Missing));
        }
        if let Some(names) = never_indexed {
            request.extensions.insert(*names);
        }
        request.received = size as u64;
        request.take_head(Source::Vec(raw), 0);
        // No single request decides on the connection's keep-alive.
        request.keepalive = true;
        let update = shared.with(|state| state.session.take_update(stream.id.into()));
        if let Some(priority) = update.or_else(|| requests::priority(&request)) {
            shared.set_priority(stream, priority);
        } else {
            shared.set_priority(stream, http::h3::Priority::default());
        }
        // Only `:protocol` of extended CONNECT (RFC 9220) yields an `Upgrade` field.
        if finished.is_ok() && request.header(HeaderId::Upgrade).is_some() {
            stream.codec.borrow_mut().tunnel();
        } else if let Some(length) = length.filter(|_| finished.is_ok()) {
            stream.codec.borrow_mut().expect(length);
        }
        let (received, is_malformed) = requests::verdict(&mut request, finished);
        let reset = is_malformed.then_some(Http3ErrorCode::Message);
        Ok(Http3Request { stream: Rc::clone(stream), request, received, reset })
    }

    /// Handles an error of a stream. A request that has not begun gets a response.
    fn fail(
        &mut self,
        stream: &Rc<Http3Stream>,
        fault: RequestFault,
        decoded: Option<Http3Request>,
    ) -> Option<Http3Request> {
        let code = fault.code();
        if let Some(mut decoded) = decoded {
            decoded
                .request
                .log(Level::Info, format_args!("{} while reading client request body", fault.message()));
            decoded.received = Received::Refused(fault.status().code());
            decoded.reset = Some(code);
            stream.inbox.borrow_mut().finish(Ok(()));
            return Some(decoded);
        }
        if stream.has_head.get() {
            fail_body(self.shared, stream, fault);
            return None;
        }
        if fault != RequestFault::HeadTooLarge {
            // There is no request to respond to.
            stream.has_head.set(true);
            fail_body(self.shared, stream, fault);
            self.shared.release(stream, Some(code));
            return None;
        }
        let mut request = self.take_request(stream);
        self.count_request(&request);
        request.keepalive = true;
        request.log(Level::Info, format_args!("{} while reading client request headers", fault.message()));
        stream.has_head.set(true);
        stream.inbox.borrow_mut().finish(Ok(()));
        let received = Received::Refused(fault.status().code());
        Some(Http3Request { stream: Rc::clone(stream), request, received, reset: Some(code) })
    }
}

/// Reads bytes of a body for its handler.
pub(super) fn receive_body(shared: &Rc<Http3Shared>, stream: &Rc<Http3Stream>) {
    let pulled = shared.pull(stream, shared.readable(stream));
    let process = || -> Result<(), StreamFailure> {
        for chunk in &pulled.chunks {
            let mut input = &chunk[..];
            while !input.is_empty() {
                let step =
                    shared.with(|state| state.session.receive(&mut stream.codec.borrow_mut(), input))?;
                body_event(shared, stream, step.event, input)?;
                debug_assert!(step.used <= input.len(), "the session uses at most the input");
                input = &input[step.used..];
            }
        }
        end(shared, stream, pulled.end)
    };
    match process() {
        Ok(()) => {}
        Err(StreamFailure::Connection(fault)) => shared.report(fault),
        Err(StreamFailure::Stream(fault)) => fail_body(shared, stream, fault),
    }
    shared.adapt_window();
}

/// Handles an event after the header section.
fn body_event(
    shared: &Rc<Http3Shared>,
    stream: &Rc<Http3Stream>,
    event: RequestEvent,
    input: &[u8],
) -> Result<(), StreamFailure> {
    match event {
        RequestEvent::More | RequestEvent::Head { .. } => {}
        RequestEvent::Data { start, end } => stream.inbox.borrow_mut().add(&input[start..end]),
        RequestEvent::Trailers { block } => {
            let trailers = shared.with(|state| {
                let codec = &mut stream.codec.borrow_mut();
                state.session.decode_trailers(codec, block, input, &mut state.out)
            })?;
            stream.inbox.borrow_mut().trailers = trailers.unwrap_or_default();
        }
    }
    Ok(())
}

/// Handles the end of a stream.
fn end(
    shared: &Rc<Http3Shared>,
    stream: &Rc<Http3Stream>,
    end: Option<StreamEnd>,
) -> Result<(), StreamFailure> {
    match end {
        None => Ok(()),
        Some(StreamEnd::Complete) => {
            stream.is_received.set(true);
            shared.with(|state| state.session.receive_end(&mut stream.codec.borrow_mut()))?;
            stream.inbox.borrow_mut().finish(Ok(()));
            Ok(())
        }
        Some(StreamEnd::Reset) => Ok(cancelled(shared, stream)?),
    }
}

/// Handles a client that has reset its stream, or does not want the response.
pub(super) fn cancelled(shared: &Rc<Http3Shared>, stream: &Rc<Http3Stream>) -> Result<(), Http3Fault> {
    stream.is_received.set(true);
    let cancelled = shared.cancelled(stream);
    if !stream.has_head.replace(true) {
        shared.release(stream, Some(Http3ErrorCode::RequestCancelled));
    }
    cancelled
}

/// Ends a stream whose body is invalid.
fn fail_body(shared: &Rc<Http3Shared>, stream: &Rc<Http3Stream>, fault: RequestFault) {
    let provoked =
        shared.with(|state| state.session.provoked(&mut stream.codec.borrow_mut(), &mut state.out));
    if let Err(flood) = provoked {
        shared.report(flood);
    }
    // The response is reset when the work of the request has ended: until then the client may not open another stream instead.
    stream.fault.set(Some(fault.code()));
    shared.discard(stream);
    if !stream.is_received.replace(true) {
        shared.stop(stream.id, fault.code());
    }
    stream.abort(BodyAborted::Closed);
}

/// Returns the facts of the connection, for one of its streams. The client may have changed its address.
fn info_of(shared: &Rc<Http3Shared>, stream: &Rc<Http3Stream>, info: &ConnInfo) -> Rc<ConnInfo> {
    let client = StreamClient(Http3Link { shared: Rc::clone(shared), stream: Rc::clone(stream) });
    let peer = Address::Inet(canonical(shared.connection.proto.borrow().remote_address()));
    Rc::new(ConnInfo { client: RefCell::new(Some(Rc::new(client))), peer, ..info.clone() })
}

/// Runs a request until its end.
pub(super) async fn run(shared: Rc<Http3Shared>, listen_socket: Rc<ListenSocket>, decoded: Http3Request) {
    let Http3Request { stream, request, received, reset } = decoded;
    run::run(Http3Link { shared, stream }, listen_socket, request, received, reset).await;
}
