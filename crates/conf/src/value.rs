//! Arguments as values: sizes, offsets, times, numbers, flags, names.
//!
//! Each parser converts a text to a value or a [`ValueError`], which becomes an [`Error`] once the statement is known:
//! [`Statement::value`] does both.
//!
//! | parser | accepts | unit of the result |
//! |---|---|---|
//! | [`size`] | digits, then `k` or `m` | bytes |
//! | [`offset`] | digits, then `k`, `m` or `g` | bytes |
//! | [`milliseconds`] | `1w2d3h4m5s6ms`, in that order, each at most once; bare digits are seconds | ms |
//! | [`seconds`] | `1y2M1w2d3h4m5s`, likewise | s |
//! | [`number`] | digits | |
//! | [`flag`] | `on`, `off` | |
//! | [`choice`], [`Statement::bits`] | names from a list | |
//!
//! Names and `k`, `m`, `g` are case-insensitive; time units are case-sensitive. The maximum is 2^63 - 1, as in nginx on a
//! 64-bit machine.

use std::fmt;

use crate::error::{Error, Level};
use crate::tree::Statement;

/// Maximum value of `off_t`, `ssize_t`, `ngx_int_t`.
const VALUE_MAX: u64 = i64::MAX as u64;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

type TimeUnit = (&'static str, u64);

/// Units in milliseconds, in the order in which they must be written.
static TIME_UNITS: [TimeUnit; 8] = [
    ("y", 365 * DAY),
    ("M", 30 * DAY),
    ("w", 7 * DAY),
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", 1),
];

/// Index of the first unit of a time in milliseconds, which has no years and months.
const WEEKS: usize = 2;

/// Index of `ms`, which a time in seconds does not accept.
const MILLISECONDS: usize = 7;

type SizeUnit = (char, u64);

/// Units in bytes.
static SIZE_UNITS: [SizeUnit; 3] = [('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)];

/// Index of `g`, which a size in memory does not accept.
const GIGABYTES: usize = 2;

/// Reason why a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// Not of this type, or too large.
    Invalid,
    /// Not a size in these units, or too large.
    InvalidSize(&'static [SizeUnit]),
    /// Not a time in these units, or too large.
    InvalidTime(&'static [TimeUnit]),
    /// Not a number, or too large.
    InvalidNumber,
    /// Neither `on` nor `off`.
    NotFlag,
    /// Not one of these names.
    NotAmong(Vec<&'static str>),
    /// Below the minimum.
    TooSmall {
        /// The minimum.
        min: u64,
    },
    /// Outside the range.
    OutOfRange {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
}

impl ValueError {
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, directive: &str, value: &str) -> fmt::Result {
        match self {
            ValueError::Invalid | ValueError::InvalidSize(_) | ValueError::InvalidTime(_) => {
                write!(f, "\"{directive}\" directive invalid value")
            }
            ValueError::InvalidNumber => write!(f, "\"{directive}\" directive invalid number"),
            ValueError::NotFlag => {
                write!(
                    f,
                    "invalid value \"{value}\" in \"{directive}\" directive, it must be \"on\" or \"off\""
                )
            }
            ValueError::NotAmong(_) => write!(f, "invalid value \"{value}\""),
            ValueError::TooSmall { min } => write!(f, "value must be equal to or greater than {min}"),
            ValueError::OutOfRange { min, max } => write!(f, "value must be between {min} and {max}"),
        }
    }

    pub(crate) fn write_hint(&self, f: &mut fmt::Formatter<'_>, value: &str) -> fmt::Result {
        match self {
            ValueError::NotAmong(names) => write!(f, "; it must be one of {}", names.join(", ")),
            ValueError::InvalidNumber => f.write_str("; it must be a whole number"),
            _ => match self.meant(value) {
                Some(meant) => write!(f, "; did you mean \"{meant}\"?"),
                None => Ok(()),
            },
        }
    }

    /// Returns the correct spelling of a value, if it can be guessed.
    fn meant(&self, value: &str) -> Option<String> {
        match *self {
            ValueError::InvalidSize(units) => {
                spelled(value, &SPELLED_SIZES).filter(|meant| scaled(meant, units).is_ok())
            }
            ValueError::InvalidTime(units) => {
                spelled(value, &SPELLED_TIMES).filter(|meant| time(meant, units, 1).is_ok())
            }
            _ => None,
        }
    }
}

/// Spellings of units of times, and the correct unit of each. A plural `s` is removed before the lookup.
const SPELLED_TIMES: [(&str, &str); 12] = [
    ("msec", "ms"),
    ("millisecond", "ms"),
    ("sec", "s"),
    ("second", "s"),
    ("min", "m"),
    ("minute", "m"),
    ("hr", "h"),
    ("hour", "h"),
    ("day", "d"),
    ("week", "w"),
    ("month", "M"),
    ("year", "y"),
];

/// The same for units of sizes.
const SPELLED_SIZES: [(&str, &str); 7] =
    [("b", ""), ("kb", "k"), ("kib", "k"), ("mb", "m"), ("mib", "m"), ("gb", "g"), ("gib", "g")];

/// Returns the correct spelling of a size or time such as `30sec`, `10 MB` or `1 h`.
pub(crate) fn probably(text: &str) -> Option<String> {
    spelled(text, &SPELLED_TIMES).or_else(|| spelled(text, &SPELLED_SIZES))
}

fn spelled(text: &str, spellings: &[(&str, &str)]) -> Option<String> {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let word = unit.trim().to_ascii_lowercase();
    let singular = word.strip_suffix('s').unwrap_or(&word);
    let letter = spellings.iter().find(|(spelled, _)| [word.as_str(), singular].contains(spelled));
    let letter = letter.map(|(_, letter)| *letter);
    // A correct unit after a space.
    let bare = || unit.starts_with(' ').then(|| unit.trim()).filter(|unit| unit.len() == 1);
    (!count.is_empty()).then_some(())?;
    Some(format!("{count}{}", letter.or_else(bare)?))
}

/// Parses a number of bytes in memory: `8k`, `1m`.
pub fn size(text: &str) -> Result<u64, ValueError> {
    scaled(text, &SIZE_UNITS[..GIGABYTES])
}

/// Parses a number of bytes in a file: `8k`, `1m`, `2g`.
pub fn offset(text: &str) -> Result<u64, ValueError> {
    scaled(text, &SIZE_UNITS)
}

/// Parses a time in milliseconds: `500ms`, `30` (seconds), `1h 30m`.
pub fn milliseconds(text: &str) -> Result<u64, ValueError> {
    time(text, &TIME_UNITS[WEEKS..], 1)
}

/// Parses a time in seconds: `30`, `1h 30m`, `1y`.
pub fn seconds(text: &str) -> Result<u64, ValueError> {
    time(text, &TIME_UNITS[..MILLISECONDS], SECOND)
}

/// Parses an unsigned number.
pub fn number(text: &str) -> Result<u64, ValueError> {
    digits(text).ok_or(ValueError::InvalidNumber)
}

/// Returns a parser of a number within bounds, both included.
pub fn number_in(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, ValueError> {
    move |text| match number(text)? {
        value if (min..=max).contains(&value) => Ok(value),
        _ if max >= VALUE_MAX => Err(ValueError::TooSmall { min }),
        _ => Err(ValueError::OutOfRange { min, max }),
    }
}

/// Parses `on` or `off`.
pub fn flag(text: &str) -> Result<bool, ValueError> {
    match () {
        () if text.eq_ignore_ascii_case("on") => Ok(true),
        () if text.eq_ignore_ascii_case("off") => Ok(false),
        () => Err(ValueError::NotFlag),
    }
}

/// Returns a parser of one of several names.
pub fn choice<T: Copy>(names: &'static [(&'static str, T)]) -> impl Fn(&str) -> Result<T, ValueError> {
    move |text| match names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some((_, value)) => Ok(*value),
        None => Err(ValueError::NotAmong(names.iter().map(|(name, _)| *name).collect())),
    }
}

impl Statement {
    /// Parses the argument with this index: `statement.value(0, value::size)?`.
    pub fn value<T>(&self, index: usize, read: impl Fn(&str) -> Result<T, ValueError>) -> Result<T, Error> {
        let Some(text) = self.arg(index) else {
            let message = format_args!("\"{}\" directive needs argument {}", self.name.text, index + 1);
            return Err(Error::at(self, message));
        };
        read(text).map_err(|error| Error::value(self, text, error))
    }

    /// Parses `number size`, both positive, as for `output_buffers`.
    pub fn buffers(&self) -> Result<(u64, u64), Error> {
        let above_zero = |read: fn(&str) -> Result<u64, ValueError>| {
            move |text: &str| match read(text) {
                Ok(value) if value > 0 => Ok(value),
                Err(error @ ValueError::InvalidSize(_)) => Err(error),
                _ => Err(ValueError::Invalid),
            }
        };
        Ok((self.value(0, above_zero(number))?, self.value(1, above_zero(size))?))
    }

    /// Parses all arguments as names of bits and combines them. A repeated name is a warning.
    pub fn bits(
        &self,
        names: &'static [(&'static str, u64)],
        warnings: &mut Vec<Error>,
    ) -> Result<u64, Error> {
        let mut bits = 0;
        for (index, text) in self.texts().enumerate() {
            let bit = self.value(index, choice(names))?;
            if bits & bit != 0 {
                let message = format_args!("duplicate value \"{text}\"");
                warnings.push(Error::at(self, message).with_level(Level::Warn));
            }
            bits |= bit;
        }
        Ok(bits)
    }
}

/// Parses digits only; `None` also above [`VALUE_MAX`].
fn digits(text: &str) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|_| is_digits)?;
    (value <= VALUE_MAX).then_some(value)
}

