//! Logs with file names that depend on the request: separate tasks open, write and close them.
//!
//! Without `open_log_file_cache` a file is open for as long as lines for it wait, so that neighbouring lines share one
//! opening. With it the files stay open by the rules of that directive. The worker opens them itself, with the
//! rights of its user, as nginx does.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use io::op::{DeviceId, OpenHow, Stat};
use io::{DiskVia, Errno};
use rt::{File, Timer};
use rustix::fs::{FileType, OFlags};

use crate::bell::Bell;
use crate::links::Rule;
use crate::losses::{Cause, Losses};
use crate::prompt::Prompt;
use crate::reports::{Outgoing, Report, Reporter, Whose};
use crate::writer::{WRITE_MAX, count_lines, device_of};
use crate::{Level, Reason, Target};

/// Bytes of lines that wait for such files on one thread, together with the cost of each file that is being opened:
/// clients may influence the names, so their number has no bound.
const WAITING_MAX: usize = 4 << 20;

/// Bytes that wait for one file: one that is stuck leaves room for the others.
const WAITING_EACH_MAX: usize = WAITING_MAX / 4;

/// The cost of a file that is being opened.
const OPENING_COST: usize = 1024;

/// nginx's text of the moment.
const WHILE: &str = " while logging request";

/// Files with variables in their names, of one configuration on one thread.
pub struct NamedLogs {
    /// By the number of the cache, and under 0 those that no cache holds.
    tables: RefCell<Vec<Table>>,
    shared: Rc<NamedState>,
    /// Memory for a name.
    name: RefCell<Vec<u8>>,
}

type Table = HashMap<Box<[u8]>, Rc<Named>>;

struct NamedState {
    outgoing: Rc<Outgoing>,
    /// Bytes that wait, and the cost of files.
    waiting: Cell<usize>,
    /// Lines that found no room, for all files: one report must do for thousands of names.
    losses: Losses,
}

/// One file.
struct Named {
    path: Box<[u8]>,
    cache: Option<FileCache>,
    shared: Rc<NamedState>,
    waiting: RefCell<Vec<u8>>,
    bell: Bell,
    file: RefCell<Option<Open>>,
    prompt: Prompt,
    /// `disable_symlinks`: the same path by another rule is another file here.
    links: Rule,
    /// For the report, and the root that has to exist, when the file is opened.
    asker: RefCell<Option<Asker>>,
    uses: Cell<u64>,
    used: Cell<Instant>,
    /// To be closed as soon as nothing waits: the configuration is gone, or the cache is full.
    dismissed: Cell<bool>,
    losses: Losses,
}

/// The request that needs the file.
pub struct Asker {
    /// Its root, which has to exist.
    pub root: Vec<u8>,
    /// Writes to its error log.
    pub report: Reporter,
}

/// `open_log_file_cache`, of the block that has it and those inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCache {
    /// Distinguishes the caches of a configuration; from 1.
    pub number: u32,
    /// Files in it.
    pub max: u64,
    /// A file that is not used for so long is closed.
    pub inactive: Duration,
    /// How often the name is looked up again.
    pub valid: Duration,
    /// A file that is used less often than that while it is remembered does not stay open.
    pub min_uses: u64,
}

#[derive(Clone)]
struct Open {
    file: File,
    stat: Stat,
    device: DeviceId,
    /// When the name was last seen to lead to this file.
    checked: Instant,
}

impl NamedLogs {
    /// None is open.
    pub fn new(outgoing: &Rc<Outgoing>) -> Rc<NamedLogs> {
        let shared =
            NamedState { outgoing: Rc::clone(outgoing), waiting: Cell::new(0), losses: Losses::default() };
        Rc::new(NamedLogs { tables: RefCell::default(), shared: Rc::new(shared), name: RefCell::default() })
    }

