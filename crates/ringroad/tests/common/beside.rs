//! Sends the same requests to Debian's nginx and to this server, with the same configuration and the same files:
//! status, fields and bodies must be equal, except for the date, the port and multipart boundaries.
//!
//! Where responses differ intentionally, the request names the row of `docs/nginx-differences.md` that documents the
//! difference. The row is verified: compared with the page's version of nginx, the responses must differ. Skipped, with
//! the reason printed, if nginx is not installed.

use std::path::Path;
use std::process::Command;

use testkit::response::{BodyLength, Fault};
use testkit::{Client, Response, Server, TempDir, date, nginx};

/// The page that lists the differences, with a row for each mark in a test.
const PAGE: &str = include_str!("../../../../docs/nginx-differences.md");

/// Version of nginx to which the page's rows refer.
const COMPARED: &str = "nginx/1.22.";

/// A request, and the row of the page that permits different responses.
pub(crate) struct Case {
    bytes: Vec<u8>,
    differs: Option<&'static str>,
    /// Whether the bodies must still be equal.
    same_body: bool,
}

/// Returns an HTTP/1.1 request with these fields after `Host`.
pub(crate) fn ask(method: &str, target: &str, fields: &[(&str, &str)]) -> Case {
    raw(testkit::client::request_bytes(method, target, fields))
}

/// Returns a GET request.
pub(crate) fn get(target: &str) -> Case {
    ask("GET", target, &[])
}

/// Returns a request with exactly these bytes.
pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Case {
    Case { bytes: bytes.into(), differs: None, same_body: false }
}

impl Case {
    /// Names the row that documents how the responses differ.
    pub(crate) fn differs(self, row: &'static str) -> Case {
        Case { differs: Some(row), ..self }
    }

    /// Names the row that documents how the heads differ; the bodies are compared.
    pub(crate) fn differs_in_head(self, row: &'static str) -> Case {
        Case { differs: Some(row), same_body: true, ..self }
    }
}

/// Sends the cases sequentially, each on a separate connection, and compares the responses. `ROOT` in the configuration
/// is the files' directory.
pub(crate) fn compare(conf: &str, site: &TempDir, cases: Vec<Case>) {
    compare_permitting(None, conf, site, cases);
}

/// As [`compare`]. The sandbox of our server permits a directory too (`sandbox_path`).
pub(crate) fn compare_permitting(permitted: Option<&Path>, conf: &str, site: &TempDir, cases: Vec<Case>) {
    let conf = conf.replace("ROOT", &site.path().display().to_string());
    // With the same server name, pages and their lengths are equal too.
    let ours = conf.replace("server_tokens off;", "server_tokens \"nginx\";");
    // This server starts first: if nginx refuses a configuration that this server accepts, nginx was built without a
    // module.
    let builder = Server::builder(super::BINARY).conf(&ours);
    let paths = permitted.into_iter().map(|path| path.display().to_string());
    let ours = paths.fold(builder, |builder, path| builder.sandbox_path(&path)).start();
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

/// Returns the output of `nginx -v` on standard error.
fn version() -> String {
    let output = Command::new(nginx::binary()).arg("-v").output().expect("it has just been started");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the response as text, without the parts that always differ. Closing the connection without a response also
/// counts as a response.
fn answer(server: &Server, request: &[u8]) -> String {
    let mut client = Client::connect(server.addr(0));
    client.send(request);
    let response = match receive(&mut client, request.starts_with(b"HEAD ")) {
        Ok(response) => response,
        Err(fault) => return format!("no response: {fault}\n"),
    };
    if response.field("connection") == Some("close") && response.length != BodyLength::Close {
        // Otherwise either server would continue to read for the five seconds of `lingering_timeout`.
        client.half_close().expect_end();
    }
    let port = server.addr(0).tcp().port().to_string();
    shown(&response, &port)
}

/// Returns a field's value; a time near the response's `Date` is returned as seconds since that: a new second may begin
/// between two responses.
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

/// Returns status and fields sorted by name: their order has no meaning, and nginx's depends on the module that sets
/// them.
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
        // nginx's boundary has 20 digits; both boundaries add the same length.
        Some((_, boundary)) => text.replace(boundary, "BOUNDARY"),
        None => text,
    }
}
