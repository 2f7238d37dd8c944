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
    /// The directory; made when it does not exist, its parents are not.
    pub path: PathBuf,
    /// `levels`.
    pub levels: Levels,
    /// `store`.
    pub engine: EngineKind,
    /// `max_size` in bytes; no limit without one.
    pub max_size: Option<u64>,
    /// `min_free` in bytes; 0 is no limit.
    pub min_free: u64,
    /// `inactive`: an entry that was not used for so long goes.
    pub inactive: Duration,
    /// `use_temp_path`: whether entries are written in the directory that [`crate::Store::begin_in`] is given before they are
    /// whole. Else it is one inside of the cache, from where a rename always leads to their places.
    pub use_temp_path: bool,
    /// `keys_zone` in bytes, for the index.
    pub keys_zone: u64,
    /// `memory` in bytes, for hot small entries; 0 has no such tier.
    pub memory: u64,
    /// `loader_files`, `loader_sleep`, `loader_threshold`.
    pub loader: Pace,
    /// `manager_files`, `manager_sleep`, `manager_threshold`.
    pub manager: Pace,
    /// `purger`.
    pub purger: bool,
    /// `purger_files`, `purger_sleep`, `purger_threshold`.
    pub purger_pace: Pace,
    /// `verify`: how long a chunk that was compared with its checksum is sent without another comparison; `None` is as long
    /// as the process runs. The time is divided into epochs of this length, and a comparison holds until its epoch ends.
    pub verify: Option<Duration>,
    /// `scrub`: the time in which the whole cache is read and compared, again and again; `None` never does.
    pub scrub: Option<Duration>,
    /// The disk backend; where a thread does not have it, the next best one.
    pub via: DiskVia,
    /// Whether small entries are read bypassing the page cache and large ones written so, where file system and kernel
    /// can. How large ones are read is the sender's.
    pub direct: bool,
    /// Whether calls that need no disk (an open and a read of resident bytes) are made on the thread: for local file
    /// systems only, because others may ask another machine.
    pub calls_directly: bool,
    /// Receives reports about a degraded cache. Must not block.
    pub notify: Notify,
}

/// The rate of background work: it sleeps after this many files, or this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Files at a time; also bounds the requests in flight at once.
    pub files: u32,
    /// The pause between two rounds.
    pub sleep: Duration,
    /// The longest that a round takes.
    pub threshold: Duration,
}

impl Pace {
    /// nginx's defaults; of a `files`, `sleep` or `threshold` that is not written out where another one is.
    pub const NGINX: Pace =
        Pace { files: 100, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) };

    /// No pauses: requests in flight are bounded, and that keeps the disk free for others. The default, where nginx
    /// would check 2000 files a second and need minutes instead of seconds.
    pub const UNPACED: Pace =
        Pace { files: u32::MAX, sleep: Duration::ZERO, threshold: Duration::from_secs(3600) };
}

/// Which engine keeps the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// A file for each entry, in nginx's layout of directories.
    #[default]
    Files,
    /// A few large files; not supported yet.
    Segments,
}

impl EngineKind {
    /// Why this engine cannot be had, for the line of the configuration that asks for it.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            EngineKind::Files => None,
            EngineKind::Segments => {
                Some("\"store=segments\" is not supported yet; remedy: use \"store=files\"")
            }
        }
    }
}

/// The receiver of a [`Note`]. May be called on any thread.
#[derive(Clone)]
pub struct Notify(pub Arc<dyn Fn(Note) + Send + Sync>);

impl Notify {
    /// None.
    pub fn nobody() -> Notify {
        Notify(Arc::new(|_| ()))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("name", &self.name).field("path", &self.path).finish_non_exhaustive()
    }
}

/// How an entry is read for one request: the engine settings of its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The disk backend.
    pub via: DiskVia,
    /// Files of at least this many bytes are read bypassing the page cache (`directio`).
    pub direct_from: Option<u64>,
    /// The disk backend that reads those.
    pub direct_via: DiskVia,
    /// Whether a body leaves by sendfile(2) once it was compared: then it is not read together with its head.
    pub sends_files: bool,
    /// Whether the bytes can be sent at once, so that they hold memory only as long as the read takes.
    pub has_room: bool,
    /// See [`Config::calls_directly`].
    pub calls_directly: bool,
}

impl Access {
    /// Whether a file that takes this many bytes is read bypassing the page cache.
    pub(crate) fn is_direct(&self, bytes: u64) -> bool {
        self.direct_from.is_some_and(|from| bytes >= from)
    }
}

/// Default of [`Config::verify`]: a comparison an hour costs little, and bits do not rot often.
pub const VERIFY: Duration = Duration::from_secs(3600);

impl Config {
    /// Settings of a cache in `path` with nginx's defaults.
    pub fn new(name: &str, path: PathBuf) -> Config {
        Config {
            name: name.to_owned(),
            path,
            levels: Levels::default(),
            engine: EngineKind::Files,
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
            notify: Notify::nobody(),
        }
    }

    /// Whether a store that was opened with these settings does for `other` too, as after a reload.
    pub fn is_same(&self, other: &Config) -> bool {
        let values = |config: &Config| {
            (
                (config.levels, config.engine, config.max_size, config.min_free, config.inactive),
                (config.keys_zone, config.memory, config.loader, config.manager, config.purger),
                (
                    config.purger_pace,
                    config.via,
                    config.direct,
                    config.calls_directly,
                    config.verify,
                    config.scrub,
                ),
            )
        };
        self.name == other.name
            && self.path == other.path
            && self.use_temp_path == other.use_temp_path
            && values(self) == values(other)
    }

    /// Most entries that the index holds.
    pub fn entries_max(&self) -> u64 {
        (self.keys_zone / OBJECT_BYTES).max(1)
    }
}
