//! The aims as data: what is measured, beside what, and how much is wanted.
//!
//! They are ratios, since absolute figures say more of the machine than of the server, and each is to the best mode of
//! the other server where it has several. The bounds were set by prototypes that did nothing but the row in question
//! (`docs/decisions/` has what was tried); an aim that is missed stays here until it is reached, with the reason in
//! `bench/README.md`.

use super::figure::Figure::{self, *};
use super::runs::Pick;
use crate::method::stats::Summary;

/// What stands above them in a report.
pub(crate) const TITLE: &str = "How this machine stands against the aims of the project";

/// One aim.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The kind of work.
    pub(super) row: &'static str,
    /// Which case of it.
    pub(super) case: String,
    pub(super) figure: Figure,
    /// By which figure the best mode of a server is chosen.
    pub(super) best_by: Figure,
    pub(super) ours: Pick,
    /// What the figure is divided by; nothing for a figure that stands alone.
    pub(super) theirs: Option<Pick>,
    /// What to call that, where the name of the server does not say it.
    pub(super) beside: Option<&'static str>,
    pub(super) bound: Bound,
}

/// How much is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Not above by more than the repetitions differ: one of them at least is not above.
    NotAbove(f64),
}

impl Bound {
    pub(super) fn is_met(self, summary: &Summary) -> bool {
        match self {
            Bound::AtMost(bound) => summary.median <= bound,
            Bound::AtLeast(bound) => summary.median >= bound,
            Bound::NotAbove(bound) => summary.low <= bound,
        }
    }

    pub(super) fn words(self) -> String {
        match self {
            Bound::AtMost(bound) => format!("at most {bound}"),
            Bound::AtLeast(bound) => format!("at least {bound}"),
            Bound::NotAbove(bound) => format!("not above {bound} beyond the spread"),
        }
    }
}

/// nginx's modes over files, and over its proxy cache.
const NGINX: &[&str] = &[
    "nginx libaio, sized buffers",
    "nginx threads",
    "nginx threads + sendfile",
    "nginx sendfile",
    "nginx libaio, as written up",
    "nginx blocking",
];
const NGINX_THREADS: &[&str] = &["nginx threads", "nginx threads + sendfile"];
const NGINX_LIBAIO: &[&str] = &["nginx libaio, sized buffers"];
const NGINX_AS_WRITTEN: &[&str] = &["nginx libaio, as written up"];
const LIMIT: &[&str] = &["the machine's limit"];
const RING_DIRECT: &[&str] = &["ringroad io_uring, direct"];
/// What a hit is compared with: no cache, the same file.
const RING_PLAIN: &[&str] = &["ringroad io_uring, direct, plain files"];
/// Our modes over files: the best of them is compared with the best of nginx's, and the report names it.
const OURS: &[&str] = &[
    "ringroad io_uring, direct",
    "ringroad as it comes",
    "ringroad libaio, direct",
    "ringroad epoll + threads",
    "ringroad sendfile",
];
const RING: &[&str] = &["io_uring"];
const EPOLL: &[&str] = &["epoll"];
const NGINX_CACHE: &[&str] = &["nginx", "nginx, aio threads"];
const PLAIN_NGINX: &[&str] = &["nginx"];

/// All of them, in the order of a report's scenarios.
pub(super) fn all() -> Vec<Wanted> {
    [
        no_ops(),
        kept(),
        short(),
        warm(),
        proxied(),
        cold(),
        cold_workers(),
        hits(),
        fill(),
        large(),
        isolate(),
        crowd(),
        epoll(),
    ]
    .concat()
}

