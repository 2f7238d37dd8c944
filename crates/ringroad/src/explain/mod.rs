//! `ringroad explain URL`: explains how a configuration would handle one request. The configuration is that of a file
//! or of a running server.
//!
//! Listener, server and location are selected with the same tables as for requests. The remaining lines follow from the
//! directives in effect: rewriting, access, the handler, the cache. Variables that depend on more than the request are
//! unknown here, and lines that depend on them are marked. No server is started or contacted. For a running server,
//! [`Explained::entry_query`] is the query to its cache.

mod handler;
mod readable;
mod script;
mod values;

use std::fmt::Write;
use std::net::IpAddr;

use conf::Statement;
use serde_json::{Value, json};

use self::script::End;
use self::values::Values;
use crate::adapter::{self, EntryQuery, Site};

/// Maximum number of location searches for one request, as in nginx.
const CYCLES_MAX: usize = 10;

/// The request to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) url: String,
    /// Client address.
    pub(crate) from: String,
    pub(crate) method: String,
    /// Header fields; names are in lower case.
    pub(crate) fields: Vec<(String, String)>,
}

impl Query {
    /// Encodes the query for the admin socket.
    pub(crate) fn to_json(&self) -> Value {
        let Query { url, from, method, fields } = self;
        json!({ "command": "explain", "url": url, "from": from, "method": method, "fields": fields })
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
}

impl Report {
    /// Adds a line; several consecutive lines may share a label.
    pub(super) fn line(&mut self, label: &str, text: impl std::fmt::Display) {
        let _infallible = writeln!(self.text, "{label:<10} {text}");
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

/// Explains one request.
pub(crate) fn explain(site: &Site, tree: &conf::Tree, query: &Query) -> Result<Explained, String> {
    let text = &query.url;
    let url = Url::parse(text)
        .ok_or_else(|| format!("\"{text}\" is not a URL; write http://HOST[:PORT]/PATH or https://…"))?;
    let from: IpAddr = query.from.parse().map_err(|_| format!("\"{}\" is not an IP address", query.from))?;
    let fields = query.fields.clone();
    let host = fields
        .iter()
        .find(|(name, _)| name == "host")
        .map_or(url.host.as_str(), |(_, host)| split_port(host).0);
    let (path, args) = adapter::path_and_query(url.target.as_bytes())?;
    let values = Values {
        method: query.method.clone(),
        scheme: url.scheme,
        host: host.to_ascii_lowercase(),
        port: url.port,
        target: url.target.clone(),
        from,
        fields,
        uri: String::from_utf8_lossy(&path).into_owned(),
        args: String::from_utf8_lossy(&args).into_owned(),
    };
    follow(site, tree, &url, values)
}

/// Follows the request through the configuration.
fn follow(site: &Site, tree: &conf::Tree, url: &Url, mut values: Values) -> Result<Explained, String> {
    let mut report = Report::default();
    report.line(
        "request",
        format_args!(
            "{} {}://{}{} from {}",
            values.method,
            values.scheme,
            url.with_port(&values.host),
            values.target,
            values.from
        ),
    );
    let route = adapter::route(&site.config, url.ip(), url.port, values.host.as_bytes())?;
    let tls = if route.is_tls { ", TLS" } else { "" };
    report.line("listener", format_args!("{}{tls}", route.listener));
    if route.is_tls != (url.scheme == "https") {
        let outcome = if route.is_tls {
            "responds with 400: plain HTTP was sent to a TLS port"
        } else {
            "does not use TLS"
        };
        report.line("", format_args!("this address {outcome}"));
        return Ok(report.end());
    }
    let https: Vec<&Statement> =
        tree.statements.iter().filter(|statement| statement.name.text == "http").collect();
    let mut servers = https.iter().flat_map(|http| named(http, "server").map(move |server| (*http, server)));
    let (http, server) = servers.nth(route.server).ok_or("the server is not in the text")?;
    report.line("server", server_line(server, &values.host, route.is_named));
    let mut blocks = Blocks { chain: vec![http, server], http };
    match script::run(&blocks, &mut values, &mut report) {
        End::Response => return Ok(report.end()),
        End::Next | End::Break | End::Again | End::Block(_) => {}
    }
    for _ in 0..CYCLES_MAX {
        let place = adapter::find_location(&site.config, route.server, values.uri.as_bytes())?;
        blocks.chain.truncate(2);
        enter(&mut blocks, &place);
        location_lines(&blocks, &place, &mut report);
        match script::run(&blocks, &mut values, &mut report) {
            End::Response => return Ok(report.end()),
            End::Again => continue,
            End::Block(block) => blocks.chain.push(block),
            End::Next | End::Break => {}
        }
        handler::lines(site, &blocks, &place, &values, &mut report);
        return Ok(report.end());
    }
    report.line("", format_args!("500: the URI changed more than {CYCLES_MAX} times"));
    Ok(report.end())
}

/// Returns the child blocks with this name.
pub(super) fn named<'t>(block: &'t Statement, name: &'static str) -> impl Iterator<Item = &'t Statement> {
    block.children().iter().filter(move |child| child.name.text == name)
}

/// Returns the line about the server, with the reason for its selection.
fn server_line(server: &Statement, host: &str, is_named: bool) -> String {
    let names: Vec<&str> = named(server, "server_name").flat_map(Statement::texts).collect();
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
fn enter<'t>(blocks: &mut Blocks<'t>, found: &adapter::FoundLocation) {
    let compact = |text: &str| text.replace(char::is_whitespace, "");
    for name in &found.chain {
        let Some(around) = blocks.chain.last().copied() else { return };
        let is_it =
            |location: &&'t Statement| compact(&location.texts().collect::<String>()) == compact(name);
        match named(around, "location").find(is_it) {
            Some(location) => blocks.chain.push(location),
            None => return,
        }
    }
}

/// Reports the location with the reason for its selection, and the other candidates.
fn location_lines(blocks: &Blocks<'_>, found: &adapter::FoundLocation, report: &mut Report) {
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
    if found.has_predicates {
        report.line("", "locations whose selection depends on a variable were not considered");
    }
}
