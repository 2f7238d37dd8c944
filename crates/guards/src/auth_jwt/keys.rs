//! Key sets from files and from subrequests.
//!
//! A file is opened for each request, so that a new key takes effect immediately; its text is parsed again only after a change.
//! `auth_jwt_key_cache` omits both for some time. A set that cannot be loaded is never replaced by an older one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io::facts::{DeviceId, Stat};
use io::{Disk, Errno};
use jose::KeySet;
use jose::key::KEY_SET_LEN_MAX;

use exchange::files;
use exchange::filter;
use exchange::refusals;
use exchange::request::Request;
use exchange::subrequest::{self, Subrequest};
use site::needs::Access;
use site::template::Template;
use telemetry::time_zone::since_1970;
use telemetry::{ForLog, Level, Reason};
use transfer::body::choose;

/// Number of bytes per read.
const PIECE: usize = 16 << 10;

/// Maximum number of key sets that a directive with variables holds in memory.
const SETS_MAX: usize = 64;

/// Length in bytes from which a text is parsed on another thread.
const OFFLOADED_LEN: usize = 64 << 10;

/// A directive with keys.
#[derive(Debug)]
pub(super) struct KeySource {
    pub(super) origin: KeyOrigin,
    /// The sets that were loaded, by path or URI.
    sets: Mutex<Vec<LoadedSet>>,
}

/// Where keys are.
#[derive(Debug)]
pub(super) enum KeyOrigin {
    /// The path of a file.
    File(Template),
    /// The URI of a subrequest.
    Subrequest(Template),
}

/// A set in memory.
#[derive(Debug)]
struct LoadedSet {
    name: Vec<u8>,
    set: Arc<KeySet>,
    /// Time at which it was loaded, or its file found unchanged.
    checked: Instant,
    /// The attributes of its file.
    file: Option<FileVersion>,
}

/// The attributes by which a change of a file is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    device: DeviceId,
    inode: u64,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl FileVersion {
    /// Returns the attributes; `None` if the file is so new that a further change could have the same time.
    fn of(stat: &Stat) -> Option<FileVersion> {
        let version = FileVersion {
            device: stat.device,
            inode: stat.inode,
            size: stat.size,
            modified: (stat.modified, stat.modified_nanos),
            changed: stat.changed,
        };
        let newest = stat.modified.max(stat.changed.0);
        (newest < since_1970(rt::wall()).0 - 2).then_some(version)
    }
}

