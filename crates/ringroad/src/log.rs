//! The error log of the master and of the worker's control thread, in nginx's form.
//!
//! ```text
//! 2026/11/21 09:30:00 [notice] 4711#4711: signal 1 (SIGHUP) received from 42, reconfiguring
//! ```
//! Until the server runs, warnings and errors also go to standard error as `ringroad: [emerg] ...`, as in nginx. The
//! server's threads write through separate logs, not through this one.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use server::telemetry::syslog::{self, Socket};
pub(crate) use server::telemetry::{ErrorTarget, Level, Target};
use server::telemetry::{Form, JsonLine, append_printable};

use crate::owned_links;

/// Returns ` in FILE:LINE` of a directive, for the end of a message; nothing without a position.
pub(crate) fn place_of(position: Option<&conf::Span>) -> String {
    position.map(|position| format!(" in {position}")).unwrap_or_default()
}

/// Target of lines.
#[derive(Clone, Debug)]
enum Output {
    Stderr,
    File(Rc<OwnedFd>),
    Syslog(Rc<Socket>),
    /// A list of messages.
    Memory(Messages),
}

/// Messages that a command reads instead of a log.
pub(crate) type Messages = Rc<RefCell<Vec<(Level, String)>>>;

/// An open [`ErrorTarget`].
#[derive(Clone, Debug)]
struct Sink {
    output: Output,
    level: Level,
    form: Form,
}

/// An open log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    sinks: Vec<Sink>,
    /// Whether messages are copied to standard error.
    echo: bool,
    /// The first error since [`Log::forget_error`], for the command that has requested a reload.
    first_error: Rc<RefCell<Option<String>>>,
}

impl Log {
    /// Creates a log to standard error only, before any file is known.
    pub(crate) fn stderr(level: Level) -> Log {
        Log::new(vec![Sink { output: Output::Stderr, level, form: Form::Text }], false)
    }

    /// Creates a log that appends messages of this level to a list.
    pub(crate) fn collecting(level: Level, messages: &Messages) -> Log {
        Log::new(vec![Sink { output: Output::Memory(Rc::clone(messages)), level, form: Form::Text }], false)
    }

    /// Creates a log without targets, with only the copy on standard error.
    pub(crate) fn echo_only() -> Log {
        Log::new(Vec::new(), true)
    }

    /// Creates a log with one file and the copy on standard error.
    pub(crate) fn early(file: Rc<OwnedFd>, level: Level) -> Log {
        Log::new(vec![Sink { output: Output::File(file), level, form: Form::Text }], true)
    }

    /// Creates a log with the targets of a configuration; `find` returns the open files. A file that is not open is
    /// omitted.
    pub(crate) fn of(targets: &[ErrorTarget], find: impl Fn(&Path) -> Option<Rc<OwnedFd>>) -> Log {
        let sinks = targets.iter().filter_map(|target| {
            let output = match &target.target {
                Target::Stderr => Output::Stderr,
                Target::File(path) => Output::File(find(path)?),
                Target::Syslog(peer) => Output::Syslog(Rc::new(Socket::new(peer))),
            };
            Some(Sink { output, level: target.level, form: target.form })
        });
        Log::new(sinks.collect(), false)
    }

    fn new(sinks: Vec<Sink>, echo: bool) -> Log {
        Log { sinks, echo, first_error: Rc::default() }
    }

    /// Forgets the first error, at the start of a reload.
    pub(crate) fn forget_error(&self) {
        self.first_error.take();
    }

    /// Returns the first error since [`Log::forget_error`]; empty if none was logged.
    pub(crate) fn first_error(&self) -> String {
        self.first_error.borrow().clone().unwrap_or_default()
    }

    /// Enables or disables the copy on standard error.
    #[must_use]
    pub(crate) fn with_echo(self, echo: bool) -> Log {
        Log { echo, ..self }
    }

    /// Returns the first file among the targets, unless standard error is one of them.
    pub(crate) fn file_instead_of_stderr(&self) -> Option<BorrowedFd<'_>> {
        let mut found = None;
        for sink in &self.sinks {
            match &sink.output {
                Output::Stderr => return None,
                Output::File(file) => found = found.or(Some(file.as_fd())),
                Output::Syslog(_) | Output::Memory(_) => {}
            }
        }
        found
    }

    /// Redirects standard error from the file of the `old` log to that of this one, as in a daemon. Otherwise a rotated
    /// log file would stay open.
    pub(crate) fn take_stderr_from(&self, old: &Log) {
        let (Some(old), Some(new)) = (old.file_instead_of_stderr(), self.file_instead_of_stderr()) else {
            return;
        };
        let identity = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if let (Ok(current), Ok(old)) = (identity(rustix::stdio::stderr()), identity(old))
            && current == old
        {
            // Only libraries write to standard error, so a failure is ignored.
            let _ = rustix::stdio::dup2_stderr(new);
        }
    }

    /// Whether any target accepts lines of this level.
    pub(crate) fn accepts(&self, level: Level) -> bool {
        self.sinks.iter().any(|sink| level <= sink.level)
    }

    /// Writes one line.
    pub(crate) fn write(&self, level: Level, message: impl fmt::Display) {
        let line = LazyLine { level, message: &message };
        if level <= Level::Error {
            self.first_error.borrow_mut().get_or_insert_with(|| message.to_string());
        }
        let mut on_stderr = false;
        for sink in self.sinks.iter().filter(|sink| level <= sink.level) {
            // The master logs few lines, so each line is formatted again for each target.
            let mut text = Vec::new();
            match &sink.output {
                Output::Stderr => {
                    on_stderr = true;
                    line.append(sink.form, &mut text);
                    text.push(b'\n');
                    write_all(rustix::stdio::stderr(), &text);
                }
                Output::File(file) => {
                    line.append(sink.form, &mut text);
                    text.push(b'\n');
                    write_all(file.as_fd(), &text);
                }
                Output::Memory(messages) => messages.borrow_mut().push((level, message.to_string())),
                Output::Syslog(socket) => {
                    let time = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
                    socket.peer().header(Some(level), time.as_bytes(), &mut text);
                    let start = text.len();
                    line.append(sink.form, &mut text);
                    syslog::Peer::cut(start, &mut text);
                    // A failure to send is not logged, like a failure to write to a file.
                    let _ = socket.send(&text);
                }
            }
        }
        if self.echo && !on_stderr && level <= Level::Warn {
            write_all(rustix::stdio::stderr(), &line.for_terminal());
        }
    }

    pub(crate) fn emerg(&self, message: impl fmt::Display) {
        self.write(Level::Emerg, message);
    }

    pub(crate) fn alert(&self, message: impl fmt::Display) {
        self.write(Level::Alert, message);
    }

    pub(crate) fn notice(&self, message: impl fmt::Display) {
        self.write(Level::Notice, message);
    }
}

