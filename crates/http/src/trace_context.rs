//! W3C Trace Context: the fields `traceparent` and `tracestate`, by which a request carries the identifiers of its trace.
//!
//! A request belongs to no trace if its `traceparent` is invalid; then its `tracestate` is ignored too (section 3.2.2.5). An invalid
//! `tracestate` alone is dropped. All limits are those of the specification.

/// The value of `traceparent` (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Identifier of the trace; not zero.
    pub trace_id: [u8; 16],
    /// Identifier of the span that has sent the request; not zero.
    pub span_id: [u8; 8],
    /// Whether the sender may have recorded the trace.
    pub is_sampled: bool,
}

/// Length in bytes of a value with version 00.
pub const TRACE_PARENT_LEN: usize = 55;

/// Maximum number of members of `tracestate` (section 3.3.1.1).
const STATE_MEMBERS_MAX: usize = 32;

/// Maximum length of a key (section 3.3.1.3.1).
const STATE_KEY_MAX: usize = 256;

/// Maximum lengths of the tenant and of the system in a key.
const TENANT_MAX: usize = 241;
const SYSTEM_MAX: usize = 14;

/// Maximum length of a value of `tracestate` (section 3.3.1.3.2).
const STATE_VALUE_MAX: usize = 256;

/// The only flag that versions 00 and later define: the trace is sampled.
const SAMPLED: u8 = 1;

impl TraceParent {
    /// Parses the values of all `traceparent` fields of a request. Several fields are invalid, because it is not known which of them
    /// another receiver uses.
    pub fn of_fields<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<TraceParent> {
        let value = values.next()?;
        if values.next().is_some() {
            return None;
        }
        TraceParent::parse(value)
    }

    /// Parses a value. Of a later version than 00, the parts of version 00 are used (section 3.2.4).
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        let (known, rest) = value.split_at_checked(TRACE_PARENT_LEN)?;
        let [version] = hex(&known[..2])?;
        let is_complete = match version {
            0 => rest.is_empty(),
            0xff => return None,
            _ => rest.first().is_none_or(|&byte| byte == b'-'),
        };
        if !is_complete || [known[2], known[35], known[52]] != [b'-'; 3] {
            return None;
        }
        let (trace_id, span_id, [flags]) = (hex(&known[3..35])?, hex(&known[36..52])?, hex(&known[53..])?);
        if trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        Some(TraceParent { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// Returns the value with version 00.
    pub fn encode(&self) -> [u8; TRACE_PARENT_LEN] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        text[3..35].copy_from_slice(digits_of(&self.trace_id).as_flattened());
        text[36..52].copy_from_slice(digits_of(&self.span_id).as_flattened());
        text[TRACE_PARENT_LEN - 1] += u8::from(self.is_sampled);
        text
    }
}

/// Appends bytes as lower-case hexadecimal digits.
pub fn push_hex<const N: usize>(bytes: &[u8; N], out: &mut Vec<u8>) {
    out.extend_from_slice(digits_of(bytes).as_flattened());
}

/// Returns the two lower-case hexadecimal digits of each byte.
fn digits_of<const N: usize>(bytes: &[u8; N]) -> [[u8; 2]; N] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
}

/// Parses lower-case hexadecimal digits; other digits are invalid (section 3.2.2.2).
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// Joins the values of all `tracestate` fields of a request, in their order, without white space and empty members. Returns `None` if
/// a member is invalid, a key occurs twice, or there are too many members.
pub fn join_states<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut keys: Vec<&[u8]> = Vec::new();
    let mut joined = Vec::new();
    for member in values.flat_map(|value| value.split(|&byte| byte == b',')) {
        let member = trim(member);
        if member.is_empty() {
            continue;
        }
        let equals = memchr::memchr(b'=', member)?;
        let (key, value) = (&member[..equals], &member[equals + 1..]);
        if keys.len() == STATE_MEMBERS_MAX || !is_key(key) || !is_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
        if !joined.is_empty() {
            joined.push(b',');
        }
        joined.extend_from_slice(member);
    }
    Some(joined)
}

/// Removes spaces and tabs.
fn trim(text: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = text.iter().position(is_text).unwrap_or(text.len());
    let end = text.iter().rposition(is_text).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Whether a key has the form `key`, or `tenant@system`.
fn is_key(key: &[u8]) -> bool {
    let starts = |text: &[u8]| text.first().is_some_and(u8::is_ascii_lowercase);
    let is_allowed = |text: &[u8]| {
        text.iter().all(|&byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/')
        })
    };
    match memchr::memchr(b'@', key) {
        None => key.len() <= STATE_KEY_MAX && starts(key) && is_allowed(key),
        Some(at) => {
            let (tenant, system) = (&key[..at], &key[at + 1..]);
            // A tenant may start with a digit.
            let is_tenant = !tenant.is_empty() && tenant.len() <= TENANT_MAX && is_allowed(tenant);
            let starts_tenant = tenant.first().is_some_and(|byte| byte.is_ascii_alphanumeric());
            is_tenant && starts_tenant && starts(system) && system.len() <= SYSTEM_MAX && is_allowed(system)
        }
    }
}

