//! Numbers of the process, under the names that all Prometheus exporters share.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use telemetry::metric::{Metric, Page};
use telemetry::time_zone::since_1970;

use std::time::SystemTime;

/// From the kernel's CPU clock of the process (clock_gettime(2)).
const CPU: Metric =
    Metric::counter("process_cpu_seconds_total", "seconds", "CPU time of all threads.").without_prefix();

/// A scraper detects by this time that counters started again with zero.
const STARTED: Metric = Metric::gauge(
    "process_start_time_seconds",
    "seconds",
    "Start time of the worker process, in seconds since 1970.",
)
.without_prefix();

/// From proc_pid_statm(5), like the next metric.
const RESIDENT: Metric =
    Metric::gauge("process_resident_memory_bytes", "bytes", "Resident memory of the process.")
        .without_prefix();

const VIRTUAL: Metric =
    Metric::gauge("process_virtual_memory_bytes", "bytes", "Virtual memory of the process.").without_prefix();

/// The number of entries of proc_pid_fd(5).
const DESCRIPTORS: Metric =
    Metric::gauge("process_open_fds", "descriptors", "Open file descriptors.").without_prefix();

/// The soft limit of the process (getrlimit(2)).
const DESCRIPTORS_MAX: Metric =
    Metric::gauge("process_max_fds", "descriptors", "Maximum number of open file descriptors.")
        .without_prefix();

/// Of tasks, requests and work on other threads.
const PANICS: Metric = Metric::counter(
    "panics_total",
    "panics",
    "Panics: faults of the server, each of which ended a request, a connection or a task. The error log has the cause.",
);

/// All metrics of this file, in the order of the page.
pub(super) const METRICS: &[&Metric] =
    &[&CPU, &STARTED, &RESIDENT, &VIRTUAL, &DESCRIPTORS, &DESCRIPTORS_MAX, &PANICS];

/// Appends the numbers. Numbers that the kernel does not provide are omitted.
pub(super) fn write(started: SystemTime, page: &mut Page) {
    let mut each = |metric: &Metric, number: Option<f64>| {
        page.head(metric);
        number.into_iter().for_each(|number| page.fraction(metric, &[], number));
    };
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, ms) = since_1970(started);
    let memory = memory();
    each(&CPU, Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9));
    each(&STARTED, Some(seconds as f64 + f64::from(ms) / 1e3));
    each(&RESIDENT, memory.map(|(_, resident)| resident));
    each(&VIRTUAL, memory.map(|(size, _)| size));
    each(&DESCRIPTORS, descriptors());
    each(&DESCRIPTORS_MAX, getrlimit(Resource::Nofile).current.map(|max| max as f64));
    each(&PANICS, Some(rt::panics::count() as f64));
}

/// Returns the bytes of address space and of resident memory (proc_pid_statm(5)).
#[expect(clippy::disallowed_methods, reason = "the kernel makes the text, no disk is waited for")]
fn memory() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let page = rustix::param::page_size() as f64;
    let mut pages = text.split_ascii_whitespace().map(|word| word.parse::<f64>().ok());
    Some((pages.next()?? * page, pages.next()?? * page))
}

/// Returns the number of open descriptors, without the one that reads the directory.
#[expect(clippy::disallowed_methods, reason = "the kernel makes the directory, no disk is waited for")]
fn descriptors() -> Option<f64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    Some(entries.count().saturating_sub(1) as f64)
}
