//! A reference to a variable, without the computation of its value.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A reference to a variable in a template.
#[derive(Clone, PartialEq)]
pub enum VarRef {
    /// A variable of a module.
    Module(ModuleVar),
    /// A variable of a module that the configuration may redefine.
    Replaceable(ModuleVar),
    /// A member of a family, such as `http_name`.
    Member(Arc<Member>),
    /// A variable of the configuration.
    Slot(u32),
    /// `$1` to `$9`.
    Capture(u8),
}

impl VarRef {
    /// Returns the name of a variable of a module.
    pub fn module_name(&self) -> Option<&'static str> {
        match self {
            VarRef::Module(variable) | VarRef::Replaceable(variable) => Some(variable.name),
            VarRef::Member(_) | VarRef::Slot(_) | VarRef::Capture(_) => None,
        }
    }
}

/// A variable of a module, by its index in [`crate::registry::VariableNames`].
#[derive(Clone, Copy, PartialEq)]
pub struct ModuleVar {
    pub(crate) index: u32,
    pub(crate) name: &'static str,
}

/// One variable of a family.
pub struct Member {
    /// The index of the family in [`crate::registry::VariableNames`].
    pub(crate) family: u32,
    /// The common prefix of the family.
    pub(crate) prefix: &'static str,
    /// The name without the prefix.
    pub(crate) rest: Box<str>,
    /// The slot that takes precedence over the family, if a later directive assigns to this name. In nginx `set
    /// $http_x` is possible, also after a log format that uses `$http_x`.
    pub(crate) slot: OnceLock<u32>,
}

impl PartialEq for Member {
    fn eq(&self, other: &Member) -> bool {
        self.prefix == other.prefix && self.rest == other.rest
    }
}

impl fmt::Debug for VarRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VarRef::Module(variable) | VarRef::Replaceable(variable) => write!(f, "${}", variable.name),
            VarRef::Member(member) => write!(f, "${}{}", member.prefix, member.rest),
            VarRef::Slot(slot) => write!(f, "$slot {slot}"),
            VarRef::Capture(number) => write!(f, "${number}"),
        }
    }
}
