//! The statements of a configuration with their parents, and which of them are in effect in a block.

use std::fmt;
use std::path::Path;

use conf::{Span, Statement, Tree};

/// What the caller knows about the machine.
pub trait Facts: fmt::Debug {
    /// Whether a path exists; `None` if this is not known. Relative paths start from the prefix.
    fn exists(&self, path: &Path) -> Option<bool>;

    /// Whether the certificate in a file is valid for a host; `None` if it cannot be read.
    fn is_certificate_for(&self, path: &Path, host: &str) -> Option<bool>;

    /// Returns the errors for which the server refuses the configuration.
    fn refusals(&self, tree: &Tree) -> Vec<Refusal>;

    /// Whether a pattern of `include` matches a file; `None` if this is not known.
    fn glob_matches(&self, pattern: &str) -> Option<bool>;
}

/// An error for which the server refuses a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The position of the statement; `None` for an error of the configuration as a whole.
    pub at: Option<Span>,
    /// The cause.
    pub message: String,
    /// The text to write instead.
    pub remedy: Option<String>,
}

/// The facts of a caller that knows nothing about the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn exists(&self, _: &Path) -> Option<bool> {
        None
    }

    fn is_certificate_for(&self, _: &Path, _: &str) -> Option<bool> {
        None
    }

    fn refusals(&self, _: &Tree) -> Vec<Refusal> {
        Vec::new()
    }

    fn glob_matches(&self, _: &str) -> Option<bool> {
        None
    }
}

#[derive(Debug)]
struct Node<'t> {
    statement: &'t Statement,
    parent: Option<usize>,
    children: Vec<usize>,
}

/// A configuration.
#[derive(Debug)]
pub struct Model<'t> {
    /// In the order of the text.
    nodes: Vec<Node<'t>>,
    /// The facts about the machine.
    pub facts: &'t dyn Facts,
    /// The statements and the files.
    pub tree: &'t Tree,
}

impl<'t> Model<'t> {
    /// Creates the model of a tree.
    pub fn new(tree: &'t Tree, facts: &'t dyn Facts) -> Model<'t> {
        let mut model = Model { nodes: Vec::new(), facts, tree };
        for statement in &tree.statements {
            model.add(statement, None);
        }
        model
    }

    fn add(&mut self, statement: &'t Statement, parent: Option<usize>) -> usize {
        let id = self.nodes.len();
        self.nodes.push(Node { statement, parent, children: Vec::new() });
        for child in statement.children() {
            let child = self.add(child, Some(id));
            self.nodes[id].children.push(child);
        }
        id
    }

    /// Returns all statements.
    pub fn all(&self) -> impl Iterator<Item = At<'_, 't>> {
        (0..self.nodes.len()).map(|id| At { model: self, id })
    }

    /// Returns all statements with this name.
    pub fn named<'m>(&'m self, name: &'m str) -> impl Iterator<Item = At<'m, 't>> {
        self.all().filter(move |at| at.name() == name && !at.is_row())
    }

    /// Returns all locations.
    pub fn locations(&self) -> impl Iterator<Item = At<'_, 't>> {
        self.named("location")
    }
}

/// A statement in its place.
#[derive(Clone, Copy)]
pub struct At<'m, 't> {
    model: &'m Model<'t>,
    id: usize,
}

impl fmt::Debug for At<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name(), self.statement().span())
    }
}

impl PartialEq for At<'_, '_> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// Blocks whose children are no directives.
const OF_ROWS: [&str; 7] = ["map", "geo", "types", "split_clients", "charset_map", "match", "geoip2"];

