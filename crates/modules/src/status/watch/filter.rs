//! The filter of `ringroad log`, which selects the requests to show.
//!
//! ```text
//! filter = term *( blank term )        all terms must match
//! term   = key "=" value *( "," value )        one of the values must match
//!        / key "!=" value *( "," value )       none of the values may match
//! ```
//! Keys: `server`, `location`, `code` (`404`, `5xx`), `slower` (a time), `cache`, `network`, `method`. Blanks in the
//! text of a location must be omitted: `location==/exact`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use conf::value;
use site::address::Address;
use site::network::Network;
use telemetry::watch::Facts;

/// Maximum number of terms in a filter: twice the number of keys.
const TERMS_MAX: usize = 16;

/// Maximum length of a filter in bytes.
const TEXT_MAX: usize = 4096;

/// A parsed filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Term>);

/// One term.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    is_negated: bool,
    values: Vec<Test>,
}

/// One value with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Server(String),
    /// Without blanks.
    Location(String),
    /// The first and the last status.
    Code(u16, u16),
    Slower(Duration),
    /// Upper case.
    Cache(String),
    Network(Network),
    /// Upper case.
    Method(String),
}

/// The reason why a text is no valid filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// The text or the number of its terms is above the limit.
    TooLong,
    /// A term that does not have the form `KEY=VALUE`.
    Form(String),
    /// An unknown key.
    Key(String),
    /// A value that its key does not accept: contains the term, and a description of valid values.
    Value(String, &'static str),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::TooLong => {
                write!(f, "the filter has more than {TEXT_MAX} bytes or {TERMS_MAX} terms")
            }
            FilterError::Form(term) => write!(f, "\"{term}\" is no term of a filter; write KEY=VALUE"),
            FilterError::Key(key) => write!(
                f,
                "a filter has no key \"{key}\"; the keys are server, location, code, slower, cache, network, method"
            ),
            FilterError::Value(term, what) => write!(f, "\"{term}\": the value is {what}"),
        }
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Parses a filter. An empty text matches every request.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let terms: Vec<&str> = text.split_ascii_whitespace().collect();
        if text.len() > TEXT_MAX || terms.len() > TERMS_MAX {
            return Err(FilterError::TooLong);
        }
        terms.into_iter().map(Term::parse).collect::<Result<_, _>>().map(Filter)
    }

    /// Whether a request matches.
    pub fn admits(&self, facts: &Facts<'_>) -> bool {
        self.0.iter().all(|term| term.values.iter().any(|test| test.holds(facts)) != term.is_negated)
    }
}

impl Term {
    /// Parses a term: a key, `=` or `!=`, and values separated by commas.
    fn parse(text: &str) -> Result<Term, FilterError> {
        let form = || FilterError::Form(text.to_owned());
        let (key, values) = text.split_once('=').ok_or_else(form)?;
        let (key, is_negated) = key.strip_suffix('!').map_or((key, false), |key| (key, true));
        if key.is_empty() || values.is_empty() {
            return Err(form());
        }
        // The regular expression of a location may contain commas.
        let values: Vec<&str> = if key == "location" { vec![values] } else { values.split(',').collect() };
        let test = |value: &str| Test::parse(key, value, text);
        Ok(Term { is_negated, values: values.into_iter().map(test).collect::<Result<_, _>>()? })
    }
}

impl Test {
    /// Parses a value of a key; `term` is the complete term, for messages.
    fn parse(key: &str, value: &str, term: &str) -> Result<Test, FilterError> {
        let wrong = |what| FilterError::Value(term.to_owned(), what);
        Ok(match key {
            "server" => Test::Server(value.to_owned()),
            "location" => Test::Location(compact(value)),
            "code" => {
                let (first, last) =
                    codes(value).ok_or_else(|| wrong("a status such as 404, or a class such as 5xx"))?;
                Test::Code(first, last)
            }
            "slower" => match value::milliseconds(value) {
                Ok(time) => Test::Slower(Duration::from_millis(time)),
                Err(_) => return Err(wrong("a time such as 100ms or 2s")),
            },
            "cache" => Test::Cache(value.to_ascii_uppercase()),
            "network" => {
                let (network, _) =
                    Network::parse(value).ok_or_else(|| wrong("a network such as 10.0.0.0/8"))?;
                Test::Network(network)
            }
            "method" => Test::Method(value.to_ascii_uppercase()),
            _ => return Err(FilterError::Key(key.to_owned())),
        })
    }

