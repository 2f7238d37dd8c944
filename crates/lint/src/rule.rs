//! A rule, and what it finds.

use std::fmt;

use conf::Span;

use crate::model::{At, Model};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing; often intended.
    Note,
    /// Probably not what was intended.
    Warning,
    /// A hole, or a directive without effect.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        })
    }
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name, for comments, options and reports.
    pub name: &'static str,
    /// The level of its findings.
    pub level: Level,
    /// The trap, in a sentence.
    pub what: &'static str,
    /// The reason why it is a trap.
    pub why: &'static str,
    /// How to mend it.
    pub mend: &'static str,
    /// The content of an `http` block with the trap.
    pub bad: &'static str,
    /// A similar one without it.
    pub good: &'static str,
    /// Finds the trap.
    pub check: fn(&Model<'_>, &mut Findings<'_>),
}

/// A change of the text that mends a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Removes the statement.
    Remove,
    /// Replaces an argument, 0-based.
    SetArgument(usize, String),
    /// Adds an argument at the end.
    AddArgument(String),
    /// Adds a line after the statement.
    AddAfter(String),
}

/// One trap that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the rule.
    pub rule: &'static str,
    /// Its level.
    pub level: Level,
    /// The position of the statement.
    pub at: Span,
    /// The name of the directive.
    pub directive: String,
    /// The fault of this statement.
    pub message: String,
    /// The text to write instead.
    pub remedy: String,
    /// The mechanical change, if there is one.
    pub fix: Option<Fix>,
}

/// Collects the findings of a rule.
#[derive(Debug)]
pub struct Findings<'f> {
    pub(crate) rule: &'static Rule,
    pub(crate) findings: &'f mut Vec<Finding>,
}

impl Findings<'_> {
    /// Adds a finding about a statement.
    pub fn add(&mut self, at: At<'_, '_>, message: impl fmt::Display, remedy: impl fmt::Display) {
        self.push(at, message.to_string(), remedy.to_string(), None);
    }

    /// Adds a finding that can be mended mechanically.
    pub fn fixable(
        &mut self,
        at: At<'_, '_>,
        message: impl fmt::Display,
        remedy: impl fmt::Display,
        fix: Fix,
    ) {
        self.push(at, message.to_string(), remedy.to_string(), Some(fix));
    }

    fn push(&mut self, at: At<'_, '_>, message: String, remedy: String, fix: Option<Fix>) {
        let statement = at.statement();
        let (at, directive) = (statement.span().clone(), statement.name.text.clone());
        let Rule { name: rule, level, .. } = *self.rule;
        self.findings.push(Finding { rule, level, at, directive, message, remedy, fix });
    }
}
