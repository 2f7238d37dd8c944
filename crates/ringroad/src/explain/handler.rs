//! Explains the source of the response in a location: access, `try_files`, the file or the upstream, the cache.

use std::path::{Path, PathBuf};

use conf::Statement;

use super::values::{Expanded, Values};
use super::{Blocks, Report, named, readable};
use crate::adapter::{self, EntryQuery, FoundLocation, Site};

/// Directives that pass a request to an upstream.
const PASSES: [&str; 7] =
    ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass", "tunnel_pass"];

/// Directives that generate the response of a location.
const PAGES: [&str; 7] =
    ["stub_status", "metrics", "api", "dashboard", "health", "empty_gif", "cache_counters"];

/// Reports the lines that follow the line of the location.
pub(super) fn lines(
    site: &Site,
    blocks: &Blocks<'_>,
    found: &FoundLocation,
    values: &Values,
    report: &mut Report,
) {
    access(blocks, values, report);
    for name in ["limit_req", "limit_conn", "auth_basic", "auth_request"] {
        for statement in
            blocks.holding(&[name]).into_iter().filter(|statement| statement.arg(0) != Some("off"))
        {
            report.line("access", format_args!("{} at {}", written(statement), statement.span()));
        }
    }
    let try_files = blocks.own(&["try_files"]);
    if let Some(pass) = blocks.own(&PASSES).filter(|_| try_files.is_none()) {
        return passed(blocks, pass, values, report);
    }
    if let Some(page) = blocks.own(&PAGES) {
        return report.line("handler", format_args!("{} at {}", written(page), page.span()));
    }
    let root = match try_files {
        Some(statement) => match tried(site, blocks, statement, values, report) {
            Some(path) => path,
            None => return,
        },
        None => match file_of(site, blocks, &values.uri, values) {
            Ok(path) => path,
            Err(unknown) => return report.line("file", unknown),
        },
    };
    if let Some(pass) = blocks.own(&PASSES) {
        return passed(blocks, pass, values, report);
    }
    file(site, blocks, found, &root, report);
}

/// Returns a directive in its original notation.
fn written(statement: &Statement) -> String {
    let words = [statement.name.text.as_str()].into_iter().chain(statement.texts());
    words.collect::<Vec<_>>().join(" ")
}

/// Reports the first rule that matches the client's address.
fn access(blocks: &Blocks<'_>, values: &Values, report: &mut Report) {
    let rules = blocks.holding(&["allow", "deny"]);
    let first =
        rules.into_iter().find(|rule| rule.arg(0).is_some_and(|rule| adapter::covers(rule, values.from)));
    if let Some(rule) = first {
        let outcome =
            if rule.name.text == "deny" { ": 403, unless \"satisfy any\" permits the request" } else { "" };
        report.line("access", format_args!("{} at {}{outcome}", written(rule), rule.span()));
    }
}

/// Returns the file of a URI, by `alias` or `root`.
fn file_of(site: &Site, blocks: &Blocks<'_>, uri: &str, values: &Values) -> Result<PathBuf, String> {
    let prefix = &site.config.http.prefix;
    let prefix = PathBuf::from(String::from_utf8_lossy(prefix).into_owned());
    let found = blocks.holding(&["root", "alias"]).last().copied();
    let folder = found.and_then(|statement| statement.arg(0)).unwrap_or("html");
    let folder = values.expand(folder, &[]);
    if !folder.is_known {
        return Err(format!("below \"{}\", which contains variables that are not known here", folder.text));
    }
    let rest = match found.filter(|statement| statement.name.text == "alias") {
        Some(_) => {
            let location =
                blocks.chain.last().and_then(|block| block.args.last()).map(|word| word.text.as_str());
            uri.strip_prefix(location.unwrap_or_default()).unwrap_or_default()
        }
        None => uri.trim_start_matches('/'),
    };
    Ok(prefix.join(folder.text).join(rest.trim_start_matches('/')))
}

/// Returns the file that `try_files` finds; `None` if the response is already explained.
fn tried(
    site: &Site,
    blocks: &Blocks<'_>,
    statement: &Statement,
    values: &Values,
    report: &mut Report,
) -> Option<PathBuf> {
    let texts: Vec<&str> = statement.texts().collect();
    let (last, files) = texts.split_last()?;
    for text in files {
        let name = values.expand(text, &[]);
        let path = file_of(site, blocks, &name.text, values);
        let (true, Ok(path)) = (name.is_known, path) else {
            report.line("try_files", format_args!("{text}: contains variables that are not known here"));
            return None;
        };
        let is_there = if text.ends_with('/') { path.is_dir() } else { path.is_file() };
        let there = if is_there { "exists" } else { "does not exist" };
        report.line("try_files", format_args!("{text}: {} {there}", path.display()));
        if is_there {
            return Some(path);
        }
    }
    let outcome = match last.as_bytes().first() {
        Some(b'=') => format!("response {}", &last[1..]),
        Some(b'@') => format!("continues in location {last}"),
        _ => format!("continues with the URI {}", values.expand(last, &[]).text),
    };
    report.line("try_files", format_args!("{last}: {outcome}"));
    None
}

