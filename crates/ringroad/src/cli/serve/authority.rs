//! The local certificate authority of `ringroad serve --tls`, in the user's directory.
//!
//! ```text
//! $XDG_DATA_HOME/ringroad/local-authority/    0700, or below ~/.local/share
//!     root.pem        the root certificate, which clients are to trust
//!     root-key.pem    0600, its key
//!     server.pem      0600, the certificate of servers on this machine, with its key
//! ```
//! The directory is created atomically: under a temporary name, which is changed after everything is synced to the
//! disk. If two first starts race, the root of the first one is used. `server.pem` is replaced by a rename when half of
//! its validity has passed or it lacks a name, at the start and while the server runs. `root.pem` is replaced two years
//! before its expiry, by a certificate of the same key.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tls::issue::{AuthorityError, LEAF_TIME, LocalAuthority};

use crate::listen::error_text;
use crate::master::Renewal;

/// Path of the directory, relative to the user's data directory.
const DIRECTORY: &str = "ringroad/local-authority";

const ROOT: &str = "root.pem";
const ROOT_KEY: &str = "root-key.pem";
const SERVER: &str = "server.pem";

/// Environment variable for the validity of server certificates in seconds, instead of the default: for tests of
/// clients.
const TIME: &str = "RINGROAD_LOCAL_CERTIFICATE_SECONDS";

/// Mode bits for users other than the owner.
const OTHERS: u32 = 0o077;

/// Paths of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificates {
    /// The root certificate.
    pub(super) root: PathBuf,
    /// The server's certificate with its key.
    pub(super) server: PathBuf,
}

/// Why no certificate is available.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Neither `XDG_DATA_HOME` nor `HOME` names a directory.
    NoDataDirectory,
    /// A file or directory cannot be read or written.
    Io { path: PathBuf, error: std::io::Error },
    /// Other users could read the key, or the file belongs to another user.
    Exposed { path: PathBuf, mode: u32 },
    /// The files were not written by this program, or are damaged.
    Authority { directory: PathBuf, error: AuthorityError },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::NoDataDirectory => f.write_str(
                "--tls needs a directory for its certificate authority: set HOME or XDG_DATA_HOME",
            ),
            Unusable::Io { path, error } => {
                let (path, reason) = (path.display(), error_text(error));
                write!(f, "the local certificate authority cannot read or write \"{path}\": {reason}")
            }
            Unusable::Exposed { path, mode } => {
                let (path, wanted) = (path.display(), mode & !OTHERS);
                write!(
                    f,
                    "other users can access the local certificate authority: \"{path}\" must belong to this user, with \
                     mode {wanted:04o} (it has {mode:04o})"
                )
            }
            Unusable::Authority { directory, error } => {
                let directory = directory.display();
                write!(
                    f,
                    "the local certificate authority in \"{directory}\" cannot be used: {error}; remove the \
                     directory; the next start creates a new authority, which clients have to trust again"
                )
            }
        }
    }
}

/// Returns the directory of the user's authority.
pub(super) fn directory() -> Result<PathBuf, Unusable> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = named("XDG_DATA_HOME").or_else(|| Some(named("HOME")?.join(".local/share")));
    Ok(data.ok_or(Unusable::NoDataDirectory)?.join(DIRECTORY))
}

/// Returns the path of the root certificate of this user's authority.
pub(in crate::cli) fn root_path() -> Option<PathBuf> {
    Some(directory().ok()?.join(ROOT))
}

/// Returns the path of the root certificate of the authority in a home directory.
pub(in crate::cli) fn root_path_in(home: &Path) -> PathBuf {
    home.join(".local/share").join(DIRECTORY).join(ROOT)
}

/// Creates the missing directories and certificates; returns the paths of the certificates.
pub(super) fn prepare(directory: &Path, listen: SocketAddr) -> Result<Certificates, Unusable> {
    if std::fs::symlink_metadata(directory).is_err() {
        create(directory, SystemTime::now())?;
    }
    renew(directory, listen)?;
    Ok(Certificates { root: directory.join(ROOT), server: directory.join(SERVER) })
}

