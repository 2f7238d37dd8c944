//! Facts about the machine that influence the results, for the head of a report. Unreadable facts are reported as
//! unknown.
//!
//! Each fact has been seen to influence a figure. Mitigations make system calls slower, a frequency governor changes
//! rates with the load, and a low limit of locked memory shrinks rings. Readahead makes "random" reads sequential, and
//! a clock source that needs a system call makes timing expensive. Host names and paths are omitted: reports are made
//! for publication.

use std::fs;
use std::path::{Path, PathBuf};

use crate::method::pin;
use crate::method::timeline::device_of;
use crate::report::model::Fact;

/// Returns all facts. `work` is the directory of the measured files, `congestion_control` the text that
/// [`crate::method::namespace::enter`] returned.
pub(crate) fn facts(work: &Path, congestion_control: &str) -> Vec<Fact> {
    // Sorted by relevance to a reader: machine, disk, limits, state.
    vec![
        Fact::new("processor", processor()),
        Fact::new("processors used", processors_used()),
        Fact::new("memory", memory()),
        Fact::new("kernel", kernel()),
        Fact::new("mitigations", mitigations()),
        Fact::new("file system", file_system(work)),
        Fact::new("device", device(work)),
        Fact::new("limits", limits()),
        Fact::new("congestion control", congestion_control.to_owned()),
        Fact::new("clock source", read("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        Fact::new("rights", rights()),
        Fact::new("load before", load()),
        Fact::new("engines", engines()),
        Fact::new("ringroad", build()),
    ]
}

const UNKNOWN: &str = "unknown";

/// Reads a file of one line.
fn read(path: impl AsRef<Path>) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = text.trim();
    if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() }
}

/// Returns the number and model of the processors, and whether they are virtual.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(['\t', ' ', ':']).to_owned()))
    };
    // The second name is used on 32-bit ARM.
    let model = field("model name").or_else(|| field("Processor")).unwrap_or_else(|| UNKNOWN.to_owned());
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    let is_virtual = field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let mut words = format!("{count} of {model}");
    if is_virtual {
        words += ", virtual";
    }
    if governor != UNKNOWN {
        words += &format!(", governor {governor}");
    }
    words
}

/// Returns the processors used, and whether two are hyper-threads of one core: server and generator would share its
/// execution units.
fn processors_used() -> String {
    let cpus = pin::available();
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let first = cpus.first().copied().unwrap_or(0);
    let siblings = read(format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"));
    format!("{} (threads of the first one's core: {siblings})", names.join(", "))
}

/// Returns the memory size, to which the data sets of `cold` relate.
fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let mebibytes = |name| field(name).map_or_else(|| UNKNOWN.to_owned(), |kib| format!("{} MiB", kib >> 10));
    format!(
        "{}, {} available, swap {}",
        mebibytes("MemTotal:"),
        mebibytes("MemAvailable:"),
        mebibytes("SwapTotal:")
    )
}

/// Returns name, release and version of uname(2).
fn kernel() -> String {
    let name = rustix::system::uname();
    let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!("{} {} {}", words(name.sysname()), words(name.release()), words(name.version()))
}

/// Returns the kernel's mitigations of CPU vulnerabilities, and the related kernel parameter.
fn mitigations() -> String {
    let mut found: Vec<String> = Vec::new();
    if let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") {
        for entry in entries.flatten() {
            let said = read(entry.path());
            if said != "Not affected" {
                found.push(format!("{}: {said}", entry.file_name().to_string_lossy()));
            }
        }
    }
    found.sort();
    // Only this parameter: others may contain private data.
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let told: Vec<&str> =
        line.split_ascii_whitespace().filter(|word| word.starts_with("mitigations=")).collect();
    if found.is_empty() {
        found.push("none needed or none known".to_owned());
    }
    let told = if told.is_empty() { "mitigations= is not set".to_owned() } else { told.join(" ") };
    format!("{told}; {}", found.join("; "))
}

