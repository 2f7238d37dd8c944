//! Variables: values of a request by name, computed when they are used.
//!
//! Most variables belong to a module and are functions. Variables that the configuration defines (`set`, named groups, `map`
//! and others) get a numbered slot in each request ([`crate::slots`]). References are resolved when the configuration is
//! read.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use conf::{Error, Span, Statement};

use crate::request::Request;
use crate::template::{Part, Template};
pub use crate::var_ref::VarRef;
use crate::var_ref::{Member, ModuleVar};
use io::op::Source;

/// A module's variable.
pub struct Variable {
    /// The name without `$`.
    pub name: &'static str,
    /// Appends the value; returns `false` if there is none.
    pub get: fn(&Request, &mut Vec<u8>) -> bool,
    /// The effect of an assignment (`set`), if allowed.
    pub set: Option<Assign>,
    /// One sentence of documentation.
    pub help: &'static str,
}

/// The effect of an assignment to a module's variable.
pub enum Assign {
    /// The assigned value replaces the value of `get`.
    Replace,
    /// The module stores the value.
    With(fn(&mut Request, &[u8])),
}

/// Assigned values of modules' variables, by name.
#[derive(Default)]
struct Replaced(Vec<(&'static str, Vec<u8>)>);

impl Request {
    /// Replaces the value of a module's variable.
    fn replace_variable(&mut self, name: &'static str, value: &[u8]) {
        // Shared, because subrequests use the variables of their parent.
        let mut shared = self.shared.extensions.borrow_mut();
        let replaced = shared.get_or_default::<Replaced>();
        replaced.0.retain(|(known, _)| *known != name);
        replaced.0.push((name, value.to_vec()));
    }

    /// Appends the assigned value of a module's variable; returns whether there is one.
    fn replaced_variable(&self, name: &str, out: &mut Vec<u8>) -> bool {
        let shared = self.shared.extensions.borrow();
        let found =
            shared.get::<Replaced>().and_then(|replaced| replaced.0.iter().find(|(known, _)| *known == name));
        found.map(|(_, value)| out.extend_from_slice(value)).is_some()
    }
}

/// A family of variables with a common prefix.
pub struct Prefixed {
    /// The beginning, such as `http_`.
    pub prefix: &'static str,
    /// Appends the value for the name without the prefix; returns `false` if there is none.
    pub get: fn(&Request, &str, &mut Vec<u8>) -> bool,
    /// One sentence of documentation.
    pub help: &'static str,
}

/// Computes the value of a variable that the configuration defines, such as a `map`.
pub trait Compute: fmt::Debug + Send + Sync {
    /// Appends the value; returns `false` if there is none. Called once per request, unless the value is volatile.
    fn value(&self, request: &Request, out: &mut Vec<u8>) -> bool;

    /// Whether the value is computed at each use.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// The variables of all modules.
#[derive(Default)]
pub struct ModuleVariables {
    single: Vec<&'static Variable>,
    /// The indices of the variables in `single`, by name.
    by_name: HashMap<&'static str, u32>,
    families: Vec<&'static Prefixed>,
}

impl ModuleVariables {
    /// Collects the variables; the first of several with the same name counts.
    pub fn new(
        single: impl Iterator<Item = &'static Variable>,
        families: impl Iterator<Item = &'static Prefixed>,
    ) -> ModuleVariables {
        let single: Vec<_> = single.collect();
        let mut by_name = HashMap::new();
        for (place, variable) in (0..).zip(&single) {
            by_name.entry(variable.name).or_insert(place);
        }
        ModuleVariables { single, by_name, families: families.collect() }
    }

    /// Returns a module's variable, or a member of a module's family; `None` if no module defines it.
    pub fn named(&self, name: &str) -> Option<VarRef> {
        match self.single(name) {
            Some(variable) => Some(self.reference(variable)),
            None => Some(VarRef::Member(Arc::new(self.member(name)?))),
        }
    }

    fn reference(&self, variable: ModuleVar) -> VarRef {
        match self.variable(variable.place).set {
            Some(Assign::Replace) => VarRef::Replaceable(variable),
            Some(Assign::With(_)) | None => VarRef::Module(variable),
        }
    }

    fn single(&self, name: &str) -> Option<ModuleVar> {
        let place = *self.by_name.get(name)?;
        Some(ModuleVar { place, name: self.variable(place).name })
    }

    fn variable(&self, place: u32) -> &'static Variable {
        self.single[place as usize]
    }

    /// Returns the member of the family with the longest matching prefix.
    fn member(&self, name: &str) -> Option<Member> {
        let fits = |(_, family): &(u32, &&Prefixed)| name.starts_with(family.prefix);
        let families = (0..).zip(&self.families);
        let (place, family) = families.filter(fits).max_by_key(|(_, family)| family.prefix.len())?;
        let (prefix, rest) = (family.prefix, name[family.prefix.len()..].into());
        Some(Member { family: place, prefix, rest, slot: OnceLock::new() })
    }

    /// Returns a module's variable of this name, if it exists; an error if it cannot be assigned.
    fn changeable(&self, name: &str, statement: &Statement) -> Result<Option<ModuleVar>, Error> {
        match self.single(name) {
            Some(variable) if self.variable(variable.place).set.is_none() => {
                Err(Error::at(statement, format_args!("the duplicate \"{name}\" variable")))
            }
            variable => Ok(variable),
        }
    }
}

impl VarRef {
    /// Appends the value; returns `false` if there is none.
    pub fn value(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        match self {
            VarRef::Module(variable) => (request.variables().variable(variable.place).get)(request, out),
            VarRef::Replaceable(variable) => replaceable_value(variable, request, out),
            VarRef::Member(member) => match member.slot.get() {
                Some(&slot) => request.slot(slot, out),
                None => member.value(request, out),
            },
            VarRef::Slot(slot) => request.slot(*slot, out),
            VarRef::Capture(number) => request.capture(*number, out),
        }
    }

    /// Assigns a value, as `set` does. Only variables returned by [`Registry::define`] can be assigned; others stay
    /// unchanged.
    pub fn assign(&self, request: &mut Request, value: &[u8]) {
        match self {
            VarRef::Module(variable) => {
                if let Some(Assign::With(set)) = request.variables().variable(variable.place).set {
                    set(request, value);
                }
            }
            VarRef::Replaceable(variable) => request.replace_variable(variable.name, value),
            VarRef::Slot(slot) => request.set_slot(*slot, value.to_vec()),
            VarRef::Member(_) | VarRef::Capture(_) => {}
        }
    }
}

/// Appends the value of a module's variable that the configuration may redefine; returns `false` if there is none. Not
/// inlined, because it saves more registers than the other cases of [`VarRef::value`] need.
#[inline(never)]
fn replaceable_value(variable: &ModuleVar, request: &Request, out: &mut Vec<u8>) -> bool {
    // A statement after the reference, such as `map`, may have redefined it.
    if let Some(slot) = request.config().http.registry.slot_of(variable.name) {
        return request.slot(slot, out);
    }
    request.replaced_variable(variable.name, out)
        || (request.variables().variable(variable.place).get)(request, out)
}

impl Member {
    /// Appends the family's value of this name, without assigned values. The empty name is allowed as in nginx, because
    /// text may follow a variable such as `$arg_`. It never has a value.
    pub fn value(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        let family = || request.variables().families[self.family as usize];
        !self.rest.is_empty() && (family().get)(request, &self.rest, out)
    }
}

impl Template {
    /// Appends the text with the variables of `request` to `out`. A variable without a value is empty.
    pub fn render(&self, request: &Request, out: &mut Vec<u8>) {
        self.render_groups(request, false, out);
    }

    /// As [`Template::render`]; with `escaped`, the groups of the last match are escaped for a query.
    pub fn render_groups(&self, request: &Request, escaped: bool, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(VarRef::Capture(number)) if escaped => {
                    let mut group = Vec::new();
                    request.capture(*number, &mut group);
                    http::uri::escape_args(&group, out);
                }
                Part::Variable(variable) => {
                    variable.value(request, out);
                }
            }
        }
    }

    /// Returns the text with the variables of `request`.
    pub fn rendered(&self, request: &Request) -> Vec<u8> {
        let mut out = Vec::new();
        self.render(request, &mut out);
        out
    }

    /// As [`Template::rendered`], for a response: constant text is shared.
    pub fn source(&self, request: &Request) -> Source {
        match self.parts.as_slice() {
            [Part::Text(text)] => Source::Shared(Arc::clone(text).into()),
            _ => Source::Vec(self.rendered(request)),
        }
    }
}

