//! Claims: the times of validity (RFC 7519 section 4.1), and values as text.

use super::object::{Object, Value};
use super::token::Fault;

/// Parses the claims of a token.
pub fn parse(payload: &[u8]) -> Result<Object, Fault> {
    Object::parse(payload).ok_or(Fault::Claims)
}

/// Checks `exp` and `nbf` at a time in seconds since 1970, with a tolerance in seconds for clocks that differ.
pub fn check_times(claims: &Object, now: u64, leeway: u64) -> Result<(), Fault> {
    let (now, leeway) = (now as f64, leeway as f64);
    if time(claims, "exp")?.is_some_and(|end| now >= end + leeway) {
        return Err(Fault::Expired);
    }
    if time(claims, "nbf")?.is_some_and(|start| now + leeway < start) {
        return Err(Fault::NotYetValid);
    }
    Ok(())
}

/// Returns a time, which may have a fraction. A value that is no finite number is an error: it must not count as absent.
fn time(claims: &Object, name: &str) -> Result<Option<f64>, Fault> {
    if !claims.has(name) {
        return Ok(None);
    }
    let Some(Value::Literal(text)) = claims.get(name) else { return Err(Fault::Claims) };
    let time: Option<f64> = text.parse().ok().filter(|time: &f64| time.is_finite());
    time.map(Some).ok_or(Fault::Claims)
}

/// Returns the value at a path of names.
pub fn at(object: &Object, path: &[impl AsRef<str>]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    let value = object.get(first.as_ref())?;
    match (rest, value) {
        ([], value) => Some(value),
        (rest, Value::Object(inner)) => at(&inner, rest),
        _ => None,
    }
}

/// Returns the value of a name in any case: the only way to name it for a variable, whose name has no case.
pub fn named(object: &Object, name: &str) -> Option<Value> {
    if object.has(name) {
        return object.get(name);
    }
    let mut names = object.names().filter(|known| known.eq_ignore_ascii_case(name));
    match (names.next(), names.next()) {
        (Some(known), None) => object.get(known),
        // Ambiguous.
        _ => None,
    }
}

/// Returns a value as text: elements of arrays are separated by commas; `null` and objects have no text.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) | Value::Literal(text) => Some(text.clone()),
        Value::Array(items) => Some(items.iter().filter_map(text).collect::<Vec<_>>().join(",")),
        Value::Null | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(claims: &str, leeway: u64) -> Result<(), Fault> {
        check_times(&parse(claims.as_bytes())?, 1000, leeway)
    }

    #[test]
    fn times_are_checked_with_leeway() {
        for (claims, leeway, expected) in [
            ("{}", 0, Ok(())),
            ("{\"exp\":1001}", 0, Ok(())),
            ("{\"exp\":1000.5}", 0, Ok(())),
            ("{\"exp\":1000}", 0, Err(Fault::Expired)),
            ("{\"exp\":1000}", 1, Ok(())),
            ("{\"exp\":999}", 1, Err(Fault::Expired)),
            ("{\"exp\":-1e300}", 5, Err(Fault::Expired)),
            ("{\"exp\":1e300}", 0, Ok(())),
            ("{\"exp\":99999999999999999999999}", 0, Ok(())),
            ("{\"nbf\":1000}", 0, Ok(())),
            ("{\"nbf\":1001}", 0, Err(Fault::NotYetValid)),
            ("{\"nbf\":1001}", 1, Ok(())),
            ("{\"nbf\":1e308}", u64::MAX, Err(Fault::NotYetValid)),
            // No number: not the same as an absent claim.
            ("{\"exp\":\"2000\"}", 0, Err(Fault::Claims)),
            ("{\"exp\":null}", 0, Err(Fault::Claims)),
            ("{\"exp\":true}", 0, Err(Fault::Claims)),
            ("{\"exp\":[2000]}", 0, Err(Fault::Claims)),
            ("{\"exp\":1e400}", 0, Err(Fault::Claims)),
            ("{\"nbf\":-1e400}", 0, Err(Fault::Claims)),
            ("{\"exp\":2000,\"exp\":1}", 0, Err(Fault::Claims)),
            ("[]", 0, Err(Fault::Claims)),
            ("", 0, Err(Fault::Claims)),
        ] {
            assert_eq!(check(claims, leeway), expected, "{claims} {leeway}");
        }
    }

    #[test]
    fn values_are_found_and_written() {
        let claims = parse(br#"{"sub":"a,b","Mail":"m","role":"r","Role":"R","n":12345678901234567890123,"info":{"job title":["x",1,true,null,{"y":1},["z"]],"e":{}},"none":null}"#).expect("it is valid");
        let text_at = |path: &[&str]| at(&claims, path).as_ref().and_then(text);
        assert_eq!(text_at(&["sub"]).as_deref(), Some("a,b"));
        assert_eq!(text_at(&["n"]).as_deref(), Some("12345678901234567890123"));
        assert_eq!(text_at(&["info", "job title"]).as_deref(), Some("x,1,true,z"));
        for path in [&["info"][..], &["info", "e"], &["none"], &["sub", "x"], &["x"], &[]] {
            assert_eq!(text_at(path), None, "{path:?}");
        }
        let named = |name: &str| named(&claims, name).as_ref().and_then(text);
        assert_eq!(
            (named("mail").as_deref(), named("role").as_deref(), named("ROLE")),
            (Some("m"), Some("r"), None)
        );
    }
}
