//! `access_log` and `log_format`: which lines requests leave, and what they look like.
//!
//! The lines are written elsewhere ([`crate::log`]); this file says where to and makes the text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Spec, value};

use crate::config::{Cx, Layered, Scope};
use crate::modules::http_core::LEVELS;
use crate::modules::{Directive, Module};
use crate::request::Request;
use crate::template::{Template, variable_name};
use crate::variables::VarRef;

/// The module.
pub static MODULE: Module = Module { directives: &[DIRECTIVES], ..Module::named("http_log") };

/// `open_log_file_cache` is not among them: paths with variables are not built, and others are opened once.
const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_log",
            "access_log",
            LEVELS.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT),
            Args::AtLeast(1),
            "Where a line for each request goes, in which format, and under which condition.",
        )
        .many()
        .default("logs/access.log combined"),
        add_access_log,
    ),
    Directive::http(
        Spec::new("http_log", "log_format", Contexts::HTTP, Args::AtLeast(2), "A format for `access_log`, by name.")
            .many()
            .default("combined '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"'"),
        add_format,
    ),
];

/// The access logs of a block.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    logs: Layered<AccessLog>,
    /// Whether the block says `off`, which empties the list.
    off_in_block: u32,
}

/// One `access_log`.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// The file.
    pub path: PathBuf,
    /// What a line looks like.
    pub format: Arc<LogFormat>,
    /// Bytes that are collected before they are written.
    pub buffer: Option<u64>,
    /// How long they may wait for that.
    pub flush: Option<Duration>,
    /// Requests for which this is empty or `0` leave no line.
    pub condition: Option<Template>,
}

impl Conf {
    /// What holds without `access_log`.
    pub(crate) fn under(prefix: &Path) -> Conf {
        let path = prefix.join("logs/access.log");
        let format = Arc::new(LogFormat::combined());
        let log = AccessLog { path, format, buffer: None, flush: None, condition: None };
        Conf { logs: Layered::from(vec![log]), off_in_block: 0 }
    }

    /// Those that hold.
    pub(crate) fn logs(&self) -> &[AccessLog] {
        self.logs.items()
    }

    /// Their files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.logs().iter().map(|log| log.path.as_path())
    }
}

/// `off`, or a file with a format and options. A path with variables would be opened for each request.
fn add_access_log(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    if text == "off" {
        if let Some(further) = cx.statement.args.get(1) {
            // A format behind `off` shows that something else was meant.
            return Err(cx.error(format_args!("invalid parameter \"{}\"", further.text)));
        }
        scope.log.off_in_block = cx.block;
        scope.log.logs.own(cx.block).clear();
        return Ok(());
    }
    if text.starts_with("syslog:") {
        return Err(cx.not_built(text));
    }
    let mut log =
        AccessLog { path: cx.path(text), format: format_of(cx)?, buffer: None, flush: None, condition: None };
    for option in cx.statement.texts().skip(2) {
        read_option(&mut log, option, cx)?;
    }
    // A time without a buffer would have nothing to wait with.
    if log.flush.is_some() && log.buffer.is_none() {
        return Err(cx.error(format_args!("no buffer is defined for access_log \"{text}\"")));
    }
    if text.contains('$') {
        let buffered = "buffered logs cannot have variables in name";
        return Err(if log.buffer.is_some() { cx.error(buffered) } else { cx.not_built(text) });
    }
    // Checked against what is inherited too, because all blocks share the open file.
    check_sharing(scope, &log, cx)?;
    // nginx: `off` in a block wins over the other logs of the same block.
    if scope.log.off_in_block != cx.block {
        scope.log.logs.own(cx.block).push(log);
    }
    Ok(())
}

