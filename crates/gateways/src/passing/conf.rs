//! Settings shared by all protocols, with nginx's defaults and the values derived at the end of a block. The names in comments are
//! those of HTTP; each protocol has its own prefix.

use std::sync::Arc;

use crate::passing::pass::Pass;
use crate::passing::protocol::{Family, Passing};
use crate::passing::ssl;
use crate::passing::store::Store;

use caching::settings::CacheConf;
use site::config::{Keywords, Scope, Start};
use transfer::temp_directory::TempDirectory;
use upstream::Settings;

/// The owner of the settings that the shared directives change: a protocol of `http`, or the proxy of `stream`.
pub(crate) trait HasConf: 'static {
    /// Prefix of the directives.
    const DIRECTIVES: &'static str;
    /// See [`Family::NEXT_UPSTREAM`].
    const REASONS: &'static [(&'static str, u64)];
    /// See [`Family::TLS_NAME_DEFAULT`].
    const TLS_NAME: Option<&'static str>;

    /// Returns the settings of a block, mutable.
    fn conf_mut(scope: &mut Scope) -> &mut Conf;
}

impl<F: Family> HasConf for F {
    const DIRECTIVES: &'static str = F::PREFIX;
    const REASONS: &'static [(&'static str, u64)] = F::NEXT_UPSTREAM;
    const TLS_NAME: Option<&'static str> = F::TLS_NAME_DEFAULT;

    fn conf_mut(scope: &mut Scope) -> &mut Conf {
        &mut scope.make_mut::<Passing<F>>().conf
    }
}

/// Returns the settings of a block, mutable.
pub(crate) fn conf<F: HasConf>(scope: &mut Scope) -> &mut Conf {
    F::conf_mut(scope)
}

/// The settings of a block that all protocols have.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Prefix of the directives.
    pub(crate) prefix: &'static str,
    /// Upstream settings.
    pub(crate) upstream: Settings,
    /// Sizes whose defaults depend on other sizes.
    pub(super) sizes: Sizes,
    /// `proxy_pass` of this block; `if` and `limit_except` inherit that of their location.
    pub(crate) pass: Option<Arc<Pass>>,
    /// Whether upstreams use HTTP/2.
    pub(crate) is_http2: bool,
    /// `proxy_ssl_*`
    pub(crate) ssl: Arc<ssl::Conf>,
    /// `proxy_pass_request_headers`
    pub(crate) pass_fields: bool,
    /// `proxy_pass_request_body`
    pub(crate) pass_body: bool,
    /// `proxy_next_upstream` as configured.
    pub(super) next_upstream: Keywords,
    /// `proxy_ignore_headers`
    pub(super) ignored: Keywords,
    /// `proxy_intercept_errors`
    pub(super) intercept_errors: bool,
    /// Whether this server always generates the response for 404.
    pub(crate) intercept_not_found: bool,
    /// `proxy_force_ranges`
    pub(crate) force_ranges: bool,
    /// `proxy_store`
    pub(super) store: Store,
    /// `proxy_store_access`
    pub(super) store_access: u32,
    /// The directives of the cache.
    pub(crate) cache: CacheConf,
    /// Number of the block with the last `proxy_cache`, and with the last `proxy_store`: these directives exclude each other.
    pub(super) cache_block: u32,
    pub(super) store_block: u32,
    /// Number of the block with the `proxy_pass`.
    pub(crate) pass_block: u32,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            prefix: "",
            upstream: Settings::default(),
            sizes: Sizes::default(),
            pass: None,
            is_http2: false,
            ssl: Arc::default(),
            pass_fields: true,
            pass_body: true,
            next_upstream: Keywords::default(),
            ignored: Keywords::default(),
            intercept_errors: false,
            intercept_not_found: false,
            force_ranges: false,
            store: Store::Off,
            store_access: 0o600,
            cache: CacheConf::default(),
            cache_block: 0,
            store_block: 0,
            pass_block: 0,
        }
    }
}

/// The sizes as configured; [`Conf::finish_sizes`] determines unset sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    /// `proxy_busy_buffers_size`
    pub(super) busy_buffers: Option<u64>,
    /// `proxy_temp_file_write_size`
    pub(super) temp_file_write: Option<u64>,
    /// `proxy_max_temp_file_size`
    pub(super) max_temp_file: Option<u64>,
}

