//! Variables about the upstreams that served a request.
//!
//! Log formats that are copied between sites contain these variables, whether or not a location passes requests on. As in nginx
//! they are empty for a request without an upstream.

use crate::{Declaration, Module};
use caching::record;
use exchange::module::{Prefixed, Variable};
use exchange::request::Request;
use upstream::state;

/// The module.
pub(crate) static MODULE: Module =
    Module { variables: VARIABLES, prefixed: PREFIXED, ..Module::of(Declaration::named("http_upstream")) };

const VARIABLES: &[Variable] = &[
    variable("upstream_addr", state::addr, "Addresses of the servers that were tried."),
    variable("upstream_bytes_received", state::bytes_received, "Bytes received from each server."),
    variable("upstream_bytes_sent", state::bytes_sent, "Bytes sent to each server."),
    variable("upstream_cache_age", state::cache_age, "Seconds since the response was stored in the cache."),
    variable("upstream_cache_etag", record::cache_etag, "Entity tag of the cache entry."),
    variable("upstream_cache_last_modified", record::cache_last_modified, "`Last-Modified` of that entry."),
    variable("upstream_cache_status", state::cache_status, "The cache's status: `HIT`, `MISS` and others."),
    variable("upstream_connect_time", state::connect_time, "Seconds until each connection was established."),
    variable("upstream_header_time", state::header_time, "Seconds until each header section was received."),
    variable(
        "upstream_last_server_name",
        state::last_server_name,
        "The name of the last server that was chosen.",
    ),
    variable("upstream_queue_time", none, "Always empty: requests do not wait in a queue for a server."),
    variable("upstream_response_length", state::response_length, "Lengths of the response bodies in bytes."),
    variable("upstream_response_time", state::response_time, "Seconds until the end of each response."),
    variable("upstream_status", state::status, "Statuses of the responses."),
];

const PREFIXED: &[Prefixed] = &[
    Prefixed { prefix: "upstream_http_", get: state::field, help: "A header field of the last response." },
    Prefixed {
        prefix: "upstream_trailer_",
        get: state::trailer,
        help: "A trailer field of the last response.",
    },
    Prefixed { prefix: "upstream_cookie_", get: state::cookie, help: "A cookie of the last response." },
];

/// Creates a variable that cannot be set.
const fn variable(
    name: &'static str,
    get: fn(&Request, &mut Vec<u8>) -> bool,
    help: &'static str,
) -> Variable {
    Variable { name, get, set: None, help }
}

/// `$upstream_queue_time`: always empty, because no request waits in a queue for a server.
fn none(_: &Request, _: &mut Vec<u8>) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn log_formats_may_use_upstream_variables() {
        loaded(
            "log_format a \"$upstream_addr $upstream_status $upstream_http_x_own $upstream_cookie_a $upstream_trailer_b\";
             map $upstream_cache_status $cached { HIT 1; default 0; }",
        );
        // As in nginx, the name after the prefix may be empty.
        loaded("log_format a $upstream_http_;");
        let found = error("http {\nlog_format a $upstream_htt; }");
        assert_eq!(found, "unknown \"upstream_htt\" variable in /conf/nginx.conf:2");
        let found = error("http { server {\nset $upstream_addr x; } }");
        assert_eq!(found, "the duplicate \"upstream_addr\" variable in /conf/nginx.conf:2");
    }
}
