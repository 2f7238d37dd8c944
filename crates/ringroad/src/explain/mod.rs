//! `ringroad explain URL`: explains how a configuration would handle one request. The configuration is that of a file
//! or of a running server.
//!
//! The request passes the real course of a request: the same phases, handlers and filters as one of a client
//! (`server::rehearse`). Only the text of the configuration is read here, for the positions of directives. No server is
//! started or contacted; a request to an upstream is described instead of made. For a running server,
//! [`Explained::entry_query`] is the query to its cache.

mod course;
mod handler;
mod readable;

use std::fmt::Write;
use std::net::IpAddr;

use conf::Statement;
use serde_json::{Value, json};

use crate::adapter::{self, Config, EntryQuery, Question, Reread, Site};

/// The request to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) url: String,
    /// Client address.
    pub(crate) from: String,
    pub(crate) method: String,
    /// Header fields; names are in lower case.
    pub(crate) fields: Vec<(String, String)>,
    /// Whether the request is one of HTTP/3.
    pub(crate) http3: bool,
}

/// The error about a request of HTTP/3 with a URL of `http`.
const NEEDS_TLS: &str = "HTTP/3 always uses TLS: write https:// in the URL";

impl Query {
    /// Returns what is wrong with the query, whatever the configuration is.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.parse().map(|_| ())
    }

    /// Returns the URL and the address of the client.
    fn parse(&self) -> Result<(Url, IpAddr), String> {
        let (text, from) = (&self.url, &self.from);
        let url = Url::parse(text)
            .ok_or_else(|| format!("\"{text}\" is not a URL; write http://HOST[:PORT]/PATH or https://…"))?;
        if url.scheme == "http" && self.http3 {
            return Err(NEEDS_TLS.to_owned());
        }
        let from = from.parse().map_err(|_| format!("\"{from}\" is not an IP address"))?;
        Ok((url, from))
    }

    /// Encodes the query for the admin socket.
    pub(crate) fn to_json(&self) -> Value {
        let Query { url, from, method, fields, http3 } = self;
        json!({
            "command": "explain", "url": url, "from": from, "method": method, "fields": fields, "http3": http3
        })
    }

    /// Decodes the output of [`Query::to_json`].
    pub(crate) fn from_json(value: &Value) -> Query {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = value["fields"].as_array().into_iter().flatten();
        Query {
            url: text(&value["url"]),
            from: text(&value["from"]),
            method: text(&value["method"]),
            fields: fields.map(|field| (text(&field[0]), text(&field[1]))).collect(),
            http3: value["http3"].as_bool().unwrap_or_default(),
        }
    }
}

/// The explanation of a request.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    /// The lines of the explanation.
    pub(crate) text: String,
    /// The query for the cache entry of the request, if its key is known.
    pub(crate) entry_query: Option<EntryQuery>,
}

/// The parsed URL.
struct Url {
    scheme: &'static str,
    /// Host without the port.
    host: String,
    port: u16,
    target: String,
}