/// A line that is formatted only if a target accepts it.
struct LazyLine<'a> {
    level: Level,
    message: &'a dyn fmt::Display,
}

impl LazyLine<'_> {
    /// Appends the line without its newline, in the same forms as the server's threads.
    fn append(&self, form: Form, out: &mut Vec<u8>) {
        let (now, thread) = (jiff::Zoned::now(), rustix::thread::gettid().as_raw_nonzero());
        match form {
            Form::Text => {
                let time = now.strftime("%Y/%m/%d %H:%M:%S");
                let (level, pid) = (self.level, std::process::id());
                append_printable(out, format_args!("{time} [{level}] {pid}#{thread}: {}", self.message));
            }
            Form::Json => {
                let line = JsonLine::open(out).text("time", now.strftime("%Y-%m-%dT%H:%M:%S%:z"));
                let line = line.text("level", self.level).number("pid", u64::from(std::process::id()));
                line.number("tid", thread.get().unsigned_abs().into()).text("message", self.message).close();
            }
        }
    }

    fn for_terminal(&self) -> Vec<u8> {
        let mut out = Vec::new();
        append_printable(&mut out, format_args!("ringroad: [{}] {}", self.level, self.message));
        out.push(b'\n');
        out
    }
}

/// Opens a log file as nginx does: mode 0644, created if missing, every write appended. Unlike nginx, it follows no symbolic links
/// of the user of workers.
///
/// The standard streams are duplicated instead of opened again. If a stream is a regular file, a second open file
/// description would have a separate position, and lines would overwrite each other. If it is a socket, it cannot be
/// opened.
pub(crate) fn open_file(path: &Path) -> Result<OwnedFd, Errno> {
    for (name, stream) in [("/dev/stderr", rustix::stdio::stderr()), ("/dev/stdout", rustix::stdio::stdout())]
    {
        if path == Path::new(name) {
            return rustix::io::fcntl_dupfd_cloexec(stream, 3);
        }
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    owned_links::open_file(path, flags, Mode::from_raw_mode(0o644))
}

/// Returns a log file for a worker. A regular file is opened again: a worker that was taken over could clear `O_APPEND` of a shared
/// open file description, and lines of the master would then overwrite others.
pub(crate) fn of_worker(file: &Rc<OwnedFd>) -> Rc<OwnedFd> {
    let is_file = rustix::fs::fstat(file)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let opened = is_file.then(|| rustix::fs::open(path, flags, Mode::empty()).ok()).flatten();
    opened.map_or_else(|| Rc::clone(file), Rc::new)
}

/// Sets append mode on standard error if it is a regular file. Several processes and threads write to it, with separate
/// positions, and would overwrite each other's lines; in append mode the kernel ignores positions, write(2). The flag
/// belongs to the open file description, so the worker inherits it.
pub(crate) fn set_stderr_append() {
    let stderr = rustix::stdio::stderr();
    let is_file = rustix::fs::fstat(stderr)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    if is_file && let Ok(flags) = rustix::fs::fcntl_getfl(stderr) {
        // A failure is ignored: the lines are still written.
        let _ = rustix::fs::fcntl_setfl(stderr, flags | OFlags::APPEND);
    }
}

/// Writes bytes. A failure is ignored, as in nginx, because it cannot be logged. If the write would block, such as to a
/// full pipe, the line is dropped, because the process must handle signals. A regular file is always
/// ready, poll(2).
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut ready = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        if matches!(poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0)) {
            return;
        }
        match rustix::io::write(fd, bytes) {
            Ok(0) => return,
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker can change the flags of its own open file description only.
    #[test]
    fn a_worker_cannot_end_the_append_mode_of_the_master() {
        let path = std::env::temp_dir().join(format!("ringroad-append-{}", std::process::id()));
        let ours = Rc::new(open_file(&path).expect("a file"));
        let theirs = of_worker(&ours);
        let flags = |file: &OwnedFd| rustix::fs::fcntl_getfl(file).expect("flags");
        assert!(flags(&theirs).contains(OFlags::APPEND));
        rustix::fs::fcntl_setfl(&theirs, OFlags::empty()).expect("flags");
        assert!(flags(&ours).contains(OFlags::APPEND) && !flags(&theirs).contains(OFlags::APPEND));
        let (_, pipe) = rustix::pipe::pipe().expect("a pipe");
        let pipe = Rc::new(pipe);
        assert!(Rc::ptr_eq(&pipe, &of_worker(&pipe)));
        std::fs::remove_file(path).expect("it was made here");
    }
}
