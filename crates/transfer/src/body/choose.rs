//! Chooses the method and the engine that send a body. [`mover`] decides from the location's settings and the engine's
//! capabilities, as `docs/engines.md` describes. `page_cache_bypass` and `small_files` may switch to O_DIRECT later.

use std::fmt;

use io::DiskVia;
use io::engine::Caps;

use crate::body::rules::{Aio, Sending};

/// The method by which the bytes of a file reach the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// Read into a buffer with this engine, then send; `direct` bypasses the page cache.
    Read {
        /// The engine.
        via: DiskVia,
        /// Whether to use `O_DIRECT`.
        direct: bool,
    },
    /// sendfile(2) for resident bytes; the engine `otherwise` reads missing pages.
    Resident {
        /// The engine for missing pages.
        otherwise: DiskVia,
    },
    /// sendfile(2) performed by this engine: a thread pool, or the worker thread itself.
    Sendfile(DiskVia),
    /// Read into shared memory with this engine, then sendfile(2) from there.
    Shared {
        /// The engine.
        via: DiskVia,
        /// Whether to use `O_DIRECT`.
        direct: bool,
        /// Number of bytes per read.
        chunk: u32,
    },
}

impl Mover {
    /// Returns the engine that reads, for any mover.
    pub fn reader(self) -> DiskVia {
        match self {
            Mover::Read { via, .. } | Mover::Sendfile(via) | Mover::Shared { via, .. } => via,
            Mover::Resident { otherwise } => otherwise,
        }
    }

    /// Returns the mover for outlets that do not accept files
    /// ([`Outlet::accepts_files`](crate::body::Outlet::accepts_files)): it reads with the same engine.
    #[must_use]
    pub fn reading(self) -> Mover {
        let direct = matches!(self, Mover::Read { direct: true, .. } | Mover::Shared { direct: true, .. });
        Mover::Read { via: self.reader(), direct }
    }
}

/// Returns the mover for a file of `size` bytes.
pub fn mover(conf: &Sending, caps: &Caps, size: u64) -> Mover {
    let direct = conf.directio.is_some_and(|from| size >= from);
    let via = engine(conf.aio, caps, direct);
    if let Some(chunk) = conf.aio_sendfile {
        return Mover::Shared { via, direct, chunk: chunk.min(u64::from(SHARED_CHUNK_MAX)) as u32 };
    }
    // Unset: chosen by the size of the file.
    let sendfile = conf.sendfile.unwrap_or(conf.names_no_reader() && size >= LONG_FROM);
    // O_DIRECT and sendfile exclude each other, because sendfile uses the page cache.
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

/// File size in bytes from which sendfile is the default. Shorter files fit into one buffer with their header section,
/// and the copy costs less than the additional system calls.
pub const LONG_FROM: u64 = 64 << 10;

/// Maximum chunk in bytes of the shared-memory mover: the largest buffer class.
const SHARED_CHUNK_MAX: u32 = 1 << 20;

/// Returns the engine that reads. libaio blocks on buffered files, so it is used only for direct reads.
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

/// Returns the engine for opening files and for stat(2).
pub fn path_engine(aio: Aio, caps: &Caps) -> DiskVia {
    engine(aio, caps, false)
}

/// Returns the engine for reads that bypass the page cache.
pub fn direct_engine(aio: Aio, caps: &Caps) -> DiskVia {
    engine(aio, caps, true)
}

/// Formats a mover for `$body_engine`: `io_uring`, `io_uring direct`, `sendfile or io_uring`, `sendfile threads`, ….
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
        memory_max: None,
    };
    const NO_RING: Caps = Caps { net: NetKind::Epoll, disk_ring: false, ..ALL };
    const POOL_ONLY: Caps = Caps { disk_libaio: false, ..NO_RING };

    /// Rows of the table in docs/engines.md: settings, file size, and the expected mover with all engines, without
    /// io_uring, and with threads alone.
    #[test]
    fn the_documented_table_of_engines_is_correct() {
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