impl KeySource {
    /// Returns a source without loaded sets.
    pub(super) fn new(origin: KeyOrigin) -> KeySource {
        KeySource { origin, sets: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoadedSet>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a set that was checked less than this time ago.
    fn recent(&self, name: &[u8], cached: Duration) -> Option<Arc<KeySet>> {
        let sets = self.lock();
        let known = sets.iter().find(|known| known.name == name)?;
        let is_recent = rt::now().saturating_duration_since(known.checked) < cached;
        is_recent.then(|| Arc::clone(&known.set))
    }

    /// Returns the set of a file with these attributes.
    fn unchanged(&self, name: &[u8], version: &FileVersion) -> Option<Arc<KeySet>> {
        let mut sets = self.lock();
        let known =
            sets.iter_mut().find(|known| known.name == name && known.file.as_ref() == Some(version))?;
        known.checked = rt::now();
        Some(Arc::clone(&known.set))
    }

    /// Stores a set; the set that was checked longest ago makes room for it.
    fn store(&self, name: Vec<u8>, set: &Arc<KeySet>, file: Option<FileVersion>) {
        let mut sets = self.lock();
        sets.retain(|known| known.name != name);
        if sets.len() >= SETS_MAX
            && let Some(oldest) = (0..sets.len()).min_by_key(|index| sets[*index].checked)
        {
            sets.swap_remove(oldest);
        }
        sets.push(LoadedSet { name, set: Arc::clone(set), checked: rt::now(), file });
    }

    /// Removes a set that cannot be loaded any more.
    fn remove(&self, name: &[u8]) {
        self.lock().retain(|known| known.name != name);
    }
}

/// Returns the key set of a source; `None` if it cannot be loaded, which is logged.
pub(super) async fn load(source: &KeySource, cached: Duration, request: &mut Request) -> Option<Arc<KeySet>> {
    let name = match &source.origin {
        KeyOrigin::File(path) => {
            let mut path = path.rendered(request);
            files::prepend_directory(&request.config().http.conf_prefix, &mut path, 0);
            path
        }
        KeyOrigin::Subrequest(uri) => uri.rendered(request),
    };
    if !cached.is_zero()
        && let Some(set) = source.recent(&name, cached)
    {
        return Some(set);
    }
    let read = match &source.origin {
        KeyOrigin::File(_) => read_file(source, request, &name).await,
        KeyOrigin::Subrequest(_) => fetch(request, &name).await.map(|text| KeyText::New(text, None)),
    };
    let (text, version) = match read {
        Some(KeyText::Unchanged(set)) => return Some(set),
        Some(KeyText::New(text, version)) => (text, version),
        None => {
            source.remove(&name);
            return None;
        }
    };
    let parsed = match text.len() > OFFLOADED_LEN {
        true => rt::offload(move || KeySet::parse(&text)).await?,
        false => KeySet::parse(&text),
    };
    match parsed {
        Ok(set) => {
            let set = Arc::new(set);
            source.store(name, &set, version);
            Some(set)
        }
        Err(fault) => {
            source.remove(&name);
            request.log(Level::Error, format_args!("the keys of \"{}\" are wrong: {fault}", name.for_log()));
            None
        }
    }
}

/// The text of a key set.
enum KeyText {
    /// The file is that of this set.
    Unchanged(Arc<KeySet>),
    /// A new text, with the attributes of its file.
    New(Vec<u8>, Option<FileVersion>),
}

/// Reads a file, unless it is unchanged.
async fn read_file(source: &KeySource, request: &mut Request, path: &[u8]) -> Option<KeyText> {
    match try_read(source, request, path).await {
        Ok(text) => Some(text),
        Err((call, errno)) => {
            if call == "open()" {
                refusals::note_path(request, path, Access::Read, errno);
            }
            let path = files::display(path);
            request.log(Level::Crit, format_args!("{call} \"{path}\" failed ({})", Reason(errno)));
            None
        }
    }
}

/// As [`read_file`]; the error has the failed call.
async fn try_read(
    source: &KeySource,
    request: &mut Request,
    path: &[u8],
) -> Result<KeyText, (&'static str, Errno)> {
    let failed = |call: &'static str| move |errno: Errno| (call, errno);
    let via = choose::path_engine(request.scope().core.sending.aio, &rt::caps());
    let disk = Disk { device: DeviceId::default(), via };
    let file = files::open_anywhere(path, disk).await.map_err(failed("open()"))?;
    let stat = file.stat(disk).await.map_err(failed("fstat()"))?;
    let version = FileVersion::of(&stat);
    if let Some(set) = version.as_ref().and_then(|version| source.unchanged(path, version)) {
        return Ok(KeyText::Unchanged(set));
    }
    let mut text = Vec::new();
    let mut buf = request.wait_for_buffer(PIECE).await.ok_or(("pread()", Errno::NOMEM))?;
    loop {
        let (count, rest) = file.read_at(text.len() as u64, PIECE as u32, buf, disk).await;
        buf = rest.ok_or(("pread()", Errno::IO))?;
        match count.map_err(failed("pread()"))? as usize {
            0 => return Ok(KeyText::New(text, version)),
            _ if text.len() > KEY_SET_LEN_MAX => return Err(("pread()", Errno::FBIG)),
            count => text.extend_from_slice(&buf[..count]),
        }
    }
}

/// Returns the body of a subrequest.
async fn fetch(request: &Request, uri: &[u8]) -> Option<Vec<u8>> {
    let (path, args) = subrequest::parse_uri(request, uri)?;
    let wanted = Subrequest { uri: path, args, ..Subrequest::default() };
    let mut child = subrequest::fetch(request, &wanted).await?;
    let status = child.response.status;
    let body = match status {
        200 => filter::collect(&mut child, KEY_SET_LEN_MAX).await.ok(),
        _ => None,
    };
    subrequest::finish(child);
    if body.is_none() {
        let uri = uri.for_log();
        let what = format_args!("the keys of \"{uri}\" were not received: status {status}");
        request.log(Level::Error, what);
    }
    body
}
