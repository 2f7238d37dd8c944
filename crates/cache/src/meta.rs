//! The facts of a stored response beside its head and body: [`Meta`].

/// Facts about a stored response. Times of day are in seconds since 1970, as freshness counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Status of the response.
    pub status: u16,
    /// When the response was received (RFC 9111, section 4.2.3: response_time), in milliseconds since 1970.
    pub response_time_ms: i64,
    /// Its age then, in seconds (corrected_initial_age).
    pub initial_age: u32,
    /// Fresh until this time.
    pub fresh_until: i64,
    /// May be served stale until this time while it is fetched again (RFC 5861); 0 when not.
    pub stale_while_revalidate_until: i64,
    /// May be served stale until this time when fetching it fails (RFC 5861); 0 when not.
    pub stale_if_error_until: i64,
    /// Bits that the store keeps and does not look at.
    pub flags: u32,
    /// Bytes of the whole body. Of an entry that holds parts it is that of the whole representation. Unknown only until
    /// the fill is committed.
    pub length: Option<u64>,
    /// The entity tag as it was received, quotes and all; empty without one.
    pub etag: Vec<u8>,
    /// `Last-Modified`, when it was a valid date.
    pub last_modified: Option<i64>,
    /// The field names of `Vary` in a form of the caller's choice, which the selector of a lookup gets back; empty when
    /// every request selects the response.
    pub vary: Vec<u8>,
    /// The selector's value for the request of the response.
    pub variant: Vec<u8>,
    /// Tags that a purge can name, parted by blanks.
    pub tags: Vec<u8>,
}

/// Longest key text. nginx has no limit but that of a request line; an entry with more is not stored.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Longest stored head; the buffers of a proxy hold less.
pub const HEAD_BYTES_MAX: usize = 1 << 20;

/// Longest list of tags. A part of it must not be dropped in silence, so an entry with more is not stored.
pub const TAGS_BYTES_MAX: usize = 16 << 10;
