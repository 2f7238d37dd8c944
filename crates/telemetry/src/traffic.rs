//! Statistics of requests by server and location: statuses, bytes and times.
//!
//! A zone is a server with one of its locations. The configuration names both, so clients cannot create labels.
//! [`Traffic`] contains the zones of a configuration on one thread; it creates the [`TrafficCells`] of a zone at the
//! zone's first request. [`Registry`] contains the cells of all threads, and retains them across reloads.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::histogram::{Distribution, Histogram};
use crate::metric::{Label, Metric, Page};

/// A server and one of its locations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Zone {
    /// The first name of the server.
    pub server: Arc<str>,
    /// The location as written in the configuration; empty for requests without a location.
    pub location: Arc<str>,
}

/// The zones of a configuration.
#[derive(Debug, Default)]
pub struct Zones {
    /// All zones, without duplicates.
    pub all: Vec<Zone>,
    /// The index of each zone in `all`.
    pub indices: HashMap<Zone, u32>,
    /// The index of each location's zone in `all`, by the number of the location; `None` if its requests are not
    /// counted.
    pub by_location: Vec<Option<u32>>,
}

const SERVER: Label = Label { name: "server", values: &[] };
const LOCATION: Label = Label { name: "location", values: &[] };

/// Status codes with separate counters, then one value for the other codes of each class.
const CODES: &[(&str, &str)] = &[
    ("100", ""),
    ("101", ""),
    ("200", ""),
    ("201", ""),
    ("202", ""),
    ("203", ""),
    ("204", ""),
    ("205", ""),
    ("206", ""),
    ("207", ""),
    ("300", ""),
    ("301", ""),
    ("302", ""),
    ("303", ""),
    ("304", ""),
    ("307", ""),
    ("308", ""),
    ("400", ""),
    ("401", ""),
    ("402", ""),
    ("403", ""),
    ("404", ""),
    ("405", ""),
    ("406", ""),
    ("407", ""),
    ("408", ""),
    ("409", ""),
    ("410", ""),
    ("411", ""),
    ("412", ""),
    ("413", ""),
    ("414", ""),
    ("415", ""),
    ("416", ""),
    ("417", ""),
    ("418", ""),
    ("421", ""),
    ("422", ""),
    ("423", ""),
    ("424", ""),
    ("425", ""),
    ("426", ""),
    ("428", ""),
    ("429", ""),
    ("431", ""),
    ("444", "closed without a response"),
    ("451", ""),
    ("494", "the header section of the request is too large"),
    ("495", "the client's certificate is not trusted"),
    ("496", "the client sent no certificate"),
    ("497", "plain HTTP on an HTTPS port"),
    ("499", "the client closed the connection"),
    ("500", ""),
    ("501", ""),
    ("502", ""),
    ("503", ""),
    ("504", ""),
    ("505", ""),
    ("507", ""),
    ("1xx", "another status below 200"),
    ("2xx", "another status below 300"),
    ("3xx", "another status below 400"),
    ("4xx", "another status below 500"),
    ("5xx", "another status of 500 or above"),
];

/// The label `code`, with the values that [`Codes`] counts.
pub const CODE: Label = Label { name: "code", values: CODES };

/// The index of the first value that stands for a class.
const CLASSES: usize = CODES.len() - 5;

/// The index of each status code in `CODES`.
static INDICES: [u8; 600] = indices();

const fn indices() -> [u8; 600] {
    let mut indices = [0; 600];
    let mut status = 0;
    while status < indices.len() {
        let class = if status < 200 { 1 } else { status / 100 };
        indices[status] = (CLASSES + class - 1) as u8;
        status += 1;
    }
    let mut index = 0;
    while index < CLASSES {
        let [a, b, c] = *CODES[index].0.as_bytes() else { panic!("a status has three digits") };
        indices[(a - b'0') as usize * 100 + (b - b'0') as usize * 10 + (c - b'0') as usize] = index as u8;
        index += 1;
    }
    indices
}

/// Returns the index of a status code in the values of `code`.
pub fn code_index(status: u16) -> usize {
    INDICES.get(usize::from(status)).map_or(CODES.len() - 1, |&index| usize::from(index))
}

/// Number of values of `code`.
pub const CODE_VALUES: usize = CODES.len();

