//! FastCGI 1.0 (<https://fastcgi-archives.github.io/FastCGI_Specification.html>) in the responder role, with one request at a time
//! per connection.
//!
//! | record | direction | content |
//! |---|---|---|
//! | `FCGI_BEGIN_REQUEST` (1) | out | the role, and whether the server keeps the connection open |
//! | `FCGI_PARAMS` (4) | out | names and values; an empty record ends them |
//! | `FCGI_STDIN` (5) | out | the body; an empty record ends it |
//! | `FCGI_STDOUT` (6) | in | a CGI response (RFC 3875 section 6); an empty record ends it |
//! | `FCGI_STDERR` (7) | in | messages for the log |
//! | `FCGI_END_REQUEST` (3) | in | the end of the request |

mod decoder;
mod encoder;

pub use decoder::Decoder;
pub use encoder::Encoder;

/// Maximum number of content bytes per record: the largest multiple of eight that fits into the length field. No record needs
/// padding to keep the next record aligned.
pub const CONTENT_MAX: usize = 65_528;

const VERSION: u8 = 1;
/// Request ID: a connection has a single request at a time.
const ID: u8 = 1;
const HEADER_LEN: usize = 8;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Creates a record header for `len` bytes of content, at most [`CONTENT_MAX`], without padding.
const fn header(kind: u8, len: usize) -> [u8; HEADER_LEN] {
    let len = (len as u16).to_be_bytes();
    [VERSION, kind, 0, ID, len[0], len[1], 0, 0]
}

/// Creates the header of a record with `len` bytes of a body.
pub(super) fn body_record(len: u64) -> [u8; HEADER_LEN] {
    assert!(len <= CONTENT_MAX as u64, "a piece of a body fits into a record");
    header(STDIN, len as usize)
}

/// The record that ends a body.
pub(super) static BODY_END: &[u8] = &header(STDIN, 0);
