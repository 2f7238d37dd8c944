//! Records the state of the machine once a second during a measurement, with the columns of dstat.
//!
//! Write-up 000 has such a table for each engine. The table shows facts that a rate does not: whether the disk was the
//! limit, which programs used the processors, and the number of context switches. A separate thread reads a few files
//! of `/proc` each second, which takes less than 0.1 ms.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::method::system_stat::{SystemStat, Traffic, disk_traffic, network_traffic};
use crate::report::model::{Column, Timeline};

/// Sampling interval, as in the write-up's table.
const INTERVAL: Duration = Duration::from_secs(1);

/// Names and units of the columns, in the order of the write-up's table.
const COLUMNS: [(&str, &str); 11] = [
    ("usr", "%"),
    ("sys", "%"),
    ("idl", "%"),
    ("wai", "%"),
    ("stl", "%"),
    ("read", "MB/s"),
    ("writ", "MB/s"),
    ("recv", "MB/s"),
    ("send", "MB/s"),
    ("int", "1/s"),
    ("csw", "1/s"),
];

/// A recording in progress. Dropping it ends the recording.
pub(crate) struct Recorder {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<Vec<f64>>>>,
}

impl Recorder {
    /// Starts recording, including the disk of a directory; traffic of other programs on that disk is included.
    pub(crate) fn start(directory: &Path) -> Recorder {
        let device = device_of(directory);
        let (stop, stopped) = mpsc::channel();
        let record = move || {
            let mut rows = Vec::new();
            let mut before = Sample::take(device);
            loop {
                // Relative to the previous sample instead of the start: after a late sample, rates are computed over
                // the actual interval.
                let due = before.at + INTERVAL;
                match stopped.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    // The remaining interval of less than a second is not recorded.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return rows,
                }
                let now = Sample::take(device);
                rows.push(now.since(&before));
                before = now;
            }
        };
        let thread = std::thread::Builder::new().name("timeline".to_owned()).spawn(record).ok();
        Recorder { stop: Some(stop), thread }
    }

    /// Ends the recording; returns a row for each complete second.
    pub(crate) fn end(mut self) -> Timeline {
        self.stop = None;
        let rows = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Timeline { columns: COLUMNS.map(|(name, unit)| Column::new(name, unit)).to_vec(), rows }
    }
}

/// Returns the block device (major, minor) of a directory.
pub(crate) fn device_of(directory: &Path) -> (u32, u32) {
    let stat = rustix::fs::stat(directory).map_or(0, |stat| stat.st_dev);
    (rustix::fs::major(stat), rustix::fs::minor(stat))
}

/// Counters at one moment; a row is the difference of two samples.
struct Sample {
    at: Instant,
    system: SystemStat,
    disk: Traffic,
    network: Traffic,
}

impl Sample {
    fn take(device: (u32, u32)) -> Sample {
        Sample {
            at: Instant::now(),
            system: SystemStat::read(),
            disk: disk_traffic(device),
            network: network_traffic(),
        }
    }

    /// Returns a row, in the order of [`COLUMNS`].
    fn since(&self, before: &Sample) -> Vec<f64> {
        let seconds = (self.at - before.at).as_secs_f64();
        let total = self.system.total().saturating_sub(before.system.total()).max(1) as f64;
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 * 100.0 / total;
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let megabytes = |now, then| rate(now, then) / 1e6;
        let (now, then) = (&self.system, &before.system);
        vec![
            share(now.user, then.user),
            share(now.system, then.system),
            share(now.idle, then.idle),
            share(now.wait, then.wait),
            share(now.steal, then.steal),
            megabytes(self.disk.inward, before.disk.inward),
            megabytes(self.disk.outward, before.disk.outward),
            megabytes(self.network.inward, before.network.inward),
            megabytes(self.network.outward, before.network.outward),
            rate(now.interrupts, then.interrupts),
            rate(now.context_switches, then.context_switches),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_contains_shares_and_rates_of_its_second() {
        let at = Instant::now();
        let nothing = Traffic::default();
        let before = Sample { at, system: SystemStat::default(), disk: nothing, network: nothing };
        let system = SystemStat {
            user: 20,
            system: 10,
            idle: 160,
            wait: 6,
            steal: 4,
            interrupts: 500,
            context_switches: 800,
        };
        let disk = Traffic { inward: 4_000_000, outward: 0 };
        let after = Sample { at: at + Duration::from_secs(2), system, disk, network: nothing };
        let row = after.since(&before);
        assert_eq!(row, [10.0, 5.0, 80.0, 3.0, 2.0, 2.0, 0.0, 0.0, 0.0, 250.0, 400.0]);
        assert_eq!(row.len(), COLUMNS.len());
    }

    #[test]
    fn an_empty_timeline_has_columns_and_no_row() {
        let timeline = Recorder::start(Path::new("/")).end();
        assert_eq!(timeline.columns.len(), COLUMNS.len());
        assert!(timeline.rows.is_empty());
    }
}
