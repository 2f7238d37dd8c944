//! The directives of `otel`: the block `otel_exporter`, attributes of the process, and settings of locations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Span, Spec, value};

use crate::Directive;
use crate::passing::{add_ports_of_group, verifying_client};
use exchange::tls_arguments::{File, read_file};
use peers::address::Url;
use peers::{Group, Upstreams};
use site::config::{Cx, Http, Layered, Requirements, Scope, Settings};
use site::declaration::LEVELS;
use site::template::Template;
use telemetry::otlp::Resource;
use upstream::SecureSettings;

/// The name of the module in rows of directives, as nginx's documentation has it.
const NAME: &str = "otel";

pub(super) const DIRECTIVES: &[Directive] = &[
    Directive::http(
        Spec::new(
            NAME,
            "otel_exporter",
            Contexts::HTTP,
            Args::None,
            "The collector that spans are exported to: `endpoint`, `protocol`, `trusted_certificate`, `header`, `interval`, \
             `batch_size`, `batch_count`.",
        )
        .raw(),
        add_exporter,
    ),
    Directive::http(
        Spec::new(
            NAME,
            "otel_service_name",
            Contexts::HTTP,
            Args::Exactly(1),
            "The attribute `service.name` of the process.",
        )
        .default("unknown_service:ringroad"),
        |cx| {
            let name = cx.arg(0).to_owned();
            cx.http.make_mut::<OtelConf>().service_name = Some(name);
            Ok(())
        },
    ),
    Directive::http(
        Spec::new(
            NAME,
            "otel_resource_attr",
            Contexts::HTTP,
            Args::Exactly(2),
            "An attribute of the process, which all spans share.",
        )
        .many(),
        |cx| {
            let (name, text) = (cx.arg(0).to_owned(), cx.arg(1).to_owned());
            cx.http.make_mut::<OtelConf>().attributes.insert(name, text);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            NAME,
            "otel_trace",
            LEVELS,
            Args::Exactly(1),
            "Whether requests are traced: `on`, `off`, a percentage of the requests whose parent has not decided, or a text with \
             variables, which traces a request if it is `on` or `1`.",
        )
        .default("off"),
        set_trace,
    ),
    Directive::scope(
        Spec::new(
            NAME,
            "otel_trace_context",
            LEVELS,
            Args::Exactly(1),
            "The use of `traceparent` and `tracestate`: `extract` reads those of the client, `inject` sends those of this server \
             to upstreams, `propagate` does both, `ignore` neither.",
        )
        .default("ignore"),
        |scope, cx| cx.choice(&mut scope.make_mut::<SpanConf>().propagation, PROPAGATIONS),
    ),
    Directive::scope(
        Spec::new(
            NAME,
            "otel_span_name",
            LEVELS,
            Args::Exactly(1),
            "The name of spans, by default that of the location.",
        ),
        |scope, cx| {
            scope.make_mut::<SpanConf>().span_name = Some(cx.template(cx.arg(0))?);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            NAME,
            "otel_span_attr",
            LEVELS,
            Args::Exactly(2),
            "An attribute of spans; its value may have variables.",
        )
        .many(),
        |scope, cx| {
            let attribute = (cx.arg(0).into(), cx.template(cx.arg(1))?);
            scope.make_mut::<SpanConf>().attributes.make_mut(cx.block).push(attribute);
            Ok(())
        },
    ),
];

/// The use of `traceparent` and `tracestate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Propagation {
    pub(super) extracts: bool,
    pub(super) injects: bool,
}

impl Propagation {
    /// Whether fields are read or sent.
    pub(super) fn is_on(self) -> bool {
        self.extracts || self.injects
    }
}

const PROPAGATIONS: &[(&str, Propagation)] = &[
    ("ignore", Propagation { extracts: false, injects: false }),
    ("extract", Propagation { extracts: true, injects: false }),
    ("inject", Propagation { extracts: false, injects: true }),
    ("propagate", Propagation { extracts: true, injects: true }),
];

/// The settings of a location.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanConf {
    pub(super) trace: Trace,
    /// Position of the `otel_trace` that applies.
    trace_span: Option<Span>,
    pub(super) propagation: Propagation,
    pub(super) span_name: Option<Template>,
    pub(super) attributes: Layered<(Box<str>, Template)>,
}

/// `otel_trace`
#[derive(Clone, Debug, Default)]
pub(super) enum Trace {
    #[default]
    Off,
    On,
    /// A share of the traces; a request with a parent has the parent's decision.
    Ratio(Ratio),
    /// A text with variables.
    Text(Template),
}

