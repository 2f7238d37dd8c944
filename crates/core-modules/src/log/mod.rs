//! `access_log` and `log_format`: which requests are logged, and in which format.
//!
//! [`telemetry`] writes the lines; this file has the targets and formats the text.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Object, Spec, value};

use crate::{Declaration, Directive, Module};
use exchange::files::links::rule_of;
use exchange::module::SessionHooks;
use exchange::refusals;
use exchange::request::Request;
use exchange::session::Session;
use exchange::thread::Thread;
use site::config::{BlockKind, Cx, HttpType, Layered, Section, Settings, SettingsType, Start};
use site::declaration::{BlockHooks, LEVELS, STREAM_LEVELS};
use site::registry::VariableNames;
use site::template::{Template, variable_name};
use site::uses::FileUse;
use site::var_ref::VarRef;
use site::variables::HasVariables;
use telemetry::links::Rule;
use telemetry::named::{FileCache, Requester};
use telemetry::syslog::Peer;
use telemetry::{Hold, LogKind, Target, TargetId, Targets};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if !scope.of::<Conf>().logs().is_empty() {
            plan.log(scope.shared::<Conf>(), write);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        http: &[HttpType::of::<Formats>(), HttpType::of::<LogCaches>()],
        blocks: BlockHooks {
            end: |http, scope, end| {
                if end.kind == BlockKind::Http && scope.of::<Conf>().is_start {
                    scope.make_mut::<Conf>().set_default_format(LogFormat::combined(http.registry.modules()));
                }
                Ok(())
            },
            requires: |http, scope, requirements| {
                requirements.log_files.extend(scope.of::<Conf>().files(&http.targets).map(Path::to_owned))
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("http_log")
    })
};

/// The same directives in `stream`, where no session is logged by default, and each log needs a format.
pub(crate) static STREAM: Module = Module {
    session: SessionHooks {
        add_to_plan: |_, scope, plan| {
            if !scope.of::<SessionLogs>().0.logs().is_empty() {
                plan.log(scope.shared::<SessionLogs>(), |logs, session| write_session(&logs.0, session));
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[STREAM_DIRECTIVES],
        settings: &[SettingsType::of::<SessionLogs>()],
        section: Section::Stream,
        blocks: BlockHooks {
            requires: |http, scope, requirements| {
                let logs = &scope.of::<SessionLogs>().0;
                requirements.log_files.extend(logs.files(&http.targets).map(Path::to_owned));
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("stream_log")
    })
};

const STREAM_DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "stream_log",
            "access_log",
            STREAM_LEVELS,
            Args::AtLeast(1),
            "The target of a line for each session, its format, and its condition.",
        )
        .many()
        .default("off"),
        |scope, cx| add_access_log(&mut scope.make_mut::<SessionLogs>().0, cx),
    ),
    Directive::http(
        Spec::new(
            "stream_log",
            "log_format",
            Contexts::STREAM,
            Args::AtLeast(2),
            "A format for `access_log`, by name.",
        )
        .many(),
        add_format,
    ),
    Directive::scope(
        Spec::new(
            "stream_log",
            "open_log_file_cache",
            STREAM_LEVELS,
            Args::Between(1, 4),
            "How many logs with variables in their names stay open, and for how long.",
        )
        .default("off"),
        |scope, cx| set_file_cache(&mut scope.make_mut::<SessionLogs>().0, cx),
    ),
];

/// The access logs of a server of `stream`.
#[derive(Clone, Debug, Default)]
struct SessionLogs(Conf);

impl Settings for SessionLogs {}

