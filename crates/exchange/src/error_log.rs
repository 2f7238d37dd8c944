//! Lines of the error log, in nginx's format, or as JSON objects.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::rc::Rc;

use http::fields::HeaderId;

use crate::rehearsal::{Event, Note};
use crate::request::{ConnInfo, Request, ThreadConfig};
use crate::session::Session;
use crate::thread::Thread;
use site::config::Section;
use site::ids::LocationId;
use telemetry::reports::Reporter;
use telemetry::sink::LogTarget;
use telemetry::{ErrorLog, ForLog, Form, JsonLine, Level, Target, append_printable};

/// Writes one line to the error log of the process.
pub fn write(thread: &Thread, level: Level, message: fmt::Arguments<'_>) {
    write_to_process(thread, None, level, message);
}

/// Writes a line as [`write()`] does, but not to the target `about`, which the line is about.
pub fn write_except(thread: &Thread, about: &Target, level: Level, message: fmt::Arguments<'_>) {
    write_to_process(thread, Some(about), level, message);
}

/// Writes to the process's error log of the current configuration, whatever configuration a request in flight uses.
fn write_to_process(thread: &Thread, skip: Option<&Target>, level: Level, message: fmt::Arguments<'_>) {
    let thread_config = thread.thread_config();
    let line = Line { level, connection: None, message, about: About::Nothing, is_traced: false };
    line.write(thread, &thread_config.config.main().error_log, &thread_config.sinks, skip);
}

/// The data of an ended request or session that later log lines need.
struct EndedRequest {
    thread: Rc<Thread>,
    /// The request's configuration; the indices of targets refer to it.
    thread_config: Rc<ThreadConfig>,
    section: Section,
    location: LocationId,
    connection: u64,
    /// `, client: …, server: …`
    about: String,
}

impl EndedRequest {
    fn write(&self, level: Level, text: &str) {
        let block = self.thread_config.config.section(self.section);
        let log = &block.locations[self.location.0 as usize].scope.core.error_log;
        let (connection, about) = (Some(self.connection), About::Text(&self.about));
        let message = format_args!("{text}");
        let line = Line { level, connection, message, about, is_traced: false };
        line.write(&self.thread, log, &self.thread_config.sinks, None);
    }
}

impl Request {
    /// Writes a line to the error log of the request's location, with nginx's fields of the request.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        // Checked before the text is formatted: most lines are below the configured level.
        let log = &self.scope().core.error_log;
        if log.accepts(level) || self.conn.is_traced {
            self.write(level, message, About::Request(self));
        }
    }

    /// Whether debug messages about this request are written. Without debug messages in the configuration this is one load.
    pub fn is_traced(&self) -> bool {
        self.thread_config.config.http.traces && self.has_reader_of_traces()
    }

    #[cold]
    fn has_reader_of_traces(&self) -> bool {
        self.conn.is_traced || self.scope().core.error_log.accepts(Level::Debug)
    }

    /// Writes a debug message: a step of the request, for operators that search for the reason of its response. The message begins with
    /// the number of the request on its connection. It must not contain fields of a header section, nor parts of a body: these may be
    /// secrets.
    #[cold]
    pub fn trace(&self, message: fmt::Arguments<'_>) {
        let number = self.conn.requests.get();
        let kind = if self.depth > 0 { "subrequest of request" } else { "request" };
        self.write(Level::Debug, format_args!("{kind} {number}: {message}"), About::Nothing);
    }

    /// Writes a line without the fields of a request, because none was received yet or the message is complete.
    pub fn log_plain(&self, level: Level, message: fmt::Arguments<'_>) {
        self.write(level, message, About::Nothing);
    }

    /// Writes a line to the targets of the request's current location.
    fn write(&self, level: Level, message: fmt::Arguments<'_>, about: About<'_>) {
        if self.is_rehearsed() {
            // Debug messages repeat other notes.
            if level < Level::Debug {
                self.note(|| Event::Logged(level, message.to_string()));
            }
            return;
        }
        let is_traced = self.conn.is_traced;
        let line = Line { level, connection: Some(self.conn.number), message, about, is_traced };
        line.write(&self.conn.thread, &self.scope().core.error_log, &self.thread_config.sinks, None);
    }

    /// Returns a writer of lines about this request, which works also after its end.
    pub fn reporter(&self) -> Reporter {
        let ended = EndedRequest {
            thread: Rc::clone(&self.conn.thread),
            thread_config: Rc::clone(&self.thread_config),
            section: Section::Http,
            location: self.location,
            connection: self.conn.number,
            about: About::Request(self).to_string(),
        };
        Box::new(move |level, text| ended.write(level, text))
    }
}

