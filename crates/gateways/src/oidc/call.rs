//! One request to a provider.
//!
//! The request belongs to no client, like those of the traces exporter: `upstream` makes the tries, and its log lines are the reason of
//! a failure. The response is limited in time and size. No message contains a header field or a body, because these have secrets.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::fields::{BodyLength, Method, Version};
use http::gateway::{Encoded, Encoder, http1};
use io::SharedBytes;
use io::op::PeerAddr;
use rt::Timer;

use super::url::ProviderUrl;
use exchange::rehearsal::Rehearsal;
use exchange::rehearse::compose;
use exchange::request::{Address, ConnInfo, Request, ThreadConfig};
use exchange::thread::Thread;
use peers::address::HostKind;
use peers::resolve::{Conf as ResolverConf, system_addresses};
use site::ids::{LocationId, ServerId};
use upstream::state::shown_tries;
use upstream::{Outgoing, OutgoingBody, Reply, Secure, SecureSettings, Settings, Target};

/// Time limit of a request, with the resolution of the name and all addresses.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum size in bytes of the header section of a response.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// Maximum number of addresses that are tried.
const ADDRESSES_MAX: usize = 4;

/// The thread and the location that requests to a provider are made for.
#[derive(Clone)]
pub(super) struct Caller {
    /// The thread that sends the request.
    pub(super) thread: Rc<Thread>,
    /// The configuration of the client's request.
    thread_config: Rc<ThreadConfig>,
    /// Its server.
    server: ServerId,
    /// Its location, whose `resolver` is used.
    location: LocationId,
}

impl Caller {
    /// Returns the caller for a request of a client. Its location determines the resolver.
    pub(super) fn of(request: &Request) -> Caller {
        Caller {
            thread: Rc::clone(&request.conn.thread),
            thread_config: Rc::clone(&request.thread_config),
            server: request.server,
            location: request.location,
        }
    }
}

/// The content of a request to a provider.
pub(super) struct ProviderCall<'a> {
    /// The URL.
    pub(super) url: &'a ProviderUrl,
    /// `Authorization`
    pub(super) authorization: Option<String>,
    /// The form of a POST request; without one the request is a GET.
    pub(super) form: Option<String>,
    /// Maximum size in bytes of the response's body.
    pub(super) bytes_max: usize,
}

/// The response of a provider.
#[derive(Debug)]
pub(super) struct ProviderResponse {
    /// The status.
    pub(super) status: u16,
    /// The complete body.
    pub(super) body: Vec<u8>,
}

/// Why there is no usable response, with the status for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderFault {
    /// The status for the client: 502 or 504.
    pub(super) status: u16,
    /// The reason for the error log, without secrets.
    pub(super) reason: Arc<str>,
}

impl ProviderFault {
    /// Returns the fault of a provider whose response is not usable.
    pub(super) fn new(reason: impl Into<Arc<str>>) -> ProviderFault {
        ProviderFault { status: 502, reason: reason.into() }
    }
}

/// Sends a request, and receives the response.
pub(super) async fn call(
    caller: &Caller,
    secure: Option<&Arc<SecureSettings>>,
    content: &ProviderCall<'_>,
) -> Result<ProviderResponse, ProviderFault> {
    let timer = Timer::new();
    timer.set(rt::now() + CALL_TIME_MAX);
    let url = &content.url.text;
    match timer.limit(pin!(call_any(caller, secure, content))).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(reason)) => Err(ProviderFault::new(format!("{url}: {reason}"))),
        Err(rt::Elapsed) => {
            let reason = format!("{url}: no complete response in {} s", CALL_TIME_MAX.as_secs());
            Err(ProviderFault { status: 504, reason: reason.into() })
        }
    }
}

/// Tries the addresses of the provider, until a connection is established. After that the request may have had an effect, so no further
/// address is tried.
async fn call_any(
    caller: &Caller,
    secure: Option<&Arc<SecureSettings>>,
    content: &ProviderCall<'_>,
) -> Result<ProviderResponse, String> {
    let mut last = "its name has no address".to_owned();
    for target in targets(caller, content.url).await? {
        match call_one(caller, secure, content, &target).await {
            Ok(response) => return Ok(response),
            Err((reason, true)) => return Err(reason),
            Err((reason, false)) => last = reason,
        }
    }
    Err(last)
}

/// Returns the addresses of a URL. With `resolver` the tries of `upstream` include its resolution.
async fn targets(caller: &Caller, url: &ProviderUrl) -> Result<Vec<Target>, String> {
    let host = &url.address.host;
    if let HostKind::Address(address) = &url.address.kind {
        return Ok(vec![Target::Address(address.clone())]);
    }
    let scope = &caller.thread_config.config.location(caller.location).scope;
    if scope.of::<ResolverConf>().resolver.is_some() {
        return Ok(vec![Target::Dynamic { host: host.clone().into_bytes(), port: url.address.port }]);
    }
    let found = system_addresses(host).await;
    let found = found.map_err(|reason| format!("{host} could not be resolved ({reason})"))?;
    let target = |ip| Target::Address(PeerAddr::Inet(std::net::SocketAddr::new(ip, url.address.port)));
    Ok(found.into_iter().take(ADDRESSES_MAX).map(target).collect())
}

