//! Statements against the table: may this directive stand here, with these arguments, a second time?
//!
//! [`Scope`] answers for one statement after the other and is what a reader of typed configuration walks with.
//! [`check`] and [`visit`] walk a whole tree: the first for a verdict, the second for a report on every statement.
//! Values of arguments are not looked at here; that is up to who owns the directive.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Level};
use crate::nginx::nginx_directives;
use crate::spec::{Args, Block, Contexts, Repeat, Spec, State, Table};
use crate::tree::{Statement, Tree};

/// One block that is being walked: remembers which directives it has seen.
#[derive(Debug)]
pub struct Scope<'t> {
    table: &'t Table,
    context: Contexts,
    seen: HashSet<&'static str>,
}

impl Table {
    /// Begins a block of this context; [`Contexts::MAIN`] for the statements of a tree.
    pub fn scope(&self, context: Contexts) -> Scope<'_> {
        Scope { table: self, context, seen: HashSet::new() }
    }
}

impl Scope<'_> {
    /// The context of this block.
    pub fn context(&self) -> Contexts {
        self.context
    }

    /// The entry that this statement follows, or what is wrong with it: the checks that nginx makes before it
    /// calls the directive's setter, and the one for duplicates, which its setters make first.
    ///
    /// Statements must come in order. The statement that marks unreadable text answers with its error.
    pub fn admit(&mut self, statement: &Statement) -> Result<&'static Spec, Error> {
        if let Some(fault) = statement.fault() {
            return Err(fault.clone());
        }
        let spec = match self.table.find(&statement.name.text, self.context) {
            Some(spec) => spec,
            None => return Err(self.absent(statement)),
        };
        self.check_form(statement, spec.args, spec.block != Block::No)?;
        if !self.seen.insert(spec.name) && spec.repeat == Repeat::Once {
            return Err(Error::new(ErrorKind::Duplicate(spec.name.to_owned()), statement));
        }
        Ok(spec)
    }

    fn check_form(&self, statement: &Statement, takes: Args, has_block: bool) -> Result<(), Error> {
        let name = || statement.name.text.clone();
        let given = statement.args.len();
        let kind = match (has_block, statement.block.is_some()) {
            (false, true) => ErrorKind::NotTerminated(name()),
            (true, false) => ErrorKind::NoOpening(name()),
            _ if !takes.allows(given) => ErrorKind::ArgumentCount { name: name(), takes, given },
            _ => return Ok(()),
        };
        Err(Error::new(kind, statement))
    }

    /// Why this table has no entry: not built yet, not here, or unknown.
    fn absent(&self, statement: &Statement) -> Error {
        let name = statement.name.text.as_str();
        if let Some(known) = self.table.not_built(name, self.context) {
            // `include` is known to the reader of the tree, which leaves only the malformed ones behind.
            let fault = self.check_form(statement, known.args, known.has_block).err();
            let not_built = ErrorKind::NotBuilt { name: known.name, module: known.module };
            return fault.unwrap_or_else(|| Error::new(not_built, statement));
        }
        let allowed = self.table.contexts_of(name);
        let kind = match allowed == Contexts::NONE {
            true => {
                let similar = self.table.similar(name, self.context);
                ErrorKind::Unknown { name: name.to_owned(), similar }
            }
            false => ErrorKind::NotAllowedHere { name: name.to_owned(), allowed },
        };
        Error::new(kind, statement)
    }

    /// What the braces of a statement hold that was not admitted: as far as its name tells.
    fn block_of_refused(&self, statement: &Statement) -> Option<Block> {
        let name = statement.name.text.as_str();
        let here = self.table.find(name, self.context).or(self.table.named(name).first().copied());
        let in_nginx = || {
            let here = nginx_directives().named(name).find(|row| row.contexts.intersects(self.context));
            let row = here.or_else(|| nginx_directives().named(name).next())?;
            Some(row.block(if here.is_some() { self.context } else { row.contexts }))
        };
        here.map(|spec| spec.block).or_else(in_nginx)
    }
}

/// What was found out about a whole tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first error in the order of the files, which is the one that nginx stops at.
    pub error: Option<Error>,
    /// Directives that are accepted without effect, or that differ.
    pub notices: Vec<Error>,
}

/// Checks the tree without looking at values.
pub fn check(tree: &Tree, table: &Table) -> Report {
    let mut report = Report::default();
    visit(tree, table, &mut |visit| match visit.verdict {
        Verdict::Fault(error) => {
            report.error.get_or_insert(error);
        }
        Verdict::Known(spec) => report.notices.extend(notice(visit.statement, spec)),
        Verdict::Row | Verdict::Unjudged => {}
    });
    report
}

/// One statement of a tree, as [`visit`] sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit<'a> {
    /// The statement; its children come next.
    pub statement: &'a Statement,
    /// The context it stands in; [`Contexts::NONE`] for what is no directive.
    pub context: Contexts,
    /// How many blocks are around it.
    pub depth: usize,
    /// What the table says.
    pub verdict: Verdict,
}

/// What the table says about a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Admitted; [`Spec::state`] tells how well it is served.
    Known(&'static Spec),
    /// Refused: unknown, not built, misplaced, malformed, or unreadable text.
    Fault(Error),
    /// A row in a block of rows.
    Row,
    /// Inside a block of an unknown directive, so that nobody knows what it means.
    Unjudged,
}

/// Visits every statement in order, on past errors.
pub fn visit<'a>(tree: &'a Tree, table: &Table, visitor: &mut dyn FnMut(Visit<'a>)) {
    visit_statements(&tree.statements, table.scope(Contexts::MAIN), 0, visitor);
}

fn visit_statements<'a>(
    statements: &'a [Statement],
    mut scope: Scope<'_>,
    depth: usize,
    visitor: &mut dyn FnMut(Visit<'a>),
) {
    for statement in statements {
        let (verdict, block) = match scope.admit(statement) {
            Ok(spec) => (Verdict::Known(spec), Some(spec.block)),
            Err(error) => (Verdict::Fault(error), scope.block_of_refused(statement)),
        };
        visitor(Visit { statement, context: scope.context, depth, verdict });
        match block {
            Some(Block::Statements(inside)) => {
                visit_statements(statement.children(), scope.table.scope(inside), depth + 1, visitor);
            }
            Some(Block::Raw) => visit_rows(statement.children(), &Verdict::Row, depth + 1, visitor),
            Some(Block::No) | None => {
                visit_rows(statement.children(), &Verdict::Unjudged, depth + 1, visitor);
            }
        }
    }
}

fn visit_rows<'a>(rows: &'a [Statement], kind: &Verdict, depth: usize, visitor: &mut dyn FnMut(Visit<'a>)) {
    for statement in rows {
        let verdict = match (statement.fault(), kind) {
            (None, Verdict::Unjudged) => Verdict::Unjudged,
            _ => statement.as_row().map_or_else(Verdict::Fault, |_| Verdict::Row),
        };
        visitor(Visit { statement, context: Contexts::NONE, depth, verdict });
        visit_rows(statement.children(), &Verdict::Unjudged, depth + 1, visitor);
    }
}

/// The remark that an admitted statement deserves.
fn notice(statement: &Statement, spec: &'static Spec) -> Option<Error> {
    let name = spec.name;
    let kind = match spec.state {
        State::Honoured => return None,
        State::Differs(how) => ErrorKind::Differs { name, how },
        State::Accepted(why) => ErrorKind::NoEffect { name, why },
    };
    Some(Error::new(kind, statement).with_level(Level::Notice))
}
