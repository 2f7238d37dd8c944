//! From a URI to a file: the path under the root, opening, looking at it.
//!
//! Everything that may touch a slow disk goes through the engine that the location chose. Facts about a
//! root that never change while a configuration holds (its device, whether it is on a local file system)
//! are found once, when the configuration is taken up.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use io::op::{DeviceId, OpenHow, Stat};
use io::{DiskVia, Errno};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::body::choose;
use crate::config::{Config, LocationId};
use crate::log::Level;
use crate::modules::http_core::conf::{Conf, Root};
use crate::request::Request;

/// What is known about the root of one location.
#[derive(Debug, Default)]
pub(crate) struct RootFacts {
    /// The device that the per-device limits count on.
    pub(crate) device: DeviceId,
    /// Whether fstat(2) on an open file cannot block: false for network and FUSE file systems, and for
    /// roots that depend on the request.
    pub(crate) local: bool,
    /// The root without symbolic links (`$realpath_root`).
    real: Option<Vec<u8>>,
    /// Whether anything may be tried beside the engine: the file system is local, `try_cached` is on, and no faults
    /// are injected, which such calls would not meet.
    direct_calls: bool,
    /// Whether paths lately were in the kernel's lookup cache.
    names: Hunch,
    /// Whether files lately were in the page cache.
    data: Hunch,
    /// The root itself, held open where nothing outside of it may be reached.
    beneath: Option<OwnedFd>,
}

impl RootFacts {
    /// The facts of each location, in their order. Blocks on the disk: for start and reload.
    pub(crate) fn of_all(config: &Config) -> Vec<RootFacts> {
        let events = config.events();
        let direct_calls = events.try_cached && events.faults.is_empty();
        let facts = |core: &Conf| match core.root.template().constant() {
            Some(path) => RootFacts::of(Path::new(path), core.root_beneath, direct_calls),
            None => RootFacts::default(),
        };
        config.http.locations.iter().map(|location| facts(&location.scope.core)).collect()
    }

    #[expect(clippy::disallowed_methods, reason = "the configuration is being taken up: nobody waits yet")]
    fn of(root: &Path, beneath: bool, direct_calls: bool) -> RootFacts {
        let Ok(stat) = rustix::fs::stat(root) else { return RootFacts::default() };
        let local = rustix::fs::statfs(root).is_ok_and(|facts| is_local(facts.f_type as u64));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(root, flags, Mode::empty()).ok();
        let real = std::fs::canonicalize(root).ok().map(|path| path.into_os_string().into_vec());
        let device = DeviceId(stat.st_dev);
        RootFacts {
            device,
            local,
            real,
            direct_calls: local && direct_calls,
            names: Hunch::default(),
            data: Hunch::default(),
            beneath: beneath.then(open).flatten(),
        }
    }

    /// The root without symbolic links, as it was when the configuration was taken up.
    pub(crate) fn real(&self) -> Option<&[u8]> {
        self.real.as_deref()
    }

    /// Opens a file at once when its path is known to the kernel and that is worth trying; `None` leaves it to
    /// the engine. A call that succeeds costs less than half of an operation on the ring and its completion.
    fn open_cached(
        &self,
        dir: Option<&io::Fd>,
        path: &CStr,
        how: OpenHow,
    ) -> Option<Result<rt::File, Errno>> {
        if !self.direct_calls || !self.names.is_worth_trying() {
            return None;
        }
        let opened = rt::File::open_cached(dir, path, how);
        let missed = matches!(opened, Err(Errno::AGAIN | Errno::NOSYS | Errno::INVAL));
        self.names.note(!missed);
        (!missed).then_some(opened)
    }

    /// Reads at once what is in memory, when that is worth trying; otherwise nothing.
    pub(crate) fn read_resident(&self, file: &rt::File, offset: u64, len: u32, buf: &mut io::Buf) -> u32 {
        if !self.direct_calls || !self.data.is_worth_trying() {
            return 0;
        }
        let read = file.read_resident(offset, len, buf);
        self.data.note(read.is_ok());
        read.unwrap_or(0)
    }

    /// The root as a place to open from, with `RESOLVE_BENEATH`.
    pub(crate) fn beneath(&self) -> Option<Result<io::Fd, Errno>> {
        let fd = self.beneath.as_ref()?;
        Some(
            fd.try_clone()
                .map(io::Fd::from)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE)),
        )
    }
}

