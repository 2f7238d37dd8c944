//! A request to an upstream: its target, its content, and the reason why it has no response.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::fields::Method;
use http::gateway::Encoded;
use http::response::parse::ParsedResponse;
use io::SharedBytes;
use io::op::PeerAddr;

use crate::secure::Secure;
use exchange::client::Interim;
use exchange::request::Request;
use transfer::received::ReceivedBody;

/// Destination of a request.
#[derive(Clone, Debug)]
pub enum Target {
    /// An `upstream` block, or the implicit group of a literal address.
    Group(Arc<peers::Group>),
    /// A name from variables that is not a group: it is resolved for this request.
    Dynamic {
        /// The name, or an address as text.
        host: Vec<u8>,
        /// The port.
        port: u16,
    },
    /// An address.
    Address(PeerAddr),
    /// An address for a health check, with the group whose settings and idle connections it uses.
    Checked(Arc<peers::Group>, PeerAddr),
}

/// The encoded request, which is created once and sent in each try.
pub struct Outgoing {
    /// The head in the upstream's protocol, and the framing of the body.
    pub encoded: Encoded,
    /// The text that precedes the address in the error log.
    pub scheme: &'static str,
    /// The TLS settings, if the upstream uses TLS.
    pub secure: Option<Secure>,
    /// The body of the request.
    pub body: OutgoingBody,
    /// The method, which determines whether the response has a body.
    pub method: Method,
    /// Whether the request is idempotent (RFC 9110 section 9.2.2) and may be sent again.
    pub is_idempotent: bool,
    /// Whether the head permits reuse of the connection.
    pub keepalive: bool,
    /// Whether the request has `Upgrade`; a 101 without it is an error.
    pub upgrade: bool,
    /// Texts in messages that make a response a failure (`fastcgi_catch_stderr`).
    pub caught: Vec<Box<str>>,
    /// Creates the interim response (103) for the client, or returns `None`.
    pub interim: Option<MakeInterim>,
    /// Deadline of the client for the response (`grpc-timeout`).
    pub deadline: Option<Instant>,
}

impl Outgoing {
    /// Creates a request on a new connection, without TLS, which is sent once.
    pub fn new(encoded: Encoded, scheme: &'static str, body: OutgoingBody, method: Method) -> Outgoing {
        Outgoing {
            encoded,
            scheme,
            secure: None,
            body,
            method,
            is_idempotent: false,
            keepalive: false,
            upgrade: false,
            caught: Vec::new(),
            interim: None,
            deadline: None,
        }
    }

    /// Whether the client's deadline has passed.
    pub(crate) fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| rt::now() >= deadline)
    }
}

/// See [`Outgoing::interim`].
pub type MakeInterim = fn(&Request, &ParsedResponse, &[u8]) -> Option<Interim>;

/// The body of an [`Outgoing`].
pub enum OutgoingBody {
    /// No body.
    None,
    /// These bytes.
    Bytes(SharedBytes),
    /// The complete body, received in memory or in a file.
    Received(Rc<ReceivedBody>),
    /// The body while it arrives: with its length if the client announced one, otherwise in chunks.
    Streamed,
}

/// Reason why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The status for the client: 502, 504, 500 ….
    Status(u16),
    /// The client has disconnected (499).
    ClientClosed,
}
