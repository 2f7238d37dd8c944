//! The servers compared over cold files: Ringroad with each of its engines, nginx in each of its modes.

use std::path::{Path, PathBuf};

use super::data::Size;
use crate::peers::server::Instance;
use crate::peers::tool::Peer;
use crate::scenario::comparison::{self, Text};

/// One way to read files: a server with the directives that select it, and the cases in which it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColdVariant {
    /// The server and its directives. Its name is the server's name followed by the engine and the read mode.
    pub(super) of: comparison::Variant,
    /// Whether it corresponds to a row of the write-up's table.
    pub(super) is_published: bool,
    /// Whether it serves the plain files in cases where others use a cache. The extra cost of a hit is visible only in
    /// a measurement at the same time, since the machine's state changes within minutes.
    pub(super) is_plain: bool,
    /// Whether it is measured with `--quick`, and where workers and connections are varied.
    pub(super) is_main: bool,
}

/// Build option that nginx's libaio engine requires.
pub(super) const FILE_AIO: &str = "--with-file-aio";

/// Directive that reserves enough requests in flight for libaio.
const REQUESTS: &str = " worker_aio_requests 2048;";

/// Returns a variant with default properties; a separate function keeps the table of variants readable.
const fn variant(of: comparison::Variant) -> ColdVariant {
    ColdVariant { of, is_published: false, is_plain: false, is_main: false }
}

/// Returns a variant of Ringroad with this network engine.
const fn ours(name: &'static str, engine: &'static str, location: &'static str) -> ColdVariant {
    variant(comparison::Variant::ours(name, engine).with(location))
}

const fn nginx(name: &'static str, location: &'static str) -> ColdVariant {
    variant(comparison::Variant::of(name, Peer::Nginx).with(location))
}

impl ColdVariant {
    /// Marks the variant as measured with `--quick` too.
    const fn main(self) -> ColdVariant {
        ColdVariant { is_main: true, ..self }
    }

    /// Marks the variant as corresponding to a row of the write-up.
    const fn published(self) -> ColdVariant {
        ColdVariant { is_published: true, ..self }
    }

    const fn with_requests(self) -> ColdVariant {
        ColdVariant { of: comparison::Variant { events: REQUESTS, ..self.of }, ..self }
    }

    pub(super) fn is_nginx(&self) -> bool {
        self.of.peer.is_some()
    }

    /// Whether it is Ringroad's default configuration.
    pub(super) fn is_default(&self) -> bool {
        self.of == DEFAULT_SETTINGS.of
    }

    /// Whether it is nginx's fastest way for cache hits: threads with sendfile.
    pub(super) fn is_best_of_hits(&self) -> bool {
        self.is_nginx() && self.of.location == "aio threads; sendfile on;"
    }

    /// Whether it requires nginx's libaio engine.
    pub(super) fn needs_file_aio(&self) -> bool {
        self.is_nginx() && self.of.location.contains("aio on;")
    }
}

/// The subject of the write-up: io_uring with O_DIRECT.
const RING_DIRECT: ColdVariant =
    ours("ringroad io_uring, direct", "io_uring", "aio io_uring; sendfile off; directio 2k;");

/// The default configuration, with which other settings are compared.
const DEFAULT_SETTINGS: ColdVariant = ours("ringroad as it comes", "", "");

/// The variants in the order of tables: Ringroad's, from the engine that the write-up is about to the one that is never the
/// best choice, then nginx's modes. nginx's libaio is listed twice, because its default buffers hide its potential.
pub(super) const VARIANTS: &[ColdVariant] = &[
    RING_DIRECT.main().published(),
    DEFAULT_SETTINGS.main(),
    ours("ringroad libaio, direct", "epoll", "aio libaio; sendfile off; directio 2k;")
        .with_requests()
        .main()
        .published(),
    // The control: neither io_uring nor libaio, but the design that servers have used for twenty years.
    ours("ringroad epoll + threads", "epoll", "aio threads; sendfile off;").main(),
    ours("ringroad sendfile", "epoll", "aio threads; sendfile on;").main().published(),
    ours("ringroad blocking", "epoll", "aio off; sendfile off;"),
    ColdVariant {
        is_plain: true,
        ..ours("ringroad io_uring, direct, plain files", "io_uring", RING_DIRECT.of.location)
    },
    nginx("nginx libaio, as written up", "aio on; sendfile off; directio 2k;").published(),
    nginx("nginx libaio, sized buffers", "aio on; sendfile off; directio 2k; output_buffers 2 SIZE;")
        .with_requests()
        .main(),
    nginx("nginx threads", "aio threads; sendfile off;").main(),
    nginx("nginx threads + sendfile", "aio threads; sendfile on;"),
    nginx("nginx sendfile", "aio off; sendfile on;").main().published(),
    nginx("nginx blocking", "aio off; sendfile off;"),
];

/// The row above the variants, as 100 %: this program opens the files, reads them with O_DIRECT and closes them, by the
/// engine alone without a server or network.
pub(super) const LIMIT: &str = "the machine's limit";

/// Source of the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Files in a directory, by name.
    Files,
    /// Entries of the server's proxy cache.
    Cache,
}

impl Source {
    pub(super) fn words(self) -> &'static str {
        match self {
            Source::Files => "files",
            Source::Cache => "proxy cache",
        }
    }
}

/// The parameters of a configuration beside its variant.
pub(super) struct Setting<'a> {
    /// Size of the files, on which some settings depend.
    pub(super) size: Size,
    pub(super) workers: usize,
    /// Directory of the files, also served by the origin of a cache.
    pub(super) files: &'a Path,
    /// Directory of the cache, and the port of its origin (nothing listens there while hits are measured).
    pub(super) cache: Option<(PathBuf, u16)>,
}

impl ColdVariant {
    /// Returns the complete configuration after the common head.
    pub(super) fn configuration(&self, setting: &Setting<'_>, instance: &Instance) -> String {
        let Setting { size, workers, files, .. } = setting;
        // nginx reads by complete buffers: a buffer larger than the file disables its direct reads. `SIZE` stands for a
        // suitable one.
        let location = self.of.location.replace("SIZE", size.read_size);
        // The cache is configured as in the write-up, except for the zone: 32 MiB suffice for all names requested here.
        let (cache, source) = match &setting.cache {
            None => (String::new(), format!("root {};", files.display())),
            Some((directory, origin)) => (
                format!(
                    "proxy_cache_path {} levels=2 keys_zone=bench:32m max_size=1000g inactive=4d use_temp_path=off;",
                    directory.display()
                ),
                format!(
                    "proxy_pass http://127.0.0.1:{origin}; proxy_cache bench; proxy_cache_key $uri; \
                     proxy_cache_valid 200 4d;"
                ),
            ),
        };
        let http = format!("default_type application/octet-stream;\n{cache}");
        let server = format!("location / {{ {location} {source} }}");
        self.of.configuration(instance, &Text { workers: *workers, http, server, ..Text::default() })
    }
}