/// Whether trying something cheap first is likely to pay: what succeeds lately is tried, what fails is left
/// alone for a while. All threads share it; a steady state writes nothing.
#[derive(Debug)]
pub(crate) struct Hunch(AtomicU8);

/// Below this nothing is tried.
const CONFIDENT: u8 = 64;

impl Default for Hunch {
    fn default() -> Hunch {
        Hunch(AtomicU8::new(CONFIDENT))
    }
}

impl Hunch {
    /// Whether to try. Each time it is not, the next trial comes nearer: one in about thirteen.
    pub(crate) fn is_worth_trying(&self) -> bool {
        let confidence = self.0.load(Ordering::Relaxed);
        if confidence < CONFIDENT {
            self.0.store(confidence + 4, Ordering::Relaxed);
        }
        confidence >= CONFIDENT
    }

    /// Says how it went.
    pub(crate) fn note(&self, success: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let after = if success { before.saturating_add(16) } else { before / 4 };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }
}

/// File systems whose attributes wait for another machine or process (magic numbers of statfs(2)).
fn is_local(magic: u64) -> bool {
    const NFS: u64 = 0x6969;
    const FUSE: u64 = 0x6573_5546;
    const CIFS: u64 = 0xff53_4d42;
    const SMB2: u64 = 0xfe53_4d42;
    const CEPH: u64 = 0x00c3_6400;
    const V9FS: u64 = 0x0102_1997;
    const AFS: u64 = 0x5346_414f;
    ![NFS, FUSE, CIFS, SMB2, CEPH, V9FS, AFS].contains(&(magic & 0xffff_ffff))
}

/// Appends the path of `uri` under the root of the request's location (`$request_filename`).
pub(crate) fn path_of(request: &Request, uri: &[u8], out: &mut Vec<u8>) {
    let core = &request.scope().core;
    match &core.root {
        Root::Root(root) => {
            root.render(request, out);
            while out.last() == Some(&b'/') {
                out.pop();
            }
            out.extend_from_slice(uri);
        }
        Root::Alias(path) => {
            path.render(request, out);
            if !core.by_pattern {
                out.extend_from_slice(uri.get(core.location_prefix.len()..).unwrap_or_default());
            }
        }
    }
}

/// How many bytes at the start of [`path_of`]'s answer are the root.
pub(crate) fn root_len(request: &Request) -> usize {
    let root = request.scope().core.root.template().rendered(request);
    root.len() - root.iter().rev().take_while(|&&byte| byte == b'/').count()
}

/// A file that was opened for a request, and what is known about it.
pub(crate) struct Opened {
    pub(crate) file: rt::File,
    pub(crate) stat: Stat,
    pub(crate) device: DeviceId,
}

/// Opens the file at `path`, which ends in a NUL, and looks at it, when that needs no waiting; `None` leaves it to
/// [`open`].
pub(crate) fn open_now(request: &Request, path: &[u8]) -> Option<Result<Opened, Errno>> {
    let location = request.location;
    let facts = &request.generation.roots[location.0 as usize];
    if !facts.direct_calls || request.scope().core.root_beneath {
        return None;
    }
    let how = OpenHow { flags: FLAGS.bits() as i32, mode: 0, resolve: 0, same_owner: false };
    let Ok(path) = CStr::from_bytes_with_nul(path) else { return Some(Err(Errno::INVAL)) };
    let opened = facts.open_cached(None, path, how)?;
    Some(opened.and_then(|file| file.stat_inline().map(|stat| Opened { file, stat, device: stat.device })))
}

/// Without `O_NONBLOCK` the open of a FIFO would wait for a writer.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens the file at `path` for reading and looks at it.
pub(crate) async fn open(request: &Request, mut path: Vec<u8>) -> Result<Opened, Errno> {
    let location = request.location;
    let facts = &request.generation.roots[location.0 as usize];
    let via = choose::path_engine(&request.scope().core, &rt::caps());
    let mut how = OpenHow { flags: FLAGS.bits() as i32, mode: 0, resolve: 0, same_owner: false };
    let dir = beneath(request, location)?;
    if dir.is_some() {
        how.resolve = ResolveFlags::BENEATH.bits();
        path = relative(&path[root_len(request)..]).to_vec();
    }
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let file = match facts.open_cached(dir.as_ref(), &path, how) {
        Some(opened) => opened?,
        None => open_through_engine(dir.as_ref(), path, how, facts.device, via).await?,
    };
    let stat = match facts.local {
        true => file.stat_inline()?,
        false => file.stat(facts.device, via).await?,
    };
    Ok(Opened { file, stat, device: stat.device })
}

