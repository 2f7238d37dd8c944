//! Metrics of stores and fetches, and their section of the page with the metrics of all caches.
//!
//! The metrics that threads count are in [`tally`]; their rows are the first of the section.

use ::cache::Stats;
use telemetry::metric::{Label, Metric, Page};

use crate::tally::{self, Sums};
use crate::tasks::Cache;

/// The values of one cache at one time.
struct Numbers {
    /// `None` if the cache could not be opened.
    stats: Option<Stats>,
    max_size: Option<u64>,
    marks: u64,
    marked: u64,
    fetches: u64,
    /// Number of body bytes sent from files.
    sent_from_files: u64,
}

impl Numbers {
    fn of(cache: &Cache, sums: &Sums) -> Numbers {
        let shared_fetches = cache.shared_fetches();
        Numbers {
            stats: cache.store().map(|store| store.stats()),
            max_size: cache.store().and_then(|store| store.config().max_size),
            marks: shared_fetches.marks(),
            marked: shared_fetches.passed(),
            fetches: shared_fetches.in_flight_count(),
            sent_from_files: tally::SENT_FROM_FILES.of(&sums.cells)[0],
        }
    }
}

/// Figures of a cache for display.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Number of bytes on disk; `None` if the cache could not be opened.
    pub bytes: Option<u64>,
    /// `max_size`
    pub max_size: Option<u64>,
    /// Whether the index does not contain all entries on disk yet.
    pub is_loading: bool,
    /// Whether the disk accepts no entries, or the cache could not be opened.
    pub is_degraded: bool,
    /// Number of entries.
    pub entries: u64,
    /// Number of entries evicted.
    pub evicted: u64,
    /// Number of requests with a response, by `$upstream_cache_status`.
    pub requests: Vec<(&'static str, u64)>,
}

impl Facts {
    /// Reads the figures of a cache.
    pub fn of(cache: &Cache) -> Facts {
        let sums = cache.tallies().sums();
        let Numbers { stats, max_size, .. } = Numbers::of(cache, &sums);
        let [requests, ..] = tally::METRICS;
        let by_status = requests.metric.values().iter().zip(requests.of(&sums.cells));
        Facts {
            bytes: stats.map(|stats| stats.bytes),
            max_size,
            is_loading: stats.is_some_and(|stats| !stats.is_loaded && !stats.is_unwritable),
            is_degraded: stats.as_ref().is_none_or(stores_nothing),
            entries: stats.map_or(0, |stats| stats.entries),
            evicted: stats.map_or(0, |stats| stats.evicted),
            requests: by_status.map(|((status, _), count)| (*status, *count)).collect(),
        }
    }
}

/// A metric whose value is computed when it is read.
struct Row {
    metric: Metric,
    /// Appends a value for each value of the last label, or a single value; nothing if it is unknown.
    read: fn(&Numbers, &mut Vec<u64>),
}

const ZONE: Label = Label { name: "zone", values: &[] };

/// Creates a row with the label `zone`.
const fn own(metric: Metric, read: fn(&Numbers, &mut Vec<u64>)) -> Row {
    Row { metric: metric.labelled(&[ZONE]), read }
}

/// Reads values of a store, if it could be opened.
fn store<const N: usize>(numbers: &Numbers, out: &mut Vec<u64>, read: fn(&Stats) -> [u64; N]) {
    if let Some(stats) = &numbers.stats {
        out.extend(read(stats));
    }
}

const FETCHES: Row = own(
    Metric::gauge("cache_fetches", "fetches", "Fetches in flight that requests can join."),
    |numbers, out| out.push(numbers.fetches),
);

const MARKS: Row = own(
    Metric::gauge(
        "cache_marks",
        "keys",
        "Keys marked as uncacheable, so that their requests do not wait for each other.",
    ),
    |numbers, out| out.push(numbers.marks),
);

const MARKED: Row = own(
    Metric::counter(
        "cache_marked_total",
        "requests",
        "Requests that did not wait for a fetch in flight, because their key is marked as uncacheable (hit-for-miss).",
    ),
    |numbers, out| out.push(numbers.marked),
);

const REFUSED: Row = Row {
    metric: Metric::counter(
        "cache_refused_total",
        "responses",
        "Cacheable responses that were not stored, by reason.",
    )
    .labelled(&[
        ZONE,
        Label {
            name: "reason",
            values: &[
                ("not_owner", "another process owns the directory"),
                ("pass_through", "the disk is not used for a while after failures"),
                ("no_room", "`max_size`"),
                ("too_large", "more than `max_size`"),
                ("disk_full", "`min_free`"),
                ("not_admitted", "a full cache admits a key at its second request"),
                ("busy", "another request changes the entry"),
                ("unstorable", "key, header section, tags or body exceed their limits"),
                ("head_too_long", "the new header section is longer than the space of the old one"),
                ("gone", "the entry to be changed does not exist any more"),
                ("no_memory", ""),
                ("disk", "an operation of the disk failed"),
                ("stopping", ""),
                ("behind", "64 entries wait for the disk, which has written none for a second"),
                ("older", "a response that was requested later is complete"),
            ],
        },
    ]),
    read: |numbers, out| store(numbers, out, |stats| stats.refused),
};