impl Url {
    /// Parses `http://host:port/path?query`; other URLs are not accepted.
    fn parse(text: &str) -> Option<Url> {
        let (scheme, rest, default) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => ("http", rest, 80),
            (_, Some(rest)) => ("https", rest, 443),
            _ => return None,
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = split_port(authority);
        let port = if port.is_empty() { default } else { port.parse().ok()? };
        if host.is_empty() {
            return None;
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Some(Url { scheme, host: host.to_owned(), port, target })
    }

    /// Returns a host with the port, unless it is the default port of the scheme.
    fn with_port(&self, host: &str) -> String {
        match (self.scheme, self.port) {
            ("http", 80) | ("https", 443) => host.to_owned(),
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Returns the host as an address, if it is an IP address.
    fn ip(&self) -> Option<IpAddr> {
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// Splits `host:port`, `[::1]:port`, or a host alone.
fn split_port(authority: &str) -> (&str, &str) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    }
}

/// The blocks that enclose the position of a request, from `http` to the innermost.
pub(super) struct Blocks<'t> {
    pub(super) chain: Vec<&'t Statement>,
    /// The complete `http` block, for upstream groups.
    pub(super) http: &'t Statement,
}

impl<'t> Blocks<'t> {
    /// Returns the directives with these names that are in effect: those of the innermost block that has any.
    pub(super) fn holding(&self, names: &[&str]) -> Vec<&'t Statement> {
        let of = |block: &&'t Statement| -> Vec<&'t Statement> {
            block.children().iter().filter(|child| names.contains(&child.name.text.as_str())).collect()
        };
        self.chain.iter().rev().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Returns the directive with this name that is in effect.
    pub(super) fn one(&self, name: &str) -> Option<&'t Statement> {
        self.holding(&[name]).last().copied()
    }

    /// Returns the position of the innermost block.
    pub(super) fn span(&self) -> String {
        self.chain.last().map(|block| block.span().to_string()).unwrap_or_default()
    }

    /// Returns the first directive with one of these names in the innermost block.
    pub(super) fn own(&self, names: &[&str]) -> Option<&'t Statement> {
        let children = self.chain.last()?.children();
        children.iter().find(|child| names.contains(&child.name.text.as_str()))
    }
}

/// Labelled lines of the explanation.
#[derive(Default)]
pub(super) struct Report {
    text: String,
    entry_query: Option<EntryQuery>,
    /// Whether lines are about a subrequest.
    is_subrequest: bool,
}

impl Report {
    /// Adds a line; several consecutive lines may share a label.
    pub(super) fn line(&mut self, label: &str, text: impl std::fmt::Display) {
        let about = if self.is_subrequest { "subrequest: " } else { "" };
        let _infallible = writeln!(self.text, "{label:<10} {about}{text}");
    }

    fn end(self) -> Explained {
        Explained { text: self.text, entry_query: self.entry_query }
    }
}

/// Appends the lines about a cache entry.
pub(crate) fn add_cached(text: &mut String, lines: &[String]) {
    for (number, line) in lines.iter().enumerate() {
        let label = if number == 0 { "stored" } else { "" };
        let _infallible = writeln!(text, "{label:<10} {line}");
    }
}

/// Explains one request to the configuration of these files. `prepare` drops privileges that only the reading of the files needs.
pub(crate) fn explain(
    site: &Site,
    files: Reread<'_>,
    tree: &conf::Tree,
    query: &Query,
    prepare: impl FnOnce(&Config) -> Result<(), String>,
) -> Result<Explained, String> {
    let (url, from) = query.parse()?;
    let mut fields = query.fields.clone();
    if !fields.iter().any(|(name, _)| name == "host") {
        fields.insert(0, ("host".to_owned(), url.with_port(&url.host)));
    }
    let named = fields.iter().find(|(name, _)| name == "host").map_or("", |(_, host)| split_port(host).0);
    let host = named.to_ascii_lowercase();
    let mut report = Report::default();
    let shown = url.with_port(&host);
    let (method, scheme, target) = (&query.method, url.scheme, &url.target);
    report.line("request", format_args!("{method} {scheme}://{shown}{target} from {from}"));
    let route = adapter::route(&site.config, url.ip(), url.port, host.as_bytes(), query.http3)?;
    let protocol = match (route.is_quic, route.is_tls) {
        (true, _) => ", HTTP/3",
        (false, true) => ", TLS",
        (false, false) => "",
    };
    report.line("listener", format_args!("{}{protocol}", route.listener));
    // The only listener of the address may be one of QUIC.
    if url.scheme == "http" && route.is_quic {
        return Err(NEEDS_TLS.to_owned());
    }
    if url.scheme == "https" && !route.is_tls {
        report.line("", "this address does not use TLS");
        return Ok(report.end());
    }
    let question = Question {
        method: method.clone(),
        target: target.clone(),
        fields: fields.clone(),
        from,
        to: route.local,
        tls_name: (url.scheme == "https").then(|| host.clone()),
        is_quic: route.is_quic,
    };
    let reader = readable::FileReader::of(site);
    let (config, course) = adapter::rehearse(files, &question, prepare)?;
    let https: Vec<&Statement> =
        tree.statements.iter().filter(|statement| statement.name.text == "http").collect();
    let mut servers =
        https.iter().flat_map(|http| named_blocks(http, "server").map(move |server| (*http, server)));
    let (http, server) = servers.nth(course.server.0 as usize).ok_or("the server is not in the text")?;
    report.line("server", server_line(server, &host, route.is_named));
    let mut story =
        course::Story { site, config: &config, course: &course, question: &question, reader, http, server };
    story.tell(&mut report);
    Ok(report.end())
}

