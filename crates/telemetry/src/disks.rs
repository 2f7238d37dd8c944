//! Metrics of file operations by device and kind: their durations, and their number in flight.
//!
//! Only operations of the engines count. Direct calls that find a page in the page cache, or a path in the kernel's dentry cache, do
//! not count. So the durations are the times for which requests have waited for a disk or its queue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use io::facts::DeviceId;
use io::op::DiskKind;
use rt::DiskEvent;
use rustix::fs::{major, minor};

use crate::histogram::{Distribution, Histogram};
use crate::metric::{Label, Metric, Page};

const DEVICE: Label = Label { name: "device", values: &[] };

/// Durations; the values of `op` are in the order of [`DiskKind`].
const TIMES: Metric = Metric::histogram(
    "disk_operation_seconds",
    "Time from the submission of an operation on files to its completion. Kinds that did not occur are left out.",
)
.labelled(&[
    DEVICE,
    Label {
        name: "op",
        values: &[
            ("open", ""),
            ("stat", ""),
            ("read", ""),
            ("write", ""),
            ("sendfile", "from a file to a socket, as many bytes as the send buffer of the socket accepts"),
            ("names", "creates, renames or removes a file or a directory"),
            ("sync", ""),
            ("other", ""),
        ],
    },
]);

const IN_FLIGHT: Metric = Metric::gauge(
    "disk_in_flight",
    "operations",
    "Operations on files in flight: submitted, but not yet completed.",
)
.labelled(&[DEVICE]);

/// The metrics of this file, in the order of the documents.
pub const METRICS: &[&Metric] = &[&TIMES, &IN_FLIGHT];

/// Maximum number of devices of a thread with separate numbers. Further devices count as [`OTHER`].
const DEVICES_MAX: usize = 64;

/// Device for all operations without separate numbers. Device numbers from this one on belong to pipes and other log targets.
const OTHER: DeviceId = DeviceId(1 << 63);

/// Numbers of a device on one thread. A histogram is allocated for the first operation of its kind.
#[derive(Debug, Default)]
struct DiskNumbers {
    times: [OnceLock<Box<Histogram>>; DiskKind::COUNT],
    in_flight: AtomicU64,
}

/// Numbers of the devices of all threads.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<Vec<(DeviceId, Arc<DiskNumbers>)>>);

/// Numbers of the devices of one thread; only that thread changes them.
#[derive(Debug, Default)]
pub struct ThreadDisks {
    own: RefCell<Vec<(DeviceId, Arc<DiskNumbers>)>>,
    all: Arc<Devices>,
}

impl ThreadDisks {
    /// Creates the numbers of a thread. Its devices are also added to `all`.
    pub(crate) fn new(all: &Arc<Devices>) -> ThreadDisks {
        ThreadDisks { own: RefCell::default(), all: Arc::clone(all) }
    }

    /// Counts the start or the end of an operation.
    pub fn note(&self, kind: DiskKind, device: DeviceId, event: DiskEvent) {
        self.with(device, |numbers| {
            // Only this thread writes, so load and store need not be one atomic operation.
            let in_flight = numbers.in_flight.load(Ordering::Relaxed);
            let now = match event {
                DiskEvent::Started => in_flight + 1,
                DiskEvent::Ended(_) | DiskEvent::Abandoned => in_flight.saturating_sub(1),
            };
            numbers.in_flight.store(now, Ordering::Relaxed);
            if let DiskEvent::Ended(time) = event {
                numbers.times[kind as usize].get_or_init(Box::default).add(time);
            }
        });
    }

    fn with(&self, device: DeviceId, count: impl FnOnce(&DiskNumbers)) {
        let mut own = self.own.borrow_mut();
        if let Some((_, numbers)) = own.iter().find(|(known, _)| *known == device) {
            return count(numbers);
        }
        let is_other = device.0 >= OTHER.0 || own.len() >= DEVICES_MAX;
        if is_other && device != OTHER {
            drop(own);
            return self.with(OTHER, count);
        }
        let numbers = Arc::new(DiskNumbers::default());
        count(&numbers);
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).push((device, Arc::clone(&numbers)));
        own.push((device, numbers));
    }
}

