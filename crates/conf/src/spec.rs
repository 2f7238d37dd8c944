//! Directives as data: contexts, arguments and help of each directive, and the table of all directives.
//!
//! The entries are `const`, defined by the modules of the directives:
//!
//! ```
//! use conf::{Args, Contexts, Spec};
//!
//! const HTTP_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
//! static DIRECTIVES: [Spec; 1] =
//!     [Spec::new("http_core", "sendfile", HTTP_LEVELS, Args::Flag, "Sends files without copying.").default("off")];
//! ```

use std::collections::HashMap;
use std::fmt;
use std::ops::{BitAnd, BitOr};

use crate::nginx::{NginxDirective, nginx_directives};

/// A set of the contexts that nginx distinguishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts(u32);

impl Contexts {
    /// Outside all blocks.
    pub const MAIN: Contexts = Contexts(1);
    /// `events {}`
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// `http {}`
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// `server {}` in `http {}`
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// `location {}`
    pub const LOCATION: Contexts = Contexts(1 << 4);
    /// `if () {}` in a server
    pub const SERVER_IF: Contexts = Contexts(1 << 5);
    /// `if () {}` in a location
    pub const LOCATION_IF: Contexts = Contexts(1 << 6);
    /// `limit_except {}`
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    /// `upstream {}` in `http {}`
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// `mail {}`
    pub const MAIL: Contexts = Contexts(1 << 9);
    /// `server {}` in `mail {}`
    pub const MAIL_SERVER: Contexts = Contexts(1 << 10);
    /// `stream {}`
    pub const STREAM: Contexts = Contexts(1 << 11);
    /// `server {}` in `stream {}`
    pub const STREAM_SERVER: Contexts = Contexts(1 << 12);
    /// `upstream {}` in `stream {}`
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 13);
    /// Everywhere.
    pub const ANY: Contexts = Contexts((1 << 14) - 1);
    /// Nowhere.
    pub const NONE: Contexts = Contexts(0);

    /// Each context with its name in the data file and its name in prose.
    pub(crate) const NAMES: [(Contexts, &'static str, &'static str); 14] = [
        (Contexts::MAIN, "main", "main"),
        (Contexts::EVENTS, "events", "events"),
        (Contexts::HTTP, "http", "http"),
        (Contexts::SERVER, "server", "server"),
        (Contexts::LOCATION, "location", "location"),
        (Contexts::SERVER_IF, "if-in-server", "if in server"),
        (Contexts::LOCATION_IF, "if-in-location", "if in location"),
        (Contexts::LIMIT_EXCEPT, "limit_except", "limit_except"),
        (Contexts::UPSTREAM, "upstream", "upstream"),
        (Contexts::MAIL, "mail", "mail"),
        (Contexts::MAIL_SERVER, "mail-server", "server of mail"),
        (Contexts::STREAM, "stream", "stream"),
        (Contexts::STREAM_SERVER, "stream-server", "server of stream"),
        (Contexts::STREAM_UPSTREAM, "stream-upstream", "upstream of stream"),
    ];

    /// Returns the union, like `|`, but for use in constants.
    #[must_use]
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Returns all contexts under the same top-level block.
    fn family(self) -> Contexts {
        let mail = Contexts::MAIL | Contexts::MAIL_SERVER;
        let stream = Contexts::STREAM | Contexts::STREAM_SERVER | Contexts::STREAM_UPSTREAM;
        let others = Contexts(Contexts::ANY.0 & !(mail | stream).0);
        [mail, stream].into_iter().find(|family| family.intersects(self)).unwrap_or(others)
    }

    /// Whether the sets have a common member.
    pub const fn intersects(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Contexts {
    type Output = Contexts;
    fn bitor(self, other: Contexts) -> Contexts {
        self.or(other)
    }
}

impl BitAnd for Contexts {
    type Output = Contexts;
    fn bitand(self, other: Contexts) -> Contexts {
        Contexts(self.0 & other.0)
    }
}

/// `http, server, if in location`
impl fmt::Display for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Contexts::ANY {
            return f.write_str("any context");
        }
        let members = Contexts::NAMES.iter().filter(|(context, _, _)| self.intersects(*context));
        let names: Vec<&str> = members.map(|(_, _, prose)| *prose).collect();
        f.write_str(&names.join(", "))
    }
}

