//! The configuration and the prefix that the options of a command select.

use std::ffi::OsStr;
use std::path::Path;

use super::failure::CommandFailure;
use super::options::Arguments;
use crate::paths::{DEFAULT_PREFIX, PREFIX_CONF, Paths, Request, default_conf};

/// Returns the configuration that `-p` and `-c` select, or the default one.
pub(super) fn request_for(prefix: Option<&Path>, conf: Option<&Path>) -> Request {
    let default_conf = match prefix {
        Some(_) => PREFIX_CONF,
        None => default_conf(),
    };
    let prefix = prefix.unwrap_or(Path::new(DEFAULT_PREFIX));
    // A relative prefix is made absolute once: several places join names to it, and the working directory may change.
    // This fails only without a working directory; then the prefix stays relative.
    let prefix = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
    // As in nginx a relative name starts from the prefix instead of the working directory.
    let main = prefix.join(conf.unwrap_or(Path::new(default_conf)));
    Request { main, globals: String::new(), places: Paths::below(&prefix), text: None }
}

/// Returns the file that a command reads: its operand, or the value of `-c`. Both have the same meaning, so only one of them may be given.
pub(super) fn file_of(given: &Arguments) -> Result<Option<&OsStr>, CommandFailure> {
    match (given.operands.first(), given.value("c")) {
        (Some(_), Some(_)) => {
            Err(CommandFailure::misuse("FILE and -c FILE name the same: write one of them"))
        }
        (operand, option) => Ok(operand.map(AsRef::as_ref).or(option)),
    }
}

/// Returns the configuration and the prefix that a server with these options would use, for commands that explain or check a file.
/// With one exception: without a prefix, that of a file other than the default one is its directory, so that a configuration can be
/// checked anywhere.
pub(super) fn request_of(file: Option<&OsStr>, prefix: Option<&OsStr>) -> Result<Request, String> {
    let prefix = prefix.map(Path::new);
    let Some(file) = file.map(Path::new) else { return Ok(request_for(prefix, None)) };
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let main = absolute(file)?;
    let prefix = match prefix {
        Some(prefix) => absolute(prefix)?,
        None if main == Path::new(default_conf()) => DEFAULT_PREFIX.into(),
        None => main.parent().unwrap_or(&main).to_owned(),
    };
    Ok(Request { main, globals: String::new(), places: Paths::below(&prefix), text: None })
}
