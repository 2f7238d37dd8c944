//! Shared zones: state that all threads share, with a name and a size from the configuration (`limit_req_zone …
//! zone=one:10m`).
//!
//! [`Zones`] lists the zones of a configuration. The module that declares a zone defines its content, as a [`ZoneKind`].
//! The state is empty at the start of the process, and [`Zones::begin`] passes it from one configuration to the next,
//! so that a reload in place loses nothing. [`table`] is the content of most zones, and [`limits`] the common code of
//! modules that limit requests. [`pairs`] is the content of zones of texts by keys.

pub mod limits;
pub mod pairs;
pub mod table;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use conf::{Error, Object, Span, Statement, value};

use crate::ids::Section;
use pairs::Pairs;

/// The kind of a zone, which defines its content.
pub trait ZoneKind: fmt::Debug + Send + Sync + 'static {
    /// The content, which the threads share.
    type Content: fmt::Debug + Send + Sync;

    /// Returns the initial state of a zone of this size.
    fn empty(&self, bytes: u64) -> Self::Content;

    /// Returns the bytes in use as nginx would count them; `None` if they are not counted.
    fn used(_: &Self::Content) -> Option<u64> {
        None
    }

    /// Whether the content is [`Pairs`] that other modules may use too.
    fn shares_pairs(&self) -> bool {
        false
    }

    /// Returns the pairs of the content, if it has any.
    fn pairs(_: &Self::Content) -> Option<&Pairs> {
        None
    }

    /// Whether the state of an earlier zone with the same name and size can be reused.
    fn continues(&self, before: &Self) -> bool;
}

/// One zone. As in nginx it may be used above its declaration; it is complete when the complete configuration was read.
#[derive(Debug)]
pub struct Zone<K: ZoneKind> {
    name: String,
    declared: OnceLock<(u64, K)>,
    state: OnceLock<Arc<K::Content>>,
}

impl<K: ZoneKind> Zone<K> {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a zone, perhaps of another configuration, has the same name and size.
    pub fn is_same(&self, other: &Zone<K>) -> bool {
        self.name == other.name && self.bytes() == other.bytes()
    }

    /// Returns the declared kind; `None` if the declaration was not read yet.
    pub fn declared(&self) -> Option<&K> {
        self.declared.get().map(|(_, kind)| kind)
    }

    /// Returns the declared kind.
    pub fn kind(&self) -> &K {
        self.declared().expect("a configuration with an undeclared zone is refused")
    }

    /// Returns the state that the threads share.
    pub fn state(&self) -> &Arc<K::Content> {
        self.state.get().expect("zones begin before the threads do")
    }
}

/// A zone without the type of its content.
pub trait AnyZone: fmt::Debug + Any + Send + Sync {
    /// Returns the size in bytes, once the zone is declared.
    fn bytes(&self) -> Option<u64>;

    /// Returns the bytes in use.
    fn used(&self) -> Option<u64>;

    /// Whether the zone is declared, and has pairs that other modules may use.
    fn shares_pairs(&self) -> bool;

    /// Returns these pairs, once the zone has begun.
    fn pairs(&self) -> Option<&Pairs>;

    /// Takes over the state of the previous configuration's zone, or creates an empty state.
    fn begin(&self, before: Option<&dyn AnyZone>);
}

impl<K: ZoneKind> AnyZone for Zone<K> {
    fn bytes(&self) -> Option<u64> {
        self.declared.get().map(|(bytes, _)| *bytes)
    }

    fn used(&self) -> Option<u64> {
        K::used(self.state.get()?)
    }

    fn shares_pairs(&self) -> bool {
        self.declared().is_some_and(K::shares_pairs)
    }

    fn pairs(&self) -> Option<&Pairs> {
        K::pairs(self.state.get()?)
    }

    fn begin(&self, before: Option<&dyn AnyZone>) {
        let Some((bytes, kind)) = self.declared.get() else { return };
        let before = before.and_then(|before| (before as &dyn Any).downcast_ref::<Zone<K>>());
        let same = before.filter(|before| before.bytes() == Some(*bytes) && kind.continues(before.kind()));
        let retained = same.and_then(|before| before.state.get()).map(Arc::clone);
        // A worker that failed to start with one engine starts again with another; the state exists then.
        self.state.get_or_init(|| retained.unwrap_or_else(|| Arc::new(kind.empty(*bytes))));
    }
}

impl DeclaredZone {
    /// Returns the name of the zone.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the block that names it.
    pub fn section(&self) -> Section {
        self.section
    }
}

/// The zones of a configuration. The second field is the block that is read.
#[derive(Debug, Default)]
pub struct Zones(pub Vec<DeclaredZone>, Section);