const LOOKUPS: Row = Row {
    metric: Metric::counter("cache_lookups_total", "lookups", "Lookups, by where the entry was found.")
        .labelled(&[ZONE, Label { name: "found", values: &[("memory", ""), ("disk", ""), ("nowhere", "")] }]),
    read: |numbers, out| store(numbers, out, |stats| [stats.hits_memory, stats.hits_disk, stats.misses]),
};

const FILLS: Row = Row {
    metric: Metric::counter("cache_fills_total", "fills", "Fills, by state.").labelled(&[
        ZONE,
        Label {
            name: "state",
            values: &[
                ("begun", ""),
                ("stored", "became an entry or a part of one"),
                ("dropped", "ended without an entry"),
            ],
        },
    ]),
    read: |numbers, out| store(numbers, out, |stats| [stats.fills, stats.commits, stats.aborts]),
};

const REMOVED: Row = Row {
    metric: Metric::counter("cache_removed_total", "entries", "Removed entries, by reason.").labelled(&[
        ZONE,
        Label {
            name: "reason",
            values: &[
                ("evicted", "to make room"),
                ("inactive", "not requested for the time of `inactive`"),
                ("purged", ""),
                ("damaged", "a checksum was wrong"),
            ],
        },
    ]),
    read: |numbers, out| {
        store(numbers, out, |stats| [stats.evicted, stats.inactive, stats.purged, stats.damaged]);
    },
};

const PURGES: Row = own(
    Metric::counter("cache_purges_total", "purges", "Purges, whether or not they matched an entry."),
    |numbers, out| {
        store(numbers, out, |stats| [stats.purges]);
    },
);

const PURGE_WRITES: Row = own(
    Metric::counter(
        "cache_purge_writes_total",
        "writes",
        "Group commits of the purge log: one write and one fdatasync for all purges that arrived during the previous commit.",
    ),
    |numbers, out| store(numbers, out, |stats| [stats.purge_writes]),
);

const PURGES_STORED: Row = own(
    Metric::gauge(
        "cache_purges_kept",
        "purges",
        "Purges held in memory because older entries may still match them, like a ban list.",
    ),
    |numbers, out| store(numbers, out, |stats| [stats.purges_stored]),
);

const DISK_ERRORS: Row = Row {
    metric: Metric::counter("cache_disk_errors_total", "operations", "Failed disk operations.")
        .labelled(&[ZONE, Label { name: "direction", values: &[("read", ""), ("write", "")] }]),
    read: |numbers, out| store(numbers, out, |stats| [stats.read_errors, stats.write_errors]),
};

const DEVICE_BYTES: Row = Row {
    metric: Metric::counter(
        "cache_device_bytes_total",
        "bytes",
        "Bytes read or sent from files of the cache, and bytes written to them. The page cache may have served the reads.",
    )
    .labelled(&[ZONE, Label { name: "direction", values: &[("read", ""), ("write", "")] }]),
    read: |numbers, out| {
        let both = |stats: &Stats| [stats.read_bytes + numbers.sent_from_files, stats.written_bytes];
        out.extend(numbers.stats.iter().flat_map(both));
    },
};

const DEGRADATIONS: Row = own(
    Metric::counter(
        "cache_degradations_total",
        "times",
        "Number of times that disk failures made the cache stop storing for a while.",
    ),
    |numbers, out| store(numbers, out, |stats| [stats.pass_throughs]),
);

/// Whether a cache stores nothing at present.
fn stores_nothing(stats: &Stats) -> bool {
    stats.is_pass_through || stats.is_unwritable
}

const DEGRADED: Row = own(
    Metric::gauge(
        "cache_degraded",
        "1",
        "1 while the cache stores nothing, because it could not be opened or its disk failed.",
    ),
    |numbers, out| out.push(u64::from(numbers.stats.as_ref().is_none_or(stores_nothing))),
);

const VERIFIED: Row = own(
    Metric::counter("cache_verified_chunks_total", "chunks", "Chunks verified against their checksums."),
    |numbers, out| store(numbers, out, |stats| [stats.verified_chunks]),
);

const OBJECTS: Row =
    own(Metric::gauge("cache_objects", "entries", "Entries in the index."), |numbers, out| {
        store(numbers, out, |stats| [stats.entries]);
    });

const OBJECTS_MAX: Row = own(
    Metric::gauge("cache_objects_max", "entries", "Maximum number of entries, from the size of keys_zone."),
    |numbers, out| store(numbers, out, |stats| [stats.entries_max]),
);

const BYTES: Row = own(
    Metric::gauge("cache_bytes", "bytes", "Bytes on disk of entries and of fills in flight."),
    |numbers, out| store(numbers, out, |stats| [stats.bytes]),
);

const BYTES_MAX: Row =
    own(Metric::gauge("cache_bytes_max", "bytes", "max_size in bytes, where it is set."), |numbers, out| {
        out.extend(numbers.max_size)
    });

