//! `auto_reload`: a task for each database checks its file, and loads it again after a change.
//!
//! One thread runs the task, and reads through its engine: no request waits for a disk. If the file cannot be read, or
//! is no database, the old content stays in use.
//!
//! ```text
//! stat(2) -- unchanged --> wait for the interval, then again
//!    | changed
//!    v
//! read, check -- invalid --> one line in the log, old content retained
//!    | valid
//!    v
//! the new content replaces it
//! ```

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use io::facts::{DeviceId, Stat};
use io::{Disk, Errno};

use super::Conf;
use super::database::{self, BYTES_MAX, Bytes, Database};
use exchange::error_log;
use exchange::files;
use exchange::request::ThreadConfig;
use exchange::thread::Thread;
use telemetry::{Level, Reason};
use transfer::body::choose;
use transfer::body::rules::Aio;

/// Number of bytes per read.
const PIECE: usize = 64 << 10;

/// Maximum size in bytes of the metadata at the end of a database (MaxMind DB file format 2.0).
const METADATA_MAX: u64 = 128 << 10;

/// Lets this thread check the files that no other thread checks.
pub(super) fn tend(thread: &Rc<Thread>, _: Option<&ThreadConfig>) {
    let config = Arc::clone(&thread.thread_config().config);
    for database in config.sections().into_iter().flat_map(|block| &block.of::<Conf>().databases) {
        if database.interval > 0 && database.claim() {
            rt::spawn(keep(Arc::downgrade(database), Rc::clone(thread)));
        }
    }
}

/// Checks the file of a database until no configuration uses the database. The first check is immediate: if this worker replaces a
/// crashed worker, the content was read by the last reload and may be old.
async fn keep(database: Weak<Database>, thread: Rc<Thread>) {
    let (mut seen, mut told) = (None, None);
    while let Some(database) = database.upgrade() {
        database.note_check();
        let path = database.path.display();
        match check(&database, &mut seen).await {
            Ok(is_new) => {
                told = None;
                if is_new {
                    error_log::write(&thread, Level::Notice, format_args!("Reload MMDB \"{path}\""));
                }
            }
            // The same error is logged only once.
            Err(fault) if told.as_ref() == Some(&fault) => {}
            Err(fault) => {
                error_log::write(
                    &thread,
                    Level::Error,
                    format_args!(
                        "geoip2 database \"{path}\" was not reloaded, the old one stays in use: {fault}"
                    ),
                );
                told = Some(fault);
            }
        }
        let next = rt::now().checked_add(Duration::from_secs(database.interval));
        drop(database);
        let Some(next) = next else { return };
        rt::sleep_until(next).await;
    }
}

/// The attributes by which a change is detected.
type Seen = (u64, u64, i64, u32);

fn seen_of(stat: &Stat) -> Seen {
    (stat.inode, stat.size, stat.modified, stat.modified_nanos)
}

/// Checks the file; returns whether it has changed and was loaded.
async fn check(database: &Database, seen: &mut Option<Seen>) -> Result<bool, String> {
    let failed = |call: &'static str| move |errno: Errno| format!("{call} failed ({})", Reason(errno));
    let via = choose::path_engine(Aio::Unset, &rt::caps());
    let disk = Disk { device: DeviceId::default(), via };
    let path = database.path.as_os_str().as_bytes();
    let file = files::open_anywhere(path, disk).await.map_err(failed("open()"))?;
    let stat = file.stat(disk).await.map_err(failed("fstat()"))?;
    let found = seen_of(&stat);
    if *seen == Some(found) {
        return Ok(false);
    }
    if stat.size > BYTES_MAX as u64 {
        return Err(format!("it has more than {} MiB", BYTES_MAX >> 20));
    }
    // At the first check the attributes of the loaded file are unknown, so the metadata is compared.
    if seen.is_none() {
        let start = stat.size.saturating_sub(METADATA_MAX);
        let end = read(&file, start, stat.size, disk).await?;
        if database.ends_with(stat.size, &end) {
            *seen = Some(found);
            return Ok(false);
        }
    }
    let bytes = read(&file, 0, stat.size, disk).await?;
    let content = database::read(Bytes::of(Arc::new(bytes))).map_err(|error| error.to_string())?;
    // If the file was modified during the read, it is read again at the next check.
    let after = file.stat(disk).await.map_err(failed("fstat()"))?;
    if seen_of(&after) != found {
        return Err("it changed while it was read".to_owned());
    }
    database.replace(content);
    *seen = Some(found);
    Ok(true)
}

/// Returns the bytes of a range of a file.
async fn read(file: &rt::File, start: u64, end: u64, disk: Disk) -> Result<Vec<u8>, String> {
    let failed = |errno: Errno| format!("pread() failed ({})", Reason(errno));
    assert!(start <= end, "a read ends behind its start");
    let mut bytes = Vec::with_capacity((end - start) as usize);
    let mut buf = rt::pool().get(PIECE).ok_or_else(|| failed(Errno::NOMEM))?;
    while start + (bytes.len() as u64) < end {
        let offset = start + bytes.len() as u64;
        let len = (end - offset).min(PIECE as u64) as u32;
        let (count, rest) = file.read_at(offset, len, buf, disk).await;
        buf = rest.ok_or_else(|| failed(Errno::IO))?;
        match count.map_err(failed)? as usize {
            0 => return Err("it was truncated while it was read".to_owned()),
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
    Ok(bytes)
}
