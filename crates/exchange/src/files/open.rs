//! Opens files for a request: by the rules of its location, from the cache, or through the engine.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

use io::facts::{DirEntry, EntryAttributes, Stat};
use io::op::OpenHow;
use io::{Disk, Errno};
use rustix::fs::{FileType, OFlags, ResolveFlags};

use crate::files::links::{self, rule_of};
use crate::files::root_len;
use crate::refusals::{self, Access};
use crate::request::{Request, ThreadConfig};
use transfer::body::choose;
use transfer::files::cache::{CacheId, CacheResult, CacheSettings, HELD, Rules};
use transfer::files::root::RootFacts;
use transfer::files::{Failure, FileKind, Opened, OpenedPath};

/// Returns the facts of the root of the request's location, and its device with the engine for opens that block.
pub(super) fn root_and_disk(request: &Request) -> (&RootFacts, Disk) {
    let facts = facts(request);
    let via = choose::path_engine(request.scope().core.sending.aio, &rt::caps());
    (facts, Disk { device: facts.device, via })
}

/// Returns the facts of the root of the request's location.
fn facts(request: &Request) -> &RootFacts {
    request.thread_config.roots.of(request.location.0 as usize)
}

/// Returns the device of the root of the request's location, and the engine for its paths.
pub fn disk(request: &Request) -> Disk {
    root_and_disk(request).1
}

/// Returns the rules of the request's location for a path.
pub(super) fn rules(request: &Request, path: &[u8]) -> Rules {
    let core = &request.scope().core;
    Rules {
        links: rule_of(request, path),
        beneath: core.files.opening.beneath.then(|| root_len(request)),
        directio: core.sending.directio,
    }
}

/// Returns the open-file cache, with the settings of the request's location.
fn cache(request: &Request) -> Option<(CacheId, CacheSettings)> {
    let opening = &request.scope().core.files.opening;
    opening.cache.map(|id| (id, opening.settings))
}

/// Opens `path` for reading, or returns the result cached by `open_file_cache`.
pub async fn open(request: &Request, mut path: Vec<u8>) -> Result<OpenedPath, Failure> {
    match try_open(request, &mut path) {
        Some(found) => found,
        // Boxed, so that only requests that have to wait need memory for the state of this future.
        None => Box::pin(open_by_engine(request, &path)).await,
    }
}

/// Does the same as [`open()`] if no wait is necessary: the file is in `open_file_cache`, or the kernel has the path
/// cached. Otherwise returns `None`, and the caller must call [`open_by_engine`]. Changes `path` temporarily.
pub fn try_open(request: &Request, path: &mut Vec<u8>) -> Option<Result<OpenedPath, Failure>> {
    let found = try_open_by_rules(request, path);
    if let Some(Err(failure)) = &found {
        refusals::note_path(request, path, Access::Read, failure.errno);
    }
    found
}

fn try_open_by_rules(request: &Request, path: &mut Vec<u8>) -> Option<Result<OpenedPath, Failure>> {
    let rules = rules(request, path);
    let Some((id, settings)) = cache(request) else {
        return match may_hold(request, rules) {
            true => open_held(request, path, rules),
            false => open_resident(request, path, rules),
        };
    };
    let caches = &request.thread_config.open_files;
    let found = match caches.look_up(id, path, rules, settings) {
        CacheResult::Valid(Ok(OpenedPath::File(opened))) if facts(request).local => {
            match opened.file.stat_inline() {
                // The file was edited in place: with the old size the response would be cut off, or the file.
                Ok(stat) => return Some(Ok(OpenedPath::File(Opened { stat, ..opened }))),
                Err(_) => return Some(Ok(OpenedPath::File(opened))),
            }
        }
        CacheResult::Valid(answer) => return Some(answer),
        CacheResult::Unchecked(opened) => recheck_resident(request, path, rules, opened)?,
        CacheResult::Miss => open_resident(request, path, rules)?,
    };
    caches.store(id, path, rules, settings, &found);
    Some(found)
}

/// Whether a file may stay open for a moment after a request. A file that some requests read with O_DIRECT is not
/// shared.
fn may_hold(request: &Request, rules: Rules) -> bool {
    let (facts, _) = root_and_disk(request);
    facts.calls_directly()
        && rules.is_plain()
        && rules.directio.is_none()
        && !request.scope().core.files.opening.closes_immediately
}

