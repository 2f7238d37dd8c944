//! [`Object`]: an object of JSON whose values remain text until they are used.
//!
//! A repeated name is an error (RFC 7515 section 4, RFC 7519 section 4): otherwise two programs could read different values from one
//! token. Numbers keep their digits, because an identifier may have more than a floating-point number can hold.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of members of an object.
const MEMBERS_MAX: usize = 1000;

/// An object.
#[derive(Clone, Debug, Default)]
pub struct Object(BTreeMap<String, Box<RawValue>>);

/// A value of a member.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number, `true` or `false`, as written.
    Literal(String),
    /// `null`
    Null,
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Object),
}

impl Object {
    /// Parses a text. Returns `None` if it is no object, or an object with a repeated name.
    pub fn parse(text: &[u8]) -> Option<Object> {
        serde_json::from_slice(text).ok()
    }

    /// Returns the text of a member.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a member; `None` if it is absent, or invalid inside.
    pub fn get(&self, name: &str) -> Option<Value> {
        value(self.0.get(name)?.get(), DEPTH_MAX)
    }

    /// Whether the object has a member of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names of the members.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Maximum nesting of a value that is used as text: an array of arrays. Deeper values have no text.
const DEPTH_MAX: u32 = 16;

/// Parses the text of a value. An object inside is parsed to its members.
fn value(text: &str, depth_left: u32) -> Option<Value> {
    Some(match text.as_bytes().first()? {
        b'"' => Value::Text(serde_json::from_str(text).ok()?),
        b'{' => Value::Object(Object::parse(text.as_bytes())?),
        b'[' => {
            let depth_left = depth_left.checked_sub(1)?;
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Value::Array(items.into_iter().map(|item| value(item.get(), depth_left)).collect::<Option<_>>()?)
        }
        b'n' => Value::Null,
        _ => Value::Literal(text.to_owned()),
    })
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.insert(name, value).is_some() {
                        return Err(A::Error::custom("a name is repeated"));
                    }
                    if members.len() > MEMBERS_MAX {
                        return Err(A::Error::custom("the object has too many members"));
                    }
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_digits() {
        let object = Object::parse(br#"{"a":"x\u00e9","b":123456789012345678901234567890,"c":1.0e5,"d":null,"e":[1,"2",[true]],"f":{"g":{}}}"#);
        let object = object.expect("it is valid");
        assert_eq!(object.text("a").as_deref(), Some("xé"));
        for (name, expected) in [
            ("b", "Literal(\"123456789012345678901234567890\")"),
            ("c", "Literal(\"1.0e5\")"),
            ("d", "Null"),
            ("e", "Array([Literal(\"1\"), Text(\"2\"), Array([Literal(\"true\")])])"),
        ] {
            assert_eq!(format!("{:?}", object.get(name).expect(name)), expected);
        }
        assert!(matches!(object.get("f"), Some(Value::Object(inner)) if inner.has("g") && !inner.has("f")));
        assert!(object.text("b").is_none() && object.get("x").is_none());
    }

    #[test]
    fn invalid_and_ambiguous_texts_are_refused() {
        let deep = |open: &str, close: &str, depth| {
            format!("{{\"a\":{}1{}}}", open.repeat(depth), close.repeat(depth))
        };
        for text in [
            "",
            "[]",
            "null",
            "\"a\"",
            "{",
            "{\"a\":1,\"a\":2}",
            "{\"a\":1,\"\\u0061\":2}",
            "{\"a\":01}",
            "{\"a\":1}{}",
            "{\"a\":tru}",
            "{\"a\":NaN}",
            "{a:1}",
            "{\"a\":1,}",
        ] {
            assert!(Object::parse(text.as_bytes()).is_none(), "{text}");
        }
        assert!(Object::parse(b"{\"a\":\"\xff\"}").is_none());
        // Ambiguous, invalid or deep values inside have no value.
        for text in [
            "{\"a\":{\"b\":1,\"b\":2}}",
            "{\"a\":[{\"b\":1,\"b\":2}]}",
            "{\"a\":\"\\ud800\"}",
            &deep("[", "]", 17),
            &deep("[", "]", 100_000),
        ] {
            let object = Object::parse(text.as_bytes());
            assert!(object.is_none_or(|object| object.get("a").is_none()), "{}", &text[..30.min(text.len())]);
        }
        assert!(Object::parse(deep("[", "]", 16).as_bytes()).expect("valid").get("a").is_some());
        let many: Vec<String> = (0..1001).map(|number| format!("\"{number}\":1")).collect();
        assert!(Object::parse(format!("{{{}}}", many.join(",")).as_bytes()).is_none());
    }
}
