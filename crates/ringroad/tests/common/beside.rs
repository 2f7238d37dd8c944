//! The same requests to Debian's nginx and to this server, over the same configuration and the same files: status,
//! fields and bodies must be the same, but for the date, the port and the boundaries of parts.
//!
//! Where an answer is meant to differ, the request names the row of `docs/nginx-differences.md` that says so. Such a
//! row is held to its word: against the version of nginx that the page compares with, the answers have to differ.
//! Skipped, with the reason printed, where nginx is not installed.

use std::process::Command;

use testkit::response::{BodyLength, Fault};
use testkit::{Client, Response, Server, TempDir, date, nginx};

/// The page that lists what differs, with a row for each mark in a suite.
const PAGE: &str = include_str!("../../../../docs/nginx-differences.md");

/// The version of nginx that the rows of the page are about.
const COMPARED: &str = "nginx/1.22.";

/// A request, and the row of the page that lets its answers differ.
pub(crate) struct Case {
    bytes: Vec<u8>,
    differs: Option<&'static str>,
    /// Whether the bodies are the same nevertheless.
    same_body: bool,
}

/// A request of HTTP/1.1 with these fields after `Host`.
pub(crate) fn ask(method: &str, target: &str, fields: &[(&str, &str)]) -> Case {
    raw(testkit::client::request_bytes(method, target, fields))
}

/// A GET.
pub(crate) fn get(target: &str) -> Case {
    ask("GET", target, &[])
}

/// A request as it goes over the wire.
pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Case {
    Case { bytes: bytes.into(), differs: None, same_body: false }
}

impl Case {
    /// Names the row that says how the answers differ.
    pub(crate) fn differs(self, row: &'static str) -> Case {
        Case { differs: Some(row), ..self }
    }

    /// Names the row that says how the heads differ; the bodies are compared.
    pub(crate) fn differs_in_head(self, row: &'static str) -> Case {
        Case { differs: Some(row), same_body: true, ..self }
    }
}

/// Sends the cases one by one, each on a connection of its own, and compares. `ROOT` in the configuration is the
/// folder of the files.
pub(crate) fn compare(conf: &str, site: &TempDir, cases: Vec<Case>) {
    let conf = conf.replace("ROOT", &site.path().display().to_string());
    // Under the same name, pages and their lengths are the same too.
    let ours = conf.replace("server_tokens off;", "server_tokens \"nginx\";");
    // First: what this server takes and nginx does not know is of a module that nginx was built without.
    let ours = Server::start(super::BINARY, &ours);
    let Some(theirs) = nginx::start(&conf) else { return };
    let strict = version().contains(COMPARED);
    let mut wrong = Vec::new();
    for Case { bytes, differs, same_body } in &cases {
        let (nginx, ringroad) = (answer(&theirs, bytes), answer(&ours, bytes));
        let request = bytes.escape_ascii();
        let body = |answer: &str| answer.split_once("\n\n").map(|(_, body)| body.to_owned());
        if *same_body && body(&nginx) != body(&ringroad) {
            wrong.push(format!("bodies to {request}\n--- nginx\n{nginx}\n--- ringroad\n{ringroad}\n"));
        }
        match differs {
            None if nginx != ringroad => {
                wrong.push(format!("to {request}\n--- nginx\n{nginx}\n--- ringroad\n{ringroad}\n"));
            }
            Some(row) if strict && nginx == ringroad => {
                wrong.push(format!("{row} says that the answers to {request} differ; both are\n{nginx}\n"));
            }
            Some(row) if !PAGE.contains(&format!("| {row} |")) => {
                wrong.push(format!("docs/nginx-differences.md has no row {row}"));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {} requests:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// What `nginx -v` says, on standard error.
fn version() -> String {
    let output = Command::new(nginx::binary()).arg("-v").output().expect("it has just been started");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The answer as text, without what has to differ. A server that says nothing and closes is an answer as well.
fn answer(server: &Server, request: &[u8]) -> String {
    let mut client = Client::connect(server.addr(0));
    client.send(request);
    let response = match receive(&mut client, request.starts_with(b"HEAD ")) {
        Ok(response) => response,
        Err(fault) => return format!("no response: {fault}\n"),
    };
    if response.field("connection") == Some("close") && response.length != BodyLength::Close {
        // Without it either server would go on reading for the five seconds of `lingering_timeout`.
        client.half_close().expect_end();
    }
    let port = server.addr(0).tcp().port().to_string();
    shown(&response, &port)
}

/// The value of a field, where it is a moment near the answer's own as seconds since that: a second may begin between
/// two answers.
fn since(date: Option<&str>, name: &str, value: &str) -> String {
    let moments = (date.and_then(date::parse), date::parse(value));
    match moments {
        (Some(date), Some(moment)) if name == "Expires" && date.abs_diff(moment) <= 3600 => {
            format!("Date + {}", i128::from(moment) - i128::from(date))
        }
        _ => value.to_owned(),
    }
}

fn receive(client: &mut Client, to_head: bool) -> Result<Response, Fault> {
    if to_head { Ok(client.response_to_head()) } else { client.try_response() }
}

/// Fields sorted by name: their order has no meaning, and nginx's depends on who sets them.
fn shown(response: &Response, port: &str) -> String {
    let head = &response.head;
    let fields = head.fields.iter().filter(|(name, _)| name != "Date");
    let mut fields: Vec<String> =
        fields.map(|(name, value)| format!("{name}: {}\n", since(head.field("date"), name, value))).collect();
    fields.sort();
    let (version, status, reason) = (head.minor_version, head.status, &head.reason);
    let text = format!("HTTP/1.{version} {status} {reason}\n{}\n{}", fields.concat(), response.text());
    let text = text.replace(&format!(":{port}/"), ":PORT/");
    match head.field("content-type").and_then(|kind| kind.split_once("boundary=")) {
        // nginx counts twenty digits; the part of the length that follows from it is the same.
        Some((_, boundary)) => text.replace(boundary, "BOUNDARY"),
        None => text,
    }
}