/// A zone and its position in the configuration.
#[derive(Debug)]
pub struct DeclaredZone {
    name: String,
    /// The block that names it: as in nginx `http` and `stream` have no zone in common. Their variables differ.
    section: Section,
    /// The position at which it was first named.
    position: Span,
    /// The zone.
    pub zone: Arc<dyn AnyZone>,
}

impl Zones {
    /// Notes that this block is read from now on.
    pub(crate) fn enter(&mut self, section: Section) {
        self.1 = section;
    }

    /// Returns the zone of this name; its declaration may follow later in the configuration.
    pub fn named<K: ZoneKind>(&mut self, name: &str, at: &Statement) -> Result<Arc<Zone<K>>, Error> {
        if let Some(entry) = self.0.iter().find(|entry| entry.name == name) {
            let zone: Arc<dyn Any + Send + Sync> = Arc::clone(&entry.zone) as _;
            let zone = zone.downcast().ok().filter(|_| entry.section == self.1);
            return zone.ok_or_else(|| {
                let what =
                    format_args!("the shared memory zone \"{name}\" is already declared for a different use");
                Error::at(at, what).advise(format_args!("by {}: choose another name", entry.position))
            });
        }
        let (declared, state) = (OnceLock::new(), OnceLock::new());
        let zone = Arc::new(Zone::<K> { name: name.to_owned(), declared, state });
        self.0.push(DeclaredZone {
            name: name.to_owned(),
            section: self.1,
            position: at.span().clone(),
            zone: Arc::clone(&zone) as _,
        });
        Ok(zone)
    }

    /// Declares a zone; `key` returns the key of an earlier declaration, for the error.
    pub fn declare<K: ZoneKind>(
        &mut self,
        (name, bytes): (&str, u64),
        kind: K,
        key: fn(&K) -> &str,
        at: &Statement,
    ) -> Result<(), Error> {
        let zone = self.named::<K>(name, at)?;
        if let Some(known) = zone.bytes().filter(|&known| known != bytes) {
            return Err(conflict(name, bytes, known, at));
        }
        zone.declared.set((bytes, kind)).map_err(|_| {
            let (directive, key) = (&at.name.text, key(zone.kind()));
            Error::at(at, format_args!("{directive} \"{name}\" is already bound to key \"{key}\""))
        })
    }

    /// Returns a zone that several statements share; any of them may specify its size.
    pub fn share<K: ZoneKind>(
        &mut self,
        name: &str,
        bytes: Option<u64>,
        kind: K,
        at: &Statement,
    ) -> Result<Arc<Zone<K>>, Error> {
        let zone = self.named::<K>(name, at)?;
        match (bytes, zone.bytes()) {
            (Some(bytes), Some(known)) if bytes != known => return Err(conflict(name, bytes, known, at)),
            (Some(bytes), None) => drop(zone.declared.set((bytes, kind))),
            _ => {}
        }
        Ok(zone)
    }

    /// Fails if a used zone is not declared.
    pub fn finish(&self) -> Result<(), Error> {
        match self.0.iter().find(|entry| entry.zone.bytes().is_none()) {
            Some(DeclaredZone { name, position, .. }) => Err(Error::undefined(position, Object::Zone, name)),
            None => Ok(()),
        }
    }

    /// Sets the state of each zone: the state of the zone with the same name in the previous configuration if size and
    /// kind match, else an empty state. Must be called before a thread uses this configuration.
    pub fn begin(&self, before: &Zones) {
        for entry in &self.0 {
            let namesake = before.0.iter().find(|before| before.name == entry.name);
            entry.zone.begin(namesake.map(|before| &*before.zone));
        }
    }
}

fn conflict(name: &str, bytes: u64, known: u64, at: &Statement) -> Error {
    let what = format_args!(
        "the size {bytes} of shared memory zone \"{name}\" conflicts with already declared size {known}"
    );
    Error::at(at, what)
}

/// The minimum size that nginx accepts: eight pages, some of which it needs itself.
pub const BYTES_MIN: u64 = 8 * 4096;

/// Parses `NAME:SIZE`, the value of the parameter `zone`; the name may be empty. `Err` has nginx's text.
pub fn name_and_size(parameter: &str) -> Result<(&str, u64), String> {
    let text = parameter.strip_prefix("zone=").unwrap_or(parameter);
    let parts = text.split_once(':').and_then(|(name, size)| Some((name, value::size(size).ok()?)));
    let (name, bytes) = parts.ok_or_else(|| format!("invalid zone size \"{parameter}\""))?;
    if bytes < BYTES_MIN {
        return Err(format!("zone \"{parameter}\" is too small"));
    }
    Ok((name, bytes))
}