/// A figure of ours in a case, as it is.
fn ours(
    row: &'static str,
    case: String,
    figure: Figure,
    (scenario, servers): (&'static str, &'static [&'static str]),
    at: &str,
    bound: Bound,
) -> Wanted {
    let ours = Pick { scenario, who: "server", servers, at: at.to_owned() };
    Wanted { row, case, figure, best_by: figure, ours, theirs: None, beside: None, bound }
}

impl Wanted {
    /// As a ratio to other servers in the same case.
    fn of(self, servers: &'static [&'static str]) -> Wanted {
        let theirs = Pick { servers, ..self.ours.clone() };
        Wanted { theirs: Some(theirs), ..self }
    }

    /// As a ratio to itself in another case.
    fn of_itself(self, beside: &'static str, at: &str) -> Wanted {
        let theirs = Pick { at: at.to_owned(), ..self.ours.clone() };
        Wanted { theirs: Some(theirs), beside: Some(beside), ..self }
    }

    /// The best is the one that answers most, whatever the figure.
    fn best_by(self, best_by: Figure) -> Wanted {
        Wanted { best_by, ..self }
    }
}

/// What the engine costs over the bare ring that is set up like its own.
fn no_ops() -> Vec<Wanted> {
    let pick = |servers, at: &str| Pick { scenario: "nop", who: "subject", servers, at: at.to_owned() };
    vec![Wanted {
        row: "no-ops",
        case: "batches of 64".to_owned(),
        figure: Rate,
        best_by: Rate,
        ours: pick(&["engine"], "batch=64"),
        theirs: Some(pick(&["bare ring"], "batch=64; as_engine=true")),
        beside: None,
        bound: Bound::AtLeast(0.80),
    }]
}

/// The network path alone: nothing is looked for and nothing is read. System calls do not depend on the machine, so they
/// show whether it is the ring that makes the difference.
fn kept() -> Vec<Wanted> {
    let of = |connections: u32| {
        let at = format!("connections kept=long; workers=1; connections={connections}");
        let case = format!("{connections} connections");
        let row = "return 200, kept connections";
        [
            ours(row, case.clone(), Cpu, ("http", RING), &at, Bound::AtMost(0.72)).of(PLAIN_NGINX),
            ours(row, case, Calls, ("http", RING), &at, Bound::AtMost(0.1)).of(PLAIN_NGINX),
        ]
    };
    [100, 500, 1000].into_iter().flat_map(of).collect()
}

/// As health checks and old clients connect. Holding connections back until their request is there (`deferred`) is what
/// the prototype's figure rests on; nginx with it is a harder peer than nginx as it comes, and H2O, which always does it,
/// is the fastest of all with a small file.
fn short() -> Vec<Wanted> {
    let row = "a connection per request";
    let either: &[&str] = &["io_uring", "io_uring, deferred"];
    let of = |connections: u32| {
        let at = format!("connections kept=short; workers=1; connections={connections}");
        let case = format!("{connections} at a time");
        [
            ours(row, case.clone(), Cpu, ("http", either), &at, Bound::AtMost(0.60)).of(PLAIN_NGINX),
            ours(row, case, Cpu, ("http", either), &at, Bound::AtMost(1.0)).of(&["nginx, deferred"]),
        ]
    };
    let file = "file=1k; reuse=short";
    let of_file = |bound, theirs| {
        ours(row, "file of 1k".to_owned(), Cpu, ("http", either), file, Bound::AtMost(bound)).of(theirs)
    };
    let files = [of_file(0.65, PLAIN_NGINX), of_file(1.0, &["h2o"])];
    [100, 1000].into_iter().flat_map(of).chain(files).collect()
}

/// Small files are a matter of steps per request, large ones of copies per byte; nginx is not the fastest at the former.
fn warm() -> Vec<Wanted> {
    let of = |(size, bound): (&str, f64)| {
        let at = format!("file={size}; reuse=long");
        let beside = move |bound: f64, theirs| {
            ours("warm file", size.to_owned(), Cpu, ("http", RING), &at, Bound::AtMost(bound)).of(theirs)
        };
        let nginx: &[&str] = &["nginx", "nginx, open_file_cache", "nginx, open_file_cache, sendfile off"];
        let mut aims = vec![beside(bound, nginx)];
        if matches!(size, "1k" | "10k") {
            aims.push(beside(1.0, &["lighttpd"]));
            aims.push(beside(1.0, &["h2o"]));
        }
        aims
    };
    [("1k", 0.60), ("10k", 0.75), ("100k", 0.95), ("1m", 1.00)].into_iter().flat_map(of).collect()
}

/// A request that is passed on: its body, or the response body, is received once and sent once.
fn proxied() -> Vec<Wanted> {
    let of = |case: &str| {
        let at = format!("proxied={case}");
        ours("proxied", case.to_owned(), Cpu, ("http", RING), &at, Bound::AtMost(0.95)).of(PLAIN_NGINX)
    };
    ["response of 10k", "upload of 16k", "upload of 256k"].into_iter().map(of).collect()
}

/// A figure of cold files; the best mode is the one that answers most.
fn of_files(size: &str, connections: u32, figure: Figure, bound: Bound) -> Wanted {
    let at = format!("source=files; size={size}; workers=1; connections={connections}; memory!=all");
    let case = format!("{size}, {connections} connections");
    ours("cold files", case, figure, ("cold", OURS), &at, bound).best_by(Rate)
}

/// Small files show how many steps an engine takes to have one read, large ones whether reads and sends overlap. The
/// machine's limit is what the same files are read at without a server.
fn cold() -> Vec<Wanted> {
    use Bound::{AtLeast, AtMost};
    let of_4k = |connections, threads: f64, written: f64, cpu: f64| {
        [
            of_files("4k", connections, Rate, AtLeast(1.4)).of(NGINX),
            of_files("4k", connections, Rate, AtLeast(threads)).of(NGINX_THREADS),
            of_files("4k", connections, Rate, AtLeast(written)).of(NGINX_AS_WRITTEN),
            of_files("4k", connections, Cpu, AtMost(0.70)).of(NGINX),
            of_files("4k", connections, Cpu, AtMost(cpu)).of(NGINX_THREADS),
            of_files("4k", connections, P99, AtMost(0.30)).of(NGINX),
        ]
    };
    let large = [
        of_files("100k", 200, Rate, AtLeast(1.0)).of(NGINX),
        of_files("100k", 200, Rate, AtLeast(3.0)).of(NGINX_AS_WRITTEN),
        of_files("100k", 200, Rate, AtLeast(0.90)).of(LIMIT),
        of_files("100k", 200, Cpu, AtMost(0.85)).of(NGINX),
        of_files("100k", 200, Cpu, AtMost(0.65)).of(NGINX_THREADS),
        of_files("1m", 200, Rate, AtLeast(1.15)).of(NGINX),
        of_files("1m", 200, Rate, AtLeast(0.90)).of(LIMIT),
        of_files("1m", 200, Cpu, AtMost(0.75)).of(NGINX_LIBAIO),
        of_files("1m", 200, Cpu, AtMost(0.50)).of(NGINX_THREADS),
    ];
    [&of_4k(200, 3.0, 6.0, 0.35)[..], &of_4k(1000, 2.5, 5.0, 0.40), &large].concat()
}

/// More threads than processors: whoever blocks gains most by them, so ahead is harder to be here.
fn cold_workers() -> Vec<Wanted> {
    let of = |(size, rate, cpu, cpu_of): (&str, f64, f64, &'static [&'static str])| {
        let at = format!("source=files; size={size}; workers=4; connections=200; memory!=all");
        let aim = |figure, bound| {
            ours("cold files, 4 workers", size.to_owned(), figure, ("cold", OURS), &at, bound).best_by(Rate)
        };
        [aim(Rate, Bound::AtLeast(rate)).of(NGINX), aim(Cpu, Bound::AtMost(cpu)).of(cpu_of)]
    };
    [("4k", 1.1, 0.70, NGINX), ("100k", 1.0, 0.85, NGINX), ("1m", 1.0, 0.75, NGINX_LIBAIO)]
        .into_iter()
        .flat_map(of)
        .collect()
}

