//! What figures depend on: the machine's facts at the head of a report. What cannot be read is said to be unknown.
//!
//! Each fact is here because some figure has been seen to hang on it: mitigations make system calls dearer, a governor
//! changes rates with the load, a low limit of locked memory shrinks rings, read-ahead makes "random" reads sequential,
//! a clock source that needs a system call makes timing a cost. Names and paths of the machine's owner are not among
//! them: a report is made to be shown.

use std::fs;
use std::path::Path;

use crate::method::pin;
use crate::method::timeline::device_of;
use crate::report::model::Fact;

/// All facts. `work` is the directory that files are measured in, `congestion_control` what
/// [`crate::method::namespace::enter`] said.
pub(crate) fn facts(work: &Path, congestion_control: &str) -> Vec<Fact> {
    // In the order of a reader's questions: what machine, what disk, what was allowed, in what state.
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

/// A file of one line.
fn read(path: impl AsRef<Path>) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = text.trim();
    if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() }
}

/// How many of which, and whether a hypervisor shares them out.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(['\t', ' ', ':']).to_owned()))
    };
    // The second name is what 32-bit ARM has.
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

/// Two hyper-threads of one core are no two processors: server and generator then share its units.
fn processors_used() -> String {
    let cpus = pin::available();
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let first = cpus.first().copied().unwrap_or(0);
    let siblings = read(format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"));
    format!("{} (threads of the first one's core: {siblings})", names.join(", "))
}

/// What the data sets of `cold` are measured against.
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

/// Name, release and build, as uname(2) has them.
fn kernel() -> String {
    let name = rustix::system::uname();
    let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!("{} {} {}", words(name.sysname()), words(name.release()), words(name.version()))
}

/// What the kernel does against flaws of this processor, and what it was told about it.
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
    // Only this word of the command line: the rest is the owner's.
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let told: Vec<&str> =
        line.split_ascii_whitespace().filter(|word| word.starts_with("mitigations=")).collect();
    if found.is_empty() {
        found.push("none needed or none known".to_owned());
    }
    let told = if told.is_empty() { "mitigations= is not set".to_owned() } else { told.join(" ") };
    format!("{told}; {}", found.join("; "))
}

/// Type and options of the mount that the directory lies on, and its room.
fn file_system(work: &Path) -> String {
    let work = fs::canonicalize(work).unwrap_or_else(|_| work.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mount_of(&mounts, &work).unwrap_or_else(|| UNKNOWN.to_owned());
    match rustix::fs::statvfs(&work) {
        Ok(room) => format!("{found}, {} MiB free", (room.f_bavail * room.f_frsize) >> 20),
        Err(_) => found,
    }
}

/// The mount with the longest point that is above the directory; of several at one point the last one, which hides the others.
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

/// The disk below the directory with those settings of its queue that change figures.
fn device(work: &Path) -> String {
    let (major, minor) = device_of(work);
    let link = format!("/sys/dev/block/{major}:{minor}");
    let Ok(mut directory) = fs::canonicalize(&link) else {
        return format!("none of its own ({major}:{minor})");
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A partition's queue is its disk's.
    if !directory.join("queue").exists() {
        directory.pop();
    }
    let queue = |what: &str| read(directory.join("queue").join(what));
    let model = read(directory.join("device/model"));
    let kind = if queue("rotational") == "1" { "rotating" } else { "not rotating" };
    // A disk of a virtual machine claims to rotate unless its host is configured otherwise.
    let mut words = vec![name, kind.to_owned()];
    if model != UNKNOWN {
        words.push(model);
    }
    for what in ["scheduler", "nr_requests", "read_ahead_kb", "write_cache", "io_poll"] {
        words.push(format!("{what} {}", queue(what)));
    }
    words.join(", ")
}

/// What stops a server or a ring before the hardware does.
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

/// Root can do what makes a disk cold and a memory small.
fn rights() -> String {
    let is_root = rustix::process::geteuid().is_root();
    if is_root { "root" } else { "not root: no dropped caches, no control groups" }.to_owned()
}

/// What the probe of the server finds here: as what each engine can be had, and what stands in the way.
fn engines() -> String {
    let probe = io::probe::Probe::run();
    let words = probe.rows().iter().map(|row| format!("{}: {}", row.item, row.state.name()));
    words.collect::<Vec<_>>().join(", ")
}

/// Averages over one, five and fifteen minutes: was it quiet?
fn load() -> String {
    let text = read("/proc/loadavg");
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    averages.join(" ")
}

/// A debug build is ten times slower and should never be quoted.
fn build() -> String {
    let kind = if cfg!(debug_assertions) { "debug build: its figures say nothing" } else { "release build" };
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
    fn the_mount_that_hides_the_others_counts() {
        let text = "1 0 254:0 / / rw,relatime - ext4 /dev/vda rw\n2 1 0:5 / /var rw - tmpfs a rw\n\
                    3 1 0:6 / /var ro,nosuid - xfs b rw\n4 1 0:7 / /variant rw - btrfs c rw\n";
        let mount = |directory| mount_of(text, Path::new(directory)).unwrap();
        assert_eq!(mount("/var/tmp"), "xfs (ro,nosuid)");
        assert_eq!(mount("/vary"), "ext4 (rw,relatime)");
    }
}