/// Replaces the certificates that expire soon.
pub(super) fn renew(directory: &Path, listen: SocketAddr) -> Result<Renewal, Unusable> {
    let (now, time) = (SystemTime::now(), leaf_time());
    let unusable = |error| Unusable::Authority { directory: directory.to_owned(), error };
    let (root, key, server) = (directory.join(ROOT), directory.join(ROOT_KEY), directory.join(SERVER));
    check_owner(directory)?;
    check_owner(&key)?;
    let mut authority = LocalAuthority::open(&read(&root)?, &read(&key)?).map_err(unusable)?;
    let mut warnings = Vec::new();
    if let Some((text, left)) = authority.renew(now).map_err(unusable)? {
        replace(directory, ROOT, &text)?;
        let (path, days) = (root.display(), left.as_secs() / DAY_S);
        warnings.push(format!(
            "the root certificate of the local authority was renewed: clients have to trust \"{path}\" within {days} days"
        ));
    }
    let names = names(listen);
    // A damaged file is not a current certificate either.
    let usable = |text: &[u8]| authority.usable_time(text, &names, now, time);
    if let Some(left) = std::fs::read(&server).ok().and_then(|text| usable(&text)) {
        return Ok(Renewal { is_new: false, warnings, next: left });
    }
    let text = authority.issue(&names, now, time).map_err(unusable)?;
    replace(directory, SERVER, &text)?;
    Ok(Renewal { is_new: true, warnings, next: time / 2 })
}

/// Seconds of a day, for messages.
const DAY_S: u64 = 24 * 60 * 60;

/// Returns the validity of server certificates.
fn leaf_time() -> Duration {
    let given = std::env::var(TIME).ok().and_then(|text| text.parse().ok());
    given.filter(|&seconds| seconds > 0).map_or(LEAF_TIME, Duration::from_secs).min(LEAF_TIME)
}

/// Replaces a file atomically: readers see the old or the new content.
fn replace(directory: &Path, name: &str, text: &str) -> Result<(), Unusable> {
    let (fresh, path) = (directory.join(format!("{name}.{}", std::process::id())), directory.join(name));
    write(&fresh, text.as_bytes())?;
    std::fs::rename(&fresh, &path).map_err(|error| Unusable::Io { path, error })?;
    sync(directory)
}

/// Creates the directory with a new root.
fn create(directory: &Path, now: SystemTime) -> Result<(), Unusable> {
    let parent = directory.parent().unwrap_or(directory);
    make_directory(parent, true)?;
    let fresh = directory.with_extension(format!("new.{}", std::process::id()));
    // An interrupted process with the same id may have left this directory.
    let _ = std::fs::remove_dir_all(&fresh);
    make_directory(&fresh, false)?;
    let made = LocalAuthority::create(now);
    let (root, key) = made.map_err(|error| Unusable::Authority { directory: directory.to_owned(), error })?;
    write(&fresh.join(ROOT_KEY), key.as_bytes())?;
    write(&fresh.join(ROOT), root.as_bytes())?;
    sync(&fresh)?;
    match std::fs::rename(&fresh, directory) {
        Ok(()) => sync(parent),
        // Another start has created the directory first.
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
            let _ = std::fs::remove_dir_all(&fresh);
            Ok(())
        }
        Err(error) => Err(Unusable::Io { path: directory.to_owned(), error }),
    }
}

fn make_directory(path: &Path, recursive: bool) -> Result<(), Unusable> {
    let made = std::fs::DirBuilder::new().recursive(recursive).mode(0o700).create(path);
    made.map_err(|error| Unusable::Io { path: path.to_owned(), error })
}

fn read(path: &Path) -> Result<Vec<u8>, Unusable> {
    std::fs::read(path).map_err(|error| Unusable::Io { path: path.to_owned(), error })
}

/// Writes a new file that only its owner may read, and syncs it to the disk.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Unusable> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| Unusable::Io { path: path.to_owned(), error })
}

/// Syncs a directory, so that its file names are on the disk.
fn sync(directory: &Path) -> Result<(), Unusable> {
    let synced = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Unusable::Io { path: directory.to_owned(), error })
}