/// An entry of a cache is a file with a head before its body: it should cost little more than one without.
fn hits() -> Vec<Wanted> {
    let of = |(size, rate): (&str, f64)| {
        let at = format!("source=proxy cache; size={size}; workers=1; connections=200; memory!=all");
        let aim = |figure, bound| {
            let row = "hits of the cache, from disk";
            ours(row, size.to_owned(), figure, ("cold", RING_DIRECT), &at, bound).best_by(Rate)
        };
        [aim(Rate, Bound::AtLeast(rate)).of(NGINX), aim(Cpu, Bound::AtMost(1.10)).of(RING_PLAIN)]
    };
    [("4k", 1.4), ("100k", 1.0), ("1m", 1.15)].into_iter().flat_map(of).collect()
}

/// A miss has a client that waits for it, so the latency counts as much as the rate; and what is written twice wears
/// the disk for nothing.
fn fill() -> Vec<Wanted> {
    let of = |size: &str| {
        let at = format!("size={size}");
        let aim = |figure, bound| ours("cache fill", size.to_owned(), figure, ("fill", RING), &at, bound);
        [
            aim(Rate, Bound::AtLeast(1.0)).of(NGINX_CACHE).best_by(Rate),
            aim(P99, Bound::AtMost(0.5)).of(NGINX_CACHE).best_by(Rate),
            aim(Written, Bound::AtMost(1.2)),
        ]
    };
    ["4k", "100k", "1m"].into_iter().flat_map(of).collect()
}

