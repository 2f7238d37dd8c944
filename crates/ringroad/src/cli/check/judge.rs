//! Classifies each directive of a configuration, and collects all reasons why the configuration does not load.

use conf::{CheckResult, ErrorKind, Statement, Support, Tree, Visit};

use crate::adapter::{self, Problem, Refused};
use crate::log::Level;

/// How a directive is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Handling {
    /// Works as in nginx.
    Honoured,
    /// Behaves differently than in nginx; the remark describes the difference.
    Differs,
    /// Accepted without effect; the remark has the reason.
    NoEffect,
    /// Supported by nginx, but not by this server.
    NotSupported,
    /// No module of nginx or of this server has it.
    Unknown,
    /// In an invalid context, or with invalid arguments.
    Wrong,
}

impl Handling {
    /// Returns the word for the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Handling::Honoured => "supported",
            Handling::Differs => "differs",
            Handling::NoEffect => "no effect",
            Handling::NotSupported => "not supported",
            Handling::Unknown => "unknown",
            Handling::Wrong => "wrong",
        }
    }
}

/// Kinds of obstacles, in increasing order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Fine,
    /// A feature that will not be supported.
    Never,
    /// A feature of the commercial edition of nginx.
    Commercial,
    /// A feature of a third-party module.
    ThirdParty,
    /// A feature that is not supported yet.
    Missing,
    /// The configuration is valid, but a start on this machine by this user would fail.
    Machine,
    /// A directive that no known module has.
    Unknown,
    /// An unknown directive with a name like that of a known one.
    Misspelt,
    /// Another error for nginx too.
    Wrong,
}

impl Severity {
    /// Returns the word for JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Severity::Fine => "works",
            Severity::Never => "never",
            Severity::Commercial => "commercial",
            Severity::ThirdParty => "third-party",
            Severity::Missing => "missing",
            Severity::Machine => "machine",
            Severity::Unknown => "unknown",
            Severity::Misspelt => "misspelt",
            Severity::Wrong => "wrong",
        }
    }
}

/// One directive.
#[derive(Debug)]
pub(super) struct Row {
    /// Position: `FILE:LINE`
    pub(super) place: String,
    /// Name of the directive.
    pub(super) name: String,
    /// How it is handled.
    pub(super) handling: Handling,
    /// The reason, or the difference.
    pub(super) remark: Option<String>,
}

/// One reason why the configuration does not load.
#[derive(Debug)]
pub(super) struct Remark {
    /// Kind of obstacle.
    pub(super) kind: Severity,
    /// `FILE:LINE`; empty for a problem of the complete configuration.
    pub(super) place: String,
    /// Name of the directive that is not supported or unknown; empty for other problems.
    pub(super) directive: String,
    /// The message that `-t` prints.
    pub(super) message: String,
    /// Heading under which remarks of the same subject are grouped.
    pub(super) group: Option<String>,
    /// The line with the position marked.
    pub(super) excerpt: Option<String>,
}

/// The result of the check.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// All directives, in the order of the text.
    pub(super) rows: Vec<Row>,
    /// All reasons.
    pub(super) remarks: Vec<Remark>,
}

impl Judged {
    /// Returns the worst kind of all remarks.
    pub(super) fn verdict(&self) -> Severity {
        self.remarks.iter().map(|remark| remark.kind).max().unwrap_or(Severity::Fine)
    }
}

/// Converts an error that has no position to a problem.
pub(super) fn unplaced(refused: &Refused) -> Problem {
    let error = conf::Error::without_location(&refused.message);
    Problem { level: Level::Emerg, message: refused.message.clone(), excerpt: None, error }
}

/// Converts an error of the trial of a start to a remark.
pub(super) fn obstacle(message: String) -> Remark {
    let (place, directive) = (String::new(), String::new());
    Remark { kind: Severity::Machine, place, directive, message, group: None, excerpt: None }
}

