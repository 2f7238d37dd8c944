//! One stream, from the header section of its request to its end.

use std::cell::RefCell;
use std::rc::Rc;

use http::fields::{BodyLength, HeaderId};
use http::h2::{Block, ErrorCode, Fault, HeadFault, HeadReader, Priority, Scratch};
use io::segments::Source;

use crate::h2::link::Http2Link;
use crate::h2::shared::{Shared, Stream};
use crate::listen_socket::ListenSocket;
use crate::streams::client::StreamClient;
use crate::streams::held::HeldRequest;
use crate::streams::{requests, run};
use exchange::effect;
use exchange::request::{ConnInfo, Request};
use exchange::transport::Received;
use site::config::Section;

/// A request with a decoded header section.
pub(super) struct DecodedRequest {
    /// The stream that delivers its body and gets its response.
    pub(super) stream: Rc<Stream>,
    /// The request with its header section.
    request: Box<Request>,
    /// Whether the header section is valid.
    received: Received,
    /// Error code to end the stream with after the response, if the request violated the protocol.
    reset: Option<ErrorCode>,
}

impl HeldRequest for DecodedRequest {
    fn is_cancelled(&self) -> bool {
        self.stream.is_closed()
    }
}

impl DecodedRequest {
    /// Returns the request to be ended without processing, as nginx logs it.
    pub(super) fn abandoned(self) -> DecodedRequest {
        DecodedRequest { received: Received::Abandoned(requests::CLIENT_CLOSED), ..self }
    }
}

/// A header block, and the state for decoding it.
pub(super) struct Head<'a> {
    /// The number of the stream.
    pub(super) id: u32,
    /// Whether no body follows.
    pub(super) ends: bool,
    /// Location of the header block.
    pub(super) block: Block,
    /// The input that may contain the block.
    pub(super) input: &'a [u8],
    /// Memory for decoding.
    pub(super) scratch: &'a mut Scratch,
}

/// Decodes the header section of a request.
///
/// # Errors
/// The connection must end.
pub(super) fn begin(
    shared: &Rc<Shared>,
    listen_socket: &ListenSocket,
    info: &Rc<ConnInfo>,
    head: Head<'_>,
) -> Result<DecodedRequest, Fault> {
    let Head { id, ends, block, input, scratch } = head;
    info.requests.set(info.requests.get() + 1);
    let stream = Stream::new(id, Priority::default(), (!ends).then_some(&shared.share));
    let thread = &shared.thread;
    let thread_config = thread.thread_config();
    let server = listen_socket.default_server(Section::Http, &thread_config, info);
    let conn = info_of(shared, &stream, info);
    let mut request = thread.take_request(&thread_config, &conn, server);
    // As in nginx, the settings of the server apply: the requests of a connection may use several locations.
    let keepalive = &request.scope().core.keepalive;
    shared.is_ending.set(!keepalive.permits(info.requests.get(), rt::now().duration_since(info.opened)));
    let policy = effect::policy(&request.scope().core);
    let mut raw = Vec::with_capacity(requests::RAW_BYTES);
    // The server that `:authority` selects may accept field names that the default server drops.
    let choose = |host: &[u8]| listen_socket.named_policy(&thread_config, &info.local, host, policy);
    let mut reader = HeadReader::new(scratch, &mut request.head, &mut raw, &policy).choosing(&choose);
    let (size, decoded, never_indexed) = shared.with(|state| {
        let size = state.session.block_len(block);
        let decoded = state.session.decode(block, input, |name, value| reader.field(name, value));
        (size, decoded, state.session.take_never_indexed())
    });
    let mut finished = reader.finish(ends);
    if let Err(fault) = decoded {
        thread.recycle_request(request);
        return Err(fault);
    }
    let length = match request.head.body() {
        BodyLength::Exactly(length) => Some(length),
        BodyLength::None | BodyLength::Unknown => None,
    };
    // RFC 9113 section 8.1.1: a body is announced but the stream ends.
    if finished.is_ok() && ends && length.is_some_and(|length| length > 0) {
        finished = Err(HeadFault::Malformed(http::h2::Malformed::Missing));
    }
    if let Some(names) = never_indexed {
        request.extensions.insert(*names);
    }
    request.received = size as u64;
    request.take_head(Source::Vec(raw), 0);
    // No single request decides on the connection's keep-alive.
    request.keepalive = true;
    set_priority(shared, &stream, &request);
    // Only `:protocol` of extended CONNECT (RFC 8441) yields an `Upgrade` field.
    let is_tunnel = finished.is_ok() && request.header(HeaderId::Upgrade).is_some();
    open(shared, &stream, (ends, length), is_tunnel);
    let (received, is_malformed) = requests::verdict(&mut request, finished);
    let reset = is_malformed.then_some(ErrorCode::Protocol);
    if reset.is_some() && ends {
        shared.with(|state| state.session.mark_malformed(id));
    }
    Ok(DecodedRequest { stream, request, received, reset })
}

/// Opens the stream of a request. `length` is the announced length of its body; if `ends` is true, no body follows.
fn open(shared: &Shared, stream: &Rc<Stream>, (ends, length): (bool, Option<u64>), is_tunnel: bool) {
    shared.with(|state| {
        state.session.open(stream.id, ends, length, Rc::clone(stream));
        if is_tunnel {
            state.session.tunnel(stream.id);
        }
    });
    // An empty body is complete.
    if ends {
        stream.inbox.borrow_mut().finish(Ok(()));
    }
}

/// Sets the priority from the request, unless a frame has set it before.
fn set_priority(shared: &Shared, stream: &Stream, request: &Request) {
    let update = shared.with(|state| state.session.take_update(stream.id));
    if let Some(priority) = update.or_else(|| requests::priority(request)) {
        stream.set_priority(priority);
    }
}

/// Returns the facts of the connection, for one of its streams.
fn info_of(shared: &Rc<Shared>, stream: &Rc<Stream>, info: &ConnInfo) -> Rc<ConnInfo> {
    let client = StreamClient(Http2Link::new(shared, stream));
    Rc::new(ConnInfo { client: RefCell::new(Some(Rc::new(client))), ..info.clone() })
}

/// Runs a request until its end.
pub(super) async fn run(shared: Rc<Shared>, listen_socket: Rc<ListenSocket>, decoded: DecodedRequest) {
    let DecodedRequest { stream, request, received, reset } = decoded;
    run::run(Http2Link { shared, stream }, listen_socket, request, received, reset).await;
}
