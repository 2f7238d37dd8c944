//! The settings of the family, with nginx's defaults and the values that are derived at the end of a block. The names in
//! comments are those of HTTP; each protocol has its own prefix.

use std::sync::Arc;

use crate::passing::pass::Pass;
use crate::passing::store::Store;
use crate::passing::{Family, Passing, ssl};
use http::request::HeaderId;

use exchange::config::{Layered, Scope, Start, Words};
use upstream::Settings;
use upstream::caching::settings::CacheConf;

/// The settings of a block, to be changed.
pub(crate) fn conf<F: Family>(scope: &mut Scope) -> &mut Conf {
    &mut scope.own::<Passing<F>>().conf
}

/// The settings of a block that all protocols have.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// The prefix of the directives.
    pub(crate) prefix: &'static str,
    /// Which fields of responses the protocol does not pass on, beside those of all protocols.
    pub(super) hides: fn(HeaderId, &[u8]) -> bool,
    /// How upstreams are talked to.
    pub(crate) upstream: Settings,
    /// Sizes that follow from others where they are not written.
    pub(super) sizes: Sizes,
    /// `proxy_pass` of this block; also of the location around an `if` and a `limit_except`.
    pub(crate) pass: Option<Arc<Pass>>,
    /// Whether upstreams are spoken to by HTTP/2.
    pub(crate) is_http2: bool,
    /// `proxy_ssl_*`
    pub(super) ssl: Arc<ssl::Conf>,
    /// `proxy_pass_request_headers`
    pub(crate) pass_fields: bool,
    /// `proxy_pass_request_body`
    pub(crate) pass_body: bool,
    /// `proxy_hide_header`
    pub(super) hidden: Layered<Box<str>>,
    /// `proxy_pass_header`
    pub(super) shown: Layered<Box<str>>,
    /// `proxy_next_upstream` as it is written.
    pub(super) next_upstream: Words,
    /// `proxy_ignore_headers`
    pub(super) ignored: Words,
    /// `proxy_intercept_errors`
    pub(super) intercept_errors: bool,
    /// Whether 404 is always answered by this server.
    pub(crate) intercept_not_found: bool,
    /// `proxy_force_ranges`
    pub(crate) force_ranges: bool,
    /// `proxy_store`
    pub(super) store: Store,
    /// `proxy_store_access`
    pub(super) store_access: u32,
    /// The directives of the cache.
    pub(crate) cache: CacheConf,
    /// The block with the last `proxy_cache` and `proxy_store`: they exclude each other.
    pub(super) cache_block: u32,
    pub(super) store_block: u32,
    /// The block with the `proxy_pass`.
    pub(crate) pass_block: u32,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            prefix: "",
            hides: |_, _| false,
            upstream: Settings::default(),
            sizes: Sizes::default(),
            pass: None,
            is_http2: false,
            ssl: Arc::default(),
            pass_fields: true,
            pass_body: true,
            hidden: Layered::default(),
            shown: Layered::default(),
            next_upstream: Words::default(),
            ignored: Words::default(),
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

/// The sizes as written; the others follow from the largest buffer.
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
    /// The settings of the outermost block.
    pub(super) fn start<F: Family>(start: &Start<'_>) -> Conf {
        let prefix = F::PREFIX;
        let mut conf = Conf { prefix, hides: F::hides, ..Conf::default() };
        // As nginx does with `proxy_temp_path` unwritten: a thousand directories keep each of them short.
        let directory = start.prefix.join(format!("{prefix}_temp"));
        conf.upstream.temp_path = (directory, [1, 2].into_iter().collect());
        conf
    }

    /// Whether this block answers requests.
    pub(super) fn is_active(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether the path of this location without the slash at its end is sent there.
    pub(crate) fn redirects_to_slash(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.redirects_to_slash())
    }

    /// Whether the block with this number has said that it stores.
    pub(super) fn stores_of(&self, block: u32) -> bool {
        self.store_block == block && self.store.is_on()
    }

    /// Takes an inherited `proxy_store` back.
    pub(super) fn forget_store(&mut self) {
        self.store = Store::Off;
    }

    /// nginx's rules for buffers, in its words: a head, or one buffer of a body, has to fit wherever it goes. The derived
    /// values are stored beside, because most of these sizes depend on others, which may be inherited.
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

/// The names of `proxy_next_upstream`, and the bit that stands for each while they are read.
pub(crate) const NEXT_UPSTREAM: &[(&str, u64)] = &[
    ("error", 1),
    ("timeout", 1 << 1),
    ("invalid_header", 1 << 2),
    ("non_idempotent", 1 << 3),
    ("http_500", 1 << 4),
    ("http_502", 1 << 5),
    ("http_503", 1 << 6),
    ("http_504", 1 << 7),
    ("http_403", 1 << 8),
    ("http_404", 1 << 9),
    ("http_429", 1 << 10),
    ("off", NEXT_OFF),
];

pub(crate) const NEXT_OFF: u64 = 1 << 11;

/// A size as configurations write it.
fn shown(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// nginx's default: a gibibyte of one answer on the disk, before a slow client slows the upstream.
const MAX_TEMP_FILE_SIZE: u64 = 1 << 30;