    /// Adds a line to the file with the name that `path` writes. `asker` is called if the file is not open.
    pub fn append(
        self: &Rc<Self>,
        cache: Option<FileCache>,
        path: impl FnOnce(&mut Vec<u8>),
        links: impl FnOnce(&[u8]) -> Rule,
        asker: impl FnOnce() -> Asker,
        line: impl FnOnce(&mut Vec<u8>),
    ) {
        // The memory is taken out, because a value of the name may be worth a line in another such log.
        let mut name = self.name.take();
        name.clear();
        path(&mut name);
        match self.named(&name, links(&name), cache) {
            Some(named) => named.append(asker, line),
            None => self.shared.lose(&name),
        }
        self.name.replace(name);
    }

    /// Closes the open files: the files may have been renamed. Lines that wait are written before.
    pub fn dismiss(&self) {
        for table in self.tables.take() {
            table.into_values().for_each(|named| named.dismiss());
        }
    }

    /// The file of this name; `None` when too much waits.
    fn named(self: &Rc<Self>, name: &[u8], links: Rule, cache: Option<FileCache>) -> Option<Rc<Named>> {
        // Numbers of caches start from 1, so that 0 is left for none.
        let place = cache.map_or(0, |cache| cache.number as usize);
        let mut tables = self.tables.borrow_mut();
        if tables.len() <= place {
            tables.resize_with(place + 1, Table::default);
        }
        let table = &mut tables[place];
        if self.shared.waiting.get() >= WAITING_MAX {
            return None;
        }
        // A change of the rule is rare, so it closes all files of the old one: its lines are written before.
        match table.get(name) {
            Some(named) if named.links == links => return Some(Rc::clone(named)),
            Some(other) => other.dismiss(),
            None => {}
        }
        // As in nginx the one that was not used for longest makes room. The search through all of them comes with a
        // new name only, which costs an opening anyway.
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
            links,
            asker: RefCell::default(),
            uses: Cell::new(0),
            used: Cell::new(rt::now()),
            dismissed: Cell::new(false),
            losses: Losses::default(),
        });
        // The task owns the file: entries of the table may be evicted while lines wait.
        table.insert(name.into(), Rc::clone(&named));
        let (task, logs) = (Rc::clone(&named), Rc::downgrade(self));
        rt::spawn(async move { task.run(logs).await });
        Some(named)
    }

    /// Takes a file out of its table, unless another one of the same name has its place by now.
    fn forget(&self, named: &Rc<Named>) {
        let place = named.cache.map_or(0, |cache| cache.number as usize);
        if let Some(table) = self.tables.borrow_mut().get_mut(place)
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
    /// More waits.
    fn charge(&self, bytes: usize) {
        self.waiting.set(self.waiting.get() + bytes);
    }

    /// Something was written, lost or closed.
    fn credit(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
    }

    /// A line for a file of this name found no room.
    fn lose(&self, name: &[u8]) {
        self.losses.drop_one();
        tell(&self.losses, false, name, &self.outgoing);
    }
}