/// Writes a session to the access logs of its server.
fn write_session(conf: &Conf, session: &Session) {
    let thread_config = &session.thread_config;
    for log in conf.logs() {
        if log.condition.as_ref().is_some_and(|condition| !holds(session, session.thread(), condition)) {
            continue;
        }
        let line = |out: &mut Vec<u8>| log.format.render(session, out);
        match &log.to {
            LogTo::Target(id) => thread_config.sinks[id.index()].append(None, line),
            LogTo::Named(path) => {
                let path = |out: &mut Vec<u8>| path.render(session, out);
                let asker = || Requester {
                    root: b"/".to_vec(),
                    report: session.reporter(),
                    not_opened: refusals::later_note_by(session.thread(), session.reporter()),
                };
                thread_config.named.append(conf.cache, path, |_| Rule::default(), asker, line);
            }
        }
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_log",
            "access_log",
            LEVELS.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT),
            Args::AtLeast(1),
            "The target of a line for each request, its format, and its condition.",
        )
        .many()
        .default("logs/access.log combined"),
        |scope, cx| add_access_log(scope.make_mut::<Conf>(), cx),
    ),
    Directive::http(
        Spec::new("http_log", "log_format", Contexts::HTTP, Args::AtLeast(2), "A format for `access_log`, by name.")
            .many()
            .default("combined '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"'"),
        add_format,
    ),
    Directive::scope(
        Spec::new(
            "http_log",
            "open_log_file_cache",
            LEVELS,
            Args::Between(1, 4),
            "How many logs with variables in their names stay open, and for how long.",
        )
        .default("off"),
        |scope, cx| set_file_cache(scope.make_mut::<Conf>(), cx),
    ),
];

/// The access logs of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    logs: Layered<AccessLog>,
    /// Whether the list is the default of a configuration without `access_log`. Its format uses variables of modules,
    /// so it is created at the end of `http`.
    is_start: bool,
    /// The block that has `off`, which empties the list; 0 if there is none.
    off_in_block: u32,
    cache: Option<FileCache>,
}

/// One `access_log`.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog {
    /// The target of the lines.
    to: LogTo,
    /// The format of a line.
    format: Arc<LogFormat>,
    /// Requests for which this is empty or `0` are not logged.
    condition: Option<Template>,
}

/// The target of an `access_log`.
#[derive(Clone, Debug)]
enum LogTo {
    /// A target that is open from the start.
    Target(TargetId),
    /// A log file whose name depends on the request.
    Named(Template),
}

impl Settings for Conf {
    fn start(start: &mut Start<'_>) -> Conf {
        let target = Target::File(start.prefix.join("logs/access.log"));
        let to = LogTo::Target(start.targets.intern(LogKind::Access, &target));
        let format = LogFormat { parts: Vec::new(), escape: LogEscape::Default };
        let log = AccessLog { to, format: Arc::new(format), condition: None };
        Conf { logs: Layered::from(vec![log]), is_start: true, ..Conf::default() }
    }
}

impl Conf {
    /// Sets the format of the default log of a configuration without `access_log`.
    fn set_default_format(&mut self, format: LogFormat) {
        let format = Arc::new(format);
        let log = |log: &AccessLog| AccessLog { format: Arc::clone(&format), ..log.clone() };
        self.logs = Layered::from(self.logs.items().iter().map(log).collect::<Vec<_>>());
        self.is_start = false;
    }

    /// Returns the access logs of the block.
    pub(crate) fn logs(&self) -> &[AccessLog] {
        self.logs.items()
    }

    /// Returns the files that are opened before privileges are dropped.
    fn files<'c>(&'c self, targets: &'c Targets) -> impl Iterator<Item = &'c Path> {
        self.logs().iter().filter_map(|log| match &log.to {
            LogTo::Target(id) => targets.get(*id).target.path(),
            LogTo::Named(_) => None,
        })
    }
}

