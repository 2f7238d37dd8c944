//! How long connections are kept: what the directives of `http_core` say, with nginx's defaults.

use std::time::Duration;

/// `keepalive_disable`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepaliveDisable {
    pub(crate) msie6: bool,
    pub(crate) safari: bool,
}

/// `lingering_close`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LingeringClose {
    /// `off`
    Off,
    /// `on`: where the client may still send.
    On,
    /// `always`
    Always,
}

/// How long connections are kept.
#[derive(Clone, Debug)]
pub(crate) struct Keeping {
    /// `keepalive_timeout`; zero closes after each response.
    pub(crate) keepalive_timeout: Duration,
    /// `keepalive_timeout`, second argument: what the `Keep-Alive` field says, seconds.
    pub(crate) keepalive_header: Option<u64>,
    /// `keepalive_min_timeout`
    pub(crate) keepalive_min_timeout: Duration,
    /// `keepalive_requests`
    pub(crate) keepalive_requests: u64,
    /// `keepalive_time`: age after which a connection is closed.
    pub(crate) keepalive_time: Duration,
    /// `keepalive_disable`
    pub(crate) keepalive_disable: KeepaliveDisable,
    /// `lingering_close`
    pub(crate) lingering_close: LingeringClose,
    /// `lingering_time`
    pub(crate) lingering_time: Duration,
    /// `lingering_timeout`
    pub(crate) lingering_timeout: Duration,
    /// `reset_timedout_connection`
    pub(crate) reset_timedout_connection: bool,
}

impl Default for Keeping {
    fn default() -> Keeping {
        Keeping {
            keepalive_timeout: Duration::from_secs(75),
            keepalive_header: None,
            keepalive_min_timeout: Duration::ZERO,
            keepalive_requests: 1000,
            keepalive_time: Duration::from_secs(3600),
            keepalive_disable: KeepaliveDisable { msie6: true, safari: false },
            lingering_close: LingeringClose::On,
            lingering_time: Duration::from_secs(30),
            lingering_timeout: Duration::from_secs(5),
            reset_timedout_connection: false,
        }
    }
}