/// Reports lost lines in the error log, if that is due.
fn tell(losses: &Losses, works: bool, path: &[u8], outgoing: &Outgoing) {
    if losses.is_any() {
        let target = Target::File(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
        if let Some(text) = losses.report(works, &target) {
            outgoing.report(Report { level: Level::Alert, text, whose: Whose::Process(target) });
        }
    }
}

impl Named {
    fn append(&self, asker: impl FnOnce() -> Asker, line: impl FnOnce(&mut Vec<u8>)) {
        if self.waiting.borrow().len() >= WAITING_EACH_MAX {
            self.losses.drop_one();
            return tell(&self.losses, false, &self.path, &self.shared.outgoing);
        }
        self.uses.set(self.uses.get() + 1);
        self.used.set(rt::now());
        // Only where the file is not open: then a line costs an open, which is much more than the copied parts of the
        // request.
        if self.file.borrow().is_none() && self.asker.borrow().is_none() {
            self.asker.replace(Some(asker()));
        }
        let mut waiting = self.waiting.take();
        let before = waiting.len();
        if before == 0 {
            self.shared.outgoing.count_busy(true);
            self.shared.charge(OPENING_COST);
        }
        line(&mut waiting);
        waiting.push(b'\n');
        self.shared.charge(waiting.len() - before);
        // Errors of a value of the line go to another file than this one.
        self.waiting.replace(waiting);
        self.bell.ring();
    }

    /// Ends the task as soon as nothing waits.
    fn dismiss(&self) {
        self.dismissed.set(true);
        self.bell.ring();
    }

    /// The task: ends when the file need not be open any more.
    async fn run(self: Rc<Self>, logs: Weak<NamedLogs>) {
        let timer = Timer::new();
        let via = rt::caps().best_disk();
        loop {
            if !self.waiting.borrow().is_empty() {
                self.write_some(via).await;
                continue;
            }
            let Some(cache) = self.cache.filter(|_| !self.dismissed.get()) else { break };
            // Remembered, so that its uses add up, but not open.
            if self.uses.get() < cache.min_uses {
                self.file.take();
            }
            let until = self.used.get() + cache.inactive;
            if until <= rt::now() {
                break;
            }
            timer.set(until);
            // An alarm that fires too early, because the file was used again, is set again.
            let _ = timer.limit(self.bell.wait()).await;
        }
        // Without a wait since nothing waited: a line that comes now finds no file and makes another one.
        if let Some(logs) = logs.upgrade() {
            logs.forget(&self);
        }
    }

    /// One buffer; opens the file first if it is not open.
    async fn write_some(&self, via: DiskVia) {
        let open = match self.open(via).await {
            Ok(open) => open,
            Err(NotOpened) => {
                let count = self.waiting.borrow().len();
                return self.consume(count);
            }
        };
        let (count, lines, by_call) = {
            let waiting = self.waiting.borrow();
            let count = waiting.len().min(WRITE_MAX);
            let text = &waiting[..count];
            (count, count_lines(text), self.prompt.write(&open.file, text))
        };
        let (count, result) = match by_call {
            Some(Ok(written)) => (written, Ok(())),
            Some(Err(errno)) => (count, Err(errno)),
            None => {
                let Some(result) = self.write_by_engine(&open, count, via).await else { return };
                (count, result)
            }
        };
        if let Err(errno) = result {
            self.losses.fail(lines, Cause::Write(errno));
        }
        self.consume(count);
        tell(&self.losses, result.is_ok(), &self.path, &self.shared.outgoing);
        tell(&self.shared.losses, true, &self.path, &self.shared.outgoing);
    }

    /// Writes this many bytes of those that wait; `None` when they have to wait for memory.
    async fn write_by_engine(&self, open: &Open, count: usize, via: DiskVia) -> Option<Result<(), Errno>> {
        let Some(mut buf) = rt::pool().get(count) else {
            // Memory is short: the lines wait, and are dropped when there are too many.
            rt::sleep_until(rt::now() + Duration::from_millis(10)).await;
            return None;
        };
        buf.append(&self.waiting.borrow()[..count]);
        let began = Instant::now();
        // In append mode the kernel ignores places, write(2).
        let (result, _) = open.file.write_at(0, buf, open.device, via).await;
        self.prompt.note(began, Instant::now());
        Some(result.map(drop))
    }

    /// Forgets bytes that have been written or lost.
    fn consume(&self, count: usize) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.drain(..count);
        self.shared.credit(count);
        if waiting.is_empty() {
            self.shared.credit(OPENING_COST);
            self.shared.outgoing.count_busy(false);
        }
    }

    /// The file, open already or opened now. Errors were reported.
    async fn open(&self, via: DiskVia) -> Result<Open, NotOpened> {
        let known = self.file.borrow().clone();
        if let Some(mut open) = known {
            let valid = self.cache.map_or(Duration::MAX, |cache| cache.valid);
            if rt::now().saturating_duration_since(open.checked) < valid {
                return Ok(open);
            }
            // The name leads to another file when the log was rotated, or to none.
            let there = rt::file::stat_path(self.path()?, open.device, via).await;
            if there.is_ok_and(|there| (there.device, there.inode) == (open.stat.device, open.stat.inode)) {
                open.checked = rt::now();
                self.file.replace(Some(open.clone()));
                return Ok(open);
            }
            self.file.take();
        }
        let asker = self.asker.take();
        match self.open_anew(asker.as_ref(), via).await {
            Ok(open) => {
                self.file.replace(Some(open.clone()));
                Ok(open)
            }
            Err((level, text)) => {
                self.report(level, text, asker);
                Err(NotOpened)
            }
        }
    }

    /// As in nginx the root of the request has to exist, so that no file is made for a host that is not there.
    async fn open_anew(&self, asker: Option<&Asker>, via: DiskVia) -> Result<Open, (Level, String)> {
        if let Some(asker) = asker {
            let is_folder = |stat: Stat| FileType::from_raw_mode(stat.mode) == FileType::Directory;
            let root = CString::new(asker.root.clone()).map_err(|_| Errno::INVAL);
            let found = match root {
                Ok(root) => rt::file::stat_path(root, DeviceId::default(), via).await,
                Err(errno) => Err(errno),
            };
            if let Some(errno) =
                found.map(|stat| (!is_folder(stat)).then_some(Errno::NOTDIR)).unwrap_or_else(Some)
            {
                let root = String::from_utf8_lossy(&asker.root);
                return Err((
                    Level::Error,
                    format!("testing \"{root}\" existence failed ({}){WHILE}", Reason(errno)),
                ));
            }
        }
        // nginx's words and level; the host that is missing is mostly that of a client's own making.
        let failed = |errno| {
            let path = String::from_utf8_lossy(&self.path);
            let call = if self.links.checks() { "openat" } else { "open" };
            (Level::Crit, format!("{call}() \"{path}\" failed ({}){WHILE}", Reason(errno)))
        };
        // Without O_NONBLOCK the open of a FIFO would wait for a reader.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut how = OpenHow { flags: flags.bits() as i32, mode: 0o644, ..OpenHow::default() };
        self.links.apply(&mut how);
        // Links are checked from here on: `from=` of `disable_symlinks`.
        let (above, below) = self.path.split_at(self.links.from);
        let from = if above.is_empty() { None } else { Some(open_folder(above, via).await.map_err(failed)?) };
        // From a directory on a path is relative.
        let slashes = below.iter().take_while(|&&byte| from.is_some() && byte == b'/').count();
        let path = CString::new(&below[slashes..]).map_err(|_| failed(Errno::INVAL))?;
        let dir = from.as_ref().map(File::fd);
        let file = File::open(dir, path, how, DeviceId::default(), via).await.map_err(failed)?;
        let stat = file.stat(DeviceId::default(), via).await.map_err(failed)?;
        let device = device_of(&stat);
        // Without a cache the opening alone takes a trip through the engine for each line.
        if self.cache.is_some() && self.shared.outgoing.calls_directly() {
            self.prompt.look_at(&file, &stat, device).await;
        }
        Ok(Open { file, stat, device, checked: rt::now() })
    }

    fn path(&self) -> Result<CString, NotOpened> {
        CString::new(&*self.path).map_err(|_| NotOpened)
    }

    /// In the error log of the request; when it was opened again without one, in that of the process.
    fn report(&self, level: Level, text: String, asker: Option<Asker>) {
        let process = || Whose::Process(Target::File(PathBuf::new()));
        let whose = asker.map_or_else(process, |asker| Whose::Request(asker.report));
        self.shared.outgoing.report(Report { level, text, whose });
    }
}

/// A directory to open from.
async fn open_folder(path: &[u8], via: DiskVia) -> Result<File, Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    File::open(None, path, how, DeviceId::default(), via).await
}

/// The file could not be opened.
struct NotOpened;
