//! The arguments of a callback, decoded.

/// Maximum number of arguments.
const ARGS_MAX: usize = 32;

/// The arguments of a query.
#[derive(Debug)]
pub(super) struct Args(Vec<(String, String)>);

impl Args {
    /// Parses a query. A repeated name is an error (RFC 6749 section 3.1): another program could read the other value.
    pub(super) fn parse(query: &[u8]) -> Option<Args> {
        let mut args: Vec<(String, String)> = Vec::new();
        for arg in query.split(|byte| *byte == b'&').filter(|arg| !arg.is_empty()) {
            let mut parts = arg.splitn(2, |byte| *byte == b'=');
            let mut part = || decoded(parts.next().unwrap_or_default());
            let (name, value) = (part()?, part()?);
            if args.len() >= ARGS_MAX || args.iter().any(|(known, _)| *known == name) {
                return None;
            }
            args.push((name, value));
        }
        Some(Args(args))
    }

    /// Returns the value of an argument.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Decodes a text of a form: a plus sign stands for a blank.
fn decoded(text: &[u8]) -> Option<String> {
    let blanks: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    let mut out = Vec::new();
    http::uri::unescape(&blanks, &mut out);
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_decoded_and_not_repeated() {
        let args = Args::parse(b"code=a%2Bb+c&state=&x&&iss=https%3A%2F%2Fa").expect("valid");
        assert_eq!(args.get("code").as_deref(), Some("a+b c"));
        assert_eq!(args.get("state").as_deref(), Some(""));
        assert_eq!(args.get("x").as_deref(), Some(""));
        assert_eq!(args.get("iss").as_deref(), Some("https://a"));
        assert_eq!(args.get("none"), None);
        assert!(Args::parse(b"state=a&state=b").is_none());
        assert!(Args::parse(b"state=a&st%61te=b").is_none());
        assert!(Args::parse(b"a=%ff").is_none());
        let many: Vec<String> = (0..=ARGS_MAX).map(|number| format!("a{number}=1")).collect();
        assert!(Args::parse(many.join("&").as_bytes()).is_none());
    }
}
