//! `proxy_cache_path`: where a cache lies, how large it may become, and how it is kept in order.
//!
//! The parameters are nginx's, those of its commercial version (`purger…`) among them, and four of this server: `memory`,
//! `store`, `verify` and `scrub`. A zone has the name that `proxy_cache` uses; folder and zone belong to one another for good.

use std::path::PathBuf;
use std::time::Duration;

use conf::value::{self, ValueError};
use conf::{Error, Statement};

use crate::caching::tasks::Cache;
use crate::config::Cx;
use crate::shared_zone::{self, Kind};

/// The zone of a cache, which threads and configurations share.
pub(crate) type CacheZone = shared_zone::Zone<CachePath>;

/// What `proxy_cache_path` says of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachePath {
    /// The name of its zone.
    pub(crate) name: String,
    /// Its folder.
    pub(crate) path: PathBuf,
    /// `levels`: digits of each level of folders.
    pub(crate) levels: Vec<u8>,
    /// `use_temp_path`: whether files are written in `proxy_temp_path` first, else in the folder itself. Unlike in nginx
    /// they are not unless it is written: between file systems each answer would be written twice.
    pub(crate) use_temp_path: bool,
    /// `keys_zone`: bytes for what is known of the entries.
    pub(crate) keys_bytes: u64,
    /// `inactive`: entries that nobody asked for so long go.
    pub(crate) inactive: Duration,
    /// `max_size`: bytes on the disk; `None` is no limit.
    pub(crate) max_size: Option<u64>,
    /// `min_free`: bytes that stay free on the disk; 0 is no limit.
    pub(crate) min_free: u64,
    /// `memory`: bytes of small entries that are kept in memory as well; 0 is none.
    pub(crate) memory: u64,
    /// `store`
    pub(crate) store: StoreKind,
    /// `verify`: how long a comparison with the checksums holds; `None` is as long as the worker runs.
    pub(crate) verify: Option<Duration>,
    /// `scrub`: the time in which all entries are read and compared; `None` never does.
    pub(crate) scrub: Option<Duration>,
    /// `loader_files`, `loader_sleep`, `loader_threshold`: how fast entries become known after a start.
    pub(crate) loader: Pace,
    /// `manager_files`, `manager_sleep`, `manager_threshold`: how fast they are removed.
    pub(crate) manager: Pace,
    /// `purger`: whether entries that a wildcard purged are looked for on the disk.
    pub(crate) purger: bool,
    /// `purger_files`, `purger_sleep`, `purger_threshold`
    pub(crate) purger_pace: Pace,
}

/// How much is done before others get their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Entries at once.
    pub(crate) files: u64,
    /// The pause behind them.
    pub(crate) sleep: Duration,
    /// How long one go may last.
    pub(crate) threshold: Duration,
}

/// `store`: how entries lie on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// `files`: a file for each.
    Files,
}