/// A share of all traces. The last 56 bits of an identifier decide, as in OpenTelemetry's SDKs, so that servers with the same share
/// select the same traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    /// Identifiers from here on are traced.
    from: u64,
}

/// Number of values of the bits that decide.
const RANDOM_VALUES: u64 = 1 << 56;

impl Ratio {
    /// Parses a percentage such as `0.5%`.
    fn parse(text: &str) -> Option<Ratio> {
        let digits = text.strip_suffix('%')?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent = digits.parse::<f64>().ok().filter(|percent| is_number && *percent <= 100.0)?;
        Some(Ratio { from: ((1.0 - percent / 100.0) * RANDOM_VALUES as f64) as u64 })
    }

    /// Whether a trace is selected.
    pub(super) fn admits(self, trace_id: &[u8; 16]) -> bool {
        let random = u128::from_be_bytes(*trace_id) % u128::from(RANDOM_VALUES);
        random >= u128::from(self.from)
    }
}

impl Settings for SpanConf {}

impl SpanConf {
    /// Whether requests get a trace context.
    pub(super) fn has_context(&self) -> bool {
        !matches!(self.trace, Trace::Off) || self.propagation.is_on()
    }
}

/// Whether a value of `otel_trace` traces a request.
pub(super) fn is_on(value: &[u8]) -> bool {
    matches!(value, b"on" | b"1")
}

fn set_trace(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.template(cx.arg(0))?;
    let trace = match text.constant() {
        Some(text) if is_on(text.as_bytes()) => Trace::On,
        Some(text) if text.ends_with('%') => Trace::Ratio(Ratio::parse(text).ok_or_else(|| {
            cx.error(format_args!("invalid percent value \"{text}\""))
                .advise("it must be between 0% and 100%")
        })?),
        Some(_) => Trace::Off,
        None => Trace::Text(text),
    };
    let conf = scope.make_mut::<SpanConf>();
    conf.trace = trace;
    conf.trace_span = Some(cx.statement.span().clone());
    Ok(())
}

/// The settings for all of `http`.
#[derive(Debug, Default)]
pub(super) struct OtelConf {
    pub(super) exporter: Option<Arc<ExporterConf>>,
    service_name: Option<String>,
    attributes: BTreeMap<String, String>,
}

impl OtelConf {
    /// Returns the attributes of the process.
    pub(super) fn resource(&self) -> Resource {
        let mut attributes = self.attributes.clone();
        match &self.service_name {
            Some(name) => _ = attributes.insert(SERVICE_NAME.to_owned(), name.clone()),
            None => {
                attributes.entry(SERVICE_NAME.to_owned()).or_insert("unknown_service:ringroad".to_owned());
            }
        }
        Resource::new(attributes.iter().map(|(key, text)| (key.as_str(), text.as_str())))
    }
}

const SERVICE_NAME: &str = "service.name";

/// `otel_exporter`
#[derive(Clone, Debug)]
pub(super) struct ExporterConf {
    pub(super) endpoint: Endpoint,
    /// The servers of the endpoint, which are known when all `upstream` blocks were read.
    pub(super) group: Option<Arc<Group>>,
    /// Fields of each request, with names in lower case.
    pub(super) fields: Vec<(String, String)>,
    pub(super) interval: Duration,
    batch_size: usize,
    batch_count: usize,
    /// The TLS settings, if the endpoint uses TLS.
    pub(super) secure: Option<Arc<SecureSettings>>,
    span: Span,
}

impl ExporterConf {
    /// Returns the number of spans of a batch, and the number of batches.
    pub(super) fn limits(&self) -> (usize, usize) {
        (self.batch_size, self.batch_count)
    }
}

/// The protocol of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportProtocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP with protobuf messages.
    Http,
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) protocol: ExportProtocol,
    pub(super) is_secure: bool,
    url: Url,
    /// Host and port, for the field `Host`.
    pub(super) authority: String,
    /// The path of requests.
    pub(super) path: String,
}

/// The path of the method of OTLP/gRPC.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The default path of OTLP/HTTP.
const HTTP_PATH: &str = "/v1/traces";

/// The ports of OTLP/gRPC and of OTLP/HTTP.
const GRPC_PORT: u16 = 4317;
const HTTP_PORT: u16 = 4318;