/// Reports the file with its engine, or the handler of a directory.
fn file(site: &Site, blocks: &Blocks<'_>, found: &FoundLocation, path: &Path, report: &mut Report) {
    let metadata = std::fs::metadata(path);
    if let Some(obstacle) = metadata.is_ok().then(|| readable::obstacle(site, path)).flatten() {
        return report.line("file", obstacle);
    }
    if let Err(error) = &metadata
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return report.line("file", format_args!("{} cannot be read by this user: 403", path.display()));
    }
    if let Ok(meta) = metadata.as_ref()
        && meta.is_file()
    {
        let (bytes, mover) = (meta.len(), adapter::mover(&site.config, found, meta.len()));
        report.line("file", format_args!("{}, {bytes} bytes, sent by {mover}", path.display()));
        if let Some(allowed) = adapter::sandbox_of(&site.config, path) {
            report.line("sandbox", allowed);
        }
        return;
    }
    if !path.is_dir() {
        return report.line("file", format_args!("{} does not exist: 404", path.display()));
    }
    let names = blocks.one("index").map_or(vec!["index.html"], |index| index.texts().collect());
    match names.iter().map(|name| path.join(name)).find(|path| path.is_file()) {
        Some(index) => report.line("index", format_args!("continues with {}", index.display())),
        None => {
            let listed = blocks.one("autoindex").is_some_and(|statement| statement.arg(0) == Some("on"));
            let outcome = if listed { "a list of its files" } else { "403, \"autoindex\" is off" };
            report.line(
                "index",
                format_args!("{} contains none of {}: {outcome}", path.display(), names.join(", ")),
            );
        }
    }
}

/// Returns the default cache key: the upstream and the request URI, as `proxy` constructs it.
fn default_key(blocks: &Blocks<'_>, pass: &Statement, values: &Values) -> Expanded {
    let unknown = || values.expand("$scheme$proxy_host$request_uri", &[]);
    let target = values.expand(pass.arg(0).unwrap_or_default(), &[]);
    let (path, args) = values.target.split_once('?').unwrap_or((&values.target, ""));
    // A decoded or rewritten path is encoded again, by rules that are not available here.
    if pass.name.text != "proxy_pass" || !target.is_known || path != values.uri || args != values.args {
        return unknown();
    }
    let Some((scheme, rest)) = target.text.split_once("://") else { return unknown() };
    let Some(slash) = rest.find('/') else {
        return Expanded { text: format!("{scheme}://{rest}{}", values.target), is_known: true };
    };
    // The URI of `proxy_pass` replaces the location's prefix.
    let prefix = blocks.chain.last().filter(|block| block.name.text == "location" && block.args.len() == 1);
    match prefix.and_then(|location| values.target.strip_prefix(location.arg(0)?)) {
        Some(rest_of_uri) => {
            let (host, uri) = rest.split_at(slash);
            Expanded { text: format!("{scheme}://{host}{uri}{rest_of_uri}"), is_known: true }
        }
        None => unknown(),
    }
}

/// Reports an upstream with its servers, and the cache.
fn passed(blocks: &Blocks<'_>, pass: &Statement, values: &Values, report: &mut Report) {
    report.line("handler", format_args!("{} at {}", written(pass), pass.span()));
    let kind = pass.name.text.trim_end_matches("_pass");
    let cache = blocks.one(&format!("{kind}_cache")).filter(|cache| cache.arg(0) != Some("off"));
    match cache {
        Some(cache) => {
            let key = match blocks.one(&format!("{kind}_cache_key")).and_then(|key| key.arg(0)) {
                Some(key) => values.expand(key, &[]),
                None => default_key(blocks, pass, values),
            };
            let zone = values.expand(cache.arg(0).unwrap_or_default(), &[]);
            report.line("cache", format_args!("zone {} at {}, key {}", zone.text, cache.span(), key.text));
            if !key.is_known || !zone.is_known {
                report.line("", "the zone or the key contains variables that are not known here");
            }
            let methods = blocks.one(&format!("{kind}_cache_methods"));
            let is_cached = matches!(values.method.as_str(), "GET" | "HEAD")
                || methods.is_some_and(|methods| methods.texts().any(|method| method == values.method));
            if !is_cached {
                report.line(
                    "",
                    format_args!(
                        "{} is not among {kind}_cache_methods: the cache is neither read nor written",
                        values.method
                    ),
                );
            } else if key.is_known && zone.is_known {
                report.entry_query = Some(EntryQuery {
                    zone: zone.text,
                    key: key.text.into_bytes(),
                    method: values.method.clone(),
                    fields: values.fields.clone(),
                });
            }
        }
        None => report.line("cache", format_args!("none: no {kind}_cache is in effect")),
    }
    // Only `tunnel_pass` needs no argument.
    let Some(pass) = pass.arg(0) else {
        return report.line("upstream", "the authority of a CONNECT request");
    };
    let target = values.expand(pass, &[]).text;
    let authority = target.split_once("://").map_or(target.as_str(), |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    match named(blocks.http, "upstream").find(|upstream| upstream.arg(0) == Some(authority)) {
        Some(group) => {
            let servers: Vec<&str> = named(group, "server").filter_map(|server| server.arg(0)).collect();
            let is_method = |child: &&Statement| {
                ["least_conn", "least_time", "ip_hash", "hash", "random"].contains(&child.name.text.as_str())
            };
            let method = group.children().iter().find(is_method).map_or("round robin".to_owned(), written);
            report.line(
                "upstream",
                format_args!("{authority} at {}, {method}: {}", group.span(), servers.join(", ")),
            );
        }
        None => report.line("upstream", authority),
    }
}
