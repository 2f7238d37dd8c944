//! `cache_counters`: a page with the numbers of every cache, in the text format of Prometheus (version 0.0.4).
//!
//! Each number is a line of [`METRICS`], with its sentence: the page and docs/counters.md are made of that, and a test
//! holds the latter against it. Nothing is counted here; threads and stores do that, and a request for the page adds up.

use std::fmt::Write as _;

use ::cache::{Refused, Stats};
use conf::{Args, Contexts, Spec};
use http::request::Method;
use io::op::Source;

use crate::http_core::OWN;
use crate::{Directive, Module};
use exchange::config::{Inner, Settings, SettingsType};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use upstream::caching::settings::Caches;
use upstream::caching::tally::{REASONS, STATUSES, Totals};
use upstream::caching::tasks::Cache;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    settings: &[SettingsType::of::<Conf>()],
    take_part: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.now(Phase::Content, scope.shared::<Conf>(), run);
        }
    },
    ..Module::named(OWN)
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        OWN,
        "cache_counters",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::None,
        "Serves the numbers of all caches in the text format of Prometheus.",
    ),
    |scope, _| {
        scope.own::<Conf>().on = true;
        Ok(())
    },
)];

/// Whether a block answers with the page. It holds for that block only, as everything that makes content.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf {
    on: bool,
}

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner != Inner::If).then(Conf::default)
    }
}

/// What is known of one cache at a moment.
struct Numbers {
    totals: Totals,
    /// Of a cache that could not be opened there is nothing.
    stats: Option<Stats>,
    max_size: Option<u64>,
    marks: u64,
    marked: u64,
    fetches: u64,
}

impl Numbers {
    fn of(cache: &Cache) -> Numbers {
        let flights = cache.flights();
        Numbers {
            totals: cache.tallies().totals(),
            stats: cache.store().map(|store| store.stats()),
            max_size: cache.store().and_then(|store| store.config().max_size),
            marks: flights.marks(),
            marked: flights.passed(),
            fetches: flights.under_way_now(),
        }
    }
}

/// Takes one number with the value of the metric's label.
type Take<'a> = &'a mut dyn FnMut(&str, u64);

