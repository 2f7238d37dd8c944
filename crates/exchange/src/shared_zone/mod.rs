//! Zones: state that all threads share, under a name and with a size from the configuration
//! (`limit_req_zone … zone=one:10m`).
//!
//! [`Zones`] is the part of the configuration that lists them; the module that declares a zone defines its content, as
//! a [`Kind`]. State begins empty with the process and [`Zones::begin`] passes it from one configuration to the next,
//! so that a reload in place loses nothing. [`table`] is the content of most zones, and [`limits`] the common part of
//! modules that limit requests.

pub mod limits;
pub mod table;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use conf::{Error, Span, Statement, value};

/// The kind of a zone.
pub trait Kind: fmt::Debug + Send + Sync + 'static {
    /// State that the threads share.
    type State: fmt::Debug + Send + Sync;

    /// The state of a zone of this size that has just been made.
    fn empty(&self, bytes: u64) -> Self::State;

    /// Bytes of the zone that are in use, as nginx would count them; `None` where nothing counts them.
    fn used(_: &Self::State) -> Option<u64> {
        None
    }

    /// Whether the content of an earlier declaration with the same name and size has the same meaning.
    fn continues(&self, before: &Self) -> bool;
}

/// One zone. It may be used above the line that declares it, as in nginx, and is complete when the
/// configuration is.
#[derive(Debug)]
pub struct Zone<K: Kind> {
    name: String,
    declared: OnceLock<(u64, K)>,
    state: OnceLock<Arc<K::State>>,
}

impl<K: Kind> Zone<K> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether another configuration has a zone of this name and size.
    pub fn is_same(&self, other: &Zone<K>) -> bool {
        self.name == other.name && self.bytes() == other.bytes()
    }

    /// How it was declared; `None` while the configuration is being read.
    pub fn declared(&self) -> Option<&K> {
        self.declared.get().map(|(_, kind)| kind)
    }

    /// How it was declared.
    pub fn kind(&self) -> &K {
        self.declared().expect("a configuration with a zone that nobody declares is refused")
    }

    /// State that the threads share.
    pub fn state(&self) -> &Arc<K::State> {
        self.state.get().expect("zones begin before the threads do")
    }
}

/// A zone without the type of its content.
pub trait AnyZone: fmt::Debug + Any + Send + Sync {
    /// Bytes, once it is declared.
    fn bytes(&self) -> Option<u64>;

    /// Bytes that are in use.
    fn used(&self) -> Option<u64>;

    /// Takes the state of the zone before it, or begins with an empty one.
    fn begin(&self, before: Option<&dyn AnyZone>);
}

impl<K: Kind> AnyZone for Zone<K> {
    fn bytes(&self) -> Option<u64> {
        self.declared.get().map(|(bytes, _)| *bytes)
    }

    fn used(&self) -> Option<u64> {
        K::used(self.state.get()?)
    }

    fn begin(&self, before: Option<&dyn AnyZone>) {
        let Some((bytes, kind)) = self.declared.get() else { return };
        let before = before.and_then(|before| (before as &dyn Any).downcast_ref::<Zone<K>>());
        let same = before.filter(|before| before.bytes() == Some(*bytes) && kind.continues(before.kind()));
        let kept = same.and_then(|before| before.state.get()).map(Arc::clone);
        // A worker that could not start with one engine starts again with another, and finds it begun.
        self.state.get_or_init(|| kept.unwrap_or_else(|| Arc::new(kind.empty(*bytes))));
    }
}

impl Entry {
    /// The name of the zone.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The zones of a configuration.
#[derive(Debug, Default)]
pub struct Zones(pub Vec<Entry>);

/// A zone and its position in the configuration.
#[derive(Debug)]
pub struct Entry {
    name: String,
    /// Where it was named first.
    place: Span,
    /// The zone.
    pub zone: Arc<dyn AnyZone>,
}

impl Zones {
    /// The zone of this name; it is declared elsewhere, maybe further down.
    pub fn named<K: Kind>(&mut self, name: &str, at: &Statement) -> Result<Arc<Zone<K>>, Error> {
        if let Some(entry) = self.0.iter().find(|entry| entry.name == name) {
            let zone: Arc<dyn Any + Send + Sync> = Arc::clone(&entry.zone) as _;
            return zone.downcast().map_err(|_| {
                let what =
                    format_args!("the shared memory zone \"{name}\" is already declared for a different use");
                Error::at(at, what).advise(format_args!("by {}: choose another name", entry.place))
            });
        }
        let (declared, state) = (OnceLock::new(), OnceLock::new());
        let zone = Arc::new(Zone::<K> { name: name.to_owned(), declared, state });
        self.0.push(Entry { name: name.to_owned(), place: at.span().clone(), zone: Arc::clone(&zone) as _ });
        Ok(zone)
    }

    /// Declares a zone; `key` is the value that an earlier declaration of it bound it to.
    pub fn declare<K: Kind>(
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

    /// Names a zone that several statements share, of which any may give its size.
    pub fn share<K: Kind>(
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

    /// Fails when a zone is used that nothing declares.
    pub fn finish(&self) -> Result<(), Error> {
        match self.0.iter().find(|entry| entry.zone.bytes().is_none()) {
            Some(Entry { name, place, .. }) => {
                Err(Error::at(place, format_args!("zero size shared memory zone \"{name}\"")))
            }
            None => Ok(()),
        }
    }

    /// Gives each zone its state: that of its namesake in the configuration before where size and meaning are
    /// the same, else an empty one. To be called before a thread serves under this configuration.
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

/// The least that nginx takes: eight pages, of which it needs some for itself.
pub const BYTES_MIN: u64 = 8 * 4096;

/// `NAME:SIZE`, the value of the parameter `zone`; the name may be empty. `Err` has nginx's text.
pub fn name_and_size(parameter: &str) -> Result<(&str, u64), String> {
    let text = parameter.strip_prefix("zone=").unwrap_or(parameter);
    let parts = text.split_once(':').and_then(|(name, size)| Some((name, value::size(size).ok()?)));
    let (name, bytes) = parts.ok_or_else(|| format!("invalid zone size \"{parameter}\""))?;
    if bytes < BYTES_MIN {
        return Err(format!("zone \"{parameter}\" is too small"));
    }
    Ok((name, bytes))
}