/// Does the same as [`open_resident`], with the recently opened file of the path if stat(2) shows that it is still the
/// same. This takes one system call instead of three, with the same result.
fn open_held(request: &Request, path: &mut Vec<u8>, rules: Rules) -> Option<Result<OpenedPath, Failure>> {
    let held = &request.thread_config.open_files.held;
    if let Some(opened) = held.find(path)
        && let Ok(stat) = with_nul(path, rt::file::stat_of_turn)?
        && stat == opened.stat
    {
        return Some(Ok(OpenedPath::File(opened)));
    }
    let found = open_resident(request, path, rules)?;
    if held.hold(path, &found) {
        rt::spawn(close_held(Rc::downgrade(&request.thread_config)));
    }
    Some(found)
}

/// Closes held files without recent requests, until none is open.
async fn close_held(thread_config: Weak<ThreadConfig>) {
    loop {
        rt::sleep_until(rt::now() + HELD.inactive).await;
        let Some(thread_config) = thread_config.upgrade() else { return };
        if !thread_config.open_files.held.close_idle() {
            return;
        }
    }
}

/// Opens a path that the kernel has cached (dentries).
fn open_resident(request: &Request, path: &mut Vec<u8>, rules: Rules) -> Option<Result<OpenedPath, Failure>> {
    let facts = facts(request);
    if !rules.is_one_call() || !facts.may_try() {
        return None;
    }
    let mut how = how(rules, OFlags::RDONLY);
    let opened = match rules.beneath {
        None => with_nul(path, |path| facts.open_resident(None, path, how))?,
        Some(root) => {
            how.resolve |= ResolveFlags::BENEATH.bits();
            let path = CString::new(relative(&path[root..])).ok()?;
            facts.open_resident(Some(facts.beneath()?), &path, how)
        }
    };
    match opened? {
        Ok(file) => Some(
            file.stat_inline()
                .map_or_else(|errno| Err(failure(errno, "fstat()")), |stat| Ok(found(file, stat))),
        ),
        // These errors need more than a call: closing other files, or finding the link that was refused.
        Err(Errno::MFILE | Errno::NFILE) => None,
        Err(Errno::LOOP) if rules.links.checks() => None,
        Err(errno) => Some(Err(failure(errno, call(rules)))),
    }
}

/// Checks a path that the kernel has cached, which led to an open file before.
fn recheck_resident(
    request: &Request,
    path: &mut Vec<u8>,
    rules: Rules,
    opened: Opened,
) -> Option<Result<OpenedPath, Failure>> {
    if rules.is_plain() {
        let facts = facts(request);
        if let Some(Ok(stat)) = with_nul(path, |path| facts.stat_resident(path))?
            && is_same(&stat, &opened.stat)
        {
            return Some(Ok(OpenedPath::File(Opened { stat, ..opened })));
        }
    }
    open_resident(request, path, rules)
}

/// Calls `call` with the path and a terminating NUL; returns `None` if the path contains a NUL.
fn with_nul<T>(path: &mut Vec<u8>, call: impl FnOnce(&CStr) -> T) -> Option<T> {
    path.push(0);
    let answer = CStr::from_bytes_with_nul(path).ok().map(call);
    path.pop();
    answer
}

/// Opens `path` and waits for the disk, for paths that [`try_open`] could not open.
pub async fn open_by_engine(request: &Request, path: &[u8]) -> Result<OpenedPath, Failure> {
    let found = open_waiting(request, path).await;
    if let Err(failure) = &found {
        refusals::note_path(request, path, Access::Read, failure.errno);
    }
    found
}

async fn open_waiting(request: &Request, path: &[u8]) -> Result<OpenedPath, Failure> {
    let rules = rules(request, path);
    if cache(request).is_none()
        && rules.is_plain()
        && let Some(found) = open_plain(request, path, rules).await
    {
        return found;
    }
    // Boxed: most requests do not need this future.
    Box::pin(open_by_rules(request, path, rules)).await
}

