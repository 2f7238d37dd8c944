//! Configuration of caches: [`CacheConf`], the settings of a block, and [`CachePath`], the declaration of a cache. The directives
//! are in `cache_conf` and `cache_path` of `gateways::passing`.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::conf::Span;
use http::freshness::Heuristic;

use crate::failures::Stale;
use crate::stall_limits::{LONGEST_WAIT, StallLimits};
use crate::tasks::Cache;
use site::config::ReclaimsSpace;
use site::config::{Keywords, Layered};
use site::shared_zone::{self, ZoneKind};
use site::template::Template;

/// Default of `proxy_cache_lock_age` and `proxy_cache_lock_timeout`.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// The caches of a configuration.
#[derive(Debug, Default)]
pub struct Caches {
    /// The declared caches, in order.
    pub zones: Vec<Arc<CacheZone>>,
    /// The uses of caches, checked after the configuration was read.
    pub uses: Vec<CacheUse>,
}

/// A use of a cache; it may precede the line that declares the cache.
#[derive(Debug)]
pub struct CacheUse {
    /// The cache.
    pub zone: Arc<CacheZone>,
    /// The directive that names it.
    pub directive: String,
    /// Location of the directive in the configuration.
    pub span: Span,
}

/// The cache settings of a block.
#[derive(Clone, Debug)]
pub struct CacheConf {
    /// `proxy_cache`
    pub zone: Zone,
    /// `proxy_cache_key`; its default is the URL of the request to the upstream.
    pub key: Option<Arc<Template>>,
    /// Location of the key in the configuration, if it contains `$http_authorization`: requests with different credentials then
    /// have different keys.
    pub credential_key: Option<Span>,
    /// `proxy_cache_valid`; the first match counts.
    pub valid: Layered<Valid>,
    /// `proxy_cache_methods`: see [`CacheConf::has_method`].
    pub methods: Keywords,
    /// `proxy_cache_bypass`
    pub bypass: Layered<Template>,
    /// `proxy_no_cache`
    pub no_store: Layered<Template>,
    /// `proxy_cache_purge`
    pub purge: Layered<Template>,
    /// `proxy_cache_purge_soft`
    pub purge_soft: Layered<Template>,
    /// `proxy_cache_purge_all`
    pub purge_all: Layered<Template>,
    /// `proxy_cache_purge_tag_header`
    pub purge_tag_header: Option<Arc<[u8]>>,
    /// `proxy_cache_invalidate`
    pub invalidates: bool,
    /// `proxy_cache_heuristic`
    pub heuristic: Option<Heuristic>,
    /// `proxy_cache_s_maxage_stale`
    pub s_maxage_stale: bool,
    /// Whether `proxy_set_header` or a parameter `HTTP_RANGE` sets the `Range` of upstream requests, as with `slice`; determined at
    /// the end of a block.
    pub sets_range: bool,
    /// `proxy_buffering`: responses that are passed on unbuffered are not stored; determined at the end of a block.
    pub is_buffered: bool,
    /// `proxy_cache_min_uses`
    pub min_uses: u64,
    /// `proxy_cache_use_stale`
    pub use_stale: Keywords,
    /// `proxy_cache_background_update`
    pub background_update: bool,
    /// `proxy_cache_revalidate`
    pub revalidate: bool,
    /// `proxy_cache_lock`; `None` if it is not set.
    pub lock: Option<bool>,
    /// `proxy_cache_lock_timeout`; `None` if it is not set.
    pub lock_timeout: Option<Duration>,
    /// `proxy_cache_lock_age`; `None` if it is not set.
    pub lock_age: Option<Duration>,
    /// `proxy_cache_max_range_offset`; `None` means no limit.
    pub max_range_offset: Option<u64>,
    /// `proxy_cache_convert_head`
    pub convert_head: bool,
    /// `proxy_cache_authorized`
    pub stores_authorized: bool,
    /// `proxy_cache_finish`
    pub finishes_fills: bool,
    /// `proxy_cache_parts`
    pub stores_parts: bool,
    /// `proxy_cache_tag_header`
    pub tag_header: Option<Arc<[u8]>>,
    /// `proxy_cache_request_control`
    pub heeds_requests: bool,
    /// `proxy_cache_status_header`: the name of this cache in `Cache-Status`.
    pub status_name: Option<Arc<[u8]>>,
}

