//! Directives as data: the contexts of a directive, its arguments, its help, and the table of all of them.
//!
//! The entries are `const`, written by the owners of the directives:
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

    /// The union; `|` for use in constants.
    #[must_use]
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Everything below the same block of `main`.
    fn family(self) -> Contexts {
        let mail = Contexts::MAIL | Contexts::MAIL_SERVER;
        let stream = Contexts::STREAM | Contexts::STREAM_SERVER | Contexts::STREAM_UPSTREAM;
        let others = Contexts(Contexts::ANY.0 & !(mail | stream).0);
        [mail, stream].into_iter().find(|family| family.intersects(self)).unwrap_or(others)
    }

    /// True if the sets have a member in common.
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

/// How many arguments a directive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Args {
    /// None at all.
    None,
    /// This many.
    Exactly(u8),
    /// From the first to the second, both included.
    Between(u8, u8),
    /// This many or more.
    AtLeast(u8),
    /// One: `on` or `off`.
    Flag,
    /// Any number.
    Any,
}

impl Args {
    /// True if a directive may have this many.
    pub fn allows(self, count: usize) -> bool {
        let (min, max) = self.range();
        usize::from(min) <= count && max.is_none_or(|max| count <= usize::from(max))
    }

    pub(crate) fn range(self) -> (u8, Option<u8>) {
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

/// The content of the braces of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// There are no braces.
    No,
    /// Directives, in this context.
    Statements(Contexts),
    /// Rows of free form, as in `types` and `map`; see [`Statement::rows`](crate::Statement::rows).
    Raw,
}

/// May a directive be written twice in one block?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// No: `"x" directive is duplicate`.
    Once,
    /// Yes.
    Many,
}

/// How well a directive is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works as in nginx.
    Honoured,
    /// It does something else; the text describes it, as a clause: "`reuseport` is implied".
    Differs(&'static str),
    /// It is accepted and does nothing; the text has the reason.
    Accepted(&'static str),
    /// It does nothing, as in nginx on Linux; the text has the reason.
    Idle(&'static str),
}

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The directive.
    pub name: &'static str,
    /// nginx's module, or this server's own.
    pub module: &'static str,
    /// Where it may stand.
    pub contexts: Contexts,
    /// Its arguments.
    pub args: Args,
    /// The content of its braces.
    pub block: Block,
    /// May it be repeated in a block?
    pub repeat: Repeat,
    /// Its default; `None` if that is not expressible as arguments.
    pub default: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
    /// How well it is served.
    pub state: State,
}

impl Spec {
    /// A simple directive that is honoured, may be written once in a block and has no default.
    pub const fn new(
        module: &'static str,
        name: &'static str,
        contexts: Contexts,
        args: Args,
        help: &'static str,
    ) -> Spec {
        let (block, repeat, state) = (Block::No, Repeat::Once, State::Honoured);
        Spec { name, module, contexts, args, block, repeat, default: None, help, state }
    }

    /// With a default, as it would be written.
    #[must_use]
    pub const fn default(mut self, text: &'static str) -> Spec {
        self.default = Some(text);
        self
    }

    /// With braces around directives of this context.
    #[must_use]
    pub const fn block(mut self, inside: Contexts) -> Spec {
        self.block = Block::Statements(inside);
        self
    }

    /// With braces around rows of free form.
    #[must_use]
    pub const fn raw(mut self) -> Spec {
        self.block = Block::Raw;
        self
    }

    /// May be repeated in a block.
    #[must_use]
    pub const fn many(mut self) -> Spec {
        self.repeat = Repeat::Many;
        self
    }

    /// Served in another way than by nginx, or not at all.
    #[must_use]
    pub const fn state(mut self, state: State) -> Spec {
        self.state = state;
        self
    }
}

/// The directives of this server, beside those of nginx that it does not have.
#[derive(Debug)]
pub struct Table {
    specs: Vec<&'static Spec>,
    by_name: HashMap<&'static str, Vec<&'static Spec>>,
}

/// A name may occur several times if the contexts differ, as `server` does.
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
    /// A table of the directives of all modules.
    pub fn new(groups: &[&'static [Spec]]) -> Table {
        groups.iter().copied().flatten().collect()
    }

    /// All entries in the order given.
    pub fn specs(&self) -> impl Iterator<Item = &'static Spec> {
        self.specs.iter().copied()
    }

    /// The entries of this name, one for each context in which it means something else.
    pub fn named(&self, name: &str) -> &[&'static Spec] {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The entry that holds in this context.
    pub fn find(&self, name: &str, context: Contexts) -> Option<&'static Spec> {
        self.named(name).iter().copied().find(|spec| spec.contexts.intersects(context))
    }

    /// A directive of nginx, of this name and in this context, that this table lacks.
    pub fn not_built(&self, name: &str, context: Contexts) -> Option<&'static NginxDirective> {
        let has = |module: &str| self.named(name).iter().any(|spec| spec.module == module);
        nginx_directives()
            .named(name)
            .find(|directive| directive.contexts.intersects(context) && !has(directive.module))
    }

    /// Everywhere that this table or nginx lets a directive of this name stand.
    pub(crate) fn contexts_of(&self, name: &str) -> Contexts {
        let ours = self.named(name).iter().map(|spec| spec.contexts);
        let theirs = nginx_directives().named(name).map(|directive| directive.contexts);
        ours.chain(theirs).fold(Contexts::NONE, Contexts::or)
    }

    /// The directive that was probably meant, one slip for each three letters, and where it may stand unless that is this
    /// context. One of another context has to be closer.
    pub(crate) fn similar(&self, name: &str, context: Contexts) -> (Option<&'static str>, Contexts) {
        let slips_max = slips_max(name);
        let ours = self.specs().map(|spec| (spec.contexts, spec.name));
        let theirs = nginx_directives().iter().map(|row| (row.contexts, row.name));
        let (mut here, mut elsewhere) = (None, None);
        // Known names are ASCII. Those of another length or of other letters, which are the most, are not compared: a
        // slip changes the length by one, and the set of letters by two.
        let (length, letters) = (name.chars().count(), letters(name));
        let is_near = |(_, known): &(Contexts, &'static str)| {
            let others = (self::letters(known) ^ letters).count_ones() as usize;
            known.len().abs_diff(length) <= slips_max && others <= 2 * slips_max
        };
        for (contexts, known) in ours.chain(theirs).filter(is_near) {
            let slips = edit_distance(name, known);
            let best = if contexts.intersects(context) { &mut here } else { &mut elsewhere };
            if slips <= slips_max && best.is_none_or(|best| (slips, known) < best) {
                *best = Some((slips, known));
            }
        }
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

/// The set of bytes in a word, several to a bit.
fn letters(word: &str) -> u64 {
    word.bytes().fold(0, |set, byte| set | 1 << (byte % 64))
}

/// How far a word may be from the one that was meant: one slip for each three letters.
pub fn slips_max(word: &str) -> usize {
    (word.chars().count() / 3).clamp(1, 3)
}

/// How far two words are apart: letters to insert, drop, replace, or swap with their neighbour.
pub fn edit_distance(a: &str, b: &str) -> usize {
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