/// Does the same as [`open_by_engine`] for a path without rules or cache, in one operation. Returns `None` if that does
/// not suffice.
async fn open_plain(request: &Request, path: &[u8], rules: Rules) -> Option<Result<OpenedPath, Failure>> {
    let (facts, disk) = root_and_disk(request);
    if !facts.local {
        return None;
    }
    let path = CString::new(path).ok()?;
    let direct = rules.directio.filter(|_| facts.may_open_directly());
    let flags = if direct.is_some() { OFlags::RDONLY | OFlags::DIRECT } else { OFlags::RDONLY };
    let how = OpenHow { is_cold: facts.calls_directly(), ..how(rules, flags) };
    let opened = rt::File::open(None, path, how, disk).await;
    if direct.is_some() {
        facts.note_opened_directly(!matches!(opened, Err(Errno::INVAL)));
    }
    let file = match opened {
        Ok(file) => file,
        Err(Errno::INVAL) if direct.is_some() => return None,
        Err(Errno::INTR | Errno::AGAIN) => return None,
        Err(Errno::MFILE | Errno::NFILE) if Box::pin(free_descriptor(request)).await => return None,
        Err(errno) => return Some(Err(failure(errno, call(rules)))),
    };
    let stat = match file.stat_inline() {
        Ok(stat) => stat,
        Err(errno) => return Some(Err(failure(errno, "fstat()"))),
    };
    if direct.is_some_and(|from| stat.size < from)
        && let Err(errno) = transfer::files::set_buffered(&file)
    {
        return Some(Err(failure(errno, "fcntl()")));
    }
    Some(Ok(found(file, stat)))
}

/// Does the same as [`open_by_engine`], with all rules and the cache.
async fn open_by_rules(request: &Request, path: &[u8], rules: Rules) -> Result<OpenedPath, Failure> {
    let Some((id, settings)) = cache(request) else { return open_new(request, path.to_vec(), rules).await };
    let caches = &request.thread_config.open_files;
    let found = match caches.earlier(id, path, rules) {
        Some(opened) => open_again(request, path, rules, opened).await,
        None => open_new(request, path.to_vec(), rules).await,
    };
    caches.store(id, path, rules, settings, &found);
    found
}

/// Returns the kind and attributes of the file at `path`, for callers that do not read it.
pub async fn stat_path(request: &Request, path: &[u8]) -> Result<FileKind, Failure> {
    let rules = rules(request, path);
    // The cache contains results of opens. With `root_beneath` or `disable_symlinks` a path can only be checked through
    // an open file.
    if cache(request).is_some() || !rules.is_plain() {
        return open(request, path.to_vec()).await.map(|found| found.kind());
    }
    let stat = stat(request, path).await;
    stat.map(|stat| FileKind::of(&stat)).map_err(|errno| failure(errno, "stat()"))
}

/// Opens a path that is not cached.
async fn open_new(request: &Request, path: Vec<u8>, rules: Rules) -> Result<OpenedPath, Failure> {
    let file = open_by(request, path, rules, OFlags::RDONLY).await?;
    let (facts, disk) = root_and_disk(request);
    let stat = match facts.local {
        true => file.stat_inline(),
        false => file.stat(disk).await,
    };
    stat.map(|stat| found(file, stat)).map_err(|errno| failure(errno, "fstat()"))
}

/// Calls stat(2) for the path of an open file, and uses that file if the path still leads to it.
async fn open_again(
    request: &Request,
    path: &[u8],
    rules: Rules,
    opened: Opened,
) -> Result<OpenedPath, Failure> {
    // If links are checked, only an open can check the path.
    if rules.is_plain() {
        let stat = stat(request, path).await.map_err(|errno| failure(errno, "stat()"))?;
        if is_same(&stat, &opened.stat) {
            return Ok(OpenedPath::File(Opened { stat, ..opened }));
        }
    }
    open_new(request, path.to_vec(), rules).await
}

/// Whether both describe the same file, even if size or times differ.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Returns the kind of an open file. Only regular files stay open, because nothing else is read.
fn found(file: rt::File, stat: Stat) -> OpenedPath {
    match FileKind::of(&stat) {
        FileKind::File => OpenedPath::File(Opened { file, stat, device: stat.device }),
        FileKind::Directory => OpenedPath::Directory,
        FileKind::Special => OpenedPath::Special,
    }
}

fn failure(errno: Errno, call: &'static str) -> Failure {
    Failure { errno, call }
}

/// Returns the name of the call that nginx would make by these rules.
fn call(rules: Rules) -> &'static str {
    if rules.links.checks() { "openat()" } else { "open()" }
}

