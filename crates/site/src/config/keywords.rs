//! A set of keywords in the arguments of directives.

use conf::{Error, value};

use crate::config::Cx;

/// A set of keywords. Directives in the same block add up, and replace the inherited set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keywords {
    bits: u64,
    block: u32,
}

impl Keywords {
    /// Adds the keywords in the arguments of a statement.
    pub fn add(&mut self, names: &'static [(&'static str, u64)], cx: &mut Cx<'_>) -> Result<(), Error> {
        let before = if self.block == cx.block { self.bits } else { 0 };
        // nginx warns of a repeated keyword, also across statements of the block.
        let mut bits = before;
        for (index, text) in cx.statement.texts().enumerate() {
            let bit = cx.statement.value(index, value::choice(names))?;
            if bits & bit != 0 {
                cx.warn(format_args!("duplicate value \"{text}\""));
            }
            bits |= bit;
        }
        *self = Keywords { bits, block: cx.block };
        Ok(())
    }

    /// Whether the set contains one of these keywords.
    pub fn has(self, bits: u64) -> bool {
        self.bits & bits != 0
    }

    /// Returns all bits of the set.
    pub fn all(self) -> u64 {
        self.bits
    }
}
