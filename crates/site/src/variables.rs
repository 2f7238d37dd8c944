//! Variables: values of a request by name, computed when they are used.
//!
//! Most variables belong to a module and are functions. Those that the configuration defines have slots
//! ([`crate::registry`]); the values of `map` and similar directives are computed. Each protocol has functions of its
//! own: all types here are generic over the request that the functions get.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::config::Http;
use crate::extensions::Extensions;
use crate::registry::{Change, Registry, ValueSource, VariableName, VariableNames};
use crate::slots::{Captures, Slots};
use crate::template::{Part, Template};
use crate::var_ref::{Member, ModuleVar, VarRef};
use io::segments::Source;
use telemetry::Level;

/// A request whose variables can be used in text.
pub trait HasVariables: Sized + 'static {
    /// Returns the functions of the variables.
    fn variables(&self) -> &Variables<Self>;

    /// Returns the variables that the configuration defines.
    fn registry(&self) -> &Registry;

    /// Returns the values of the configuration's variables.
    fn slots(&self) -> &Slots;

    /// Returns the groups of the last regular expression.
    fn captures(&self) -> &Captures;

    /// Returns values of modules that the request shares with its subrequests.
    fn shared_extensions(&self) -> &RefCell<Extensions>;

    /// Whether the use of a variable without a value is logged.
    fn warns_of_uninitialized(&self) -> bool;

    /// Writes to the error log.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}

/// A module's variable.
pub struct Variable<R> {
    /// The name without `$`.
    pub name: &'static str,
    /// Appends the value; returns `false` if there is none.
    pub get: fn(&R, &mut Vec<u8>) -> bool,
    /// The effect of an assignment (`set`), if allowed.
    pub set: Option<Assign<R>>,
    /// One sentence of documentation.
    pub help: &'static str,
}

/// The effect of an assignment to a module's variable.
pub enum Assign<R> {
    /// The assigned value replaces the value of `get`.
    Replace,
    /// The module stores the value.
    With(fn(&mut R, &[u8])),
}

/// A family of variables with a common prefix.
pub struct Prefixed<R> {
    /// The beginning, such as `http_`.
    pub prefix: &'static str,
    /// Appends the value for the name without the prefix; returns `false` if there is none.
    pub get: fn(&R, &str, &mut Vec<u8>) -> bool,
    /// One sentence of documentation.
    pub help: &'static str,
}

/// The variables of all modules, in the order of [`VariableNames`].
pub struct Functions<R: 'static> {
    /// The variables.
    pub single: Vec<&'static Variable<R>>,
    /// The families.
    pub families: Vec<&'static Prefixed<R>>,
}

impl<R> Functions<R> {
    /// Returns the names of the variables.
    pub fn names(&self) -> VariableNames {
        let name = |variable: &&'static Variable<R>| {
            let change = match variable.set {
                None => Change::None,
                Some(Assign::Replace) => Change::Replace,
                Some(Assign::With(_)) => Change::Store,
            };
            VariableName { name: variable.name, change }
        };
        let families = self.families.iter().map(|family| family.prefix).collect();
        VariableNames::new(self.single.iter().map(name).collect(), families)
    }
}

/// Computes the value of a variable that the configuration defines, such as a `map`.
pub trait Compute<R>: fmt::Debug + Send + Sync {
    /// Appends the value; returns `false` if there is none. Called once per request, unless the value is volatile.
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool;

    /// Whether the value is computed at each use.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// How the configuration's variables are computed, by slot. One of the values for all of `http`.
pub struct Computations<R>(Vec<Option<Arc<dyn Compute<R>>>>);

impl<R> Default for Computations<R> {
    fn default() -> Self {
        Computations(Vec::new())
    }
}

/// Sets the computation of a slot's value.
pub fn compute<R: 'static>(http: &mut Http, slot: u32, compute: Arc<dyn Compute<R>>) {
    http.registry.mark_computed(slot);
    let Computations(all) = http.make_mut();
    all.resize(all.len().max(slot as usize + 1), None);
    all[slot as usize] = Some(compute);
}

/// The functions of the variables of a configuration.
pub struct Variables<R: 'static> {
    modules: &'static Functions<R>,
    /// How the configuration's variables are computed, by slot.
    computed: Arc<[Option<Arc<dyn Compute<R>>>]>,
}

impl<R> Clone for Variables<R> {
    fn clone(&self) -> Self {
        Variables { modules: self.modules, computed: Arc::clone(&self.computed) }
    }
}

impl<R> Variables<R> {
    /// Returns the functions of a complete configuration with these modules.
    pub fn new(modules: &'static Functions<R>, http: &Http) -> Variables<R> {
        let Computations(all) = http.of::<Computations<R>>();
        // A later directive may have defined the variable otherwise.
        let is_used = |slot: u32| matches!(http.registry.origin(slot), ValueSource::Computed);
        let computed = (0..).zip(all).map(|(slot, compute)| compute.clone().filter(|_| is_used(slot)));
        Variables { modules, computed: computed.collect() }
    }

    /// Returns the computation of a slot's value, if it has one.
    pub(crate) fn computation(&self, slot: u32) -> Option<&Arc<dyn Compute<R>>> {
        self.computed.get(slot as usize)?.as_ref()
    }

