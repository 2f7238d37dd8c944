//! Which clients get compressed responses: what `gzip_http_version`, `gzip_proxied`, `gzip_vary` and `gzip_disable` say.

use std::sync::Arc;

use crate::config::Layered;
use crate::pattern::Pattern;

/// What these directives say.
#[derive(Clone, Debug, Default)]
pub(crate) struct GzipClients {
    /// Whether `gzip_http_version` is 1.0.
    pub(crate) http_10: bool,
    /// `gzip_proxied`
    pub(crate) proxied: Proxied,
    /// `gzip_vary`
    pub(crate) vary: bool,
    /// Patterns of `gzip_disable`.
    pub(crate) disable: Layered<Arc<Pattern>>,
    /// `gzip_disable msie6`; once said it holds in all blocks inside, as in nginx.
    pub(crate) disable_msie6: bool,
}

/// A set of the parameters of `gzip_proxied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proxied {
    pub(crate) bits: u64,
    /// The block whose directives these are; 0 is none.
    pub(crate) block: u32,
}

impl Proxied {
    pub(crate) const OFF: u64 = 1;
    pub(crate) const EXPIRED: u64 = 1 << 1;
    pub(crate) const NO_CACHE: u64 = 1 << 2;
    pub(crate) const NO_STORE: u64 = 1 << 3;
    pub(crate) const PRIVATE: u64 = 1 << 4;
    pub(crate) const NO_LAST_MODIFIED: u64 = 1 << 5;
    pub(crate) const NO_ETAG: u64 = 1 << 6;
    pub(crate) const AUTH: u64 = 1 << 7;
    pub(crate) const ANY: u64 = 1 << 8;

    /// Whether a parameter is among them.
    pub(crate) fn has(self, parameter: u64) -> bool {
        self.bits & parameter != 0
    }
}

impl Default for Proxied {
    fn default() -> Proxied {
        Proxied { bits: Proxied::OFF, block: 0 }
    }
}
