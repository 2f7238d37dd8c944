//! Log files as one worker thread writes them: lines gather in memory and go out through the engine, one
//! write at a time for each file, so that a slow disk delays lines but never a request.
//!
//! When the disk falls behind by [`BACKLOG_MAX`] bytes, further lines are dropped, counted, and the loss is
//! said in the file as soon as it can be.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use io::op::DeviceId;
use rt::File;
use rt::local::Event;

use crate::body::choose;

/// Bytes of lines that wait for one file on one thread: some seconds of a busy server.
pub(crate) const BACKLOG_MAX: usize = 4 << 20;

/// Bytes of one write.
const WRITE_MAX: usize = 256 << 10;

/// The log files of one thread.
pub(crate) struct LogFiles {
    by_path: RefCell<HashMap<PathBuf, Rc<LogFile>>>,
    stderr: Option<Rc<LogFile>>,
}

/// One log file.
pub(crate) struct LogFile {
    file: RefCell<File>,
    lines: RefCell<Vec<u8>>,
    /// Set when the writer task has something to do.
    wake: Event,
    writing: Cell<bool>,
    lost: Cell<u64>,
    failed: Cell<u64>,
}

impl LogFiles {
    /// The files by path, and the standard error stream.
    pub(crate) fn new(files: Vec<(PathBuf, OwnedFd)>, stderr: Option<OwnedFd>) -> LogFiles {
        let by_path = files.into_iter().map(|(path, fd)| (path, LogFile::start(fd))).collect();
        LogFiles { by_path: RefCell::new(by_path), stderr: stderr.map(LogFile::start) }
    }

    /// The file of this path, when it was opened.
    pub(crate) fn get(&self, path: &Path) -> Option<Rc<LogFile>> {
        self.by_path.borrow().get(path).cloned()
    }

    /// The standard error stream.
    pub(crate) fn stderr(&self) -> Option<Rc<LogFile>> {
        self.stderr.clone()
    }

    /// Writes on into these files: they were opened again under the same names, or are new.
    pub(crate) fn reopen(&self, files: Vec<(PathBuf, OwnedFd)>) {
        let mut by_path = self.by_path.borrow_mut();
        for (path, fd) in files {
            match by_path.get(&path) {
                Some(file) => *file.file.borrow_mut() = File::new(fd),
                None => {
                    by_path.insert(path, LogFile::start(fd));
                }
            }
        }
    }

    /// Waits until all lines are written, at the end of the thread.
    pub(crate) async fn flush(&self) {
        let files: Vec<Rc<LogFile>> = self.by_path.borrow().values().chain(&self.stderr).cloned().collect();
        for file in files {
            while file.writing.get() || !file.lines.borrow().is_empty() {
                file.wake.set();
                rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
            }
        }
    }
}

impl LogFile {
    fn start(fd: OwnedFd) -> Rc<LogFile> {
        let file = Rc::new(LogFile {
            file: RefCell::new(File::new(fd)),
            lines: RefCell::default(),
            wake: Event::new(),
            writing: Cell::new(false),
            lost: Cell::new(0),
            failed: Cell::new(0),
        });
        let writer = Rc::clone(&file);
        rt::spawn(async move { writer.write_on().await });
        file
    }

    /// Adds a line. It goes out in this turn, unless all that wait are within `hold` bytes: then the answer is
    /// whether it is the first of them, and [`LogFile::release`] lets them go.
    pub(crate) fn append(&self, hold: usize, line: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= BACKLOG_MAX {
            self.lost.set(self.lost.get() + 1);
            return false;
        }
        let first = lines.is_empty();
        line(&mut lines);
        if lines.len() <= hold {
            return first;
        }
        if !self.writing.get() {
            self.wake.set();
        }
        false
    }

    /// Lets lines go out that are held back.
    pub(crate) fn release(&self) {
        if !self.lines.borrow().is_empty() {
            self.wake.set();
        }
    }

    /// The writer task: ends with the thread.
    async fn write_on(&self) {
        loop {
            self.wake.wait().await;
            self.wake.clear();
            self.writing.set(true);
            while !self.lines.borrow().is_empty() {
                self.write_some().await;
            }
            self.writing.set(false);
        }
    }

    async fn write_some(&self) {
        let Some(mut buf) = rt::pool().get(self.lines.borrow().len().min(WRITE_MAX)) else {
            // Memory is short: the lines wait, and are dropped when there are too many.
            rt::sleep_until(rt::now() + Duration::from_millis(10)).await;
            return;
        };
        {
            let mut lines = self.lines.borrow_mut();
            let taken = buf.append(&lines);
            lines.drain(..taken);
            let lost = self.lost.take();
            if lost > 0 {
                lines.extend_from_slice(
                    format!("{lost} lines were lost here: the disk was too slow\n").as_bytes(),
                );
            }
        }
        let file = self.file.borrow().clone();
        let via = choose::best_engine(&rt::caps());
        let (result, _) = file.write_at(0, buf, DeviceId::default(), via).await;
        if result.is_err() {
            self.failed.set(self.failed.get() + 1);
        }
    }
}
