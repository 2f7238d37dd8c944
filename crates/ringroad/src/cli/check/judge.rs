//! What becomes of each directive of a configuration, and every reason why the whole does not load.

use conf::{ErrorKind, State, Statement, Tree, Verdict, Visit};

use crate::log::Level;
use crate::site::{self, Problem, Refused};

/// What becomes of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It works as in nginx.
    Honoured,
    /// Does something else; the remark describes it.
    Differs,
    /// Is accepted and does nothing; the remark has the reason.
    NoEffect,
    /// nginx has it, this server does not.
    NotSupported,
    /// No module has it.
    Unknown,
    /// Stands in the wrong place, or has the wrong arguments.
    Wrong,
}

impl Fate {
    /// The word in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Fate::Honoured => "honoured",
            Fate::Differs => "differs",
            Fate::NoEffect => "no effect",
            Fate::NotSupported => "not supported",
            Fate::Unknown => "unknown",
            Fate::Wrong => "wrong",
        }
    }
}

/// The obstacles of a start, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Fine,
    /// A feature that will not come.
    Never,
    /// A feature that is not there yet.
    Missing,
    /// No server could read this.
    Wrong,
}

impl Kind {
    /// The word in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Fine => "works",
            Kind::Never => "never",
            Kind::Missing => "missing",
            Kind::Wrong => "wrong",
        }
    }
}

/// One directive.
#[derive(Debug)]
pub(super) struct Row {
    /// `FILE:LINE`
    pub(super) place: String,
    /// The directive.
    pub(super) name: String,
    /// What becomes of it.
    pub(super) fate: Fate,
    /// Why, or how it differs.
    pub(super) remark: Option<String>,
}

/// One reason.
#[derive(Debug)]
pub(super) struct Remark {
    /// How bad it is.
    pub(super) kind: Kind,
    /// `FILE:LINE`; empty for a problem of the whole.
    pub(super) place: String,
    /// The directive that is missing or unknown; empty for other problems.
    pub(super) directive: String,
    /// As `-t` prints it.
    pub(super) message: String,
    /// Reasons of the same subject are shown together under this.
    pub(super) group: Option<String>,
    /// The line with a mark.
    pub(super) excerpt: Option<String>,
}

/// The result.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// Every directive, in the order of the text.
    pub(super) rows: Vec<Row>,
    /// Every reason.
    pub(super) remarks: Vec<Remark>,
}

impl Judged {
    /// The worst of all reasons.
    pub(super) fn verdict(&self) -> Kind {
        self.remarks.iter().map(|remark| remark.kind).max().unwrap_or(Kind::Fine)
    }
}

/// A reason that has no place, or was found by the load alone.
pub(super) fn unplaced(refused: &Refused) -> Problem {
    let error = conf::Error::nowhere(&refused.message);
    Problem { level: Level::Emerg, message: refused.message.clone(), excerpt: None, error }
}

/// Judges every statement and every problem.
pub(super) fn all(tree: &Tree, problems: &[Problem]) -> Judged {
    let mut judged = Judged::default();
    conf::visit(tree, site::table(), &mut |visit| {
        if let Some((fate, remark)) = fate(&visit, problems) {
            let place = visit.statement.span().to_string();
            judged.rows.push(Row { place, name: visit.statement.name.text.clone(), fate, remark });
        }
    });
    judged.remarks = problems.iter().map(remark).collect();
    judged
}

/// `None` for statements that are no directive.
fn fate(visit: &Visit<'_>, problems: &[Problem]) -> Option<(Fate, Option<String>)> {
    Some(match &visit.verdict {
        Verdict::Row | Verdict::Unjudged => return None,
        Verdict::Known(spec) => match problems.iter().find(|problem| is_about(problem, visit.statement)) {
            Some(problem) => {
                let fate = if kind_of(problem).0 == Kind::Wrong { Fate::Wrong } else { Fate::NotSupported };
                (fate, Some(problem.error.kind().to_string()))
            }
            None => match spec.state {
                State::Honoured => (Fate::Honoured, None),
                State::Differs(how) => (Fate::Differs, Some(how.to_owned())),
                State::Accepted(why) | State::Idle(why) => (Fate::NoEffect, Some(why.to_owned())),
            },
        },
        Verdict::Fault(error) => match error.kind() {
            // The end of the reading is no directive.
            _ if visit.statement.fault().is_some() => return None,
            ErrorKind::NotSupported { module, .. } => {
                let yet = if conf::instead_of(module).is_some() { "" } else { "yet, " };
                (Fate::NotSupported, Some(format!("{yet}of module {module}")))
            }
            ErrorKind::Unknown { .. } => (Fate::Unknown, None),
            other => (Fate::Wrong, Some(other.to_string())),
        },
    })
}

/// Whether a problem is about this statement, and not about another one that ends on the same line.
fn is_about(problem: &Problem, statement: &Statement) -> bool {
    if problem.error.span() != Some(statement.span()) {
        return false;
    }
    let message = problem.error.kind().to_string();
    let mut words = statement.texts().chain([statement.name.text.as_str()]).filter(|word| !word.is_empty());
    words.any(|word| message.contains(&format!("{word}\"")))
}

/// The kind of a problem, with its subject.
fn kind_of(problem: &Problem) -> (Kind, Option<String>) {
    match problem.error.kind() {
        ErrorKind::NotSupported { module, .. } => match conf::instead_of(module) {
            Some(instead) => (Kind::Never, Some(format!("module {module} ({instead})"))),
            None => (Kind::Missing, Some(format!("module {module} of nginx"))),
        },
        ErrorKind::Unknown { name, similar: None, .. } => match site::foreign_module(name) {
            Some(module) => (
                Kind::Missing,
                Some(format!("module {module}, which is not nginx's own (docs/third-party-modules.md)")),
            ),
            None => (Kind::Wrong, None),
        },
        ErrorKind::Message(text) if text.ends_with("is not supported yet") => {
            let group = text.split_once(" directive is not").map_or(text.as_str(), |(start, _)| start);
            (Kind::Missing, Some(group.to_owned()))
        }
        _ => (Kind::Wrong, None),
    }
}

/// A problem as the report has it.
fn remark(problem: &Problem) -> Remark {
    let (kind, group) = kind_of(problem);
    let directive = match problem.error.kind() {
        ErrorKind::NotSupported { name, .. } => (*name).to_owned(),
        ErrorKind::Unknown { name, .. } => name.clone(),
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