    /// Whether a finished request matches.
    fn holds(&self, facts: &Facts<'_>) -> bool {
        match self {
            Test::Server(name) => name == facts.server,
            Test::Location(name) => {
                name.bytes().eq(facts.location.bytes().filter(|byte| !byte.is_ascii_whitespace()))
            }
            Test::Code(first, last) => (*first..=*last).contains(&facts.code),
            Test::Slower(time) => facts.time > *time,
            Test::Cache(word) => word == facts.cache,
            Test::Network(network) => {
                facts.client.is_some_and(|ip| network.includes(&Address::Inet(SocketAddr::new(ip, 0))))
            }
            Test::Method(method) => method.as_bytes() == facts.method,
        }
    }
}

/// Returns the text of a location without blanks, for comparison.
fn compact(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_whitespace()).collect()
}

/// Returns the first and the last status that a text stands for.
fn codes(text: &str) -> Option<(u16, u16)> {
    if let Some(class) = text.strip_suffix("xx") {
        let class: u16 = class.parse().ok().filter(|class| (1..=5).contains(class))?;
        return Some((class * 100, class * 100 + 99));
    }
    let code = text.parse().ok().filter(|code| (100..=599).contains(code))?;
    Some((code, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>() -> Facts<'a> {
        Facts {
            server: "a.example",
            location: "= /exact",
            code: 503,
            time: Duration::from_millis(150),
            cache: "MISS",
            client: Some([10, 1, 2, 3].into()),
            method: b"GET",
        }
    }

    #[test]
    fn a_filter_needs_all_terms_and_one_value_of_each() {
        for (text, admits) in [
            ("", true),
            ("code=503", true),
            ("code=404,5xx", true),
            ("code!=5xx", false),
            ("code!=404 slower=100ms", true),
            ("slower=1s", false),
            ("slower=150ms", false),
            ("location==/exact server=a.example", true),
            ("location=/exact", false),
            ("cache=miss,expired", true),
            ("cache=HIT", false),
            ("network=10.0.0.0/8", true),
            ("network=::/0", false),
            ("network!=10.1.2.3", false),
            ("method=get  code=5xx", true),
        ] {
            let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(filter.admits(&facts()), admits, "{text}");
        }
        let unix = Facts { client: None, ..facts() };
        assert!(!Filter::parse("network=10.0.0.0/8").expect("right").admits(&unix));
    }

    #[test]
    fn wrong_terms_are_refused_with_the_valid_ones() {
        let wrong = |text: &str| Filter::parse(text).map_err(|error| error.to_string()).expect_err(text);
        assert_eq!(wrong("503"), "\"503\" is no term of a filter; write KEY=VALUE");
        assert_eq!(wrong("=a"), "\"=a\" is no term of a filter; write KEY=VALUE");
        assert_eq!(wrong("code="), "\"code=\" is no term of a filter; write KEY=VALUE");
        assert!(wrong("status=503").starts_with("a filter has no key \"status\"; the keys are server, "));
        assert_eq!(
            wrong("code=9xx"),
            "\"code=9xx\": the value is a status such as 404, or a class such as 5xx"
        );
        assert_eq!(
            wrong("code=-1"),
            "\"code=-1\": the value is a status such as 404, or a class such as 5xx"
        );
        assert_eq!(wrong("slower=x"), "\"slower=x\": the value is a time such as 100ms or 2s");
        assert_eq!(
            wrong("network=10.0.0.0/33"),
            "\"network=10.0.0.0/33\": the value is a network such as 10.0.0.0/8"
        );
        assert_eq!(wrong(&"code=200 ".repeat(17)), FilterError::TooLong.to_string());
        assert_eq!(wrong(&"x".repeat(5000)), FilterError::TooLong.to_string());
    }
}