/// The variables that a configuration defines, in addition to those of the modules.
#[derive(Default)]
pub struct Registry {
    modules: Arc<ModuleVariables>,
    slots: Vec<Slot>,
    by_name: HashMap<String, u32>,
    /// Members of families that are used, by complete name.
    members: HashMap<String, Arc<Member>>,
}

struct Slot {
    name: String,
    /// The position of its first use, while it is undefined.
    first_use: Option<Span>,
    origin: Origin,
}

/// The source of a slot's value before an assignment.
pub enum Origin {
    /// Used; the definition may follow.
    Unknown,
    /// No source: only assignments (`set`) give it a value.
    Assigned,
    /// The family that its name belongs to.
    Family(Arc<Member>),
    /// A match: the variable is a named group.
    Group,
    /// The result of this computation.
    Computed(Arc<dyn Compute>),
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.name)).finish()
    }
}

impl Registry {
    /// Returns a registry without definitions, with these variables of modules.
    pub fn with_modules(modules: Arc<ModuleVariables>) -> Registry {
        Registry { modules, ..Registry::default() }
    }

    /// Returns the variables of all modules.
    pub fn modules(&self) -> &ModuleVariables {
        &self.modules
    }

    /// Returns the variable of this name; its definition may follow.
    pub fn reference(&mut self, name: &str, statement: &Statement) -> VarRef {
        if let [digit @ b'1'..=b'9'] = name.as_bytes() {
            return VarRef::Capture(digit - b'0');
        }
        self.reference_named(name, statement)
    }

