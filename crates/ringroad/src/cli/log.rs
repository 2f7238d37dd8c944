//! `ringroad log`: shows finished requests of a running server, one per line, as they end.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::call::{self, ReceiveResult, lines, shown};
use super::failure::CommandFailure;
use super::options::Arguments;
use crate::adapter;

/// Shows requests until the command is interrupted or has shown the number of `-n`.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match show(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("log"),
    }
}

/// Returns the combined filter of all `-f` options: a request must match all of them. The server parses it again.
pub(super) fn filter(given: &Arguments) -> Result<String, CommandFailure> {
    let text = given.all("f").map(|text| text.to_string_lossy()).collect::<Vec<_>>().join(" ");
    adapter::Filter::parse(&text).map_err(|error| CommandFailure::misuse(shown(&error.to_string())))?;
    Ok(text)
}

/// Sends the call, and prints the lines. All lines of a packet are written by one call, so that a slow terminal causes
/// few calls.
fn show(given: &Arguments) -> Result<(), CommandFailure> {
    let mut left = match given.value("n") {
        None => u64::MAX,
        Some(count) => {
            let text = count.to_string_lossy();
            text.parse()
                .map_err(|_| CommandFailure::misuse(format_args!("\"{text}\" is not a number of requests")))?
        }
    };
    let filter = filter(given)?;
    let path = call::socket_path(given)?;
    let (mut connection, _) = call::call(&path, &json!({ "command": "log", "filter": filter }))?;
    let mut out = std::io::stdout().lock();
    while left > 0 {
        let packet = match connection.receive(None)? {
            ReceiveResult::Packet(packet) => packet,
            ReceiveResult::Nothing => continue,
            ReceiveResult::End => return Err("the server has exited".into()),
        };
        let mut text = String::new();
        for line in lines(packet) {
            if left == 0 {
                break;
            }
            // A worker announces that it has begun.
            if line["watching"].is_u64() {
                continue;
            }
            left -= u64::from(line["dropped"].is_null());
            match given.has("json") {
                true => {
                    let _infallible = writeln!(text, "{}", escaped(&line));
                }
                false => describe(&line, &mut text),
            }
        }
        // The reader, such as head(1), has closed the pipe.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Formats a line as JSON, without control characters. JSON does not require an escape for U+007F to U+009F, but a
/// terminal would interpret them.
fn escaped(line: &Value) -> String {
    let mut out = String::new();
    for letter in line.to_string().chars() {
        // Writing to a `String` cannot fail.
        let _ = match letter.is_control() {
            true => write!(out, "\\u{:04x}", u32::from(letter)),
            false => out.write_char(letter),
        };
    }
    out
}

/// Formats a request as a readable line.
fn describe(line: &Value, out: &mut String) {
    let text = |name: &str| shown(line[name].as_str().unwrap_or_default());
    // Writing to a `String` cannot fail.
    if let Some(dropped) = line["dropped"].as_u64() {
        let _ = writeln!(out, "({dropped} requests were not shown)");
        return;
    }
    let phases = &line["phases"];
    let port = line["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let _ = write!(
        out,
        "{} {} {} {}://{}{port}{} from {} by {}, {} bytes in {} ms: received {}, found {}, opened {}",
        time_of_day(line["time"].as_f64().unwrap_or(0.0)),
        number(&line["code"]),
        text("method"),
        text("scheme"),
        text("host"),
        text("uri"),
        text("client"),
        server_and_location(&text("server"), &text("location")),
        number(&line["sent"]),
        ms(&phases["last_byte"]),
        ms(&phases["received"]),
        ms(&phases["found"]),
        ms(&phases["opened"]),
    );
    let _ = match phases["first_byte"].is_u64() {
        true => write!(out, ", first byte {}", ms(&phases["first_byte"])),
        false => write!(out, ", no response"),
    };
    if line["completed"] == false {
        let _ = write!(out, ", incomplete");
    }
    if line["engine"].is_string() {
        let _ = write!(out, "; engine {}", text("engine"));
    }
    if line["cache"].is_string() {
        let _ = write!(out, "; cache {} ({})", text("cache"), text("cache_reason"));
    }
    for one in line["upstreams"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "; upstream {} {}: connect {}, header {}, response {}",
            shown(one["server"].as_str().unwrap_or_default()),
            number(&one["code"]),
            ms(&one["connect"]),
            ms(&one["header"]),
            ms(&one["response"]),
        );
    }
    out.push('\n');
}

/// Returns server and location, or only the server if the request has no location. A server without a name is shown as
/// `_`.
pub(super) fn server_and_location(server: &str, location: &str) -> String {
    let server = if server.is_empty() { "_" } else { server };
    if location.is_empty() { server.to_owned() } else { format!("{server} {location}") }
}

/// Formats a number. A worker that was taken over may send a text instead.
fn number(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |number| number.to_string())
}

/// Formats microseconds as milliseconds.
fn ms(micros: &Value) -> String {
    micros.as_u64().map_or("-".to_owned(), |micros| format!("{}.{:03}", micros / 1000, micros % 1000))
}

/// Formats seconds since 1970 as the time of day in UTC.
fn time_of_day(time: f64) -> String {
    let ms = (time * 1e3).round() as u64;
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_without_control_characters() {
        let line = json!({
            "time": 1_764_170_645.123, "client": "127.0.0.1", "server": "a.example", "location": "/x",
            "method": "GET", "scheme": "http", "host": "a.example", "port": 8080,
            "uri": "/x\u{1b}[2J\n", "code": 200, "sent": 153, "completed": true,
            "engine": "sendfile-threads", "cache": "MISS", "cache_reason": "uri-miss, stored",
            "phases": { "received": 0, "found": 10, "opened": 1200, "first_byte": 1200, "last_byte": 3004 },
            "upstreams": [{ "server": "127.0.0.1:80", "code": 200, "connect": null, "header": 900, "response": 2000 }],
        });
        let mut out = String::new();
        describe(&line, &mut out);
        assert_eq!(
            out,
            "15:24:05.123Z 200 GET http://a.example:8080/x\\u{1b}[2J\\u{a} from 127.0.0.1 by a.example /x, \
             153 bytes in 3.004 ms: received 0.000, found 0.010, opened 1.200, first byte 1.200; engine sendfile-threads; \
             cache MISS (uri-miss, stored); upstream 127.0.0.1:80 200: connect -, header 0.900, response 2.000\n"
        );
        assert_eq!(
            (server_and_location("", ""), server_and_location("", "/p")),
            ("_".to_owned(), "_ /p".to_owned())
        );
        let mut out = String::new();
        let hostile =
            json!({ "code": "\u{9b}2J", "sent": "\u{9b}2J", "upstreams": [{ "code": "\u{9b}2J" }] });
        describe(&hostile, &mut out);
        assert!(!out.trim_end().contains(char::is_control), "{out:?}");
        let mut out = String::new();
        describe(&json!({ "dropped": 7 }), &mut out);
        assert_eq!(out, "(7 requests were not shown)\n");
    }

    #[test]
    fn json_has_no_control_characters() {
        let line = json!({ "uri": "/x\u{1b}\u{7f}\u{9b}2J\n\u{e4}" });
        let text = escaped(&line);
        assert_eq!(text, "{\"uri\":\"/x\\u001b\\u007f\\u009b2J\\n\u{e4}\"}");
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(line));
    }
}
