//! The error log of master and worker control, in nginx's form.
//!
//! ```text
//! 2026/11/21 09:30:00 [notice] 4711#4711: signal 1 (SIGHUP) received from 42, reconfiguring
//! ```
//! Until the server runs, warnings and errors also go to standard error as `ringroad: [emerg] ...`, as
//! nginx does. The threads that serve write through a log of their own, not through this one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub(crate) use server::log::{Level, Target};

/// An open [`Target`].
#[derive(Clone, Debug)]
enum Sink {
    Stderr,
    File(Rc<OwnedFd>),
}

/// An open log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    sinks: Vec<(Sink, Level)>,
    /// Standard error is told too.
    echo: bool,
}

impl Log {
    /// Standard error only, before any file is known.
    pub(crate) fn stderr(level: Level) -> Log {
        Log { sinks: vec![(Sink::Stderr, level)], echo: false }
    }

    /// Nothing but the copy on standard error.
    pub(crate) fn echo_only() -> Log {
        Log { sinks: Vec::new(), echo: true }
    }

    /// One file, with the copy on standard error.
    pub(crate) fn early(file: Rc<OwnedFd>, level: Level) -> Log {
        Log { sinks: vec![(Sink::File(file), level)], echo: true }
    }

    /// The targets of a configuration; `find` knows the open files. A file that is not open is left out.
    pub(crate) fn of(targets: &[(Target, Level)], find: impl Fn(&Path) -> Option<Rc<OwnedFd>>) -> Log {
        let sinks = targets.iter().filter_map(|(target, level)| match target {
            Target::Stderr => Some((Sink::Stderr, *level)),
            Target::File(path) => Some((Sink::File(find(path)?), *level)),
        });
        Log { sinks: sinks.collect(), echo: false }
    }

    /// With or without the copy on standard error.
    #[must_use]
    pub(crate) fn with_echo(self, echo: bool) -> Log {
        Log { echo, ..self }
    }

    /// The first file among the targets, unless standard error is one of them.
    pub(crate) fn file_instead_of_stderr(&self) -> Option<BorrowedFd<'_>> {
        let mut found = None;
        for (sink, _) in &self.sinks {
            match sink {
                Sink::Stderr => return None,
                Sink::File(file) => found = found.or(Some(file.as_fd())),
            }
        }
        found
    }

    /// Takes over from `old`: where standard error is the file of the old log, as in a daemon, it becomes that
    /// of this one. Otherwise a rotated log would be held open for ever.
    pub(crate) fn take_stderr_from(&self, old: &Log) {
        let (Some(old), Some(new)) = (old.file_instead_of_stderr(), self.file_instead_of_stderr()) else {
            return;
        };
        let identity = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if let (Ok(current), Ok(old)) = (identity(rustix::stdio::stderr()), identity(old))
            && current == old
        {
            // What libraries print is not worth an error.
            let _ = rustix::stdio::dup2_stderr(new);
        }
    }

    /// One line.
    pub(crate) fn write(&self, level: Level, message: impl fmt::Display) {
        let line = LazyLine { level, message: &message };
        let (mut text, mut on_stderr) = (None, false);
        for (sink, limit) in &self.sinks {
            if level > *limit {
                continue;
            }
            let bytes = text.get_or_insert_with(|| line.in_log()).as_bytes();
            match sink {
                Sink::Stderr => {
                    on_stderr = true;
                    write_all(rustix::stdio::stderr(), bytes);
                }
                Sink::File(file) => write_all(file.as_fd(), bytes),
            }
        }
        if self.echo && !on_stderr && level <= Level::Warn {
            write_all(rustix::stdio::stderr(), line.for_terminal().as_bytes());
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

/// A line is put together only if somebody takes it.
struct LazyLine<'a> {
    level: Level,
    message: &'a dyn fmt::Display,
}

impl LazyLine<'_> {
    fn in_log(&self) -> String {
        let time = jiff::Zoned::now().strftime("%Y/%m/%d %H:%M:%S").to_string();
        let thread = rustix::thread::gettid().as_raw_nonzero();
        format!("{time} [{}] {}#{thread}: {}\n", self.level, std::process::id(), self.message)
    }

    fn for_terminal(&self) -> String {
        format!("ringroad: [{}] {}\n", self.level, self.message)
    }
}

/// Opens a log file as nginx does: 0644, created where missing, every write at the end.
///
/// The standard streams are shared instead of opened anew: a second opening of a regular file would have a position
/// of its own and write over the first one's lines, and a socket cannot be opened at all.
pub(crate) fn open_file(path: &Path) -> Result<OwnedFd, Errno> {
    for (name, stream) in [("/dev/stderr", rustix::stdio::stderr()), ("/dev/stdout", rustix::stdio::stdout())]
    {
        if path == Path::new(name) {
            return rustix::io::fcntl_dupfd_cloexec(stream, 3);
        }
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
}

/// Makes standard error append where it is a regular file. Several processes and threads write to it, the latter
/// with positions of their own, and would write over each other's lines; in append mode the kernel ignores
/// positions, write(2). The flag belongs to the open file, so that the worker inherits it.
pub(crate) fn let_stderr_append() {
    let stderr = rustix::stdio::stderr();
    let is_file = rustix::fs::fstat(stderr).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
    });
    if is_file && let Ok(flags) = rustix::fs::fcntl_getfl(stderr) {
        // Where it cannot be had the lines are still written.
        let _ = rustix::fs::fcntl_setfl(stderr, flags | OFlags::APPEND);
    }
}

/// A log that cannot be written has nobody to tell; nginx drops such lines too.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return,
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
