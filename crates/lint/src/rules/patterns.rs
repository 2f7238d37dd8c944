//! Regular expressions.

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "exponential-pattern",
        level: Warning,
        what: "Matching a regular expression may need exponential time.",
        why: "With a repeated group whose content is repeated too, such as `(a+)+`, a client stops a worker by a crafted URL (ReDoS), up \
              to the limit of PCRE.",
        mend: "Remove one of the two repetitions.",
        bad: "server { location ~ ^/(\\w+\\s?)+$ { return 204; } }",
        good: "server { location ~ ^/(\\w+/)+$ { return 204; } }",
        check: exponential,
    },
    Rule {
        name: "unescaped-dot",
        level: Warning,
        what: "The dot before a file extension matches any character.",
        why: "`.php$` also matches `/aphp`.",
        mend: "Write `\\.`.",
        bad: "server { location ~ .php$ { return 403; } }",
        good: "server { location ~ \\.php$ { return 403; } }",
        check: unescaped_dot,
    },
    Rule {
        name: "origin-pattern",
        level: Error,
        what: "A check of `Origin` matches foreign sites.",
        why: "Without `^` and `$`, or with an unescaped dot, `https://example.org.attacker.net` or `https://wwwxexample.org` pass.",
        mend: "Write `^https://(www\\.)?example\\.org$`, or compare by `map` without a pattern.",
        bad: "server { location / { if ($http_origin ~ example.org) { return 204; } } }",
        good: "server { location / { if ($http_origin ~ ^https://example\\.org$) { return 204; } } }",
        check: |model, found| checked_field(model, found, "http_origin"),
    },
    Rule {
        name: "referer-pattern",
        level: Warning,
        what: "A check of `Referer` matches foreign sites.",
        why: "Without `^https://` and a slash after the host, each URL that contains the name passes.",
        mend: "Use `valid_referers`, or write `^https://example\\.org/`.",
        bad: "server { location / { if ($http_referer !~ example.org) { return 403; } } }",
        good: "server { location / { if ($http_referer !~ ^https://example\\.org/) { return 403; } } }",
        check: |model, found| checked_field(model, found, "http_referer"),
    },
    Rule {
        name: "valid-referers-none",
        level: Note,
        what: "`valid_referers none` accepts requests without the field `Referer`.",
        why: "A page omits the field by `Referrer-Policy: no-referrer`, so the check protects nothing.",
        mend: "Remove `none`, or use the check only against links to images.",
        bad: "server { location / { valid_referers none example.org; if ($invalid_referer) { return 403; } } }",
        good: "server { location / { valid_referers example.org; if ($invalid_referer) { return 403; } } }",
        check: |model, found| {
            for at in model.named("valid_referers").filter(|at| at.has("none")) {
                found.add(at, "a page can omit Referer", "remove \"none\" if the check must not be bypassed");
            }
        },
    },
    Rule {
        name: "if-equals-pattern",
        level: Warning,
        what: "`if` compares with a text that looks like a regular expression.",
        why: "`=` compares exactly; `~` matches a pattern.",
        mend: "Write `~`.",
        bad: "server { if ($request_uri = ^/old/.*$) { return 410; } }",
        good: "server { if ($request_uri ~ ^/old/.*$) { return 410; } }",
        check: |model, found| {
            for at in model.named("if") {
                let args: Vec<&str> = at.args().collect();
                let pattern = args.last().map(|last| last.trim_end_matches(')')).unwrap_or_default();
                let is_pattern =
                    pattern.starts_with('^') || pattern.ends_with(".*") || pattern.ends_with(".*$");
                if let Some(index) = args.iter().position(|arg| matches!(*arg, "=" | "!="))
                    && is_pattern
                {
                    let operator = if args[index] == "=" { "~" } else { "!~" };
                    let fix = Fix::SetArgument(index, operator.to_owned());
                    found.fixable(
                        at,
                        format_args!("\"=\" compares with the text {pattern}"),
                        format_args!("write {operator}"),
                        fix,
                    );
                }
            }
        },
    },
];

