//! The settings of modules for one block: a slot for each type, shared with the enclosing blocks until it is changed.
//!
//! A module declares its settings in its [`crate::config::declaration::Declaration`]. It gets them from a [`Scope`](crate::config::Scope)
//! by their type, which is private to the module, so that no module can use the settings of another module.

use std::any::{Any, TypeId};
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use telemetry::Targets;

/// The settings of one module in one block.
pub trait Settings: Any + Clone + Debug + Default + Send + Sync {
    /// Returns the settings of the outermost block.
    fn start(_: &mut Start<'_>) -> Self {
        Self::default()
    }

    /// Returns the initial settings of an inner block, or `None` if they are the same.
    fn inherit(&self, _: Inner) -> Option<Self> {
        None
    }
}

/// Inputs of settings before any directive was read.
pub struct Start<'a> {
    /// The base of relative paths in the configuration.
    pub prefix: &'a Path,
    /// The log targets.
    pub targets: &'a mut Targets,
}

/// The kind of a block that inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// A `server` or a `location`.
    Block,
    /// An `if`. It inherits the content handler of the enclosing block.
    If,
    /// A `limit_except`. Requests are passed on as in the enclosing location.
    LimitExcept,
}

type Value = Arc<dyn Any + Send + Sync>;

/// One type of settings, for [`crate::config::declaration::Declaration::settings`].
#[derive(Clone, Copy)]
pub struct SettingsType {
    id: fn() -> TypeId,
    start: fn(&mut Start<'_>) -> Value,
    inherit: fn(&Value, Inner) -> Option<Value>,
    copy: fn(&Value) -> Value,
    debug: fn(&Value) -> &dyn Debug,
}

impl SettingsType {
    /// Returns the descriptor of type `C`.
    pub const fn of<C: Settings>() -> SettingsType {
        SettingsType {
            id: TypeId::of::<C>,
            start: |start| Arc::new(C::start(start)),
            inherit: |value, inner| Some(Arc::new(cast::<C>(value).inherit(inner)?)),
            copy: |value| Arc::new(cast::<C>(value).clone()),
            debug: |value| cast::<C>(value),
        }
    }
}

fn cast<C: Settings>(value: &Value) -> &C {
    value.downcast_ref().expect("the place was found by the type")
}

/// A type of values that exist once for all of `http`, for [`crate::config::declaration::Declaration::http`].
#[derive(Clone, Copy)]
pub struct HttpType {
    make: fn() -> Box<dyn Any + Send + Sync>,
}

impl HttpType {
    /// Returns the descriptor of type `T`; the value starts with its default.
    pub const fn of<T: Any + Default + Send + Sync>() -> HttpType {
        HttpType { make: || Box::new(T::default()) }
    }
}

/// Values of modules for all of `http`, one per type.
#[derive(Default)]
pub struct HttpValues(Vec<Box<dyn Any + Send + Sync>>);

impl HttpValues {
    /// Returns one default value of each of these types.
    pub fn new(types: impl Iterator<Item = HttpType>) -> HttpValues {
        HttpValues(types.map(|value| (value.make)()).collect())
    }

    /// Returns the value of this type.
    pub fn of<T: Any>(&self) -> &T {
        let found = self.0.iter().find_map(|value| value.downcast_ref());
        found.unwrap_or_else(|| panic!("no module has the value {}", std::any::type_name::<T>()))
    }

    /// Returns the value of this type, to be changed.
    pub fn make_mut<T: Any>(&mut self) -> &mut T {
        let found = self.0.iter_mut().find_map(|value| value.downcast_mut());
        found.unwrap_or_else(|| panic!("no module has the value {}", std::any::type_name::<T>()))
    }
}

impl Debug for HttpValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpValues").field(&self.0.len()).finish()
    }
}

