//! Lines of the error log in nginx's form.

use std::fmt;
use std::io::Write;

use http::request::HeaderId;
use io::Errno;

use crate::log::{ErrorLog, Level, Target};
use crate::request::Request;
use crate::thread::Thread;

/// The reason of a failed system call as nginx writes it: `2: No such file or directory`.
pub struct Reason(pub Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0.raw_os_error();
        let text = std::io::Error::from_raw_os_error(code).to_string();
        write!(f, "{code}: {}", text.trim_end_matches(&format!(" (os error {code})")))
    }
}

/// Writes one line to the targets of `log` that take this level.
pub(crate) fn write(thread: &Thread, log: &ErrorLog, level: Level, message: fmt::Arguments<'_>) {
    for target in log.targets.items().iter().filter(|target| level <= target.level) {
        let file = match &target.target {
            Target::File(path) => thread.logs.get(path),
            Target::Stderr => thread.logs.stderr(),
        };
        // A log that could not be opened was told at the start; a line for it is lost, a request is not.
        if let Some(file) = file {
            file.append(0, |out| line(out, thread, level, message));
        }
    }
}

/// Time, level, process and thread as nginx writes them, so that tools which cut its log can cut this one.
fn line(out: &mut Vec<u8>, thread: &Thread, level: Level, message: fmt::Arguments<'_>) {
    out.extend_from_slice(thread.dates().error_log());
    let (pid, tid) = (std::process::id(), thread.tid);
    // A vector takes every write.
    let _ = writeln!(out, " [{level}] {pid}#{tid}: {message}");
}

impl Request {
    /// Writes a line to the error log of the request's location, with what nginx says of the request.
    pub(crate) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        // Asked before the text is put together: most lines are below the level that is written.
        let log = &self.scope().core.error_log;
        if !log.takes(level) {
            return;
        }
        write(&self.conn.thread, log, level, format_args!("*{} {message}{}", self.conn.number, About(self)));
    }
}

/// `, client: 127.0.0.1, server: _, request: "GET / HTTP/1.1", host: "a", referrer: "b"`
struct About<'a>(&'a Request);

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.0;
        write!(f, ", client: {}, server: {}", request.client(), request.server().name)?;
        let line = request.head.request_line().of(request.bytes());
        // Bytes that no terminal should see are escaped, because the client chose them.
        if !line.is_empty() {
            write!(f, ", request: \"{}\"", line.escape_ascii())?;
        }
        if request.depth > 0 {
            write!(f, ", subrequest: \"{}\"", request.uri.escape_ascii())?;
        }
        if !request.head.host_text().is_empty() {
            write!(f, ", host: \"{}\"", request.head.host_text().of(request.bytes()).escape_ascii())?;
        }
        if let Some(referrer) = request.header(HeaderId::Referer) {
            write!(f, ", referrer: \"{}\"", referrer.escape_ascii())?;
        }
        Ok(())
    }
}
