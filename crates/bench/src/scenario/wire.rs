//! `bench wire`: small responses over a veth pair, where each side has its own processors and its own half of the network
//! stack ([`crate::method::wire`]).
//!
//! The cost of a request over loopback has a floor that all servers share, because the kernel executes the client's receipt
//! in the server's send. These rows are those to compare servers by.

use std::time::Duration;

use clap::Args;

use super::comparison::{self, Compared, EPOLL, HAPROXY, RING, Text, Variant, labels_of};
use super::described::Scenario;
use super::http::proxied;
use super::measurements::{Labels, Measurements, at, finding_of_cases, spread};
use super::served::{self, CPU, FILES, ServerCpus};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Expect;
use crate::method::wire::Wire;
use crate::peers::tool::Peer;
use crate::report::model::{Finding, Results, Section};

/// `bench wire`, which has no options.
#[derive(Args, Clone, Debug)]
pub(crate) struct WireOptions {}

const CONNECTIONS: u32 = 100;
/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// Ringroad's engines, then the peers with the modes in which they are best.
const VARIANTS: [Variant; 6] = [
    RING,
    EPOLL,
    Variant::of("nginx, open_file_cache", Peer::Nginx).with("open_file_cache max=100; sendfile on; "),
    Variant::of("nginx, open_file_cache, sendfile off", Peer::Nginx)
        .with("open_file_cache max=100; sendfile off; "),
    Variant::of("h2o", Peer::H2o),
    HAPROXY,
];

/// A response: its path, its name, and its length in bytes, which is checked.
const CASES: [(&str, &str, Option<u64>); 5] = [
    ("/return", "return 200", None),
    ("/1k", "a file of 1k", Some(FILES[0].1 as u64)),
    ("/10k", "a file of 10k", Some(FILES[1].1 as u64)),
    ("/100k", "a file of 100k", Some(FILES[2].1 as u64)),
    ("/1m", "a file of 1m", Some(FILES[3].1 as u64)),
];

impl Scenario for WireOptions {
    const NAME: &'static str = "wire";
    const MINUTES: u32 = 5;
    const QUICK_SHARE: u32 = 20;
    const TITLE: &'static str = "Over a wire: small responses through a veth pair";
    const QUESTION: &'static str = "What does a request cost a server whose client has its own half of the network stack, as on another machine?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let mut place = ServerCpus::of_one_worker(bench, section);
        let wire = match Wire::new(bench.is_own_network, &place.split, &bench.workspace.path) {
            Ok(wire) => wire,
            Err(reason) => {
                VARIANTS.iter().for_each(|variant| section.skip(variant.name, &reason));
                return Ok(results(Measurements::of(section)));
            }
        };
        place.host = Some(Wire::SERVER);
        let files = bench.workspace.directory("wire")?;
        served::write_files(&files, FILES)?;
        let mut servers = comparison::start(bench, section, &place, (&VARIANTS, ""), |variant, instance| {
            let server = variant.returning("= /return");
            variant.serving(instance, &files, None, Text { server, ..Text::default() })
        })?;
        for (path, name, length) in CASES {
            let mut plan = served::load(bench, &place.split, CONNECTIONS, LENGTH);
            plan.network = Some(wire.generator.clone());
            plan.expect = Expect { status: Some(200), length, crc32c: None };
            let part =
                |variant: &Variant| is_measured(variant, name).then(|| labels_of(variant, &case(name)));
            served::compare(bench, section, &mut servers, (name, path), &plan, part)?;
        }
        drop(servers);
        let results = results(Measurements::of(section));
        section.add_results(results);
        proxied::add(bench, section, &place, Some(&wire.generator))?;
        Ok(Results::default())
    }
}

/// H2O has no counterpart of `return 200`, and files have no effect on it. HAProxy serves no files.
fn is_measured(variant: &Variant, name: &str) -> bool {
    match name == CASES[0].1 {
        true => variant.peer != Some(Peer::H2o) && *variant != VARIANTS[3],
        false => *variant != HAPROXY,
    }
}

fn case(name: &str) -> Labels {
    at([("response", &name)])
}

fn results(measurements: Measurements<'_>) -> Results {
    let mut all = Results::default();
    for (_, name, _) in CASES {
        let variants: Vec<Variant> =
            VARIANTS.into_iter().filter(|variant| is_measured(variant, name)).collect();
        let title = format!("Over a wire: {name}, one worker, {CONNECTIONS} connections");
        let compared = Compared { measurements, variants: &variants };
        let of_case = compared.costs(&title, &best_of_nginx(measurements, name), &case(name));
        all.tables.extend(of_case.tables);
        all.rankings.extend(of_case.rankings);
    }
    all.findings = vec![cheaper(measurements)];
    all
}

/// Returns the mode of nginx with the least CPU time for a response.
fn best_of_nginx(measurements: Measurements<'_>, name: &str) -> Variant {
    let compared = Compared { measurements, variants: &VARIANTS };
    compared.cheapest(&case(name), |variant| variant.peer == Some(Peer::Nginx)).unwrap_or(VARIANTS[2])
}

/// Returns the finding about the project's own requirement.
fn cheaper(measurements: Measurements<'_>) -> Finding {
    let compared = |(_, name, _): (&str, &'static str, Option<u64>)| {
        let best = best_of_nginx(measurements, name);
        let ratio =
            measurements.ratio(CPU, &labels_of(&RING, &case(name)), &labels_of(&best, &case(name)))?;
        Some((format!("{name}: {}", spread(&ratio)), ratio.median < 1.0))
    };
    let said: Vec<(String, bool)> = CASES.into_iter().filter_map(compared).collect();
    finding_of_cases(
        "Over a wire a request takes less CPU time than with nginx in its best mode.",
        "io_uring as a ratio to that mode: ",
        &said,
        "io_uring and nginx were not both measured.",
    )
}
