//! A set of words that directives name.

use conf::{Error, value};

use crate::config::Cx;

/// A set of names: several directives in a block add up, and replace the inherited ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    bits: u64,
    block: u32,
}

impl Words {
    /// Reads the arguments of a statement.
    pub fn add(&mut self, names: &'static [(&'static str, u64)], cx: &mut Cx<'_>) -> Result<(), Error> {
        let before = if self.block == cx.block { self.bits } else { 0 };
        // nginx warns of a name that stands twice, whichever statement it is in.
        let mut bits = before;
        for (index, text) in cx.statement.texts().enumerate() {
            let bit = cx.statement.value(index, value::choice(names))?;
            if bits & bit != 0 {
                cx.warn(format_args!("duplicate value \"{text}\""));
            }
            bits |= bit;
        }
        *self = Words { bits, block: cx.block };
        Ok(())
    }

    /// Whether one of these is in the set.
    pub fn has(self, bits: u64) -> bool {
        self.bits & bits != 0
    }

    /// All that are in it.
    pub fn all(self) -> u64 {
        self.bits
    }
}
