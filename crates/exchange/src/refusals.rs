//! Error log lines about paths and ports that the sandbox refuses: the kernel's error alone (`EACCES`) looks like a missing
//! permission, and does not say which directive allows the access.
//!
//! The reason of an error is searched only after the error, on a helper thread, at most once per second and thread.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

use io::Errno;
use io::op::PeerAddr;
use rt::HelperPool;
use site::allowed_paths::RefusedPath;
use site::enforced::{Enforced, PathRefusal};
use telemetry::Level;
use telemetry::named::OpenErrorObserver;
use telemetry::reports::Reporter;

use crate::error_log;
use crate::request::Request;
use crate::thread::Thread;
pub use site::needs::Access;

/// Maximum number of threads that search the reason of an error.
const SEARCH_THREADS_MAX: usize = 2;

/// The threads that search the reason of an error: a search reads links, so it may wait for the disk.
static SEARCHES: LazyLock<HelperPool> = LazyLock::new(|| HelperPool::new("refusals", SEARCH_THREADS_MAX));

/// Writes a line if the sandbox has caused the error of an operation on a path of a request.
#[inline]
pub fn note_path(request: &Request, path: &[u8], access: Access, errno: Errno) {
    if is_refusal(errno) {
        search(&request.conn.thread, path, access, || request.reporter());
    }
}

/// Writes a line to the error log of the process if the sandbox has caused the error of an operation on a path.
pub fn note_path_of_thread(thread: &Rc<Thread>, path: &[u8], access: Access, errno: Errno) {
    if is_refusal(errno) {
        search(thread, path, access, || {
            let thread = Rc::clone(thread);
            Box::new(move |level, text| error_log::write(&thread, level, format_args!("{text}")))
        });
    }
}

/// Returns a function that does the same as [`note_path`] for a file that is written, after the request has ended.
pub fn later_note(request: &Request) -> OpenErrorObserver {
    later_note_by(&request.conn.thread, request.reporter())
}

/// Works like [`later_note`], with this writer of lines.
pub fn later_note_by(thread: &Rc<Thread>, reporter: Reporter) -> OpenErrorObserver {
    let thread = Rc::clone(thread);
    Box::new(move |path, errno| {
        if is_refusal(errno) {
            search(&thread, path, Access::Write, || reporter);
        }
    })
}

/// Returns a line for the error log if the sandbox has caused the error of a connection, and the line is due.
pub fn refused_port(thread: &Thread, address: &PeerAddr, errno: Errno) -> Option<String> {
    let (Errno::ACCESS, PeerAddr::Inet(address)) = (errno, address) else { return None };
    let Enforced { ports: Some(ports), .. } = Enforced::get()? else { return None };
    let port = address.port();
    if ports.contains(&port) {
        return None;
    }
    let held_back = thread.capacity.alarms.sandbox.due(rt::now())?;
    Some(format!(
        "the sandbox refuses connections to port {port}, because no directive names this port: a server \
         with this port in an \"upstream\" block allows them{held_back}"
    ))
}

/// Whether an error may be that of a sandbox (landlock(7)): a rename between directories with different rules fails with
/// `EXDEV`.
#[inline]
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::XDEV)
}

/// Starts the search for the reason.
#[cold]
fn search(thread: &Thread, path: &[u8], access: Access, reporter: impl FnOnce() -> Reporter) {
    let Some(enforced) = Enforced::get() else { return };
    if thread.capacity.alarms.sandbox.due(rt::now()).is_none() {
        return;
    }
    let (path, report) = (PathBuf::from(OsStr::from_bytes(path)), reporter());
    rt::spawn(async move {
        let searched = path.clone();
        let found = SEARCHES.run(move || enforced.refusal(&searched, access)).await;
        if let Some(Some(refusal)) = found {
            report(Level::Error, &message(&path, &refusal));
        }
    });
}

/// Returns the line.
fn message(path: &Path, refusal: &PathRefusal) -> String {
    let path = path.display();
    match refusal {
        PathRefusal::Replaced(replaced) => format!(
            "the sandbox refuses \"{path}\", because \"{}\" led to another file or directory when this worker process was started: \
             a new worker process will permit it",
            replaced.display()
        ),
        PathRefusal::NotAllowed(refused) => {
            format!("the sandbox refuses \"{path}\"{}: \"{}\" allows it", cause(refused), refused.directive())
        }
    }
}

/// Returns why no directive allows a path.
fn cause(refused: &RefusedPath) -> String {
    match (&refused.link, refused.access) {
        (Some(link), _) => {
            format!(", because the symbolic link \"{}\" leads out of the allowed paths", link.display())
        }
        (None, Access::Read) => ", because no directive names a directory above it".to_owned(),
        (None, Access::Write) => " for writing, because no directive names a directory above it".to_owned(),
    }
}
