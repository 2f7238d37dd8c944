//! Logs whose file names depend on the request. Separate tasks open, write and close the files.
//!
//! Without `open_log_file_cache` a file stays open while lines for it are queued, so that consecutive lines need one
//! open. With the directive, its rules determine how long files stay open. The worker opens the files itself, with the
//! permissions of its user, as nginx does.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use io::facts::{DeviceId, Stat};
use io::op::OpenHow;
use io::{Disk, DiskVia, Errno};
use rt::{File, Timer};
use rustix::fs::{FileType, OFlags};

use crate::bell::Bell;
use crate::links::Rule;
use crate::losses::{Cause, Losses, NAMED};
use crate::prompt::Prompt;
use crate::reports::{Outgoing, Report, ReportLog, Reporter};
use crate::tear::Tear;
use crate::writer::{WRITE_MAX, count_lines, device_of, first_lines};
use crate::{Level, Reason, Target};

/// Maximum number of bytes of queued lines for all files with variables in their names on one thread, including
/// [`OPENING_COST`] for each such file. Clients may influence the names, so the number of files is otherwise unlimited.
const WAITING_MAX: usize = 4 << 20;

/// Maximum number of bytes queued for one file, so that a blocked file leaves room for the others.
const WAITING_EACH_MAX: usize = WAITING_MAX / 4;

/// Number of bytes that a file with queued lines counts in addition to them, for the state of its open.
const OPENING_COST: usize = 1024;

/// nginx's description of the current action.
const WHILE: &str = " while logging request";

/// Files with variables in their names, of one configuration on one thread.
pub struct NamedLogs {
    /// The files by the number of their cache; table 0 contains the files without a cache.
    tables: RefCell<Vec<Table>>,
    shared: Rc<NamedState>,
    /// Reused memory for a name.
    name: RefCell<Vec<u8>>,
}

type Table = HashMap<Box<[u8]>, Rc<Named>>;

struct NamedState {
    outgoing: Rc<Outgoing>,
    /// Number of queued bytes, plus [`OPENING_COST`] for each file with queued lines.
    waiting: Cell<usize>,
    /// Lost lines of all files: thousands of names share one report.
    losses: Losses,
    /// Path of the file that lost lines most recently, for the report.
    lossy: RefCell<Vec<u8>>,
}

/// A log file.
struct Named {
    path: Box<[u8]>,
    cache: Option<FileCache>,
    shared: Rc<NamedState>,
    waiting: RefCell<Vec<u8>>,
    bell: Bell,
    file: RefCell<Option<Open>>,
    prompt: Prompt,
    tear: Tear,
    /// The rule of `disable_symlinks`. The same path with another rule counts as another file.
    links: Rule,
    /// The request for which the file is opened: its root must exist, and its error log receives the report of a
    /// failed open.
    requester: RefCell<Option<Requester>>,
    uses: Cell<u64>,
    used: Cell<Instant>,
    /// Whether the file must be closed when all lines are written: after a reload, a reopening of logs, an eviction
    /// from the cache, or a change of `links`.
    dismissed: Cell<bool>,
}

/// The request that needs the file.
pub struct Requester {
    /// The root directory of the request, which must exist.
    pub root: Vec<u8>,
    /// Writes to the error log of the request.
    pub report: Reporter,
    /// Called if the file cannot be opened.
    pub not_opened: OpenErrorObserver,
}

/// Gets the path and the error of a file that cannot be opened.
pub type OpenErrorObserver = Box<dyn FnOnce(&[u8], Errno)>;

/// `open_log_file_cache`, of the block that contains it and of inner blocks
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCache {
    /// Number of the cache in the configuration, 1-based.
    pub number: u32,
    /// Maximum number of files in the cache.
    pub max: u64,
    /// Time without use after which a file is closed.
    pub inactive: Duration,
    /// Time after which the file's name is checked again.
    pub valid: Duration,
    /// Minimum number of uses during `inactive` for a file to stay open.
    pub min_uses: u64,
}

#[derive(Clone)]
struct Open {
    file: File,
    stat: Stat,
    device: DeviceId,
    /// Time when the name was last verified to refer to this file.
    checked: Instant,
}

impl NamedLogs {
    /// Creates the state without open files.
    pub fn new(outgoing: &Rc<Outgoing>) -> Rc<NamedLogs> {
        let shared = NamedState {
            outgoing: Rc::clone(outgoing),
            waiting: Cell::new(0),
            losses: Losses::of(NAMED),
            lossy: RefCell::default(),
        };
        Rc::new(NamedLogs { tables: RefCell::default(), shared: Rc::new(shared), name: RefCell::default() })
    }

