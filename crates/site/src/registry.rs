//! The names of variables: those of modules, and those that the configuration defines. References to them are resolved
//! when the configuration is read; [`crate::variables`] computes the values.
//!
//! Variables that the configuration defines (`set`, named groups, `map` and others) get a numbered slot in each request
//! ([`crate::slots`]).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use conf::{Error, Object, Span, Statement};

use crate::template::Template;
use crate::var_ref::{Member, ModuleVar, VarRef};

/// Maximum number of known values of a variable or a text. A longer table of values is treated as unknown.
pub(crate) const VALUES_MAX: usize = 1024;

/// The name of a module's variable.
#[derive(Clone, Copy, Debug)]
pub struct VariableName {
    /// The name without `$`.
    pub name: &'static str,
    /// The effect of an assignment.
    pub change: Change,
}

/// The effect of an assignment to a module's variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It cannot be assigned.
    None,
    /// The assigned value replaces the module's.
    Replace,
    /// The module stores the value.
    Store,
}

/// The names of the variables of all modules.
#[derive(Default)]
pub struct VariableNames {
    single: Vec<VariableName>,
    /// The indices of the variables in `single`, by name.
    by_name: HashMap<&'static str, u32>,
    /// The prefixes of families.
    families: Vec<&'static str>,
}

impl VariableNames {
    /// Collects the names, in the order of the functions; the first of several equal ones counts.
    pub fn new(single: Vec<VariableName>, families: Vec<&'static str>) -> VariableNames {
        let mut by_name = HashMap::new();
        for (index, variable) in (0..).zip(&single) {
            by_name.entry(variable.name).or_insert(index);
        }
        VariableNames { single, by_name, families }
    }

    /// Returns a module's variable, or a member of a module's family; `None` if no module defines it.
    pub fn named(&self, name: &str) -> Option<VarRef> {
        match self.single(name) {
            Some(variable) => Some(self.reference(variable)),
            None => Some(VarRef::Member(Arc::new(self.member(name)?))),
        }
    }

    fn reference(&self, variable: ModuleVar) -> VarRef {
        match self.change(variable) {
            Change::Replace => VarRef::Replaceable(variable),
            Change::Store | Change::None => VarRef::Module(variable),
        }
    }

    fn single(&self, name: &str) -> Option<ModuleVar> {
        let index = *self.by_name.get(name)?;
        debug_assert!(
            self.single[index as usize].name.eq_ignore_ascii_case(name),
            "the index is that of the name"
        );
        Some(ModuleVar { index, name: self.single[index as usize].name })
    }

    fn change(&self, variable: ModuleVar) -> Change {
        self.single[variable.index as usize].change
    }

    /// Returns the member of the family with the longest matching prefix.
    fn member(&self, name: &str) -> Option<Member> {
        let fits = |(_, prefix): &(u32, &str)| name.starts_with(prefix);
        let families = (0..).zip(self.families.iter().copied());
        let (family, prefix) = families.filter(fits).max_by_key(|(_, prefix)| prefix.len())?;
        let rest = name[prefix.len()..].into();
        Some(Member { family, prefix, rest, slot: OnceLock::new() })
    }

    /// Returns a module's variable of this name, if it exists; an error if it cannot be assigned.
    fn changeable(&self, name: &str, statement: &Statement) -> Result<Option<ModuleVar>, Error> {
        match self.single(name) {
            Some(variable) if self.change(variable) == Change::None => {
                Err(Error::at(statement, format_args!("the duplicate \"{name}\" variable")))
            }
            variable => Ok(variable),
        }
    }
}

/// The variables that a configuration defines, in addition to those of the modules.
#[derive(Default)]
pub struct Registry {
    modules: Arc<VariableNames>,
    slots: Vec<Slot>,
    by_name: HashMap<String, u32>,
    /// Members of families that are used, by complete name.
    members: HashMap<String, Arc<Member>>,
}

struct Slot {
    name: String,
    /// The position of its first use, while it is undefined.
    first_use: Option<Span>,
    origin: ValueSource,
    /// Number of directives that define it.
    definitions: u32,
    /// Number of directives that have added their values to `values`.
    valued: u32,
    /// All values that directives assign; incomplete if there are more than [`VALUES_MAX`].
    values: Vec<Template>,
}