fn scaled(text: &str, units: &'static [SizeUnit]) -> Result<u64, ValueError> {
    let unit = units.iter().find(|(letter, _)| text.ends_with([*letter, letter.to_ascii_uppercase()]));
    let (count, scale) = match unit {
        Some((_, scale)) => (&text[..text.len() - 1], *scale),
        None => (text, 1),
    };
    let value = digits(count).and_then(|count| count.checked_mul(scale));
    value.filter(|value| *value <= VALUE_MAX).ok_or(ValueError::InvalidSize(units))
}

/// Parses a time. `units` are the allowed units, `resolution` is the unit of the result, both in milliseconds.
///
/// Digits without a unit, before a space or at the end, are seconds. Spaces after a unit are ignored. As in nginx, a unit without
/// digits counts as zero if the text contains digits elsewhere.
fn time(text: &str, units: &'static [TimeUnit], resolution: u64) -> Result<u64, ValueError> {
    sum_of_times(text, units, resolution).ok_or(ValueError::InvalidTime(units))
}

fn sum_of_times(text: &str, mut units: &[TimeUnit], resolution: u64) -> Option<u64> {
    let mut rest = text;
    let (mut total, mut has_digits) = (0_u64, false);
    while !rest.is_empty() {
        let (count, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        has_digits |= !count.is_empty();
        let count = if count.is_empty() { 0 } else { digits(count)? };
        let (scale, length, later) = time_unit(tail, units)?;
        units = later;
        rest = tail[length..].trim_start_matches(' ');
        let value = count.checked_mul(scale / resolution)?;
        total = total.checked_add(value).filter(|total| *total <= VALUE_MAX)?;
    }
    has_digits.then_some(total)
}

/// Returns the unit at the start of `tail`: its scale, its length, and the units that may follow.
fn time_unit<'u>(tail: &str, units: &'u [TimeUnit]) -> Option<(u64, usize, &'u [TimeUnit])> {
    let Some(first) = tail.chars().next() else {
        return Some((SECOND, 0, units));
    };
    let length = if tail.starts_with("ms") { 2 } else { first.len_utf8() };
    let wanted = if first == ' ' { "s" } else { &tail[..length] };
    let position = units.iter().position(|(unit, _)| *unit == wanted)?;
    let later = if first == ' ' { &[] } else { &units[position + 1..] };
    Some((units[position].1, length, later))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<T: PartialEq + fmt::Debug>(
        read: impl Fn(&str) -> Result<T, ValueError>,
        error: ValueError,
        rows: &[(&str, Option<T>)],
    ) {
        for (text, expected) in rows {
            assert_eq!(read(text).as_ref(), expected.as_ref().ok_or(&error), "{text:?}");
        }
    }

    #[test]
    fn sizes_accept_k_and_m_and_offsets_accept_g() {
        let common = [
            ("0", Some(0)),
            ("8k", Some(8192)),
            ("8K", Some(8192)),
            ("1m", Some(1 << 20)),
            ("1M", Some(1 << 20)),
            ("9223372036854775807", Some(VALUE_MAX)),
            ("9223372036854775808", None),
            ("9007199254740991k", Some(9_007_199_254_740_991 << 10)),
            ("9007199254740992k", None),
            ("99999999999999999999999", None),
            ("", None),
            ("k", None),
            ("1kk", None),
            ("-1", None),
            ("+1", None),
            ("1 k", None),
            ("1é", None),
        ];
        let (in_memory, in_file) =
            (ValueError::InvalidSize(&SIZE_UNITS[..GIGABYTES]), ValueError::InvalidSize(&SIZE_UNITS));
        table(size, in_memory.clone(), &common);
        table(offset, in_file.clone(), &common);
        table(size, in_memory, &[("1g", None)]);
        table(offset, in_file, &[("1g", Some(1 << 30)), ("2G", Some(2 << 30))]);
    }

    #[test]
    fn times_in_milliseconds_are_parsed() {
        let rows = [
            ("30", Some(30_000)),
            ("500ms", Some(500)),
            ("1s", Some(1000)),
            ("1h 30m", Some(5_400_000)),
            ("1h30m", Some(5_400_000)),
            ("1w2d3h4m5s6ms", Some((((7 + 2) * 24 + 3) * 3600 + 4 * 60 + 5) * 1000 + 6)),
            ("1s500ms", Some(1500)),
            ("5 ", Some(5000)),
            (" 5", Some(5000)),
            ("1m  20", Some(80_000)),
            ("1s5", Some(6000)),
            ("5m s", Some(300_000)),
            ("1hm", Some(3_600_000)),
            ("30m 1h", None),
            ("1s 5 ", None),
            ("5 5s", None),
            ("5 5 5", None),
            ("500ms 1s", None),
            ("1h1h", None),
            ("1y", None),
            ("1M", None),
            ("", None),
            (" ", None),
            ("s", None),
            ("1x", None),
            ("1é", None),
            ("9223372036854775", Some(9_223_372_036_854_775_000)),
            ("9223372036854776", None),
            ("9223372036854775807ms", Some(VALUE_MAX)),
            ("9223372036854775807ms1", None),
        ];
        table(milliseconds, ValueError::InvalidTime(&TIME_UNITS[WEEKS..]), &rows);
    }

    #[test]
    fn times_in_seconds_are_parsed() {
        let rows = [
            ("30", Some(30)),
            ("1y", Some(365 * 86400)),
            ("1M", Some(30 * 86400)),
            ("1y 1M 1w 1d 1h 1m 1s", Some((365 + 30 + 7 + 1) * 86400 + 3661)),
            ("1M1y", None),
            ("1m1M", None),
            ("500ms", None),
            ("1s1ms", None),
        ];
        table(seconds, ValueError::InvalidTime(&TIME_UNITS[..MILLISECONDS]), &rows);
    }

    #[test]
    fn common_unit_names_are_recognised() {
        for (text, meant) in [
            ("30sec", Some("30s")),
            ("30days", Some("30d")),
            ("10 MB", Some("10m")),
            ("10 M", Some("10M")),
            ("500msecs", Some("500ms")),
            ("1024b", Some("1024")),
            ("30 ", None),
            ("sec", None),
            ("ten", None),
            ("1x", None),
            ("", None),
        ] {
            assert_eq!(probably(text).as_deref(), meant, "{text:?}");
        }
    }

    #[test]
    fn a_hint_is_a_value_of_the_same_kind() {
        let meant =
            |error: Result<u64, ValueError>, text: &str| error.expect_err("an invalid value").meant(text);
        for (text, of_size, of_offset, of_milliseconds, of_seconds) in [
            ("1gb", None, Some("1g"), None, None),
            ("10 MB", Some("10m"), Some("10m"), None, None),
            ("30sec", None, None, Some("30s"), Some("30s")),
            ("500msec", None, None, Some("500ms"), None),
            ("1year", None, None, None, Some("1y")),
            ("1 x", None, None, None, None),
        ] {
            assert_eq!(meant(size(text), text).as_deref(), of_size, "{text}");
            assert_eq!(meant(offset(text), text).as_deref(), of_offset, "{text}");
            assert_eq!(meant(milliseconds(text), text).as_deref(), of_milliseconds, "{text}");
            assert_eq!(meant(seconds(text), text).as_deref(), of_seconds, "{text}");
        }
    }

    #[test]
    fn numbers_flags_and_names_are_parsed() {
        table(number, ValueError::InvalidNumber, &[("7", Some(7)), ("", None), ("7x", None), ("-7", None)]);
        table(
            flag,
            ValueError::NotFlag,
            &[("on", Some(true)), ("OFF", Some(false)), ("yes", None), ("", None)],
        );
        table(
            choice(&[("a", 1), ("b", 2)]),
            ValueError::NotAmong(vec!["a", "b"]),
            &[("B", Some(2)), ("c", None)],
        );
        table(
            number_in(1, 9),
            ValueError::OutOfRange { min: 1, max: 9 },
            &[("9", Some(9)), ("0", None), ("10", None)],
        );
        table(number_in(1, u64::MAX), ValueError::TooSmall { min: 1 }, &[("10", Some(10)), ("0", None)]);
    }
}
