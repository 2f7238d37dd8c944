//! A MaxMind database in memory: finds the values of addresses by a path through their records.
//!
//! The crate maxminddb parses the format. It checks every offset and bounds the work of a lookup, whatever the file
//! contains. A lookup allocates memory only if the record's structure differs from the path.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use maxminddb::{MaxMindDbError, PathElement, Reader};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use telemetry::time_zone::since_1970;

/// Maximum size in bytes of all databases of a configuration. They are sent to the worker process in one message with
/// the text of the configuration, which has at most 1 GiB. MaxMind's largest databases have about 500 MiB.
pub(super) const BYTES_MAX: usize = 768 << 20;

/// The bytes of a file, shared with the configuration if they were read with it.
#[derive(Clone, Debug)]
pub(super) struct Bytes(Arc<Vec<u8>>);

impl Bytes {
    pub(super) fn of(bytes: Arc<Vec<u8>>) -> Bytes {
        Bytes(bytes)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes whose metadata and layout are valid.
pub(super) struct Content {
    reader: Reader<Bytes>,
    bytes: Bytes,
}

/// Checks the metadata and sizes of a database.
pub(super) fn read(bytes: Bytes) -> Result<Content, MaxMindDbError> {
    Ok(Content { reader: Reader::from_source(bytes.clone())?, bytes })
}

/// One database of a configuration.
pub(super) struct Database {
    pub(super) path: PathBuf,
    /// Seconds between two checks of the file; 0 means never.
    pub(super) interval: u64,
    /// Read by every lookup, and replaced after the file was read again.
    content: RwLock<Content>,
    /// Time of the last check, in seconds since 1970.
    checked: AtomicI64,
    changed: AtomicI64,
    /// Whether a thread already checks the file.
    claimed: AtomicBool,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.path).field("interval", &self.interval).finish()
    }
}

/// Returns the current time in seconds since 1970.
fn now() -> i64 {
    since_1970(SystemTime::now()).0
}

impl Database {
    /// Returns a database that was read just now.
    pub(super) fn new(path: PathBuf, content: Content, interval: u64) -> Database {
        let now = now();
        Database {
            path,
            interval,
            content: RwLock::new(content),
            checked: AtomicI64::new(now),
            changed: AtomicI64::new(now),
            claimed: AtomicBool::new(false),
        }
    }

    fn with<T>(&self, use_it: impl FnOnce(&Content) -> T) -> T {
        use_it(&self.content.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.with(|content| content.bytes.0.len())
    }

    /// Appends the value at the end of a path through the record of an address; returns `false` if there is none.
    pub(super) fn find(&self, ip: IpAddr, path: &[Step], out: &mut Vec<u8>) -> bool {
        self.with(|content| content.find(ip, path, out))
    }

    /// Returns the time at which the database was built.
    pub(super) fn build_epoch(&self) -> i64 {
        self.with(|content| i64::try_from(content.reader.metadata().build_epoch).unwrap_or(i64::MAX))
    }

    /// Returns the time of the last check of the file.
    pub(super) fn checked(&self) -> i64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Returns the time at which the content was last replaced.
    pub(super) fn changed(&self) -> i64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Records a check of the file now.
    pub(super) fn note_check(&self) {
        self.checked.store(now(), Ordering::Relaxed);
    }

    /// Claims the checks of the file for the caller; returns `false` if another caller has claimed them.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }

    /// Whether the database has this length and ends with these bytes.
    pub(super) fn ends_with(&self, len: u64, end: &[u8]) -> bool {
        self.with(|content| content.bytes.0.len() as u64 == len && content.bytes.0.ends_with(end))
    }

    /// Replaces the content. The old content is freed after the lock is released.
    pub(super) fn replace(&self, content: Content) {
        let mut guard = self.content.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *guard, content);
        drop(guard);
        drop(old);
        self.changed.store(now(), Ordering::Relaxed);
    }
}

impl Content {
    fn find(&self, ip: IpAddr, path: &[Step], out: &mut Vec<u8>) -> bool {
        let Ok(record) = self.reader.lookup(ip) else { return false };
        let indexes: SmallVec<[PathElement<'_>; 8]> = path.iter().map(Step::as_index).collect();
        let mut found = record.decode_path::<Value<'_>>(&indexes);
        // A number is an index of an array or a name in a map, depending on the record.
        if found.is_err() && path.iter().any(|step| step.index.is_some()) {
            let names: SmallVec<[PathElement<'_>; 8]> = path.iter().map(Step::as_name).collect();
            found = record.decode_path(&names);
        }
        found.ok().flatten().is_some_and(|value| value.show(out))
    }
}

/// One step of a path: a name in a map, or an index of an array.
#[derive(Debug)]
pub(super) struct Step {
    name: Box<str>,
    /// The index if the name is a number; negative numbers count from the end.
    index: Option<isize>,
}

impl Step {
    pub(super) fn new(name: &str) -> Step {
        Step { name: name.into(), index: name.parse().ok() }
    }

    fn as_index(&self) -> PathElement<'_> {
        self.index.map_or_else(|| self.as_name(), PathElement::from)
    }

    fn as_name(&self) -> PathElement<'_> {
        PathElement::Key(&self.name)
    }
}

/// A value of a record; every value except a container has a text.
enum Value<'d> {
    Bool(bool),
    Text(&'d str),
    Bytes(&'d [u8]),
    Signed(i64),
    Unsigned(u64),
    Wide(u128),
    Float(f64),
    /// A map or an array.
    Container,
}

impl Value<'_> {
    /// Appends the value in the format of the nginx module; returns `false` for values without a text.
    fn show(&self, out: &mut Vec<u8>) -> bool {
        // Writing to a `Vec` cannot fail.
        let _ = match self {
            Value::Bool(value) => write!(out, "{}", u8::from(*value)),
            Value::Text(text) => out.write_all(text.as_bytes()),
            Value::Bytes(bytes) => out.write_all(bytes),
            Value::Signed(number) => write!(out, "{number}"),
            Value::Unsigned(number) => write!(out, "{number}"),
            Value::Wide(number) => write!(out, "0x{number:032x}"),
            Value::Float(number) => write!(out, "{number:.5}"),
            Value::Container => return false,
        };
        true
    }
}

impl<'d> Deserialize<'d> for Value<'d> {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Value<'d>, D::Error> {
        from.deserialize_any(Values)
    }
}

struct Values;

impl<'d> Visitor<'d> for Values {
    type Value = Value<'d>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'d>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_borrowed_str<E>(self, value: &'d str) -> Result<Value<'d>, E> {
        Ok(Value::Text(value))
    }

    fn visit_borrowed_bytes<E>(self, value: &'d [u8]) -> Result<Value<'d>, E> {
        Ok(Value::Bytes(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'d>, E> {
        Ok(Value::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'d>, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value<'d>, E> {
        Ok(Value::Wide(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'d>, E> {
        Ok(Value::Float(value))
    }

    // The members of a map are not decoded.
    fn visit_map<A: MapAccess<'d>>(self, _: A) -> Result<Value<'d>, A::Error> {
        Ok(Value::Container)
    }

    fn visit_seq<A: SeqAccess<'d>>(self, _: A) -> Result<Value<'d>, A::Error> {
        Ok(Value::Container)
    }
}
