//! `types`: media types by file extension.

use std::sync::Arc;

use conf::{Error, Level, Statement};
use http::media_type;

/// Media types by file extension, which is case-insensitive.
#[derive(Clone, Debug)]
pub struct Types {
    /// Sorted by extension, in lower case.
    rows: Vec<(Box<[u8]>, Arc<str>)>,
    /// The block of these `types`; 0 if there is none.
    block: u32,
}

impl Default for Types {
    /// Returns the default of `types`.
    fn default() -> Types {
        let rows = media_type::DEFAULT_TYPES.iter();
        let mut rows: Vec<(Box<[u8]>, Arc<str>)> =
            rows.map(|(extension, name)| (extension.as_bytes().into(), (*name).into())).collect();
        rows.sort();
        Types { rows, block: 0 }
    }
}

impl Types {
    /// Returns the type of a path by its extension.
    pub fn find(&self, path: &[u8]) -> Option<&str> {
        let extension = media_type::extension_of(path)?;
        media_type::lookup(&self.rows, extension).map(|name| &**name)
    }

    /// Parses `types { … }`: replaces the inherited types; a second `types` in the same block adds to them.
    pub fn read(
        types: &mut Arc<Types>,
        block: u32,
        statement: &Statement,
        warnings: &mut Vec<Error>,
    ) -> Result<(), Error> {
        let types = Arc::make_mut(types);
        if types.block != block {
            *types = Types { rows: Vec::new(), block };
        }
        for row in statement.rows() {
            let row = row?;
            let name: Arc<str> = row.name.text.as_str().into();
            for extension in row.texts() {
                let extension: Box<[u8]> = extension.to_ascii_lowercase().into_bytes().into();
                match types.rows.binary_search_by(|(known, _)| known.cmp(&extension)) {
                    Err(index) => types.rows.insert(index, (extension, Arc::clone(&name))),
                    Ok(index) => {
                        let before = std::mem::replace(&mut types.rows[index].1, Arc::clone(&name));
                        let extension = String::from_utf8_lossy(&extension);
                        let message = format_args!(
                            "duplicate extension \"{extension}\", content type: \"{name}\", \
                             previous content type: \"{before}\""
                        );
                        warnings.push(Error::at(row, message).with_level(Level::Warn));
                    }
                }
            }
        }
        Ok(())
    }
}
