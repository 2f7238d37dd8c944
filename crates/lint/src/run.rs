//! Runs the rules on a configuration, applies `# lint: allow` comments, and makes fixes.
//!
//! A comment `# lint: allow RULE, RULE` at the end of a line concerns the statements of this line with all statements inside; on a
//! line of its own, it concerns the statement that follows. `# lint: allow-file RULE` concerns its file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use conf::{Edit, EditKind, FileId, Span, Statement, Tree};

use crate::model::{Facts, Model, Refusal};
use crate::rule::{Finding, Findings, Fix, Level};
use crate::rules;

/// What to report.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lowest level of findings.
    pub level: Level,
    /// The rules; all if empty.
    pub rules: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { level: Level::Note, rules: Vec::new() }
    }
}

/// Returns the findings in the order of the text.
pub fn lint(tree: &Tree, facts: &dyn Facts, options: &Options) -> Vec<Finding> {
    let model = Model::new(tree, facts);
    let mut findings = Vec::new();
    let is_wanted = |name: &str| options.rules.is_empty() || options.rules.iter().any(|rule| rule == name);
    for rule in rules::all().filter(|rule| rule.level >= options.level && is_wanted(rule.name)) {
        (rule.check)(&model, &mut Findings { rule, findings: &mut findings });
    }
    let allowed = Allowed::of(tree);
    findings.retain(|finding| !allowed.covers(finding));
    if is_wanted(EMPTY_INCLUDE) && options.level == Level::Note {
        findings.extend(empty_includes(tree, facts).into_iter().filter(|finding| !allowed.covers(finding)));
    }
    if is_wanted(REFUSED) {
        findings.extend(refused(tree, facts).into_iter().filter(|finding| !allowed.covers(finding)));
    }
    // A statement of an included file may be read several times.
    let mut seen = BTreeSet::new();
    findings.retain(|finding| {
        let identity = (finding.at.to_string(), finding.at.offset, finding.rule, finding.message.clone());
        seen.insert(identity)
    });
    let files: Vec<PathBuf> = tree.files.iter().map(|file| file.path.clone()).collect();
    let order = |finding: &Finding| {
        let file = files.iter().position(|path| finding.at.file.path() == Some(path));
        (file, finding.at.offset)
    };
    findings.sort_by_key(order);
    findings
}

/// The rule about errors for which the server refuses the configuration.
const REFUSED: &str = "refused";

/// Returns the errors for which the server refuses the configuration, as findings.
pub fn refused(tree: &Tree, facts: &dyn Facts) -> Vec<Finding> {
    let Some(rule) = rules::all().find(|rule| rule.name == REFUSED) else { return Vec::new() };
    let model = Model::new(tree, facts);
    let name_at = |at: &Span| {
        let statement = model.all().find(|statement| statement.statement().span() == at)?;
        Some(statement.name().to_owned())
    };
    let main = tree.files.iter().next().map_or(FileId::COMMAND_LINE, |file| FileId::file(&file.path));
    let finding = |Refusal { at, message, remedy }: Refusal| {
        let directive = at.as_ref().and_then(name_at).unwrap_or_default();
        let at = at.unwrap_or(Span { file: main.clone(), line: 0, offset: 0 });
        let help = format!("\"ringroad help {directive}\" shows the syntax");
        let remedy = remedy.unwrap_or_else(|| match directive.as_str() {
            "" => "\"ringroad -t\" shows the details".to_owned(),
            _ => help,
        });
        Finding { rule: rule.name, level: rule.level, at, directive, message, remedy, fix: None }
    };
    facts.refusals(tree).into_iter().map(finding).collect()
}

/// The rule about patterns of `include`, which are no longer in the tree.
const EMPTY_INCLUDE: &str = "empty-include";

/// Finds patterns of `include` without a file, in the text.
fn empty_includes(tree: &Tree, facts: &dyn Facts) -> Vec<Finding> {
    let Some(rule) = rules::all().find(|rule| rule.name == EMPTY_INCLUDE) else { return Vec::new() };
    let mut findings = Vec::new();
    for file in tree.files.iter() {
        for (word, at) in conf::includes(&file.text, &file.path) {
            if word.contains(['*', '?', '[']) && facts.glob_matches(&word) == Some(false) {
                findings.push(Finding {
                    rule: rule.name,
                    level: rule.level,
                    at,
                    directive: "include".to_owned(),
                    message: format!("\"{word}\" matches no file"),
                    remedy: "correct the pattern, or remove the line".to_owned(),
                    fix: None,
                });
            }
        }
    }
    findings
}