impl<'m, 't> At<'m, 't> {
    /// Returns the statement.
    pub fn statement(self) -> &'t Statement {
        self.node().statement
    }

    fn node(self) -> &'m Node<'t> {
        &self.model.nodes[self.id]
    }

    /// Returns its name.
    pub fn name(self) -> &'t str {
        &self.statement().name.text
    }

    /// Returns an argument, 0-based; empty if there is none.
    pub fn arg(self, index: usize) -> &'t str {
        self.statement().arg(index).unwrap_or_default()
    }

    /// Returns the arguments.
    pub fn args(self) -> impl Iterator<Item = &'t str> {
        self.statement().texts()
    }

    /// Returns the last argument; empty if there is none.
    pub fn last(self) -> &'t str {
        self.args().last().unwrap_or_default()
    }

    /// Whether an argument has this text.
    pub fn has(self, text: &str) -> bool {
        self.args().any(|arg| arg == text)
    }

    /// Returns the name and the arguments with blanks between them.
    pub fn written(self) -> String {
        let words = std::iter::once(self.name()).chain(self.args());
        words.collect::<Vec<_>>().join(" ")
    }

    /// Whether it is a row of a block such as `map`.
    pub fn is_row(self) -> bool {
        self.parent().is_some_and(|parent| OF_ROWS.contains(&parent.name()))
    }

    /// Returns the enclosing statement.
    pub fn parent(self) -> Option<At<'m, 't>> {
        self.node().parent.map(|id| At { id, ..self })
    }

    /// Returns the enclosing statements, the innermost first.
    pub fn above(self) -> impl Iterator<Item = At<'m, 't>> {
        std::iter::successors(self.parent(), |at| at.parent())
    }

    /// Returns this block and the enclosing ones, the innermost first.
    pub fn here_and_above(self) -> impl Iterator<Item = At<'m, 't>> {
        std::iter::once(self).chain(self.above())
    }

    /// Returns the statements directly in this block.
    pub fn children(self) -> impl Iterator<Item = At<'m, 't>> {
        self.node().children.iter().map(move |id| At { id: *id, ..self })
    }

    /// Returns the statements directly in this block with this name.
    pub fn own(self, name: &'m str) -> impl Iterator<Item = At<'m, 't>> {
        self.children().filter(move |child| child.name() == name)
    }

    /// Whether this block has a statement with one of these names.
    pub fn has_own(self, names: &[&str]) -> bool {
        self.children().any(|child| names.contains(&child.name()))
    }

    /// Returns all statements inside, at any depth.
    pub fn inside(self) -> impl Iterator<Item = At<'m, 't>> {
        let ids = self.id + 1..self.model.nodes.len();
        ids.map(move |id| At { id, ..self }).take_while(move |at| at.above().any(|above| above.id == self.id))
    }

    /// Returns the innermost enclosing block (or this one) with this name.
    pub fn enclosing(self, name: &str) -> Option<At<'m, 't>> {
        self.here_and_above().find(|at| at.name() == name && at.statement().block.is_some())
    }

    /// Returns the server.
    pub fn server(self) -> Option<At<'m, 't>> {
        self.enclosing("server")
    }

    /// Returns the statements with this name that are in effect in this block: those of the innermost block that has any.
    pub fn in_effect(self, name: &'m str) -> Vec<At<'m, 't>> {
        let of = |block: At<'m, 't>| block.own(name).collect::<Vec<_>>();
        self.here_and_above().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Returns the statement with this name that is in effect in this block.
    pub fn setting(self, name: &'m str) -> Option<At<'m, 't>> {
        self.in_effect(name).pop()
    }

    /// Whether the setting in effect has this first argument.
    pub fn is_set(self, name: &'m str, value: &str) -> bool {
        self.setting(name).is_some_and(|setting| setting.arg(0) == value)
    }

    /// Returns the model.
    pub fn model(self) -> &'m Model<'t> {
        self.model
    }

    /// Whether this statement is before another one in the text.
    pub fn is_before(self, other: At<'_, '_>) -> bool {
        self.id < other.id
    }
}

/// The name of a location, split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location<'t> {
    /// `=`, `^~`, `~`, `~*`, `@`, or empty.
    pub(crate) kind: &'static str,
    /// The path, the pattern or the name.
    pub(crate) path: &'t str,
}

impl<'t> Location<'t> {
    /// Splits the arguments of a location.
    pub(crate) fn of(at: At<'_, 't>) -> Location<'t> {
        let (first, second) = (at.arg(0), at.statement().arg(1));
        for kind in ["~*", "^~", "~", "="] {
            match (first.strip_prefix(kind), second) {
                (Some(""), Some(path)) => return Location { kind, path },
                (Some(path), None) if !path.is_empty() => return Location { kind, path },
                _ => {}
            }
        }
        match first.strip_prefix('@') {
            Some(path) => Location { kind: "@", path },
            None => Location { kind: "", path: first },
        }
    }

    /// Whether it is a regular expression.
    pub(crate) fn is_regex(self) -> bool {
        matches!(self.kind, "~" | "~*")
    }

    /// Whether it is a prefix.
    pub(crate) fn is_prefix(self) -> bool {
        matches!(self.kind, "" | "^~")
    }
}
