//! Regular expressions of the configuration: PCRE, as in nginx, over bytes.
//!
//! Named groups become variables when the configuration is read; a match stores their values, and those of numbered
//! groups, in the request.

use std::cell::RefCell;

use conf::{Error, Statement};
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use smallvec::SmallVec;
use telemetry::ForLog;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    regex: Regex,
    /// The text as written, for the log.
    text: Box<str>,
    /// Slots of variables, and the numbers of the groups that set them.
    named: Vec<(u32, usize)>,
    /// The number of groups.
    groups: usize,
}

/// A match that was found.
#[derive(Debug)]
pub struct Match<'p> {
    pattern: &'p Pattern,
    /// Start and end of the match and of each group.
    spans: SmallVec<[Span; 4]>,
}

/// Start and end of a group; `None` if it did not participate.
type Span = Option<(usize, usize)>;

thread_local! {
    /// The working memory of searches on this thread, with its number of groups. All patterns share it: with memory for each
    /// pattern, the first request would have to allocate it for each pattern that it tries.
    static MEMORY: RefCell<Option<(usize, CaptureLocations)>> = const { RefCell::new(None) };
}

/// Minimum number of groups of the working memory.
const GROUPS_MIN: usize = 16;

/// Returns working memory for patterns with this number of groups.
fn memory_for(groups: usize) -> Option<(usize, CaptureLocations)> {
    let groups = groups.max(GROUPS_MIN);
    let pattern = "()".repeat(groups);
    Some((groups, RegexBuilder::new().build(&pattern).ok()?.capture_locations()))
}

impl Pattern {
    /// Compiles `text`. An error has nginx's text with PCRE's message. `slot_of` defines a variable for each named
    /// group and returns its slot.
    pub fn compile(
        text: &str,
        caseless: bool,
        jit: bool,
        statement: &Statement,
        mut slot_of: impl FnMut(&str) -> Result<u32, Error>,
    ) -> Result<Pattern, Error> {
        let mut builder = RegexBuilder::new();
        builder.caseless(caseless).jit_if_available(jit);
        let regex = builder.build(text).map_err(|error| Error::at(statement, Complaint { text, error }))?;
        let mut named = Vec::new();
        for (group, name) in regex.capture_names().iter().enumerate() {
            if let Some(name) = name {
                named.push((slot_of(name)?, group));
            }
        }
        let groups = regex.captures_len() - 1;
        Ok(Pattern { regex, text: text.into(), named, groups })
    }

    /// Whether the pattern matches, without groups and positions.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        self.search(subject, |_| ()).is_ok_and(|found| found.is_some())
    }

    /// Searches with the working memory of the thread; `read` gets it after a match.
    fn search<T>(
        &self,
        subject: &[u8],
        read: impl FnOnce(&CaptureLocations) -> T,
    ) -> Result<Option<T>, pcre2::Error> {
        MEMORY.with_borrow_mut(|memory| {
            if memory.as_ref().is_none_or(|(groups, _)| *groups < self.groups) {
                *memory = memory_for(self.groups);
            }
            match memory {
                Some((_, memory)) => {
                    let found = self.regex.captures_read(memory, subject)?;
                    Ok(found.map(|_| read(memory)))
                }
                // More groups than one pattern of them may have.
                None => {
                    let mut memory = self.regex.capture_locations();
                    let found = self.regex.captures_read(&mut memory, subject)?;
                    Ok(found.map(|_| read(&memory)))
                }
            }
        })
    }

    /// Returns the number of groups.
    pub fn group_count(&self) -> usize {
        self.groups
    }

    /// Returns the first match in `subject`. A search that PCRE aborts is an error and not a mismatch: otherwise text
    /// that takes too long would bypass a pattern that denies access.
    pub fn find(&self, subject: &[u8]) -> Result<Option<Match<'_>>, SearchAborted<'_>> {
        let found = self.search(subject, |memory| (0..=self.groups).map(|group| memory.get(group)).collect());
        let found = found.map_err(|error| SearchAborted { pattern: self, code: error.code() })?;
        Ok(found.map(|spans| Match { pattern: self, spans }))
    }
}

/// A search that PCRE aborted at one of its limits on backtracking.
#[derive(Debug)]
pub struct SearchAborted<'p> {
    pattern: &'p Pattern,
    /// PCRE's error code.
    code: i32,
}

impl SearchAborted<'_> {
    /// Returns the log message in nginx's words.
    pub(crate) fn words(&self, subject: &[u8]) -> String {
        let (code, subject, text) = (self.code, subject.for_log(), &self.pattern.text);
        format!("pcre2_match() failed: {code} on \"{subject}\" using \"{text}\"")
    }
}

impl Match<'_> {
    /// Returns start and end of the match and of each group.
    pub fn spans(&self) -> impl Iterator<Item = Option<(usize, usize)>> {
        self.spans.iter().copied()
    }

    /// Returns the slot of each named group with its start and end. A group that did not participate is empty, as in
    /// nginx.
    pub(crate) fn named(&self) -> impl Iterator<Item = (u32, (usize, usize))> {
        let named = self.pattern.named.iter();
        named.map(|&(slot, group)| (slot, self.spans.get(group).copied().flatten().unwrap_or_default()))
    }
}

/// The result of a search.
pub struct Groups {
    /// Start and end of the match and of each group.
    pub spans: Vec<Option<(usize, usize)>>,
    /// Names of groups, and their numbers.
    pub names: Vec<(String, usize)>,
}

/// Searches with a pattern that is not part of the configuration and is used once. An error has PCRE's message.
/// Non-ASCII bytes match themselves.
pub fn search(pattern: &[u8], subject: &[u8]) -> Result<Option<Groups>, String> {
    let mut text = String::with_capacity(pattern.len());
    let mut escaped = false;
    for &byte in pattern {
        if byte.is_ascii() {
            text.push(byte.into());
        } else {
            // `RegexBuilder` accepts only UTF-8, so the byte is written as an escape. A backslash before it is removed.
            if escaped {
                text.pop();
            }
            text.push_str(&format!("\\x{byte:02x}"));
        }
        escaped = byte == b'\\' && !escaped;
    }
    let regex = RegexBuilder::new().build(&text);
    let regex = regex.map_err(|error| Complaint { text: &text, error }.to_string())?;
    let mut locations = regex.capture_locations();
    let found = regex.captures_read(&mut locations, subject);
    let found = found.map_err(|error| format!("pcre2_match() failed: {error} using \"{text}\""))?;
    let spans = found.map(|_| (0..locations.len()).map(|group| locations.get(group)).collect());
    let names = regex.capture_names().iter().enumerate();
    let names = names.filter_map(|(group, name)| Some((name.clone()?, group))).collect();
    Ok(spans.map(|spans| Groups { spans, names }))
}

/// PCRE's message about a pattern that it rejects.
struct Complaint<'a> {
    text: &'a str,
    error: pcre2::Error,
}

impl std::fmt::Display for Complaint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let said = self.error.to_string();
        // The crate prefixes PCRE's message with its own text and the offset.
        let reason = said.splitn(3, ": ").last().unwrap_or(&said);
        write!(f, "pcre2_compile() failed: {reason} in \"{}\"", self.text)?;
        match self.error.offset().and_then(|offset| self.text.get(offset..)) {
            None | Some("") => Ok(()),
            Some(rest) => write!(f, " at \"{rest}\""),
        }
    }
}
