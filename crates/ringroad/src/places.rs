//! Default paths, and the configuration to load.
//!
//! [`Places`] are the paths that the command line decides, [`Request`] is all that the language needs to read a
//! configuration: the main file or a text in its stead, `-g`, the places.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What relative paths in a configuration start from without `-p`; ends with a slash. This and the other defaults can be
/// set when the program is compiled, as with nginx's configure script. Packages do that.
pub(crate) const DEFAULT_PREFIX: &str = or(option_env!("RINGROAD_PREFIX"), "/usr/local/ringroad/");

/// The configuration without `-c` and without `-p`: where distributions put nginx's.
pub(crate) const DEFAULT_CONF: &str = or(option_env!("RINGROAD_CONF_PATH"), "/etc/nginx/nginx.conf");

/// The configuration below the prefix with `-p` and without `-c`.
pub(crate) const PREFIX_CONF: &str = "conf/nginx.conf";

/// The directory below the prefix for the others; made if it is missing.
const LOG_FOLDER: &str = "logs";

/// The pid file without a `pid` directive, below the prefix unless it is absolute.
pub(crate) const DEFAULT_PID: &str = or(option_env!("RINGROAD_PID_PATH"), "logs/nginx.pid");

/// The error log without an `error_log` directive, below the prefix unless it is absolute.
pub(crate) const DEFAULT_ERROR_LOG: &str = or(option_env!("RINGROAD_ERROR_LOG_PATH"), "logs/error.log");

const fn or(given: Option<&'static str>, default: &'static str) -> &'static str {
    match given {
        Some(given) => given,
        None => default,
    }
}

/// Paths that the command line decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// What relative paths start from; ends with a slash.
    pub(crate) prefix: PathBuf,
    /// The pid file where the configuration names none; `None` is no pid file at all.
    pub(crate) pid: Option<PathBuf>,
    /// The error log where the configuration names none; `None` is standard error.
    pub(crate) error_log: Option<PathBuf>,
}

impl Places {
    /// Below a prefix, with the default names.
    pub(crate) fn below(prefix: &Path) -> Places {
        let (pid, error_log) = (Some(prefix.join(DEFAULT_PID)), Some(prefix.join(DEFAULT_ERROR_LOG)));
        Places { prefix: prefix.to_owned(), pid, error_log }
    }

    /// Makes the directory `logs` below the prefix if `path` is to lie in it: nginx's installation does that, this
    /// server has none. A prefix of the command line that is not there is a typing error, and is not made. A failure shows
    /// when the file is opened.
    pub(crate) fn prepare_folder_of(&self, path: &Path) {
        let folder = self.prefix.join(LOG_FOLDER);
        let has_prefix = self.prefix.is_dir() || self.prefix == Path::new(DEFAULT_PREFIX);
        if has_prefix && path.parent() == Some(&folder) && !folder.exists() {
            let _ = make_folder(&folder);
        }
    }
}

/// Makes a directory with those above it. Others may not write to it, whatever the umask: that of a daemon is 0.
pub(crate) fn make_folder(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// The same for a directory below which another user has one: each that is new may be passed through, whatever the umask.
pub(crate) fn make_passage(path: &Path) -> std::io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for path in missing.into_iter().rev() {
        make_folder(path)?;
        let mode = std::fs::metadata(path)?.permissions().mode() | 0o111;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// A configuration to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The main file.
    pub(crate) main: PathBuf,
    /// The text of `-g`.
    pub(crate) globals: String,
    /// Paths from the command line.
    pub(crate) places: Places,
    /// The text of the main file when it is no file, for `serve`.
    pub(crate) text: Option<String>,
}
