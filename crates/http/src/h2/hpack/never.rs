//! Fields that no table may have (RFC 7541 section 7.1.3): their sender fears that others could guess them by the length of blocks.

/// Names of such fields in a header block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeverIndexed {
    names: Vec<Box<[u8]>>,
    /// Whether there are more than are kept, so that every field counts as one.
    is_all: bool,
}

/// Names that are kept, and the longest of them.
const NAMES_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 256;

impl NeverIndexed {
    /// Whether a field of this name may not get into a table.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.is_all || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Adds a name.
    pub(super) fn add(&mut self, name: &[u8]) {
        if self.has(name) {
            return;
        }
        match self.names.len() < NAMES_MAX && name.len() <= NAME_BYTES_MAX {
            true => self.names.push(name.into()),
            false => self.is_all = true,
        }
    }
}
