//! Executes the rewrite directives of a block, as far as the request alone determines them.

use conf::Statement;

use super::values::{Values, groups};
use super::{Blocks, Report};

/// The outcome of the directives of a block.
pub(super) enum End<'t> {
    /// Processing continues.
    Next,
    /// Processing continues without further rewrite directives.
    Break,
    /// The location search starts again.
    Again,
    /// The response is determined.
    Response,
    /// Processing continues in this `if` block.
    Block(&'t Statement),
}

/// Executes the rewrite directives of the innermost block.
pub(super) fn run<'t>(blocks: &Blocks<'t>, values: &mut Values, report: &mut Report) -> End<'t> {
    let Some(block) = blocks.chain.last().copied() else { return End::Next };
    let is_server = blocks.chain.len() == 2;
    let before = values.uri.clone();
    let end = steps(block, is_server, values, report);
    match end {
        // Without a flag, a changed URI causes a new location search after all directives of the location.
        End::Next if !is_server && values.uri != before => End::Again,
        end => end,
    }
}

/// Executes the directives of a block in order, including those of `if` blocks whose condition is true.
fn steps<'t>(block: &'t Statement, is_server: bool, values: &mut Values, report: &mut Report) -> End<'t> {
    let mut inside = None;
    for statement in block.children() {
        let end = match statement.name.text.as_str() {
            "return" => {
                let text: Vec<String> = statement.texts().map(|text| values.expand(text, &[]).text).collect();
                report.line(
                    "response",
                    format_args!("{} by \"return\" at {}", text.join(" "), statement.span()),
                );
                End::Response
            }
            "rewrite" => rewrite(statement, values, report),
            "break" => End::Break,
            "if" => match values.holds(statement) {
                Some(false) => continue,
                Some(true) => {
                    report
                        .line("if", format_args!("{} at {} is true", condition(statement), statement.span()));
                    let end = steps(statement, is_server, values, report);
                    if !is_server {
                        inside = Some(statement);
                    }
                    end
                }
                None => {
                    let what = "depends on variables that are not known here, and is not followed";
                    report
                        .line("if", format_args!("{} at {} {what}", condition(statement), statement.span()));
                    continue;
                }
            },
            _ => continue,
        };
        match (end, inside) {
            (End::Next, _) => {}
            (End::Break, Some(block)) => return End::Block(block),
            (end, _) => return end,
        }
    }
    inside.map_or(End::Next, End::Block)
}

/// Returns a condition in its original notation.
fn condition(statement: &Statement) -> String {
    statement.texts().collect::<Vec<_>>().join(" ")
}

/// Executes one `rewrite`, if its expression matches.
fn rewrite<'t>(statement: &Statement, values: &mut Values, report: &mut Report) -> End<'t> {
    let mut texts = statement.texts();
    let (pattern, replacement) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    let flag = texts.next().unwrap_or_default();
    let Some(groups) = groups(pattern, &values.uri) else { return End::Next };
    let new = values.expand(replacement, &groups);
    let is_redirect = ["http://", "https://", "$scheme"].iter().any(|start| replacement.starts_with(start));
    if is_redirect || matches!(flag, "redirect" | "permanent") {
        let status = if flag == "permanent" { 301 } else { 302 };
        report.line(
            "response",
            format_args!("{status} to {} by \"rewrite\" at {}", new.text, statement.span()),
        );
        return End::Response;
    }
    let remark = if new.is_known { "" } else { ", with variables that are not known here" };
    report
        .line("rewrite", format_args!("{} becomes {} at {}{remark}", values.uri, new.text, statement.span()));
    let (uri, args) = new.text.split_once('?').unwrap_or((&new.text, ""));
    // As in nginx the query is retained, unless the replacement ends with a question mark.
    values.args = match (args, values.args.is_empty()) {
        ("", _) if new.text.ends_with('?') => String::new(),
        ("", _) => values.args.clone(),
        (args, true) => args.to_owned(),
        (args, false) => format!("{args}&{}", values.args),
    };
    values.uri = uri.to_owned();
    match flag {
        "last" => End::Again,
        "break" => End::Break,
        _ => End::Next,
    }
}
