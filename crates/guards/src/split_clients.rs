//! `split_clients`: a variable that distributes clients by percentages; the same client always gets the same value.

use conf::{Args, Contexts, Error, Spec, Statement};

use crate::{Declaration, Directive, Module};
use exchange::module::compute;
use site::config::Cx;
use site::template::Template;
use site::var_ref::VarRef;
use site::variables::{Compute, HasVariables};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_split_clients") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_split_clients")
});

const DIRECTIVES: &[Directive] = &[Directive::http(
    Spec::new(
        "http_split_clients",
        "split_clients",
        Contexts::HTTP,
        Args::Exactly(2),
        "Defines a variable with a value for each share of the clients, which the hash of a text selects.",
    )
    .raw()
    .many(),
    add_split,
)];

/// One `split_clients` block.
#[derive(Debug)]
struct Split {
    /// The text whose hash distributes the clients.
    source: Template,
    /// The rows in the order of the configuration, with increasing hashes.
    parts: Vec<Part>,
}

/// One row of a block.
#[derive(Debug)]
struct Part {
    /// Hashes below this belong to this row or an earlier one; `None` means all remaining hashes.
    below: Option<u32>,
    /// The value as written: as in nginx it has no variables.
    value: Box<str>,
}

/// The total, in hundredths of a percent.
const ALL: u64 = 10_000;

/// Parses a block. The shares are summed up after all rows, because nginx reports a sum that is too large at the end of the block.
fn add_split(cx: &mut Cx<'_>) -> Result<(), Error> {
    let source = cx.template(cx.arg(0))?;
    let name = cx.variable_name(cx.arg(1))?;
    let slot = cx.http.registry.define_computed(name, cx.statement)?;
    let statement = cx.statement;
    let rows = statement.rows().map(|row| {
        let row = row?;
        let share = match row.name.text.as_str() {
            // All remaining hashes; only another `*` may follow.
            "*" => None,
            text => Some(share_of(text).ok_or_else(|| invalid(text, row))?),
        };
        // nginx does not check the number of words in a row, but a missing value is an error here.
        let value = row.args.first().ok_or_else(|| invalid(&row.name.text, row))?;
        Ok((share, value.text.as_str()))
    });
    let rows: Vec<(Option<u64>, &str)> = rows.collect::<Result<_, Error>>()?;
    let (mut sum, mut below, mut parts) = (0, 0, Vec::new());
    for (share, value) in rows {
        sum = share.map_or(ALL, |share| share.saturating_add(sum));
        if sum > ALL {
            return Err(Error::at(&statement.end, "percent total is greater than 100%"));
        }
        // Each share is rounded down separately, as in nginx, so that the limits are identical.
        below += share.map_or(0, |share| share * u64::from(u32::MAX) / ALL);
        parts.push(Part { below: share.map(|_| below as u32), value: value.into() });
    }
    let values = parts.iter().map(|part: &Part| Template::text(&part.value));
    cx.http.registry.add_values(&VarRef::Slot(slot), values);
    compute(cx.http, slot, Split { source, parts });
    Ok(())
}

/// Returns nginx's error for any invalid row.
fn invalid(text: &str, row: &Statement) -> Error {
    Error::at(row, format_args!("invalid percent value \"{text}\""))
}

/// Parses a percentage such as `0.5%`, in hundredths of a percent; it must be above zero.
fn share_of(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%')?;
    // Parsed as digits, because a float could be off by a hundredth.
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if fraction.len() > 2 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<2}").parse().ok().filter(|&share| share > 0)
}

impl<R: HasVariables> Compute<R> for Split {
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool {
        // There are few rows, so a linear search is the fastest.
        let hash = murmur2(&self.source.rendered(request));
        let mut parts = self.parts.iter();
        if let Some(part) = parts.find(|part| part.below.is_none_or(|below| hash < below)) {
            out.extend_from_slice(part.value.as_bytes());
        }
        // The value is empty for hashes above all shares, but exists.
        true
    }
}

/// Returns MurmurHash2 with 32 bits and seed 0, as its author published it and nginx uses it, so that clients get the
/// same value as with nginx.
fn murmur2(text: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let mix = |word: u32| {
        let word = word.wrapping_mul(MULTIPLIER);
        (word ^ word >> 24).wrapping_mul(MULTIPLIER)
    };
    // The length is mixed in, so that texts that differ only in trailing zeros have different hashes.
    let mut hash = text.len() as u32;
    let mut words = text.chunks_exact(4);
    for word in words.by_ref() {
        let word = u32::from_le_bytes(word.try_into().expect("each has four bytes"));
        hash = hash.wrapping_mul(MULTIPLIER) ^ mix(word);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    // Mixes the last bytes into all bits.
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn shares_have_two_decimal_places() {
        for (text, expected) in [
            ("50%", Some(5000)),
            ("0.5%", Some(50)),
            (".51%", Some(51)),
            ("1.%", Some(100)),
            ("0.01%", Some(1)),
            ("0.001%", None),
            ("0%", None),
            ("0.00%", None),
            (".%", None),
            ("%", None),
            ("", None),
            ("5", None),
            ("-1%", None),
            ("+1%", None),
            ("1.+%", None),
            ("1.2.3%", None),
            ("x%", None),
        ] {
            assert_eq!(share_of(text), expected, "{text}");
        }
    }

    #[test]
    fn wrong_rows_are_refused_with_their_line() {
        for (rows, expected, line) in [
            ("0% a;", "invalid percent value \"0%\"", 2),
            ("\"\" a;", "invalid percent value \"\"", 2),
            ("5% a; 6;", "invalid percent value \"6\"", 2),
            ("5%;", "invalid percent value \"5%\"", 2),
            ("50% a; 51% b;", "percent total is greater than 100%", 3),
            ("* a; 1% b;", "percent total is greater than 100%", 3),
            ("99999999999999999999% a;", "invalid percent value \"99999999999999999999%\"", 2),
            ("9999999999999% a;", "percent total is greater than 100%", 3),
        ] {
            let found = error(&format!("http {{ split_clients $uri $s {{\n{rows}\n}} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:{line}"), "{rows}");
        }
        for (head, expected) in [
            ("$uri s", "invalid variable name \"s\""),
            ("$uri $", "invalid variable name \"$\""),
            ("$uri $uri", "the duplicate \"uri\" variable"),
            ("$nonexist $s", "unknown \"nonexist\" variable"),
        ] {
            let found = error(&format!("http {{\nsplit_clients {head} {{ }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{head}");
        }
        loaded("split_clients $uri $s { 50% a; * b; * c; } split_clients a $t { 100% a; * b; }");
    }
}
