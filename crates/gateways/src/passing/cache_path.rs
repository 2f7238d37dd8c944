//! `proxy_cache_path`: directory, size limits and maintenance of a cache.
//!
//! The parameters are those of nginx, including its commercial version (`purger…`), and four of this server: `memory`, `store`,
//! `verify` and `scrub`. A zone has the name that `proxy_cache` uses, and belongs to one directory.

use std::time::Duration;

use conf::value::{self, ValueError};
use conf::{Error, Statement};

use caching::settings::{CachePath, CacheReclaimer, Caches, StoreKind};
use site::config::Cx;
use site::uses::FileUse;
use std::sync::Arc;

/// Sets the directory, then parameters in any order.
pub(super) fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let path = cx.path(cx.arg(0).trim_end_matches('/'), FileUse::Write);
    let mut cache = CachePath::new("", path);
    for text in cx.statement.texts().skip(1) {
        let parameter = text.split_once('=').ok_or_else(|| unknown(cx, text))?;
        let known = set(&mut cache, parameter, cx)?;
        if !known {
            return Err(unknown(cx, text));
        }
    }
    if cache.name.is_empty() {
        let name = &cx.statement.name.text;
        return Err(cx.error(format_args!("\"{name}\" must have \"keys_zone\" parameter")));
    }
    // The zone may be used before this line, but declared only once.
    let (name, bytes) = (cache.name.clone(), cache.keys_bytes);
    let zone = cx.http.zones.named::<CachePath>(&name, cx.statement)?;
    if zone.declared().is_some() {
        return Err(cx.error(format_args!("duplicate zone \"{name}\"")));
    }
    // Two caches in one directory would delete each other's files.
    if cx.http.make_mut::<Caches>().zones.iter().any(|known| known.kind().path == cache.path) {
        let path = cache.path.display();
        return Err(cx.error(format_args!("the same path name \"{path}\" is used by another cache")));
    }
    cx.http.zones.declare((&name, bytes), cache, |known| &known.name, cx.statement)?;
    cx.http.space_reclaimers.push(Arc::new(CacheReclaimer(Arc::clone(&zone))));
    cx.http.make_mut::<Caches>().zones.push(zone);
    Ok(())
}

fn unknown(cx: &Cx<'_>, text: &str) -> Error {
    cx.error(format_args!("invalid parameter \"{text}\""))
}

/// Sets one parameter; returns `false` if it is unknown.
fn set(cache: &mut CachePath, parameter: (&str, &str), cx: &Cx<'_>) -> Result<bool, Error> {
    let (name, text) = parameter;
    let at = Parameter { name, text, statement: cx.statement };
    match name {
        // In nginx's order; each may be repeated, and the last counts.
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

/// Parses one to three levels of one or two digits each.
fn levels(text: &str) -> Option<Vec<u8>> {
    let digits = text.split(':').map(|part| match part {
        "1" => Some(1),
        "2" => Some(2),
        _ => None,
    });
    digits.collect::<Option<Vec<u8>>>().filter(|levels| levels.len() <= LEVELS_MAX)
}

const LEVELS_MAX: usize = 3;

/// nginx's minimum: two pages.
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
        // nginx quotes the name of this parameter only.
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
            "segments" => Err(cx.not_supported("store=segments")),
            text => Err(self.error(format_args!(
                "invalid store value \"store={text}\", it must be \"files\" or \"segments\""
            ))),
        }
    }
}