impl Default for CacheConf {
    fn default() -> CacheConf {
        CacheConf {
            zone: Zone::Off,
            key: None,
            credential_key: None,
            valid: Layered::default(),
            methods: Keywords::default(),
            bypass: Layered::default(),
            no_store: Layered::default(),
            purge: Layered::default(),
            purge_soft: Layered::default(),
            purge_all: Layered::default(),
            purge_tag_header: None,
            invalidates: true,
            heuristic: None,
            s_maxage_stale: false,
            sets_range: false,
            is_buffered: true,
            min_uses: 1,
            use_stale: Keywords::default(),
            background_update: false,
            revalidate: false,
            lock: None,
            lock_timeout: None,
            lock_age: None,
            max_range_offset: None,
            convert_head: true,
            stores_authorized: false,
            finishes_fills: true,
            stores_parts: true,
            tag_header: None,
            heeds_requests: false,
            status_name: None,
        }
    }
}

/// `proxy_cache`
#[derive(Clone, Debug, Default)]
pub enum Zone {
    /// `off`
    #[default]
    Off,
    /// A named zone.
    Named(Arc<CacheZone>),
    /// The value of the template names the zone per request. An unknown name is an error; an empty name and `off` disable the
    /// cache.
    Variable(Arc<Template>),
}

impl Zone {
    /// Whether the cache is, or may be, enabled.
    pub fn is_on(&self) -> bool {
        !matches!(self, Zone::Off)
    }
}

/// One status of a `proxy_cache_valid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// `None` means `any`.
    pub status: Option<u16>,
    /// Freshness lifetime; zero means that such responses are not stored.
    pub time: Duration,
}

/// Bit of `off` in the cases of `proxy_cache_use_stale`.
pub const OFF: u64 = 1 << 63;

/// Bit of `ignore_must_revalidate` in `proxy_cache_use_stale`: `must-revalidate` does not prevent stale use, as in nginx.
pub const IGNORE_MUST_REVALIDATE: u64 = 1 << 62;

/// Returns the bit of a case in a set of cases.
pub const fn bit(stale: Stale) -> u64 {
    1 << stale as u32
}

/// Bit of `POST` in `proxy_cache_methods`.
pub const POST: u64 = 4;

impl CacheConf {
    /// Returns how long a request waits for another request's fetch with `proxy_cache_lock on`.
    pub fn lock_patience(&self) -> Duration {
        self.lock_timeout.unwrap_or(LOCK_TIME).min(LONGEST_WAIT)
    }

    /// Returns the times without a byte after which requests stop waiting for a fetch: the shorter of `proxy_cache_lock_age` and
    /// `proxy_cache_lock_timeout`. Unless one of them or `proxy_cache_lock` is set, requests wait for the header section as long as
    /// the fetch lasts, which the upstream's timeouts limit: a slow upstream must not get more requests because it is slow.
    pub fn stall_limits(&self) -> StallLimits {
        let body = self.lock_age.unwrap_or(LOCK_TIME).min(self.lock_patience());
        let explicit = [self.lock_age, self.lock_timeout].into_iter().flatten().min();
        let head = match self.lock {
            Some(true) => body,
            _ => explicit.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT),
        };
        StallLimits { head, body }
    }

    /// Returns the times without a byte after which a fetch is no longer joined, so that another one starts. With
    /// `proxy_cache_lock on`, this time and the waiting time of a request are separate settings, as in nginx.
    pub fn join_limits(&self) -> StallLimits {
        match self.lock {
            Some(true) => {
                let age = self.lock_age.unwrap_or(LOCK_TIME).min(LONGEST_WAIT);
                StallLimits { head: age, body: age }
            }
            _ => self.stall_limits(),
        }
    }

    /// Whether responses to this method may be stored.
    pub fn has_method(&self, method: http::fields::Method) -> bool {
        use http::fields::Method;
        match method {
            Method::Get | Method::Head => true,
            Method::Post => self.methods.has(POST),
            _ => false,
        }
    }

    /// Whether stale responses are used regardless of `must-revalidate` and `proxy-revalidate`.
    pub fn ignores_must_revalidate(&self) -> bool {
        self.use_stale.has(IGNORE_MUST_REVALIDATE)
    }

    /// Whether a stale response may be used in this case.
    pub fn uses_stale(&self, case: Stale) -> bool {
        !self.use_stale.has(OFF) && self.use_stale.has(bit(case))
    }

    /// Returns the configured freshness lifetime for this status, for responses without a lifetime of the upstream.
    pub fn valid_for(&self, status: u16) -> Option<Duration> {
        let fits = |valid: &&Valid| valid.status.is_none_or(|wanted| wanted == status);
        self.valid.items().iter().find(fits).map(|valid| valid.time)
    }
}

/// The zone of a cache, shared by threads and configuration versions.
pub type CacheZone = shared_zone::Zone<CachePath>;

