//! Resident files: the cost of a file lookup in addition to `return 200`, and the cost per byte. No write-up has these
//! rows. nginx is not always the fastest peer here, so lighttpd and H2O are included. nginx is measured twice:
//! `open_file_cache` saves the lookup, but detects changed files later.
//!
//! The smallest file is also requested over a new connection per request, as by clients that fetch a single object.

use std::time::Duration;

use super::{LONG, Persistence, RING_DEFERRED, SHORT};
use crate::context::Bench;
use crate::failure::Failure;
use crate::peers::tool::Peer;
use crate::report::model::Section;
use crate::scenario::comparison::{self, Compared, EPOLL, NGINX, RING, Text, Variant, labels_of};
use crate::scenario::measurements::{Measurements, at};
use crate::scenario::served::{self, FILES, ServerCpus};

/// Number of connections, as in the project's other comparisons of the cost of a request.
const CONNECTIONS: u32 = 100;

/// Length of one measurement for published results: brief, since there are many, and each compares servers within
/// seconds.
const LENGTH: Duration = Duration::from_secs(1);

/// The requests of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WarmCase {
    /// An element of [`FILES`].
    file: (&'static str, usize),
    kind: Persistence,
}

impl WarmCase {
    fn all() -> impl Iterator<Item = WarmCase> {
        let long = FILES.into_iter().map(|file| WarmCase { file, kind: LONG });
        long.chain([WarmCase { file: FILES[0], kind: SHORT }])
    }

    fn title(self) -> String {
        let (name, kind) = (self.file.0, self.kind.name);
        format!("A file of {name} in memory, one worker, {CONNECTIONS} {kind} connections")
    }
}

/// Ringroad's variants first, then the peers. H2O also defers accepts until the request has arrived, so Ringroad is
/// measured with `deferred` too.
const VARIANTS: [Variant; 8] = [
    RING,
    RING_DEFERRED,
    EPOLL,
    NGINX,
    Variant::of("nginx, open_file_cache", Peer::Nginx).with("open_file_cache max=100; "),
    Variant::of("nginx, open_file_cache, sendfile off", Peer::Nginx)
        .with("open_file_cache max=100; sendfile off; "),
    Variant::of("lighttpd", Peer::Lighttpd),
    Variant::of("h2o", Peer::H2o),
];

/// Whether the option in the server's name has an effect in this case.
fn is_measured(variant: &Variant, case: WarmCase) -> bool {
    *variant != RING_DEFERRED || case.kind == SHORT
}

/// Adds the tables of warm files to the section of `bench http`.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let files = bench.workspace.directory("warm")?;
    served::write_files(&files, FILES)?;
    let place = ServerCpus::of_one_worker(bench, section);
    let variants = (&VARIANTS[..], ", warm files");
    let mut servers = comparison::start(bench, section, &place, variants, |variant, instance| {
        // As packaged: nginx's packaged configuration has `sendfile on`. For small files nginx is cheaper without it,
        // which is nginx's default.
        variant.serving(instance, &files, None, Text { http: "sendfile on;".to_owned(), ..Text::default() })
    })?;
    for case in WarmCase::all() {
        let ((file, bytes), kind) = (case.file, case.kind.name);
        let mut plan = served::load(bench, &place.split, CONNECTIONS, LENGTH);
        (plan.reuse, plan.expect) = (case.kind.reuse, served::complete_file(bytes as u64));
        let words = format!("a file of {file}, {CONNECTIONS} {kind} connections");
        // The label differs from that of `return 200`, so that searches for one do not find the other.
        let labels = at([("file", &file), ("reuse", &kind), ("workers", &1), ("connections", &CONNECTIONS)]);
        let part = |variant: &Variant| is_measured(variant, case).then(|| labels_of(variant, &labels));
        served::compare(bench, section, &mut servers, (&words, &format!("/{file}")), &plan, part)?;
        let rows: Vec<Variant> = VARIANTS.into_iter().filter(|variant| is_measured(variant, case)).collect();
        let results = Compared { measurements: Measurements::of(section), variants: &rows }.costs(
            &case.title(),
            &NGINX,
            &labels,
        );
        section.add_results(results);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_file_is_requested_in_both_ways() {
        let titles: Vec<String> = WarmCase::all().map(WarmCase::title).collect();
        assert_eq!(titles.len(), FILES.len() + 1);
        assert_eq!(titles[0], "A file of 1k in memory, one worker, 100 long connections");
        assert_eq!(titles[4], "A file of 1k in memory, one worker, 100 short connections");
    }
}