const MEMORY: Row = own(
    Metric::gauge("cache_memory_bytes", "bytes", "Bytes of entries stored in memory."),
    |numbers, out| store(numbers, out, |stats| [stats.memory_bytes]),
);

const LOADED: Row = own(
    Metric::gauge(
        "cache_loaded",
        "1",
        "1 when all entries on the disk are known; until then lookups check the disk.",
    ),
    |numbers, out| store(numbers, out, |stats| [stats.is_loaded.into()]),
);

const MEASURED: Row = own(
    Metric::gauge(
        "cache_measured",
        "1",
        "1 when the sizes of all entries are known; until then a cache with max_size stores nothing.",
    ),
    |numbers, out| store(numbers, out, |stats| [stats.is_measured.into()]),
);

const OWNER: Row = own(
    Metric::gauge("cache_owner", "1", "1 if this process owns the directory, 0 if another process owns it."),
    |numbers, out| store(numbers, out, |stats| [stats.is_owner.into()]),
);

/// All rows, in the order of the page.
const ROWS: &[Row] = &[
    REFUSED,
    LOOKUPS,
    FILLS,
    FETCHES,
    MARKS,
    MARKED,
    REMOVED,
    PURGES,
    PURGE_WRITES,
    PURGES_STORED,
    DISK_ERRORS,
    DEVICE_BYTES,
    DEGRADATIONS,
    DEGRADED,
    VERIFIED,
    OBJECTS,
    OBJECTS_MAX,
    BYTES,
    BYTES_MAX,
    MEMORY,
    LOADED,
    MEASURED,
    OWNER,
];

/// Returns the metrics of the page, in order.
pub fn metrics() -> Vec<&'static Metric> {
    let counted = tally::METRICS.iter().map(|series| &series.metric).chain([&tally::HIT_AGE]);
    counted.chain(ROWS.iter().map(|row| &row.metric)).collect()
}

/// Appends the values of these caches, by the names of their zones.
pub fn write<'a>(caches: impl Iterator<Item = (&'a str, &'a Cache)>, page: &mut Page) {
    let all: Vec<_> = caches.map(|(zone, cache)| numbers_of(zone, cache)).collect();
    render(&all, page);
}

fn numbers_of<'a>(zone: &'a str, cache: &Cache) -> (&'a str, Sums, Numbers) {
    let sums = cache.tallies().sums();
    let numbers = Numbers::of(cache, &sums);
    (zone, sums, numbers)
}

fn render(caches: &[(&str, Sums, Numbers)], page: &mut Page) {
    for series in tally::METRICS {
        page.head(&series.metric);
        for (zone, sums, _) in caches {
            page.numbers(&series.metric, &[*zone], series.of(&sums.cells));
        }
    }
    page.head(&tally::HIT_AGE);
    for (zone, sums, _) in caches {
        page.ages(&tally::HIT_AGE, &[*zone], &sums.hit_ages);
    }
    let mut numbers = Vec::new();
    for Row { metric, read } in ROWS {
        page.head(metric);
        for (zone, _, known) in caches {
            numbers.clear();
            read(known, &mut numbers);
            page.numbers(metric, &[*zone], &numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cache::Refused;
    use telemetry::metric::Form;

    fn numbers(stats: Option<Stats>) -> Numbers {
        Numbers { stats, max_size: None, marks: 1, marked: 2, fetches: 3, sent_from_files: 4 }
    }

    #[test]
    fn unknown_values_are_omitted() {
        let mut sums = Sums::default();
        (0..).zip(&mut sums.cells).for_each(|(number, cell)| *cell = number);
        sums.hit_ages.add(std::time::Duration::from_micros(20));
        let closed = ("a", sums.clone(), numbers(None));
        let mut page = Page::new(Form::Plain);
        render(&[closed, ("b", sums, numbers(Some(Stats::default())))], &mut page);
        let text = page.finish();
        for line in [
            "ringroad_cache_requests_total{zone=\"a\",status=\"hit\"} 6\n",
            "ringroad_cache_collapsed_total{zone=\"a\"} 7\n",
            "ringroad_cache_hit_age_seconds_bucket{zone=\"a\",le=\"1\"} 0\n",
            "ringroad_cache_hit_age_seconds_bucket{zone=\"a\",le=\"2\"} 1\n",
            "ringroad_cache_hit_age_seconds_bucket{zone=\"a\",le=\"8388608\"} 1\n",
            "ringroad_cache_degraded{zone=\"a\"} 1\n",
            "ringroad_cache_degraded{zone=\"b\"} 0\n",
            "ringroad_cache_refused_total{zone=\"b\",reason=\"no_room\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(text.matches("ringroad_cache_objects{").count(), 1, "{text}");
        assert_eq!(text.matches("ringroad_cache_bytes_max{").count(), 0, "{text}");
        let heads = text.lines().filter(|line| line.starts_with("# HELP")).count();
        assert_eq!(heads, metrics().len(), "each once, however many caches there are");
    }

    #[test]
    fn the_store_and_the_metric_have_the_same_reasons() {
        let values: Vec<&str> = REFUSED.metric.values().iter().map(|(value, _)| *value).collect();
        assert_eq!(values, Refused::NAMES);
    }
}
