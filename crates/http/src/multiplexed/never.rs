//! Names of never-indexed fields (RFC 7541 section 7.1.3, RFC 9204 section 7.1.3). Their sender protects the values from being guessed by the size of
//! compressed header blocks.

/// Names of the never-indexed fields of a header block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeverIndexed {
    names: Vec<Box<[u8]>>,
    /// Whether a name exceeded the limits. Then every field counts as never indexed.
    is_all: bool,
}

/// Maximum number of stored names, and maximum length of a name in bytes.
const NAMES_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 256;

impl NeverIndexed {
    /// Whether fields with this name must not be added to a dynamic table.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.is_all || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Adds a name.
    pub(crate) fn add(&mut self, name: &[u8]) {
        if self.has(name) {
            return;
        }
        match self.names.len() < NAMES_MAX && name.len() <= NAME_BYTES_MAX {
            true => self.names.push(name.into()),
            false => self.is_all = true,
        }
    }
}