/// One client cannot be served faster than the disk reads ahead for it; more of them are served out of memory by the
/// kernel, so the disk's own rate may be exceeded.
fn large() -> Vec<Wanted> {
    let of = |clients: u32| {
        let at = format!("clients={clients}");
        let case = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        let ways: &[&str] =
            &["as it comes", "sendfile, never waiting", "io_uring reads", "io_uring direct reads"];
        let peers: &[&str] = &[
            "nginx sendfile",
            "nginx sendfile, aio threads",
            "lighttpd sendfile",
            "lighttpd writev",
            "lighttpd write",
        ];
        let row = "a large cold file";
        let disk = Pick {
            scenario: "disk",
            who: "engine",
            servers: &["uring"],
            at: "tool=ringroad; pattern=read; block=1048576; direct=true; depth=16; processes=1".to_owned(),
        };
        let bandwidth = ours(row, case.clone(), Bandwidth, ("large", ways), &at, Bound::AtLeast(0.90));
        [
            Wanted { theirs: Some(disk), beside: Some("the disk's sequential reads"), ..bandwidth },
            ours(row, case, CpuPerByte, ("large", ways), &at, Bound::AtMost(1.0)).of(peers),
        ]
    };
    [1, 2, 5, 10].into_iter().flat_map(of).collect()
}

/// The figure that users feel: nginx stands still there, so that its value without the slow disk is the only measure.
fn isolate() -> Vec<Wanted> {
    let of = |what: &'static str| {
        let at = |when| format!("asked for={what}; when={when}");
        let of_way = move |ways: &'static [&'static str]| {
            let case = match ways {
                ["ringroad, io_uring"] => what.to_owned(),
                _ => format!("{what}, epoll and threads"),
            };
            ours("beside a slow disk", case, P99, ("isolate", ways), &at("beside"), Bound::AtMost(1.5))
                .of_itself("its value without it", &at("alone"))
        };
        [of_way(&["ringroad, io_uring"]), of_way(&["ringroad, epoll and threads"])]
    };
    ["return 200", "a warm file", "a file of another disk"].into_iter().flat_map(of).collect()
}

/// Idle connections are most of what a server has, and should cost neither time nor much memory; and at half of its load
/// nobody should wait longer than at nginx.
fn crowd() -> Vec<Wanted> {
    let load = |servers, case: &str| {
        let row = "10000 connections, 1000 active";
        let at = |connections: &str| format!("connections={connections}");
        [
            ours(row, case.to_owned(), Cpu, ("crowd", servers), &at("10000"), Bound::AtMost(1.25))
                .of_itself("its value with 100", &at("100")),
            // As many ask there, so that this is what the idle ones alone cost.
            ours(row, case.to_owned(), Cpu, ("crowd", servers), &at("10000"), Bound::AtMost(1.25))
                .of_itself("its value with 1000", &at("1000")),
            ours(row, case.to_owned(), IdleMemory, ("crowd", servers), &at("10000"), Bound::AtMost(4096.0)),
        ]
    };
    let half = [P50, P99, P999].map(|figure| {
        let case = "return 200, open loop".to_owned();
        let bound = Bound::NotAbove(1.0);
        ours("half of nginx's rate", case, figure, ("crowd", RING), "load=half", bound).of(PLAIN_NGINX)
    });
    load(RING, "io_uring").into_iter().chain(load(EPOLL, "epoll")).chain(half).collect()
}

/// For kernels and containers that refuse a ring.
fn epoll() -> Vec<Wanted> {
    let row = "without a ring";
    let kept = [100, 500, 1000].map(|connections| {
        let at = format!("connections kept=long; workers=1; connections={connections}");
        let case = format!("return 200, {connections} kept connections");
        ours(row, case, Cpu, ("http", EPOLL), &at, Bound::AtMost(0.80)).of(PLAIN_NGINX)
    });
    let at = "source=files; size=4k; workers=1; connections=200; memory!=all";
    let cold = |case: &str, ways, theirs| {
        ours(row, case.to_owned(), Rate, ("cold", ways), at, Bound::AtLeast(1.0)).of(theirs)
    };
    let files = [
        cold("cold 4k, threads", &["ringroad epoll + threads"], NGINX_THREADS),
        cold("cold 4k, libaio", &["ringroad libaio, direct"], NGINX_LIBAIO),
    ];
    kept.into_iter().chain(files).collect()
}
