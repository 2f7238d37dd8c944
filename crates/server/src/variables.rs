//! Variables: values of a request by name, computed when they are asked for.
//!
//! Most belong to a module and are functions. Those that the configuration defines (`set`, later `map` and
//! its like) get a numbered slot in each request. Which is which is decided when the configuration is read.

use std::collections::HashMap;
use std::fmt;

use conf::{Error, Span, Statement};

use crate::modules::MODULES;
use crate::request::Request;

/// A module's variable.
pub struct Variable {
    /// The name without `$`.
    pub name: &'static str,
    /// Appends the value; `false` when there is none.
    pub get: fn(&Request, &mut Vec<u8>) -> bool,
    /// What `set` does to it, where that is allowed.
    pub set: Option<fn(&mut Request, &[u8])>,
    /// One sentence.
    pub help: &'static str,
}

/// A family of variables whose names share their beginning.
pub struct Prefixed {
    /// The beginning, such as `http_`.
    pub prefix: &'static str,
    /// Appends the value for the rest of the name; `false` when there is none.
    pub get: fn(&Request, &str, &mut Vec<u8>) -> bool,
    /// One sentence.
    pub help: &'static str,
}

/// A variable as a template holds it.
#[derive(Clone)]
pub(crate) enum VarRef {
    Module(&'static Variable),
    Prefixed(&'static Prefixed, Box<str>),
    /// Of the configuration.
    Slot(u16),
    /// `$1` to `$9`.
    Capture(u8),
}

impl VarRef {
    /// A module's variable, or one of a module's family; `None` when no module has it.
    pub(crate) fn built_in(name: &str) -> Option<VarRef> {
        if let Some(variable) = module_variable(name) {
            return Some(VarRef::Module(variable));
        }
        let families = MODULES.iter().flat_map(|module| module.prefixed);
        let fitting =
            families.filter(|family| name.len() > family.prefix.len() && name.starts_with(family.prefix));
        let family = fitting.max_by_key(|family| family.prefix.len())?;
        Some(VarRef::Prefixed(family, name[family.prefix.len()..].into()))
    }

    /// Appends the value; `false` when there is none.
    pub(crate) fn value(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        match self {
            VarRef::Module(variable) => (variable.get)(request, out),
            VarRef::Prefixed(family, rest) => (family.get)(request, rest, out),
            VarRef::Slot(slot) => request.slot(*slot, out),
            VarRef::Capture(number) => request.capture(*number, out),
        }
    }

    /// Gives it a value, as `set` and the named groups of a pattern do. Only what [`Registry::define`]
    /// answers can be given one; the others stay as they are.
    pub(crate) fn assign(&self, request: &mut Request, value: &[u8]) {
        match self {
            VarRef::Module(Variable { set: Some(set), .. }) => set(request, value),
            VarRef::Slot(slot) => request.set_slot(*slot, value.to_vec()),
            VarRef::Module(_) | VarRef::Prefixed(..) | VarRef::Capture(_) => {}
        }
    }
}

impl fmt::Debug for VarRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VarRef::Module(variable) => write!(f, "${}", variable.name),
            VarRef::Prefixed(family, rest) => write!(f, "${}{rest}", family.prefix),
            VarRef::Slot(slot) => write!(f, "$slot {slot}"),
            VarRef::Capture(number) => write!(f, "${number}"),
        }
    }
}

impl PartialEq for VarRef {
    fn eq(&self, other: &VarRef) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// The variables that a configuration defines.
#[derive(Default)]
pub struct Registry {
    slots: Vec<Slot>,
    by_name: HashMap<String, u16>,
}

struct Slot {
    name: String,
    /// Where it was first used, while nothing has defined it.
    wanted: Option<Span>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.name)).finish()
    }
}

impl Registry {
    /// The variable of this name; a definition may follow.
    pub(crate) fn reference(&mut self, name: &str, statement: &Statement) -> VarRef {
        if let [digit @ b'1'..=b'9'] = name.as_bytes() {
            return VarRef::Capture(digit - b'0');
        }
        // Names are compared without case, as in nginx.
        let name = name.to_ascii_lowercase();
        // What the configuration defines goes before a family: `set $http_x` is possible in nginx.
        if let Some(&slot) = self.by_name.get(&name) {
            return VarRef::Slot(slot);
        }
        let unknown = |registry: &mut Registry| registry.add(name.clone(), Some(statement.span().clone()));
        VarRef::built_in(&name).unwrap_or_else(|| VarRef::Slot(unknown(self)))
    }

    /// A variable that statements like `set` assign to.
    pub(crate) fn define(&mut self, name: &str, statement: &Statement) -> Result<VarRef, Error> {
        let name = name.to_ascii_lowercase();
        if let Some(variable) = module_variable(&name) {
            let refused = || Error::at(statement, format_args!("the duplicate \"{name}\" variable"));
            return variable.set.map(|_| VarRef::Module(variable)).ok_or_else(refused);
        }
        let slot = match self.by_name.get(&name) {
            Some(&slot) => slot,
            None => self.add(name, None),
        };
        self.slots[slot as usize].wanted = None;
        Ok(VarRef::Slot(slot))
    }

    fn add(&mut self, name: String, wanted: Option<Span>) -> u16 {
        let slot = self.slots.len() as u16;
        self.by_name.insert(name.clone(), slot);
        self.slots.push(Slot { name, wanted });
        slot
    }

    /// Fails when something is used that nothing defines.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        let missing = self.slots.iter().find_map(|slot| Some((slot.wanted.as_ref()?, &slot.name)));
        match missing {
            Some((span, name)) => Err(Error::at(span, format_args!("unknown \"{name}\" variable"))),
            None => Ok(()),
        }
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

fn module_variable(name: &str) -> Option<&'static Variable> {
    MODULES.iter().flat_map(|module| module.variables).find(|variable| variable.name == name)
}
