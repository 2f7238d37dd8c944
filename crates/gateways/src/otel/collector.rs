//! One export: the request to the collector, and the verdict on its response.
//!
//! The request belongs to no client, like those of health checks: `upstream` makes the tries,
//! with idle connections, TLS and HTTP/2. Its log lines are the reason of a failure. The response of a collector is not trusted: its
//! body is limited, and so is the time of an export.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::base64::{Alphabet, decode};
use http::fields::{BodyLength, Method, Version};
use http::gateway::{Encoded, Encoder, http1, http2};
use io::SharedBytes;
use rt::Timer;

use super::conf::{Endpoint, ExportProtocol, ExporterConf, OtelConf};
use exchange::rehearsal::Rehearsal;
use exchange::rehearse::compose;
use exchange::request::{Address, ConnInfo, Request, ThreadConfig};
use exchange::thread::Thread;
use peers::Group;
use site::config::ServerId;
use telemetry::ForLog;
use telemetry::otlp::{Batch, Rejected, Resource, message_of, rejected, retry_delay_ms};
use upstream::{Failure, Outgoing, OutgoingBody, Reply, Secure, Settings, Target};

/// Time limit of an export, the default of OpenTelemetry's SDKs.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Bytes of gRPC before a message: a flag for compression, and the length.
const FRAME_LEN: usize = 5;

/// A collector, and what requests to it need.
pub(super) struct Collector {
    thread: Rc<Thread>,
    thread_config: Rc<ThreadConfig>,
    /// The connection of the requests, which no client has opened.
    conn: ConnInfo,
    server: ServerId,
    conf: Arc<ExporterConf>,
    group: Arc<Group>,
    resource: Resource,
    settings: Settings,
}

/// Result of an export.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Exported {
    /// The collector has accepted the batch, maybe except some spans.
    Accepted(Rejected),
    /// The batch may be sent again, after a time if the collector names one.
    Postponed(String, Option<Duration>),
    /// The batch is lost, for this reason.
    Failed(String),
}

impl Collector {
    /// Returns the collector of a configuration.
    pub(super) fn of(thread: &Rc<Thread>, thread_config: &Rc<ThreadConfig>) -> Option<Collector> {
        let http = &thread_config.config.http;
        let otel = http.of::<OtelConf>();
        let conf = Arc::clone(otel.exporter.as_ref()?);
        let group = Arc::clone(conf.group.as_ref()?);
        // Without a location there is no request to trace.
        let server = http.locations.first()?.server;
        let here = Address::Unix(Vec::new());
        Some(Collector {
            thread: Rc::clone(thread),
            thread_config: Rc::clone(thread_config),
            conn: ConnInfo { is_traced: true, ..ConnInfo::new(thread, here.clone(), here) },
            server,
            resource: otel.resource(),
            conf,
            group,
            settings: Settings {
                connect_timeout: EXPORT_TIME_MAX / 2,
                send_timeout: EXPORT_TIME_MAX,
                read_timeout: EXPORT_TIME_MAX,
                ignore_client_abort: true,
                ..Settings::default()
            },
        })
    }

    /// Returns the settings.
    pub(super) fn conf(&self) -> &ExporterConf {
        &self.conf
    }
}

/// Sends a batch to the collector.
pub(super) async fn export(collector: &Collector, batch: &Batch) -> Exported {
    let timer = Timer::new();
    timer.set(rt::now() + EXPORT_TIME_MAX);
    let rehearsal = Rc::new(Rehearsal::default());
    let conn = Rc::new(ConnInfo { rehearsal: Some(Rc::clone(&rehearsal)), ..collector.conn.clone() });
    let mut request = collector.thread.take_request(&collector.thread_config, &conn, collector.server);
    let exported = match timer.limit(pin!(exchange(collector, &mut request, batch))).await {
        Ok(Ok(exported)) => exported,
        // The log of the request has the reason.
        Ok(Err(_)) => {
            let reason = rehearsal.last_logged().unwrap_or_else(|| "the request failed".to_owned());
            Exported::Postponed(reason, None)
        }
        Err(rt::Elapsed) => Exported::Postponed("the response did not end in time".to_owned(), None),
    };
    collector.thread.recycle_request(request);
    exported
}

