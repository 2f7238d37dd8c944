//! One stream, from the header section of its request to its end.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use http::fields::{BodyLength, HeaderId};
use http::h2::{Block, ErrorCode, Fault, HeadFault, HeadReader, Priority, Scratch};
use io::segments::Source;
use rt::Timer;

use crate::h2::client::Http2Client;
use crate::h2::shared::{Shared, Stream};
use crate::h2::transport::StreamTransport;
use crate::listen_socket::ListenSocket;
use exchange::cut_off;
use exchange::request::{ConnInfo, Request};
use exchange::transport::{After, Received};
use exchange::{course, effect, pump};
use rt::panics::catch;
use telemetry::{ForLog, Level};

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

impl DecodedRequest {
    /// Whether the client has cancelled the request, or disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        self.stream.is_closed()
    }

    /// Returns the request to be ended without processing, as nginx logs it.
    pub(super) fn abandoned(self) -> DecodedRequest {
        DecodedRequest { received: Received::Abandoned(CLIENT_CLOSED), ..self }
    }
}

/// Status in the log of a request whose client has left.
const CLIENT_CLOSED: u16 = 499;

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
    let server = listen_socket.default_server(&thread_config, info);
    let conn = info_of(shared, &stream, info);
    let mut request = thread.take_request(&thread_config, &conn, server);
    // As in nginx, the settings of the server apply: the requests of a connection may use several locations.
    let keepalive = &request.scope().core.keepalive;
    shared.is_ending.set(!keepalive.permits(info.requests.get(), rt::now().duration_since(info.opened)));
    let policy = effect::policy(&request.scope().core);
    let mut raw = Vec::with_capacity(RAW_BYTES);
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
    if let Some(line) = request.head.first_ignored() {
        let line = line.of(request.bytes()).for_log();
        request.log(Level::Info, format_args!("client sent invalid header line: \"{line}\""));
    }
    let (received, reset) = verdict(&mut request, finished);
    if reset.is_some() && ends {
        shared.with(|state| state.session.mark_malformed(id));
    }
    Ok(DecodedRequest { stream, request, received, reset })
}

/// Returns whether the header section is valid, and the error code to end the stream with. Logs the reason of a refusal.
fn verdict(request: &mut Request, finished: Result<(), HeadFault>) -> (Received, Option<ErrorCode>) {
    let Err(fault) = finished else { return (Received::Head, None) };
    if request.head.is_started() {
        // For the log. The request is already refused; an invalid URI makes no difference.
        let _ = course::read_uri(request);
    }
    let message = fault.message();
    request.log(Level::Info, format_args!("{message} while reading client request headers"));
    let is_malformed = matches!(fault, HeadFault::Malformed(_));
    (Received::Refused(fault.status().code()), is_malformed.then_some(ErrorCode::Protocol))
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

/// Initial capacity in bytes, enough for most header sections.
const RAW_BYTES: usize = 512;

/// Sets the priority from the request, unless a frame has set it before.
fn set_priority(shared: &Shared, stream: &Stream, request: &Request) {
    let update = shared.with(|state| state.session.take_update(stream.id));
    // The values of several field lines are one dictionary (RFC 9651 section 4.2).
    let values: Vec<&[u8]> = request.head.named(request.bytes(), b"priority").collect();
    let field = (!values.is_empty()).then(|| values.join(&b", "[..]));
    if let Some(priority) = update.or_else(|| field.as_deref().map(Priority::read)) {
        stream.set_priority(priority);
    }
}

/// Returns the facts of the connection, for one of its streams.
fn info_of(shared: &Rc<Shared>, stream: &Rc<Stream>, info: &ConnInfo) -> Rc<ConnInfo> {
    let client = Http2Client { shared: Rc::clone(shared), stream: Rc::clone(stream) };
    Rc::new(ConnInfo { client: RefCell::new(Some(Rc::new(client))), ..info.clone() })
}

/// Runs a request until its end.
pub(super) async fn run(shared: Rc<Shared>, listen_socket: Rc<ListenSocket>, decoded: DecodedRequest) {
    let DecodedRequest { stream, mut request, mut received, reset } = decoded;
    let mut transport = StreamTransport {
        shared,
        stream,
        listen_socket,
        timer: Timer::new(),
        earlier: 0,
        stored_window: None,
    };
    // No handler reads a body of length 0, so bytes that the client sends nevertheless would be noticed too late.
    let is_empty = matches!(request.head.body(), BodyLength::Exactly(0));
    if is_empty
        && matches!(received, Received::Head)
        && let Err(refused) = transport.receive_end(&mut request).await
    {
        received = refused;
    }
    let ran = cut_off::unless(catch(pin!(pump::run(&mut transport, &mut request, received)))).await;
    let after = pump::end_of_run(&mut transport, &mut request, ran);
    let StreamTransport { shared, stream, .. } = transport;
    // Background subrequests count as part of the stream, so that a client cannot start more of them than it makes requests.
    if let Some(background) = request.background.take() {
        background.wait_empty().await;
    }
    if let Some(body) = request.body.take() {
        body.clean().await;
    }
    // Pooled requests still refer to their last stream.
    request.conn.client.take();
    let reset = match after {
        // The codes of nginx: the client has sent its body too slowly, or `return 444` refuses the request.
        After::Drop if request.sent == 0 && matches!(request.response.status, 408 | 444) => {
            Some(ErrorCode::Protocol)
        }
        After::Drop => None,
        After::KeepAlive | After::Close => reset,
    };
    shared.release(&stream, reset);
    shared.thread.recycle_request(request);
}
