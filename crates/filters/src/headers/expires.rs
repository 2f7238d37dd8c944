//! `expires`: how long a response may be cached, in the fields `Expires` and `Cache-Control` (RFC 9111 section 5).
//!
//! Both fields are sent, although they are redundant; `Expires` is for HTTP/1.0 clients.

use std::fmt;

use conf::{Error, value};

use crate::headers::Conf;
use exchange::request::Request;
use site::config::{Cx, Scope};
use site::template::Template;
use telemetry::time_zone::since_1970;

/// The value of the directive.
#[derive(Clone, Debug)]
pub(super) enum Setting {
    /// The same for all responses.
    Fixed(Expires),
    /// Depends on the request.
    Variable {
        /// The text, which is parsed when the variables are known.
        text: Template,
        /// Whether times are relative to the modification time of the file.
        modified: bool,
    },
}

/// The expiry time of a response. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expires {
    /// No fields are added.
    Off,
    /// Already expired (`epoch`).
    Epoch,
    /// In the far future (`max`).
    Max,
    /// This time after the response.
    Access(i64),
    /// This time after the modification time of the file.
    Modified(i64),
    /// At this time of the day.
    Daily(i64),
}

/// nginx's message for an invalid text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Invalid,
    DailyModified,
    DailyTooLate,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Invalid => "invalid value",
            Fault::DailyModified => "daily time cannot be used with \"modified\" parameter",
            Fault::DailyTooLate => "daily time value must be less than 24 hours",
        })
    }
}

const DAY: i64 = 24 * 60 * 60;

/// nginx's values of `max`: a date that fits into 32 bits, and ten years.
const MAX: (&[u8], &[u8]) = (b"Thu, 31 Dec 2037 23:55:55 GMT", b"max-age=315360000");

/// nginx's value of `epoch`: second 0 could be taken for an unset value.
const EPOCH: &[u8] = b"Thu, 01 Jan 1970 00:00:01 GMT";

/// Parses `expires [modified] TIME | epoch | max | off`.
pub(super) fn set(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let statement = cx.statement;
    let fault = move |fault: Fault| match fault {
        Fault::Invalid => {
            let text = statement.texts().last().unwrap_or_default();
            let error = value::seconds(text).err().unwrap_or(value::ValueError::Invalid);
            Error::value(statement, text, error)
        }
        other => Error::directive(statement, other),
    };
    let (modified, text) = match cx.statement.args.as_slice() {
        [text] => (false, text.text.as_str()),
        [word, text] if word.text == "modified" => (true, text.text.as_str()),
        _ => return Err(fault(Fault::Invalid)),
    };
    let template = cx.template(text)?;
    let setting = match template.constant() {
        None => Setting::Variable { text: template, modified },
        Some(text) => Setting::Fixed(parse(text, modified).map_err(fault)?),
    };
    scope.make_mut::<Conf>().expires = match setting {
        Setting::Fixed(Expires::Off) => None,
        setting => Some(setting.into()),
    };
    Ok(())
}

/// Parses a time or keyword. As in nginx keywords are not allowed after `modified`.
fn parse(text: &str, modified: bool) -> Result<Expires, Fault> {
    match text {
        "epoch" if !modified => return Ok(Expires::Epoch),
        "max" if !modified => return Ok(Expires::Max),
        "off" if !modified => return Ok(Expires::Off),
        _ => {}
    }
    let seconds = |text| value::seconds(text).map(|time| time as i64).map_err(|_| Fault::Invalid);
    if let Some(text) = text.strip_prefix('@') {
        return match seconds(text) {
            _ if modified => Err(Fault::DailyModified),
            Ok(time) if time > DAY => Err(Fault::DailyTooLate),
            time => Ok(Expires::Daily(time?)),
        };
    }
    let time = match text.strip_prefix('-') {
        Some(text) => -seconds(text)?,
        None => seconds(text.strip_prefix('+').unwrap_or(text))?,
    };
    Ok(if modified { Expires::Modified(time) } else { Expires::Access(time) })
}