/// Classifies all statements and problems.
pub(super) fn all(tree: &Tree, problems: &[Problem]) -> Judged {
    let mut judged = Judged::default();
    conf::visit(tree, adapter::table(), &mut |visit| {
        if let Some((handling, remark)) = handling(&visit, problems) {
            let place = visit.statement.span().to_string();
            judged.rows.push(Row { place, name: visit.statement.name.text.clone(), handling, remark });
        }
    });
    judged.remarks = problems.iter().map(remark).collect();
    judged
}

/// Classifies one statement; returns `None` for statements that are not directives.
fn handling(visit: &Visit<'_>, problems: &[Problem]) -> Option<(Handling, Option<String>)> {
    Some(match &visit.verdict {
        CheckResult::Row | CheckResult::Unjudged => return None,
        CheckResult::Known(spec) => {
            match problems.iter().find(|problem| is_about(problem, visit.statement)) {
                Some(problem) => {
                    let handling = if kind_of(problem.error.kind()).0 >= Severity::Unknown {
                        Handling::Wrong
                    } else {
                        Handling::NotSupported
                    };
                    (handling, Some(problem.error.kind().to_string()))
                }
                None => match spec.state {
                    Support::Honoured => (Handling::Honoured, None),
                    Support::Differs(how) => (Handling::Differs, Some(how.to_owned())),
                    Support::Accepted(why) | Support::Idle(why) => (Handling::NoEffect, Some(why.to_owned())),
                },
            }
        }
        CheckResult::Fault(error) => match error.kind() {
            // The end of the text is not a directive.
            _ if visit.statement.fault().is_some() => return None,
            ErrorKind::NotSupported { module, .. } => {
                let yet = if conf::instead_of(module).is_some() { "" } else { "yet, " };
                (Handling::NotSupported, Some(format!("{yet}of module {module}")))
            }
            ErrorKind::Unknown { .. } => (Handling::Unknown, None),
            other => (Handling::Wrong, Some(other.to_string())),
        },
    })
}

/// Whether a problem is about this statement.
fn is_about(problem: &Problem, statement: &Statement) -> bool {
    problem.error.span() == Some(statement.span())
}

/// Returns the kind of a problem, and its group.
fn kind_of(kind: &ErrorKind) -> (Severity, Option<String>) {
    match kind {
        ErrorKind::MissingModule { needed, .. } => kind_of(needed),
        ErrorKind::NotSupported { module, .. } => match conf::instead_of(module) {
            Some(instead) => (Severity::Never, Some(format!("module {module} ({instead})"))),
            None => (Severity::Missing, Some(format!("module {module} of nginx"))),
        },
        ErrorKind::Unknown { name, .. } if conf::instead_of_commercial(name).is_some() => {
            (Severity::Commercial, None)
        }
        // nginx has removed it, and the message has the replacement.
        ErrorKind::Unknown { name, .. } if conf::is_removed(name) => (Severity::Wrong, None),
        ErrorKind::Unknown { name, similar, .. } => match (conf::third_party_module(name, *similar), similar)
        {
            (Some(module), _) => (
                Severity::ThirdParty,
                Some(format!("module {module}, which is not nginx's own (docs/third-party-modules.md)")),
            ),
            (None, Some(_)) => (Severity::Misspelt, None),
            (None, None) => (Severity::Unknown, None),
        },
        ErrorKind::ArgumentNotSupported { directive, argument } => {
            (Severity::Missing, Some(format!("\"{argument}\" in \"{directive}\"")))
        }
        _ => (Severity::Wrong, None),
    }
}

/// Converts a problem to a remark of the report.
fn remark(problem: &Problem) -> Remark {
    let (kind, group) = kind_of(problem.error.kind());
    let directive = match problem.error.kind() {
        ErrorKind::NotSupported { name, .. } => (*name).to_owned(),
        ErrorKind::Unknown { name, .. } => name.clone(),
        ErrorKind::MissingModule { .. } => "load_module".to_owned(),
        _ => String::new(),
    };
    let place = problem.error.span().map(ToString::to_string).unwrap_or_default();
    Remark {
        kind,
        place,
        directive,
        message: problem.message.clone(),
        group,
        excerpt: problem.excerpt.clone(),
    }
}