/// Returns the flags of a call that opens by these rules.
pub(super) fn how(rules: Rules, flags: OFlags) -> OpenHow {
    // Without O_NONBLOCK the open of a FIFO would wait for a writer. O_PATH does not open the FIFO and excludes O_NONBLOCK.
    let waits_not = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | waits_not | OFlags::CLOEXEC;
    let mut how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    rules.links.apply(&mut how);
    how
}

/// Opens a path by these rules and with these flags.
async fn open_by(request: &Request, path: Vec<u8>, rules: Rules, flags: OFlags) -> Result<rt::File, Failure> {
    let (facts, disk) = root_and_disk(request);
    let failed = |errno| failure(errno, call(rules));
    let mut how = OpenHow { is_cold: facts.calls_directly(), ..how(rules, flags) };
    let (start, path) = StartDirectory::of(request, &path, rules)?;
    let dir = start.opened(disk).await?;
    if rules.beneath.is_some() {
        how.resolve |= ResolveFlags::BENEATH.bits();
    }
    let dir = dir.as_ref().map(rt::File::fd);
    let path = CString::new(path).map_err(|_| failed(Errno::INVAL))?;
    match open_path(facts, dir, &path, how, disk).await {
        Ok(file) => Ok(file),
        Err(Errno::LOOP) if rules.links.checks() => {
            Err(failed(Box::pin(links::refine(facts, dir, &path, how, disk)).await))
        }
        Err(Errno::MFILE | Errno::NFILE) if Box::pin(free_descriptor(request)).await => {
            Box::pin(open_path(facts, dir, &path, how, disk)).await.map_err(failed)
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// The directory in which the rules of a path begin to apply.
#[derive(Clone)]
pub(super) enum StartDirectory {
    /// The root directory of the file system.
    Top,
    /// An open directory.
    Open(rt::File),
    /// The directory at this path. Links in it are followed.
    At(Vec<u8>),
}

impl StartDirectory {
    /// Returns the directory for a path, and the path relative to it.
    pub(super) fn of(
        request: &Request,
        path: &[u8],
        rules: Rules,
    ) -> Result<(StartDirectory, Vec<u8>), Failure> {
        let failed = |errno| failure(errno, call(rules));
        if let Some(root) = rules.beneath {
            let start = match facts(request).beneath() {
                Some(dir) => StartDirectory::Open(rt::File::new(copy(dir).map_err(failed)?)),
                // The root could not be opened when the configuration was loaded.
                None if has_fixed_root(request) => {
                    StartDirectory::At(if root == 0 { b"/".to_vec() } else { path[..root].to_vec() })
                }
                // A root from the request could be any directory.
                None => return Err(failed(Errno::NOENT)),
            };
            return Ok((start, relative(&path[root..]).to_vec()));
        }
        match rules.links.from {
            0 => Ok((StartDirectory::Top, path.to_vec())),
            from => Ok((StartDirectory::At(path[..from].to_vec()), relative(&path[from..]).to_vec())),
        }
    }

    /// Returns the open directory; `None` for the root directory of the file system.
    pub(super) async fn opened(self, disk: Disk) -> Result<Option<rt::File>, Failure> {
        Ok(match self {
            StartDirectory::Top => None,
            StartDirectory::Open(file) => Some(file),
            StartDirectory::At(path) => Some(Box::pin(links::open_above(disk, &path)).await?),
        })
    }
}

/// Whether the root of the request's location does not depend on the request.
fn has_fixed_root(request: &Request) -> bool {
    request.scope().core.files.root.template().constant().is_some()
}

/// Duplicates a descriptor: an operation owns its descriptors, and the original stays open.
fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

/// Opens a path through the engine. It retries after a signal, and after a directory was renamed while a path
/// below the root was followed (openat2(2), `EAGAIN` with `RESOLVE_BENEATH`).
pub(super) async fn open_path(
    facts: &RootFacts,
    dir: Option<&io::Fd>,
    path: &CStr,
    how: OpenHow,
    disk: Disk,
) -> Result<rt::File, Errno> {
    // `open_resident` has not tried paths that need several calls. They may be in the kernel's caches too.
    if dir.is_some()
        && facts.may_try()
        && let Some(opened) = facts.open_resident(dir.map(AsFd::as_fd), path, how)
    {
        return opened;
    }
    open_retrying(dir, path, how, disk).await
}

/// Does the same as [`open_path`], always through the engine.
pub(super) async fn open_retrying(
    dir: Option<&io::Fd>,
    path: &CStr,
    how: OpenHow,
    disk: Disk,
) -> Result<rt::File, Errno> {
    let mut tries = OPEN_TRIES;
    loop {
        tries -= 1;
        match rt::File::open(dir, path.to_owned(), how, disk).await {
            Err(Errno::INTR | Errno::AGAIN) if tries > 0 => {}
            opened => return opened,
        }
    }
}

/// Maximum number of attempts to open a path that changes concurrently; more changes would be an attack.
const OPEN_TRIES: u32 = 8;

/// Opens a file at a configured path for reading, inside or outside the root.
pub async fn open_anywhere(path: &[u8], disk: Disk) -> Result<rt::File, Errno> {
    let path = CString::new(path).map_err(|_| Errno::NOENT)?;
    open_retrying(None, &path, how(Rules::default(), OFlags::RDONLY), disk).await
}

/// Returns the attributes of a file at a configured path, inside or outside the root.
pub async fn stat_anywhere(request: &Request, path: &[u8]) -> Result<Stat, Errno> {
    let rules = Rules { beneath: None, ..rules(request, path) };
    if !rules.links.checks() {
        return stat(request, path).await;
    }
    // With `disable_symlinks` a path is checked through an O_PATH descriptor.
    let found = Box::pin(open_by(request, path.to_vec(), rules, OFlags::PATH)).await;
    found.map_err(|failure| failure.errno)?.stat_inline()
}

/// Returns the attributes of the file at `path`, without opening it.
async fn stat(request: &Request, path: &[u8]) -> Result<Stat, Errno> {
    let (facts, disk) = root_and_disk(request);
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    match facts.stat_resident(&path) {
        Some(stat) => stat,
        None => rt::file::stat_path(path, disk).await,
    }
}

/// Frees a descriptor for another open file; returns whether one could be freed.
async fn free_descriptor(request: &Request) -> bool {
    request.conn.thread.free_descriptors(&request.thread_config).await
}

/// A directory opened for listing.
pub struct OpenDirectory {
    file: rt::File,
    disk: Disk,
    attributes: EntryAttributes,
}

/// Opens a directory to list it. It is never shared, because the kernel stores the read position in the open file.
/// Links in it are followed for their attributes, but with `root_beneath` not out of the root.
pub async fn open_directory(request: &Request, path: Vec<u8>) -> Result<OpenDirectory, Failure> {
    let rules = rules(request, &path);
    let opened = open_by(request, path.clone(), rules, OFlags::RDONLY | OFlags::DIRECTORY).await;
    let file = opened.map_err(|failure| {
        refusals::note_path(request, &path, Access::Read, failure.errno);
        Failure { call: "opendir()", ..failure }
    })?;
    let attributes =
        if rules.beneath.is_some() { EntryAttributes::Itself } else { EntryAttributes::Followed };
    Ok(OpenDirectory { file, disk: disk(request), attributes })
}

impl OpenDirectory {
    /// Returns the next entries; an empty list at the end.
    pub async fn read(&self) -> Result<Vec<DirEntry>, Errno> {
        self.read_as(self.attributes).await
    }

    /// Returns the names and kinds of the next entries.
    pub async fn read_kinds(&self) -> Result<Vec<DirEntry>, Errno> {
        self.read_as(EntryAttributes::Kind).await
    }

    /// Whether a link in the directory leads to a regular file; always false if links are not followed.
    pub async fn is_link_to_file(&self, link: CString) -> bool {
        if self.attributes != EntryAttributes::Followed {
            return false;
        }
        let found = rt::file::stat_path(link, self.disk).await;
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.mode) == FileType::RegularFile)
    }

    async fn read_as(&self, attributes: EntryAttributes) -> Result<Vec<DirEntry>, Errno> {
        self.file.read_dir(READ_DIR_BYTES, attributes, self.disk).await
    }
}

/// Size in bytes of the buffer for names per operation: about a thousand entries, which take a thread a few
/// milliseconds.
const READ_DIR_BYTES: u32 = 32 << 10;

/// Returns a path relative to a directory above it.
fn relative(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    if start == path.len() { b"." } else { &path[start..] }
}