    /// As [`Registry::reference`], but a number is an ordinary name.
    pub fn reference_named(&mut self, name: &str, statement: &Statement) -> VarRef {
        // Names are case-insensitive, as in nginx.
        let name = name.to_ascii_lowercase();
        match self.lookup(&name) {
            Some(VarRef::Member(member)) => {
                self.members.insert(name, Arc::clone(&member));
                VarRef::Member(member)
            }
            Some(variable) => variable,
            None => VarRef::Slot(self.add(name, Some(statement.span().clone()))),
        }
    }

    /// Returns the variable of this name in a complete configuration, for names that a request contains.
    pub fn find(&self, name: &str) -> Option<VarRef> {
        match name.as_bytes() {
            [digit @ b'1'..=b'9'] => Some(VarRef::Capture(digit - b'0')),
            _ => self.lookup(&name.to_ascii_lowercase()),
        }
    }

    /// Returns a known variable. Variables of the configuration take precedence over a family.
    fn lookup(&self, name: &str) -> Option<VarRef> {
        if let Some(&slot) = self.by_name.get(name) {
            return Some(VarRef::Slot(slot));
        }
        let member = self.members.get(name).map(|member| VarRef::Member(Arc::clone(member)));
        member.or_else(|| self.modules.named(name))
    }