    /// Adds a line to a file: `path` appends the name of the file, `line` the text. Calls `requester` if the file is
    /// not open.
    pub fn append(
        self: &Rc<Self>,
        cache: Option<FileCache>,
        path: impl FnOnce(&mut Vec<u8>),
        links: impl FnOnce(&[u8]) -> Rule,
        requester: impl FnOnce() -> Requester,
        line: impl FnOnce(&mut Vec<u8>),
    ) {
        // The buffer is moved out of the cell, because evaluating a variable in the name may call this function again.
        let mut name = self.name.take();
        name.clear();
        path(&mut name);
        match self.named(&name, links(&name), cache) {
            Some(named) => named.append(requester, line),
            None => self.shared.lose(&name, Losses::drop_one),
        }
        self.name.replace(name);
    }

    /// Closes the open files, because they may have been renamed. Queued lines are written first.
    pub fn dismiss(&self) {
        for table in self.tables.take() {
            table.into_values().for_each(|named| named.dismiss());
        }
    }

    /// Returns the file with this name; `None` if too many bytes are queued.
    fn named(self: &Rc<Self>, name: &[u8], links: Rule, cache: Option<FileCache>) -> Option<Rc<Named>> {
        // Numbers of caches are 1-based, so 0 stands for no cache.
        let index = cache.map_or(0, |cache| cache.number as usize);
        let mut tables = self.tables.borrow_mut();
        if tables.len() <= index {
            tables.resize_with(index + 1, Table::default);
        }
        let table = &mut tables[index];
        if self.shared.waiting.get() >= WAITING_MAX {
            return None;
        }
        // The rule seldom changes. A file with the old rule is closed after its lines are written.
        match table.get(name) {
            Some(named) if named.links == links => return Some(Rc::clone(named)),
            Some(other) => other.dismiss(),
            None => {}
        }
        // As in nginx, the file that was unused for the longest time is evicted. The search of the complete table is
        // acceptable: only a new name needs it, which also costs an open.
        if let Some(cache) = cache
            && table.len() as u64 >= cache.max
            && let Some(oldest) = table.values().min_by_key(|named| named.used.get()).cloned()
        {
            table.remove(&oldest.path);
            oldest.dismiss();
        }
        let named = Rc::new(Named {
            path: name.into(),
            cache,
            shared: Rc::clone(&self.shared),
            waiting: RefCell::default(),
            bell: Bell::default(),
            file: RefCell::default(),
            prompt: Prompt::default(),
            tear: Tear::default(),
            links,
            requester: RefCell::default(),
            uses: Cell::new(0),
            used: Cell::new(rt::now()),
            dismissed: Cell::new(false),
        });
        // The task owns the file, because the entry of the table may be evicted while lines are queued.
        table.insert(name.into(), Rc::clone(&named));
        let (task, logs) = (Rc::clone(&named), Rc::downgrade(self));
        rt::spawn(async move { task.run(logs).await });
        Some(named)
    }

    /// Removes a file from its table, unless another file with the same name has replaced it.
    fn forget(&self, named: &Rc<Named>) {
        let index = named.cache.map_or(0, |cache| cache.number as usize);
        if let Some(table) = self.tables.borrow_mut().get_mut(index)
            && table.get(&named.path).is_some_and(|known| Rc::ptr_eq(known, named))
        {
            table.remove(&named.path);
        }
    }
}

impl Drop for NamedLogs {
    fn drop(&mut self) {
        self.dismiss();
    }
}

impl NamedState {
    /// Adds to the number of queued bytes.
    fn charge(&self, bytes: usize) {
        self.waiting.set(self.waiting.get() + bytes);
    }

    /// Subtracts from the number of queued bytes, after a write, a loss or a close.
    fn credit(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
    }

    /// Counts lost lines of a file, by `count`.
    fn lose(&self, path: &[u8], count: impl FnOnce(&Losses)) {
        count(&self.losses);
        self.lossy.replace(path.to_vec());
        self.report_losses(None);
    }

    /// Reports lost lines in the error log, if a report is due. `written` is the path of a file that was just written.
    fn report_losses(&self, written: Option<&[u8]>) {
        if self.losses.is_any() {
            let path = self.lossy.borrow().clone();
            let works = written == Some(&path);
            let target = Target::File(PathBuf::from(std::ffi::OsString::from_vec(path)));
            if let Some(text) = self.losses.report(works, &target) {
                self.outgoing.report(Report { level: Level::Alert, text, log: ReportLog::Process(target) });
            }
        }
    }
}

