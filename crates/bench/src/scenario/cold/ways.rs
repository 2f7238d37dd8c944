//! The servers that are compared over cold files: ours with each of its engines, nginx in each of its modes.

use std::path::Path;

use super::data::Size;
use crate::peers::server::Instance;
use crate::peers::tool::Peer;
use crate::scenario::lineup::{self, Text};

/// One way to read files: a server with the directives that choose it, and where it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColdWay {
    /// The words behind the server's name are the engine and how it reads.
    pub(super) of: lineup::Way,
    /// The row of the write-up's table that it repeats: "io_uring", "libaio" or "sendfile".
    pub(super) published: Option<&'static str>,
    /// Whether its output buffers are to be as large as the files, which nginx needs to read them directly at all.
    sized_buffers: bool,
    /// Whether it has the plain files also where others have a cache of them: what a hit costs more shows only beside it,
    /// since the machine is another one minutes later.
    pub(super) is_plain: bool,
    /// Whether it is measured with `--quick`, and where workers and connections vary.
    pub(super) is_main: bool,
}

/// nginx has no such engine unless it was built with it.
pub(super) const FILE_AIO: &str = "--with-file-aio";

/// Room for what libaio has in flight.
const REQUESTS: &str = " worker_aio_requests 2048;";

/// A row of the table of ways, short enough to be read as one.
const fn way(of: lineup::Way) -> ColdWay {
    ColdWay { of, published: None, sized_buffers: false, is_plain: false, is_main: false }
}

/// Ours with this engine for the network.
const fn ours(name: &'static str, engine: &'static str, location: &'static str) -> ColdWay {
    way(lineup::Way::ours(name, engine).with(location))
}

const fn nginx(name: &'static str, location: &'static str) -> ColdWay {
    way(lineup::Way::of(name, Peer::Nginx).with(location))
}

impl ColdWay {
    /// Measured with `--quick` too.
    const fn main(self) -> ColdWay {
        ColdWay { is_main: true, ..self }
    }

    /// Repeats a row of the write-up.
    const fn like(self, row: &'static str) -> ColdWay {
        ColdWay { published: Some(row), ..self }
    }

    const fn with_requests(self) -> ColdWay {
        ColdWay { of: self.of.polling(REQUESTS), ..self }
    }

    pub(super) fn is_nginx(&self) -> bool {
        self.of.peer.is_some()
    }

    /// Whether nothing is set.
    pub(super) fn is_default(&self) -> bool {
        self.of == AS_IT_COMES.of
    }

    /// nginx over its cache is fastest where threads read ahead of sendfile.
    pub(super) fn is_best_of_hits(&self) -> bool {
        self.is_nginx() && self.of.location == "aio threads; sendfile on;"
    }

    /// Whether it needs libaio of nginx.
    pub(super) fn needs_file_aio(&self) -> bool {
        self.is_nginx() && self.of.location.contains("aio on;")
    }
}

/// What the write-up is about: the ring, bypassing the page cache (O_DIRECT).
const RING_DIRECT: ColdWay =
    ours("ringroad io_uring, direct", "io_uring", "aio io_uring; sendfile off; directio 2k;");

/// The default, which other settings are compared with.
const AS_IT_COMES: ColdWay = ours("ringroad as it comes", "", "");

/// In the order of tables: ours from the engine that the write-up is about to the one that is never the best choice, then
/// nginx's modes. nginx's libaio stands twice, because its default buffers hide what it can do.
pub(super) const WAYS: &[ColdWay] = &[
    RING_DIRECT.main().like("io_uring"),
    AS_IT_COMES.main(),
    ours("ringroad libaio, direct", "epoll", "aio libaio; sendfile off; directio 2k;")
        .with_requests()
        .main()
        .like("libaio"),
    // The control: no ring and no libaio, as every server has done it for twenty years.
    ours("ringroad epoll + threads", "epoll", "aio threads; sendfile off;").main(),
    ours("ringroad sendfile", "epoll", "aio threads; sendfile on;").main().like("sendfile"),
    ours("ringroad blocking", "epoll", "aio off; sendfile off;"),
    ColdWay {
        is_plain: true,
        ..ours("ringroad io_uring, direct, plain files", "io_uring", RING_DIRECT.of.location)
    },
    nginx("nginx libaio, as written up", "aio on; sendfile off; directio 2k;").like("libaio"),
    ColdWay {
        sized_buffers: true,
        ..nginx("nginx libaio, sized buffers", "aio on; sendfile off; directio 2k;").with_requests().main()
    },
    nginx("nginx threads", "aio threads; sendfile off;").main(),
    nginx("nginx threads + sendfile", "aio threads; sendfile on;"),
    nginx("nginx sendfile", "aio off; sendfile on;").main().like("sendfile"),
    nginx("nginx blocking", "aio off; sendfile off;"),
];

/// The row above them as 100 %: this program opens the files, reads them with O_DIRECT and closes them. No server:
/// the engine alone, with the network and everything else left out.
pub(super) const LIMIT: &str = "the machine's limit";

/// Where responses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Files that the server finds by their names.
    Files,
    /// Entries of its proxy cache.
    Cache,
}

impl Source {
    /// As it stands in tables.
    pub(super) fn words(self) -> &'static str {
        match self {
            Source::Files => "files",
            Source::Cache => "proxy cache",
        }
    }
}

/// What a configuration is made of besides its way.
pub(super) struct Setting<'a> {
    /// Which files, for settings that follow their size.
    pub(super) size: Size,
    /// Processes or threads.
    pub(super) workers: usize,
    /// The files, and the origin of a cache.
    pub(super) files: &'a Path,
    /// The directory of the cache, and the port of its origin (nothing listens there any more when hits are measured).
    pub(super) cache: Option<(&'a Path, u16)>,
}

impl ColdWay {
    /// All of it behind the head that every server of the suite gets.
    pub(super) fn configuration(&self, setting: &Setting<'_>, instance: &Instance) -> String {
        let Setting { size, workers, files, .. } = *setting;
        // nginx reads by whole buffers: one that is larger than the file turns its direct reads off.
        let buffers = if self.sized_buffers {
            format!("output_buffers 2 {};", size.read_size())
        } else {
            String::new()
        };
        // The cache is configured as in the write-up, but for the zone: 32 MiB hold every name that is asked for here.
        let (cache, source) = match setting.cache {
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
        let server = format!("location / {{ {} {buffers} {source} }}", self.of.location);
        self.of.configuration(instance, &Text { workers, http, server, ..Text::default() })
    }
}