/// Formats must be defined above their use, as in nginx.
fn format_of(cx: &Cx<'_>) -> Result<Arc<LogFormat>, Error> {
    // The built-in format is made anew for each use; that happens when a configuration is read, and never later.
    let name = cx.statement.args.get(1).map_or(COMBINED, |word| word.text.as_str());
    if name == COMBINED {
        return Ok(Arc::new(LogFormat::combined()));
    }
    let known = cx.http.formats.get(name).cloned();
    known.ok_or_else(|| cx.error(format_args!("unknown log format \"{name}\"")))
}

/// One of `buffer=`, `flush=`, `if=`.
fn read_option(log: &mut AccessLog, option: &str, cx: &mut Cx<'_>) -> Result<(), Error> {
    if let Some(text) = option.strip_prefix("buffer=") {
        let size = value::size(text).ok().filter(|&size| size > 0);
        log.buffer = Some(size.ok_or_else(|| cx.error(format_args!("invalid buffer size \"{text}\"")))?);
    } else if let Some(text) = option.strip_prefix("flush=") {
        let time = value::milliseconds(text).ok().filter(|&time| time > 0);
        let time = time.ok_or_else(|| cx.error(format_args!("invalid flush time \"{text}\"")))?;
        log.flush = Some(Duration::from_millis(time));
    } else if let Some(text) = option.strip_prefix("if=") {
        // Any text will do, since only emptiness and `0` count when it is rendered.
        log.condition = Some(cx.template(text)?);
    } else if option == "gzip" || option.starts_with("gzip=") {
        return Err(cx.not_built(option));
    } else {
        return Err(cx.error(format_args!("invalid parameter \"{option}\"")));
    }
    Ok(())
}

/// Logs that share a file must agree on how it is buffered.
fn check_sharing(scope: &Scope, log: &AccessLog, cx: &Cx<'_>) -> Result<(), Error> {
    let buffers = |other: &AccessLog| (other.buffer, other.flush);
    // An unbuffered log beside a buffered one is fine: its lines are written out at once, together with the
    // others.
    let mut same_file = scope.log.logs().iter().filter(|other| other.path == log.path);
    if log.buffer.is_some() && same_file.any(|other| other.buffer.is_some() && buffers(other) != buffers(log))
    {
        let text = cx.arg(0);
        let message = format_args!("access_log \"{text}\" already defined with conflicting parameters");
        return Err(cx.error(message));
    }
    Ok(())
}

/// nginx's built-in format.
const COMBINED: &str = "combined";

/// `log_format name [escape=…] text …`: the texts are put together without spaces.
fn add_format(cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    if name == COMBINED || cx.http.formats.contains_key(name) {
        return Err(cx.error(format_args!("duplicate \"log_format\" name \"{name}\"")));
    }
    let mut texts: Vec<&str> = cx.statement.texts().skip(1).collect();
    let mut escape = LogEscape::Default;
    // Only the first argument can be the option; a text that merely begins alike further behind is a text.
    if let Some(text) = texts[0].strip_prefix("escape=") {
        let known = LogEscape::NAMES.iter().find(|(name, _)| *name == text);
        let fault = || cx.error(format_args!("unknown log format escaping \"{text}\""));
        escape = known.ok_or_else(fault)?.1;
        texts.remove(0);
    }
    // Each argument by itself: a name ends where its argument ends.
    let mut parts = Vec::new();
    for text in texts {
        read_parts(text, &mut parts, cx)?;
    }
    let format = LogFormat { parts, escape };
    cx.http.formats.insert(name.to_owned(), Arc::new(format));
    Ok(())
}

/// Text and variables of one argument.
fn read_parts(text: &str, parts: &mut Vec<Part>, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        if dollar > 0 {
            parts.push(Part::Text(rest[..dollar].into()));
        }
        let after = &rest[dollar + 1..];
        let (name, len) = variable_name(after).map_err(|fault| match fault {
            crate::template::NameFault::Missing => {
                cx.error(format_args!("invalid parameter \"{}\"", &rest[dollar..]))
            }
            unclosed => cx.error(unclosed),
        })?;
        // Whether the variable exists is known when all of the configuration was read: `set` may come below.
        parts.push(Part::Variable(cx.http.registry.reference(name, cx.statement)));
        rest = &after[len..];
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.into()));
    }
    Ok(())
}