impl CachePath {
    /// The settings as the store has them.
    fn config(&self) -> ::cache::Config {
        let defaults = CachePath::new(&self.name, self.path.clone());
        // Pauses are made where the configuration asks for them: by nginx's defaults a million entries take minutes to
        // become known.
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

    fn new(name: &str, path: PathBuf) -> CachePath {
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

impl Kind for CachePath {
    type State = Cache;

    fn empty(&self, _: u64) -> Cache {
        Cache::open(self.config())
    }

    fn continues(&self, before: &CachePath) -> bool {
        // With other limits it is another cache, which takes the folder over from the one before.
        self == before
    }
}

/// The setter: the folder, then parameters in any order.
pub(super) fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let path = cx.path(cx.arg(0).trim_end_matches('/'));
    let mut cache = CachePath::new("", path);
    for text in cx.statement.texts().skip(1) {
        let parameter = text.split_once('=').ok_or_else(|| unknown(cx, text))?;
        let known = set(&mut cache, parameter, cx)?;
        if !known {
            return Err(unknown(cx, text));
        }
    }
    if cache.name.is_empty() {
        return Err(cx.error("\"proxy_cache_path\" must have \"keys_zone\" parameter"));
    }
    // The zone may have been used above this line, but declared only once.
    let (name, bytes) = (cache.name.clone(), cache.keys_bytes);
    let zone = cx.http.zones.named::<CachePath>(&name, cx.statement)?;
    if zone.declared().is_some() {
        return Err(cx.error(format_args!("duplicate zone \"{name}\"")));
    }
    // Two caches in one folder would delete each other's files.
    if cx.http.caches.iter().any(|known| known.kind().path == cache.path) {
        let path = cache.path.display();
        return Err(cx.error(format_args!("the same path name \"{path}\" is used by another cache")));
    }
    cx.http.zones.declare((&name, bytes), cache, |known| &known.name, cx.statement)?;
    cx.http.caches.push(zone);
    Ok(())
}

fn unknown(cx: &Cx<'_>, text: &str) -> Error {
    cx.error(format_args!("invalid parameter \"{text}\""))
}

/// Reads one parameter; `false` where there is none of this name.
fn set(cache: &mut CachePath, parameter: (&str, &str), cx: &Cx<'_>) -> Result<bool, Error> {
    let (name, text) = parameter;
    let at = Parameter { name, text, statement: cx.statement };
    match name {
        // In nginx's order; each may come several times, and the last one holds.
        "levels" => cache.levels = levels(text).ok_or_else(|| at.fault("levels"))?,
        "use_temp_path" => cache.use_temp_path = at.flag()?,
        "keys_zone" => (cache.name, cache.keys_bytes) = at.keys_zone()?,
        "inactive" => cache.inactive = Duration::from_secs(at.read(value::seconds)?),
        "max_size" => cache.max_size = Some(at.read(value::offset)?),
        "min_free" => cache.min_free = at.read(value::offset)?,
        "memory" => cache.memory = at.read(value::offset)?,
        "store" => cache.store = at.store(cx)?,
        "verify" => cache.verify = at.time_or_off()?,
        "scrub" => cache.scrub = at.time_or_off()?,
        "loader_files" => cache.loader.files = at.read(value::number)?,
        "loader_sleep" => cache.loader.sleep = at.milliseconds()?,
        "loader_threshold" => cache.loader.threshold = at.milliseconds()?,
        "manager_files" => cache.manager.files = at.read(value::number)?,
        "manager_sleep" => cache.manager.sleep = at.milliseconds()?,
        "manager_threshold" => cache.manager.threshold = at.milliseconds()?,
        "purger" => cache.purger = at.flag()?,
        "purger_files" => cache.purger_pace.files = at.read(value::number)?,
        "purger_sleep" => cache.purger_pace.sleep = at.milliseconds()?,
        "purger_threshold" => cache.purger_pace.threshold = at.milliseconds()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// One to three levels of one or two digits each.
fn levels(text: &str) -> Option<Vec<u8>> {
    let digits = text.split(':').map(|part| match part {
        "1" => Some(1),
        "2" => Some(2),
        _ => None,
    });
    digits.collect::<Option<Vec<u8>>>().filter(|levels| levels.len() <= LEVELS_MAX)
}

const LEVELS_MAX: usize = 3;

/// The least that nginx takes: two pages.
const KEYS_BYTES_MIN: u64 = 2 * 4096;

/// `NAME=TEXT`
struct Parameter<'a> {
    name: &'a str,
    text: &'a str,
    statement: &'a Statement,
}

impl Parameter<'_> {
    fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::at(self.statement, message)
    }

    fn fault(&self, shown: &str) -> Error {
        // nginx quotes the name of this one only.
        match shown {
            "levels" => self.error(format_args!("invalid \"levels\" \"levels={}\"", self.text)),
            _ => self.error(format_args!("invalid {} value \"{}={}\"", self.name, self.name, self.text)),
        }
    }

    fn read<T>(&self, read: impl Fn(&str) -> Result<T, ValueError>) -> Result<T, Error> {
        read(self.text).map_err(|_| self.fault(self.name))
    }

    fn milliseconds(&self) -> Result<Duration, Error> {
        self.read(value::milliseconds).map(Duration::from_millis)
    }

    fn time_or_off(&self) -> Result<Option<Duration>, Error> {
        match (self.text, value::milliseconds(self.text)) {
            ("off", _) => Ok(None),
            (_, Ok(time)) if time > 0 => Ok(Some(Duration::from_millis(time))),
            _ => {
                let (name, text) = (self.name, self.text);
                Err(self.error(format_args!(
                    "invalid {name} value \"{name}={text}\", it must be a time above 0 or \"off\""
                )))
            }
        }
    }

    fn flag(&self) -> Result<bool, Error> {
        match self.text {
            "on" => Ok(true),
            "off" => Ok(false),
            text => {
                let name = self.name;
                Err(self.error(format_args!(
                    "invalid {name} value \"{name}={text}\", it must be \"on\" or \"off\""
                )))
            }
        }
    }

    fn keys_zone(&self) -> Result<(String, u64), Error> {
        let text = self.text;
        let parts = text.split_once(':').and_then(|(name, size)| Some((name, value::size(size).ok()?)));
        match parts {
            None => Err(self.error(format_args!("invalid keys zone size \"keys_zone={text}\""))),
            Some((_, bytes)) if bytes < KEYS_BYTES_MIN => {
                Err(self.error(format_args!("keys zone \"keys_zone={text}\" is too small")))
            }
            Some((name, bytes)) => Ok((name.to_owned(), bytes)),
        }
    }

    fn store(&self, cx: &Cx<'_>) -> Result<StoreKind, Error> {
        match self.text {
            "files" => Ok(StoreKind::Files),
            "segments" => Err(cx.not_built("store=segments")),
            text => Err(self.error(format_args!(
                "invalid store value \"store={text}\", it must be \"files\" or \"segments\""
            ))),
        }
    }
}
