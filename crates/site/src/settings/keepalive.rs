//! Keep-alive and lingering close: settings of `http_core`, with nginx's defaults.

use std::time::Duration;

/// `keepalive_disable`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveDisable {
    /// `msie6`
    pub msie6: bool,
    /// `safari`
    pub safari: bool,
    /// The block of the directive; 0 if there is none.
    pub block: u32,
}

/// `lingering_close`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LingeringClose {
    /// `off`
    Off,
    /// `on`: if the client may still send.
    On,
    /// `always`
    Always,
}

/// Settings of keep-alive and lingering close.
#[derive(Clone, Debug)]
pub struct Keepalive {
    /// `keepalive_timeout`; zero closes after each response.
    pub keepalive_timeout: Duration,
    /// `keepalive_timeout`, second argument: the value of the `Keep-Alive` field, in seconds.
    pub keepalive_header: Option<u64>,
    /// `keepalive_min_timeout`
    pub keepalive_min_timeout: Duration,
    /// `keepalive_requests`
    pub keepalive_requests: u64,
    /// `keepalive_time`: age after which a connection is closed.
    pub keepalive_time: Duration,
    /// `keepalive_disable`
    pub keepalive_disable: KeepaliveDisable,
    /// `lingering_close`
    pub lingering_close: LingeringClose,
    /// `lingering_time`
    pub lingering_time: Duration,
    /// `lingering_timeout`
    pub lingering_timeout: Duration,
    /// `reset_timedout_connection`
    pub reset_timedout_connection: bool,
}

impl Keepalive {
    /// Whether a connection of this age may serve further requests after this number of requests.
    #[must_use]
    pub fn permits(&self, requests: u64, age: Duration) -> bool {
        !self.keepalive_timeout.is_zero() && requests < self.keepalive_requests && age < self.keepalive_time
    }
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive {
            keepalive_timeout: Duration::from_secs(75),
            keepalive_header: None,
            keepalive_min_timeout: Duration::ZERO,
            keepalive_requests: 1000,
            keepalive_time: Duration::from_secs(3600),
            keepalive_disable: KeepaliveDisable { msie6: true, safari: false, block: 0 },
            lingering_close: LingeringClose::On,
            lingering_time: Duration::from_secs(30),
            lingering_timeout: Duration::from_secs(5),
            reset_timedout_connection: false,
        }
    }
}