/// Number of arguments of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Args {
    /// No argument.
    None,
    /// Exactly this many.
    Exactly(u8),
    /// A range, both bounds included.
    Between(u8, u8),
    /// At least this many.
    AtLeast(u8),
    /// One argument, `on` or `off`.
    Flag,
    /// Any number.
    Any,
}

impl Args {
    /// Whether this number of arguments is allowed.
    pub fn allows(self, count: usize) -> bool {
        let (min, max) = self.range();
        usize::from(min) <= count && max.is_none_or(|max| count <= usize::from(max))
    }

    /// Returns the least and the greatest number; `None` is no limit.
    pub fn range(self) -> (u8, Option<u8>) {
        match self {
            Args::None => (0, Some(0)),
            Args::Exactly(count) => (count, Some(count)),
            Args::Between(min, max) => (min, Some(max)),
            Args::AtLeast(min) => (min, None),
            Args::Flag => (1, Some(1)),
            Args::Any => (0, None),
        }
    }
}

/// `1 argument`, `1 to 3 arguments`, `at least 1 argument`
impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u8| if count == 1 { "" } else { "s" };
        match self.range() {
            (0, None) => f.write_str("any number of arguments"),
            (0, Some(0)) => f.write_str("no arguments"),
            (min, None) => write!(f, "at least {min} argument{}", plural(min)),
            (min, Some(max)) if min == max => write!(f, "{min} argument{}", plural(min)),
            (min, Some(max)) => write!(f, "{min} to {max} arguments"),
        }
    }
}

/// Kind of a directive's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// No block.
    No,
    /// Directives in this context.
    Statements(Contexts),
    /// Free-form rows, as in `types` and `map`; see [`Statement::rows`](crate::Statement::rows).
    Raw,
}

/// Whether a directive may be repeated in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// No: `"x" directive is duplicate`.
    Once,
    /// Yes.
    Many,
}

/// Degree of support of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Works as in nginx.
    Honoured,
    /// Behaves differently; the text describes it as a clause: "`reuseport` is implied".
    Differs(&'static str),
    /// Accepted without effect; the text has the reason.
    Accepted(&'static str),
    /// Has no effect, as in nginx on Linux; the text has the reason.
    Idle(&'static str),
}

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The directive.
    pub name: &'static str,
    /// nginx's module, or a module of this server.
    pub module: &'static str,
    /// Contexts in which it is allowed.
    pub contexts: Contexts,
    /// Its arguments.
    pub args: Args,
    /// Kind of its block.
    pub block: Block,
    /// Whether it may be repeated in a block.
    pub repeat: Repeat,
    /// Its default; `None` if it cannot be expressed as arguments.
    pub default: Option<&'static str>,
    /// Help text of one sentence.
    pub help: &'static str,
    /// Degree of support.
    pub state: Support,
}

impl Spec {
    /// Creates a simple directive that works as in nginx, is allowed once per block and has no default.
    pub const fn new(
        module: &'static str,
        name: &'static str,
        contexts: Contexts,
        args: Args,
        help: &'static str,
    ) -> Spec {
        let (block, repeat, state) = (Block::No, Repeat::Once, Support::Honoured);
        Spec { name, module, contexts, args, block, repeat, default: None, help, state }
    }

    /// Sets the default, as written in a configuration.
    #[must_use]
    pub const fn default(mut self, text: &'static str) -> Spec {
        self.default = Some(text);
        self
    }

    /// Adds a block of directives in this context.
    #[must_use]
    pub const fn block(mut self, inside: Contexts) -> Spec {
        self.block = Block::Statements(inside);
        self
    }

    /// Adds a block of free-form rows.
    #[must_use]
    pub const fn raw(mut self) -> Spec {
        self.block = Block::Raw;
        self
    }

    /// Allows repetition in a block.
    #[must_use]
    pub const fn many(mut self) -> Spec {
        self.repeat = Repeat::Many;
        self
    }

    /// Sets the degree of support, if it is not [`Support::Honoured`].
    #[must_use]
    pub const fn state(mut self, state: Support) -> Spec {
        self.state = state;
        self
    }
}

/// The directives of this server.
#[derive(Debug)]
pub struct Table {
    specs: Vec<&'static Spec>,
    by_name: HashMap<&'static str, Vec<&'static Spec>>,
}

/// A name may occur several times with different contexts, such as `server`.
impl FromIterator<&'static Spec> for Table {
    fn from_iter<I: IntoIterator<Item = &'static Spec>>(specs: I) -> Table {
        let specs: Vec<&'static Spec> = specs.into_iter().collect();
        let mut by_name: HashMap<&'static str, Vec<&'static Spec>> = HashMap::new();
        for &spec in &specs {
            by_name.entry(spec.name).or_default().push(spec);
        }
        Table { specs, by_name }
    }
}

