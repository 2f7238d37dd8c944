//! `location`: how locations are named, and which one a URI belongs to.
//!
//! nginx's search: an exact name ends it. Otherwise the longest prefix is remembered and searched inside
//! of; then patterns are tried in order, unless the prefix forbids it (`^~`), and the first that matches
//! wins. Tables are sorted, and each prefix knows the next shorter one, so a search costs one binary search
//! and a few steps back.

use conf::{Error, Statement};

use crate::config::{Cx, Location, LocationId};
use crate::modules::http_core::Conf;
use crate::modules::http_core::conf::FoundBy;
use crate::pattern::{Match, Pattern};

/// What a `location` is found by.
#[derive(Debug)]
pub(crate) struct Name {
    /// The path, pattern or name itself.
    text: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// `= /x`
    Exact,
    /// `/x`, or `^~ /x`, which keeps patterns out.
    Prefix { keeps_patterns_out: bool },
    /// `~ x`, or `~* x`, which takes no notice of case.
    Pattern { pattern: Pattern, caseless: bool },
    /// `@x`
    Named,
}

impl Name {
    /// Reads the arguments of a `location` inside of another one, or of a server.
    pub(crate) fn parse(cx: &mut Cx<'_>, around: Option<&Name>) -> Result<Name, Error> {
        let statement = cx.statement;
        let (modifier, text) = match statement.args.as_slice() {
            [modifier, text] => (modifier.text.as_str(), text.text.as_str()),
            _ => split_modifier(statement.arg(0)),
        };
        let prefix = |keeps_patterns_out| Kind::Prefix { keeps_patterns_out };
        let kind = match modifier {
            "" if text.starts_with('@') && statement.args.len() == 1 => Kind::Named,
            "" if statement.args.len() == 1 => prefix(false),
            "=" => Kind::Exact,
            "^~" => prefix(true),
            "~" => Kind::Pattern { pattern: cx.pattern(text, false)?, caseless: false },
            "~*" => Kind::Pattern { pattern: cx.pattern(text, true)?, caseless: true },
            _ => return Err(cx.error(format_args!("invalid location modifier \"{modifier}\""))),
        };
        let name = Name { text: text.to_owned(), kind };
        match around.map(|around| name.fault_inside(around)) {
            Some(Err(fault)) => Err(cx.error(fault)),
            _ => Ok(name),
        }
    }

    /// nginx's rules for locations in locations.
    fn fault_inside(&self, around: &Name) -> Result<(), String> {
        let (inner, outer) = (&self.text, &around.text);
        match (&around.kind, &self.kind) {
            (Kind::Exact, _) => {
                Err(format!("location \"{inner}\" cannot be inside the exact location \"{outer}\""))
            }
            (Kind::Named, _) => {
                Err(format!("location \"{inner}\" cannot be inside the named location \"{outer}\""))
            }
            (_, Kind::Named) => Err(format!("named location \"{inner}\" can be on the server level only")),
            (_, Kind::Pattern { .. }) => Ok(()),
            _ if inner.starts_with(outer) => Ok(()),
            _ => Err(format!("location \"{inner}\" is outside location \"{outer}\"")),
        }
    }

    /// Tells the location's settings how it is found.
    pub(crate) fn mark(&self, core: &mut Conf) {
        core.found_by = match self.kind {
            Kind::Exact | Kind::Prefix { .. } => FoundBy::Prefix(self.text.as_str().into()),
            Kind::Pattern { .. } => FoundBy::Pattern,
            Kind::Named => FoundBy::Name,
        };
    }

    /// With its modifier, for messages.
    pub(crate) fn as_written(&self) -> String {
        let modifier = match self.kind {
            Kind::Exact => "= ",
            Kind::Prefix { keeps_patterns_out: true } => "^~ ",
            Kind::Pattern { caseless: false, .. } => "~ ",
            Kind::Pattern { caseless: true, .. } => "~* ",
            Kind::Prefix { .. } | Kind::Named => "",
        };
        format!("{modifier}{}", self.text)
    }
}

/// The modifier of a name that was written without a space behind it.
fn split_modifier(text: &str) -> (&str, &str) {
    let modifiers = ["=", "^~", "~*", "~"];
    let found = modifiers.iter().find_map(|modifier| Some((*modifier, text.strip_prefix(modifier)?)));
    found.unwrap_or(("", text))
}

/// The locations of one block.
#[derive(Debug, Default)]
pub(crate) struct Locations {
    /// Sorted by path.
    exact: Vec<(Box<[u8]>, LocationId)>,
    /// Sorted by path.
    prefixes: Vec<Prefix>,
    /// In the order of the configuration.
    patterns: Vec<(Pattern, LocationId)>,
    named: Vec<(String, LocationId)>,
}

