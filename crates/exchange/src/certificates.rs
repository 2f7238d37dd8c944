//! Certificates with variables in their names (`ssl_certificate $ssl_server_name.pem`). The worker loads them during a
//! handshake, with its own permissions, on a thread that may block on the disk.
//!
//! Main type: [`NamedCertificates`], the certificates of a server block. `ssl_certificate_cache` caches pairs of
//! certificate and key. A cached pair that is older than `valid` is checked, and loaded again if a file has changed.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::tls::Identity;
use ::tls::certificate::FileError;
use rt::HelperPool;
use rustix::fs::OFlags;

use site::enforced::{Enforced, PathRefusal};
use site::needs::Access;
use site::template::Template;
use site::variables::HasVariables;
use telemetry::Reason;

/// Maximum size of a certificate or key file in bytes. Chains have a few KiB, and the client's server name may choose
/// the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of threads that read the files. Each read is brief.
const FILE_THREADS_MAX: usize = 2;

/// The threads that read the files. If the disk of the content or of a cache does not
/// respond, this delays no handshake.
static FILES: LazyLock<HelperPool> = LazyLock::new(|| HelperPool::new("certificates", FILE_THREADS_MAX));

/// Number of searches for unused pairs within the time `inactive`.
const SWEEPS: u32 = 4;

/// Prefix of a value that is PEM text instead of a file name.
const DATA: &str = "data:";

/// `ssl_certificate_cache`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of cached pairs.
    pub max: usize,
    /// Time without use after which a pair is evicted, at the next handshake.
    pub inactive: Duration,
    /// Time during which a cached pair is used without a check of its files.
    pub valid: Duration,
}

/// Certificates of a server block with variables in their names.
#[derive(Debug)]
pub struct NamedCertificates {
    /// Templates of certificate and key.
    pub pairs: Vec<(Template, Template)>,
    /// Passwords of encrypted keys.
    pub passwords: Arc<Vec<Vec<u8>>>,
    /// The base directory of relative names.
    pub prefix: PathBuf,
    /// The cache, if configured.
    pub cache: Option<CertificateCache>,
}

/// Cached pairs by their names.
#[derive(Debug)]
pub struct CertificateCache {
    limits: CacheLimits,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    pairs: HashMap<Pair, CachedPair>,
    /// Time of the last search for pairs that were not used for `inactive`.
    swept: Option<Instant>,
}

/// The expanded names of a certificate and its key.
type Pair = (String, String);

#[derive(Clone, Debug)]
struct CachedPair {
    loaded: LoadedPair,
    checked: Instant,
    used: Instant,
}

/// A loaded pair, and the state of its files to detect changes.
#[derive(Clone, Debug)]
struct LoadedPair {
    identity: Identity,
    files: [Option<Stamp>; 2],
}

/// Inode and modification time of a file.
type Stamp = (u64, i64, i64);

/// The reason why a pair cannot be used; the text names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CertificateCache {
    /// Returns an empty cache.
    pub fn new(limits: CacheLimits) -> CertificateCache {
        CertificateCache { limits, held: Mutex::default() }
    }

    /// Returns the cached pairs, after evicting those that were not used for `inactive`. Private keys must not remain in memory
    /// because the cache is not full.
    fn active(&self, now: Instant) -> MutexGuard<'_, Held> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let inactive = self.limits.inactive;
        let is_due = |swept: Instant| now.saturating_duration_since(swept) > inactive / SWEEPS;
        if held.swept.is_none_or(is_due) {
            held.pairs.retain(|_, cached| now.saturating_duration_since(cached.used) <= inactive);
            held.swept = Some(now);
        }
        held
    }

    /// Returns a cached pair, and whether its files have to be checked.
    fn get(&self, pair: &Pair, now: Instant) -> Option<(LoadedPair, bool)> {
        let mut held = self.active(now);
        let cached = held.pairs.get_mut(pair)?;
        cached.used = now;
        Some((cached.loaded.clone(), now.saturating_duration_since(cached.checked) > self.limits.valid))
    }

    /// Adds a pair. A full cache evicts the least recently used pair.
    fn put(&self, pair: Pair, loaded: LoadedPair, now: Instant) {
        let Held { pairs, .. } = &mut *self.active(now);
        while pairs.len() >= self.limits.max && !pairs.contains_key(&pair) {
            let oldest = pairs.iter().min_by_key(|(_, cached)| cached.used).map(|(pair, _)| pair.clone());
            oldest.and_then(|oldest| pairs.remove(&oldest));
        }
        pairs.insert(pair, CachedPair { loaded, checked: now, used: now });
    }

    fn remove(&self, pair: &Pair) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).pairs.remove(pair);
    }
}