impl Table {
    /// Creates a table from the directives of all modules.
    pub fn new(groups: &[&'static [Spec]]) -> Table {
        groups.iter().copied().flatten().collect()
    }

    /// Returns all entries in the order in which they were added.
    pub fn specs(&self) -> impl Iterator<Item = &'static Spec> {
        self.specs.iter().copied()
    }

    /// Returns the entries with this name: one for each meaning, in different contexts.
    pub fn named(&self, name: &str) -> &[&'static Spec] {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the entry that applies in this context.
    pub fn find(&self, name: &str, context: Contexts) -> Option<&'static Spec> {
        self.named(name).iter().copied().find(|spec| spec.contexts.intersects(context))
    }

    /// Returns the directive of nginx with this name in this context, if this table lacks it.
    pub fn not_supported(&self, name: &str, context: Contexts) -> Option<&'static NginxDirective> {
        let has = |module: &str| self.named(name).iter().any(|spec| spec.module == module);
        nginx_directives()
            .named(name)
            .find(|directive| directive.contexts.intersects(context) && !has(directive.module))
    }

    /// Returns all contexts in which this table or nginx allows a directive with this name.
    pub(crate) fn contexts_of(&self, name: &str) -> Contexts {
        let ours = self.named(name).iter().map(|spec| spec.contexts);
        let theirs = nginx_directives().named(name).map(|directive| directive.contexts);
        ours.chain(theirs).fold(Contexts::NONE, Contexts::or)
    }

    /// Returns a similar directive (see [`similar`]), and its contexts if it is not allowed in this context. A directive of
    /// another context must be more similar.
    pub(crate) fn similar(&self, name: &str, context: Contexts) -> (Option<&'static str>, Contexts) {
        let ours = self.specs().map(|spec| (spec.contexts, spec.name));
        let theirs = nginx_directives().iter().map(|row| (row.contexts, row.name));
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            ours.chain(theirs).partition(|(contexts, _)| contexts.intersects(context));
        let nearest =
            |known: Vec<(Contexts, &'static str)>| nearest(name, known.into_iter().map(|(_, known)| known));
        let (here, elsewhere) = (nearest(here), nearest(elsewhere));
        match (here, elsewhere) {
            (Some(here), Some(elsewhere)) if here.0 <= elsewhere.0 => (Some(here.1), Contexts::NONE),
            (_, Some((_, known))) => {
                let allowed = self.contexts_of(known);
                let near = allowed & context.family();
                (Some(known), if near == Contexts::NONE { allowed } else { near })
            }
            (here, None) => (here.map(|(_, known)| known), Contexts::NONE),
        }
    }
}

/// Returns the known word that a misspelled word probably stands for: the most similar one, if it is similar enough.
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest(word, known).map(|(_, known)| known)
}

/// Returns the most similar of the known words and its edit distance, which is at most one edit per three letters.
fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    let (length, letters) = outline(word);
    let slips_max = (length / 3).clamp(1, 3);
    // An edit changes the length by at most one, and the set of letters by at most two. So most words differ too much in length
    // or letters, and their edit distance need not be computed.
    let is_near = |known: &&str| {
        let (known_length, known_letters) = outline(known);
        let others = (known_letters ^ letters).count_ones() as usize;
        known_length.abs_diff(length) <= slips_max && others <= 2 * slips_max
    };
    let near = known.into_iter().filter(is_near);
    near.map(|known| (edit_distance(word, known), known)).filter(|(slips, _)| *slips <= slips_max).min()
}

/// Returns the number of letters of a word, and their set, hashed to 64 bits.
fn outline(word: &str) -> (usize, u64) {
    word.chars().fold((0, 0), |(length, set), letter| (length + 1, set | 1 << (u32::from(letter) % 64)))
}

/// Returns the edit distance of two words: insertions, deletions, replacements, and swaps of neighbours.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_words_are_recognised_and_other_words_are_not() {
        let known = ["serve", "check", "engines", "größe"];
        assert_eq!(similar("sevre", known), Some("serve"));
        assert_eq!(similar("engins", known), Some("engines"));
        assert_eq!(similar("größen", known), Some("größe"));
        assert_eq!(similar("start", known), None);
    }
}