/// Writes a request to the access logs of its location.
fn write(conf: &Conf, request: &Request) {
    let thread_config = &request.thread_config;
    for log in conf.logs() {
        if log.condition.as_ref().is_some_and(|condition| !holds(request, &request.conn.thread, condition)) {
            continue;
        }
        let line = |out: &mut Vec<u8>| log.format.render(request, out);
        match &log.to {
            LogTo::Target(id) => thread_config.sinks[id.index()].append(None, line),
            LogTo::Named(path) => {
                let path = |out: &mut Vec<u8>| path.render(request, out);
                let asker = || {
                    let mut root = Vec::new();
                    exchange::files::root_of(request, &mut root);
                    if root.is_empty() {
                        root.push(b'/');
                    }
                    Requester { root, report: request.reporter(), not_opened: refusals::later_note(request) }
                };
                thread_config.named.append(conf.cache, path, |name| rule_of(request, name), asker, line);
            }
        }
    }
}

/// Records the socket of a syslog server. Messages to other servers are datagrams, which need no TCP port.
pub(crate) fn use_socket(peer: &Peer, cx: &mut Cx<'_>) {
    if let Some(path) = peer.socket() {
        cx.path(&path.to_string_lossy(), FileUse::Connect);
    }
}

/// Whether a condition is true; as in nginx an empty value and `0` are false.
fn holds<R: HasVariables>(request: &R, thread: &Thread, condition: &Template) -> bool {
    thread.logs.with_scratch(|value| {
        condition.render(request, value);
        !matches!(value.as_slice(), b"" | b"0")
    })
}

/// Parses `off`, or a file or syslog server with a format and options.
fn add_access_log(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    conf.is_start = false;
    if text == "off" {
        if let Some(further) = cx.statement.args.get(1) {
            // A format after `off` is probably a mistake.
            return Err(cx.error(format_args!("invalid parameter \"{}\"", further.text)));
        }
        conf.off_in_block = cx.block;
        conf.logs.make_mut(cx.block).clear();
        return Ok(());
    }
    // First the target, then the format, then the options: nginx's order, so that the same error of several is reported.
    let target = match text.strip_prefix("syslog:") {
        Some(options) => {
            let peer = Peer::parse(options, &cx.http.hostname).map_err(|fault| cx.error(fault))?;
            use_socket(&peer, cx);
            Some(Target::Syslog(Arc::new(peer)))
        }
        None if text.contains('$') => None,
        // As in nginx an empty name is the standard error stream.
        None if text.is_empty() => Some(Target::Stderr),
        None => Some(Target::File(cx.path(text, FileUse::Master))),
    };
    let to = match &target {
        Some(target) => LogTo::Target(cx.http.targets.intern(LogKind::Access, target)),
        // Always below the prefix, even if the name starts with a variable.
        None => LogTo::Named(cx.template_below(cx.prefix, text, FileUse::WriteFile)?),
    };
    let mut log = AccessLog { to, format: format_of(cx)?, condition: None };
    // Buffer options may have any order, and are combined after all are read.
    let mut gather = Gather::default();
    for option in cx.statement.texts().skip(2) {
        gather.read(&mut log, option, cx)?;
    }
    if let Some(hold) = gather.hold(cx)? {
        let id = match log.to {
            LogTo::Named(_) => return Err(cx.error("buffered logs cannot have variables in name")),
            LogTo::Target(_) if matches!(target, Some(Target::Syslog(_))) => {
                return Err(cx.error("logs to syslog cannot be buffered"));
            }
            LogTo::Target(id) => id,
        };
        // All blocks share the open file, and with it the buffer.
        if !cx.http.targets.hold(id, hold) {
            let message = format_args!("access_log \"{text}\" already defined with conflicting parameters");
            return Err(cx.error(message));
        }
    }
    // As in nginx `off` overrides the other logs of the same block.
    if conf.off_in_block != cx.block {
        conf.logs.make_mut(cx.block).push(log);
    }
    Ok(())
}

