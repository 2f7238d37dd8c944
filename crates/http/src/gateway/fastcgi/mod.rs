//! Servers that speak FastCGI 1.0 (<https://fastcgi-archives.github.io/FastCGI_Specification.html>), in the role of a
//! responder, with one request at a time on a connection.
//!
//! | record | direction | holds |
//! |---|---|---|
//! | `FCGI_BEGIN_REQUEST` (1) | out | the role, and whether the connection is kept |
//! | `FCGI_PARAMS` (4) | out | names and values; an empty one ends them |
//! | `FCGI_STDIN` (5) | out | the body; an empty one ends it |
//! | `FCGI_STDOUT` (6) | in | the response as of a CGI script (RFC 3875 section 6); an empty one ends it |
//! | `FCGI_STDERR` (7) | in | messages for the log |
//! | `FCGI_END_REQUEST` (3) | in | the end of the request |

mod decoder;
mod encoder;

pub use decoder::Decoder;
pub use encoder::Encoder;

/// Most bytes of content in one record: the largest multiple of eight that the length can tell, so that no record needs
/// padding to keep others aligned.
pub const CONTENT_MAX: usize = 65_528;

const VERSION: u8 = 1;
/// The number of the only request on a connection.
const ID: u8 = 1;
const HEADER_LEN: usize = 8;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// The header of a record with so much content, which is at most [`CONTENT_MAX`], and without padding.
const fn header(kind: u8, len: usize) -> [u8; HEADER_LEN] {
    let len = (len as u16).to_be_bytes();
    [VERSION, kind, 0, ID, len[0], len[1], 0, 0]
}

/// The header of a record with so much of a body.
pub(super) fn body_record(len: u64) -> [u8; HEADER_LEN] {
    assert!(len <= CONTENT_MAX as u64, "a piece of a body fits into a record");
    header(STDIN, len as usize)
}

/// The record that ends a body.
pub(super) static BODY_END: &[u8] = &header(STDIN, 0);