/// The source of a slot's value before an assignment.
pub enum ValueSource {
    /// Used; the definition may follow.
    Unknown,
    /// No source: only assignments (`set`) give it a value.
    Assigned,
    /// The family that its name belongs to.
    Family(Arc<Member>),
    /// A match: the variable is a named group.
    Group,
    /// The result of a computation ([`crate::variables::compute`]).
    Computed,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.name)).finish()
    }
}

impl Registry {
    /// Returns a registry without definitions, with these names of modules.
    pub fn with_modules(modules: Arc<VariableNames>) -> Registry {
        Registry { modules, ..Registry::default() }
    }

    /// Returns the names of the variables of all modules.
    pub fn modules(&self) -> &VariableNames {
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
    pub(crate) fn slot_of(&self, name: &str) -> Option<u32> {
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
        if matches!(slot_named.origin, ValueSource::Unknown) {
            let member = self.modules.member(&slot_named.name);
            slot_named.origin =
                member.map_or(ValueSource::Assigned, |member| ValueSource::Family(Arc::new(member)));
        }
        Ok(VarRef::Slot(slot))
    }

    /// Defines the slot of a named group. Unlike `set`, a match never changes a module's variable.
    pub fn define_group(&mut self, name: &str, statement: &Statement) -> Result<u32, Error> {
        self.claim(name, statement, ValueSource::Group)
    }

    /// Defines the slot of a variable whose computation is set by [`crate::variables::compute`].
    pub fn define_computed(&mut self, name: &str, statement: &Statement) -> Result<u32, Error> {
        self.claim(name, statement, ValueSource::Assigned)
    }

    /// Adds all values that the directive assigns which has just defined the variable. Without this call the values of the
    /// variable are unknown.
    pub fn add_values(&mut self, variable: &VarRef, values: impl IntoIterator<Item = Template>) {
        if let VarRef::Slot(slot) = variable {
            let slot = &mut self.slots[*slot as usize];
            // One value more shows that there are too many.
            let left = (VALUES_MAX + 1).saturating_sub(slot.values.len());
            slot.values.extend(values.into_iter().take(left));
            slot.valued += 1;
        }
    }

    /// Returns all values of a slot, if every directive that defines it has added its values. The value may also be empty.
    pub(crate) fn values(&self, slot: u32) -> Option<&[Template]> {
        let slot = &self.slots[slot as usize];
        let is_known = matches!(slot.origin, ValueSource::Assigned | ValueSource::Computed)
            && slot.definitions > 0
            && slot.definitions == slot.valued;
        is_known.then_some(&slot.values)
    }

    /// Marks the value of a slot as computed.
    pub(crate) fn mark_computed(&mut self, slot: u32) {
        assert!((slot as usize) < self.slots.len(), "the slot was given by this registry");
        self.slots[slot as usize].origin = ValueSource::Computed;
    }

    fn claim(&mut self, name: &str, statement: &Statement, origin: ValueSource) -> Result<u32, Error> {
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
        self.slots[slot as usize].definitions += 1;
        slot
    }

    fn add(&mut self, name: String, first_use: Option<Span>) -> u32 {
        let slot = self.slots.len() as u32;
        if let Some(member) = self.members.get(&name) {
            // The cell is empty, because a name gets a slot only once.
            let _ = member.slot.set(slot);
        }
        self.by_name.insert(name.clone(), slot);
        let origin = ValueSource::Unknown;
        self.slots.push(Slot { name, first_use, origin, definitions: 0, valued: 0, values: Vec::new() });
        slot
    }

    /// Fails if a used variable is undefined.
    pub fn finish(&self) -> Result<(), Error> {
        let missing = self.slots.iter().find_map(|slot| Some((slot.first_use.as_ref()?, &slot.name)));
        match missing {
            Some((span, name)) => {
                let error = Error::undefined(span, Object::Variable, name);
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
        if name.len() < 3 {
            return None;
        }
        let defined =
            self.slots.iter().filter(|slot| slot.first_use.is_none()).map(|slot| slot.name.as_str());
        let known = self.modules.single.iter().map(|variable| variable.name).chain(defined);
        conf::similar(name, known)
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
    pub fn origin(&self, slot: u32) -> &ValueSource {
        &self.slots[slot as usize].origin
    }
}