impl Session {
    /// Returns a writer of lines about this session, which works also after its end.
    pub fn reporter(&self) -> Reporter {
        let ended = EndedRequest {
            thread: Rc::clone(self.thread()),
            thread_config: Rc::clone(&self.thread_config),
            section: Section::Stream,
            location: self.location(),
            connection: self.conn.number,
            about: About::Session(self).to_string(),
        };
        Box::new(move |level, text| ended.write(level, text))
    }

    /// Writes a line to the targets of the server.
    pub(crate) fn write_line(&self, level: Level, message: fmt::Arguments<'_>, has_fields: bool) {
        if let Some(rehearsal) = &self.conn.rehearsal {
            let event = Event::Logged(level, message.to_string());
            return rehearsal.push(Note { depth: 0, location: self.location(), event });
        }
        let log = &self.scope().core.error_log;
        let is_traced = self.conn.is_traced;
        if !log.accepts(level) && !is_traced {
            return;
        }
        let about = if has_fields { About::Session(self) } else { About::Nothing };
        let line = Line { level, connection: Some(self.conn.number), message, about, is_traced };
        line.write(self.thread(), log, &self.thread_config.sinks, None);
    }
}

/// Writes a complete message about a connection that has neither a request nor a session, to this log of the configuration.
pub fn write_about(
    thread_config: &ThreadConfig,
    conn: &ConnInfo,
    log: &ErrorLog,
    level: Level,
    message: fmt::Arguments<'_>,
) {
    let is_traced = conn.is_traced;
    let line = Line { level, connection: Some(conn.number), message, about: About::Nothing, is_traced };
    line.write(&conn.thread, log, &thread_config.sinks, None);
}

/// A line before it is formatted.
struct Line<'a> {
    level: Level,
    connection: Option<u64>,
    message: fmt::Arguments<'a>,
    about: About<'a>,
    /// Whether all targets receive the line, whatever their level (`debug_connection`).
    is_traced: bool,
}

/// The subject of a line.
enum About<'a> {
    Nothing,
    Request(&'a Request),
    Session(&'a Session),
    /// Fields formatted earlier.
    Text(&'a str),
}

impl Line<'_> {
    /// Writes the line to the targets of `log` whose level includes it.
    fn write(&self, thread: &Thread, log: &ErrorLog, sinks: &[Rc<LogTarget>], skip: Option<&Target>) {
        let takes = |target: &Target, level| (self.is_traced || self.level <= level) && skip != Some(target);
        for target in log.targets.items().iter().filter(|target| takes(&target.target, target.level)) {
            sinks[target.id.index()].append(Some(self.level), |out| match target.form {
                Form::Text => self.text(thread, out),
                Form::Json => self.json(thread, out),
            });
        }
    }

    /// Formats time, level, process and thread as nginx does, so that its log tools work.
    fn text(&self, thread: &Thread, out: &mut Vec<u8>) {
        out.extend_from_slice(thread.dates().error_log());
        let (pid, tid) = (std::process::id(), thread.tid);
        // Writing to a `Vec` cannot fail.
        let _ = write!(out, " [{}] {pid}#{tid}: ", self.level);
        if let Some(connection) = self.connection {
            let _ = write!(out, "*{connection} ");
        }
        append_printable(out, format_args!("{}{}", self.message, self.about));
    }

    /// Formats the line as a JSON object; fields without a value are left out.
    fn json(&self, thread: &Thread, out: &mut Vec<u8>) {
        let time = String::from_utf8_lossy(thread.dates().iso_8601()).into_owned();
        let mut object = JsonLine::open(out).text("time", time).text("level", self.level);
        object = object.number("pid", std::process::id().into()).number("tid", thread.tid as u64);
        if let Some(connection) = self.connection {
            object = object.number("connection", connection);
        }
        // Fields that are already part of the text cannot be separated again, so they remain in the message.
        object = match &self.about {
            About::Text(about) => object.text("message", format_args!("{}{about}", self.message)),
            About::Nothing | About::Request(_) | About::Session(_) => object.text("message", self.message),
        };
        if let About::Session(session) = &self.about {
            object = object.text("client", session.client()).text("server", &session.listen().spec.addr);
            if let Some(upstream) = session.upstream.borrow().as_deref().filter(|name| !name.is_empty()) {
                object = object.text("upstream", upstream);
            }
        }
        if let About::Request(request) = &self.about {
            let facts = LineFields::of(request);
            object = object.text("client", request.client()).text("server", &request.server().name);
            for (name, value) in facts.named() {
                object = object.bytes(name, value);
            }
        }
        object.close();
    }
}

/// The fields of a request in a line, if present. The bytes are from the client.
struct LineFields<'a> {
    line: Cow<'a, [u8]>,
    /// The URI of a subrequest; empty for a client's request.
    subrequest: &'a [u8],
    /// The URL of the upstream; empty if there is none.
    upstream: Vec<u8>,
    host: &'a [u8],
    referrer: Option<&'a [u8]>,
}