/// Sends the request, and judges its response.
async fn exchange(collector: &Collector, request: &mut Request, batch: &Batch) -> Result<Exported, Failure> {
    let Collector { conf, settings, .. } = collector;
    let composed =
        compose(request, "POST", &conf.endpoint.path, &[("Host".to_owned(), "localhost".to_owned())]);
    if let Err(reason) = composed {
        return Ok(Exported::Failed(reason));
    }
    request.method = Method::Post;
    (request.internal, request.is_detached) = (true, true);
    let outgoing = outgoing(collector, request, batch);
    let target = Target::Group(Arc::clone(&collector.group));
    let reply = upstream::fetch(request, settings, &target, outgoing).await?;
    let status = reply.head.head().status().code();
    let field = |name: &[u8]| {
        let mut values = reply.head.head().named(reply.head.raw(), name);
        values.next().map(<[u8]>::to_vec)
    };
    let retry_after = field(b"retry-after");
    let in_head = GrpcStatus {
        code: field(b"grpc-status"),
        message: field(b"grpc-message"),
        details: field(b"grpc-status-details-bin"),
    };
    if status != 200 {
        return Ok(refused(status, retry_after.as_deref()));
    }
    let Some(body) = body_of(request, settings, reply).await else {
        return Ok(Exported::Postponed("the body of the response broke off".to_owned(), None));
    };
    Ok(match conf.endpoint.protocol {
        ExportProtocol::Http => accepted(&body),
        ExportProtocol::Grpc => {
            let status = if in_head.code.is_some() { in_head } else { GrpcStatus::of_trailers(request) };
            status.judge(&body)
        }
    })
}

/// Encodes the request.
fn outgoing(collector: &Collector, request: &Request, batch: &Batch) -> Outgoing {
    let Collector { conf, resource, .. } = collector;
    let Endpoint { protocol, is_secure, authority, .. } = &conf.endpoint;
    let is_grpc = *protocol == ExportProtocol::Grpc;
    let mut message = resource.request(if is_grpc { FRAME_LEN } else { 0 }, batch);
    if is_grpc {
        let length = (message.len() - FRAME_LEN) as u32;
        message[1..FRAME_LEN].copy_from_slice(&length.to_be_bytes());
    }
    let encoded = encoded(&conf.endpoint, &conf.fields, message.len());
    let scheme = match (is_grpc, is_secure) {
        (true, false) => "grpc://",
        (true, true) => "grpcs://",
        (false, false) => "http://",
        (false, true) => "https://",
    };
    let body = OutgoingBody::Bytes(SharedBytes::from_vec(message));
    let secure = conf.secure.as_ref().map(|settings| Secure::of(settings, authority.as_bytes(), request));
    // A batch that was received twice does no harm: its spans have identifiers.
    Outgoing {
        secure,
        keepalive: true,
        is_idempotent: true,
        ..Outgoing::new(encoded, scheme, body, Method::Post)
    }
}