/// Returns the format of an `access_log`. As in nginx, formats must be defined above their use; the case of the name is
/// ignored, and the first format of this name is used.
fn format_of(cx: &Cx<'_>) -> Result<Arc<LogFormat>, Error> {
    // The built-in format is created at each use, but only while a configuration is read.
    let is_http = cx.http.section == Section::Http;
    let name = match cx.statement.args.get(1) {
        Some(word) => word.text.as_str(),
        None if is_http => COMBINED,
        None => return Err(cx.error("log format is not specified")),
    };
    if is_http && name.eq_ignore_ascii_case(COMBINED) {
        return Ok(Arc::new(LogFormat::combined(cx.http.registry.modules())));
    }
    let formats = &cx.http.of::<Formats>().0;
    let known = formats.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let fault = || cx.undefined(Object::LogFormat, name);
    known.map(|(_, format)| Arc::clone(format)).ok_or_else(fault)
}

/// The buffering options of an `access_log`.
#[derive(Default)]
struct Gather {
    bytes: Option<u64>,
    flush: Option<Duration>,
    gzip: Option<u32>,
}

/// nginx's buffer size in bytes if only `gzip` is set.
const GZIP_BUFFER: u64 = 64 << 10;

/// Default compression level: the fastest.
const GZIP_LEVEL: u32 = 1;

impl Gather {
    /// Parses one of `buffer=`, `flush=`, `gzip`, `gzip=`, `if=`.
    fn read(&mut self, log: &mut AccessLog, option: &str, cx: &mut Cx<'_>) -> Result<(), Error> {
        if let Some(text) = option.strip_prefix("buffer=") {
            let size = value::size(text).ok().filter(|&size| size > 0);
            self.bytes = Some(size.ok_or_else(|| cx.error(format_args!("invalid buffer size \"{text}\"")))?);
        } else if let Some(text) = option.strip_prefix("flush=") {
            // Zero would flush each line, as without a buffer.
            let time = value::milliseconds(text).ok().filter(|&time| time > 0);
            let time = time.ok_or_else(|| cx.error(format_args!("invalid flush time \"{text}\"")))?;
            self.flush = Some(Duration::from_millis(time));
        } else if option == "gzip" {
            // A later `buffer=` replaces the size again.
            (self.gzip, self.bytes) = (Some(GZIP_LEVEL), self.bytes.or(Some(GZIP_BUFFER)));
        } else if let Some(text) = option.strip_prefix("gzip=") {
            let level = value::number(text).ok().filter(|level| (1..=9).contains(level));
            let level =
                level.ok_or_else(|| cx.error(format_args!("invalid compression level \"{text}\"")))?;
            (self.gzip, self.bytes) = (Some(level as u32), self.bytes.or(Some(GZIP_BUFFER)));
        } else if let Some(text) = option.strip_prefix("if=") {
            // Any text is valid, because only an empty value and `0` are false.
            log.condition = Some(cx.template(text)?);
        } else {
            return Err(cx.error(format_args!("invalid parameter \"{option}\"")));
        }
        Ok(())
    }

    /// Returns the combined options; a flush time without a buffer is an error.
    fn hold(&self, cx: &Cx<'_>) -> Result<Option<Hold>, Error> {
        let Some(bytes) = self.bytes else {
            let none = || cx.error(format_args!("no buffer is defined for access_log \"{}\"", cx.arg(0)));
            return if self.flush.is_some() { Err(none()) } else { Ok(None) };
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Some(Hold { bytes, flush: self.flush, gzip: self.gzip }))
    }
}

/// Parses `off`, or `max=` with the other options.
fn set_file_cache(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let seconds = |text| value::seconds(text).map(Duration::from_secs);
    let mut cache = FileCache {
        number: cx.http.make_mut::<LogCaches>().0 + 1,
        max: 0,
        inactive: Duration::from_secs(10),
        valid: Duration::from_secs(60),
        min_uses: 1,
    };
    // nginx parses the arguments after `off` as well, so they must be valid here too.
    let mut off = false;
    for option in cx.statement.texts() {
        let (name, text) = option.split_once('=').unwrap_or((option, ""));
        let read = match name {
            "max" => value::number(text).map(|max| cache.max = max),
            "inactive" => seconds(text).map(|time| cache.inactive = time),
            "min_uses" => value::number(text).map(|uses| cache.min_uses = uses),
            "valid" => seconds(text).map(|time| cache.valid = time),
            _ if option == "off" => {
                off = true;
                Ok(())
            }
            _ => Err(value::ValueError::Invalid),
        };
        read.map_err(|_| cx.error(format_args!("invalid \"open_log_file_cache\" parameter \"{option}\"")))?;
    }
    if !off && cache.max == 0 {
        return Err(cx.error("\"open_log_file_cache\" must have \"max\" parameter"));
    }
    // As in nginx each directive opens separate files; blocks that inherit it share the files.
    cx.http.make_mut::<LogCaches>().0 += u32::from(!off);
    conf.cache = (!off).then_some(cache);
    Ok(())
}

