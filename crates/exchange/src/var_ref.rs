//! A variable as templates hold it: which one it is, and nothing of how its value is made.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A variable as a template holds it.
#[derive(Clone, PartialEq)]
pub enum VarRef {
    /// One of a module.
    Module(ModuleVar),
    /// One of a family, such as `http_name`.
    Member(Arc<Member>),
    /// Of the configuration.
    Slot(u32),
    /// `$1` to `$9`.
    Capture(u8),
}

/// One variable of a module, by its place in [`crate::variables::ModuleVariables`].
#[derive(Clone, Copy, PartialEq)]
pub struct ModuleVar {
    pub(crate) place: u32,
    pub(crate) name: &'static str,
}

/// One variable of a family.
pub struct Member {
    /// The place of the family in [`crate::variables::ModuleVariables`].
    pub(crate) family: u32,
    /// The name that the members of the family begin with.
    pub(crate) prefix: &'static str,
    /// The name without that.
    pub(crate) rest: Box<str>,
    /// The slot that goes before the family, when a directive further on in the configuration assigns to this
    /// name: `set $http_x` is possible in nginx, also behind a log format that has `$http_x`.
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
            VarRef::Module(variable) => write!(f, "${}", variable.name),
            VarRef::Member(member) => write!(f, "${}{}", member.prefix, member.rest),
            VarRef::Slot(slot) => write!(f, "$slot {slot}"),
            VarRef::Capture(number) => write!(f, "${number}"),
        }
    }
}