#[derive(Debug)]
struct Prefix {
    path: Box<[u8]>,
    location: LocationId,
    keeps_patterns_out: bool,
    /// The next shorter path in the table that this one starts with.
    shorter: Option<u32>,
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Found<'c> {
    /// The location; `None` leaves it to the server's own settings.
    pub(crate) location: Option<LocationId>,
    /// What a pattern matched; [`Match::store`] makes it known to a request.
    pub(crate) matched: Option<Match<'c>>,
}

impl Locations {
    /// The tables of the locations of one block.
    pub(crate) fn build(found: Vec<(Name, LocationId, &Statement)>) -> Result<Locations, Error> {
        let mut locations = Locations::default();
        for (name, location, statement) in found {
            let Name { text, kind } = name;
            let path: Box<[u8]> = text.as_bytes().into();
            let duplicate = || Error::at(statement, format_args!("duplicate location \"{text}\""));
            match kind {
                Kind::Exact => match locations.exact.binary_search_by(|(known, _)| known.cmp(&path)) {
                    Ok(_) => return Err(duplicate()),
                    Err(place) => locations.exact.insert(place, (path, location)),
                },
                Kind::Prefix { keeps_patterns_out } => {
                    match locations.prefixes.binary_search_by(|known| known.path.cmp(&path)) {
                        Ok(_) => return Err(duplicate()),
                        Err(place) => {
                            let prefix = Prefix { path, location, keeps_patterns_out, shorter: None };
                            locations.prefixes.insert(place, prefix);
                        }
                    }
                }
                Kind::Pattern { pattern, .. } => locations.patterns.push((pattern, location)),
                Kind::Named => locations.named.push((text, location)),
            }
        }
        locations.link();
        Ok(locations)
    }

    /// Lets each prefix know the next shorter one, which stands before it in the order of paths.
    fn link(&mut self) {
        for index in 1..self.prefixes.len() {
            let mut before = Some(index as u32 - 1);
            while let Some(place) = before {
                let shorter = &self.prefixes[place as usize];
                if self.prefixes[index].path.starts_with(&shorter.path) {
                    break;
                }
                before = shorter.shorter;
            }
            self.prefixes[index].shorter = before;
        }
    }

    /// The location of a URI. `arena` holds the locations that these tables number.
    pub(crate) fn find<'c>(&'c self, arena: &'c [Location], uri: &[u8]) -> Found<'c> {
        let mut found = Found::default();
        self.search(arena, uri, &mut found);
        found
    }

    /// The location of this name, `@` included.
    pub(crate) fn named(&self, name: &str) -> Option<LocationId> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, location)| *location)
    }

    /// Every location of these tables, for reports.
    pub(crate) fn all(&self) -> impl Iterator<Item = LocationId> {
        let texts = self.exact.iter().map(|(_, location)| *location);
        let prefixes = self.prefixes.iter().map(|prefix| prefix.location);
        let patterns = self.patterns.iter().map(|(_, location)| *location);
        texts.chain(prefixes).chain(patterns).chain(self.named.iter().map(|(_, location)| *location))
    }

    /// Whether the search is over: an exact name or a pattern was found.
    fn search<'c>(&'c self, arena: &'c [Location], uri: &[u8], found: &mut Found<'c>) -> bool {
        if let Ok(place) = self.exact.binary_search_by(|(path, _)| path.as_ref().cmp(uri)) {
            found.location = Some(self.exact[place].1);
            return true;
        }
        let mut try_patterns = true;
        if let Some(prefix) = self.longest_prefix(uri) {
            found.location = Some(prefix.location);
            try_patterns = !prefix.keeps_patterns_out;
            if arena[prefix.location.0 as usize].nested.search(arena, uri, found) {
                return true;
            }
        }
        let mut patterns = self.patterns.iter().filter(|_| try_patterns);
        let matching = patterns.find_map(|(pattern, location)| Some((pattern.find(uri)?, *location)));
        let Some((matched, location)) = matching else { return false };
        (found.location, found.matched) = (Some(location), Some(matched));
        arena[location.0 as usize].nested.search(arena, uri, found);
        true
    }

    /// The last path in order that is not behind the URI starts with the wanted one, if there is one: the
    /// chain of shorter paths leads to it.
    fn longest_prefix(&self, uri: &[u8]) -> Option<&Prefix> {
        let behind = self.prefixes.partition_point(|prefix| prefix.path.as_ref() <= uri);
        let mut place = behind.checked_sub(1)?;
        loop {
            let prefix = &self.prefixes[place];
            if uri.starts_with(&prefix.path) {
                return Some(prefix);
            }
            place = prefix.shorter? as usize;
        }
    }
}
