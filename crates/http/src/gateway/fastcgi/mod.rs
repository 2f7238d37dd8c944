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
pub(super) mod record;

pub use decoder::Decoder;
pub use encoder::Encoder;
pub use record::CONTENT_MAX;