fn encoded(endpoint: &Endpoint, fields: &[(String, String)], length: usize) -> Encoded {
    let is_grpc = endpoint.protocol == ExportProtocol::Grpc;
    let mut encoder = match is_grpc {
        true => {
            let scheme = if endpoint.is_secure { "https" } else { "http" };
            Encoder::Http2(Box::new(http2::Encoder::new(scheme)))
        }
        false => Encoder::Http1(http1::Encoder::new(Version::Http11)),
    };
    let begun = encoder.begin(b"POST", |out| out.extend_from_slice(endpoint.path.as_bytes()));
    debug_assert!(begun, "the path of an endpoint is not empty");
    encoder.field(b"host", endpoint.authority.as_bytes());
    match is_grpc {
        true => {
            encoder.field(b"content-type", b"application/grpc");
            encoder.field(b"te", b"trailers");
            encoder.field(b"grpc-timeout", format!("{}S", EXPORT_TIME_MAX.as_secs()).as_bytes());
        }
        false => encoder.field(b"content-type", b"application/x-protobuf"),
    }
    if !fields.iter().any(|(name, _)| name == "user-agent") {
        encoder.field(
            b"user-agent",
            concat!("OTel-OTLP-Exporter-ringroad/", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
    }
    for (name, value) in fields {
        encoder.field(name.as_bytes(), value.as_bytes());
    }
    encoder.body(BodyLength::Exactly(length as u64));
    encoder.end()
}

/// Receives the body of a response; `None` if it breaks off or is too large.
async fn body_of(request: &Request, settings: &Settings, reply: Reply) -> Option<Vec<u8>> {
    let mut body = reply.body.into_bulk(request, settings);
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await.ok()? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > RESPONSE_BYTES_MAX {
            return None;
        }
    }
    Some(bytes)
}

/// Judges a response with a status other than 200, by the rules of OTLP.
fn refused(status: u16, retry_after: Option<&[u8]>) -> Exported {
    let reason = format!("the collector responded with status {status}");
    match status {
        429 | 502 | 503 | 504 => {
            let after = retry_after.and_then(http::parse_decimal).map(Duration::from_secs);
            Exported::Postponed(reason, after)
        }
        _ => Exported::Failed(reason),
    }
}

/// Judges the message of a response with success.
fn accepted(message: &[u8]) -> Exported {
    match rejected(message) {
        Some(rejected) => Exported::Accepted(rejected),
        None => Exported::Failed("the response of the collector is no OTLP message".to_owned()),
    }
}

/// The status of a call.
#[derive(Debug)]
struct GrpcStatus {
    code: Option<Vec<u8>>,
    message: Option<Vec<u8>>,
    /// `grpc-status-details-bin`
    details: Option<Vec<u8>>,
}

impl GrpcStatus {
    fn of_trailers(request: &Request) -> GrpcStatus {
        let trailer = |name: &str| {
            let mut value = Vec::new();
            upstream::state::trailer(request, name, &mut value).then_some(value)
        };
        GrpcStatus {
            code: trailer("grpc_status"),
            message: trailer("grpc_message"),
            details: trailer("grpc_status_details_bin"),
        }
    }

    /// Judges a response with this status, by the rules of OTLP/gRPC.
    fn judge(&self, body: &[u8]) -> Exported {
        let code = self.code.as_deref().and_then(http::parse_decimal);
        let Some(code) = code else {
            return Exported::Failed("the response of the collector has no gRPC status".to_owned());
        };
        let delay = self.details.as_deref().and_then(|text| decode(text, Alphabet::Standard));
        let delay = delay.and_then(|status| retry_delay_ms(&status)).map(Duration::from_millis);
        let text = message_of(self.message.as_deref().unwrap_or_default());
        let text = text.as_bytes().for_log();
        let reason = format!("the collector responded with gRPC status {code} \"{text}\"");
        match code {
            0 => match message_in(body) {
                Some(message) => accepted(message),
                None => Exported::Failed("the response of the collector is no gRPC message".to_owned()),
            },
            // RESOURCE_EXHAUSTED is temporary only if the collector names a time.
            8 if delay.is_some() => Exported::Postponed(reason, delay),
            // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
            1 | 4 | 10 | 11 | 14 | 15 => Exported::Postponed(reason, delay),
            _ => Exported::Failed(reason),
        }
    }
}

/// Returns the message in a body, which is not compressed. An empty body stands for an empty message.
fn message_in(body: &[u8]) -> Option<&[u8]> {
    if body.is_empty() {
        return Some(body);
    }
    let (frame, message) = body.split_at_checked(FRAME_LEN)?;
    let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]);
    (frame[0] == 0 && length as usize == message.len()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_statuses_postpone_a_batch() {
        let is_postponed = |status| matches!(refused(status, None), Exported::Postponed(_, None));
        let found: Vec<u16> = (201..600).filter(|&status| is_postponed(status)).collect();
        assert_eq!(found, [429, 502, 503, 504]);
        let after = |text: &[u8]| match refused(503, Some(text)) {
            Exported::Postponed(_, after) => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(b"7"), Some(Duration::from_secs(7)));
        assert_eq!((after(b"x"), after(b"-1"), after(b"")), (None, None, None));
    }

    fn grpc(code: &str, details: Option<&[u8]>) -> Exported {
        let details = details.map(|bytes| {
            let mut text = Vec::new();
            http::base64::encode(bytes, &mut text);
            text
        });
        GrpcStatus { code: Some(code.into()), message: Some(b"why".to_vec()), details }.judge(&[0; 5])
    }

    #[test]
    fn temporary_codes_of_grpc_postpone_a_batch() {
        let found: Vec<u32> =
            (0..20).filter(|code| matches!(grpc(&code.to_string(), None), Exported::Postponed(..))).collect();
        assert_eq!(found, [1, 4, 10, 11, 14, 15]);
        assert_eq!(grpc("0", None), Exported::Accepted(Rejected::default()));
        let reason = "the collector responded with gRPC status 3 \"why\"".to_owned();
        assert_eq!(grpc("3", None), Exported::Failed(reason));
        assert!(matches!(grpc("x", None), Exported::Failed(_)));
        let kind = b"type.googleapis.com/google.rpc.RetryInfo";
        let mut detail = vec![0x0a, kind.len() as u8];
        detail.extend_from_slice(kind);
        detail.extend_from_slice(&[0x12, 4, 0x0a, 2, 8, 5]);
        let mut status = vec![0x1a, detail.len() as u8];
        status.append(&mut detail);
        let Exported::Postponed(_, after) = grpc("8", Some(&status)) else { panic!("it is temporary") };
        assert_eq!(after, Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_message_of_grpc_has_its_length() {
        assert_eq!(message_in(b""), Some(&b""[..]));
        assert_eq!(message_in(&[0, 0, 0, 0, 1, 7]), Some(&[7][..]));
        for invalid in [&[0][..], &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 0, 7], &[1, 0, 0, 0, 1, 7]] {
            assert_eq!(message_in(invalid), None, "{invalid:?}");
        }
    }
}