/// The `log_format` directives with their names, in the order of the configuration.
#[derive(Default)]
struct Formats(Vec<(String, Arc<LogFormat>)>);

/// Number of `open_log_file_cache` directives.
#[derive(Default)]
struct LogCaches(u32);

/// nginx's built-in format.
const COMBINED: &str = "combined";

/// Parses `log_format name [escape=…] text …`: the texts are joined without spaces.
fn add_format(cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    let is_builtin = cx.http.section == Section::Http && name == COMBINED;
    if is_builtin || cx.http.of::<Formats>().0.iter().any(|(known, _)| known == name) {
        return Err(cx.error(format_args!("duplicate \"log_format\" name \"{name}\"")));
    }
    let mut texts: Vec<&str> = cx.statement.texts().skip(1).collect();
    let mut escape = LogEscape::Default;
    // Only the first argument can be the option; a later text that begins in the same way is a text.
    if let Some(text) = texts[0].strip_prefix("escape=") {
        let known = LogEscape::NAMES.iter().find(|(name, _)| *name == text);
        let fault = || cx.error(format_args!("unknown log format escaping \"{text}\""));
        escape = known.ok_or_else(fault)?.1;
        texts.remove(0);
    }
    // Each argument is parsed separately, because a variable name ends with its argument.
    let mut parts = Vec::new();
    for text in texts {
        read_parts(text, &mut parts, cx)?;
    }
    let format = LogFormat { parts, escape };
    cx.http.make_mut::<Formats>().0.push((name.to_owned(), Arc::new(format)));
    Ok(())
}

/// Parses the text and variables of one argument.
fn read_parts(text: &str, parts: &mut Vec<Part>, cx: &mut Cx<'_>) -> Result<(), Error> {
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        if dollar > 0 {
            parts.push(Part::Text(rest[..dollar].into()));
        }
        let after = &rest[dollar + 1..];
        let (name, len) = variable_name(after).map_err(|fault| match fault {
            site::template::NameFault::Missing => {
                cx.error(format_args!("invalid parameter \"{}\"", &rest[dollar..]))
            }
            unclosed => cx.error(unclosed),
        })?;
        // Whether the variable exists is known only after the complete configuration was read, because `set` may follow.
        let variable = cx.http.registry.reference(name, cx.statement);
        // nginx does not support groups here, because they would refer to any last match.
        if matches!(variable, VarRef::Capture(_)) {
            return Err(cx.undefined(Object::Variable, name));
        }
        parts.push(Part::of(variable));
        rest = &after[len..];
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.into()));
    }
    Ok(())
}

/// A `log_format`.
#[derive(Debug)]
pub(crate) struct LogFormat {
    parts: Vec<Part>,
    escape: LogEscape,
}

/// A part of a format.
#[derive(Debug)]
enum Part {
    Text(Box<str>),
    Variable(VarRef),
    /// A variable whose values never need escapes.
    Plain(VarRef),
}

/// Variables whose values have only digits, letters, and characters such as `.`, `:` and `/`.
const PLAIN: &[&str] = &[
    "body_bytes_sent",
    "bytes_sent",
    "connection",
    "connection_requests",
    "msec",
    "remote_addr",
    "remote_port",
    "request_length",
    "request_time",
    "server_port",
    "status",
    "time_iso8601",
    "time_local",
];

