//! Fields of responses that are not passed on to the client: `proxy_hide_header`, `proxy_pass_header` and the fields that each
//! protocol hides, in header and trailer sections.

use http::fields::HeaderId;
use site::config::Layered;

/// The hidden fields of a location.
#[derive(Clone, Debug)]
pub struct Hidden {
    /// Whether the protocol hides a field, in addition to those hidden by all protocols.
    pub by_protocol: fn(HeaderId, &[u8]) -> bool,
    /// `proxy_hide_header`
    pub names: Layered<Box<str>>,
    /// `proxy_pass_header`
    pub shown: Layered<Box<str>>,
}

impl Default for Hidden {
    fn default() -> Hidden {
        Hidden { by_protocol: |_, _| false, names: Layered::default(), shown: Layered::default() }
    }
}

impl Hidden {
    /// Whether a field is hidden.
    pub fn has(&self, id: HeaderId, name: &[u8]) -> bool {
        let is_hidden = self.has_by_default(id, name) || self.has_by_name(name);
        is_hidden && !has_name(self.shown.items(), name)
    }

    /// Whether a field is hidden by default: fields for this server, and those that the protocol adds.
    fn has_by_default(&self, id: HeaderId, name: &[u8]) -> bool {
        matches!(
            id,
            HeaderId::XAccelExpires
                | HeaderId::XAccelRedirect
                | HeaderId::XAccelLimitRate
                | HeaderId::XAccelBuffering
                | HeaderId::XAccelCharset
        ) || (self.by_protocol)(id, name)
    }

    /// Whether `proxy_hide_header` names a field.
    pub fn has_by_name(&self, name: &[u8]) -> bool {
        has_name(self.names.items(), name)
    }

    /// Returns the trailer fields that are passed on.
    pub(super) fn passed(&self, trailers: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_passed = |(name, _): &&(Vec<u8>, Vec<u8>)| !self.has(HeaderId::of(name), name);
        trailers.iter().filter(is_passed).cloned().collect()
    }
}

/// Whether the list has a name, in any case of letters.
fn has_name(list: &[Box<str>], name: &[u8]) -> bool {
    list.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}
