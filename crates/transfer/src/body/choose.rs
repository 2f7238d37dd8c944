//! Which engine moves a body: the only function that decides, from the location's settings and the engine's
//! capabilities. The table in `docs/engines.md` is this function in prose.

use std::fmt;

use io::DiskVia;
use io::engine::Caps;

use crate::body::rules::{Aio, Sending};

/// How the bytes of a file get to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// Read into a buffer by this engine, then send; with `direct` bypassing the page cache.
    Read {
        /// The engine.
        via: DiskVia,
        /// `O_DIRECT`.
        direct: bool,
    },
    /// sendfile(2) for bytes that are resident; this engine reads the missing pages.
    Resident {
        /// The engine for the rest.
        otherwise: DiskVia,
    },
    /// sendfile(2) carried out by this engine: a thread pool, or the worker thread itself.
    Sendfile(DiskVia),
    /// Read into shared memory by this engine, then sendfile(2) from there.
    Shared {
        /// The engine.
        via: DiskVia,
        /// `O_DIRECT`.
        direct: bool,
        /// Bytes read at once.
        chunk: u32,
    },
}

impl Mover {
    /// The engine that reads where the mover would have read, or would have used sendfile.
    pub fn reader(self) -> DiskVia {
        match self {
            Mover::Read { via, .. } | Mover::Sendfile(via) | Mover::Shared { via, .. } => via,
            Mover::Resident { otherwise } => otherwise,
        }
    }

    /// The mover for where no file can leave as it is ([`Outlet::takes_files`](crate::body::Outlet::takes_files)): the same
    /// engine reads.
    #[must_use]
    pub fn reading(self) -> Mover {
        let direct = matches!(self, Mover::Read { direct: true, .. } | Mover::Shared { direct: true, .. });
        Mover::Read { via: self.reader(), direct }
    }
}

/// The mover for a file of `size` bytes.
pub fn mover(conf: &Sending, caps: &Caps, size: u64) -> Mover {
    let direct = conf.directio.is_some_and(|from| size >= from);
    let via = engine(conf.aio, caps, direct);
    if let Some(chunk) = conf.aio_sendfile {
        return Mover::Shared { via, direct, chunk: chunk.min(u64::from(SHARED_CHUNK_MAX)) as u32 };
    }
    // Unset: the best engine for the file.
    let sendfile = conf.sendfile.unwrap_or(conf.names_no_reader() && size >= LONG_FROM);
    // O_DIRECT and sendfile exclude each other: the latter goes through the page cache.
    if !sendfile || direct {
        return Mover::Read { via, direct };
    }
    match conf.aio {
        Aio::Off => Mover::Sendfile(DiskVia::Sync),
        Aio::Threads(pool) => Mover::Sendfile(DiskVia::Pool(pool)),
        Aio::Unset | Aio::On | Aio::Uring | Aio::Libaio => {
            Mover::Resident { otherwise: engine(conf.aio, caps, false) }
        }
    }
}

/// Files from here on are sent without a copy where nothing is configured. Shorter ones fit behind their head into one
/// buffer, and copying them costs less than the calls that it saves.
pub const LONG_FROM: u64 = 64 << 10;

/// The longest chunk of the shared-memory mover: the largest buffer class.
const SHARED_CHUNK_MAX: u32 = 1 << 20;

/// The engine that reads. libaio blocks on buffered files, so there it is for direct reads alone.
fn engine(aio: Aio, caps: &Caps, direct: bool) -> DiskVia {
    match aio {
        Aio::Off => DiskVia::Sync,
        Aio::Threads(pool) => DiskVia::Pool(pool),
        Aio::Libaio if direct && caps.disk_libaio => DiskVia::Libaio,
        Aio::Libaio => caps.best_pool(),
        Aio::Unset | Aio::On | Aio::Uring if caps.disk_ring => DiskVia::Ring,
        Aio::Unset | Aio::On | Aio::Uring if direct && caps.disk_libaio => DiskVia::Libaio,
        Aio::Unset | Aio::On | Aio::Uring => caps.best_pool(),
    }
}

/// The engine for opening files and looking at paths.
pub fn path_engine(aio: Aio, caps: &Caps) -> DiskVia {
    engine(aio, caps, false)
}

/// The engine for reads bypassing the page cache.
pub fn direct_engine(aio: Aio, caps: &Caps) -> DiskVia {
    engine(aio, caps, true)
}

