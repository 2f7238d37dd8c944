//! `location`: names of locations, and the tables for URI lookups.
//!
//! Tables are sorted, and each prefix links to the next shorter one. `find_location` searches them.

use crate::ids::LocationId;
use crate::pattern::{Match, Pattern};
use crate::settings::core::Core;
use crate::settings::core::FoundBy;
use crate::template::Template;

/// The arguments of a `location`.
#[derive(Debug)]
pub struct Name {
    /// The path, pattern or name without modifier.
    pub(crate) text: String,
    pub(crate) kind: NameKind,
}

/// The kinds of names.
#[derive(Debug)]
pub(crate) enum NameKind {
    /// `= /x`
    Exact,
    /// `/x`, or `^~ /x`, which skips regular expressions.
    Prefix { skips_regex: bool },
    /// `~ x`, or `~* x`, which is case-insensitive.
    Pattern { pattern: Pattern, caseless: bool },
    /// `$x`: matches if the variable is neither empty nor `0`.
    Predicate(Template),
    /// `@x`
    Named,
}

impl Name {
    /// Stores in the location's settings how it is found.
    pub fn mark(&self, core: &mut Core) {
        core.found_by = match self.kind {
            NameKind::Exact => FoundBy::Exact(self.text.as_str().into()),
            NameKind::Prefix { .. } => FoundBy::Prefix(self.text.as_str().into()),
            // Neither matches a prefix of the URI that an alias could replace.
            NameKind::Pattern { .. } | NameKind::Predicate(_) => FoundBy::Pattern,
            NameKind::Named => FoundBy::Name,
        };
    }

    /// Returns the name with its modifier, for messages.
    pub fn as_written(&self) -> String {
        let modifier = match self.kind {
            NameKind::Exact => "= ",
            NameKind::Prefix { skips_regex: true } => "^~ ",
            NameKind::Pattern { caseless: false, .. } => "~ ",
            NameKind::Pattern { caseless: true, .. } => "~* ",
            NameKind::Prefix { .. } | NameKind::Predicate(_) | NameKind::Named => "",
        };
        format!("{modifier}{}", self.text)
    }
}

/// The locations of one block.
#[derive(Debug, Default)]
pub struct Locations {
    /// Sorted by path.
    pub(crate) exact: Vec<(Box<[u8]>, LocationId)>,
    /// Sorted by path.
    pub(crate) prefixes: Vec<Prefix>,
    /// Regular expressions, in the order of the configuration.
    pub(crate) patterns: Vec<(Pattern, LocationId)>,
    /// Predicates, in the order of the configuration.
    pub(crate) predicates: Vec<(Template, LocationId)>,
    /// Whether a search may evaluate a predicate, here or in a nested location.
    pub(crate) has_predicates: bool,
    /// Whether [`Locations::with_slash`] could find a location.
    pub(crate) has_slashes: bool,
    pub(crate) named: Vec<(String, LocationId)>,
}

/// A prefix and its location.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub(crate) path: Box<[u8]>,
    pub(crate) location: LocationId,
    pub(crate) skips_regex: bool,
    /// The next shorter path in the table that is a prefix of this path.
    pub(crate) shorter: Option<u32>,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct LocationMatch<'c> {
    /// The location; `None` means the server's own settings.
    pub location: Option<LocationId>,
    /// The match of a regular expression; [`Match::store`] stores its groups in a request.
    pub matched: Option<Match<'c>>,
}

impl Locations {
    /// Links each prefix to the next shorter one, which precedes it in the sorted table.
    pub(crate) fn link(&mut self) {
        for index in 1..self.prefixes.len() {
            let mut before = Some(index as u32 - 1);
            while let Some(position) = before {
                debug_assert!((position as usize) < index, "a shorter prefix precedes in the sorted table");
                let shorter = &self.prefixes[position as usize];
                if self.prefixes[index].path.starts_with(&shorter.path) {
                    break;
                }
                before = shorter.shorter;
            }
            self.prefixes[index].shorter = before;
        }
    }

    /// Whether the location of a URI also depends on variables, so that a search with the request has to find it.
    pub fn has_predicates(&self) -> bool {
        self.has_predicates
    }

    /// Returns the location of this name, including `@`.
    pub fn named(&self, name: &str) -> Option<LocationId> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, location)| *location)
    }

    /// Returns all locations in these tables, for reports.
    pub fn all(&self) -> impl Iterator<Item = LocationId> {
        let texts = self.exact.iter().map(|(_, location)| *location);
        let prefixes = self.prefixes.iter().map(|prefix| prefix.location);
        let patterns = self.patterns.iter().map(|(_, location)| *location);
        let predicates = self.predicates.iter().map(|(_, location)| *location);
        texts
            .chain(prefixes)
            .chain(patterns)
            .chain(predicates)
            .chain(self.named.iter().map(|(_, location)| *location))
    }

    /// Returns the longest prefix of the URI. The last path that is not greater than the URI starts with that prefix,
    /// if one exists: the chain of shorter paths leads to it.
    pub(crate) fn longest_prefix(&self, uri: &[u8]) -> Option<&Prefix> {
        let behind = self.prefixes.partition_point(|prefix| prefix.path.as_ref() <= uri);
        let mut position = behind.checked_sub(1)?;
        loop {
            let prefix = &self.prefixes[position];
            if uri.starts_with(&prefix.path) {
                return Some(prefix);
            }
            position = prefix.shorter? as usize;
        }
    }
}