impl Conf {
    /// Creates the settings of the outermost block.
    pub(super) fn start<F: Family>(start: &Start<'_>) -> Conf {
        let prefix = F::PREFIX;
        let mut conf = Conf { prefix, ..Conf::default() };
        conf.upstream.hidden.by_protocol = F::hides;
        // nginx's default of `proxy_temp_path`: a thousand directories keep each of them small.
        let directory = start.prefix.join(format!("{prefix}_temp"));
        conf.upstream.temp_path = TempDirectory::new(directory, &[1, 2]);
        conf
    }

    /// Whether a request for the location's path without its final slash is redirected.
    pub(crate) fn redirects_to_slash(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.redirects_to_slash())
    }

    /// Whether the block with this number enables `proxy_store`.
    pub(super) fn stores_of(&self, block: u32) -> bool {
        self.store_block == block && self.store.is_on()
    }

    /// Cancels an inherited `proxy_store`.
    pub(super) fn forget_store(&mut self) {
        self.store = Store::Off;
    }

    /// Checks nginx's rules for buffers, with its messages: a head, or one buffer of a body, must fit wherever it is stored. The
    /// derived values are stored separately, because most sizes depend on others, which may be inherited.
    pub(super) fn finish_sizes(&mut self) -> Result<(), String> {
        let (upstream, prefix) = (&mut self.upstream, self.prefix);
        let Sizes { busy_buffers, temp_file_write, max_temp_file } = self.sizes;
        let (count, size) = upstream.buffers;
        if count < 2 {
            return Err(format!("there must be at least 2 \"{prefix}_buffers\""));
        }
        let largest = upstream.buffer_size.max(size);
        let usual = largest.saturating_mul(2);
        let busy = busy_buffers.unwrap_or(usual);
        let most = u64::from(count - 1).saturating_mul(size);
        if busy > most && busy >= largest {
            return Err(format!(
                "\"{prefix}_busy_buffers_size\" must be less than the size of all \"{prefix}_buffers\" minus one buffer: it \
                 is {}{}, they are {}; remedy: more or larger \"{prefix}_buffers\", or a smaller \
                 \"{prefix}_busy_buffers_size\"",
                shown(busy),
                if busy_buffers.is_none() { ", twice the largest buffer" } else { "" },
                shown(most),
            ));
        }
        let fits = |name: &str, value: u64, or: &str| match value < largest {
            false => Ok(()),
            true => Err(format!(
                "\"{prefix}_{name}\" must be {or}equal to or greater than the maximum of the value of \"{prefix}_buffer_size\" and \
                 one of the \"{prefix}_buffers\": it is {}, the maximum {}; remedy: a larger \"{prefix}_{name}\", or smaller buffers",
                shown(value),
                shown(largest),
            )),
        };
        fits("busy_buffers_size", busy, "")?;
        fits("temp_file_write_size", temp_file_write.unwrap_or(usual), "")?;
        let file = max_temp_file.unwrap_or(MAX_TEMP_FILE_SIZE);
        if file != 0 {
            let or = "equal to zero to disable temporary files usage or must be ";
            fits("max_temp_file_size", file, or)?;
        }
        upstream.busy_buffers_size = busy_buffers;
        upstream.temp_file_write_size = temp_file_write;
        upstream.max_temp_file_size = file;
        Ok(())
    }
}

/// The parameters of `proxy_next_upstream`, and the bit of each during parsing.
pub(crate) const NEXT_UPSTREAM: &[(&str, u64)] = &[
    ("updating", UPDATING),
    ("error", 1),
    ("timeout", 1 << 1),
    ("invalid_header", 1 << 2),
    ("non_idempotent", 1 << 3),
    ("http_500", 1 << 4),
    ("http_503", 1 << 6),
    ("http_403", 1 << 8),
    ("http_404", 1 << 9),
    ("http_429", 1 << 10),
    ("off", NEXT_OFF),
    ("http_502", 1 << 5),
    ("http_504", 1 << 7),
];

/// The parameters for FastCGI, SCGI and uwsgi: as in nginx without the last two, which are errors of gateways.
pub(crate) const NEXT_UPSTREAM_OF_SCRIPTS: &[(&str, u64)] = match NEXT_UPSTREAM {
    [shared @ .., _, _] => shared,
    _ => &[],
};

pub(crate) const NEXT_OFF: u64 = 1 << 11;

/// A parameter that nginx accepts because `proxy_cache_use_stale` has it. It has no effect.
const UPDATING: u64 = 1 << 12;

/// Formats a size as in configurations.
fn shown(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// nginx's default: one GiB of a response on disk, before a slow client slows down the upstream.
const MAX_TEMP_FILE_SIZE: u64 = 1 << 30;