impl Part {
    fn of(variable: VarRef) -> Part {
        match &variable {
            // The configuration cannot assign another value to these.
            VarRef::Module(_) if variable.module_name().is_some_and(|name| PLAIN.contains(&name)) => {
                Part::Plain(variable)
            }
            _ => Part::Variable(variable),
        }
    }
}

/// `escape=`: how bytes are escaped that could break a line or a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogEscape {
    /// `"`, `\`, and characters other than printable ASCII become `\xXX`; a missing value becomes `-`.
    Default,
    /// As in JSON strings; a missing value is empty. Bytes that are not UTF-8 become the text `\xXX`.
    Json,
    /// Values are unchanged; a missing value is empty.
    None,
}

impl LogEscape {
    const NAMES: [(&'static str, LogEscape); 3] =
        [("default", LogEscape::Default), ("json", LogEscape::Json), ("none", LogEscape::None)];

    /// Returns by how many bytes a byte grows. Non-ASCII bytes are unchanged in JSON, where UTF-8 is valid.
    fn growth(self, byte: u8) -> usize {
        match (self, byte) {
            (LogEscape::Default, b'"' | b'\\' | 0..0x20 | 0x7f..) => 3,
            (LogEscape::Json, b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c) => 1,
            (LogEscape::Json, 0..0x20) => 5,
            _ => 0,
        }
    }
}

impl LogFormat {
    /// Returns nginx's built-in format.
    fn combined(variables: &VariableNames) -> LogFormat {
        let text = |text: &str| Part::Text(text.into());
        let variable = |name: &str| Part::of(variables.named(name).expect("the modules have it"));
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
    pub(crate) fn render<R: HasVariables>(&self, request: &R, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Plain(variable) => {
                    let start = out.len();
                    if !variable.value(request, out) && self.escape == LogEscape::Default {
                        out.push(b'-');
                    }
                    debug_assert_eq!(http::find_escapable(out, start), out.len(), "{variable:?} is plain");
                }
                Part::Variable(variable) => {
                    // The value is rendered into the line and escaped in place, so that most values are copied only
                    // once.
                    let start = out.len();
                    let found = variable.value(request, out);
                    // A dash, so that the columns of a line keep their positions.
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

/// Escapes the text in `out` from `start` on, in place, without further memory.
fn escape_tail(escape: LogEscape, start: usize, out: &mut Vec<u8>) {
    // Nearly all values need no escapes in any form. They are scanned once, eight bytes at a time, and not moved.
    let start = http::find_escapable(out, start);
    if escape == LogEscape::Json && str::from_utf8(&out[start..]).is_err() {
        replace_invalid(start, out);
    }
    let Some(first) = out[start..].iter().position(|&byte| escape.growth(byte) > 0) else { return };
    let first = start + first;
    // Counted first, so that the line grows only once.
    let growth: usize = out[first..].iter().map(|&byte| escape.growth(byte)).sum();
    let (mut from, mut to) = (out.len(), out.len() + growth);
    out.resize(to, 0);
    // From the end, so that no byte is overwritten before it was moved.
    while from > first {
        from -= 1;
        let byte = out[from];
        let len = 1 + escape.growth(byte);
        debug_assert!(
            from + len <= to,
            "escaped bytes are never written over bytes that are still to be read"
        );
        to -= len;
        match len {
            // The length identifies the form: these are the lengths that `growth` returns.
            1 => out[to] = byte,
            2 => out[to..to + 2].copy_from_slice(&[b'\\', json_letter(byte)]),
            4 => out[to..to + 4].copy_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte & 15)]),
            _ => {
                let digits = [b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)];
                out[to..to + 6].copy_from_slice(&digits);
            }
        }
    }
}

/// Replaces bytes from `start` on that are not UTF-8, which JSON cannot contain, by text. The new text is built behind the old one,
/// without separate memory.
fn replace_invalid(start: usize, out: &mut Vec<u8>) {
    let (mut from, end) = (start, out.len());
    while let Err(error) = str::from_utf8(&out[from..end]) {
        let first = from + error.valid_up_to();
        let next = error.error_len().map_or(end, |len| first + len);
        out.extend_from_within(from..first);
        for at in first..next {
            let byte = out[at];
            out.extend_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte & 15)]);
        }
        from = next;
    }
    out.extend_from_within(from..end);
    debug_assert!(start <= from && from <= end, "the valid bytes are at the end of the text");
    out.drain(start..end);
}