/// Sends a request to one target. An error has the reason, and whether the target was connected.
async fn call_one(
    caller: &Caller,
    secure: Option<&Arc<SecureSettings>>,
    content: &ProviderCall<'_>,
    target: &Target,
) -> Result<ProviderResponse, (String, bool)> {
    let rehearsal = Rc::new(Rehearsal::default());
    let here = Address::Unix(Vec::new());
    let conn = ConnInfo {
        is_traced: false,
        rehearsal: Some(Rc::clone(&rehearsal)),
        ..ConnInfo::new(&caller.thread, here.clone(), here)
    };
    let mut request = caller.thread.take_request(&caller.thread_config, &Rc::new(conn), caller.server);
    request.location = caller.location;
    let result = exchange(secure, content, target, &mut request).await;
    let is_connected = shown_tries(&request).any(|one| one.times[0].is_some());
    caller.thread.recycle_request(request);
    result.map_err(|reason| {
        let reason = reason.or_else(|| rehearsal.last_logged());
        (reason.unwrap_or_else(|| "the request failed".to_owned()), is_connected)
    })
}

/// Sends the request. Without a reason in the error, the log of the request has it.
async fn exchange(
    secure: Option<&Arc<SecureSettings>>,
    content: &ProviderCall<'_>,
    target: &Target,
    request: &mut Request,
) -> Result<ProviderResponse, Option<String>> {
    let method = if content.form.is_some() { "POST" } else { "GET" };
    let host = [("Host".to_owned(), "localhost".to_owned())];
    compose(request, method, "/", &host).map_err(Some)?;
    request.method = if content.form.is_some() { Method::Post } else { Method::Get };
    (request.internal, request.is_detached) = (true, true);
    let settings = Settings {
        connect_timeout: CALL_TIME_MAX / 2,
        // The timer of the call ends it before, with its own status.
        send_timeout: CALL_TIME_MAX * 2,
        read_timeout: CALL_TIME_MAX * 2,
        head_max: HEAD_BYTES_MAX,
        ignore_client_abort: true,
        ..Settings::default()
    };
    let secure = match (content.url.is_secure, secure) {
        (true, Some(secure)) => Some(Secure::of(secure, content.url.authority.as_bytes(), request)),
        (true, None) => return Err(Some("the provider of this URL has no TLS settings".to_owned())),
        (false, _) => None,
    };
    let body = match &content.form {
        Some(form) => OutgoingBody::Bytes(SharedBytes::from_vec(form.clone().into_bytes())),
        None => OutgoingBody::None,
    };
    let scheme = if content.url.is_secure { "https://" } else { "http://" };
    let outgoing = Outgoing { secure, ..Outgoing::new(encoded(content), scheme, body, request.method) };
    let reply = upstream::fetch(request, &settings, target, outgoing).await.map_err(|_| None)?;
    let status = reply.head.head().status().code();
    match body_of(request, &settings, reply, content.bytes_max).await {
        Some(body) => Ok(ProviderResponse { status, body }),
        None => Err(Some(format!(
            "the body of the response broke off, or has more than {} bytes",
            content.bytes_max
        ))),
    }
}

/// Encodes a request. The connection is not used again, because logins are rare.
fn encoded(content: &ProviderCall<'_>) -> Encoded {
    let mut encoder = Encoder::Http1(http1::Encoder::new(Version::Http11));
    let method: &[u8] = if content.form.is_some() { b"POST" } else { b"GET" };
    let begun = encoder.begin(method, |out| out.extend_from_slice(content.url.target.as_bytes()));
    debug_assert!(begun, "the path of a URL is not empty");
    encoder.field(b"host", content.url.authority.as_bytes());
    encoder.field(b"accept", b"application/json");
    encoder.field(b"user-agent", concat!("ringroad/", env!("CARGO_PKG_VERSION")).as_bytes());
    encoder.field(b"connection", b"close");
    if let Some(authorization) = &content.authorization {
        encoder.field(b"authorization", authorization.as_bytes());
    }
    if let Some(form) = &content.form {
        encoder.field(b"content-type", b"application/x-www-form-urlencoded");
        encoder.body(BodyLength::Exactly(form.len() as u64));
    }
    encoder.end()
}

/// Receives the body of a response; `None` if it breaks off or is too large.
async fn body_of(request: &Request, settings: &Settings, reply: Reply, bytes_max: usize) -> Option<Vec<u8>> {
    let mut body = reply.body.into_bulk(request, settings);
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await.ok()? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > bytes_max {
            return None;
        }
    }
    Some(bytes)
}
