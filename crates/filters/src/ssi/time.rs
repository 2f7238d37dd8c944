//! `$date_local` and `$date_gmt`: the time in the format of `config timefmt`.

use exchange::request::Request;
use telemetry::time_zone::since_1970;

/// The default format, as in nginx.
const DEFAULT: &str = "%A, %d-%b-%Y %H:%M:%S %Z";

/// `config timefmt` of a request.
pub(super) struct TimeFormat(pub(super) String);

/// Appends the current time; returns `false` if the format is invalid.
pub(super) fn date(request: &Request, gmt: bool, out: &mut Vec<u8>) -> bool {
    let (seconds, _) = since_1970(rt::wall());
    let format = request.extensions.get().map_or(DEFAULT, |TimeFormat(format)| format);
    if format == "%s" {
        http::push_decimal(out, seconds.unsigned_abs());
        return true;
    }
    let text = request.conn.thread.clock.zone().format(seconds, gmt, &as_in_c(format));
    text.is_some_and(|text| {
        out.extend_from_slice(text.as_bytes());
        !text.is_empty()
    })
}

/// Converts a strftime(3) format of the C locale to the format of `TimeZone::format`: specifiers of dates are expanded,
/// `E` and `O` have no effect, and other characters are text.
fn as_in_c(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let flags = rest[1..].trim_start_matches(['-', '_', '0', '^', '#']);
        let width = flags.trim_start_matches(|sign: char| sign.is_ascii_digit());
        let bare = width.strip_prefix(['E', 'O']).unwrap_or(width);
        let options = &rest[1..rest.len() - width.len()];
        let Some(letter) = bare.chars().next() else { break };
        match letter {
            // These have the form of the C locale, because nginx never sets another locale.
            'c' => out.push_str("%a %b %e %H:%M:%S %Y"),
            'x' => out.push_str("%m/%d/%y"),
            'X' => out.push_str("%H:%M:%S"),
            'r' => out.push_str("%I:%M:%S %p"),
            '%' => out.push_str("%%"),
            _ if "aAbBCdDeFgGhHIjklmMnpPRsStTuUVwWyYzZ".contains(letter) => {
                out.extend(["%", options]);
                out.push(letter);
            }
            _ => {
                let whole = &rest[..rest.len() - bare.len() + letter.len_utf8()];
                out.push_str(&whole.replace('%', "%%"));
            }
        }
        rest = &bare[letter.len_utf8()..];
    }
    // A single percent sign at the end is text.
    out.push_str(&rest.replace('%', "%%"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::time_zone::TimeZone;

    #[test]
    fn time_formats_match_strftime() {
        // Thursday, 1 January 2026, 03:04:05.
        let moment = 1_767_236_645;
        for (format, expected) in [
            (DEFAULT, "Thursday, 01-Jan-2026 03:04:05 GMT"),
            ("%a %A %b %B %h", "Thu Thursday Jan January Jan"),
            ("%c|%x|%X|%r", "Thu Jan  1 03:04:05 2026|01/01/26|03:04:05|03:04:05 AM"),
            ("%C %d %D %e %F", "20 01 01/01/26  1 2026-01-01"),
            ("%g %G %V %u %w %U %W", "26 2026 01 4 4 00 00"),
            ("%H %I %j %k %l %m %M", "03 03 001  3  3 01 04"),
            ("%p %P %R %S %T %y %Y %z", "AM am 03:04 05 03:04:05 26 2026 +0000"),
            ("%s", "1767236645"),
            ("%Ey %Od %-d %_d %^a", "26 01 1  1 THU"),
            ("100%% %! %", "100% %! %"),
            ("%Q %\u{e9} \u{e9}", "%Q %\u{e9} \u{e9}"),
            ("", ""),
        ] {
            let found = TimeZone::default().format(moment, true, &as_in_c(format));
            assert_eq!(found.as_deref(), Some(expected), "{format}");
        }
    }

    #[test]
    fn no_format_panics() {
        for width in ["", "1", "99", "255", "256", "99999999999999999999"] {
            for letter in (1u8..128).map(char::from) {
                let format = format!("%{width}{letter}");
                let _ = TimeZone::default().format(0, true, &as_in_c(&format));
            }
        }
    }
}
