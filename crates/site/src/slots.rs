//! Values of the configuration's variables in a request: the slots of `set`, `map` and others, and the groups of the
//! last regular expression match.
//!
//! Both change while a template is rendered from a shared reference to the request, so they are cells. A request that
//! uses neither has empty vectors and no further cost.

use std::cell::{Cell, RefCell};

use crate::pattern::{Match, SearchAborted};
use crate::registry::ValueSource;
use crate::variables::HasVariables;
use telemetry::Level;

/// Maximum nesting of value computations, as in nginx. Chains in real configurations have a few links, so only loops reach
/// the maximum. They reach it before the stack overflows.
const DEPTH_MAX: u32 = 100;

/// The values of a request.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    values: RefCell<Vec<Value>>,
    /// Number of nested computations in progress.
    depth: Cell<u32>,
}

/// The values of a request at one time.
pub struct Snapshot(Vec<Value>);

/// The value of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Value {
    /// Neither computed nor assigned.
    #[default]
    Unset,
    /// The computation is in progress, so a read now is recursive.
    Pending,
    /// Computed without a value.
    Nothing,
    /// Assigned, or computed.
    Text(Vec<u8>),
}

/// The result of reading a slot.
enum SlotRead {
    /// The slot was computed or assigned. The flag states whether it has a value, which was appended to the output.
    Computed(bool),
    /// The value has to be computed.
    Unset,
    /// The value is being computed.
    Pending,
}

impl Slots {
    /// Drops all values and retains the memory of the table.
    pub fn clear(&mut self) {
        self.values.get_mut().clear();
        self.depth.set(0);
    }

    /// Returns a copy of the values, and [`Slots::restore`] puts it back.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.values.borrow().clone())
    }

    /// Drops all values since the snapshot.
    pub fn restore(&self, Snapshot(values): Snapshot) {
        *self.values.borrow_mut() = values;
    }

    fn read(&self, slot: u32, out: &mut Vec<u8>) -> SlotRead {
        match self.values.borrow().get(slot as usize) {
            None | Some(Value::Unset) => SlotRead::Unset,
            Some(Value::Pending) => SlotRead::Pending,
            Some(Value::Nothing) => SlotRead::Computed(false),
            Some(Value::Text(text)) => {
                out.extend_from_slice(text);
                SlotRead::Computed(true)
            }
        }
    }

    /// Stores a value. `len` is the number of slots in the configuration, so that the vector grows only once.
    fn put(&self, slot: u32, value: Value, len: usize) {
        let mut values = self.values.borrow_mut();
        if values.len() <= slot as usize {
            values.resize(len.max(slot as usize + 1), Value::Unset);
        }
        values[slot as usize] = value;
    }
}

/// The subject and the groups of the last regular expression.
#[derive(Clone, Debug, Default)]
pub struct Captures(RefCell<Matched>);

#[derive(Clone, Debug, Default)]
struct Matched {
    subject: Vec<u8>,
    /// Start and end of `$0`, `$1`, …
    spans: Vec<Option<(usize, usize)>>,
}

impl Slots {
    /// Appends the value of a variable of the configuration, computing it if necessary; returns `false` if it has none.
    pub fn value<R: HasVariables>(request: &R, slot: u32, out: &mut Vec<u8>) -> bool {
        match request.slots().read(slot, out) {
            SlotRead::Computed(found) => found,
            SlotRead::Unset => Slots::make(request, slot, out),
            SlotRead::Pending => refuse_cycle(request, request.registry().name(slot)),
        }
    }

    /// Sets the value of a variable of the configuration until the end of the request.
    pub fn set<R: HasVariables>(request: &R, slot: u32, value: Vec<u8>) {
        request.slots().put(slot, Value::Text(value), request.registry().count());
    }

    /// Appends the value of an unassigned slot.
    fn make<R: HasVariables>(request: &R, slot: u32, out: &mut Vec<u8>) -> bool {
        let (registry, slots) = (request.registry(), request.slots());
        if let Some(compute) = request.variables().computation(slot) {
            let start = out.len();
            slots.put(slot, Value::Pending, registry.count());
            let found = nested(request, registry.name(slot), || compute.value(request, out));
            let value = match found {
                _ if compute.is_volatile() => Value::Unset,
                true => Value::Text(out[start..].to_vec()),
                false => Value::Nothing,
            };
            slots.put(slot, value, registry.count());
            return found;
        }
        match registry.origin(slot) {
            ValueSource::Family(variable) => variable.value(request, out),
            ValueSource::Group => false,
            ValueSource::Assigned | ValueSource::Computed | ValueSource::Unknown => {
                if request.warns_of_uninitialized() {
                    let name = registry.name(slot);
                    request.log(Level::Warn, format_args!("using uninitialized \"{name}\" variable"));
                }
                // Stored, so that the warning is logged only once.
                Slots::set(request, slot, Vec::new());
                true
            }
        }
    }
}

/// Computes a value from other values, which may be recursive; beyond the maximum depth there is no value.
pub fn nested<R: HasVariables>(request: &R, name: &str, compute: impl FnOnce() -> bool) -> bool {
    let depth = &request.slots().depth;
    let before = depth.get();
    if before >= DEPTH_MAX {
        return refuse_cycle(request, name);
    }
    depth.set(before + 1);
    let found = compute();
    depth.set(before);
    found
}

fn refuse_cycle<R: HasVariables>(request: &R, name: &str) -> bool {
    request.log(Level::Error, format_args!("cycle while evaluating variable \"{name}\""));
    false
}

impl Captures {
    /// Appends the text of a group of the last match.
    pub fn append(&self, number: u8, out: &mut Vec<u8>) -> bool {
        let Matched { subject, spans } = &*self.0.borrow();
        let span = spans.get(number as usize).copied().flatten();
        span.map(|(start, end)| out.extend_from_slice(&subject[start..end])).is_some()
    }

    /// Stores a match of `subject`.
    pub fn set(&self, subject: &[u8], groups: impl Iterator<Item = Option<(usize, usize)>>) {
        let mut matched = self.0.borrow_mut();
        matched.subject.clear();
        matched.subject.extend_from_slice(subject);
        matched.spans.clear();
        matched.spans.extend(groups);
    }

    /// Clears the last match, as conditions and rewrites without a match do.
    pub fn clear(&self) {
        self.0.borrow_mut().spans.clear();
    }
}

impl SearchAborted<'_> {
    /// Logs the aborted search.
    pub fn log<R: HasVariables>(&self, subject: &[u8], request: &R) {
        request.log(Level::Alert, format_args!("{}", self.words(subject)));
    }
}

impl Match<'_> {
    /// Stores the groups in the request, as `$1` and by name.
    pub fn store<R: HasVariables>(&self, subject: &[u8], request: &R) {
        request.captures().set(subject, self.spans());
        for (slot, (start, end)) in self.named() {
            Slots::set(request, slot, subject[start..end].to_vec());
        }
    }
}
