//! `location`: how locations are named, and which one a URI belongs to.
//!
//! nginx's search: an exact name ends it. Otherwise the longest prefix is remembered and searched inside
//! of; then patterns are tried in order, unless the prefix forbids it (`^~`), and the first that matches
//! wins. Where neither an exact name nor a pattern is found, predicates are tried in order: variables whose
//! value sends a request into their location. Tables are sorted, and each prefix knows the next shorter one, so
//! a search costs one binary search and a few steps back.

use std::cmp::Ordering;

use conf::{Error, Statement};

use crate::config::{Cx, Location, LocationId};
use crate::pattern::{GaveUp, Match, Pattern};
use crate::request::Request;
use crate::settings::core::Core;
use crate::settings::core::FoundBy;
use crate::template::{self, Template};

/// What a `location` is found by.
#[derive(Debug)]
pub struct Name {
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
    /// `$x`: requests for which the variable has a value that is not `0`.
    Predicate(Template),
    /// `@x`
    Named,
}

impl Name {
    /// Reads the arguments of a `location` inside of another one, or of a server.
    pub fn parse(cx: &mut Cx<'_>, around: Option<&Name>) -> Result<Name, Error> {
        let statement = cx.statement;
        let (modifier, text) = match statement.args.as_slice() {
            [modifier, text] => (modifier.text.as_str(), text.text.as_str()),
            _ => split_modifier(statement.arg(0)),
        };
        let prefix = |keeps_patterns_out| Kind::Prefix { keeps_patterns_out };
        let kind = match modifier {
            "" if text.starts_with('@') && statement.args.len() == 1 => Kind::Named,
            "" if text.starts_with('$') && statement.args.len() == 1 => Kind::Predicate(predicate(cx, text)?),
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
            // A predicate says nothing about the URI, so nothing inside of it can contradict.
            (Kind::Predicate(_), _) | (_, Kind::Pattern { .. } | Kind::Predicate(_)) => Ok(()),
            _ if inner.starts_with(outer) => Ok(()),
            _ => Err(format!("location \"{inner}\" is outside location \"{outer}\"")),
        }
    }

    /// Tells the location's settings how it is found.
    pub fn mark(&self, core: &mut Core) {
        core.found_by = match self.kind {
            Kind::Exact | Kind::Prefix { .. } => FoundBy::Prefix(self.text.as_str().into()),
            // Neither has a part of the URI that an alias could stand for.
            Kind::Pattern { .. } | Kind::Predicate(_) => FoundBy::Pattern,
            Kind::Named => FoundBy::Name,
        };
    }

    /// With its modifier, for messages.
    pub fn as_written(&self) -> String {
        let modifier = match self.kind {
            Kind::Exact => "= ",
            Kind::Prefix { keeps_patterns_out: true } => "^~ ",
            Kind::Pattern { caseless: false, .. } => "~ ",
            Kind::Pattern { caseless: true, .. } => "~* ",
            Kind::Prefix { .. } | Kind::Predicate(_) | Kind::Named => "",
        };
        format!("{modifier}{}", self.text)
    }
}

/// The one variable that a predicate consists of. More text behind it belongs to its name in nginx, where no
/// variable is called so.
fn predicate(cx: &mut Cx<'_>, text: &str) -> Result<Template, Error> {
    match template::variable_name(&text[1..]) {
        Ok((_, length)) if length == text.len() - 1 => cx.template(text),
        _ => Err(cx.error(format_args!("unknown \"{}\" variable", &text[1..]))),
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
pub struct Locations {
    /// Sorted by path.
    exact: Vec<(Box<[u8]>, LocationId)>,
    /// Sorted by path.
    prefixes: Vec<Prefix>,
    /// In the order of the configuration.
    patterns: Vec<(Pattern, LocationId)>,
    /// In the order of the configuration.
    predicates: Vec<(Template, LocationId)>,
    /// Whether a search may meet a predicate, here or in a location of these tables.
    has_predicates: bool,
    /// Whether there is a location that [`Locations::with_slash`] could find.
    has_slashes: bool,
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

/// What a search tells as it goes, and what it asks.
trait Seeker<'c> {
    /// A location that fits better than those before.
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>);
    /// Whether the predicate sends the request into its location.
    fn holds(&mut self, predicate: &Template) -> bool;
}

/// A search that ends in a request: what a pattern matched is known to the predicates inside of its location.
struct Asking<'r> {
    request: &'r mut Request,
    uri: &'r [u8],
}

impl<'c> Seeker<'c> for Asking<'_> {
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>) {
        self.request.location = location;
        if let Some(matched) = matched {
            matched.store(self.uri, self.request);
        }
    }

    fn holds(&mut self, predicate: &Template) -> bool {
        !matches!(predicate.rendered(self.request).as_slice(), b"" | b"0")
    }
}

impl<'c> Seeker<'c> for Found<'c> {
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>) {
        self.location = Some(location);
        if matched.is_some() {
            self.matched = matched;
        }
    }

    /// Only tables without predicates are searched without a request.
    fn holds(&mut self, _: &Template) -> bool {
        false
    }
}