/// Returns the child blocks with this name.
pub(super) fn named_blocks<'t>(
    block: &'t Statement,
    name: &'static str,
) -> impl Iterator<Item = &'t Statement> {
    block.children().iter().filter(move |child| child.name.text == name)
}

/// Returns the line about the server, with the reason for its selection.
fn server_line(server: &Statement, host: &str, is_named: bool) -> String {
    let names: Vec<&str> = named_blocks(server, "server_name").flat_map(Statement::texts).collect();
    let shown = names.first().copied().filter(|name| !name.is_empty()).unwrap_or("_");
    let is = |test: &dyn Fn(&str) -> bool| names.iter().copied().find(|name| test(name));
    let exact = is(&|name| {
        name.eq_ignore_ascii_case(host) || name.strip_prefix('.').is_some_and(|name| name == host)
    });
    let head = is(&|name| {
        name.trim_start_matches('*').starts_with('.') && host.ends_with(name.trim_start_matches('*'))
    });
    let tail = is(&|name| name.strip_suffix('*').is_some_and(|name| host.starts_with(name)));
    let why = match (is_named, exact, head, tail) {
        (_, Some(name), ..) => format!("exact name \"{name}\""),
        (_, _, Some(name), _) | (_, _, _, Some(name)) => format!("wildcard \"{name}\""),
        (true, ..) => "a regular expression of server_name matches".to_owned(),
        (false, ..) => "the default server of this listener".to_owned(),
    };
    format!("{shown} at {}: {why}", server.span())
}

/// Enters the blocks of a location, which are identified by the text after `location`.
pub(super) fn enter<'t>(blocks: &mut Blocks<'t>, names: &[String]) {
    let compact = |text: &str| text.replace(char::is_whitespace, "");
    for name in names {
        let Some(around) = blocks.chain.last().copied() else { return };
        let is_it =
            |location: &&'t Statement| compact(&location.texts().collect::<String>()) == compact(name);
        match named_blocks(around, "location").find(is_it) {
            Some(location) => blocks.chain.push(location),
            None => return,
        }
    }
}

/// Reports the location with the reason for its selection, and the other candidates.
pub(super) fn location_lines(blocks: &Blocks<'_>, found: &adapter::FoundLocation, report: &mut Report) {
    use adapter::Candidate::{Exact, NoMatch, Pattern, Predicate, Prefix};
    match (found.chain.last(), found.how) {
        (Some(name), how) => {
            let why = match how {
                Some(Exact) => "an exact match",
                Some(Prefix { skips_regex: true }) => "the longest prefix, and ^~ skips regular expressions",
                Some(Pattern) => "the first regular expression that matches",
                _ => "the longest prefix",
            };
            let found = blocks.chain.last().map(|block| block.span().to_string()).unwrap_or_default();
            report.line("location", format_args!("{name} at {found}: {why}"));
        }
        (None, _) => report.line("location", "none: the settings of the server apply"),
    }
    for (name, candidate) in &found.losers {
        let why = match candidate {
            Exact | Prefix { .. } => match found.how {
                Some(Pattern) => "a prefix; a matching regular expression has precedence",
                _ => "a shorter prefix",
            },
            Pattern => match found.how {
                Some(Exact | Prefix { skips_regex: true }) => "a regular expression that is not evaluated",
                _ => "matches too, but is after the selected one",
            },
            NoMatch => "does not match",
            Predicate => "depends on a variable",
        };
        report.line("", format_args!("not {name}: {why}"));
    }
}
