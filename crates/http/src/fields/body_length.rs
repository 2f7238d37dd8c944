//! [`BodyLength`]: the length of a request body (RFC 9112 section 6.3).

/// Length of a request body, as far as the head determines it. In every protocol it is known when the head is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// The request has no body.
    #[default]
    None,
    /// Exactly this many bytes; may be zero.
    Exactly(u64),
    /// Known only at the end of the body: the last chunk in HTTP/1.1, the end of the stream in later versions.
    Unknown,
}

impl BodyLength {
    /// Whether a body has to be read.
    #[must_use]
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Exactly(0))
    }
}