impl Named {
    fn append(&self, requester: impl FnOnce() -> Requester, line: impl FnOnce(&mut Vec<u8>)) {
        if self.waiting.borrow().len() >= WAITING_EACH_MAX {
            return self.shared.lose(&self.path, Losses::drop_one);
        }
        self.uses.set(self.uses.get() + 1);
        self.used.set(rt::now());
        // The requester is needed only for an open, which costs much more than the copies of request data.
        if self.file.borrow().is_none() && self.requester.borrow().is_none() {
            self.requester.replace(Some(requester()));
        }
        let mut waiting = self.waiting.take();
        let before = waiting.len();
        if before == 0 {
            self.shared.outgoing.count_busy(true);
            self.shared.charge(OPENING_COST);
        }
        line(&mut waiting);
        waiting.push(b'\n');
        debug_assert!(before < waiting.len(), "a line has at least its end");
        self.shared.charge(waiting.len() - before);
        // Evaluating a variable of the line can only log errors to other files, not to this one.
        self.waiting.replace(waiting);
        self.bell.ring();
    }

    /// Ends the task as soon as all lines are written.
    fn dismiss(&self) {
        self.dismissed.set(true);
        self.bell.ring();
    }

    /// Runs the task of the file, until the file need not be open.
    async fn run(self: Rc<Self>, logs: Weak<NamedLogs>) {
        let timer = Timer::new();
        let via = rt::caps().best_disk();
        loop {
            if !self.waiting.borrow().is_empty() {
                self.write_some(via).await;
                continue;
            }
            let Some(cache) = self.cache.filter(|_| !self.dismissed.get()) else { break };
            // The file stays in the table, so that its uses are counted, but it is closed.
            if self.uses.get() < cache.min_uses {
                self.file.take();
            }
            let until = self.used.get() + cache.inactive;
            if until <= rt::now() {
                break;
            }
            timer.set(until);
            // The timer is set again if it fires too early because the file was used again.
            let _ = timer.limit(self.bell.wait()).await;
        }
        // No await since the queue was empty: a line that arrives from now on does not find this file and creates
        // another.
        if let Some(logs) = logs.upgrade() {
            logs.forget(&self);
        }
    }

    /// Writes one buffer. Opens the file first if it is not open.
    async fn write_some(&self, via: DiskVia) {
        // Lines that arrive during the open belong to requests whose root may exist although that of the first does not.
        let queued = self.waiting.borrow().len();
        let open = match self.open(via).await {
            Ok(open) => open,
            Err(NotOpened) => {
                let lines = count_lines(&self.waiting.borrow()[..queued]);
                self.shared.losses.count(lines);
                return self.consume(queued);
            }
        };
        self.shared.charge(self.tear.prepare(&mut self.waiting.borrow_mut()));
        let (count, by_call) = {
            let waiting = self.waiting.borrow();
            let text = first_lines(&waiting, WRITE_MAX);
            (text.len(), self.prompt.write(&open.file, text))
        };
        // The number of written bytes, and of bytes that were written or lost.
        let (written, count, result) = match by_call {
            Some(Ok(written)) => (written, written, Ok(())),
            Some(Err(errno)) => (0, count, Err(errno)),
            None => {
                let Some((written, result)) = self.write_by_engine(&open, count, via).await else { return };
                (written, count, result)
            }
        };
        match result {
            Ok(()) => {
                self.tear.written(&self.waiting.borrow()[..count]);
                self.consume(count);
                self.shared.report_losses(Some(&self.path));
            }
            Err(errno) => {
                let lines = self.tear.failed(&self.waiting.borrow()[..count], written);
                self.consume(count);
                self.shared.lose(&self.path, |losses| losses.fail(lines, Cause::Write(errno)));
            }
        }
    }

    /// Writes the first `count` queued bytes, and returns the number of written bytes with the result. Returns `None` if memory is
    /// scarce and the lines stay queued.
    async fn write_by_engine(
        &self,
        open: &Open,
        count: usize,
        via: DiskVia,
    ) -> Option<(usize, Result<(), Errno>)> {
        let Some(mut buf) = rt::pool().get(count) else {
            // Memory is scarce: the lines stay queued, and are dropped when they reach the limit.
            rt::sleep_until(rt::now() + Duration::from_millis(10)).await;
            return None;
        };
        buf.append(&self.waiting.borrow()[..count]);
        let began = Instant::now();
        // In append mode the kernel ignores the offset, write(2).
        let (result, rest) = open.file.write_at(0, buf, Disk { device: open.device, via }).await;
        self.prompt.note(began, Instant::now());
        let unwritten = if result.is_ok() { 0 } else { rest.map_or(count, |rest| rest.len()) };
        Some((count.saturating_sub(unwritten), result.map(drop)))
    }

    /// Removes bytes that have been written or lost.
    fn consume(&self, count: usize) {
        let mut waiting = self.waiting.borrow_mut();
        assert!(count <= waiting.len(), "only waiting bytes are written");
        waiting.drain(..count);
        self.shared.credit(count);
        if waiting.is_empty() {
            self.shared.credit(OPENING_COST);
            self.shared.outgoing.count_busy(false);
        }
    }