/// Number of responses by status code; [`code_index`] returns the index of a status code.
pub type Codes = [u64; CODE_VALUES];

/// Returns the codes that have occurred, with their counts.
pub fn occurred(codes: &Codes) -> impl Iterator<Item = (&'static str, u64)> {
    CODES.iter().zip(codes).filter(|(_, count)| **count > 0).map(|((code, _), count)| (*code, *count))
}

/// Returns the sums of the five status classes.
pub fn classes(codes: &Codes) -> [u64; 5] {
    let mut classes = [0; 5];
    for ((code, _), count) in CODES.iter().zip(codes) {
        classes[usize::from(code.as_bytes()[0] - b'1')] += count;
    }
    classes
}

const REQUESTS: Metric = Metric::counter(
    "http_requests_total",
    "requests",
    "Finished requests, by status. Statuses that did not occur are left out.",
)
.labelled(&[SERVER, LOCATION, CODE]);

const DURATION: Metric = Metric::histogram(
    "http_request_duration_seconds",
    "Time from the first byte of a request to the end of its response.",
)
.labelled(&[SERVER, LOCATION]);

const FIRST_BYTE: Metric = Metric::histogram(
    "http_first_byte_seconds",
    "Time from the first byte of a request to the header section of its response; requests without a response are left out.",
)
.labelled(&[SERVER, LOCATION]);

const RECEIVED: Metric =
    Metric::counter("http_received_bytes_total", "bytes", "Bytes of requests: header sections and bodies.")
        .labelled(&[SERVER, LOCATION]);

const SENT: Metric =
    Metric::counter("http_sent_bytes_total", "bytes", "Bytes of responses: header sections and bodies.")
        .labelled(&[SERVER, LOCATION]);

/// Responses from files. The values of the label are in the order of the methods, four engines for each method.
const BODIES: Metric = Metric::counter(
    "http_bodies_total",
    "responses",
    "Responses from a file, by $body_engine: the method and the disk engine. Values that did not occur are left out.",
)
.labelled(&[
    SERVER,
    LOCATION,
    Label {
        name: "engine",
        values: &[
            ("io_uring", "read through io_uring"),
            ("libaio", ""),
            ("threads", ""),
            ("sync", "read by the worker thread itself"),
            ("io_uring_direct", "bypassing the page cache"),
            ("libaio_direct", ""),
            ("threads_direct", ""),
            ("sync_direct", ""),
            ("sendfile_or_io_uring", "sendfile for resident bytes, the engine for others"),
            ("sendfile_or_libaio", ""),
            ("sendfile_or_threads", ""),
            ("sendfile_or_sync", ""),
            ("sendfile_io_uring", ""),
            ("sendfile_libaio", ""),
            ("sendfile_threads", "sendfile by a thread of a pool"),
            ("sendfile_sync", "sendfile by the worker thread itself"),
            ("shm_sendfile_io_uring", "read into shared memory, and sendfile from there"),
            ("shm_sendfile_libaio", ""),
            ("shm_sendfile_threads", ""),
            ("shm_sendfile_sync", ""),
            ("shm_sendfile_io_uring_direct", ""),
            ("shm_sendfile_libaio_direct", ""),
            ("shm_sendfile_threads_direct", ""),
            ("shm_sendfile_sync_direct", ""),
        ],
    },
]);

/// Number of values of `BODIES`: four engines for each method.
pub const ENGINE_VALUES: usize = 24;

/// The metrics of requests, in the order of the metrics page.
pub const METRICS: &[&Metric] = &[&REQUESTS, &DURATION, &FIRST_BYTE, &RECEIVED, &SENT, &BODIES];

const SESSIONS: Metric = Metric::counter(
    "stream_sessions_total",
    "sessions",
    "Finished sessions, by status. Statuses that did not occur are left out.",
)
.labelled(&[SERVER, CODE]);

const SESSION_DURATION: Metric =
    Metric::histogram("stream_session_duration_seconds", "Time from the start of a session to its end.")
        .labelled(&[SERVER]);

const SESSION_RECEIVED: Metric =
    Metric::counter("stream_received_bytes_total", "bytes", "Bytes from clients of finished sessions.")
        .labelled(&[SERVER]);