/// `$body_engine`: `io_uring`, `io_uring direct`, `sendfile or io_uring`, `sendfile threads`, ….
impl fmt::Display for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct_word = |direct: bool| if direct { " direct" } else { "" };
        match *self {
            Mover::Read { via, direct } => write!(f, "{}{}", name(via), direct_word(direct)),
            Mover::Resident { otherwise } => write!(f, "sendfile or {}", name(otherwise)),
            Mover::Sendfile(via) => write!(f, "sendfile {}", name(via)),
            Mover::Shared { via, direct, .. } => {
                write!(f, "shm-sendfile {}{}", name(via), direct_word(direct))
            }
        }
    }
}

fn name(via: DiskVia) -> &'static str {
    match via {
        DiskVia::Ring => "io_uring",
        DiskVia::Libaio => "libaio",
        DiskVia::Pool(_) => "threads",
        DiskVia::Sync => "sync",
    }
}

#[cfg(test)]
mod tests {
    use io::engine::NetKind;

    use super::*;

    const ALL: Caps = Caps {
        net: NetKind::Uring,
        disk_ring: true,
        disk_libaio: true,
        pools: 2,
        send_zero_copy: true,
        recv_buffer_bytes: 4096,
    };
    const NO_RING: Caps = Caps { net: NetKind::Epoll, disk_ring: false, ..ALL };
    const POOL_ONLY: Caps = Caps { disk_libaio: false, ..NO_RING };

    /// The table of the documentation: settings, file size, and the answer with all engines, without the
    /// ring, and with threads alone.
    #[test]
    fn the_table() {
        let base = Sending::default();
        let with = |change: fn(&mut Sending)| {
            let mut conf = base.clone();
            change(&mut conf);
            conf
        };
        let direct = 4096;
        let rows: [(Sending, u64, [&str; 3]); 19] = [
            (with(|_| ()), 1, ["io_uring", "threads", "threads"]),
            (with(|_| ()), LONG_FROM - 1, ["io_uring", "threads", "threads"]),
            (with(|_| ()), LONG_FROM, ["sendfile or io_uring", "sendfile or threads", "sendfile or threads"]),
            (with(|c| c.sendfile = Some(false)), LONG_FROM, ["io_uring", "threads", "threads"]),
            (with(|c| c.directio = Some(LONG_FROM + 1)), LONG_FROM, ["io_uring", "threads", "threads"]),
            (with(|c| c.aio = Aio::Uring), LONG_FROM, ["io_uring", "threads", "threads"]),
            (with(|c| c.aio = Aio::Off), 1, ["sync"; 3]),
            (with(|c| c.aio = Aio::On), 1, ["io_uring", "threads", "threads"]),
            (
                with(|c| (c.aio, c.directio) = (Aio::On, Some(4096))),
                direct,
                ["io_uring direct", "libaio direct", "threads direct"],
            ),
            (
                with(|c| (c.aio, c.directio) = (Aio::On, Some(4096))),
                direct - 1,
                ["io_uring", "threads", "threads"],
            ),
            (with(|c| c.aio = Aio::Libaio), 1, ["threads"; 3]),
            (
                with(|c| (c.aio, c.directio) = (Aio::Libaio, Some(1))),
                1,
                ["libaio direct", "libaio direct", "threads direct"],
            ),
            (with(|c| c.aio = Aio::Threads(1)), 1, ["threads"; 3]),
            (
                with(|c| c.sendfile = Some(true)),
                1,
                ["sendfile or io_uring", "sendfile or threads", "sendfile or threads"],
            ),
            (with(|c| (c.sendfile, c.aio) = (Some(true), Aio::Off)), 1, ["sendfile sync"; 3]),
            (with(|c| (c.sendfile, c.aio) = (Some(true), Aio::Threads(0))), 1, ["sendfile threads"; 3]),
            (
                with(|c| (c.sendfile, c.aio, c.directio) = (Some(true), Aio::Uring, Some(4096))),
                direct,
                ["io_uring direct", "libaio direct", "threads direct"],
            ),
            (
                with(|c| (c.sendfile, c.aio, c.directio) = (Some(true), Aio::Uring, Some(4096))),
                direct - 1,
                ["sendfile or io_uring", "sendfile or threads", "sendfile or threads"],
            ),
            (
                with(|c| (c.aio_sendfile, c.sendfile) = (Some(512 << 10), Some(true))),
                1,
                ["shm-sendfile io_uring", "shm-sendfile threads", "shm-sendfile threads"],
            ),
        ];
        for (conf, size, expected) in rows {
            let answers = [ALL, NO_RING, POOL_ONLY].map(|caps| mover(&conf, &caps, size).to_string());
            assert_eq!(
                answers, expected,
                "{:?} sendfile={:?} directio={:?}",
                conf.aio, conf.sendfile, conf.directio
            );
        }
    }
}