    /// Returns the slot of this name, if the configuration defines or uses such a variable.
    fn slot_of(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Defines a variable that statements like `set` assign to. Before an assignment, a family may provide its value.
    pub fn define(&mut self, name: &str, statement: &Statement) -> Result<VarRef, Error> {
        let name = name.to_ascii_lowercase();
        let variable = self.modules.changeable(&name, statement)?;
        if let Some(variable) = variable.filter(|_| !self.by_name.contains_key(&name)) {
            return Ok(self.modules.reference(variable));
        }
        let slot = self.own(name);
        let slot_named = &mut self.slots[slot as usize];
        if matches!(slot_named.origin, Origin::Unknown) {
            let member = self.modules.member(&slot_named.name);
            slot_named.origin = member.map_or(Origin::Assigned, |member| Origin::Family(Arc::new(member)));
        }
        Ok(VarRef::Slot(slot))
    }

    /// Defines the slot of a named group. Unlike `set`, a match never changes a module's variable.
    pub fn define_group(&mut self, name: &str, statement: &Statement) -> Result<u32, Error> {
        self.claim(name, statement, Origin::Group)
    }

    /// Defines the slot of a variable whose computation is set by [`Registry::compute`].
    pub fn define_computed(&mut self, name: &str, statement: &Statement) -> Result<u32, Error> {
        self.claim(name, statement, Origin::Assigned)
    }

    /// Sets the computation of a slot's value.
    pub fn compute(&mut self, slot: u32, compute: Arc<dyn Compute>) {
        self.slots[slot as usize].origin = Origin::Computed(compute);
    }

    fn claim(&mut self, name: &str, statement: &Statement, origin: Origin) -> Result<u32, Error> {
        let name = name.to_ascii_lowercase();
        self.modules.changeable(&name, statement)?;
        let slot = self.own(name);
        self.slots[slot as usize].origin = origin;
        Ok(slot)
    }

    /// Returns the slot of a name and marks it as defined.
    fn own(&mut self, name: String) -> u32 {
        let slot = match self.by_name.get(&name) {
            Some(&slot) => slot,
            None => self.add(name, None),
        };
        self.slots[slot as usize].first_use = None;
        slot
    }

    fn add(&mut self, name: String, first_use: Option<Span>) -> u32 {
        let slot = self.slots.len() as u32;
        if let Some(member) = self.members.get(&name) {
            // The cell is empty, because a name gets a slot only once.
            let _ = member.slot.set(slot);
        }
        self.by_name.insert(name.clone(), slot);
        self.slots.push(Slot { name, first_use, origin: Origin::Unknown });
        slot
    }

    /// Fails if a used variable is undefined.
    pub fn finish(&self) -> Result<(), Error> {
        let missing = self.slots.iter().find_map(|slot| Some((slot.first_use.as_ref()?, &slot.name)));
        match missing {
            Some((span, name)) => {
                let error = Error::at(span, format_args!("unknown \"{name}\" variable"));
                Err(match (conf::third_party_variable(name), self.similar(name)) {
                    (Some(module), _) => error.advise(format_args!("the third-party module {module} has it")),
                    // GeoIP2 variables have the names that the configuration gives them.
                    _ if name.starts_with("geoip2_") => error.advise(
                        "the \"geoip2\" block that defines it is missing (docs/third-party-modules.md)",
                    ),
                    (None, Some(known)) => error.advise(format_args!("did you mean \"${known}\"?")),
                    (None, None) => error,
                })
            }
            None => Ok(()),
        }
    }

    /// Returns the variable that was probably meant, of a module or of the configuration.
    fn similar(&self, name: &str) -> Option<&str> {
        // For very short names everything is similar.
        let slips_max = if name.len() < 3 { return None } else { conf::slips_max(name) };
        let defined =
            self.slots.iter().filter(|slot| slot.first_use.is_none()).map(|slot| slot.name.as_str());
        let known = self.modules.single.iter().map(|variable| variable.name).chain(defined);
        let distances = known.map(|known| (conf::edit_distance(name, known), known));
        distances.filter(|(slips, _)| *slips <= slips_max).min().map(|(_, known)| known)
    }

    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the name of a slot, without `$`.
    pub fn name(&self, slot: u32) -> &str {
        &self.slots[slot as usize].name
    }

    /// Returns the source of a slot's value before an assignment.
    pub fn origin(&self, slot: u32) -> &Origin {
        &self.slots[slot as usize].origin
    }
}