const SESSION_SENT: Metric =
    Metric::counter("stream_sent_bytes_total", "bytes", "Bytes to clients of finished sessions.")
        .labelled(&[SERVER]);

/// The metrics of sessions.
pub const SESSION_METRICS: &[&Metric] = &[&SESSIONS, &SESSION_DURATION, &SESSION_RECEIVED, &SESSION_SENT];

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status in the access log.
    pub status: u16,
    /// Number of bytes of the request.
    pub received: u64,
    /// Number of bytes of the response.
    pub sent: u64,
    /// Duration of the request.
    pub time: Duration,
    /// Time until the header section of the response; `None` without a response.
    pub first_byte: Option<Duration>,
    /// The index of the engine that sent a file, in the values of `BODIES`.
    pub engine: Option<usize>,
}

/// The counters of one zone on one thread.
#[derive(Debug)]
#[repr(align(128))]
struct TrafficCells {
    codes: [AtomicU64; CODE_VALUES],
    received: AtomicU64,
    sent: AtomicU64,
    unanswered: AtomicU64,
    engines: [AtomicU64; ENGINE_VALUES],
    duration: Histogram,
    first_byte: Histogram,
}

impl Default for TrafficCells {
    fn default() -> TrafficCells {
        TrafficCells {
            codes: [const { AtomicU64::new(0) }; CODE_VALUES],
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            engines: [const { AtomicU64::new(0) }; ENGINE_VALUES],
            duration: Histogram::default(),
            first_byte: Histogram::default(),
        }
    }
}

/// Adds to a counter. Only the thread of the cell may call this.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl TrafficCells {
    fn count(&self, ended: &Ended) {
        add(&self.codes[code_index(ended.status)], 1);
        add(&self.received, ended.received);
        add(&self.sent, ended.sent);
        if ended.sent == 0 {
            add(&self.unanswered, 1);
        }
        if let Some(engine) = ended.engine.and_then(|index| self.engines.get(index)) {
            add(engine, 1);
        }
        self.duration.add(ended.time);
        if let Some(time) = ended.first_byte {
            self.first_byte.add(time);
        }
    }

    fn add_to(&self, sums: &mut Sums) {
        let all = |sums: &mut [u64], cells: &[AtomicU64]| {
            sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell.load(Ordering::Relaxed));
        };
        all(&mut sums.codes, &self.codes);
        all(&mut sums.engines, &self.engines);
        sums.received += self.received.load(Ordering::Relaxed);
        sums.sent += self.sent.load(Ordering::Relaxed);
        sums.unanswered += self.unanswered.load(Ordering::Relaxed);
        self.duration.add_to(&mut sums.duration);
        self.first_byte.add_to(&mut sums.first_byte);
    }
}

/// The sums of a zone's counters over all threads.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Number of requests by status code.
    pub codes: Codes,
    /// Number of bytes of requests.
    pub received: u64,
    /// Number of bytes of responses.
    pub sent: u64,
    /// Number of requests without any byte of a response.
    pub unanswered: u64,
    /// Number of responses from a file, by engine.
    pub engines: [u64; ENGINE_VALUES],
    /// Durations of requests.
    pub duration: Distribution,
    /// Times until the header sections of responses.
    pub first_byte: Distribution,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums {
            codes: [0; CODE_VALUES],
            received: 0,
            sent: 0,
            unanswered: 0,
            engines: [0; ENGINE_VALUES],
            duration: Distribution::default(),
            first_byte: Distribution::default(),
        }
    }
}

impl Sums {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.codes.iter().sum()
    }

    /// Adds the sums of another zone.
    pub fn merge(&mut self, other: &Sums) {
        self.codes.iter_mut().zip(&other.codes).for_each(|(sum, count)| *sum += count);
        self.engines.iter_mut().zip(&other.engines).for_each(|(sum, count)| *sum += count);
        self.received += other.received;
        self.sent += other.sent;
        self.unanswered += other.unanswered;
        self.duration.merge(&other.duration);
        self.first_byte.merge(&other.first_byte);
    }

    /// Returns the engines that sent files, with their counts.
    pub fn moved(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let values = BODIES.values().iter().zip(&self.engines).filter(|(_, count)| **count > 0);
        values.map(|((engine, _), count)| (*engine, *count))
    }
}