impl Devices {
    /// Appends the numbers of all threads.
    pub(crate) fn write(&self, page: &mut Page) {
        let mut sums: BTreeMap<u64, (Vec<Distribution>, u64)> = BTreeMap::new();
        for (device, numbers) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let new = || (vec![Distribution::default(); DiskKind::COUNT], 0);
            let (times, in_flight) = sums.entry(device.0).or_insert_with(new);
            for (sum, times) in times.iter_mut().zip(&numbers.times) {
                times.get().into_iter().for_each(|times| times.add_to(sum));
            }
            *in_flight += numbers.in_flight.load(Ordering::Relaxed);
        }
        let named: Vec<_> = sums.into_iter().map(|(device, sums)| (name(DeviceId(device)), sums)).collect();
        page.head(&TIMES);
        for (device, (times, _)) in &named {
            for ((kind, _), times) in TIMES.values().iter().zip(times).filter(|(_, times)| times.count() > 0)
            {
                page.times(&TIMES, &[device, kind], times);
            }
        }
        page.head(&IN_FLIGHT);
        for (device, (_, in_flight)) in &named {
            page.number(&IN_FLIGHT, &[device], *in_flight);
        }
    }
}

/// Returns the name of a block device from the links in /sys/dev/block (sysfs(5)). Returns major and minor number if there is no
/// link, as for file systems without a block device.
fn name(device: DeviceId) -> String {
    match device {
        DeviceId(0) => return "unknown".to_owned(),
        OTHER => return "other".to_owned(),
        DeviceId(_) => {}
    }
    let numbers = format!("{}:{}", major(device.0), minor(device.0));
    let linked = rustix::fs::readlink(format!("/sys/dev/block/{numbers}"), Vec::new()).ok();
    let linked = linked.and_then(|path| path.into_string().ok());
    let last = linked.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
    last.map_or(numbers, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Form;
    use std::time::Duration;

    fn text(all: &Devices) -> String {
        let mut page = Page::new(Form::Plain);
        all.write(&mut page);
        page.finish()
    }

    #[test]
    fn threads_are_summed_by_device_and_kind() {
        let all = Arc::default();
        let threads = [ThreadDisks::new(&all), ThreadDisks::new(&all)];
        let device = DeviceId(rustix::fs::makedev(4095, 7));
        for thread in &threads {
            thread.note(DiskKind::Read, device, DiskEvent::Started);
            thread.note(DiskKind::Read, device, DiskEvent::Started);
            thread.note(DiskKind::Read, device, DiskEvent::Ended(Duration::from_millis(3)));
        }
        threads[0].note(DiskKind::Read, device, DiskEvent::Abandoned);
        threads[0].note(DiskKind::Write, DeviceId(u64::MAX - 5), DiskEvent::Started);
        let text = text(&all);
        for line in [
            "ringroad_disk_operation_seconds_count{device=\"4095:7\",op=\"read\"} 2",
            "ringroad_disk_in_flight{device=\"4095:7\"} 1",
            "ringroad_disk_in_flight{device=\"other\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("op=\"write\""), "none has ended: {text}");
    }

    #[test]
    fn devices_of_a_thread_are_limited() {
        let all = Arc::default();
        let thread = ThreadDisks::new(&all);
        for number in 1..200 {
            thread.note(DiskKind::Open, DeviceId(number << 40), DiskEvent::Started);
        }
        let text = text(&all);
        assert_eq!(text.matches("disk_in_flight{").count(), DEVICES_MAX + 1, "{text}");
        assert!(text.contains("ringroad_disk_in_flight{device=\"other\"} 135\n"), "{text}");
    }
}