impl NamedCertificates {
    /// Returns the names of all pairs for a handshake.
    pub fn names<R: HasVariables>(&self, request: &R) -> Vec<Pair> {
        let text = |template: &Template| String::from_utf8_lossy(&template.rendered(request)).into_owned();
        self.pairs.iter().map(|(certificate, key)| (text(certificate), text(key))).collect()
    }

    /// Loads the certificates with these names.
    pub async fn load(&self, names: Vec<Pair>) -> Result<Vec<Identity>, LoadError> {
        let mut identities = Vec::with_capacity(names.len());
        for pair in names {
            self.load_pair(pair).await?.add_to(&mut identities);
        }
        Ok(identities)
    }

    async fn load_pair(&self, pair: Pair) -> Result<Identity, LoadError> {
        let known = self.cache.as_ref().and_then(|cache| cache.get(&pair, rt::now()));
        let before = match known {
            Some((loaded, false)) => return Ok(loaded.identity),
            Some((loaded, true)) => Some(loaded),
            None => None,
        };
        let (prefix, passwords, names) = (self.prefix.clone(), Arc::clone(&self.passwords), pair.clone());
        let loaded = FILES.run(move || load(&prefix, &names, &passwords, before)).await;
        // A panic of the thread is already logged.
        let failed = || LoadError(format!("cannot load certificate \"{}\"", shown(&self.prefix, &pair.0)));
        let loaded = loaded.unwrap_or_else(|| Err(failed()));
        match (&self.cache, &loaded) {
            // As in nginx, the password protects a key also in memory, outside of handshakes.
            (Some(cache), Ok(loaded)) if !loaded.identity.is_decrypted() => {
                cache.put(pair, loaded.clone(), rt::now());
            }
            (Some(cache), _) => cache.remove(&pair),
            (None, _) => {}
        }
        loaded.map(|loaded| loaded.identity)
    }
}

/// Loads a pair, unless the files of the cached pair have not changed.
fn load(
    prefix: &Path,
    (certificate, key): &Pair,
    passwords: &[Vec<u8>],
    before: Option<LoadedPair>,
) -> Result<LoadedPair, LoadError> {
    let files = [stamp(prefix, certificate), stamp(prefix, key)];
    if let Some(before) = before.filter(|before| before.files == files) {
        return Ok(before);
    }
    let chain = read(prefix, "certificate", certificate)?;
    let secret = read(prefix, "certificate key", key)?;
    let identity = Identity::from_pem(&chain, &secret, passwords).map_err(|error| {
        let (what, name) = match error {
            FileError::BadKey(_) | FileError::Password | FileError::UnsupportedKey => {
                ("certificate key", key)
            }
            _ => ("certificate", certificate),
        };
        LoadError(format!("cannot load {what} \"{}\": {error}", shown(prefix, name)))
    })?;
    Ok(LoadedPair { identity, files })
}

/// Returns the loggable form of a value: a key in PEM text stays secret.
fn shown(prefix: &Path, value: &str) -> String {
    if value.starts_with(DATA) { DATA.to_owned() } else { prefix.join(value).display().to_string() }
}