    /// Returns the open file, or opens it. Errors have been reported.
    async fn open(&self, via: DiskVia) -> Result<Open, NotOpened> {
        let known = self.file.borrow().clone();
        if let Some(mut open) = known {
            let valid = self.cache.map_or(Duration::MAX, |cache| cache.valid);
            if rt::now().saturating_duration_since(open.checked) < valid {
                return Ok(open);
            }
            // After a log rotation the name refers to another file or to none.
            let there = rt::file::stat_path(self.path()?, Disk { device: open.device, via }).await;
            if there.is_ok_and(|there| (there.device, there.inode) == (open.stat.device, open.stat.inode)) {
                open.checked = rt::now();
                self.file.replace(Some(open.clone()));
                return Ok(open);
            }
            self.file.take();
        }
        let requester = self.requester.take();
        match self.reopen(requester.as_ref(), via).await {
            Ok(open) => {
                self.file.replace(Some(open.clone()));
                Ok(open)
            }
            Err(Unopened { level, text, errno }) => {
                let report = requester.map(|requester| {
                    if let Some(errno) = errno {
                        (requester.not_opened)(&self.path, errno);
                    }
                    requester.report
                });
                self.report(level, text, report);
                Err(NotOpened)
            }
        }
    }

    /// Opens the file. As in nginx, the root of the request must exist: a client may invent a host name, for which no
    /// file must be created.
    async fn reopen(&self, requester: Option<&Requester>, via: DiskVia) -> Result<Open, Unopened> {
        if let Some(requester) = requester {
            let is_folder = |stat: Stat| FileType::from_raw_mode(stat.mode) == FileType::Directory;
            let root = CString::new(requester.root.clone()).map_err(|_| Errno::INVAL);
            let found = match root {
                Ok(root) => rt::file::stat_path(root, Disk { device: DeviceId::default(), via }).await,
                Err(errno) => Err(errno),
            };
            if let Some(errno) =
                found.map(|stat| (!is_folder(stat)).then_some(Errno::NOTDIR)).unwrap_or_else(Some)
            {
                let root = String::from_utf8_lossy(&requester.root);
                let text = format!("testing \"{root}\" existence failed ({}){WHILE}", Reason(errno));
                return Err(Unopened { level: Level::Error, text, errno: None });
            }
        }
        // nginx's text and level.
        let failed = |errno| {
            let path = String::from_utf8_lossy(&self.path);
            let call = if self.links.checks() { "openat" } else { "open" };
            let text = format!("{call}() \"{path}\" failed ({}){WHILE}", Reason(errno));
            Unopened { level: Level::Crit, text, errno: Some(errno) }
        };
        // Without O_NONBLOCK, opening a FIFO would wait for a reader.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut how = OpenHow { flags: flags.bits() as i32, mode: 0o644, ..OpenHow::default() };
        self.links.apply(&mut how);
        // Links are checked from this offset of the path: `from=` of `disable_symlinks`.
        let (above, below) = self.path.split_at(self.links.from);
        let from =
            if above.is_empty() { None } else { Some(open_directory(above, via).await.map_err(failed)?) };
        // A path that is opened from a directory must be relative.
        let slashes = below.iter().take_while(|&&byte| from.is_some() && byte == b'/').count();
        let path = CString::new(&below[slashes..]).map_err(|_| failed(Errno::INVAL))?;
        let dir = from.as_ref().map(File::fd);
        let file =
            File::open(dir, path, how, Disk { device: DeviceId::default(), via }).await.map_err(failed)?;
        let stat = file.stat(Disk { device: DeviceId::default(), via }).await.map_err(failed)?;
        let device = device_of(&stat);
        // Without a cache, opening already needs the engine for each line, so a direct write gains little.
        if self.cache.is_some() && self.shared.outgoing.calls_directly() {
            self.prompt.check(&file, &stat, device).await;
        }
        Ok(Open { file, stat, device, checked: rt::now() })
    }

    fn path(&self) -> Result<CString, NotOpened> {
        CString::new(&*self.path).map_err(|_| NotOpened)
    }

    /// Reports to the error log of the request, or to the error log of the process if no request caused the open.
    fn report(&self, level: Level, text: String, report: Option<Reporter>) {
        let process = || ReportLog::Process(Target::File(PathBuf::new()));
        let log = report.map_or_else(process, ReportLog::Request);
        self.shared.outgoing.report(Report { level, text, log });
    }
}

/// Opens a directory as the start of a relative path.
async fn open_directory(path: &[u8], via: DiskVia) -> Result<File, Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    File::open(None, path, how, Disk { device: DeviceId::default(), via }).await
}

/// The reason why a file could not be opened, for the error log.
struct Unopened {
    level: Level,
    text: String,
    /// The error of the file itself.
    errno: Option<Errno>,
}

/// The file could not be opened.
struct NotOpened;
