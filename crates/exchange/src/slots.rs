//! Values of the configuration's variables in a request: the slots of `set`, `map` and others, and the groups of the
//! last regular expression match.
//!
//! Both change while a template is rendered from a shared reference to the request, so they are cells. A request that
//! uses neither has empty vectors and no further cost.

use std::cell::{Cell, RefCell};

use crate::pattern::{Match, SearchAborted};
use crate::request::Request;
use crate::variables::Origin;
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

impl Request {
    /// Calls a function for a response that is not sent, and drops the values and the groups of matches that it has stored.
    pub fn look_ahead<T>(&mut self, look: impl FnOnce(&mut Request) -> T) -> T {
        let values = self.shared.slots.values.borrow().clone();
        let captures = self.captures.clone();
        let seen = look(self);
        *self.shared.slots.values.borrow_mut() = values;
        self.captures = captures;
        seen
    }

    /// Appends the value of a variable of the configuration, computing it if necessary; returns `false` if it has none.
    pub fn slot(&self, slot: u32, out: &mut Vec<u8>) -> bool {
        match self.shared.slots.read(slot, out) {
            SlotRead::Computed(found) => found,
            SlotRead::Unset => self.make(slot, out),
            SlotRead::Pending => self.refuse_cycle(self.config().http.registry.name(slot)),
        }
    }

    /// Sets the value of a variable of the configuration until the end of the request.
    pub fn set_slot(&self, slot: u32, value: Vec<u8>) {
        self.shared.slots.put(slot, Value::Text(value), self.config().http.registry.count());
    }

    /// Appends the value of an unassigned slot.
    fn make(&self, slot: u32, out: &mut Vec<u8>) -> bool {
        let registry = &self.config().http.registry;
        match registry.origin(slot) {
            Origin::Computed(compute) => {
                let start = out.len();
                self.shared.slots.put(slot, Value::Pending, registry.count());
                let found = self.nested(registry.name(slot), || compute.value(self, out));
                let value = match found {
                    _ if compute.is_volatile() => Value::Unset,
                    true => Value::Text(out[start..].to_vec()),
                    false => Value::Nothing,
                };
                self.shared.slots.put(slot, value, registry.count());
                found
            }
            Origin::Family(variable) => variable.value(self, out),
            Origin::Group => false,
            Origin::Assigned | Origin::Unknown => {
                if self.scope().core.uninitialized_variable_warn {
                    let name = registry.name(slot);
                    self.log(Level::Warn, format_args!("using uninitialized \"{name}\" variable"));
                }
                // Stored, so that the warning is logged only once.
                self.set_slot(slot, Vec::new());
                true
            }
        }
    }

    /// Computes a value from other values, which may be recursive; beyond the maximum depth there is no value.
    pub fn nested(&self, name: &str, compute: impl FnOnce() -> bool) -> bool {
        let depth = self.shared.slots.depth.get();
        if depth >= DEPTH_MAX {
            return self.refuse_cycle(name);
        }
        self.shared.slots.depth.set(depth + 1);
        let found = compute();
        self.shared.slots.depth.set(depth);
        found
    }

    fn refuse_cycle(&self, name: &str) -> bool {
        self.log(Level::Error, format_args!("cycle while evaluating variable \"{name}\""));
        false
    }

    /// Appends the text of a group of the last match.
    pub fn capture(&self, number: u8, out: &mut Vec<u8>) -> bool {
        let Matched { subject, spans } = &*self.captures.0.borrow();
        let span = spans.get(number as usize).copied().flatten();
        span.map(|(start, end)| out.extend_from_slice(&subject[start..end])).is_some()
    }

    /// Stores a match of `subject`.
    pub fn set_captures(&self, subject: &[u8], groups: impl Iterator<Item = Option<(usize, usize)>>) {
        let mut matched = self.captures.0.borrow_mut();
        matched.subject.clear();
        matched.subject.extend_from_slice(subject);
        matched.spans.clear();
        matched.spans.extend(groups);
    }

    /// Clears the last match, as conditions and rewrites without a match do.
    pub fn clear_captures(&self) {
        self.captures.0.borrow_mut().spans.clear();
    }
}

impl SearchAborted<'_> {
    /// Logs the aborted search.
    pub fn log(&self, subject: &[u8], request: &Request) {
        request.log(Level::Alert, format_args!("{}", self.words(subject)));
    }
}

impl Match<'_> {
    /// Stores the groups in the request, as `$1` and by name.
    pub fn store(&self, subject: &[u8], request: &Request) {
        request.set_captures(subject, self.spans());
        for (slot, (start, end)) in self.named() {
            request.set_slot(slot, subject[start..end].to_vec());
        }
    }
}