/// What a search found.
#[derive(Debug, Default)]
pub struct Found<'c> {
    /// The location; `None` leaves it to the server's own settings.
    pub location: Option<LocationId>,
    /// What a pattern matched; [`Match::store`] makes it known to a request.
    pub matched: Option<Match<'c>>,
}

impl Locations {
    /// The tables of the locations of one block.
    ///
    /// `arena` holds the locations that the names belong to, with their own tables.
    pub fn build(found: Vec<(Name, LocationId, &Statement)>, arena: &[Location]) -> Result<Locations, Error> {
        let mut locations = Locations::default();
        for (name, location, statement) in found {
            let Location { scope, nested, .. } = &arena[location.0 as usize];
            locations.has_predicates |= nested.has_predicates;
            locations.has_slashes |= nested.has_slashes || scope.core.redirects_to_slash;
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
                Kind::Predicate(predicate) => {
                    locations.predicates.push((predicate, location));
                    locations.has_predicates = true;
                }
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

    /// Whether the location of a URI also depends on variables, so that [`Locations::ask`] has to find it.
    pub fn has_predicates(&self) -> bool {
        self.has_predicates
    }

    /// Puts a request into the location of its URI, where predicates have a say.
    pub fn ask<'c>(&'c self, arena: &'c [Location], request: &mut Request) -> Result<(), GaveUp<'c>> {
        let uri = request.uri.clone();
        self.search(arena, &uri, &mut Asking { request, uri: &uri }).map(drop)
    }

    /// The location of a URI where none depends on a predicate. `arena` holds the locations that these tables number.
    pub fn find<'c>(&'c self, arena: &'c [Location], uri: &[u8]) -> Result<Found<'c>, GaveUp<'c>> {
        let mut found = Found::default();
        self.search(arena, uri, &mut found)?;
        Ok(found)
    }

    /// The location of this name, `@` included.
    pub fn named(&self, name: &str) -> Option<LocationId> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, location)| *location)
    }

    /// The location that this path leads to with a slash behind it, where that passes requests on and none is found by
    /// the path as it is. As in nginx patterns are not asked before.
    pub fn with_slash(&self, arena: &[Location], uri: &[u8]) -> Option<LocationId> {
        if !self.has_slashes || uri.last() == Some(&b'/') {
            return None;
        }
        let exact = |compare: Compare| {
            let place = self.exact.binary_search_by(|(path, _)| compare(path, uri)).ok()?;
            Some(self.exact[place].1)
        };
        let prefix = |compare: Compare| {
            let place = self.prefixes.binary_search_by(|known| compare(&known.path, uri)).ok()?;
            Some(self.prefixes[place].location)
        };
        if exact(Ord::cmp).is_some() || prefix(Ord::cmp).is_some() {
            return None;
        }
        let passes = |location: &LocationId| arena[location.0 as usize].scope.core.redirects_to_slash;
        let found = exact(compare_slashed).into_iter().chain(prefix(compare_slashed)).find(passes);
        let inside = || arena[self.longest_prefix(uri)?.location.0 as usize].nested.with_slash(arena, uri);
        found.or_else(inside)
    }

    /// Every location of these tables, for reports.
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

    /// Whether the search is over: an exact name, a pattern or a predicate was found.
    fn search<'c>(
        &'c self,
        arena: &'c [Location],
        uri: &[u8],
        seeker: &mut impl Seeker<'c>,
    ) -> Result<bool, GaveUp<'c>> {
        if let Ok(place) = self.exact.binary_search_by(|(path, _)| path.as_ref().cmp(uri)) {
            seeker.enter(self.exact[place].1, None);
            return Ok(true);
        }
        let mut try_patterns = true;
        if let Some(prefix) = self.longest_prefix(uri) {
            seeker.enter(prefix.location, None);
            try_patterns = !prefix.keeps_patterns_out;
            if arena[prefix.location.0 as usize].nested.search(arena, uri, seeker)? {
                return Ok(true);
            }
        }
        if !try_patterns {
            return Ok(false);
        }
        let mut found = None;
        for (pattern, location) in &self.patterns {
            found = pattern.find(uri)?.map(|matched| (*location, Some(matched)));
            if found.is_some() {
                break;
            }
        }
        let found = found.or_else(|| {
            let (_, location) = self.predicates.iter().find(|(predicate, _)| seeker.holds(predicate))?;
            Some((*location, None))
        });
        let Some((location, matched)) = found else { return Ok(false) };
        seeker.enter(location, matched);
        arena[location.0 as usize].nested.search(arena, uri, seeker)?;
        Ok(true)
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

/// How the path of a location compares with a URI.
type Compare = fn(&[u8], &[u8]) -> Ordering;

/// As if the URI had a slash put behind it, which no request is to pay an allocation for.
fn compare_slashed(path: &[u8], uri: &[u8]) -> Ordering {
    match path.split_at_checked(uri.len()) {
        Some((start, rest)) => start.cmp(uri).then_with(|| rest.cmp(b"/")),
        None => path.cmp(uri),
    }
}
