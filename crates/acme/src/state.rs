//! The files in the directory `state_path`, which only one process uses at a time.
//!
//! ```text
//! account.key           the private key of the account, in PEM
//! account.url           three lines: the URL of the CA's directory, the URL of the account, the thumbprint of its key
//! certificates/DIGEST   the URL of the CA's directory, and a certificate chain with its private key, in PEM; named by the digest of
//!                       the order
//! lock                  locked while a process uses the directory
//! ```
//! A file is written under another name, synced, and renamed: after a crash it is either complete or absent. A certificate and
//! its private key are in one file, so that they always match. All files have mode 0600.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

const ACCOUNT_KEY: &str = "account.key";
const ACCOUNT_URL: &str = "account.url";
const CERTIFICATES: &str = "certificates";
const LOCK: &str = "lock";

/// Start of the first line of a file with a chain. The URL of the CA's directory follows.
const ISSUED_BY: &[u8] = b"Issued by ";

/// Maximum size in bytes of a file with a chain and its key.
const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;

/// An open state directory.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    /// The lock file. The kernel releases the lock when the process ends, even if it crashes.
    _lock: File,
}

impl StateDirectory {
    /// Creates the directory if it does not exist, and locks it. The error has the kind `WouldBlock` if another process has
    /// locked it.
    pub fn open(path: &Path) -> io::Result<StateDirectory> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(path.join(CERTIFICATES))?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(StateDirectory { path: path.to_owned(), _lock: lock })
    }

    /// Reads the private key of the account.
    pub fn account_key(&self) -> Option<Vec<u8>> {
        std::fs::read(self.path.join(ACCOUNT_KEY)).ok()
    }

    /// Stores the private key of the account.
    pub fn set_account_key(&self, pem: &str) -> io::Result<()> {
        write(&self.path, ACCOUNT_KEY, pem.as_bytes())
    }

    /// Reads the URL of the account of a key at a CA. A file of version 0.1, which has no thumbprint of the key, is ignored: the
    /// CA returns the URL again.
    pub fn account_url(&self, directory: &str, thumbprint: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path.join(ACCOUNT_URL)).ok()?;
        let mut lines = text.lines();
        let (found, account, key) = (lines.next()?, lines.next()?, lines.next()?);
        (found == directory && key == thumbprint).then(|| account.to_owned())
    }

    /// Stores the URL of the account of a key at a CA.
    pub fn set_account_url(&self, directory: &str, account: &str, thumbprint: &str) -> io::Result<()> {
        write(&self.path, ACCOUNT_URL, format!("{directory}\n{account}\n{thumbprint}\n").as_bytes())
    }

    /// Stores a chain with its private key.
    pub fn set_certificate(&self, digest: &str, pem: &[u8]) -> io::Result<()> {
        write(&self.path.join(CERTIFICATES), digest, pem)
    }
}

/// Reads a chain with its private key from a state directory. No lock is necessary, because the file is always complete. The
/// reader may have more permissions than the owner of the directory, so symbolic links are not followed.
pub fn certificate(path: &Path, digest: &str) -> Option<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().try_into().ok()?);
    let file = options.open(path.join(CERTIFICATES).join(digest)).ok()?;
    let facts = file.metadata().ok()?;
    if !facts.is_file() || facts.nlink() != 1 {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(CERTIFICATE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Adds a first line that names the CA to a chain with its private key. Text before the first certificate has no effect in PEM
/// (RFC 7468 section 5.2).
pub fn with_issuer(pem: &[u8], directory: &str) -> Vec<u8> {
    [ISSUED_BY, directory.as_bytes(), b"\n", pem].concat()
}

/// Whether a CA issued a chain. A chain without the name of its CA, which version 0.1 stored, matches every CA.
pub fn is_issued_by(pem: &[u8], directory: &str) -> bool {
    let named = pem.strip_prefix(ISSUED_BY).and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    named.is_none_or(|named| named == directory.as_bytes())
}

/// Replaces a file, and syncs the file and its directory. The lock prevents concurrent writers. A crash may leave a file with the
/// suffix `.new`, which the next write overwrites.
fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = directory.join(format!("{name}.new"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_state_directory_is_used_by_one_process_at_a_time() {
        let path = std::env::temp_dir().join(format!("acme-state-{}", std::process::id()));
        let state = StateDirectory::open(&path).expect("it can be made");
        assert_eq!(state.account_key(), None);
        state.set_account_key("key").expect("it is written");
        state.set_account_url("https://a/", "https://a/1", "key").expect("it is written");
        state.set_certificate("d", b"one").expect("it is written");
        state.set_certificate("d", b"two").expect("it is replaced");
        assert_eq!(
            StateDirectory::open(&path).map_err(|error| error.kind()).err(),
            Some(io::ErrorKind::WouldBlock)
        );
        drop(state);
        let state = StateDirectory::open(&path).expect("it is free");
        assert_eq!(state.account_key().as_deref(), Some(&b"key"[..]));
        assert_eq!(state.account_url("https://a/", "key").as_deref(), Some("https://a/1"));
        assert_eq!(state.account_url("https://b/", "key"), None, "it is an account of another authority");
        assert_eq!(state.account_url("https://a/", "other"), None, "it is the account of another key");
        assert_eq!(certificate(&path, "d").as_deref(), Some(&b"two"[..]));
        std::os::unix::fs::symlink("d", path.join("certificates/link")).expect("it is made");
        assert_eq!(certificate(&path, "link"), None, "it could be a link to anything");
        let mode = |name: &str| {
            std::fs::metadata(path.join(name)).expect("it is there").permissions().mode() & 0o777
        };
        assert_eq!((mode(ACCOUNT_KEY), mode("certificates/d"), mode("")), (0o600, 0o600, 0o700));
        std::fs::remove_dir_all(&path).expect("it is ours");
    }
}