/// The rules that comments allow.
#[derive(Debug, Default)]
struct Allowed {
    /// By file: ranges of lines, with the rules. The whole file is a range too.
    by_file: BTreeMap<PathBuf, Vec<(u32, u32, BTreeSet<String>)>>,
}

impl Allowed {
    fn of(tree: &Tree) -> Allowed {
        let mut allowed = Allowed::default();
        for file in tree.files.iter() {
            let text = String::from_utf8_lossy(&file.text);
            let mut ranges = Vec::new();
            for (number, line) in (1..).zip(text.lines()) {
                let Some((before, comment)) = line.split_once('#') else { continue };
                let Some(words) = comment.trim_start().strip_prefix("lint:") else { continue };
                let words = words.trim_start();
                let list = |names: &str| {
                    names.split([',', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
                };
                if let Some(names) = words.strip_prefix("allow-file ") {
                    ranges.push((1, u32::MAX, list(names)));
                } else if let Some(names) = words.strip_prefix("allow ") {
                    let line = if before.trim().is_empty() { next_statement(&text, number) } else { number };
                    ranges.push((line, end_of(tree, &file.path, line), list(names)));
                }
            }
            if !ranges.is_empty() {
                allowed.by_file.insert(file.path.clone(), ranges);
            }
        }
        allowed
    }

    fn covers(&self, finding: &Finding) -> bool {
        let Some(ranges) = finding.at.file.path().and_then(|path| self.by_file.get(path)) else {
            return false;
        };
        let line = finding.at.line;
        ranges
            .iter()
            .any(|(start, end, rules)| (*start..=*end).contains(&line) && rules.contains(finding.rule))
    }
}

/// Returns the number of the first line after this one that is neither empty nor a comment.
fn next_statement(text: &str, after: u32) -> u32 {
    let lines = (1..).zip(text.lines()).skip(after as usize);
    let is_text = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
    lines.into_iter().find(|(_, line)| is_text(line)).map_or(after, |(number, _)| number)
}

/// Returns the last line of the statements that begin on a line.
fn end_of(tree: &Tree, path: &std::path::Path, line: u32) -> u32 {
    fn search(statements: &[Statement], path: &std::path::Path, line: u32) -> u32 {
        let own = |statement: &Statement| {
            let begins = statement.name.span.line == line && statement.span().file.path() == Some(path);
            let end = if begins { statement.end.line.max(statement.span().line) } else { 0 };
            end.max(search(statement.children(), path, line))
        };
        statements.iter().map(own).max().unwrap_or(0)
    }
    search(&tree.statements, path, line).max(line)
}

/// Returns the files whose text the fixes of these findings change, with their new text, and the number of fixes.
pub fn fix(tree: &Tree, findings: &[Finding]) -> (Vec<(PathBuf, Vec<u8>)>, usize) {
    let mut edits: BTreeMap<PathBuf, Vec<Edit>> = BTreeMap::new();
    let mut count = 0;
    for finding in findings {
        let (Some(fix), Some(path)) = (&finding.fix, finding.at.file.path()) else { continue };
        let kind = match fix.clone() {
            Fix::Remove => EditKind::Remove,
            Fix::SetArgument(index, text) => EditKind::SetArgument(index, text),
            Fix::AddArgument(text) => EditKind::AddArgument(text),
            Fix::AddAfter(text) => EditKind::AddAfter(text),
        };
        edits.entry(path.to_owned()).or_default().push(Edit { at: finding.at.clone(), kind });
        count += 1;
    }
    let new = |(path, edits): (PathBuf, Vec<Edit>)| {
        let file = tree.files.iter().find(|file| file.path == path)?;
        Some((path, conf::edit(&file.text, &edits)))
    };
    (edits.into_iter().filter_map(new).collect(), count)
}