/// Returns the character after the backslash if JSON has a short form.
fn json_letter(byte: u8) -> u8 {
    match byte {
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        quoted => quoted,
    }
}

/// Returns an upper-case digit, as nginx does.
fn hex(digit: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(digit)]
}

#[cfg(test)]
mod tests {
    mod allocations;

    use super::*;
    use crate::testing::{error, load, loaded, warnings};

    type Shown = (String, Option<Hold>, bool);

    fn logs_of(http: &str) -> Vec<Shown> {
        let config = loaded(http);
        let root = config.server(site::config::ServerId(0)).root;
        let logs = config.location(root).scope.of::<Conf>().logs().iter();
        logs.map(|log| {
            let (to, hold) = match &log.to {
                LogTo::Target(id) => {
                    let spec = config.http.targets.get(*id);
                    (spec.target.to_string(), spec.hold)
                }
                LogTo::Named(path) => (format!("{path:?}"), None),
            };
            (to, hold, log.condition.is_some())
        })
        .collect()
    }

    #[test]
    fn logs_replace_inherited_ones_and_off_disables_them() {
        let plain = |path: &str| (path.to_owned(), None, false);
        assert_eq!(logs_of("server {}"), [plain("/prefix/logs/access.log")]);
        assert_eq!(logs_of("access_log a; server {}"), [plain("/prefix/a")]);
        assert_eq!(
            logs_of("access_log a; server { access_log /b; access_log c; }"),
            [plain("/b"), plain("/prefix/c")]
        );
        assert_eq!(logs_of("access_log a; server { access_log off; }"), []);
        assert_eq!(logs_of("server { access_log off; access_log a; }"), []);
        assert_eq!(load("http { log_format a '$request'; server { access_log x a; } }").err(), None);
        let files = loaded("server { access_log /b; location /x { access_log /c; } }").log_files();
        assert_eq!(files, ["/b", "/c"].map(std::path::PathBuf::from));
        assert_eq!(logs_of("server { access_log ''; }"), [plain("stderr")]);
        assert_eq!(
            logs_of("server { access_log syslog:server=127.0.0.1:99,tag=x; }"),
            [plain("syslog:127.0.0.1:99")]
        );
    }

    #[test]
    fn the_case_of_format_names_is_ignored_and_the_first_is_used() {
        let used = |name: &str| {
            let config = loaded(&format!(
                "log_format Main first; log_format main second; log_format COMBINED third;
                 server {{ access_log a {name}; }}"
            ));
            let root = config.server(site::config::ServerId(0)).root;
            format!("{:?}", config.location(root).scope.of::<Conf>().logs()[0].format.parts)
        };
        let first = used("Main");
        assert!(first.contains("first"), "{first}");
        assert_eq!((used("main"), used("MAIN")), (first.clone(), first));
        assert_eq!(used("COMBINED"), used("combined"));
    }

    #[test]
    fn lines_are_buffered_as_the_options_specify() {
        let hold = |bytes, flush_ms: Option<u64>, gzip| {
            Some(Hold { bytes, flush: flush_ms.map(Duration::from_millis), gzip })
        };
        for (options, expected) in [
            ("buffer=32k flush=1m if=$arg_log", hold(32 << 10, Some(60_000), None)),
            ("gzip", hold(64 << 10, None, Some(1))),
            ("gzip=9 buffer=1k", hold(1 << 10, None, Some(9))),
            ("buffer=1k gzip flush=5", hold(1 << 10, Some(5000), Some(1))),
            ("if=1", None),
        ] {
            let logs = logs_of(&format!("server {{ access_log /a combined {options}; }}"));
            let conditional = options.contains("if=");
            assert_eq!(logs, [("/a".to_owned(), expected, conditional)], "{options}");
        }
        // A file has only one buffer, whichever directives name it.
        let shared = logs_of("access_log /a combined buffer=1k; server { access_log /a; }");
        assert_eq!(shared[0].1, hold(1 << 10, None, None));
    }

