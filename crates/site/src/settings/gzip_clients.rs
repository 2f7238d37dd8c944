//! Which clients get compressed responses: the settings of `gzip_http_version`, `gzip_proxied`, `gzip_vary` and
//! `gzip_disable`.

use conf::Layered;
use std::sync::Arc;

use crate::pattern::Pattern;

/// The settings that decide which clients get compressed responses.
#[derive(Clone, Debug, Default)]
pub struct GzipClients {
    /// Whether `gzip_http_version` is 1.0.
    pub http_10: bool,
    /// `gzip_proxied`
    pub proxied: Proxied,
    /// `gzip_vary`
    pub vary: bool,
    /// Patterns of `gzip_disable`.
    pub disable: Layered<Arc<Pattern>>,
    /// `gzip_disable msie6`; once set it applies to all inner blocks, as in nginx.
    pub disable_msie6: bool,
}

/// A set of the parameters of `gzip_proxied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The cases, as bits.
    pub bits: u64,
    /// The block of these directives; 0 if there is none.
    pub block: u32,
}

impl Proxied {
    /// `off`
    pub const OFF: u64 = 1;
    /// `expired`
    pub const EXPIRED: u64 = 1 << 1;
    /// `no-cache`
    pub const NO_CACHE: u64 = 1 << 2;
    /// `no-store`
    pub const NO_STORE: u64 = 1 << 3;
    /// `private`
    pub const PRIVATE: u64 = 1 << 4;
    /// `no_last_modified`
    pub const NO_LAST_MODIFIED: u64 = 1 << 5;
    /// `no_etag`
    pub const NO_ETAG: u64 = 1 << 6;
    /// `auth`
    pub const AUTH: u64 = 1 << 7;
    /// `any`
    pub const ANY: u64 = 1 << 8;

    /// Whether the set contains a parameter.
    pub fn has(self, parameter: u64) -> bool {
        self.bits & parameter != 0
    }
}

impl Default for Proxied {
    fn default() -> Proxied {
        Proxied { bits: Proxied::OFF, block: 0 }
    }
}
