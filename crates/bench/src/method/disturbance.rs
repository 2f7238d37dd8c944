//! Detects whether something else used the machine during a measurement: another virtual machine (steal), other
//! programs, or thermal throttling. A disturbed run is marked, not dropped.

use std::fs;
use std::time::Instant;

use crate::method::proc_stat;
use crate::method::process::CpuTime;
use crate::method::system_stat::SystemStat;

/// Share of the machine's time above which steal is reported.
const STEAL_SHARE_MAX: f64 = 0.01;

/// Share of one processor above which the CPU time of other programs is reported. It is counted in ticks of 10 ms and
/// includes kernel threads that write or receive for this run, so a small share is not significant.
const OTHERS_SHARE_MAX: f64 = 0.10;

/// Minimum duration in seconds: in a briefer measurement a single tick is a large share.
const SECONDS_MIN: f64 = 0.3;

/// 1/100 s: `USER_HZ` (proc_stat(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters of the machine at the start of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    started: Instant,
    system: SystemStat,
    /// CPU time of this run in seconds.
    own_seconds: f64,
    /// Number of thermal throttling events.
    throttled: u64,
}

impl Watch {
    pub(crate) fn start() -> Watch {
        Watch {
            started: Instant::now(),
            system: SystemStat::read(),
            own_seconds: own_seconds(),
            throttled: throttled(),
        }
    }

    /// Returns the disturbances since the start, if any.
    pub(crate) fn end(&self) -> Option<String> {
        self.until(&Watch::start())
    }

    /// Returns the stolen time and the load of other programs since the start, whether or not they are significant.
    pub(crate) fn loads(&self) -> String {
        let (steal, others) = self.shares(&Watch::start());
        format!("steal {:.1} %, other load {:.0} % of a processor", steal * 100.0, others.max(0.0) * 100.0)
    }

    /// Returns the stolen share of the machine's time, and the CPU time of other programs as a share of a processor.
    fn shares(&self, now: &Watch) -> (f64, f64) {
        let seconds = (now.started - self.started).as_secs_f64();
        let total = now.system.total().saturating_sub(self.system.total()).max(1) as f64;
        let steal = now.system.steal.saturating_sub(self.system.steal) as f64 / total;
        let busy = now.system.busy().saturating_sub(self.system.busy()) as f64 / TICKS_PER_SECOND;
        (steal, (busy - (now.own_seconds - self.own_seconds)) / seconds)
    }

    fn until(&self, now: &Watch) -> Option<String> {
        let mut found = Vec::new();
        if (now.started - self.started).as_secs_f64() >= SECONDS_MIN {
            let (steal, others) = self.shares(now);
            if steal > STEAL_SHARE_MAX {
                found.push(format!("steal {:.1} %", steal * 100.0));
            }
            if others > OTHERS_SHARE_MAX {
                found.push(format!("other load {:.0} % of a processor", others * 100.0));
            }
        }
        if now.throttled > self.throttled {
            found.push("thermal throttling".to_owned());
        }
        (!found.is_empty()).then(|| found.join(", "))
    }
}

/// Returns the CPU time of this process and all its descendants, including those that have ended.
fn own_seconds() -> f64 {
    let tree = proc_stat::tree(std::process::id());
    let ended: u64 = tree.iter().filter_map(|&id| Some(proc_stat::read(id)?.children_ticks)).sum();
    CpuTime::of(tree).sum() + ended as f64 / TICKS_PER_SECOND
}

/// Returns the number of thermal throttling events since boot; 0 if the machine does not report it.
fn throttled() -> u64 {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu") else { return 0 };
    let count = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path().join("thermal_throttle/core_throttle_count");
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    entries.filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn watch(started: Instant, user: u64, idle: u64, steal: u64, own_seconds: f64, throttled: u64) -> Watch {
        let system = SystemStat { user, idle, steal, ..SystemStat::default() };
        Watch { started, system, own_seconds, throttled }
    }

    #[test]
    fn processor_time_of_other_processes_is_reported() {
        let start = Instant::now();
        let end = start + Duration::from_secs(1);
        let before = watch(start, 0, 0, 0, 0.0, 0);
        let quiet = watch(end, 100, 100, 0, 0.97, 0);
        assert_eq!(before.until(&quiet), None);
        let stolen = watch(end, 90, 100, 10, 0.9, 0);
        assert_eq!(before.until(&stolen).as_deref(), Some("steal 5.0 %"));
        let crowded = watch(end, 150, 50, 0, 1.0, 3);
        let said = before.until(&crowded);
        assert_eq!(said.as_deref(), Some("other load 50 % of a processor, thermal throttling"));
    }

    #[test]
    fn a_disturbance_needs_a_minimum_duration() {
        let start = Instant::now();
        let before = watch(start, 0, 0, 0, 0.0, 0);
        assert_eq!(before.until(&watch(start + Duration::from_millis(100), 10, 0, 10, 0.0, 0)), None);
    }
}
