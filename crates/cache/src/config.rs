//! The configuration of a cache: [`Config`].

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use io::DiskVia;

use crate::index::OBJECT_BYTES;
use crate::key::Levels;
use crate::note::Note;

/// Settings of one cache, named as in nginx.
#[derive(Clone)]
pub struct Config {
    /// Name of the zone, for logs.
    pub name: String,
    /// The directory. It is created if it is missing, but its parents are not.
    pub path: PathBuf,
    /// `levels`.
    pub levels: Levels,
    /// `max_size` in bytes; `None` is no limit.
    pub max_size: Option<u64>,
    /// `min_free` in bytes; 0 is no limit.
    pub min_free: u64,
    /// `inactive`: an entry that was not requested for this time is removed.
    pub inactive: Duration,
    /// `use_temp_path`: whether incomplete entries are written to the staging directory that [`crate::Store::begin_in`]
    /// receives. Otherwise they are written to a staging directory inside the cache, from which a rename always works.
    pub use_temp_path: bool,
    /// `keys_zone` in bytes, for the index.
    pub keys_zone: u64,
    /// `memory` in bytes, for frequently requested small entries; 0 disables the memory tier.
    pub memory: u64,
    /// `loader_files`, `loader_sleep`, `loader_threshold`.
    pub loader: Pace,
    /// `manager_files`, `manager_sleep`, `manager_threshold`.
    pub manager: Pace,
    /// `purger`.
    pub purger: bool,
    /// `purger_files`, `purger_sleep`, `purger_threshold`.
    pub purger_pace: Pace,
    /// `verify`: time for which a chunk with a verified checksum is sent without another verification; `None` is the
    /// lifetime of the process. The time is divided into epochs of this length, and a verification is valid until its
    /// epoch ends.
    pub verify: Option<Duration>,
    /// `scrub`: duration of one pass that reads and verifies the complete cache; passes repeat. `None` disables it.
    pub scrub: Option<Duration>,
    /// The disk backend; a thread without it uses the next best one.
    pub via: DiskVia,
    /// Whether small entries are read, and large entries written, bypassing the page cache, where file system and
    /// kernel support it. The sender decides how large entries are read.
    pub direct: bool,
    /// Whether calls that need no disk (open of a cached path and read of resident bytes) are made on the worker
    /// thread: for local file systems only, because others may query another machine.
    pub calls_directly: bool,
    /// Receives reports about a degraded cache. Must not block.
    pub notify: Notify,
}

/// The rate of background work. The work runs in rounds of at most `files` files and at most `threshold`; it pauses
/// between two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Number of files per round; also bounds the requests in flight.
    pub files: u32,
    /// The pause between two rounds.
    pub sleep: Duration,
    /// Maximum duration of a round.
    pub threshold: Duration,
}

impl Pace {
    /// nginx's defaults. If one or two of the three parameters are set, these values apply to the others.
    pub const NGINX: Pace =
        Pace { files: 100, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) };

    /// No pauses: the bound on requests in flight keeps the disk available for others. This is the default of the
    /// loader and the manager. With nginx's defaults, which process 2000 files a second, loading would take minutes
    /// instead of seconds.
    pub const UNPACED: Pace =
        Pace { files: u32::MAX, sleep: Duration::ZERO, threshold: Duration::from_secs(3600) };
}

/// The receiver of a [`Note`]. May be called on any thread.
#[derive(Clone)]
pub struct Notify(pub Arc<dyn Fn(Note) + Send + Sync>);

impl Notify {
    /// Returns a receiver that ignores all notes.
    pub fn ignore() -> Notify {
        Notify(Arc::new(|_| ()))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("name", &self.name).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Settings with which an entry is read for one request: the engine settings of the request's location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The disk backend.
    pub via: DiskVia,
    /// Files of at least this many bytes are read bypassing the page cache (`directio`).
    pub direct_from: Option<u64>,
    /// The disk backend for reads that bypass the page cache.
    pub direct_via: DiskVia,
    /// Whether a verified body is sent by sendfile(2); such a body is not read together with its header section.
    pub sends_files: bool,
    /// Whether this is the case for bodies of more than one chunk whose file is already open.
    pub sends_large_files: bool,
    /// Whether the client can receive the bytes immediately, so that they occupy memory only for the duration of the
    /// read.
    pub client_has_space: bool,
    /// See [`Config::calls_directly`].
    pub calls_directly: bool,
}

impl Access {
    /// Whether a file of this size is read bypassing the page cache.
    pub(crate) fn is_direct(&self, bytes: u64) -> bool {
        self.direct_from.is_some_and(|from| bytes >= from)
    }
}

/// Default of [`Config::verify`]: one verification per hour costs little, and bit rot is rare.
pub const VERIFY: Duration = Duration::from_secs(3600);

impl Config {
    /// Returns the default settings of a cache in `path`.
    pub fn new(name: &str, path: PathBuf) -> Config {
        Config {
            name: name.to_owned(),
            path,
            levels: Levels::default(),
            max_size: None,
            min_free: 0,
            inactive: Duration::from_secs(600),
            use_temp_path: false,
            keys_zone: 10 << 20,
            memory: 0,
            loader: Pace::UNPACED,
            manager: Pace::UNPACED,
            purger: false,
            purger_pace: Pace { files: 10, ..Pace::NGINX },
            verify: Some(VERIFY),
            scrub: None,
            via: DiskVia::Ring,
            direct: false,
            calls_directly: false,
            notify: Notify::ignore(),
        }
    }

    /// Returns the maximum number of entries in the index.
    pub fn entries_max(&self) -> u64 {
        (self.keys_zone / OBJECT_BYTES).max(1)
    }
}
