//! Default paths, and the configuration to load.
//!
//! [`Paths`] has the paths that the command line determines. [`Request`] has all inputs of a configuration: the main
//! file or a text instead of it, `-g`, and the paths.

use std::ffi::OsStr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Default prefix, to which paths in a configuration are relative without `-p`; ends with a slash. This and the other
/// defaults can be set at compile time, as by nginx's configure script. Packages do so.
pub(crate) const DEFAULT_PREFIX: &str = or(option_env!("RINGROAD_PREFIX"), "/usr/local/ringroad/");

/// The configuration of nginx in distributions.
const NGINX_CONF: &str = "/etc/nginx/nginx.conf";

/// The default configuration file without `-c` and `-p`, unless the program is named `nginx`.
pub(crate) const DEFAULT_CONF: &str = or(option_env!("RINGROAD_CONF_PATH"), NGINX_CONF);

/// Returns the default configuration file without `-c` and `-p`. A program named `nginx` loads nginx's file, whatever the default
/// of the package is, so that it can replace nginx.
pub(crate) fn default_conf() -> &'static str {
    if is_in_place_of_nginx() { NGINX_CONF } else { DEFAULT_CONF }
}

/// Whether this process was started as a file with the name `nginx`.
pub(crate) fn is_in_place_of_nginx() -> bool {
    is_named_nginx(std::env::args_os().next().as_deref())
}

fn is_named_nginx(program: Option<&OsStr>) -> bool {
    program.and_then(|path| Path::new(path).file_name()) == Some(OsStr::new("nginx"))
}

/// The default configuration file with `-p`, relative to the prefix.
pub(crate) const PREFIX_CONF: &str = "conf/nginx.conf";

/// Directory of the log and pid files, relative to the prefix; created if missing.
const LOG_DIRECTORY: &str = "logs";

/// The pid file without a `pid` directive; relative to the prefix unless absolute.
pub(crate) const DEFAULT_PID: &str = or(option_env!("RINGROAD_PID_PATH"), "logs/nginx.pid");

/// The error log without an `error_log` directive; relative to the prefix unless absolute.
pub(crate) const DEFAULT_ERROR_LOG: &str = or(option_env!("RINGROAD_ERROR_LOG_PATH"), "logs/error.log");

const fn or(given: Option<&'static str>, default: &'static str) -> &'static str {
    match given {
        Some(given) => given,
        None => default,
    }
}

/// Paths that the command line determines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Base of relative paths; ends with a slash.
    pub(crate) prefix: PathBuf,
    /// The pid file if the configuration does not name one; `None` disables the pid file.
    pub(crate) pid: Option<PathBuf>,
    /// The error log if the configuration does not name one; `None` is standard error.
    pub(crate) error_log: Option<PathBuf>,
}

impl Paths {
    /// Returns the default paths relative to a prefix.
    pub(crate) fn below(prefix: &Path) -> Paths {
        let (pid, error_log) = (Some(prefix.join(DEFAULT_PID)), Some(prefix.join(DEFAULT_ERROR_LOG)));
        Paths { prefix: prefix.to_owned(), pid, error_log }
    }

    /// Creates the directory `logs` below the prefix if `path` is in it. With nginx, the installation creates this
    /// directory. A nonexistent prefix from the command line is probably a typing error and is not created.
    /// A failure is reported when the file is opened.
    pub(crate) fn create_log_directory(&self, path: &Path) {
        if self.creates_log_directory(path) {
            let _ = create_directory(&self.prefix.join(LOG_DIRECTORY));
        }
    }

    /// Whether [`Paths::create_log_directory`] creates the directory of this path.
    pub(crate) fn creates_log_directory(&self, path: &Path) -> bool {
        let directory = self.prefix.join(LOG_DIRECTORY);
        let has_prefix = self.prefix.is_dir() || self.prefix == Path::new(DEFAULT_PREFIX);
        has_prefix && path.parent() == Some(&directory) && !directory.exists()
    }
}

/// Creates a directory and its parents. Only the owner can write to them, even with the umask 0 of a daemon.
pub(crate) fn create_directory(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Creates a directory that will contain a directory of another user. The new directories are searchable for other
/// users, even with a restrictive umask.
pub(crate) fn make_passage(path: &Path) -> std::io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for path in missing.into_iter().rev() {
        create_directory(path)?;
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
    pub(crate) places: Paths,
    /// The text that replaces the main file, for `ringroad serve`.
    pub(crate) text: Option<String>,
}

/// File name of the text of `ringroad serve`.
pub(crate) const SERVE_TEXT: &str = "ringroad-serve";

/// File name of the text of `ringroad proxy`.
pub(crate) const PROXY_TEXT: &str = "ringroad-proxy";

impl Request {
    /// Returns the argument of the command line that the text in memory was made of, for messages instead of positions in it.
    pub(crate) fn origin(&self) -> Option<&'static str> {
        self.text.as_ref()?;
        let is_proxy = self.main.file_name() == Some(OsStr::new(PROXY_TEXT));
        Some(if is_proxy { "--to" } else { "command line" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_the_place_of_nginx_is_recognised() {
        for (program, expected) in [
            (Some("/usr/sbin/nginx"), true),
            (Some("nginx"), true),
            (Some("/usr/sbin/ringroad"), false),
            (Some("/opt/nginx/ringroad"), false),
            (None, false),
        ] {
            assert_eq!(is_named_nginx(program.map(OsStr::new)), expected, "{program:?}");
        }
    }
}
