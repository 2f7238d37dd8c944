//! Pairs as JSON: the bodies of changes, the responses of `api`, and state files.
//!
//! A member is `"KEY": "VALUE"`, or an object with the value and a time. In a body this is `expire`, in ms from now on; in a state
//! file `expires`, in ms since 1970. A repeated key is an error, because serde would silently drop one of the values.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::pairs::{CopiedPair, PairChange as Change};

/// Parses the body of a change.
pub fn changes(text: &[u8]) -> Result<Vec<(String, Change)>, Fault> {
    let members = members(text)?;
    let change = |(key, member)| match member {
        Member::Null => Ok((key, Change::Remove)),
        Member::Text(value) => Ok((key, Change::Set { value: Some(value), expire_ms: None })),
        Member::Object { expires: Some(_), .. } | Member::Object { value: None, expire: None, .. } => {
            Err(Fault::Value(key))
        }
        Member::Object { expire: Some(0), .. } => Err(Fault::Value(key)),
        Member::Object { value, expire, .. } => Ok((key, Change::Set { value, expire_ms: expire })),
    };
    members.into_iter().map(change).collect()
}

/// Parses a state file; an empty file has no pairs.
pub(super) fn state(text: &[u8]) -> Result<Vec<CopiedPair>, Fault> {
    if text.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let pair = |(key, member)| match member {
        Member::Text(value) => Ok(CopiedPair { key, value, expires_ms: None }),
        Member::Object { value: Some(value), expire: None, expires } => {
            Ok(CopiedPair { key, value, expires_ms: expires })
        }
        Member::Null | Member::Object { .. } => Err(Fault::Value(key)),
    };
    members(text)?.into_iter().map(pair).collect()
}

/// Returns the text of a state file.
pub(super) fn state_text(pairs: &[CopiedPair]) -> Vec<u8> {
    object(pairs, |pair, out| match pair.expires_ms {
        None => append(&pair.value, out),
        Some(expires) => {
            out.extend_from_slice(b"{\"value\":");
            append(&pair.value, out);
            out.extend_from_slice(format!(",\"expires\":{expires}}}").as_bytes());
        }
    })
}

/// Returns the pairs as an object of keys and values, as `api` shows them.
pub fn object_of(pairs: &[CopiedPair]) -> Vec<u8> {
    object(pairs, |pair, out| append(&pair.value, out))
}

/// Returns an object with a line for each pair.
fn object(pairs: &[CopiedPair], value: impl Fn(&CopiedPair, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (index, pair) in pairs.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"\n" } else { b",\n" });
        append(&pair.key, &mut out);
        out.push(b':');
        value(pair, &mut out);
    }
    out.extend_from_slice(if pairs.is_empty() { b"}\n" } else { b"\n}\n" });
    out
}

fn append(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a text is written to memory");
}

/// A text that has no pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no object of JSON, or has a repeated key; with the reason.
    Json(String),
    /// A key is empty.
    Key,
    /// The value of this key is neither a text nor an object with the known fields.
    Value(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Json(reason) => write!(f, "invalid JSON: {reason}"),
            Fault::Key => f.write_str("a key is empty"),
            Fault::Value(key) => write!(f, "invalid value of key \"{}\"", key.escape_debug()),
        }
    }
}

/// Parses an object with texts or objects. Its size was limited before: by the length of a body, or of a state file.
/// An empty key is refused, because no lookup finds it.
fn members(text: &[u8]) -> Result<Vec<(String, Member)>, Fault> {
    let Members(members) = serde_json::from_slice(text).map_err(|error| Fault::Json(error.to_string()))?;
    match members.iter().any(|(key, _)| key.is_empty()) {
        true => Err(Fault::Key),
        false => Ok(members),
    }
}

/// The members of an object, without repeated keys. Their order is that of the text, because a body with several changes is applied in
/// this order.
struct Members(Vec<(String, Member)>);