/// A `log_format`.
#[derive(Debug)]
pub struct LogFormat {
    parts: Vec<Part>,
    escape: LogEscape,
}

/// A piece of a format.
#[derive(Debug)]
enum Part {
    Text(Box<str>),
    Variable(VarRef),
}

/// `escape=`: what happens to bytes that could break a line or a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogEscape {
    /// `"`, `\`, and what is no printable ASCII becomes `\xXX`; no value becomes `-`.
    Default,
    /// As in strings of JSON; no value becomes nothing.
    Json,
    /// Values stay as they are; no value becomes nothing.
    None,
}

impl LogEscape {
    const NAMES: [(&'static str, LogEscape); 3] =
        [("default", LogEscape::Default), ("json", LogEscape::Json), ("none", LogEscape::None)];
}

impl LogFormat {
    /// nginx's built-in format.
    pub(crate) fn combined() -> LogFormat {
        let text = |text: &str| Part::Text(text.into());
        let variable = |name: &str| Part::Variable(VarRef::built_in(name).expect("the modules have it"));
        let parts = vec![
            variable("remote_addr"),
            text(" - "),
            variable("remote_user"),
            text(" ["),
            variable("time_local"),
            text("] \""),
            variable("request"),
            text("\" "),
            variable("status"),
            text(" "),
            variable("body_bytes_sent"),
            text(" \""),
            variable("http_referer"),
            text("\" \""),
            variable("http_user_agent"),
            text("\""),
        ];
        LogFormat { parts, escape: LogEscape::Default }
    }

    /// Appends the line of a request, without a line end.
    pub(crate) fn render(&self, request: &Request, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => {
                    // The value is rendered straight into the line and escaped in place, so most values are
                    // copied once.
                    let start = out.len();
                    let found = variable.value(request, out);
                    // A dash, so that the columns of a line stay where a reader of it expects them.
                    if !found && self.escape == LogEscape::Default {
                        out.push(b'-');
                    } else {
                        escape_tail(self.escape, start, out);
                    }
                }
            }
        }
    }
}

/// Escapes what stands in `out` from `start` on.
fn escape_tail(escape: LogEscape, start: usize, out: &mut Vec<u8>) {
    let harmful = |byte: &u8| match escape {
        LogEscape::Default => matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f..),
        LogEscape::Json => matches!(byte, b'"' | b'\\' | 0..0x20),
        LogEscape::None => false,
    };
    // Nearly all values have nothing to escape, and are looked through once without being moved.
    let Some(first) = out[start..].iter().position(harmful) else { return };
    let tail = out.split_off(start + first);
    for byte in tail {
        match (escape, byte) {
            _ if !harmful(&byte) => out.push(byte),
            (LogEscape::Json, b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            (LogEscape::Json, b'\n') => out.extend_from_slice(b"\\n"),
            (LogEscape::Json, b'\r') => out.extend_from_slice(b"\\r"),
            (LogEscape::Json, b'\t') => out.extend_from_slice(b"\\t"),
            (LogEscape::Json, 0x08) => out.extend_from_slice(b"\\b"),
            (LogEscape::Json, 0x0c) => out.extend_from_slice(b"\\f"),
            (LogEscape::Json, _) => {
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)])
            }
            _ => out.extend_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte & 15)]),
        }
    }
}