/// Returns the type and options of the directory's mount, and its free space. Names a missing journal of ext4, because then the
/// kernel creates files slowly for minutes after others were removed.
fn file_system(work: &Path) -> String {
    let work = fs::canonicalize(work).unwrap_or_else(|_| work.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = mount_of(&mounts, &work).unwrap_or_else(|| UNKNOWN.to_owned());
    let task = device_directory(&work).ok().and_then(|directory| {
        fs::read_to_string(Path::new("/sys/fs/ext4").join(directory.file_name()?).join("journal_task")).ok()
    });
    if task.is_some_and(|task| task.trim() == "<none>") {
        found.push_str(" without a journal");
    }
    match rustix::fs::statvfs(&work) {
        Ok(room) => format!("{found}, {} MiB free", (room.f_bavail * room.f_frsize) >> 20),
        Err(_) => found,
    }
}

/// Returns the mount with the longest mount point above the directory; of several on one mount point the last one,
/// which hides the others.
fn mount_of(mountinfo: &str, directory: &Path) -> Option<String> {
    let mut best: Option<(usize, String)> = None;
    for line in mountinfo.lines() {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(4);
        let (point, options) = (head.next()?, head.next()?);
        let length = point.len();
        if directory.starts_with(point) && best.as_ref().is_none_or(|(longest, _)| length >= *longest) {
            let kind = tail.split(' ').next()?;
            best = Some((length, format!("{kind} ({options})")));
        }
    }
    best.map(|(_, words)| words)
}

/// Returns the block device below the directory, with the queue settings that influence figures.
fn device(work: &Path) -> String {
    let mut directory = match device_directory(work) {
        Ok(directory) => directory,
        Err(number) => return format!("no block device ({number})"),
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A partition uses the queue of its disk.
    if !directory.join("queue").exists() {
        directory.pop();
    }
    let queue = |what: &str| read(directory.join("queue").join(what));
    let model = read(directory.join("device/model"));
    let kind = if queue("rotational") == "1" { "rotating" } else { "not rotating" };
    // A virtual disk reports itself as rotational unless its host is configured otherwise.
    let mut words = vec![name, kind.to_owned()];
    if model != UNKNOWN {
        words.push(model);
    }
    for what in ["scheduler", "nr_requests", "read_ahead_kb", "write_cache", "io_poll"] {
        words.push(format!("{what} {}", queue(what)));
    }
    words.join(", ")
}

/// Returns the directory in /sys of the block device below a directory, or the number of a device that is none.
fn device_directory(work: &Path) -> Result<PathBuf, String> {
    let (major, minor) = device_of(work);
    let number = format!("{major}:{minor}");
    fs::canonicalize(format!("/sys/dev/block/{number}")).map_err(|_| number)
}

/// Returns the resource limits that can limit a server or a ring before the hardware does.
fn limits() -> String {
    use rustix::process::{Resource, getrlimit};
    let limit =
        |resource| getrlimit(resource).current.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let memlock = getrlimit(Resource::Memlock)
        .current
        .map_or_else(|| "none".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    let mut words =
        vec![format!("open files {}", limit(Resource::Nofile)), format!("locked memory {memlock}")];
    for (name, path) in [
        ("fs.aio-max-nr", "/proc/sys/fs/aio-max-nr"),
        ("net.core.somaxconn", "/proc/sys/net/core/somaxconn"),
        ("kernel.io_uring_disabled", "/proc/sys/kernel/io_uring_disabled"),
    ] {
        words.push(format!("{name} {}", read(path)));
    }
    words.join(", ")
}

/// Returns whether the run has root privileges, which dropping the page cache and limiting memory require.
fn rights() -> String {
    let is_root = rustix::process::geteuid().is_root();
    if is_root { "root" } else { "not root: no dropped caches, no control groups" }.to_owned()
}

/// Returns the available engines, and why the others are not available, as the server's probe reports them.
fn engines() -> String {
    let probe = io::probe::Probe::run();
    let words = probe.rows().iter().map(|row| format!("{}: {}", row.item, row.state.name()));
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the load averages over one, five and fifteen minutes, which show whether the machine was idle.
fn load() -> String {
    let text = read("/proc/loadavg");
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    averages.join(" ")
}

/// Returns the kind of build: a debug build is ten times slower and should never be quoted.
fn build() -> String {
    let kind =
        if cfg!(debug_assertions) { "debug build: its figures are meaningless" } else { "release build" };
    format!("{} ({kind})", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_has_a_name_and_a_value_on_one_line() {
        let facts = facts(Path::new("/tmp"), "cubic");
        for fact in &facts {
            assert!(!fact.value.is_empty(), "{}", fact.name);
            assert!(!fact.value.contains('\n'), "{}: {}", fact.name, fact.value);
        }
        assert!(facts.iter().any(|fact| fact.name == "congestion control" && fact.value == "cubic"));
    }

    #[test]
    fn the_topmost_mount_is_used() {
        let text = "1 0 254:0 / / rw,relatime - ext4 /dev/vda rw\n2 1 0:5 / /var rw - tmpfs a rw\n\
                    3 1 0:6 / /var ro,nosuid - xfs b rw\n4 1 0:7 / /variant rw - btrfs c rw\n";
        let mount = |directory| mount_of(text, Path::new(directory)).unwrap();
        assert_eq!(mount("/var/tmp"), "xfs (ro,nosuid)");
        assert_eq!(mount("/vary"), "ext4 (rw,relatime)");
    }
}
