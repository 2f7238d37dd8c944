//! One file per decoder. `run` accepts any bytes. If a decoder has settings or parses its input in pieces, the first
//! bytes of the input select the settings and the size of the pieces.

pub mod acme_texts;
pub mod chunked;
pub mod client_hello;
pub mod configuration;
pub mod dns_message;
pub mod entry_header;
pub mod fastcgi_response;
pub mod grpc_timeout;
pub mod h2_client;
pub mod h2_response;
pub mod h2_session;
pub mod h3_request;
pub mod h3_session;
pub mod hpack;
pub mod jwt_token;
pub mod keyval_text;
pub mod memcached_response;
pub mod mp4_movie;
pub mod otlp_response;
pub mod proxy_protocol;
pub mod purge_log;
pub mod qpack;
pub mod range;
pub mod request_head;
pub mod response_head;
pub mod set_cookie;
pub mod structured_fields;
pub mod trace_context;
pub mod uri;
pub mod webdav_body;

/// Removes and returns the first byte; zero if there is none.
fn take_byte(data: &mut &[u8]) -> u8 {
    match data.split_first() {
        Some((first, rest)) => {
            *data = rest;
            *first
        }
        None => 0,
    }
}

/// Removes eight bytes and returns them as a number; missing bytes count as zero.
fn take_u64(data: &mut &[u8]) -> u64 {
    (0..8).fold(0, |number, _| number << 8 | u64::from(take_byte(data)))
}