/// Returns the URL of the upstream that a request is passed to. Only the passing module knows it.
fn upstream_url(request: &Request) -> Option<Vec<u8>> {
    let modules = request.thread_config.modules.modules();
    modules.iter().find_map(|module| (module.upstream_url)(request))
}

impl<'a> LineFields<'a> {
    fn of(request: &'a Request) -> LineFields<'a> {
        LineFields {
            line: request.line(),
            subrequest: if request.depth > 0 { &request.uri } else { b"" },
            upstream: upstream_url(request).unwrap_or_default(),
            host: request.head.host_text().of(request.bytes()),
            referrer: request.header(HeaderId::Referer),
        }
    }

    /// Returns the names and values of the non-empty fields.
    fn named(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        fn full(bytes: &[u8]) -> Option<&[u8]> {
            Some(bytes).filter(|bytes| !bytes.is_empty())
        }
        let all = [
            ("request", full(&self.line)),
            ("subrequest", full(self.subrequest)),
            ("upstream", full(&self.upstream)),
            ("host", full(self.host)),
            ("referrer", self.referrer),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Formats `, client: 127.0.0.1, server: _, request: "GET / HTTP/1.1", host: "a", referrer: "b"`
impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match self {
            About::Nothing => return Ok(()),
            About::Text(text) => return f.write_str(text),
            About::Session(session) => return write_session(session, f),
            About::Request(request) => request,
        };
        write!(f, ", client: {}, server: {}", request.client(), request.server().name)?;
        for (name, value) in LineFields::of(request).named() {
            // The client chose the bytes; `append_printable` escapes control characters.
            write!(f, ", {name}: \"{}\"", value.for_log())?;
        }
        Ok(())
    }
}

/// Formats `, client: 127.0.0.1, server: 0.0.0.0:80, upstream: "10.0.0.1:80", bytes from/to client:0/0, bytes from/to upstream:0/0`
fn write_session(session: &Session, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, ", client: {}, server: {}", session.client(), session.listen().spec.addr)?;
    let upstream = session.upstream.borrow();
    let Some(name) = upstream.as_deref() else { return Ok(()) };
    if !name.is_empty() {
        write!(f, ", upstream: \"{name}\"")?;
    }
    let counts = &session.counts;
    write!(
        f,
        ", bytes from/to client:{}/{}, bytes from/to upstream:{}/{}",
        counts.received.get(),
        counts.sent.get(),
        counts.upstream_received.get(),
        counts.upstream_sent.get()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_cannot_break_a_log_line() {
        let mut out = b"> ".to_vec();
        append_printable(&mut out, format_args!("open() \"/a\n\u{1b}[2J\u{9b}m\u{7f}/{}\" \\ failed", "\rä"));
        let expected = "> open() \"/a\\x0A\\x1B[2J\\xC2\\x9Bm\\x7F/\\x0Dä\" \\ failed";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn bytes_of_a_client_are_unchanged_except_control_characters() {
        let mut out = Vec::new();
        append_printable(
            &mut out,
            format_args!("\"{}\"", b"/it's \"\\ M\xc3\xbc\n\x1b\xff\xc3/\0".for_log()),
        );
        let expected = r#""/it's "\ Mü\x0A\x1B\xFF\xC3/\x00""#;
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
