//! Headers of records, and the framing of request bodies by records.

/// Maximum number of content bytes per record: the largest multiple of eight that fits into the length field. No record needs
/// padding to keep the next record aligned.
pub const CONTENT_MAX: usize = 65_528;

pub(super) const VERSION: u8 = 1;
/// Request ID: a connection has a single request at a time.
pub(super) const ID: u8 = 1;
pub(super) const HEADER_LEN: usize = 8;

pub(super) const BEGIN_REQUEST: u8 = 1;
pub(super) const END_REQUEST: u8 = 3;
pub(super) const PARAMS: u8 = 4;
pub(super) const STDIN: u8 = 5;
pub(super) const STDOUT: u8 = 6;
pub(super) const STDERR: u8 = 7;

/// Creates a record header for `len` bytes of content, at most [`CONTENT_MAX`], without padding.
pub(super) const fn header(kind: u8, len: usize) -> [u8; HEADER_LEN] {
    let len = (len as u16).to_be_bytes();
    [VERSION, kind, 0, ID, len[0], len[1], 0, 0]
}

/// Creates the header of a record with `len` bytes of a body.
pub(crate) fn body_record(len: u64) -> [u8; HEADER_LEN] {
    assert!(len <= CONTENT_MAX as u64, "a piece of a body fits into a record");
    header(STDIN, len as usize)
}

/// The record that ends a body.
pub(crate) static BODY_END: &[u8] = &header(STDIN, 0);