/// Whether a value has between 1 and 256 printable characters without comma and equals sign; the last one is no space.
fn is_value(value: &[u8]) -> bool {
    let is_allowed = |&byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'=');
    (1..=STATE_VALUE_MAX).contains(&value.len())
        && value.iter().all(is_allowed)
        && value.last().is_some_and(|&byte| byte != b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parse(text: &str) -> Option<TraceParent> {
        TraceParent::parse(text.as_bytes())
    }

    #[test]
    fn a_value_has_four_parts_in_lower_case() {
        let sampled = parse(&format!("00-{TRACE}-{SPAN}-01")).expect("it is valid");
        assert_eq!(sampled.encode(), format!("00-{TRACE}-{SPAN}-01").as_bytes());
        assert!(sampled.is_sampled);
        let other = parse(&format!("00-{TRACE}-{SPAN}-00")).expect("it is valid");
        assert!(!other.is_sampled && other.trace_id == sampled.trace_id && other.span_id == sampled.span_id);
        // Unknown flags are ignored, and not passed on.
        let flags = parse(&format!("00-{TRACE}-{SPAN}-ff")).expect("it is valid");
        assert_eq!(flags.encode(), sampled.encode());
        assert!(!parse(&format!("00-{TRACE}-{SPAN}-fe")).expect("it is valid").is_sampled);
    }

    #[test]
    fn invalid_values_belong_to_no_trace() {
        let zero_trace = "0".repeat(32);
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-00"),
            format!("00-{TRACE}-{SPAN}-011"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!(".0-{TRACE}-{SPAN}-01"),
            format!("0A-{TRACE}-{SPAN}-01"),
            format!("00-{zero_trace}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("00-{TRACE}-{SPAN}-.1"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!("00-{}-{SPAN}0-01", &TRACE[1..]),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn later_versions_may_have_more_parts() {
        let expected = parse(&format!("00-{TRACE}-{SPAN}-01"));
        assert_eq!(parse(&format!("01-{TRACE}-{SPAN}-01")), expected);
        assert_eq!(parse(&format!("cc-{TRACE}-{SPAN}-01-what-the-future")), expected);
        assert_eq!(parse(&format!("fe-{TRACE}-{SPAN}-01-")), expected);
        assert_eq!(parse(&format!("cc-{TRACE}-{SPAN}-01.what")), None);
        assert_eq!(parse(&format!("cc-{TRACE}-{SPAN}-0")), None);
    }

    #[test]
    fn only_a_single_field_is_valid() {
        let value = format!("00-{TRACE}-{SPAN}-01");
        let of = |values: &[&str]| TraceParent::of_fields(values.iter().map(|value| value.as_bytes()));
        assert!(of(&[&value]).is_some());
        assert_eq!((of(&[]), of(&[&value, &value]), of(&[&value, "x"])), (None, None, None));
    }

    fn states(values: &[&str]) -> Option<String> {
        let joined = join_states(values.iter().map(|value| value.as_bytes()))?;
        Some(String::from_utf8(joined).expect("its members are ASCII"))
    }

    #[test]
    fn states_are_joined_in_order() {
        for (values, expected) in [
            (&[][..], ""),
            (&[""], ""),
            (&["a=1"], "a=1"),
            (&["a=1,b=2", "c=3"], "a=1,b=2,c=3"),
            (&["a=1 ,\tb=2 \t", ",", " , c= 3"], "a=1,b=2,c= 3"),
            (&["0t@s=1,t*/_-9@sys=:<>!~"], "0t@s=1,t*/_-9@sys=:<>!~"),
        ] {
            assert_eq!(states(values).as_deref(), Some(expected), "{values:?}");
        }
        let longest =
            format!("{}={},{}@{}=1", "k".repeat(256), "v".repeat(256), "t".repeat(241), "s".repeat(14));
        assert_eq!(states(&[&longest]), Some(longest));
        let many: Vec<String> = (0..32).map(|number| format!("k{number}=1")).collect();
        assert_eq!(states(&[&many.join(",")]), Some(many.join(",")));
    }

    #[test]
    fn an_invalid_state_is_dropped() {
        let many: Vec<String> = (0..33).map(|number| format!("k{number}=1")).collect();
        for value in [
            "a",
            "=1",
            "a=",
            "a==1",
            "a=1,a=2",
            "A=1",
            "1=1",
            "a b=1",
            "a@=1",
            "@s=1",
            "a@1=1",
            "a@b@c=1",
            "a=\u{7f}",
            "a=\u{e9}",
            "a=1;b",
            &format!("{}=1", "k".repeat(257)),
            &format!("a={}", "v".repeat(257)),
            &format!("{}@s=1", "t".repeat(242)),
            &format!("t@{}=1", "s".repeat(15)),
            &many.join(","),
        ] {
            // A semicolon is an ordinary character of a value.
            let expected = (value == "a=1;b").then(|| value.to_owned());
            assert_eq!(states(&[value]), expected, "{value}");
        }
        assert_eq!(states(&["a=1", "b=2", "a=3"]), None);
    }
}
