//! Header blocks being written, with the compression of HTTP/2 or HTTP/3.
//!
//! Main types: [`BlockWriter`], which both implement, and [`KnownField`], the names that a server writes itself. Code that is generic
//! over the writer is compiled for each version.

/// Name of a field that both static tables contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownField {
    /// `accept-ranges`
    AcceptRanges,
    /// `content-length`
    ContentLength,
    /// `content-type`
    ContentType,
    /// `date`
    Date,
    /// `etag`
    ETag,
    /// `last-modified`
    LastModified,
    /// `location`
    Location,
    /// `server`
    Server,
    /// `vary`
    Vary,
}

impl KnownField {
    /// All names.
    pub const ALL: [KnownField; 9] = [
        KnownField::AcceptRanges,
        KnownField::ContentLength,
        KnownField::ContentType,
        KnownField::Date,
        KnownField::ETag,
        KnownField::LastModified,
        KnownField::Location,
        KnownField::Server,
        KnownField::Vary,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static [u8] {
        match self {
            KnownField::AcceptRanges => b"accept-ranges",
            KnownField::ContentLength => b"content-length",
            KnownField::ContentType => b"content-type",
            KnownField::Date => b"date",
            KnownField::ETag => b"etag",
            KnownField::LastModified => b"last-modified",
            KnownField::Location => b"location",
            KnownField::Server => b"server",
            KnownField::Vary => b"vary",
        }
    }
}

/// Writer of the fields of a header block, which are appended to `out`.
pub trait BlockWriter {
    /// Appends `:status`, which must be first.
    fn push_status(out: &mut Vec<u8>, code: u16);

    /// Appends a field; its name is converted to lower case (RFC 9113 section 8.2, RFC 9114 section 4.2).
    fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]);

    /// Appends a field as never indexed (RFC 7541 section 7.1.3, RFC 9204 section 7.1.3).
    fn push_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]);

    /// Appends a field with a known name.
    fn push_known(out: &mut Vec<u8>, name: KnownField, value: &[u8]);

    /// Works like [`BlockWriter::push_known`], for a number.
    fn push_known_decimal(out: &mut Vec<u8>, name: KnownField, value: u64);
}