impl Endpoint {
    /// Parses an endpoint. As in nginx, a collector is reached by gRPC, also if its address begins with `http://` or `https://`.
    /// An address with a path, or with the port of OTLP/HTTP, is that of a collector for HTTP.
    fn parse(text: &str, protocol: Option<ExportProtocol>) -> Result<Endpoint, String> {
        let after = |scheme: &str| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (is_secure, has_scheme, rest) = match (after("https://"), after("http://"), after("dns:///")) {
            (Some(rest), ..) => (true, true, rest),
            (_, Some(rest), _) => (false, true, rest),
            (.., Some(rest)) => (false, false, rest),
            _ => (false, false, text),
        };
        if rest.is_empty() {
            return Err("\"otel_exporter\" requires \"endpoint\"".to_owned());
        }
        let is_socket = rest.starts_with("unix:");
        let (address, path) = match rest.find('/').filter(|_| !is_socket) {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let path = Some(path).filter(|path| !matches!(*path, "" | "/"));
        // Of the default port only the fact that a port is missing matters here.
        let is_http_port = Url::parse(address, 0).is_ok_and(|url| url.port == HTTP_PORT);
        let is_http = protocol.map_or(path.is_some() || is_http_port, |it| it == ExportProtocol::Http);
        if path.is_some_and(|path| !is_http || !path.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(format!("invalid path in endpoint \"{text}\""));
        }
        let port = match (is_secure, has_scheme, is_http) {
            (true, ..) => 443,
            (false, true, true) => 80,
            (false, _, true) => HTTP_PORT,
            (false, _, false) => GRPC_PORT,
        };
        let url = Url::parse(address, port).map_err(|fault| format!("{fault} in endpoint \"{text}\""))?;
        Ok(Endpoint {
            protocol: if is_http { ExportProtocol::Http } else { ExportProtocol::Grpc },
            is_secure,
            url,
            authority: if is_socket { "localhost".to_owned() } else { address.to_owned() },
            path: if is_http { path.unwrap_or(HTTP_PATH) } else { GRPC_PATH }.to_owned(),
        })
    }
}

/// The rows of `otel_exporter`.
#[derive(Default)]
struct ExporterRows {
    endpoint: Option<String>,
    protocol: Option<ExportProtocol>,
    trusted: Option<File>,
    fields: Vec<(String, String)>,
    interval: Option<Duration>,
    batch_size: Option<usize>,
    batch_count: Option<usize>,
}

/// Maximum of `batch_size` and `batch_count`, so that a typing error does not exhaust the memory.
const COUNT_MAX: u64 = 1 << 20;

fn add_exporter(cx: &mut Cx<'_>) -> Result<(), Error> {
    let block = cx.statement;
    let mut rows = ExporterRows::default();
    for row in block.rows() {
        read_row(&mut rows, &mut cx.at(row?))?;
    }
    let missing = || Error::at(block, "\"otel_exporter\" requires \"endpoint\"");
    let text = rows.endpoint.as_deref().filter(|text| !text.is_empty()).ok_or_else(missing)?;
    let endpoint = Endpoint::parse(text, rows.protocol).map_err(|fault| cx.error(fault))?;
    let secure = if endpoint.is_secure { Some(secure(&endpoint, rows.trusted, cx)?) } else { None };
    let exporter = ExporterConf {
        endpoint,
        group: None,
        fields: rows.fields,
        interval: rows.interval.unwrap_or(Duration::from_secs(5)),
        batch_size: rows.batch_size.unwrap_or(512),
        batch_count: rows.batch_count.unwrap_or(4),
        secure,
        span: block.span().clone(),
    };
    cx.http.make_mut::<OtelConf>().exporter = Some(Arc::new(exporter));
    Ok(())
}

/// Reads a row with nginx's messages.
fn read_row(rows: &mut ExporterRows, cx: &mut Cx<'_>) -> Result<(), Error> {
    let row = cx.statement;
    let name = row.name.text.as_str();
    let wanted = match name {
        "header" => 2,
        "endpoint" | "protocol" | "trusted_certificate" | "interval" | "batch_size" | "batch_count" => 1,
        _ => {
            return Err(cx.error(format_args!("unknown directive \"{name}\" in \"otel_exporter\"")));
        }
    };
    if row.args.len() != wanted {
        let what = format_args!("invalid number of arguments in \"{name}\" directive of \"otel_exporter\"");
        return Err(cx.error(what));
    }
    let fault = |what: &str| cx.error(format_args!("\"{name}\" directive of \"otel_exporter\" {what}"));
    let once = |is_set: bool| if is_set { Err(fault("is duplicate")) } else { Ok(()) };
    let text = cx.arg(0);
    match name {
        "endpoint" => {
            once(rows.endpoint.is_some())?;
            rows.endpoint = Some(text.to_owned());
        }
        "protocol" => {
            once(rows.protocol.is_some())?;
            rows.protocol = Some(match text {
                "grpc" => ExportProtocol::Grpc,
                "http" => ExportProtocol::Http,
                _ => return Err(fault("must be \"grpc\" or \"http\"")),
            });
        }
        "interval" => {
            once(rows.interval.is_some())?;
            let time = value::milliseconds(text).ok().filter(|time| *time > 0);
            rows.interval = Some(Duration::from_millis(time.ok_or_else(|| fault("has invalid value"))?));
        }
        "batch_size" | "batch_count" => {
            let count = if name == "batch_size" { &mut rows.batch_size } else { &mut rows.batch_count };
            once(count.is_some())?;
            let number = value::number_in(1, COUNT_MAX)(text).map_err(|_| fault("has invalid value"))?;
            *count = Some(number as usize);
        }
        "header" => {
            let (field, value) = (text.to_ascii_lowercase(), cx.arg(1).to_owned());
            if !is_field_name(&field) {
                return Err(fault("has invalid header name"));
            }
            if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                return Err(fault("has invalid header value"));
            }
            rows.fields.push((field, value));
        }
        // As in nginx the last one applies.
        _ => rows.trusted = Some(read_file(cx, "certificate")?),
    }
    Ok(())
}