/// Sets the fields of the response, replacing existing ones.
pub(super) fn apply(setting: &Setting, request: &mut Request) {
    let expires = match setting {
        Setting::Fixed(expires) => *expires,
        Setting::Variable { text, modified } => {
            let text = text.rendered(request);
            // As in nginx an empty value leaves the response unchanged.
            let parsed = std::str::from_utf8(&text).ok().and_then(|text| parse(text, *modified).ok());
            parsed.unwrap_or(Expires::Off)
        }
    };
    let (now, _) = since_1970(rt::wall());
    let (date, age) = match expires {
        Expires::Off => return,
        Expires::Epoch => return put(request, EPOCH, b"no-cache"),
        Expires::Max => return put(request, MAX.0, MAX.1),
        Expires::Access(0) | Expires::Modified(0) => (now, 0),
        Expires::Daily(time) => {
            let date = request.conn.thread.clock.zone().next_daily(now, time);
            (date, date - now)
        }
        Expires::Access(time) => (now.saturating_add(time), time),
        // Without a modification time the current time is used.
        Expires::Modified(time) => {
            let date = request.response.last_modified.unwrap_or(now).saturating_add(time);
            // With a negative time the response must not be cached.
            (date, if time < 0 { -1 } else { date - now })
        }
    };
    // HTTP dates have years of four digits.
    let text = http::date::http(date.clamp(0, DATE_MAX));
    if age < 0 {
        return put(request, &text, b"no-cache");
    }
    let mut cache_control = b"max-age=".to_vec();
    http::push_decimal(&mut cache_control, age as u64);
    put(request, &text, &cache_control);
}

/// The end of the year 9999.
const DATE_MAX: i64 = 253_402_300_799;

/// Replaces the fields of an upstream's response; several `Cache-Control` fields become one.
fn put(request: &mut Request, expires: &[u8], cache_control: &[u8]) {
    let list = &mut request.response.fields;
    for (name, value) in [("Expires", expires), ("Cache-Control", cache_control)] {
        let is_same = |known: &[u8]| known.eq_ignore_ascii_case(name.as_bytes());
        let Some(first) = list.iter().position(|(known, _)| is_same(known)) else {
            list.push(name.as_bytes(), value);
            continue;
        };
        list.edit(|fields| {
            fields[first].1 = value.into();
            let mut index = 0;
            fields.retain(|(known, _)| {
                index += 1;
                index <= first + 1 || !is_same(known)
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn texts_are_parsed_as_in_nginx() {
        for (text, modified, expected) in [
            ("epoch", false, Ok(Expires::Epoch)),
            ("max", false, Ok(Expires::Max)),
            ("off", false, Ok(Expires::Off)),
            ("off", true, Err(Fault::Invalid)),
            ("0", false, Ok(Expires::Access(0))),
            ("1d2h", false, Ok(Expires::Access(26 * 3600))),
            ("+10", true, Ok(Expires::Modified(10))),
            ("-1m", false, Ok(Expires::Access(-60))),
            ("@15h30m", false, Ok(Expires::Daily(15 * 3600 + 1800))),
            ("@24h", false, Ok(Expires::Daily(DAY))),
            ("@25h", false, Err(Fault::DailyTooLate)),
            ("@1h", true, Err(Fault::DailyModified)),
            ("", false, Err(Fault::Invalid)),
            ("@", false, Err(Fault::Invalid)),
            ("Max", false, Err(Fault::Invalid)),
            ("--1", false, Err(Fault::Invalid)),
        ] {
            assert_eq!(parse(text, modified), expected, "{text} {modified}");
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("1x", "invalid value"),
            ("changed 1h", "invalid value"),
            ("modified off", "invalid value"),
            ("modified @1h", "daily time cannot be used with \"modified\" parameter"),
            ("@24h1s", "daily time value must be less than 24 hours"),
            ("1h; expires 2h", "is duplicate"),
        ] {
            let found = error(&format!("http {{\nexpires {text}; }}"));
            let found = crate::testing::without_remedy(&found);
            assert_eq!(found, format!("\"expires\" directive {expected} in /conf/nginx.conf:2"));
        }
        let found = error("http {\nexpires 30days; }");
        assert!(found.ends_with("; did you mean \"30d\"?"), "{found}");
        let found = error("http {\nexpires $nobody; }");
        assert_eq!(found, "unknown \"nobody\" variable in /conf/nginx.conf:2");
    }

    #[test]
    fn blocks_inherit_the_setting_and_turn_it_off() {
        let config = loaded("expires 1h; server { location /a { } location /b { expires off; } }");
        let has = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.is_some_and(|location| location.scope.of::<Conf>().expires.is_some())
        };
        assert_eq!((has("server"), has("/a"), has("/b")), (true, true, false));
    }
}