/// Rejects files that other users can change or read: with the key they could impersonate any host to clients that
/// trust the root.
fn check_owner(path: &Path) -> Result<(), Unusable> {
    let found = std::fs::metadata(path).map_err(|error| Unusable::Io { path: path.to_owned(), error })?;
    let mode = found.mode() & 0o7777;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if is_own && mode & OTHERS == 0 {
        return Ok(());
    }
    Err(Unusable::Exposed { path: path.to_owned(), mode })
}

/// Returns the names and addresses by which clients reach the server.
fn names(listen: SocketAddr) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let own = [host].into_iter().filter(|host| !host.is_empty() && host.bytes().all(is_name));
    let address =
        Some(listen.ip()).filter(|address| !address.is_unspecified()).as_ref().map(IpAddr::to_string);
    for name in own.chain(address) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the command line by which a user with sudo(8) makes the system trust the root. It has the path of this program, which is
/// not always in the path of root.
pub(in crate::cli) fn trust_command(option: &str, root: &Path) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "ringroad".into());
    format!("sudo {} trust {option}'{}'", program.display(), root.display())
}

/// Returns instructions to make clients trust the root.
pub(super) fn advice(root: &Path) -> String {
    let command = trust_command("", root);
    let root = root.display();
    format!(
        "Clients have to trust the root certificate of this user's local authority:
  {root}
  curl             curl --cacert '{root}' URL
  this system      {command}
  Chromium         certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n ringroad -i '{root}'
  Firefox          Settings > Privacy & Security > View Certificates > Authorities > Import
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen() -> SocketAddr {
        "127.0.0.1:8443".parse().expect("an address")
    }

    #[test]
    fn certificate_names_include_the_listen_address() {
        let address = |text: &str| names(text.parse().expect("an address"));
        assert!(address("192.0.2.7:1").contains(&"192.0.2.7".to_owned()));
        assert!(!address("0.0.0.0:1").contains(&"0.0.0.0".to_owned()));
        let all = address("127.0.0.1:1");
        assert_eq!(all.iter().filter(|name| *name == "127.0.0.1").count(), 1, "{all:?}");
    }

    /// A root is replaced long before its expiry, and its user is warned.
    #[test]
    fn a_root_near_expiration_is_replaced_with_a_warning() {
        let data = std::env::temp_dir().join(format!("ringroad-old-authority-{}", std::process::id()));
        let directory = data.join(DIRECTORY);
        let nine_years = Duration::from_secs(9 * 365 * DAY_S);
        create(&directory, SystemTime::now() - nine_years).expect("an authority");
        let old = std::fs::read(directory.join(ROOT)).expect("a root");
        let renewal = renew(&directory, listen()).expect("certificates");
        let path = directory.join(ROOT).display().to_string();
        assert!(renewal.is_new, "there was no certificate of servers");
        assert!(renewal.warnings.iter().any(|warning| warning.contains(&path)), "{:?}", renewal.warnings);
        assert_ne!(std::fs::read(directory.join(ROOT)).expect("a root"), old);
        let renewal = renew(&directory, listen()).expect("certificates");
        assert!(!renewal.is_new && renewal.warnings.is_empty(), "{:?}", renewal.warnings);
        assert!(renewal.next > Duration::from_secs(190 * DAY_S), "{:?}", renewal.next);
        std::fs::remove_dir_all(&data).expect("it is ours");
    }

    /// A start that was interrupted before the rename leaves nothing that the next start uses.
    #[test]
    fn an_incomplete_authority_directory_is_not_used() {
        let data = std::env::temp_dir().join(format!("ringroad-authority-{}", std::process::id()));
        let directory = data.join(DIRECTORY);
        let left = directory.with_extension(format!("new.{}", std::process::id()));
        std::fs::create_dir_all(&left).expect("it can be made");
        std::fs::write(left.join(ROOT_KEY), "half").expect("it can be written");
        let first = prepare(&directory, listen()).expect("certificates");
        assert!(!left.exists(), "what was left is gone");
        let root = std::fs::read(&first.root).expect("a root");
        // A concurrent second start uses the directory of the first one.
        create(&directory, SystemTime::now()).expect("no error");
        assert_eq!(std::fs::read(&first.root).expect("a root"), root);
        std::fs::remove_dir_all(&data).expect("it is ours");
    }
}
