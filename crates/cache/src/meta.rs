//! The metadata that is stored with a response, in addition to its header section and body: [`Meta`].

/// Metadata of a stored response. Times of day are in milliseconds since 1970, so that short lifetimes are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Status of the response.
    pub status: u16,
    /// Time at which the response was received (RFC 9111, section 4.2.3: response_time), in milliseconds since 1970.
    pub response_time_ms: i64,
    /// Age at that time, in milliseconds (corrected_initial_age).
    pub initial_age_ms: i64,
    /// The response is fresh until this time.
    pub fresh_until_ms: i64,
    /// The response may be served stale until this time while it is being revalidated (RFC 5861); 0 if not.
    pub stale_while_revalidate_until_ms: i64,
    /// The response may be served stale until this time when fetching it fails (RFC 5861); 0 if not.
    pub stale_if_error_until_ms: i64,
    /// Flags of the caller, which the store does not interpret.
    pub flags: u32,
    /// Length of the complete body in bytes. For a partial entry: the length of the complete representation. `None`
    /// only until the fill is committed.
    pub length: Option<u64>,
    /// The entity tag as received, including quotes; empty if there is none.
    pub etag: Vec<u8>,
    /// `Last-Modified` in seconds since 1970, if it is a valid date.
    pub last_modified: Option<i64>,
    /// The field names of `Vary` in a form of the caller's choice, which is passed to the selector of a lookup; empty
    /// if the response matches every request.
    pub vary: Vec<u8>,
    /// The selector's value for the request that the response was stored for.
    pub variant: Vec<u8>,
    /// Tags that purges can match, separated by spaces.
    pub tags: Vec<u8>,
}

/// Maximum length of a key text in bytes. nginx has no limit except that of a request line; longer keys are not stored.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Maximum length of a stored header section in bytes. The buffers of a proxy for received header sections are smaller.
pub const HEAD_BYTES_MAX: usize = 1 << 20;

/// Maximum length of the list of tags in bytes. Tags must not be dropped silently, so a response with more is not
/// stored.
pub const TAGS_BYTES_MAX: usize = 16 << 10;