/// The cells of all threads, by zone.
#[derive(Debug, Default)]
pub struct Registry(Mutex<HashMap<Zone, Vec<Arc<TrafficCells>>>>);

impl Registry {
    /// Returns the sums of a zone; they are zero for a zone without requests.
    pub fn sums(&self, zone: &Zone) -> Sums {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = Sums::default();
        all.get(zone).into_iter().flatten().for_each(|cells| cells.add_to(&mut sums));
        sums
    }

    /// Returns the zones with requests.
    fn used<'z>(&self, zones: &'z [Zone]) -> Vec<(&'z Zone, Sums)> {
        let pairs = zones.iter().map(|zone| (zone, self.sums(zone)));
        pairs.filter(|(_, sums)| sums.requests() > 0).collect()
    }

    /// Appends the metrics of these zones of `stream`. Zones without sessions are omitted.
    pub fn write_sessions(&self, zones: &[Zone], page: &mut Page) {
        let pairs = self.used(zones);
        let mut each = |metric: &Metric, write: fn(&mut Page, &Metric, &[&str], &Sums)| {
            page.head(metric);
            pairs.iter().for_each(|(zone, sums)| write(page, metric, &[&zone.server], sums));
        };
        each(&SESSIONS, |page, metric, values, sums| page.occurred(metric, values, &sums.codes));
        each(&SESSION_DURATION, |page, metric, values, sums| page.times(metric, values, &sums.duration));
        each(&SESSION_RECEIVED, |page, metric, values, sums| page.number(metric, values, sums.received));
        each(&SESSION_SENT, |page, metric, values, sums| page.number(metric, values, sums.sent));
    }

    /// Appends the metrics of these zones. Zones without requests are omitted.
    pub fn write(&self, zones: &[Zone], page: &mut Page) {
        let pairs = self.used(zones);
        let mut each = |metric: &Metric, write: fn(&mut Page, &Metric, &[&str], &Sums)| {
            page.head(metric);
            for (Zone { server, location }, sums) in &pairs {
                write(page, metric, &[server, location], sums);
            }
        };
        each(&REQUESTS, |page, metric, values, sums| page.occurred(metric, values, &sums.codes));
        each(&DURATION, |page, metric, values, sums| page.times(metric, values, &sums.duration));
        each(&FIRST_BYTE, |page, metric, values, sums| page.times(metric, values, &sums.first_byte));
        each(&RECEIVED, |page, metric, values, sums| page.number(metric, values, sums.received));
        each(&SENT, |page, metric, values, sums| page.number(metric, values, sums.sent));
        each(&BODIES, |page, metric, values, sums| page.occurred(metric, values, &sums.engines));
    }

    /// Creates the cells of a thread for this zone. The thread must not have any yet.
    fn cells(&self, zone: &Zone) -> Arc<TrafficCells> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cells = Arc::<TrafficCells>::default();
        all.entry(zone.clone()).or_default().push(Arc::clone(&cells));
        cells
    }

    /// Removes zones that the configuration does not contain.
    fn retain(&self, zones: &Zones) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|zone, _| zones.indices.contains_key(zone));
    }
}

/// The zones of a configuration on one thread.
#[derive(Debug)]
pub struct Traffic {
    zones: Arc<Zones>,
    own: Vec<OnceCell<Arc<TrafficCells>>>,
}

impl Traffic {
    /// Starts to count for a configuration on a thread. Uses the cells of the previous configuration for the same
    /// zones.
    pub fn begin(zones: &Arc<Zones>, before: Option<&Traffic>, registry: &Registry) -> Traffic {
        registry.retain(zones);
        let own = zones.all.iter().map(|zone| match before.and_then(|before| before.find(zone)) {
            Some(cells) => OnceCell::from(Arc::clone(cells)),
            None => OnceCell::new(),
        });
        Traffic { own: own.collect(), zones: Arc::clone(zones) }
    }

    fn find(&self, zone: &Zone) -> Option<&Arc<TrafficCells>> {
        let index = *self.zones.indices.get(zone)?;
        debug_assert!((index as usize) < self.own.len(), "each zone has cells");
        self.own[index as usize].get()
    }