/// Upper case, as nginx writes it.
fn hex(digit: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(digit)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{error, load, loaded, warnings};

    fn logs_of(http: &str) -> Vec<(String, Option<u64>, Option<u64>, bool)> {
        let config = loaded(http);
        let root = config.server(crate::config::ServerId(0)).root;
        let logs = config.location(root).scope.log.logs().iter();
        logs.map(|log| {
            let flush = log.flush.map(|flush| flush.as_millis() as u64);
            (log.path.display().to_string(), log.buffer, flush, log.condition.is_some())
        })
        .collect()
    }

    #[test]
    fn logs_replace_inherited_ones_and_off_silences() {
        let plain = |path: &str| (path.to_owned(), None, None, false);
        assert_eq!(logs_of("server {}"), [plain("/prefix/logs/access.log")]);
        assert_eq!(logs_of("access_log a; server {}"), [plain("/prefix/a")]);
        assert_eq!(
            logs_of("access_log a; server { access_log /b; access_log c; }"),
            [plain("/b"), plain("/prefix/c")]
        );
        assert_eq!(logs_of("access_log a; server { access_log off; }"), []);
        assert_eq!(logs_of("server { access_log off; access_log a; }"), []);
        assert_eq!(
            logs_of("server { access_log /a combined buffer=32k flush=1m if=$arg_log; }"),
            [("/a".to_owned(), Some(32 << 10), Some(60_000), true)]
        );
        assert_eq!(load("http { log_format a '$request'; server { access_log x a; } }").err(), None);
        let files = loaded("server { access_log /b; location /x { access_log /c; } }").log_files();
        assert_eq!(files, ["/b", "/c"].map(PathBuf::from));
    }

    #[test]
    fn wrong_logs_are_refused() {
        for (http, expected) in [
            ("access_log off foo;", "invalid parameter \"foo\""),
            ("access_log a foo;", "unknown log format \"foo\""),
            ("access_log a combined foo=1;", "invalid parameter \"foo=1\""),
            ("access_log a combined buffer=0;", "invalid buffer size \"0\""),
            ("access_log a combined flush=1s;", "no buffer is defined for access_log \"a\""),
            ("access_log a combined buffer=1k flush=0;", "invalid flush time \"0\""),
            ("access_log $host.log combined buffer=1k;", "buffered logs cannot have variables in name"),
            ("access_log $host.log;", "\"$host.log\" in \"access_log\" directive is not built yet"),
            (
                "access_log syslog:server=x;",
                "\"syslog:server=x\" in \"access_log\" directive is not built yet",
            ),
            (
                "access_log a combined buffer=1k; access_log a combined buffer=2k;",
                "access_log \"a\" already defined with conflicting parameters",
            ),
            ("log_format combined a;", "duplicate \"log_format\" name \"combined\""),
            ("log_format a b; log_format a c;", "duplicate \"log_format\" name \"a\""),
            ("log_format a escape=x b;", "unknown log format escaping \"x\""),
            ("log_format a '$';", "invalid parameter \"$\""),
            ("log_format a '${x';", "the closing bracket in \"x\" variable is missing"),
            ("log_format a $nonexist;", "unknown \"nonexist\" variable"),
        ] {
            assert_eq!(
                error(&format!("http {{\n{http} }}")),
                format!("{expected} in /conf/nginx.conf:2"),
                "{http}"
            );
        }
        assert_eq!(warnings("http { access_log off; log_format a '$host' b; }"), Vec::<String>::new());
    }

    #[test]
    fn values_are_escaped_as_in_nginx() {
        let value = b"a\"b\\c\nd\x01\x7f\xc3\xa4";
        for (escape, expected) in [
            (LogEscape::Default, &b"> a\\x22b\\x5Cc\\x0Ad\\x01\\x7F\\xC3\\xA4"[..]),
            (LogEscape::Json, b"> a\\\"b\\\\c\\nd\\u0001\x7f\xc3\xa4"),
            (LogEscape::None, b"> a\"b\\c\nd\x01\x7f\xc3\xa4"),
        ] {
            let mut out = b"> ".to_vec();
            out.extend_from_slice(value);
            escape_tail(escape, 2, &mut out);
            assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{escape:?}");
        }
    }
}
