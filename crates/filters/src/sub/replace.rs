//! Finds texts in a body that arrives in pieces, and replaces them.
//!
//! The earliest match counts; at the same position the first text of the list. Only a possible beginning of a match is
//! held back until more of the body arrives: an event that is sent alone must not wait for the next one.
//!
//! With `sub_filter_once` the automaton still finds a pattern that has been replaced. The few other patterns are then
//! compared one by one, which is cheaper than building another automaton for the remaining body.

use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, BuildError, Input, MatchKind};

use crate::sub::Pair;
use exchange::filter::{BodyFilter, Output};
use exchange::request::Request;
use site::config::Layered;
use site::template::Template;
use transfer::coding::CodingError;

/// Texts to search for, in order of priority.
#[derive(Debug)]
pub(super) struct Patterns {
    /// The texts in lower case, with the index of the `sub_filter`.
    texts: Vec<(Vec<u8>, usize)>,
    automaton: AhoCorasick,
    /// Length of the longest text; at most one byte less is held back.
    len_max: usize,
}

impl Patterns {
    /// Returns the patterns of a configuration, with the fastest automaton.
    pub(super) fn new(texts: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<Patterns, BuildError> {
        Patterns::with(None, texts)
    }

    /// Returns the patterns of a request, which may be kilobytes sent by a client, with an automaton that is built
    /// quickly. The fastest automaton takes far longer to build, because it has a table of all bytes for each state.
    pub(super) fn of_request(texts: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<Patterns, BuildError> {
        Patterns::with(Some(AhoCorasickKind::ContiguousNFA), texts)
    }

    /// Builds the automaton without empty texts, which would match everywhere.
    fn with(
        kind: Option<AhoCorasickKind>,
        texts: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Patterns, BuildError> {
        let texts =
            texts.into_iter().enumerate().map(|(pair, text)| (text.as_ref().to_ascii_lowercase(), pair));
        let texts: Vec<_> = texts.filter(|(text, _)| !text.is_empty()).collect();
        let mut builder = AhoCorasickBuilder::new();
        // As in nginx, only ASCII letters are case-insensitive, whatever the charset of the body.
        builder.kind(kind).match_kind(MatchKind::LeftmostFirst).ascii_case_insensitive(true);
        let automaton = builder.build(texts.iter().map(|(text, _)| text))?;
        let len_max = texts.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
        Ok(Patterns { texts, automaton, len_max })
    }

    /// Whether there are no texts to search for.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

/// A text that was found.
struct Found {
    range: Range<usize>,
    /// Index of its pattern.
    pattern: usize,
}

/// Replaces texts in one body.
pub(super) struct Replace {
    search: Search,
    /// The replacements, by index of the `sub_filter`.
    pairs: Layered<Pair>,
    /// The rendered replacements, created at first use: as in nginx they keep their value for a body.
    rendered: Vec<Option<Vec<u8>>>,
    /// The end of the input, which may be the beginning of a match.
    held: Vec<u8>,
}

/// Approximate maximum output bytes per push: a letter may be replaced by kilobytes from a client.
const OUTPUT_MAX: usize = 64 << 10;

/// The kind of input of `replace`.
#[derive(Clone, Copy)]
enum Piece {
    /// More input follows. `held` bytes were held back before, and are processed in any case.
    Next { held: usize },
    /// The end of the body, or of the bytes before the response of a subrequest.
    Last,
}

/// The position at which `replace` stopped.
enum Stop {
    /// Before a possible match, which needs more input.
    Wait(usize),
    /// After the maximum output per push.
    Enough(usize),
}

/// The pairs that can still match.
struct Search {
    patterns: Arc<Patterns>,
    once: bool,
    /// Patterns that are used up (`sub_filter_once`).
    used: Vec<bool>,
    /// Number of patterns that are not used up.
    left: usize,
}

impl Search {
    /// Creates a search from the start of a body, in which no pattern was found yet.
    fn new(patterns: Arc<Patterns>, once: bool) -> Search {
        let left = patterns.texts.len();
        Search { patterns, once, used: vec![false; left], left }
    }

    /// Returns the remaining patterns, in order.
    fn live(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let texts = self.patterns.texts.iter().enumerate().filter(|(pattern, _)| !self.used[*pattern]);
        texts.map(|(pattern, (text, _))| (pattern, text.as_slice()))
    }

    /// Returns the earliest complete match.
    fn find(&self, input: &[u8], from: usize) -> Option<Found> {
        let mut from = from;
        loop {
            let found = self.patterns.automaton.find(Input::new(input).range(from..))?;
            let (start, pattern) = (found.start(), found.pattern().as_usize());
            if !self.used[pattern] {
                return Some(Found { range: found.range(), pattern });
            }
            // A used-up pattern hides the patterns after it in the list, which may match here too.
            let rest = &input[start..];
            let is_here = |text: &[u8]| {
                rest.get(..text.len()).is_some_and(|text_here| text_here.eq_ignore_ascii_case(text))
            };
            if let Some((pattern, text)) = self.live().find(|(_, text)| is_here(text)) {
                return Some(Found { range: start..start + text.len(), pattern });
            }
            from = start + 1;
        }
    }

    /// Returns the start of a possible match at the end of the input that would precede `found`.
    fn find_partial(&self, input: &[u8], from: usize, found: Option<&Found>) -> Option<usize> {
        // An earlier match would have been found completely.
        let first = from.max((input.len() + 1).saturating_sub(self.patterns.len_max));
        let end = found.map_or(input.len(), |found| (found.range.start + 1).min(input.len()));
        (first..end).find(|&start| {
            let rest = &input[start..];
            let goes_before =
                |pattern| found.is_none_or(|found| start < found.range.start || pattern < found.pattern);
            let is_started =
                |text: &[u8]| text.len() > rest.len() && text[..rest.len()].eq_ignore_ascii_case(rest);
            self.live().any(|(pattern, text)| goes_before(pattern) && is_started(text))
        })
    }

    /// Marks a replaced pattern as used up, with `sub_filter_once`.
    fn note_use(&mut self, pattern: usize) {
        debug_assert!(!self.used[pattern], "a used-up pattern is never found");
        if self.once {
            self.used[pattern] = true;
            assert!(self.left > 0, "a pattern is used once");
            self.left -= 1;
        }
    }
}

impl Replace {
    /// Creates the filter of a body.
    pub(super) fn new(patterns: Arc<Patterns>, pairs: Layered<Pair>, once: bool) -> Replace {
        let rendered = vec![None; pairs.items().len()];
        Replace { search: Search::new(patterns, once), pairs, rendered, held: Vec::new() }
    }

    /// Processes the next bytes of the body and returns how many were consumed; a possible beginning of a match is held back.
    fn advance(&mut self, input: &[u8], out: &mut Vec<u8>, render: impl Fn(&Template) -> Vec<u8>) -> usize {
        // Usually no bytes are held back, and the input is searched in place.
        let mut whole = std::mem::take(&mut self.held);
        let before = whole.len();
        let input = if before == 0 {
            input
        } else {
            whole.extend_from_slice(input);
            &whole
        };
        match self.replace(input, Piece::Next { held: before }, out, render) {
            Stop::Wait(rest) => {
                self.held = input[rest..].to_vec();
                let len_max = self.search.patterns.len_max;
                debug_assert!(self.held.len() < len_max.max(1), "a complete match is never held back");
                input.len() - before
            }
            Stop::Enough(rest) => {
                debug_assert!(rest > before, "the bytes held back were processed");
                rest - before
            }
        }
    }

    /// Outputs `input` with replaced texts, and returns where it stopped. `render` creates the replacement of a
    /// `sub_filter` from its template.
    fn replace(
        &mut self,
        input: &[u8],
        piece: Piece,
        out: &mut Vec<u8>,
        render: impl Fn(&Template) -> Vec<u8>,
    ) -> Stop {
        let (is_last, held) = match piece {
            Piece::Next { held } => (false, held),
            Piece::Last => (true, input.len()),
        };
        let (mut done, start) = (0, out.len());
        while self.search.left > 0 {
            if out.len() - start >= OUTPUT_MAX && done > held {
                return Stop::Enough(done);
            }
            let found = self.search.find(input, done);
            if !is_last && let Some(start) = self.search.find_partial(input, done, found.as_ref()) {
                out.extend_from_slice(&input[done..start]);
                return Stop::Wait(start);
            }
            // No match was found, and none begins at the end: everything is output.
            let Some(found) = found else { break };
            debug_assert!(!found.range.is_empty(), "an empty text is no pattern");
            out.extend_from_slice(&input[done..found.range.start]);
            let (_, pair) = self.search.patterns.texts[found.pattern];
            let text = self.rendered[pair].get_or_insert_with(|| render(&self.pairs.items()[pair].text));
            out.extend_from_slice(text);
            self.search.note_use(found.pattern);
            done = found.range.end;
        }
        out.extend_from_slice(&input[done..]);
        Stop::Wait(input.len())
    }

    /// Outputs only the bytes held back.
    fn flush(&mut self, request: &Request, out: &mut Output) {
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.replace(&held, Piece::Last, out.bytes(), |text| text.rendered(request));
        }
    }
}

impl BodyFilter for Replace {
    fn push(&mut self, request: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        Ok(self.advance(input, out.bytes(), |text| text.rendered(request)))
    }

    fn finish(&mut self, request: &mut Request, out: &mut Output) -> Result<(), CodingError> {
        self.flush(request, out);
        Ok(())
    }

    /// Ends the search in the bytes so far: a match does not extend across the response of a subrequest.
    fn interrupt(&mut self, request: &mut Request, out: &mut Output) {
        self.flush(request, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layered<'t>(texts: impl IntoIterator<Item = &'t str>) -> Layered<Pair> {
        let pair = |text| Pair { pattern: Template::default(), text: Template::text(text) };
        Layered::from(texts.into_iter().map(pair).collect::<Vec<_>>())
    }

    /// Returns the result, which must not depend on where the input is split.
    fn replaced(pairs: &[(&str, &str)], once: bool, input: &str) -> String {
        let patterns = Arc::new(Patterns::new(pairs.iter().map(|(text, _)| text)).expect("it builds"));
        let texts = layered(pairs.iter().map(|(_, text)| *text));
        let render = |text: &Template| text.constant().unwrap_or_default().as_bytes().to_vec();
        let mut results = (1..=input.len()).rev().map(|piece| {
            let mut filter = Replace::new(Arc::clone(&patterns), texts.clone(), once);
            let mut out = Vec::new();
            for bytes in input.as_bytes().chunks(piece) {
                assert_eq!(filter.advance(bytes, &mut out, render), bytes.len());
            }
            let held = std::mem::take(&mut filter.held);
            filter.replace(&held, Piece::Last, &mut out, render);
            String::from_utf8(out).expect("text")
        });
        let whole = results.next().expect("the input is not empty");
        assert!(results.all(|result| result == whole), "{pairs:?} {input}");
        whole
    }

    #[test]
    fn each_text_is_replaced_once_or_everywhere() {
        let pairs = [("ab", "1"), ("c", "")];
        assert_eq!(replaced(&pairs, false, "abcABCaab"), "11a1");
        assert_eq!(replaced(&pairs, true, "abcABCaab"), "1ABCaab");
        assert_eq!(replaced(&pairs, true, "xcxabx"), "xx1x");
        assert_eq!(replaced(&[("A", "aa")], false, "aba"), "aabaa");
    }

    #[test]
    fn the_earliest_match_is_replaced() {
        assert_eq!(replaced(&[("abcd", "1"), ("abc", "2")], false, "abcdabce"), "12e");
        assert_eq!(replaced(&[("abc", "2"), ("abcd", "1")], false, "abcdabce"), "2d2e");
        assert_eq!(replaced(&[("bc", "2"), ("abcx", "1")], false, "abcxabcy"), "1a2y");
        assert_eq!(replaced(&[("aab", "1")], false, "aaaabaaba"), "aa11a");
        // The first pattern is used up, and the patterns that it hid are found.
        assert_eq!(replaced(&[("abc", "1"), ("ab", "2"), ("c", "3")], true, "abcabcabc"), "123abc");
        assert_eq!(replaced(&[("a", "1"), ("a", "2")], true, "aaa"), "12a");
    }

    /// Implements the rule, with the complete input available.
    fn by_the_rule(pairs: &[(&str, &str)], once: bool, input: &str) -> String {
        let (mut rest, mut out, mut used) = (input, String::new(), vec![false; pairs.len()]);
        while let Some(next) = rest.get(..1) {
            let here = |place: &usize| !used[*place] && rest.starts_with(pairs[*place].0);
            let found = (0..pairs.len()).find(here);
            let (taken, put) = found.map_or((next, next), |place| pairs[place]);
            if let Some(place) = found {
                used[place] = once;
            }
            out.push_str(put);
            rest = &rest[taken.len()..];
        }
        out
    }

    #[test]
    fn overlapping_matches_are_replaced_correctly() {
        // A linear congruential generator (Knuth's), so that failures are reproducible.
        let mut state = 1_u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for _ in 0..400 {
            let mut word = |min: usize, max: usize| {
                let len = min + below(max - min + 1);
                (0..len).map(|_| if below(3) == 0 { 'b' } else { 'a' }).collect::<String>()
            };
            let (texts, input) = ([word(1, 5), word(1, 4), word(2, 6)], word(1, 24));
            let pairs = [(texts[0].as_str(), "1"), (texts[1].as_str(), "2"), (texts[2].as_str(), "3")];
            for once in [false, true] {
                assert_eq!(
                    replaced(&pairs, once, &input),
                    by_the_rule(&pairs, once, &input),
                    "{pairs:?} once={once} {input}"
                );
            }
        }
    }

    #[test]
    fn a_partial_match_at_the_end_is_sent() {
        assert_eq!(replaced(&[("abc", "1")], false, "xab"), "xab");
        assert_eq!(replaced(&[("abcd", "1"), ("abc", "2")], false, "xabc"), "x2");
        assert_eq!(replaced(&[("aaa", "1")], true, "aaaaa"), "1aa");
    }

    #[test]
    fn only_possible_matches_are_held_back() {
        let patterns = Arc::new(Patterns::new(["<head>"]).expect("it builds"));
        let mut filter = Replace::new(patterns, layered(["x"]), false);
        let mut out = Vec::new();
        let render = |_: &Template| b"x".to_vec();
        assert_eq!((filter.advance(b"data: 1\n\n", &mut out, render), filter.held.len()), (9, 0));
        assert_eq!(
            (filter.advance(b"1<head><HE", &mut out, render), filter.held.as_slice()),
            (10, &b"<HE"[..])
        );
        assert_eq!(out, b"data: 1\n\n1x");
    }

    #[test]
    fn long_request_values_build_no_large_automaton() {
        let text = "a".repeat(8 << 10);
        let patterns = Patterns::of_request([&text]).expect("it builds");
        assert_eq!(patterns.automaton.kind(), AhoCorasickKind::ContiguousNFA);
        assert!(patterns.automaton.memory_usage() < 40 * text.len());
    }

    #[test]
    fn long_replacements_are_written_in_pieces() {
        let patterns = Arc::new(Patterns::new(["a", "bc"]).expect("it builds"));
        let text = "x".repeat(8 << 10);
        let mut filter = Replace::new(patterns, layered([text.as_str(), ""]), false);
        let render = |text: &Template| text.constant().unwrap_or_default().as_bytes().to_vec();
        let body = [b"b".as_slice(), &[b'a'; 5000]].concat();
        let (mut rest, mut total, mut pushes) = (body.as_slice(), 0, 0);
        while !rest.is_empty() {
            let mut out = Vec::new();
            // The first byte is held back, but counts as consumed.
            let used = filter.advance(&rest[..rest.len().min(1 + pushes * 1000)], &mut out, render);
            assert!(used > 0 && out.len() < 2 * OUTPUT_MAX, "{used} {}", out.len());
            (rest, total, pushes) = (&rest[used..], total + out.len(), pushes + 1);
        }
        assert_eq!(total, 1 + 5000 * text.len());
    }
}
