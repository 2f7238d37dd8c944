//! Tests of the directives.

use std::time::Duration;

use super::conf::{ExportProtocol, ExporterConf, OtelConf};
use crate::testing::{error, loaded};
use std::sync::Arc;

fn exporter(rows: &str) -> Arc<ExporterConf> {
    let config = loaded(&format!("otel_exporter {{ {rows} }} server {{ }}"));
    Arc::clone(config.http.of::<OtelConf>().exporter.as_ref().expect("the block exists"))
}

#[test]
fn an_exporter_has_the_defaults_of_nginx() {
    let conf = exporter("endpoint localhost:4317;");
    assert_eq!((conf.interval, conf.limits()), (Duration::from_secs(5), (512, 4)));
    assert!(conf.fields.is_empty() && conf.secure.is_none() && conf.group.is_some());
    let conf =
        exporter("endpoint a:1; interval 50ms; batch_size 7; batch_count 2; header X-Key 'a b'; header b c;");
    assert_eq!((conf.interval, conf.limits()), (Duration::from_millis(50), (7, 2)));
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(conf.fields, [field("x-key", "a b"), field("b", "c")]);
}

#[test]
fn an_endpoint_selects_the_protocol() {
    use ExportProtocol::{Grpc, Http};
    const GRPC: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    for (rows, protocol, authority, port, path) in [
        ("endpoint a:1;", Grpc, "a:1", 1, GRPC),
        ("endpoint a;", Grpc, "a", 4317, GRPC),
        ("endpoint http://a:1;", Grpc, "a:1", 1, GRPC),
        ("endpoint HTTP://a:1/;", Grpc, "a:1", 1, GRPC),
        ("endpoint dns:///a:1;", Grpc, "a:1", 1, GRPC),
        ("endpoint [::1]:1;", Grpc, "[::1]:1", 1, GRPC),
        ("endpoint a:4318;", Http, "a:4318", 4318, "/v1/traces"),
        ("endpoint http://a:4318;", Http, "a:4318", 4318, "/v1/traces"),
        ("endpoint http://a/v1/traces;", Http, "a", 80, "/v1/traces"),
        ("endpoint http://a:1/x/y;", Http, "a:1", 1, "/x/y"),
        ("endpoint a:1; protocol http;", Http, "a:1", 1, "/v1/traces"),
        ("protocol grpc; endpoint a:4318;", Grpc, "a:4318", 4318, GRPC),
    ] {
        let conf = exporter(rows);
        let endpoint = &conf.endpoint;
        assert_eq!((endpoint.protocol, endpoint.authority.as_str()), (protocol, authority), "{rows}");
        assert_eq!(endpoint.path, path, "{rows}");
        assert_eq!(conf.group.as_ref().and_then(|group| group.port), Some(port), "{rows}");
    }
    let conf = exporter("endpoint unix:/run/otel.sock;");
    assert_eq!((conf.endpoint.protocol, conf.endpoint.authority.as_str()), (Grpc, "localhost"));
    let config = loaded(
        "otel_exporter { endpoint collectors; } upstream collectors { server 127.0.0.1:1; server 127.0.0.1:2; } server { }",
    );
    let exporter = config.http.of::<OtelConf>().exporter.as_ref().expect("the block exists");
    assert_eq!(exporter.group.as_ref().map(|group| group.destinations().count()), Some(2));
}

#[test]
fn wrong_statements_are_refused_with_nginxs_texts() {
    for (text, expected, line) in [
        ("otel_exporter { }", "\"otel_exporter\" requires \"endpoint\"", 2),
        ("otel_exporter {\nendpoint ''; }", "\"otel_exporter\" requires \"endpoint\"", 2),
        ("otel_exporter {\nendpoint http://; }", "\"otel_exporter\" requires \"endpoint\"", 2),
        ("otel_exporter {\nx y; }", "unknown directive \"x\" in \"otel_exporter\"", 3),
        (
            "otel_exporter {\nendpoint; }",
            "invalid number of arguments in \"endpoint\" directive of \"otel_exporter\"",
            3,
        ),
        (
            "otel_exporter {\nendpoint a:1;\nendpoint b:1; }",
            "\"endpoint\" directive of \"otel_exporter\" is duplicate",
            4,
        ),
        (
            "otel_exporter {\ninterval x; }",
            "\"interval\" directive of \"otel_exporter\" has invalid value",
            3,
        ),
        (
            "otel_exporter {\nbatch_size 0; }",
            "\"batch_size\" directive of \"otel_exporter\" has invalid value",
            3,
        ),
        (
            "otel_exporter {\nheader 'a b' c; }",
            "\"header\" directive of \"otel_exporter\" has invalid header name",
            3,
        ),
        (
            "otel_exporter {\nheader Content-Length 1; }",
            "\"header\" directive of \"otel_exporter\" has invalid header name",
            3,
        ),
        (
            "otel_exporter {\nheader a \"b\\nc\"; }",
            "\"header\" directive of \"otel_exporter\" has invalid header value",
            3,
        ),
        (
            "otel_exporter {\nprotocol x; }",
            "\"protocol\" directive of \"otel_exporter\" must be \"grpc\" or \"http\"",
            3,
        ),
        ("otel_exporter { endpoint a:x; }", "invalid port in endpoint \"a:x\"", 2),
        ("otel_exporter { endpoint a:1/b; protocol grpc; }", "invalid path in endpoint \"a:1/b\"", 2),
        (
            "otel_exporter { endpoint a:1; } otel_exporter { endpoint a:1; }",
            "\"otel_exporter\" directive is duplicate",
            2,
        ),
        ("server {\notel_trace $uri; }", "\"otel_exporter\" block is missing", 3),
        ("otel_trace on; server { }", "\"otel_exporter\" block is missing", 2),
        ("otel_trace 101%;", "invalid percent value \"101%\"", 2),
        ("otel_trace_context x;", "invalid value \"x\"", 2),
    ] {
        let found = error(&format!("http {{\n{text} }}"));
        assert!(found.starts_with(expected), "{text}: {found}");
        let position = format!("/conf/nginx.conf:{line}");
        assert!(found.split(';').next().is_some_and(|text| text.ends_with(&position)), "{text}: {found}");
    }
    loaded("otel_trace off; otel_trace_context inject; server { }");
}
