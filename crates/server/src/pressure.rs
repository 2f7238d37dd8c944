//! Detects memory pressure of the system, or of this process's memory cgroup.
//!
//! The kernel counts the time that tasks have stalled for lack of memory (PSI, pressure stall information; Linux 4.20,
//! Documentation/accounting/psi.rst). [`Pressure`] compares the growth of this time since the last call with a
//! threshold; the caller reacts.
//!
//! The kernel also offers triggers: descriptors that poll(2) reports as urgent when a threshold is crossed. They are
//! not used. Each poll consumes the event (`psi_trigger_poll`), so an edge-triggered wait, which polls twice, loses it.
//! Without CAP_SYS_RESOURCE, triggers are not available before Linux 6.4, and later only with windows of multiples of 2
//! s. Reading the files once per second is simpler.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Interval at which [`Pressure::is_on`] should be called: short enough to free memory in time, and long enough that
/// reading two small files costs little.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Threshold of stalled time, in thousandths of the elapsed time: tasks without memory for 150 ms of a second.
const STALLED_PER_MILLE: u128 = 150;

/// The pressure file of the system.
const SYSTEM: &str = "/proc/pressure/memory";

/// Watches one or more pressure files.
#[derive(Debug)]
pub(crate) struct Pressure {
    sources: Vec<StallFile>,
}

#[derive(Debug)]
struct StallFile {
    file: OwnedFd,
    /// The time of the last check, and the stalled microseconds since boot at that time.
    last: (Instant, u64),
}

impl Pressure {
    /// Opens the existing files among `paths`. Stalls are counted from `now` on.
    ///
    /// # Errors No file can be read: the kernel does not count stalls (CONFIG_PSI, boot parameter `psi=0`), or `/proc`
    /// is not mounted.
    pub(crate) fn open(paths: &[PathBuf], now: Instant) -> Result<Pressure, Errno> {
        let mut sources = Vec::new();
        let mut refused = Errno::NOENT;
        for path in paths {
            match StallFile::open(path, now) {
                Ok(source) => sources.push(source),
                Err(errno) => refused = errno,
            }
        }
        if sources.is_empty() { Err(refused) } else { Ok(Pressure { sources }) }
    }

    /// Whether tasks have stalled for more than the threshold since the last check. A file that can no longer be read
    /// is dropped.
    pub(crate) fn is_on(&mut self, now: Instant) -> bool {
        let mut on = false;
        self.sources.retain_mut(|source| match source.is_on(now) {
            Ok(answer) => {
                on |= answer;
                true
            }
            Err(_) => false,
        });
        on
    }

    /// Whether no file remains to watch.
    #[cfg(test)]
    fn is_blind(&self) -> bool {
        self.sources.is_empty()
    }
}

impl StallFile {
    #[expect(clippy::disallowed_methods, reason = "files of the kernel, which wait for no disk")]
    fn open(path: &Path, now: Instant) -> Result<StallFile, Errno> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let stalled_us = read(&file)?;
        Ok(StallFile { file, last: (now, stalled_us) })
    }

    fn is_on(&mut self, now: Instant) -> Result<bool, Errno> {
        let stalled_us = read(&self.file)?;
        let (before, stalled_before_us) = std::mem::replace(&mut self.last, (now, stalled_us));
        let stalled_us = stalled_us.saturating_sub(stalled_before_us);
        let passed_us = now.saturating_duration_since(before).as_micros();
        Ok(u128::from(stalled_us) * 1000 > passed_us * STALLED_PER_MILLE)
    }
}

#[expect(clippy::disallowed_methods, reason = "files of the kernel, which wait for no disk")]
fn read(file: &OwnedFd) -> Result<u64, Errno> {
    // The file has two lines of about 60 bytes.
    let mut text = [0; 256];
    let count = rustix::io::pread(file, &mut text, 0)?;
    stalled_us(&text[..count]).ok_or(Errno::INVAL)
}

/// Parses the total of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`: time in µs in which at least one task
/// stalled.
fn stalled_us(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// Returns the pressure files that concern this process: of its memory cgroup (version 2), which includes stalls caused
/// by the cgroup's limit, and of the system.
#[expect(clippy::disallowed_methods, reason = "files of the kernel, which wait for no disk")]
pub(crate) fn default_paths() -> Vec<PathBuf> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cgroup = cgroup_file(&text("/proc/self/mounts"), &text("/proc/self/cgroup"));
    cgroup.into_iter().chain([PathBuf::from(SYSTEM)]).collect()
}

/// Returns the path of `memory.pressure` below the mount of the unified hierarchy (proc(5), cgroups(7)).
fn cgroup_file(mounts: &str, membership: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let place = fields.nth(1)?;
        (fields.next()? == "cgroup2").then_some(place)
    })?;
    let group = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(group).join("memory.pressure"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test may wait for a disk")]

    use super::*;

    fn psi(total: u64) -> String {
        format!(
            "some avg10=1.23 avg60=0.00 avg300=0.00 total={total}\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=7\n"
        )
    }

    #[test]
    fn growth_above_the_threshold_is_pressure() {
        let path = std::env::temp_dir().join(format!("ringroad-pressure-{}", std::process::id()));
        fs::write(&path, psi(5_000_000)).unwrap();
        let mut now = Instant::now();
        let missing = PathBuf::from("/nowhere/memory.pressure");
        let mut pressure = Pressure::open(&[missing.clone(), path.clone()], now).unwrap();
        // Elapsed ms, stalled µs, the expected result.
        let steps = [
            (1000, 0, false),
            (1000, 149_000, false),
            (1000, 151_000, true),
            (1000, 0, false),
            (60_000, 151_000, false),
            (0, 1, true),
            (0, 0, false),
        ];
        let mut total = 5_000_000;
        for (passed_ms, more_us, expected) in steps {
            now += Duration::from_millis(passed_ms);
            total += more_us;
            fs::write(&path, psi(total)).unwrap();
            assert_eq!(pressure.is_on(now), expected, "{more_us} us in {passed_ms} ms");
        }
        fs::write(&path, "").unwrap();
        assert!(!pressure.is_on(now) && pressure.is_blind());
        fs::remove_file(&path).unwrap();
        assert_eq!(Pressure::open(&[missing], now).err(), Some(Errno::NOENT));
    }

    #[test]
    fn totals_are_read_from_the_some_line() {
        assert_eq!(stalled_us(psi(123).as_bytes()), Some(123));
        for bad in ["", "some", "some avg10=0.00", "full total=3\n", "some total=x\n"] {
            assert_eq!(stalled_us(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn the_cgroup_is_found_below_its_mount_point() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let group = "9:name=systemd:/x\n0::/system.slice/ringroad.service\n";
        let expected = "/sys/fs/cgroup/system.slice/ringroad.service/memory.pressure";
        assert_eq!(cgroup_file(mounts, group), Some(PathBuf::from(expected)));
        assert_eq!(cgroup_file(mounts, "0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/memory.pressure")));
        assert_eq!(cgroup_file("proc /proc proc rw 0 0\n", group), None);
        assert_eq!(cgroup_file(mounts, "4:memory:/a\n"), None);
    }

    #[test]
    fn the_pressure_file_of_this_kernel_is_parsed() {
        match Pressure::open(&default_paths(), Instant::now()) {
            Ok(pressure) => assert!(!pressure.is_blind()),
            Err(errno) => eprintln!("skipped: this kernel does not tell of pressure: {errno}"),
        }
    }
}
