//! The settings of requests to upstreams, which a module such as `proxy` creates from its directives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::hidden::Hidden;
use crate::secure::SecureSettings;
use site::template::Template;
use transfer::temp_directory::TempDirectory;

/// Upstream settings of a location, with nginx's names and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_send_timeout`
    pub send_timeout: Duration,
    /// `proxy_read_timeout`
    pub read_timeout: Duration,
    /// `proxy_half_close_timeout`: time that a tunnel stays open without data after one side has ended it.
    pub half_close_timeout: Duration,
    /// `proxy_buffer_size`: maximum size of a short body that is sent together with its header section.
    pub buffer_size: u64,
    /// The same as the maximum size of a response's header section, whose default is larger than nginx's.
    pub head_max: u64,
    /// `proxy_buffers`: number and size.
    pub buffers: (u32, u64),
    /// `proxy_busy_buffers_size`, if set
    pub busy_buffers_size: Option<u64>,
    /// `proxy_buffering`
    pub buffering: bool,
    /// `proxy_request_buffering`
    pub request_buffering: bool,
    /// `proxy_max_temp_file_size`; 0 disables temporary files.
    pub max_temp_file_size: u64,
    /// `proxy_temp_file_write_size`, if set
    pub temp_file_write_size: Option<u64>,
    /// `proxy_temp_path`
    pub temp_path: TempDirectory,
    /// `proxy_next_upstream`
    pub next_upstream: NextUpstream,
    /// `proxy_next_upstream_tries`; 0 means no limit.
    pub next_upstream_tries: u32,
    /// `proxy_next_upstream_timeout`; zero means no limit.
    pub next_upstream_timeout: Duration,
    /// `proxy_bind`
    pub bind: Option<Bind>,
    /// `proxy_socket_keepalive`
    pub socket_keepalive: bool,
    /// `proxy_socket_rcvbuf`
    pub socket_rcvbuf: Option<u64>,
    /// `proxy_socket_sndbuf`
    pub socket_sndbuf: Option<u64>,
    /// `proxy_ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `proxy_limit_rate`: maximum rate of reading from an upstream, in bytes per second.
    pub limit_rate: Option<Template>,
    /// Fields of responses that are not passed on.
    pub hidden: Hidden,
    /// `proxy_pass_trailers`
    pub pass_trailers: bool,
    /// Whether responses are stored as files (`proxy_store`): a begun response is then received without its client too. Determined
    /// at the end of a block.
    pub stores: bool,
    /// `proxy_ssl_*`, if upstreams may be reached over TLS.
    pub secure: Option<Arc<SecureSettings>>,
}

impl Settings {
    /// Returns the filter of trailer fields; `None` if none are passed on.
    pub fn trailers(&self) -> Option<Hidden> {
        self.pass_trailers.then(|| self.hidden.clone())
    }
}

impl Default for Settings {
    /// Returns nginx's defaults on machines with pages of 4 KiB.
    fn default() -> Settings {
        let minute = Duration::from_secs(60);
        Settings {
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            half_close_timeout: Duration::from_secs(5),
            buffer_size: 4 << 10,
            head_max: 8 << 10,
            buffers: (8, 4 << 10),
            busy_buffers_size: None,
            buffering: true,
            request_buffering: true,
            max_temp_file_size: 1 << 30,
            temp_file_write_size: None,
            temp_path: TempDirectory::new(PathBuf::from("proxy_temp"), &[]),
            next_upstream: NextUpstream::ERROR | NextUpstream::TIMEOUT,
            next_upstream_tries: 0,
            next_upstream_timeout: Duration::ZERO,
            bind: None,
            socket_keepalive: false,
            socket_rcvbuf: None,
            socket_sndbuf: None,
            ignore_client_abort: false,
            limit_rate: None,
            hidden: Hidden::default(),
            pass_trailers: false,
            stores: false,
            secure: None,
        }
    }
}

/// `proxy_bind`: the local address of connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// The address.
    pub address: BindAddr,
    /// Whether the address need not belong to this machine (`transparent`).
    pub transparent: bool,
}

/// Source of the address of a [`Bind`].
#[derive(Clone, Debug, PartialEq)]
pub enum BindAddr {
    /// A literal address; with port 0 the kernel chooses the port.
    Fixed(SocketAddr),
    /// A text with variables; an empty text or an invalid address means no bind, as in nginx.
    Text(Template),
}

/// Reasons to try another upstream (`proxy_next_upstream`): a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextUpstream(u16);

impl NextUpstream {
    /// `error`
    pub const ERROR: NextUpstream = NextUpstream(1);
    /// `timeout`
    pub const TIMEOUT: NextUpstream = NextUpstream(1 << 1);
    /// `invalid_header`
    pub const INVALID_HEADER: NextUpstream = NextUpstream(1 << 2);
    /// `http_500`
    pub const HTTP_500: NextUpstream = NextUpstream(1 << 3);
    /// `http_502`
    pub const HTTP_502: NextUpstream = NextUpstream(1 << 4);
    /// `http_503`
    pub const HTTP_503: NextUpstream = NextUpstream(1 << 5);
    /// `http_504`
    pub const HTTP_504: NextUpstream = NextUpstream(1 << 6);
    /// `http_403`
    pub const HTTP_403: NextUpstream = NextUpstream(1 << 7);
    /// `http_404`
    pub const HTTP_404: NextUpstream = NextUpstream(1 << 8);
    /// `http_429`
    pub const HTTP_429: NextUpstream = NextUpstream(1 << 9);
    /// Requests with side effects may be sent again too.
    pub const NON_IDEMPOTENT: NextUpstream = NextUpstream(1 << 10);
    /// The empty set (`off`).
    pub const OFF: NextUpstream = NextUpstream(0);

    /// Whether the set contains all of `reasons`.
    pub fn contains(self, reasons: NextUpstream) -> bool {
        self.0 & reasons.0 == reasons.0
    }

    /// Returns the reason for a response with this status, if any.
    pub fn of_status(status: u16) -> Option<NextUpstream> {
        Some(match status {
            500 => NextUpstream::HTTP_500,
            502 => NextUpstream::HTTP_502,
            503 => NextUpstream::HTTP_503,
            504 => NextUpstream::HTTP_504,
            403 => NextUpstream::HTTP_403,
            404 => NextUpstream::HTTP_404,
            429 => NextUpstream::HTTP_429,
            _ => return None,
        })
    }
}

impl std::ops::BitOr for NextUpstream {
    type Output = NextUpstream;

    fn bitor(self, other: NextUpstream) -> NextUpstream {
        NextUpstream(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_reasons_form_a_set() {
        let set = NextUpstream::ERROR | NextUpstream::HTTP_503;
        assert!(set.contains(NextUpstream::ERROR) && set.contains(NextUpstream::HTTP_503));
        assert!(
            !set.contains(NextUpstream::TIMEOUT)
                && !set.contains(NextUpstream::ERROR | NextUpstream::TIMEOUT)
        );
        assert!(!NextUpstream::OFF.contains(NextUpstream::ERROR));
        assert_eq!(NextUpstream::of_status(429), Some(NextUpstream::HTTP_429));
        assert_eq!(NextUpstream::of_status(200), None);
    }
}