/// Returns all regular expressions with their statement.
fn patterns<'m, 't>(model: &'m Model<'t>) -> Vec<(At<'m, 't>, &'t str)> {
    let mut found = Vec::new();
    for at in model.all() {
        match at.name() {
            name if at.is_row() && name.starts_with('~') => {
                found.push((at, name.trim_start_matches(['~', '*'])))
            }
            _ if at.is_row() => {}
            "location" if Location::of(at).is_regex() => found.push((at, Location::of(at).path)),
            "rewrite" => found.push((at, at.arg(0))),
            "server_name" => found.extend(at.args().filter_map(|name| Some((at, name.strip_prefix('~')?)))),
            "if" => {
                let args: Vec<&str> = at.args().collect();
                if let Some(index) = args.iter().position(|arg| matches!(*arg, "~" | "~*" | "!~" | "!~*")) {
                    let pattern = args.get(index + 1).copied().unwrap_or_default();
                    found.push((
                        at,
                        pattern.strip_suffix(')').filter(|_| index + 2 == args.len()).unwrap_or(pattern),
                    ));
                }
            }
            _ => {}
        }
    }
    found
}

fn exponential(model: &Model<'_>, found: &mut Findings<'_>) {
    for (at, pattern) in patterns(model) {
        if text::is_exponential(pattern) {
            found.add(
                at,
                format_args!("matching \"{pattern}\" may need exponential time"),
                "remove one of the two nested repetitions",
            );
        }
    }
}

fn unescaped_dot(model: &Model<'_>, found: &mut Findings<'_>) {
    for (at, pattern) in patterns(model).into_iter().filter(|(at, _)| at.name() == "location") {
        if text::has_open_extension(pattern) {
            let dot = pattern.rfind('.').unwrap_or_default();
            let new = format!("{}\\{}", &pattern[..dot], &pattern[dot..]);
            let index = at.args().count() - 1;
            let full = if index == 0 { format!("{}{new}", Location::of(at).kind) } else { new.clone() };
            found.fixable(
                at,
                format_args!("the dot of \"{pattern}\" matches any character"),
                format_args!("write \"{new}\""),
                Fix::SetArgument(index, full),
            );
        }
    }
}

/// Finds checks of a field by a pattern that is not anchored, or that has an unescaped dot.
fn checked_field(model: &Model<'_>, found: &mut Findings<'_>, field: &str) {
    let name = format!("${field}");
    let is_origin = field == "http_origin";
    for (at, pattern) in patterns(model) {
        let is_about = match at.name() {
            "if" => at.args().any(|arg| arg.trim_start_matches('(') == name),
            _ => at.is_row() && at.parent().is_some_and(|map| map.name() == "map" && map.arg(0) == name),
        };
        if !is_about || pattern.is_empty() {
            continue;
        }
        let is_open_end = match is_origin {
            true => !pattern.ends_with('$'),
            false => {
                !pattern.ends_with('$')
                    && !pattern.ends_with('/')
                    && !pattern.contains("(/|$)")
                    && !pattern.contains("(/|:)")
                    && !pattern.contains("($|/)")
            }
        };
        // A refusal of known senders is no permission.
        let is_list = !is_origin && at.name() == "if" && at.args().any(|arg| matches!(arg, "~" | "~*"));
        let reason = match () {
            () if is_list => continue,
            () if !pattern.starts_with('^') => "does not begin with ^",
            () if is_open_end && is_origin => "does not end with $",
            () if is_open_end => "does not end the host with /",
            () if text::has_open_dot(pattern) => "has a dot that matches any character",
            () => continue,
        };
        found.add(
            at,
            format_args!("\"{pattern}\" {reason}: foreign sites match"),
            "write ^https://example\\.org$ with escaped dots",
        );
    }
}
