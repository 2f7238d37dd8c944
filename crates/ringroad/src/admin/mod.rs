//! The admin socket: commands of operators to a running server.
//!
//! ```text
//! ringroad log  -- {"command":"log","filter":"code=5xx"} -->  master (desk): checks, keeps a copy of the socket
//!               <-- {"ok":true,"watchers":1} ---------------    |  the socket, to each worker
//!               <-- {"watching":PID} ----------------------  worker (feed): begins
//!               <-- lines of JSON ---------------------------    | sends what its threads show
//! ```
//! It is a SOCK_SEQPACKET socket (unix(7)), which delivers complete packets. So several workers can send through one
//! socket, before and after a reload. Its file has mode 0600. In addition, the master checks that the user of a caller
//! is root or its own user.
//!
//! [`socket`] has the listening socket, [`server`] the master's side, [`feed`] the worker's side.

pub(crate) mod feed;
#[cfg(test)]
mod fuzzing;
pub(crate) mod server;
pub(crate) mod socket;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde_json::{Value, json};

use crate::adapter::{EntryQuery, Worker};
use crate::contain::contain;
use crate::explain::{Query, add_cached};
use crate::log::Log;

/// Maximum size of a packet from a client in bytes.
pub(crate) const CALL_MAX: usize = 16 << 10;

/// Maximum size of a packet to a client in bytes, except for a single longer line. An empty socket buffer has space for
/// several.
pub(crate) const PACKET_MAX: usize = 32 << 10;

/// Maximum size of a response in bytes.
const RESPONSE_MAX: usize = 64 << 10;

/// A client's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Show finished requests that match this filter.
    Log(String),
    /// Show the changes that a reload would make.
    Diff,
    /// Explain how a request would be handled.
    Explain(Query),
    /// Drain clients, or end the draining.
    Drain(bool),
}

impl Call {
    /// Parses a packet of a client.
    pub(crate) fn parse(packet: &[u8]) -> Result<Call, String> {
        let value: Value = serde_json::from_slice(packet).map_err(|_| "the call is not JSON".to_owned())?;
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        match value["command"].as_str() {
            Some("log") => Ok(Call::Log(text("filter"))),
            Some("diff") => Ok(Call::Diff),
            Some("drain") => Ok(Call::Drain(true)),
            Some("undrain") => Ok(Call::Drain(false)),
            Some("explain") => Ok(Call::Explain(Query::from_json(&value))),
            Some(other) => {
                Err(format!("the server has no command \"{other}\"; it may be older than this program"))
            }
            None => Err("the call has no command".to_owned()),
        }
    }
}

/// Sends an error as the response.
pub(crate) fn refuse(socket: &OwnedFd, message: &str) {
    send_response(socket, &json!({ "error": message }));
}

/// Runs a command behind the panic boundary, with its caller's socket. After a fault the caller gets it as the response.
pub(crate) fn contained(log: &Log, socket: OwnedFd, command: impl FnOnce(OwnedFd)) {
    let copy = socket.try_clone();
    if let Err(fault) = contain("a command of an operator", || command(socket)) {
        log.alert(&fault);
        if let Ok(socket) = copy {
            refuse(&socket, &fault);
        }
    }
}

/// Sends a response. It is dropped if the client has disconnected or its socket is full.
pub(crate) fn send_response(socket: &OwnedFd, value: &Value) {
    let mut text = value.to_string();
    if text.len() > RESPONSE_MAX {
        text = json!({ "error": "the response is too long" }).to_string();
    }
    let _ = send(socket, text.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Completes an explanation with the entry in a cache of this process, and sends it as the response.
pub(crate) fn complete(worker: &Worker, socket: OwnedFd, text: String, entry_query: EntryQuery) {
    worker.inspect(
        entry_query,
        Box::new(move |lines| {
            let mut text = text;
            add_cached(&mut text, &lines);
            send_response(&socket, &json!({ "ok": true, "text": text }));
        }),
    );
}

/// Encodes an explanation that a worker has to complete.
pub(crate) fn pack(text: &str, entry_query: &EntryQuery) -> Vec<u8> {
    let EntryQuery { zone, key, method, fields } = entry_query;
    json!({ "text": text, "zone": zone, "key": key, "method": method, "fields": fields })
        .to_string()
        .into_bytes()
}

/// Decodes the output of [`pack`].
pub(crate) fn unpack(bytes: &[u8]) -> Option<(String, EntryQuery)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |name: &str| value[name].as_array();
    let key = list("key")?.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
    let fields = list("fields")?.iter().map(|field| Some((text(&field[0])?, text(&field[1])?)));
    let entry_query = EntryQuery {
        zone: text(&value["zone"])?,
        key: key.collect::<Option<_>>()?,
        method: text(&value["method"])?,
        fields: fields.collect::<Option<_>>()?,
    };
    Some((text(&value["text"])?, entry_query))
}

/// Whether the client is still connected. A client sends nothing after its call, so a readable socket means that the
/// client has disconnected.
pub(crate) fn is_silent(socket: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    matches!(
        recv(socket, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK),
        Err(Errno::AGAIN | Errno::INTR)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_parsed() {
        let read = |text: &str| Call::parse(text.as_bytes());
        assert_eq!(read(r#"{"command":"log","filter":"code=5xx"}"#), Ok(Call::Log("code=5xx".to_owned())));
        assert_eq!(read(r#"{"command":"log"}"#), Ok(Call::Log(String::new())));
        assert_eq!(read(r#"{"command":"diff"}"#), Ok(Call::Diff));
        assert_eq!(read(r#"{"command":"drain"}"#), Ok(Call::Drain(true)));
        assert_eq!(read(r#"{"command":"undrain"}"#), Ok(Call::Drain(false)));
        let query = Query {
            url: "http://a/".to_owned(),
            from: "::1".to_owned(),
            method: "GET".to_owned(),
            fields: vec![("accept".to_owned(), "text/html".to_owned())],
            http3: true,
        };
        assert_eq!(read(&query.to_json().to_string()), Ok(Call::Explain(query.clone())));
        let entry_query = EntryQuery {
            zone: "z".to_owned(),
            key: b"k\xff".to_vec(),
            method: "GET".to_owned(),
            fields: query.fields,
        };
        assert_eq!(unpack(&pack("text", &entry_query)), Some(("text".to_owned(), entry_query)));
        assert_eq!(unpack(b"{}"), None);
        assert!(read(r#"{"command":"dance"}"#).expect_err("unknown").contains("no command \"dance\""));
        assert_eq!(read("[]").expect_err("no object"), "the call has no command");
        assert_eq!(read("\u{0}").expect_err("no JSON"), "the call is not JSON");
    }
}
