//! Explains the source of the response in a location: access rules, limits, pages, the upstream, the cache.

use std::net::IpAddr;

use conf::Statement;

use super::{Blocks, Report, named_blocks};
use crate::adapter::{self, EntryQuery, Passed, Question};

/// Directives that generate the response of a location.
const PAGES: [&str; 7] =
    ["stub_status", "metrics", "api", "dashboard", "health", "empty_gif", "cache_counters"];

/// Methods of an upstream group.
const METHODS: [&str; 5] = ["least_conn", "least_time", "ip_hash", "hash", "random"];

/// Returns a directive in its original notation.
pub(super) fn written(statement: &Statement) -> String {
    let words = [statement.name.text.as_str()].into_iter().chain(statement.texts());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the first rule that matches the client's address.
pub(super) fn access_rule<'t>(blocks: &Blocks<'t>, from: IpAddr) -> Option<&'t Statement> {
    let rules = blocks.holding(&["allow", "deny"]);
    rules.into_iter().find(|rule| rule.arg(0).is_some_and(|rule| adapter::covers(rule, from)))
}

/// Reports the limits of a location, which depend on other requests.
pub(super) fn limits(blocks: &Blocks<'_>, report: &mut Report) {
    for name in ["limit_req", "limit_conn"] {
        for statement in blocks.holding(&[name]) {
            let (text, at) = (written(statement), statement.span());
            report.line("limits", format_args!("{text} at {at}: depends on other requests, assumed to pass"));
        }
    }
}

/// Reports the module that has created the response, unless the file or the index has a line.
pub(super) fn content(blocks: &Blocks<'_>, module: &str, report: &mut Report) {
    match blocks.own(&PAGES) {
        Some(page) => report.line("handler", format_args!("{} at {}", written(page), page.span())),
        None if module == "autoindex" => report.line("index", "a list of the files of the directory"),
        None => {}
    }
}

/// Reports an upstream with its servers, and the cache.
pub(super) fn passed(blocks: &Blocks<'_>, passed: &Passed, question: &Question, report: &mut Report) {
    let Passed { prefix, url, cache, is_cached_method } = passed;
    let pass = blocks.one(&format!("{prefix}_pass"));
    match pass {
        Some(pass) => report.line("handler", format_args!("{} at {}", written(pass), pass.span())),
        None => report.line("handler", format_args!("{prefix}_pass {url}")),
    }
    match cache {
        Some((zone, key)) => {
            let at = blocks
                .one(&format!("{prefix}_cache"))
                .map(|cache| cache.span().to_string())
                .unwrap_or_default();
            let shown = String::from_utf8_lossy(key);
            report.line("cache", format_args!("zone {zone} at {at}, key {shown}"));
            if *is_cached_method {
                report.entry_query = Some(EntryQuery {
                    zone: zone.clone(),
                    key: key.clone(),
                    method: question.method.clone(),
                    fields: question.fields.clone(),
                });
            } else {
                let method = &question.method;
                let what = format!("{prefix}_cache_methods: the cache is neither read nor written");
                report.line("", format_args!("{method} is not among {what}"));
            }
        }
        None => report.line("cache", format_args!("none: no {prefix}_cache is in effect")),
    }
    let authority = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    let group = named_blocks(blocks.http, "upstream").find(|upstream| upstream.arg(0) == Some(authority));
    match group {
        Some(group) => {
            report.line("upstream", format_args!("{authority} at {}, {}", group.span(), servers_of(group)))
        }
        None if authority.is_empty() => report.line("upstream", "the authority of a CONNECT request"),
        None => report.line("upstream", authority),
    }
    for check in blocks.holding(&["health_check"]) {
        report.line("checks", format_args!("{} at {}", written(check), check.span()));
    }
}

/// Returns the method and the servers of a group: those that requests are passed to, those that are used if these fail, and those
/// that are never used.
fn servers_of(group: &Statement) -> String {
    let has = |server: &Statement, word: &str| server.texts().skip(1).any(|text| text == word);
    let list = |is_wanted: &dyn Fn(&Statement) -> bool| {
        let wanted = named_blocks(group, "server").filter(|server| is_wanted(server));
        wanted.filter_map(|server| server.arg(0)).collect::<Vec<_>>().join(", ")
    };
    let is_method = |child: &&Statement| METHODS.contains(&child.name.text.as_str());
    let method = group.children().iter().find(is_method).map_or("round robin".to_owned(), written);
    let used = list(&|server| !has(server, "down") && !has(server, "backup"));
    let backup = list(&|server| !has(server, "down") && has(server, "backup"));
    let down = list(&|server| has(server, "down"));
    let mut text = format!("{method}: {}", if used.is_empty() { "none" } else { &used });
    for (title, servers) in [("backup", backup), ("down", down)] {
        if !servers.is_empty() {
            text.push_str(&format!("; {title}: {servers}"));
        }
    }
    text
}