/// The settings of `proxy_cache_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePath {
    /// Name of the zone.
    pub name: String,
    /// Directory of the cache.
    pub path: PathBuf,
    /// `levels`: number of digits of each directory level.
    pub levels: Vec<u8>,
    /// `use_temp_path`: whether files are first written in `proxy_temp_path` instead of the cache directory. Unlike in nginx the
    /// default is off: with different file systems each response would be written twice.
    pub use_temp_path: bool,
    /// `keys_zone`: size in bytes of the index of the entries.
    pub keys_bytes: u64,
    /// `inactive`: entries without a request for this long are removed.
    pub inactive: Duration,
    /// `max_size`: maximum number of bytes on disk; `None` means no limit.
    pub max_size: Option<u64>,
    /// `min_free`: number of bytes to leave free on the disk; 0 means no limit.
    pub min_free: u64,
    /// `memory`: number of bytes for small entries that are also held in memory; 0 disables it.
    pub memory: u64,
    /// `store`
    pub store: StoreKind,
    /// `verify`: time for which a verification of checksums is valid; `None` means the lifetime of the worker process.
    pub verify: Option<Duration>,
    /// `scrub`: interval in which all entries are read and verified; `None` disables it.
    pub scrub: Option<Duration>,
    /// `loader_files`, `loader_sleep`, `loader_threshold`: pace of loading the index after a start.
    pub loader: Pace,
    /// `manager_files`, `manager_sleep`, `manager_threshold`: pace of removing entries.
    pub manager: Pace,
    /// `purger`: whether the entries of a wildcard purge are searched on disk.
    pub purger: bool,
    /// `purger_files`, `purger_sleep`, `purger_threshold`
    pub purger_pace: Pace,
}

/// Pace of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Maximum number of entries per batch.
    pub files: u64,
    /// Pause after a batch.
    pub sleep: Duration,
    /// Maximum duration of a batch.
    pub threshold: Duration,
}

/// `store`: layout of entries on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// `files`: one file per entry.
    Files,
}

/// A cache that can free space on its file system.
#[derive(Debug)]
pub struct CacheReclaimer(pub Arc<CacheZone>);

impl ReclaimsSpace for CacheReclaimer {
    fn device(&self) -> Option<u64> {
        self.0.state().store().map(|store| store.device().0)
    }

    fn reclaim(&self, bytes: u64) -> Pin<Box<dyn Future<Output = bool> + '_>> {
        Box::pin(async move {
            match self.0.state().store() {
                Some(store) => store.reclaim(bytes).await,
                None => false,
            }
        })
    }
}

impl CachePath {
    /// Converts the settings to those of the store.
    fn config(&self) -> ::cache::Config {
        let defaults = CachePath::new(&self.name, self.path.clone());
        // Pauses are made only if configured: with nginx's default pace, loading a million entries takes minutes.
        let pace = |pace: Pace, default: Pace| match pace == default {
            true => ::cache::Pace::UNPACED,
            false => ::cache::Pace {
                files: pace.files.min(u64::from(u32::MAX)) as u32,
                sleep: pace.sleep,
                threshold: pace.threshold,
            },
        };
        ::cache::Config {
            levels: ::cache::Levels::new(&self.levels).unwrap_or_default(),
            max_size: self.max_size,
            min_free: self.min_free,
            inactive: self.inactive,
            keys_zone: self.keys_bytes,
            memory: self.memory,
            use_temp_path: self.use_temp_path,
            verify: self.verify,
            scrub: self.scrub,
            loader: pace(self.loader, defaults.loader),
            manager: pace(self.manager, defaults.manager),
            purger: self.purger,
            purger_pace: pace(self.purger_pace, defaults.purger_pace),
            ..::cache::Config::new(&self.name, self.path.clone())
        }
    }

    /// Creates the settings with nginx's defaults.
    pub fn new(name: &str, path: PathBuf) -> CachePath {
        let pace = |files, sleep_ms, threshold_ms| Pace {
            files,
            sleep: Duration::from_millis(sleep_ms),
            threshold: Duration::from_millis(threshold_ms),
        };
        CachePath {
            name: name.to_owned(),
            path,
            levels: Vec::new(),
            use_temp_path: false,
            keys_bytes: 0,
            inactive: Duration::from_secs(600),
            max_size: None,
            min_free: 0,
            memory: 0,
            store: StoreKind::Files,
            verify: Some(::cache::VERIFY),
            scrub: None,
            loader: pace(100, 50, 200),
            manager: pace(100, 50, 200),
            purger: false,
            purger_pace: pace(10, 50, 50),
        }
    }
}

impl ZoneKind for CachePath {
    type Content = Cache;

    fn empty(&self, _: u64) -> Cache {
        Cache::open(self.config())
    }

    fn continues(&self, before: &CachePath) -> bool {
        // A cache with other settings is a different cache, which takes over the directory of the previous cache.
        self == before
    }
}
