//! Formatting of figures and other values, shared by all report files.

use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell};

/// Separator of groups of three digits: a narrow no-break space.
const GROUP: char = '\u{202f}';

/// Formats a number with `decimals` decimals and grouped digits.
pub(crate) fn number(value: f64, decimals: u8) -> String {
    let plain = format!("{:.*}", usize::from(decimals), value.abs());
    let (digits, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    // A value that rounds to zero has no sign.
    if value < 0.0 && plain.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        text.push('−');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(GROUP);
        }
        text.push(digit);
    }
    text + rest
}

/// Formats a number with about four significant digits, for values without a defined precision.
pub(crate) fn rounded(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return number(value, 0);
    }
    // Bounded, since a denormal value would yield hundreds of decimals.
    let magnitude = value.abs().log10().floor().clamp(-9.0, 12.0) as i32;
    let decimals = u8::try_from((3 - magnitude).clamp(0, 9)).unwrap_or(0);
    let text = number(value, decimals);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a number for an axis: brief, with the usual suffixes for thousands and millions.
pub(crate) fn tick(value: f64) -> String {
    for (size, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        // A value just below a unit would otherwise be displayed as 1000 of the next smaller unit.
        if value.abs() >= size * 0.999_999 {
            return rounded(value / size) + letter;
        }
    }
    rounded(value)
}

/// Returns the median, and the minimum and maximum if they differ from it as printed.
pub(crate) fn with_spread(summary: &Summary, decimals: u8) -> (String, Option<String>) {
    let [median, low, high] =
        [summary.median, summary.low, summary.high].map(|value| number(value, decimals));
    let spread = (low != median || high != median).then(|| format!("{low}–{high}"));
    (median, spread)
}

/// Formats a cell on one line.
pub(crate) fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Figure { summary, decimals } => match with_spread(summary, *decimals) {
            (median, Some(spread)) => format!("{median} ({spread})"),
            (median, None) => median,
        },
        Cell::Text(text) => text.clone(),
        Cell::Missing(reason) => format!("no figure: {reason}"),
        Cell::Broken(reason) => format!("broken: {reason}"),
    }
}

/// Returns the name of a column or an axis with its unit.
pub(crate) fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
}

/// Returns the label of an axis.
pub(crate) fn axis(axis: &Axis) -> String {
    let is_bare_percentile = axis.scale == AxisScale::Percentile && axis.unit.is_empty();
    let text = with_unit(&axis.name, if is_bare_percentile { "%" } else { &axis.unit });
    if axis.scale == AxisScale::Logarithmic { text + " (logarithmic)" } else { text }
}

/// Formats a duration in seconds for readers.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 100.0 {
        return format!("{} s", rounded((seconds * 10.0).round() / 10.0));
    }
    let minutes = (seconds / 60.0).round();
    if minutes < 100.0 { format!("{minutes:.0} minutes") } else { format!("{:.1} hours", minutes / 60.0) }
}

/// Formats an RFC 3339 timestamp with a precision of minutes.
pub(crate) fn moment(rfc3339: &str) -> String {
    match (rfc3339.get(..10), rfc3339.get(11..16)) {
        (Some(date), Some(time)) => format!("{date}, {time} UTC"),
        _ => rfc3339.to_owned(),
    }
}

/// Formats a count: `1 measurement`, `2 measurements`.
pub(crate) fn count(of: usize, what: &str) -> String {
    let plural = if of == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(of as f64, 0))
}

/// Escapes text for HTML content and for quoted attribute values: one function for both, so that they cannot be
/// confused.
pub(crate) fn escape_html(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Escapes text for Markdown, on one line, also within a table.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => escaped.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '<' | '\\' => escaped.extend(['\\', character]),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(number(1_234_567.891, 2), "1\u{202f}234\u{202f}567.89");
        assert_eq!(number(999.5, 0), "1\u{202f}000");
        assert_eq!(number(-1234.0, 0), "−1\u{202f}234");
        assert_eq!(number(-0.001, 2), "0.00");
    }

    #[test]
    fn insignificant_digits_are_omitted() {
        for (value, text) in
            [(0.0, "0"), (2.5, "2.5"), (0.012_345, "0.01235"), (1234.9, "1\u{202f}235"), (100.0, "100")]
        {
            assert_eq!(rounded(value), text);
        }
    }

    #[test]
    fn tick_labels_are_short() {
        for (value, text) in
            [(0.0, "0"), (950.0, "950"), (1000.0, "1k"), (2500.0, "2.5k"), (2e6, "2M"), (0.05, "0.05")]
        {
            assert_eq!(tick(value), text);
        }
    }

    #[test]
    fn a_spread_is_shown_if_it_exists() {
        let summary = Summary { median: 2.0, low: 1.5, high: 3.0 };
        assert_eq!(cell(&Cell::Figure { summary, decimals: 1 }), "2.0 (1.5–3.0)");
        let one = Summary { median: 2.0, low: 1.999, high: 2.001 };
        assert_eq!(cell(&Cell::Figure { summary: one, decimals: 1 }), "2.0");
    }

    #[test]
    fn durations_and_times_are_human_readable() {
        assert_eq!(duration(4.26), "4.3 s");
        assert_eq!(duration(1500.0), "25 minutes");
        assert_eq!(duration(8000.0), "2.2 hours");
        assert_eq!(moment("2026-11-22T06:14:43.123Z"), "2026-11-22, 06:14 UTC");
    }
}
