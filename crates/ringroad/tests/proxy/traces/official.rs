//! The export to implementations of OpenTelemetry: gRPC's own server with the messages of OpenTelemetry's Python package, with and
//! without TLS, and the collector, if the environment names its program.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::common::tls::Authority;
use crate::common::{BINARY, Running, ours_only};
use testkit::wait::{self, Deadline};
use testkit::{Client, Server, TempDir};

/// A running collector, and the lines that it prints.
struct Collector {
    _input: Option<ChildStdin>,
    lines: Receiver<String>,
    _running: Running,
}

impl Collector {
    fn of(mut child: Child) -> Collector {
        let input = child.stdin.take();
        let output = child.stdout.take().expect("a pipe");
        Collector { _input: input, lines: lines_of(output), _running: Running(child) }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Deadline::default().left().unwrap_or_default()).expect("a line")
    }

    fn span(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }
}

fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    let output = BufReader::new(output);
    std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    lines
}

/// Starts the collector in Python, with a certificate and its key for TLS; returns it with the ports of gRPC and HTTP.
fn python(files: &[&Path]) -> Option<(Collector, u16, u16)> {
    let modules = "import grpc, opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc";
    let import = Command::new("python3").args(["-c", modules]).stderr(Stdio::null()).status();
    if !import.is_ok_and(|status| status.success()) {
        testkit::skip(
            "opentelemetry-proto is not installed (python3 -m pip install grpcio opentelemetry-proto)",
        );
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/otel/collector.py");
    let mut command = Command::new("python3");
    command.arg(script).args(files).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let collector = Collector::of(command.spawn().expect("it is installed"));
    let ports = collector.line();
    let (grpc, http) = ports.split_once(' ').expect("two ports");
    let port = |text: &str| text.parse().expect("a port");
    Some((collector, port(grpc), port(http)))
}

fn start(endpoint: &str, rows: &str) -> Server {
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ otel_exporter {{ endpoint {endpoint}; interval 10ms; {rows} }} otel_service_name shop;
           server {{ listen 127.0.0.1:0; otel_trace on; otel_trace_context propagate;
             location / {{ otel_span_attr http.request.header.x_key $http_x_key; return 500 x; }} }} }}"
    );
    Server::start(BINARY, &text)
}

/// Makes a request; the collector must get its span with the values that the client determines.
fn check(server: &Server, collector: &Collector, protocol: &str) {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let fields = [("traceparent", parent), ("tracestate", "a=1"), ("X-Key", "k\u{e9}")];
    let response = Client::connect(server.addr(0)).request("GET", "/a%ff?b", &fields);
    assert_eq!(response.status, 500);
    let span = collector.span();
    for (name, value) in [
        ("protocol", protocol),
        ("scope", "ringroad"),
        ("trace", "0af7651916cd43dd8448eb211c80319c"),
        ("parent", "b7ad6b7169203331"),
        ("state", "a=1"),
        ("name", "/"),
    ] {
        assert_eq!(span[name], value, "{name} {span}");
    }
    assert_eq!((&span["kind"], &span["status"]), (&Value::from(2), &Value::from(2)), "{span}");
    assert_eq!(span["resource"]["service.name"], "shop", "{span}");
    let attributes = &span["attributes"];
    assert_eq!(attributes["http.target"]["stringValue"], "/a%ff?b", "{span}");
    assert_eq!(attributes["http.status_code"]["intValue"], "500", "{span}");
    let array = &attributes["http.request.header.x_key"]["arrayValue"]["values"];
    assert_eq!(array[0]["stringValue"], "k\u{e9}", "{span}");
}

#[test]
fn the_python_package_decodes_the_spans() {
    if !ours_only("otel") {
        return;
    }
    let Some((collector, grpc, http)) = python(&[]) else { return };
    let server = start(&format!("localhost:{grpc}"), "");
    (0..3).for_each(|_| check(&server, &collector, "grpc"));
    let server = start(&format!("127.0.0.1:{http}"), "protocol http;");
    (0..3).for_each(|_| check(&server, &collector, "http"));
}

#[test]
fn tls_to_a_collector_is_verified() {
    if !ours_only("otel") {
        return;
    }
    let (authority, other) = (Authority::new("root"), Authority::new("other"));
    let (pem, key) = authority.server("localhost");
    let dir = TempDir::new("otel-tls");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("the directory is writable");
        path
    };
    let (pem, key) = (file("a.pem", &pem), file("a.key", &key));
    let Some((collector, grpc, _)) = python(&[&pem, &key]) else { return };
    let trusted = |authority: &Authority, name: &str| {
        format!("trusted_certificate {};", file(name, &authority.pem).display())
    };
    let server = start(&format!("https://localhost:{grpc}"), &trusted(&authority, "root.pem"));
    check(&server, &collector, "grpc");
    for (endpoint, rows, reason) in [
        (format!("https://localhost:{grpc}"), trusted(&other, "other.pem"), "certificate verify error"),
        (
            format!("https://127.0.0.1:{grpc}"),
            trusted(&authority, "root.pem"),
            "does not match \"127.0.0.1\"",
        ),
    ] {
        let server = start(&endpoint, &rows);
        assert_eq!(Client::connect(server.addr(0)).get("/").status, 500);
        wait::let_pass(std::time::Duration::from_millis(100));
        // The batch is lost at the end of the server, with the reason.
        let dir = TempDir::new("otel-log");
        let log = dir.path().join("log");
        std::fs::hard_link(server.path("logs/error.log"), &log).expect("the same file system");
        assert!(server.quit_and_wait().success());
        let log = std::fs::read_to_string(&log).expect("it is a file");
        assert!(log.contains("OTel export failure:") && log.contains(reason), "{endpoint}: {log}");
    }
    assert!(collector.lines.try_recv().is_err(), "no span was sent to an unknown server");
}