/// Whether a text may be the name of metadata of gRPC. The protocol determines some names itself.
fn is_field_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let is_reserved = name.starts_with("grpc-")
        || matches!(
            name,
            "host"
                | "te"
                | "content-type"
                | "content-length"
                | "transfer-encoding"
                | "connection"
                | "upgrade"
                | "keep-alive"
                | "proxy-connection"
        );
    !name.is_empty() && name.bytes().all(is_allowed) && !is_reserved
}

/// Prepares TLS: the collector's certificate is always verified, by `trusted_certificate` or the CAs of the system.
fn secure(endpoint: &Endpoint, trusted: Option<File>, cx: &mut Cx<'_>) -> Result<Arc<SecureSettings>, Error> {
    let alpn = match endpoint.protocol {
        ExportProtocol::Grpc => vec![b"h2".to_vec()],
        ExportProtocol::Http => vec![b"http/1.1".to_vec()],
    };
    verifying_client(cx, ("otel_exporter", "trusted_certificate"), trusted, None, alpn).map(Arc::new)
}

/// Finds the servers of the endpoint, after all blocks were read: it may name an `upstream` block.
pub(super) fn find_group(http: &mut Http) -> Result<(), Error> {
    let Some(exporter) = http.of::<OtelConf>().exporter.clone() else { return Ok(()) };
    let group = http.make_mut::<Upstreams>().of_address(&exporter.endpoint.url, &exporter.span);
    let group = Some(group.map_err(|fault| Error::at(&exporter.span, fault))?);
    http.make_mut::<OtelConf>().exporter = Some(Arc::new(ExporterConf { group, ..(*exporter).clone() }));
    Ok(())
}

/// Checks that traces have an exporter. In nginx `otel_trace off` needs one too.
pub(super) fn check(http: &Http) -> Result<(), Error> {
    if http.of::<OtelConf>().exporter.is_some() {
        return Ok(());
    }
    let may_trace = |conf: &&SpanConf| !matches!(conf.trace, Trace::Off);
    let mut confs = http.locations.iter().map(|location| location.scope.of::<SpanConf>()).filter(may_trace);
    let found = confs.find_map(|conf| conf.trace_span.clone());
    match found {
        Some(span) => {
            let error = Error::at(span, "\"otel_exporter\" block is missing");
            Err(error.advise("add \"otel_exporter { endpoint HOST:4317; }\" to the block \"http\""))
        }
        None => Ok(()),
    }
}

/// Adds the ports of the collector.
pub(super) fn requires(http: &Http, _: &Scope, requirements: &mut Requirements) {
    if let Some(exporter) = &http.of::<OtelConf>().exporter
        && let Some(group) = &exporter.group
    {
        add_ports_of_group("otel_exporter", &exporter.span, group, &mut requirements.uses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_selects_a_share_of_the_traces() {
        let ratio = |text: &str| Ratio::parse(text);
        for text in ["", "%", "x%", "-1%", "101%", "1e1%", "1.1.1%", "nan%", "10"] {
            assert_eq!(ratio(text), None, "{text}");
        }
        let id = |random: u64| (u128::MAX << 56 | u128::from(random)).to_be_bytes();
        let highest = id(RANDOM_VALUES - 1);
        let admits = |text: &str, id: &[u8; 16]| ratio(text).expect("it is valid").admits(id);
        assert!(admits("100%", &id(0)) && !admits("0%", &highest) && admits("0.001%", &highest));
        assert!(admits("25%", &id(3 << 54)) && !admits("25%", &id((3 << 54) - 1)));
    }
}