    fn function(&self, variable: &ModuleVar) -> &'static Variable<R> {
        self.modules.single[variable.index as usize]
    }
}

/// Assigned values of modules' variables, by name.
#[derive(Clone, Default)]
struct Replaced(Vec<(&'static str, Vec<u8>)>);

/// Replaces the value of a module's variable.
fn replace(request: &impl HasVariables, name: &'static str, value: &[u8]) {
    // Shared, because subrequests use the variables of their parent.
    let mut shared = request.shared_extensions().borrow_mut();
    let replaced = shared.get_or_default::<Replaced>();
    replaced.0.retain(|(known, _)| *known != name);
    replaced.0.push((name, value.to_vec()));
}

/// Appends the assigned value of a module's variable; returns whether there is one.
fn replaced(request: &impl HasVariables, name: &str, out: &mut Vec<u8>) -> bool {
    let shared = request.shared_extensions().borrow();
    let found =
        shared.get::<Replaced>().and_then(|replaced| replaced.0.iter().find(|(known, _)| *known == name));
    found.map(|(_, value)| out.extend_from_slice(value)).is_some()
}

/// Returns the assigned values of modules' variables alone, of the values that a request shares with its subrequests.
pub fn assigned_values(shared: &Extensions) -> Extensions {
    let mut copy = Extensions::default();
    if let Some(replaced) = shared.get::<Replaced>() {
        copy.insert(replaced.clone());
    }
    copy
}

impl VarRef {
    /// Appends the value; returns `false` if there is none.
    pub fn value<R: HasVariables>(&self, request: &R, out: &mut Vec<u8>) -> bool {
        match self {
            VarRef::Module(variable) => (request.variables().function(variable).get)(request, out),
            VarRef::Replaceable(variable) => replaceable_value(variable, request, out),
            VarRef::Member(member) => match member.slot.get() {
                Some(&slot) => Slots::value(request, slot, out),
                None => member.value(request, out),
            },
            VarRef::Slot(slot) => Slots::value(request, *slot, out),
            VarRef::Capture(number) => request.captures().append(*number, out),
        }
    }

    /// Assigns a value, as `set` does. Only variables returned by [`Registry::define`] can be assigned; others stay
    /// unchanged.
    pub fn assign<R: HasVariables>(&self, request: &mut R, value: &[u8]) {
        match self {
            VarRef::Module(variable) => {
                if let Some(Assign::With(set)) = request.variables().function(variable).set {
                    set(request, value);
                }
            }
            VarRef::Replaceable(variable) => replace(request, variable.name, value),
            VarRef::Slot(slot) => Slots::set(request, *slot, value.to_vec()),
            VarRef::Member(_) | VarRef::Capture(_) => {}
        }
    }
}

/// Appends the value of a module's variable that the configuration may redefine; returns `false` if there is none. Not
/// inlined, because it saves more registers than the other cases of [`VarRef::value`] need.
#[inline(never)]
fn replaceable_value<R: HasVariables>(variable: &ModuleVar, request: &R, out: &mut Vec<u8>) -> bool {
    // A statement after the reference, such as `map`, may have redefined it.
    if let Some(slot) = request.registry().slot_of(variable.name) {
        return Slots::value(request, slot, out);
    }
    replaced(request, variable.name, out) || (request.variables().function(variable).get)(request, out)
}

impl Member {
    /// Appends the family's value of this name, without assigned values. The empty name is allowed as in nginx, because
    /// text may follow a variable such as `$arg_`. It never has a value.
    pub fn value<R: HasVariables>(&self, request: &R, out: &mut Vec<u8>) -> bool {
        let family = || request.variables().modules.families[self.family as usize];
        !self.rest.is_empty() && (family().get)(request, &self.rest, out)
    }
}

/// Length in bytes for which a rendered text has memory at first: most texts are shorter.
const RENDERED_LEN: usize = 32;

impl Template {
    /// Appends the text with the variables of `request` to `out`. A variable without a value is empty.
    pub fn render<R: HasVariables>(&self, request: &R, out: &mut Vec<u8>) {
        self.render_groups(request, false, out);
    }

    /// As [`Template::render`]; with `escaped`, the groups of the last match are escaped for a query.
    pub fn render_groups<R: HasVariables>(&self, request: &R, escaped: bool, out: &mut Vec<u8>) {
        for part in self.parts.iter() {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(VarRef::Capture(number)) if escaped => {
                    let mut group = Vec::new();
                    request.captures().append(*number, &mut group);
                    http::uri::escape_args(&group, out);
                }
                Part::Variable(variable) => {
                    variable.value(request, out);
                }
            }
        }
    }

    /// Returns the text with the variables of `request`.
    pub fn rendered<R: HasVariables>(&self, request: &R) -> Vec<u8> {
        let mut out = Vec::with_capacity(RENDERED_LEN);
        self.render(request, &mut out);
        out
    }

    /// As [`Template::rendered`], for a response: constant text is shared.
    pub fn source<R: HasVariables>(&self, request: &R) -> Source {
        match &*self.parts {
            [Part::Text(text)] => Source::Shared(Arc::clone(text).into()),
            _ => Source::Vec(self.rendered(request)),
        }
    }
}