    #[test]
    fn log_names_with_variables_are_relative_to_the_prefix() {
        let path = |http: &str| logs_of(http)[0].0.clone();
        assert!(path("server { access_log $host.log; }").contains("\"/prefix/\""));
        assert!(path("server { access_log /logs/$host.log; }").contains("\"/logs/\""));
        assert_eq!(
            loaded("server { access_log /logs/$host.log; }").log_files(),
            Vec::<std::path::PathBuf>::new()
        );
    }

    #[test]
    fn file_caches_are_inherited_and_can_be_off() {
        let cache = |http: &str| {
            let config = loaded(http);
            let root = config.server(site::config::ServerId(0)).root;
            config.location(root).scope.of::<Conf>().cache
        };
        let seconds = Duration::from_secs;
        assert_eq!(cache("server {}"), None);
        let default = FileCache { number: 1, max: 5, inactive: seconds(10), valid: seconds(60), min_uses: 1 };
        assert_eq!(cache("open_log_file_cache max=5; server {}"), Some(default));
        let other = FileCache { number: 2, max: 7, inactive: seconds(20), valid: seconds(60), min_uses: 2 };
        let text = "open_log_file_cache max=5; server { open_log_file_cache max=7 inactive=20s valid=1m min_uses=2; }";
        assert_eq!(cache(text), Some(other));
        assert_eq!(cache("open_log_file_cache max=5; server { open_log_file_cache off; }"), None);
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
            ("access_log $host.log combined gzip;", "buffered logs cannot have variables in name"),
            ("access_log syslog:server=127.0.0.1 combined gzip;", "logs to syslog cannot be buffered"),
            ("access_log syslog:tag=a;", "no syslog server specified"),
            ("access_log a combined gzip=0;", "invalid compression level \"0\""),
            ("access_log a combined gzip=10;", "invalid compression level \"10\""),
            ("access_log a combined gzipx;", "invalid parameter \"gzipx\""),
            (
                "access_log a combined buffer=1k; server { access_log a combined buffer=1k gzip; }",
                "access_log \"a\" already defined with conflicting parameters",
            ),
            ("open_log_file_cache inactive=1;", "\"open_log_file_cache\" must have \"max\" parameter"),
            ("open_log_file_cache max=x;", "invalid \"open_log_file_cache\" parameter \"max=x\""),
            ("open_log_file_cache max=1 valid=x;", "invalid \"open_log_file_cache\" parameter \"valid=x\""),
            ("open_log_file_cache foo;", "invalid \"open_log_file_cache\" parameter \"foo\""),
            (
                "open_log_file_cache off; open_log_file_cache off;",
                "\"open_log_file_cache\" directive is duplicate",
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
            ("log_format a $1;", "unknown \"1\" variable"),
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

    /// nginx writes such bytes unchanged, and parsers refuse the line.
    #[test]
    fn json_has_no_bytes_that_are_not_utf_8() {
        for (value, expected) in
            [(&b"a\xff"[..], "> a\\\\xFF"), (b"\xc3\xa4 \xe4\n\xf0\x9f\"", r#"> ä \\xE4\n\\xF0\\x9F\""#)]
        {
            let mut out = b"> ".to_vec();
            out.extend_from_slice(value);
            escape_tail(LogEscape::Json, 2, &mut out);
            let found = String::from_utf8(out).expect("JSON is UTF-8");
            assert_eq!(found, expected);
        }
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
