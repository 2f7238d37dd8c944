//! Finds the location of a URI.
//!
//! nginx's search: an exact name ends it. Otherwise the longest prefix is remembered and its nested locations are
//! searched. Then regular expressions are tried in order, unless the prefix has `^~`, and the first match wins. If
//! neither an exact name nor a regular expression matches, predicates are tried in order: variables whose value selects
//! a location. The tables are sorted, and each prefix links to the next shorter one, so a search costs one binary
//! search and a few steps back.

use std::cmp::Ordering;

use conf::{Error, Statement};

use crate::config::{Location, LocationId};
use crate::pattern::{Match, SearchAborted};
use crate::settings::locations::{LocationMatch, Locations, Name, NameKind, Prefix};
use crate::template::Template;

/// The callbacks of a search.
pub trait Seeker<'c> {
    /// Records a location that fits better than the locations recorded before.
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>);
    /// Whether the predicate selects its location for the request.
    fn holds(&mut self, predicate: &Template) -> bool;
}

impl<'c> Seeker<'c> for LocationMatch<'c> {
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>) {
        self.location = Some(location);
        if matched.is_some() {
            self.matched = matched;
        }
    }

    /// Never called: only tables without predicates are searched without a request.
    fn holds(&mut self, _: &Template) -> bool {
        false
    }
}

/// The kind of match of a location in a search, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The location's path is the URI.
    Exact,
    /// The URI begins with its path; the longest such path counts. The flag is `^~`.
    Prefix {
        /// Whether regular expressions are skipped then.
        skips_regex: bool,
    },
    /// The location's regular expression matches.
    Pattern,
    /// The location's regular expression does not match.
    NoMatch,
    /// A variable decides.
    Predicate,
}

impl Locations {
    /// Returns the locations in these tables that a search for this URI may check, in the order of the search.
    pub fn candidates(&self, uri: &[u8]) -> Vec<(LocationId, Candidate)> {
        let exact = self.exact.iter().filter(|(path, _)| path.as_ref() == uri);
        let mut found: Vec<_> = exact.map(|(_, location)| (*location, Candidate::Exact)).collect();
        for prefix in self.prefixes.iter().rev().filter(|prefix| uri.starts_with(&prefix.path)) {
            let skips_regex = prefix.skips_regex;
            found.push((prefix.location, Candidate::Prefix { skips_regex }));
        }
        for (pattern, location) in &self.patterns {
            let matches = pattern.is_match(uri);
            found.push((*location, if matches { Candidate::Pattern } else { Candidate::NoMatch }));
        }
        found.extend(self.predicates.iter().map(|(_, location)| (*location, Candidate::Predicate)));
        found
    }

    /// Builds the tables of the locations of one block.
    ///
    /// `arena` contains the locations of the names, with their nested tables.
    pub fn build(found: Vec<(Name, LocationId, &Statement)>, arena: &[Location]) -> Result<Locations, Error> {
        let mut locations = Locations::default();
        for (name, location, statement) in found {
            let Location { scope, nested, .. } = &arena[location.0 as usize];
            locations.has_predicates |= nested.has_predicates;
            let Name { text, kind } = name;
            // No URI is the path `/` without its slash.
            let is_directory = text.len() > 1 && text.ends_with('/');
            locations.has_slashes |= nested.has_slashes || is_directory && scope.core.redirects_to_slash;
            let path: Box<[u8]> = text.as_bytes().into();
            let duplicate = || Error::at(statement, format_args!("duplicate location \"{text}\""));
            match kind {
                NameKind::Exact => match locations.exact.binary_search_by(|(known, _)| known.cmp(&path)) {
                    Ok(_) => return Err(duplicate()),
                    Err(index) => locations.exact.insert(index, (path, location)),
                },
                NameKind::Prefix { skips_regex } => {
                    match locations.prefixes.binary_search_by(|known| known.path.cmp(&path)) {
                        Ok(_) => return Err(duplicate()),
                        Err(index) => {
                            let prefix = Prefix { path, location, skips_regex, shorter: None };
                            locations.prefixes.insert(index, prefix);
                        }
                    }
                }
                NameKind::Pattern { pattern, .. } => locations.patterns.push((pattern, location)),
                NameKind::Predicate(predicate) => {
                    locations.predicates.push((predicate, location));
                    locations.has_predicates = true;
                }
                NameKind::Named => locations.named.push((text, location)),
            }
        }
        locations.link();
        Ok(locations)
    }

    /// Returns the location of a URI in tables without predicates. `arena` contains the locations that these tables
    /// refer to.
    pub fn find<'c>(
        &'c self,
        arena: &'c [Location],
        uri: &[u8],
    ) -> Result<LocationMatch<'c>, SearchAborted<'c>> {
        let mut found = LocationMatch::default();
        self.search(arena, uri, &mut found)?;
        Ok(found)
    }

    /// Returns the proxying location whose path is the URI with a slash appended, if no location has the URI itself as its
    /// path. As in nginx regular expressions are not tried first.
    pub fn with_slash(&self, arena: &[Location], uri: &[u8]) -> Option<LocationId> {
        if !self.has_slashes || uri.last() == Some(&b'/') {
            return None;
        }
        let exact = |compare: Compare| {
            let index = self.exact.binary_search_by(|(path, _)| compare(path, uri)).ok()?;
            Some(self.exact[index].1)
        };
        let prefix = |compare: Compare| {
            let index = self.prefixes.binary_search_by(|known| compare(&known.path, uri)).ok()?;
            Some(self.prefixes[index].location)
        };
        if exact(Ord::cmp).is_some() || prefix(Ord::cmp).is_some() {
            return None;
        }
        let passes = |location: &LocationId| arena[location.0 as usize].scope.core.redirects_to_slash;
        let found = exact(compare_slashed).into_iter().chain(prefix(compare_slashed)).find(passes);
        let inside = || arena[self.longest_prefix(uri)?.location.0 as usize].nested.with_slash(arena, uri);
        found.or_else(inside)
    }

    /// Searches the tables; returns whether the search is over because an exact name, a pattern or a predicate matched.
    pub fn search<'c>(
        &'c self,
        arena: &'c [Location],
        uri: &[u8],
        seeker: &mut impl Seeker<'c>,
    ) -> Result<bool, SearchAborted<'c>> {
        if let Ok(index) = self.exact.binary_search_by(|(path, _)| path.as_ref().cmp(uri)) {
            seeker.enter(self.exact[index].1, None);
            return Ok(true);
        }
        let mut try_patterns = true;
        if let Some(prefix) = self.longest_prefix(uri) {
            seeker.enter(prefix.location, None);
            try_patterns = !prefix.skips_regex;
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
}

/// Compares the path of a location with a URI.
type Compare = fn(&[u8], &[u8]) -> Ordering;

/// Compares as if a slash were appended to the URI, without an allocation.
fn compare_slashed(path: &[u8], uri: &[u8]) -> Ordering {
    match path.split_at_checked(uri.len()) {
        Some((start, rest)) => start.cmp(uri).then_with(|| rest.cmp(b"/")),
        None => path.cmp(uri),
    }
}
