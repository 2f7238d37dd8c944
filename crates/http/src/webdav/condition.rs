//! The field `If` (RFC 4918 section 10.4): lists of state tokens and entity tags, for the requested resource or for tagged
//! ones.

/// Maximum number of conditions in a field.
const CONDITIONS_MAX: usize = 64;

/// A value of `If`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct If<'t> {
    /// The lists. The field is true if one of them is.
    pub lists: Vec<List<'t>>,
}

/// A list, which is true if all its conditions are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List<'t> {
    /// The URL of the resource; `None` is the requested one.
    pub resource: Option<&'t [u8]>,
    /// The conditions.
    pub conditions: Vec<Condition<'t>>,
}

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition<'t> {
    /// Whether the condition is negated.
    pub is_not: bool,
    /// The state of the resource.
    pub state: ResourceState<'t>,
}

/// A state of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceState<'t> {
    /// It is locked with this token.
    Token(&'t [u8]),
    /// It has this entity tag.
    Etag(&'t [u8]),
}

impl<'t> If<'t> {
    /// Parses a value; `None` if it is invalid.
    #[must_use]
    pub fn parse(value: &'t [u8]) -> Option<If<'t>> {
        let (mut rest, mut resource) = (value.trim_ascii(), None);
        let (mut lists, mut count) = (Vec::new(), 0);
        while !rest.is_empty() {
            if let Some(tagged) = rest.strip_prefix(b"<") {
                let (url, after) = split(tagged, b'>')?;
                (resource, rest) = (Some(url), after.trim_ascii_start());
                continue;
            }
            let mut list = List { resource, conditions: Vec::new() };
            rest = rest.strip_prefix(b"(")?.trim_ascii_start();
            loop {
                if let Some(after) = rest.strip_prefix(b")") {
                    rest = after.trim_ascii_start();
                    break;
                }
                let is_not = rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case(b"not"));
                rest = if is_not { rest[3..].trim_ascii_start() } else { rest };
                let (state, after) = state(rest)?;
                rest = after.trim_ascii_start();
                list.conditions.push(Condition { is_not, state });
                count += 1;
                if count > CONDITIONS_MAX {
                    return None;
                }
            }
            if list.conditions.is_empty() {
                return None;
            }
            lists.push(list);
        }
        (!lists.is_empty()).then_some(If { lists })
    }

    /// Returns all tokens in the field, which the client has submitted, whatever the result.
    pub fn tokens(&self) -> impl Iterator<Item = &'t [u8]> {
        let conditions = self.lists.iter().flat_map(|list| &list.conditions);
        conditions.filter_map(|condition| match condition.state {
            ResourceState::Token(token) => Some(token),
            ResourceState::Etag(_) => None,
        })
    }
}

fn state(text: &[u8]) -> Option<(ResourceState<'_>, &[u8])> {
    if let Some(token) = text.strip_prefix(b"<") {
        let (token, rest) = split(token, b'>')?;
        return Some((ResourceState::Token(token), rest));
    }
    let (etag, rest) = split(text.strip_prefix(b"[")?, b']')?;
    Some((ResourceState::Etag(etag), rest))
}

fn split(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(end, text)?;
    Some((&text[..end], &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed() {
        let value = b"<http://a/x> (<urn:a> [W/\"e\"]) (Not <urn:b>) <http://a/y> ([\"f\"])";
        let parsed = If::parse(value).unwrap();
        assert_eq!(parsed.lists.len(), 3);
        assert_eq!(parsed.lists[0].resource, Some(&b"http://a/x"[..]));
        assert!(parsed.lists[1].conditions[0].is_not);
        assert_eq!(parsed.lists[2].conditions[0].state, ResourceState::Etag(b"\"f\""));
        assert_eq!(parsed.tokens().collect::<Vec<_>>(), [b"urn:a", b"urn:b"]);
        assert_eq!(If::parse(b"(<t>)").unwrap().lists[0].resource, None);
    }

    #[test]
    fn invalid_values_are_refused() {
        let many = format!("({})", "<t>".repeat(CONDITIONS_MAX + 1));
        for value in ["", "<x>", "()", "(<t>", "(<t", "x", "(x)", "([e)", "(<t>) x", &many] {
            assert_eq!(If::parse(value.as_bytes()), None, "{value:.40}");
        }
    }
}