/// Opens a file through the engine. A signal is no reason to fail, and neither is a folder that was renamed
/// while a path below the root was followed (openat2(2), `EAGAIN` with `RESOLVE_BENEATH`).
async fn open_through_engine(
    dir: Option<&io::Fd>,
    path: CString,
    how: OpenHow,
    device: DeviceId,
    via: DiskVia,
) -> Result<rt::File, Errno> {
    let mut tries = OPEN_TRIES;
    loop {
        tries -= 1;
        match rt::File::open(dir, path.clone(), how, device, via).await {
            Err(Errno::INTR | Errno::AGAIN) if tries > 0 => {}
            opened => return opened,
        }
    }
}

/// Attempts to open a file whose path changes under the kernel's feet; more would be an attack.
const OPEN_TRIES: u32 = 8;

/// What is at `path`, without opening it.
pub(crate) async fn stat(request: &Request, path: &[u8]) -> Result<Stat, Errno> {
    if beneath(request, request.location)?.is_some() {
        // A path below a folder that must not be left can only be looked at through an open file.
        return open(request, path.to_vec()).await.map(|opened| opened.stat);
    }
    let facts = &request.generation.roots[request.location.0 as usize];
    let via = choose::path_engine(&request.scope().core, &rt::caps());
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    rt::file::stat_path(path, facts.device, via).await
}

/// What is at a path that the configuration asks about, be it under the root or not.
pub(crate) async fn stat_anywhere(request: &Request, path: &[u8]) -> Result<Stat, Errno> {
    let facts = &request.generation.roots[request.location.0 as usize];
    let via = choose::path_engine(&request.scope().core, &rt::caps());
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    rt::file::stat_path(path, facts.device, via).await
}

/// Whether the path of a request cannot be told: an alias stands for the location's name at the start of the URI,
/// and a rewrite has changed the URI without searching for its location. Whoever serves files answers with 500.
pub(crate) fn alias_is_lost(request: &Request) -> bool {
    let lost = request.left_location && matches!(request.scope().core.root, Root::Alias(_));
    if lost {
        let name = &request.location().name;
        let what = format_args!("\"alias\" cannot be used in location \"{name}\" where URI was rewritten");
        request.log(Level::Alert, what);
    }
    lost
}

fn beneath(request: &Request, location: LocationId) -> Result<Option<io::Fd>, Errno> {
    if !request.scope().core.root_beneath {
        return Ok(None);
    }
    // The root was not there when the configuration was taken up, or depends on the request.
    let missing = || Err(Errno::NOENT);
    let facts = &request.generation.roots[location.0 as usize];
    facts.beneath().unwrap_or_else(missing).map(Some)
}

fn relative(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    if start == path.len() { b"." } else { &path[start..] }
}

/// Makes reads of a file that was opened here go past the page cache; an error where its file system cannot.
pub(crate) fn set_direct(file: &rt::File) -> Result<(), Errno> {
    file.fd().set_direct(OFlags::NONBLOCK)
}

/// Whether a mode is that of a folder.
pub(crate) fn is_dir(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.mode) == rustix::fs::FileType::Directory
}

/// Whether a mode is that of a regular file.
pub(crate) fn is_file(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.mode) == rustix::fs::FileType::RegularFile
}

/// The status that answers a failure to open or look at a file, as nginx maps them.
pub(crate) fn status_of(errno: Errno) -> u16 {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => 404,
        // EXDEV and ELOOP: a symbolic link that RESOLVE_BENEATH refuses.
        Errno::ACCESS | Errno::XDEV | Errno::LOOP => 403,
        _ => 500,
    }
}

/// For messages: a path as text.
pub(crate) fn display(path: &[u8]) -> std::path::Display<'_> {
    Path::new(std::ffi::OsStr::from_bytes(path)).display()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_seldom_and_what_succeeds_always() {
        let hunch = Hunch::default();
        let trials =
            |hit: bool| (0..1300).filter(|_| hunch.is_worth_trying()).map(|_| hunch.note(hit)).count();
        assert_eq!(trials(true), 1300);
        let misses = trials(false);
        assert!((80..120).contains(&misses), "{misses} of 1300");
        assert!(trials(true) > 1280, "it recovers with the first success");
    }
}