/// Reads the bytes that a value names or contains.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, of FILES")]
fn read(prefix: &Path, what: &str, value: &str) -> Result<Vec<u8>, LoadError> {
    use std::io::Read;
    if let Some(pem) = value.strip_prefix(DATA) {
        return Ok(pem.as_bytes().to_vec());
    }
    let path = prefix.join(value);
    let failed =
        |reason: &dyn fmt::Display| LoadError(format!("cannot load {what} \"{}\": {reason}", path.display()));
    let errno = |error: std::io::Error| {
        // On a helper thread, so the reason can be searched immediately.
        let errno = io::Errno::from_io_error(&error).unwrap_or(io::Errno::IO);
        let refused = (errno == io::Errno::ACCESS).then(|| Enforced::get()?.refusal(&path, Access::Read));
        let advice = refused.flatten().map(|refused| match refused {
            PathRefusal::Replaced(replaced) => {
                format!("; \"{}\" was replaced, a new worker process will permit it", replaced.display())
            }
            PathRefusal::NotAllowed(refused) => format!("; \"{}\" allows it", refused.directive()),
        });
        failed(&format_args!("open() failed ({}){}", Reason(errno), advice.unwrap_or_default()))
    };
    // Without O_NONBLOCK the open of a FIFO would wait for a writer. The kind is that of the open file: the file at the path may be
    // replaced between two calls.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::File::options().read(true).custom_flags(nonblock).open(&path).map_err(errno)?;
    if !file.metadata().map_err(errno)?.is_file() {
        return Err(failed(&"it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(errno)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(&format_args!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Returns the state of a file, or nothing if the value is PEM text or stat(2) fails.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, of FILES")]
fn stamp(prefix: &Path, value: &str) -> Option<Stamp> {
    if value.starts_with(DATA) {
        return None;
    }
    let found = std::fs::metadata(prefix.join(value)).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> LoadedPair {
        let identity = ::tls::issue::placeholder(&["a.test".to_owned()], std::time::SystemTime::now());
        LoadedPair { identity: identity.unwrap(), files: [None, None] }
    }

    #[test]
    fn a_full_cache_evicts_the_least_recently_used() {
        let second = Duration::from_secs(1);
        let cache = CertificateCache::new(CacheLimits { max: 2, inactive: 100 * second, valid: 10 * second });
        let (now, loaded) = (Instant::now(), loaded());
        let pair = |name: &str| (name.to_owned(), name.to_owned());
        cache.put(pair("a"), loaded.clone(), now);
        cache.put(pair("b"), loaded.clone(), now + second);
        assert!(cache.get(&pair("a"), now + 2 * second).is_some());
        cache.put(pair("c"), loaded.clone(), now + 3 * second);
        assert!(cache.get(&pair("b"), now + 3 * second).is_none());
        assert!(cache.get(&pair("a"), now + 3 * second).is_some_and(|(_, is_old)| !is_old));
        assert!(cache.get(&pair("a"), now + 11 * second).is_some_and(|(_, is_old)| is_old));
    }

    #[test]
    fn an_unused_pair_is_evicted_although_the_cache_is_not_full() {
        let second = Duration::from_secs(1);
        let limits = CacheLimits { max: 100, inactive: 10 * second, valid: 100 * second };
        let cache = CertificateCache::new(limits);
        let (now, loaded) = (Instant::now(), loaded());
        let pair = |name: &str| (name.to_owned(), name.to_owned());
        cache.put(pair("a"), loaded.clone(), now);
        cache.put(pair("b"), loaded.clone(), now);
        for seconds in [5, 10, 15] {
            assert!(cache.get(&pair("b"), now + seconds * second).is_some(), "{seconds} s");
        }
        let held = cache.held.lock().unwrap();
        assert_eq!(held.pairs.keys().collect::<Vec<_>>(), [&pair("b")]);
    }

    /// If the kind were checked before the open, a FIFO that replaces the file in between would block the thread.
    #[test]
    fn a_file_that_is_replaced_by_a_fifo_blocks_no_thread() {
        use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
        let dir = testkit::TempDir::new("certificate");
        let [file, fifo] = ["file", "fifo"].map(|name| dir.path().join(name));
        std::fs::write(&file, "text").unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let (prefix, (sender, results)) = (dir.path().to_owned(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            (0..2000).all(|_| sender.send(read(&prefix, "certificate", "file")).is_ok())
        });
        let mut seen = [0; 2];
        // The exchanges end with the reads: a blocked open would be released by no writer.
        while let Some(result) =
            results.recv_timeout(Duration::from_secs(20)).map(Some).unwrap_or_else(|end| {
                assert_eq!(end, std::sync::mpsc::RecvTimeoutError::Disconnected, "an open waits: {seen:?}");
                None
            })
        {
            seen[usize::from(result.is_ok())] += 1;
            renameat_with(CWD, &file, CWD, &fifo, RenameFlags::EXCHANGE).unwrap();
        }
        assert_eq!(seen[0] + seen[1], 2000);
    }
}