/// One number of the page, or some that a label tells apart.
struct Metric {
    /// Behind `ringroad_cache_`.
    name: &'static str,
    kind: &'static str,
    /// What tells its numbers apart beside the zone.
    label: Option<&'static str>,
    help: &'static str,
    get: fn(&Numbers, Take<'_>),
}

const fn counter(name: &'static str, help: &'static str, get: fn(&Numbers, Take<'_>)) -> Metric {
    Metric { name, kind: "counter", label: None, help, get }
}

const fn gauge(name: &'static str, help: &'static str, get: fn(&Numbers, Take<'_>)) -> Metric {
    Metric { kind: "gauge", ..counter(name, help, get) }
}

const fn labelled(label: &'static str, metric: Metric) -> Metric {
    Metric { label: Some(label), ..metric }
}

/// A number of the store.
fn stat(numbers: &Numbers, take: Take<'_>, get: fn(&Stats) -> u64) {
    if let Some(stats) = &numbers.stats {
        take("", get(stats));
    }
}

/// A number of the store with its label.
type Part<'a> = (&'a str, fn(&Stats) -> u64);

/// Numbers of the store with a label each.
fn some(numbers: &Numbers, take: Take<'_>, get: &[Part<'_>]) {
    if let Some(stats) = &numbers.stats {
        get.iter().for_each(|(label, get)| take(label, get(stats)));
    }
}

/// All of them, in the order of the page.
const METRICS: &[Metric] = &[
    labelled(
        "status",
        counter("requests_total", "Responses, by the value of $upstream_cache_status.", |numbers, take| {
            STATUSES.iter().zip(numbers.totals.statuses).for_each(|(to, count)| take(to.name(), count));
        }),
    ),
    counter("collapsed_total", "Requests coalesced onto a fetch in flight.", |numbers, take| {
        take("", numbers.totals.collapsed)
    }),
    counter(
        "unavailable_total",
        "Requests that bypassed the cache because it could not be opened.",
        |numbers, take| take("", numbers.totals.unavailable),
    ),
    labelled(
        "reason",
        counter(
            "unstored_total",
            "Responses that the rules of caching.md do not store, by reason.",
            |numbers, take| {
                let name = |reason: &_| match reason {
                    upstream::caching::record::Unstored::Vary(_) => "Vary".to_owned(),
                    reason => format!("{reason}"),
                };
                REASONS.iter().zip(numbers.totals.unstored).for_each(|(why, count)| take(&name(why), count));
            },
        ),
    ),
    labelled(
        "reason",
        counter("refused_total", "Storable responses that the store refused, by reason.", |numbers, take| {
            if let Some(stats) = &numbers.stats {
                Refused::NAMES.iter().zip(stats.refused).for_each(|(reason, count)| take(reason, count));
            }
        }),
    ),
    labelled(
        "found",
        counter("lookups_total", "Lookups, by where the entry was found.", |numbers, take| {
            some(
                numbers,
                take,
                &[
                    ("memory", |stats| stats.hits_memory),
                    ("disk", |stats| stats.hits_disk),
                    ("nowhere", |stats| stats.misses),
                ],
            );
        }),
    ),
    labelled(
        "state",
        counter(
            "fills_total",
            "Fills that were started, completed (an entry or a part of one) and abandoned.",
            |numbers, take| {
                some(
                    numbers,
                    take,
                    &[
                        ("begun", |stats| stats.fills),
                        ("stored", |stats| stats.commits),
                        ("dropped", |stats| stats.aborts),
                    ],
                );
            },
        ),
    ),
    gauge("fetches", "Fetches in flight that requests can join.", |numbers, take| take("", numbers.fetches)),
    gauge("marks", "Keys marked as not shareable: each response is for one request.", |numbers, take| {
        take("", numbers.marks)
    }),
    counter(
        "marked_total",
        "Requests that did not wait for a fetch because their key is marked.",
        |numbers, take| take("", numbers.marked),
    ),
    labelled(
        "reason",
        counter("removed_total", "Removed entries, by reason.", |numbers, take| {
            some(
                numbers,
                take,
                &[
                    ("evicted", |stats| stats.evicted),
                    ("inactive", |stats| stats.inactive),
                    ("purged", |stats| stats.purged),
                    ("damaged", |stats| stats.damaged),
                ],
            );
        }),
    ),
    counter("purges_total", "Completed purges, with or without matching entries.", |numbers, take| {
        stat(numbers, take, |stats| stats.purges);
    }),
    gauge("purges_kept", "Purges that are kept because an entry may be older.", |numbers, take| {
        stat(numbers, take, |stats| stats.purges_kept);
    }),
    labelled(
        "direction",
        counter("disk_errors_total", "Failed reads and writes of the disk.", |numbers, take| {
            some(
                numbers,
                take,
                &[("read", |stats| stats.read_errors), ("write", |stats| stats.write_errors)],
            );
        }),
    ),
    counter(
        "degradations_total",
        "Times that the cache stopped using its disk for a while.",
        |numbers, take| stat(numbers, take, |stats| stats.pass_throughs),
    ),
    gauge(
        "degraded",
        "1 while the cache cannot be opened or does not use its disk, else 0.",
        |numbers, take| take("", u64::from(numbers.stats.is_none_or(|stats| stats.is_pass_through))),
    ),
    counter("verified_chunks_total", "Chunks verified against their checksums.", |numbers, take| {
        stat(numbers, take, |stats| stats.verified_chunks);
    }),
    gauge("objects", "Entries in the index.", |numbers, take| stat(numbers, take, |stats| stats.entries)),
    gauge("objects_max", "Most entries of the index, from the size of keys_zone.", |numbers, take| {
        stat(numbers, take, |stats| stats.entries_max);
    }),
    gauge("bytes", "Bytes on disk of entries and of fills in flight.", |numbers, take| {
        stat(numbers, take, |stats| stats.bytes);
    }),
    gauge("bytes_max", "max_size in bytes, where it is set.", |numbers, take| {
        if let Some(bytes) = numbers.max_size {
            take("", bytes);
        }
    }),
    gauge("memory_bytes", "Bytes of entries kept in memory.", |numbers, take| {
        stat(numbers, take, |stats| stats.memory_bytes);
    }),
    gauge(
        "loaded",
        "1 when the index has all entries on disk; until then lookups check the disk.",
        |numbers, take| {
            stat(numbers, take, |stats| u64::from(stats.is_loaded));
        },
    ),
    gauge(
        "measured",
        "1 when the sizes of all entries are known; until then a cache with max_size admits no entry.",
        |numbers, take| {
            stat(numbers, take, |stats| u64::from(stats.is_measured));
        },
    ),
    gauge(
        "owner",
        "1 when this process owns the directory, 0 while another process does.",
        |numbers, take| {
            stat(numbers, take, |stats| u64::from(stats.is_owner));
        },
    ),
];

/// The page. Names of zones are the operator's, and quoted as the format wants it.
fn page(caches: &[(&str, Numbers)]) -> String {
    let mut text = String::new();
    for Metric { name, kind, label, help, get } in METRICS {
        let _ = writeln!(text, "# HELP ringroad_cache_{name} {help}\n# TYPE ringroad_cache_{name} {kind}");
        for (zone, numbers) in caches {
            let zone = zone.replace('\\', "\\\\").replace('"', "\\\"");
            get(numbers, &mut |value, count| {
                let _ = match label {
                    Some(label) => {
                        writeln!(text, "ringroad_cache_{name}{{zone=\"{zone}\",{label}=\"{value}\"}} {count}")
                    }
                    None => writeln!(text, "ringroad_cache_{name}{{zone=\"{zone}\"}} {count}"),
                };
            });
        }
    }
    text
}

fn run(_: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    let caches = &request.config().http.of::<Caches>().zones;
    let numbers: Vec<_> = caches.iter().map(|zone| (zone.name(), Numbers::of(zone.state()))).collect();
    let text = page(&numbers);
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text("text/plain; version=0.0.4".into());
    response.set_bytes(Source::Vec(text.into_bytes()));
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn it_holds_for_the_block_that_says_so() {
        let config = loaded(
            "server { location /a { cache_counters; location /a/b { } } location /c { } }
             server { cache_counters; location /d { } }",
        );
        let is_on = |name: &str| {
            let mut found = config.http.locations.iter().filter(|location| location.name == name);
            found.next_back().expect("it is there").scope.of::<Conf>().on
        };
        assert_eq!(["/a", "/a/b", "/c", "server", "/d"].map(is_on), [true, false, false, true, false]);
    }

    #[test]
    fn wrong_places_and_arguments() {
        let found = error("http {\ncache_counters; }");
        assert!(found.starts_with("\"cache_counters\" directive is not allowed here"), "{found}");
        let found = error("http { server {\ncache_counters on; } }");
        assert!(found.starts_with("invalid number of arguments in \"cache_counters\" directive"), "{found}");
        let found = error("http { server {\ncache_counters; cache_counters; } }");
        assert!(found.starts_with("\"cache_counters\" directive is duplicate"), "{found}");
    }

    fn numbers(stats: Option<Stats>) -> Numbers {
        let totals = Totals { collapsed: 5, ..Totals::default() };
        Numbers { totals, stats, max_size: None, marks: 1, marked: 2, fetches: 3 }
    }

    #[test]
    fn names_are_quoted_and_what_is_not_known_is_left_out() {
        let text = page(&[("a\"b\\", numbers(None)), ("c", numbers(Some(Stats::default())))]);
        assert!(text.contains("ringroad_cache_collapsed_total{zone=\"a\\\"b\\\\\"} 5\n"), "{text}");
        assert!(text.contains("ringroad_cache_degraded{zone=\"a\\\"b\\\\\"} 1\n"), "{text}");
        assert!(text.contains("ringroad_cache_degraded{zone=\"c\"} 0\n"), "{text}");
        assert!(text.contains("ringroad_cache_refused_total{zone=\"c\",reason=\"no_room\"} 0\n"), "{text}");
        assert_eq!(text.matches("ringroad_cache_objects{").count(), 1, "{text}");
        assert_eq!(text.matches("ringroad_cache_bytes_max{").count(), 0, "{text}");
        let helps = text.lines().filter(|line| line.starts_with("# HELP")).count();
        assert_eq!(helps, METRICS.len(), "each once, however many caches there are");
    }

    /// The table in the document is the table here.
    #[test]
    fn the_document_has_every_number() {
        const DOCUMENT: &str = include_str!("../../../docs/counters.md");
        let rows: Vec<&str> =
            DOCUMENT.lines().filter(|line| line.starts_with("| `ringroad_cache_")).collect();
        let wanted: Vec<String> = METRICS
            .iter()
            .map(|metric| {
                let Metric { name, kind, help, .. } = metric;
                let label = metric.label.map(|label| format!(", `{label}`")).unwrap_or_default();
                format!("| `ringroad_cache_{name}` | {kind} | `zone`{label} | {help} |")
            })
            .collect();
        assert_eq!(rows, wanted, "the rows of docs/counters.md should read:\n{}\n", wanted.join("\n"));
    }
}