    /// Counts a request that a location completed.
    pub fn count(&self, location: usize, ended: &Ended, registry: &Registry) {
        let Some(&Some(zone)) = self.zones.by_location.get(location) else { return };
        let zone = zone as usize;
        self.own[zone].get_or_init(|| registry.cells(&self.zones.all[zone])).count(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Form;

    fn zones(names: &[(&str, &str)]) -> Arc<Zones> {
        let zone = |(server, location): &(&str, &str)| Zone {
            server: (*server).into(),
            location: (*location).into(),
        };
        let all: Vec<Zone> = names.iter().map(zone).collect();
        let by_location = (0..names.len() as u32).map(Some).collect();
        Arc::new(Zones { indices: all.iter().cloned().zip(0..).collect(), all, by_location })
    }

    fn ended(status: u16, sent: u64, engine: Option<usize>) -> Ended {
        Ended {
            status,
            received: 10,
            sent,
            time: Duration::from_millis(1),
            first_byte: (sent > 0).then_some(Duration::ZERO),
            engine,
        }
    }

    #[test]
    fn statuses_have_cells() {
        for (status, code) in
            [(200, "200"), (499, "499"), (599, "5xx"), (299, "2xx"), (0, "1xx"), (999, "5xx")]
        {
            assert_eq!(CODES[code_index(status)].0, code);
        }
        assert_eq!(CODES.len(), 64);
        let mut codes = [0; CODE_VALUES];
        for status in [200, 206, 299, 404, 500] {
            codes[code_index(status)] += 1;
        }
        assert_eq!(classes(&codes), [0, 3, 0, 1, 1]);
        assert_eq!(occurred(&codes).next(), Some(("200", 1)));
        assert_eq!(BODIES.values().len(), ENGINE_VALUES);
    }

    #[test]
    fn threads_are_summed_and_zones_of_the_same_name_survive_a_reload() {
        let registry = Registry::default();
        let first = zones(&[("a", "/"), ("a", "/x")]);
        let threads = [Traffic::begin(&first, None, &registry), Traffic::begin(&first, None, &registry)];
        threads[0].count(0, &ended(200, 100, Some(1)), &registry);
        threads[1].count(0, &ended(404, 0, None), &registry);
        threads[1].count(1, &ended(200, 1, None), &registry);
        threads[1].count(7, &ended(200, 1, None), &registry);
        let sums: Vec<Sums> = first.all.iter().map(|zone| registry.sums(zone)).collect();
        assert_eq!((sums[0].requests(), sums[1].requests()), (2, 1));
        assert_eq!((sums[0].received, sums[0].sent, sums[0].unanswered), (20, 100, 1));
        assert_eq!(sums[0].moved().collect::<Vec<_>>(), [("libaio", 1)]);
        // One zone moves to another index, one is removed, one is added.
        let second = zones(&[("b", "/"), ("a", "/")]);
        let threads = threads.map(|before| Traffic::begin(&second, Some(&before), &registry));
        threads[0].count(1, &ended(200, 1, None), &registry);
        let sums: Vec<Sums> = second.all.iter().map(|zone| registry.sums(zone)).collect();
        assert_eq!((sums[0].requests(), sums[1].requests()), (0, 3));
        assert_eq!(registry.sums(&first.all[1]).requests(), 0, "removed with its location");
    }

    #[test]
    fn a_page_contains_zones_with_requests() {
        let registry = Registry::default();
        let zones = zones(&[("a", ""), ("a", "~ \\.x$")]);
        Traffic::begin(&zones, None, &registry).count(1, &ended(206, 5, Some(15)), &registry);
        let mut page = Page::new(Form::Plain);
        registry.write(&zones.all, &mut page);
        let text = page.finish();
        for line in [
            "ringroad_http_requests_total{server=\"a\",location=\"~ \\\\.x$\",code=\"206\"} 1\n",
            "ringroad_http_sent_bytes_total{server=\"a\",location=\"~ \\\\.x$\"} 5\n",
            "ringroad_http_bodies_total{server=\"a\",location=\"~ \\\\.x$\",engine=\"sendfile_sync\"} 1\n",
            "ringroad_http_first_byte_seconds_count{server=\"a\",location=\"~ \\\\.x$\"} 1\n",
            "ringroad_http_request_duration_seconds_count{server=\"a\",location=\"~ \\\\.x$\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("location=\"\""), "{text}");
        assert_eq!(text.matches("# TYPE").count(), METRICS.len());
    }
}