/// The types of settings of all modules.
pub struct SettingsTable {
    types: Vec<SettingsType>,
    /// A hash table from type to index, because a request looks up about twenty types. Its length is a power of two,
    /// and at least half of it is empty. Collisions are resolved by linear probing.
    slots: Vec<Option<(TypeId, usize)>>,
}

impl SettingsTable {
    /// Returns a table of these types.
    pub fn new(types: impl Iterator<Item = SettingsType>) -> SettingsTable {
        let types: Vec<_> = types.collect();
        let mut slots = vec![None; (2 * types.len()).next_power_of_two()];
        for (index, settings) in types.iter().enumerate() {
            let id = (settings.id)();
            debug_assert!(
                slots.len().is_power_of_two() && index < slots.len(),
                "the mask selects a slot, and one stays free"
            );
            let mut at = hash(id) & (slots.len() - 1);
            while slots[at].is_some() {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = Some((id, index));
        }
        SettingsTable { types, slots }
    }

    fn index_of(&self, id: TypeId) -> Option<usize> {
        debug_assert!(self.slots.len().is_power_of_two(), "the mask selects a slot");
        let mut at = hash(id) & (self.slots.len() - 1);
        loop {
            let (known, index) = self.slots[at]?;
            if known == id {
                return Some(index);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

/// Returns the low bits of a type's identifier, which the compiler computed as a hash.
fn hash(id: TypeId) -> usize {
    struct TypeIdBits(u64);
    impl Hasher for TypeIdBits {
        fn write(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
        }
        fn write_u64(&mut self, number: u64) {
            self.0 = number;
        }
        fn finish(&self) -> u64 {
            self.0
        }
    }
    let mut bits = TypeIdBits(0);
    id.hash(&mut bits);
    bits.finish() as usize
}

/// The settings of all modules in one block.
#[derive(Clone)]
pub(crate) struct SettingsValues {
    table: &'static SettingsTable,
    values: Vec<Value>,
}

impl SettingsValues {
    /// Returns the settings of the outermost block.
    pub(crate) fn start(table: &'static SettingsTable, start: &mut Start<'_>) -> SettingsValues {
        SettingsValues { table, values: table.types.iter().map(|settings| (settings.start)(start)).collect() }
    }

    /// Returns the initial settings of an inner block.
    pub(crate) fn inherit(&self, inner: Inner) -> SettingsValues {
        let pairs = self.table.types.iter().zip(&self.values);
        let inherit = |(settings, value): (&SettingsType, &Value)| {
            (settings.inherit)(value, inner).unwrap_or_else(|| Arc::clone(value))
        };
        SettingsValues { table: self.table, values: pairs.map(inherit).collect() }
    }

    /// Returns the settings of this type.
    pub(crate) fn of<C: Settings>(&self) -> &C {
        cast(&self.values[self.index_of::<C>()])
    }

    /// Returns the settings of this type as a shared pointer.
    pub(crate) fn shared<C: Settings>(&self) -> Arc<C> {
        let value = Arc::clone(&self.values[self.index_of::<C>()]);
        value.downcast().expect("the place was found by the type")
    }

    /// Returns the settings of this type, to be changed for this block alone.
    pub(crate) fn make_mut<C: Settings>(&mut self) -> &mut C {
        let index = self.index_of::<C>();
        let value = &mut self.values[index];
        if Arc::get_mut(value).is_none() {
            *value = (self.table.types[index].copy)(value);
        }
        let value = Arc::get_mut(value).expect("it was copied where it was shared");
        value.downcast_mut().expect("the place was found by the type")
    }

    fn index_of<C: Settings>(&self) -> usize {
        let index = self.table.index_of(TypeId::of::<C>());
        index.unwrap_or_else(|| panic!("no module has the settings {}", std::any::type_name::<C>()))
    }
}

impl Debug for SettingsValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.table.types.iter().zip(&self.values);
        f.debug_list().entries(pairs.map(|(settings, value)| (settings.debug)(value))).finish()
    }
}
