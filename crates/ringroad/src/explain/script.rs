//! The rewrite directives of a block, as far as the request alone decides them.

use conf::Statement;

use super::values::{Values, groups};
use super::{Blocks, Report};

/// How the directives of a block end.
pub(super) enum End<'t> {
    /// The request continues.
    Next,
    /// It continues, and no further rewrite directive is carried out.
    Break,
    /// Another location is searched.
    Again,
    /// The response is made.
    Response,
    /// The request continues in this `if` block.
    Block(&'t Statement),
}

/// Carries out the rewrite directives of the innermost block.
pub(super) fn run<'t>(blocks: &Blocks<'t>, values: &mut Values, report: &mut Report) -> End<'t> {
    let Some(block) = blocks.chain.last().copied() else { return End::Next };
    let is_server = blocks.chain.len() == 2;
    let before = values.uri.clone();
    let end = steps(block, is_server, values, report);
    match end {
        // Without a flag the location of the changed URI is searched again after all directives of the location.
        End::Next if !is_server && values.uri != before => End::Again,
        end => end,
    }
}

/// Carries out the directives of a block in their order, those of `if` blocks that hold included.
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
                    report.line("if", format_args!("{} at {} holds", condition(statement), statement.span()));
                    let end = steps(statement, is_server, values, report);
                    if !is_server {
                        inside = Some(statement);
                    }
                    end
                }
                None => {
                    let what = "depends on what is not known here, and is not followed";
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

/// A condition as it is written.
fn condition(statement: &Statement) -> String {
    statement.texts().collect::<Vec<_>>().join(" ")
}

/// Carries out one `rewrite`, if its expression matches.
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
    let remark = if new.is_known { "" } else { ", as far as it is known here" };
    report
        .line("rewrite", format_args!("{} becomes {} at {}{remark}", values.uri, new.text, statement.span()));
    let (uri, args) = new.text.split_once('?').unwrap_or((&new.text, ""));
    // As in nginx the query is kept, unless the new text ends with a question mark.
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