/// The value of a member.
enum Member {
    /// `null`, which removes a pair.
    Null,
    /// A value without a time.
    Text(String),
    /// A value, a time, or both.
    Object { value: Option<String>, expire: Option<u64>, expires: Option<u64> },
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let (mut members, mut known) = (Vec::new(), HashSet::new());
                while let Some((key, member)) = map.next_entry::<String, Member>()? {
                    if !known.insert(key.clone()) {
                        return Err(A::Error::custom("a key is repeated"));
                    }
                    members.push((key, member));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Member;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, null, or an object with \"value\" and a time")
            }

            fn visit_unit<E: Error>(self) -> Result<Member, E> {
                Ok(Member::Null)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Member, E> {
                Ok(Member::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Member, E> {
                Ok(Member::Text(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Member, A::Error> {
                let (mut value, mut expire, mut expires) = (None, None, None);
                while let Some(name) = map.next_key::<String>()? {
                    let is_repeated = match name.as_str() {
                        "value" => value.replace(map.next_value::<String>()?).is_some(),
                        "expire" => expire.replace(map.next_value::<u64>()?).is_some(),
                        "expires" => expires.replace(map.next_value::<u64>()?).is_some(),
                        _ => return Err(A::Error::custom("a field is unknown")),
                    };
                    if is_repeated {
                        return Err(A::Error::custom("a field is repeated"));
                    }
                }
                Ok(Member::Object { value, expire, expires })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: Option<&str>, expire_ms: Option<u64>) -> Change {
        Change::Set { value: value.map(str::to_owned), expire_ms }
    }

    #[test]
    fn bodies_are_changes() {
        let text = br#"{"a":"1","b":null,"c":{"value":"2","expire":30000},"d":{"expire":5},"\u00e9":"\""}"#;
        let expected = [
            ("a", set(Some("1"), None)),
            ("b", Change::Remove),
            ("c", set(Some("2"), Some(30_000))),
            ("d", set(None, Some(5))),
            ("é", set(Some("\""), None)),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(key, change)| (key.to_owned(), change)).collect();
        assert_eq!(changes(text), Ok(expected));
        assert_eq!(changes(b"{}"), Ok(Vec::new()));
    }

    #[test]
    fn wrong_bodies_are_refused() {
        for text in [
            "",
            "[]",
            "null",
            "\"a\"",
            "{",
            "{\"a\":1}",
            "{\"a\":true}",
            "{\"a\":[]}",
            "{\"a\":\"1\",\"a\":\"2\"}",
            "{\"a\":\"1\"} x",
            "{\"a\":{\"value\":\"1\",\"other\":1}}",
            "{\"a\":{\"value\":\"1\",\"value\":\"2\"}}",
            "{\"a\":{\"value\":\"1\",\"expire\":-1}}",
            "{\"a\":{\"value\":\"1\",\"expire\":1e400}}",
            "{\"a\":{\"value\":\"1\",\"expire\":18446744073709551616}}",
            "{\"a\":\"\\ud800\"}",
        ] {
            assert!(matches!(changes(text.as_bytes()), Err(Fault::Json(_))), "{text}");
        }
        assert!(matches!(changes(b"{\"a\":\"\xff\"}"), Err(Fault::Json(_))));
        assert!(matches!(changes("[".repeat(100_000).as_bytes()), Err(Fault::Json(_))));
        assert_eq!(changes(b"{\"\":\"1\"}"), Err(Fault::Key));
        for text in [
            "{\"a\":{}}",
            "{\"a\":{\"value\":\"1\",\"expires\":5}}",
            "{\"a\":{\"value\":\"1\",\"expire\":0}}",
        ] {
            assert_eq!(changes(text.as_bytes()), Err(Fault::Value("a".to_owned())), "{text}");
        }
    }

    #[test]
    fn a_state_file_is_read_back_unchanged() {
        let pair = |key: &str, value: &str, expires_ms| CopiedPair {
            key: key.into(),
            value: value.into(),
            expires_ms,
        };
        let pairs = [pair("a", "1", None), pair("b\n\"", "é\u{0}\\", Some(1_700_000_000_123))];
        let text = state_text(&pairs);
        assert_eq!(state(&text).as_deref(), Ok(&pairs[..]));
        assert_eq!(state_text(&[]), b"{}\n");
        assert_eq!((state(b""), state(b" \n"), state(b"{}")), (Ok(vec![]), Ok(vec![]), Ok(vec![])));
        for text in ["{\"a\":null}", "{\"a\":{\"expires\":5}}", "{\"a\":{\"value\":\"1\",\"expire\":5}}"] {
            assert_eq!(state(text.as_bytes()), Err(Fault::Value("a".to_owned())), "{text}");
        }
    }
}
