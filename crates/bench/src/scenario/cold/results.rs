//! Tables, plots and findings of the measurements. The first tables have the rows and columns of the write-up's tables,
//! for comparison. Then follow one table per case, plots, and the verdicts on the write-up's claims.

use super::data::Size;
use super::measure::Case;
use super::variants::{ColdVariant, LIMIT, Source, VARIANTS};
use super::{CONNECTIONS, WORKERS};
use crate::method::stats::Summary;
use crate::report::model::{AxisScale, Finding, Plot, Ranking, Results, Table};
use crate::scenario::comparison;
use crate::scenario::measurements::{
    Figure, Labels, Measurements, Of, Rows, at, axis, figure, finding_of_cases, plural,
};
use crate::scenario::served::{CPU, P50, P99, P999, RATE};

const THROUGHPUT: Figure = figure("throughput", "MB/s", 0, Of::Quotient("body_bytes", "seconds", 1e-6));
const READ: Figure =
    figure("read from disk", "bytes/byte sent", 2, Of::Value("disk_bytes_per_body_byte", 1.0));

/// Maximum deviation of a ratio from 1 that is considered equal. Repetitions of one server differ by a few hundredths
/// here.
const EQUAL_WITHIN: f64 = 0.1;

/// Ratio from which the write-up's claim of a "huge" gain by io_uring is considered confirmed. Its own tables have 2.2
/// to 4.0.
const MUCH_FASTER: f64 = 2.0;

pub(super) fn results(measurements: Measurements<'_>, cases: &[Case]) -> Results {
    let report = ColdReport { measurements, cases };
    let mut tables = Vec::new();
    for workers in WORKERS {
        tables
            .extend(CONNECTIONS.iter().filter_map(|&connections| report.as_published(workers, connections)));
    }
    tables.extend(cases.iter().filter_map(|case| report.in_full(case)));
    Results { tables, plots: report.plots(), findings: report.findings(), rankings: report.rankings() }
}

struct ColdReport<'a> {
    measurements: Measurements<'a>,
    cases: &'a [Case],
}

impl ColdReport<'_> {
    /// Whether a case has no memory limit while others have one. Without root no case has a limit, and none is a
    /// control run; the titles of the tables then state that nothing was limited.
    fn is_control(&self, case: &Case) -> bool {
        case.memory_bytes.is_none() && self.cases.iter().any(|case| case.memory_bytes.is_some())
    }

    fn of(&self, source: Source, workers: usize, connections: u32) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |case| {
            case.source == source
                && (case.workers, case.connections) == (workers, connections)
                && !self.is_control(case)
        })
    }

    /// Returns the variants of a case with their labels, below the limit if that was measured.
    fn rows(&self, case: &Case, is_row: impl Fn(&ColdVariant) -> bool) -> Rows {
        let variants = VARIANTS.iter().filter(|variant| is_row(variant)).map(|variant| variant.of.name);
        let rows = [LIMIT].into_iter().chain(variants).map(|name| (name.to_owned(), case.labels_of(name)));
        rows.filter(|(_, labels)| self.measurements.has(labels)).collect()
    }

    /// Returns rankings for hits and files of each size, with Ringroad's settings.
    fn rankings(&self) -> Vec<Ranking> {
        let ranking = |case: &Case| {
            // Plain files beside a cache of them are not hits.
            let variants: Vec<comparison::Variant> =
                VARIANTS.iter().filter(|variant| !variant.is_plain).map(|variant| variant.of).collect();
            let title = format!("{} of {}", case.what(), case.size);
            comparison::Compared { measurements: self.measurements, variants: &variants }.ranking(
                &title,
                RATE,
                &case.labels(),
            )
        };
        let base = |source| self.of(source, 1, CONNECTIONS[0]).map(ranking);
        base(Source::Files).chain(base(Source::Cache)).collect()
    }

    /// Returns the throughput of each engine at each size through the proxy cache, in MB/s. `None` if no size was
    /// measured with these numbers of workers and connections.
    fn as_published(&self, workers: usize, connections: u32) -> Option<Table> {
        let cases: Vec<&Case> = self.of(Source::Cache, workers, connections).collect();
        let rows = self.rows(cases.first()?, |variant| variant.is_published);
        let column = |case: &&Case| THROUGHPUT.at(&case.size.to_string(), at([("size", &case.size)]));
        let columns: Vec<_> = cases.iter().map(column).collect();
        let title = format!(
            "As written up: hits of the proxy cache, worker_processes {workers}, {connections} connections"
        );
        Some(self.measurements.table(&title, &rows, &columns))
    }

    /// Returns all figures of one case. The last column compares with nginx's best mode in this case: the order of its
    /// modes depends on the size, and a preselected mode would favour Ringroad. Returns `None` for a case without
    /// servers, because the other tables include the limit too.
    fn in_full(&self, case: &Case) -> Option<Table> {
        let memory = match case.memory_bytes {
            Some(bytes) => format!("{} MiB of memory", bytes >> 20),
            None => "no memory limit".to_owned(),
        };
        let mut rows = self.rows(case, |_| true);
        rows.retain(|(name, _)| name != LIMIT || case.memory_bytes.is_some());
        if rows.iter().all(|(name, _)| name == LIMIT) {
            return None;
        }
        let best = self.best_of_nginx(case);
        let name = best.map_or_else(|| "of nginx's best".to_owned(), |name| format!("of {name}"));
        let over = at([("server", &best.unwrap_or("nginx"))]);
        let columns = [
            RATE.at("rate", Labels::new()),
            THROUGHPUT.shown(),
            P50.shown(),
            P99.shown(),
            P999.shown(),
            CPU.shown(),
            READ.shown(),
            RATE.over("of the limit", case.labels_of(LIMIT)),
            // Relative to the labels of the case itself, also in the row of the limit.
            RATE.over(&name, [case.labels(), over].concat()),
        ];
        let (what, workers) = (case.what(), plural(case.workers as u32, "worker"));
        let title = format!("{what} of {}, {workers}, {} connections, {memory}", case.size, case.connections);
        Some(self.measurements.table(&title, &rows, &columns))
    }

    /// Returns nginx's fastest mode in a case.
    fn best_of_nginx(&self, case: &Case) -> Option<&'static str> {
        let rate = |name| Some((name, self.measurements.middle(RATE, &case.labels_of(name))?));
        let rates =
            VARIANTS.iter().filter(|variant| variant.is_nginx()).filter_map(|variant| rate(variant.of.name));
        rates.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(name, _)| name)
    }

    /// Plots rate and p99 against connections, for each size that was measured with several numbers of connections. The
    /// p99 is plotted instead of the median, because waits for the disk affect the slowest requests first.
    fn plots(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for size in Size::ALL {
            let cases: Vec<&Case> = CONNECTIONS
                .iter()
                .flat_map(|&connections| self.of(Source::Files, 1, connections))
                .filter(|case| case.size == size)
                .collect();
            // A line needs two points. A variant that failed in one case is omitted: a line that ends early would look
            // deliberate.
            let [first, _, ..] = cases[..] else { continue };
            let is_complete = |variant: &&ColdVariant| {
                cases
                    .iter()
                    .all(|case| self.measurements.middle(RATE, &case.labels_of(variant.of.name)).is_some())
            };
            let line = |variant: &ColdVariant| {
                let labels =
                    first.labels_of(variant.of.name).into_iter().filter(|(name, _)| *name != "connections");
                (variant.of.name.to_owned(), labels.collect())
            };
            let lines: Rows = VARIANTS.iter().filter(is_complete).map(line).collect();
            for (id, name, figure) in [("rate", "rate", RATE), ("p99", "99th percentile of the latency", P99)]
            {
                plots.push(self.measurements.plot(
                    (&format!("cold-{id}-{size}"), &format!("Cold files of {size}: {name}")),
                    ("connections", axis("connections", "", AxisScale::Linear)),
                    (figure, axis(name, figure.unit, AxisScale::Linear)),
                    &lines,
                ));
            }
        }
        plots
    }

    /// Returns a finding for each claim of the write-up. The claims are about cache hits with one worker, the last one
    /// about plain files with nginx's two libaio modes. Ringroad's engines are compared with each other, because the
    /// write-up also compared two engines of one server.
    fn findings(&self) -> Vec<Finding> {
        let hits: Vec<&Case> = self.of(Source::Cache, 1, CONNECTIONS[0]).collect();
        let is_control_of_hits = |case: &&Case| case.source == Source::Cache && self.is_control(case);
        let control: Vec<&Case> = self.cases.iter().filter(is_control_of_hits).collect();
        let files: Vec<&Case> = self.of(Source::Files, 1, CONNECTIONS[0]).collect();
        let (ring, libaio, sendfile) =
            ("ringroad io_uring, direct", "ringroad libaio, direct", "ringroad sendfile");
        let equal = |ratio: f64| (ratio - 1.0).abs() <= EQUAL_WITHIN;
        vec![
            self.compare(
                "io_uring serves hits from the disk two to four times as fast as libaio, and sendfile is no faster than libaio",
                &hits,
                (ring, libaio),
                |ratio| ratio >= MUCH_FASTER,
            ),
            self.compare("sendfile is as fast as libaio", &hits, (sendfile, libaio), equal),
            self.connections(libaio, ring),
            self.workers(ring, sendfile),
            self.compare(
                "Without a memory limit hits are served from memory, and libaio and io_uring are equally fast",
                &control,
                (ring, libaio),
                equal,
            ),
            self.compare(
                "the write-up's configuration is the best one for nginx's libaio (with default buffers nginx does not use direct reads for files smaller than a buffer, and the read blocks)",
                &files,
                ("nginx libaio, as written up", "nginx libaio, sized buffers"),
                |ratio| ratio >= 1.0 - EQUAL_WITHIN,
            ),
        ]
    }

    /// Returns for each size the rates of two variants in one case as ratios to those in another one.
    fn changes<'b>(
        &'b self,
        [from, to]: [(usize, u32); 2],
        variants: [&'b str; 2],
    ) -> impl Iterator<Item = (Size, [f64; 2])> + 'b {
        let cases = move |(workers, connections)| self.of(Source::Cache, workers, connections);
        cases(from).filter_map(move |before| {
            let after = cases(to).find(|after| after.size == before.size)?;
            let change = |name| {
                let labels = |case: &Case| case.labels_of(name);
                Some(self.measurements.ratio(RATE, &labels(after), &labels(before))?.median)
            };
            let [Some(one), Some(other)] = variants.map(change) else { return None };
            Some((before.size, [one, other]))
        })
    }

    /// Returns the finding about more connections.
    fn connections(&self, libaio: &str, ring: &str) -> Finding {
        let [few, many] = CONNECTIONS;
        let case = |(size, [libaio, ring]): (Size, [f64; 2])| {
            (format!("{size}: libaio {libaio:.2}, io_uring {ring:.2}"), libaio < ring)
        };
        let said: Vec<_> = self.changes([(1, few), (1, many)], [libaio, ring]).map(case).collect();
        finding_of_cases(
            "libaio loses more than io_uring when connections rise from 200 to 1 000",
            "Rate with 1 000 connections as a ratio to 200: ",
            &said,
            "Hits with 1 000 connections are measured by --seed-000 and --full.",
        )
    }

    /// Returns the finding about more workers.
    fn workers(&self, ring: &str, sendfile: &str) -> Finding {
        let ratio = |case: &Case| {
            let of = |name: &str| case.labels_of(name);
            Some(self.measurements.ratio(RATE, &of(sendfile), &of(ring))?.median)
        };
        let said = WORKERS.into_iter().flat_map(|workers| {
            self.of(Source::Cache, workers, CONNECTIONS[0]).filter_map(move |case| {
                let ratio = ratio(case)?;
                let is_met = if workers == 1 { ratio > 1.0 } else { (ratio - 1.0).abs() <= EQUAL_WITHIN };
                Some((format!("{}, {}: {ratio:.2}", case.size, plural(workers as u32, "worker")), is_met))
            })
        });
        finding_of_cases(
            "The reviewer's figures: no difference with 4 workers, and sendfile ahead with one",
            "Rate of sendfile as a ratio to that of io_uring: ",
            &said.collect::<Vec<_>>(),
            "Hits with 4 workers are measured by --seed-000 and --full.",
        )
    }

    /// Compares two variants at each size with a claim. The verdict uses the median of the rounds; the sentence includes
    /// their spread, which shows whether the verdict is close.
    fn compare(
        &self,
        claim: &str,
        cases: &[&Case],
        (one, other): (&str, &str),
        as_claimed: impl Fn(f64) -> bool,
    ) -> Finding {
        let cases =
            cases.iter().map(|case| (case.size.to_string(), case.labels_of(one), case.labels_of(other)));
        let before = format!("Rate of \"{one}\" as a ratio to that of \"{other}\": ");
        let none = format!("\"{one}\" and \"{other}\" could not both be measured.");
        let is_met = |ratio: &Summary| as_claimed(ratio.median);
        self.measurements.finding_of_ratios(claim, (&before, &none), RATE, cases, is_met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Cell, Run, Section, Verdict};
    use crate::scenario::cold::data::Size;

    type Rates<'a> = &'a [(&'a str, Option<f64>)];

    /// Returns a section with rates of 4k cache hits by variant; `None` means that the variant failed.
    fn section(cases: &[(Case, Rates<'_>)]) -> Section {
        let mut section = Section::default();
        for (case, rates) in cases {
            for (name, rate) in *rates {
                let figures = |rate| [("requests_per_second".to_owned(), rate)].into();
                let run = rate.map(|rate| Run { figures: figures(rate), ..Run::default() });
                let labels = [case.labels(), at([("server", name)])].concat();
                comparison::file(&mut section, run.ok_or_else(|| "it ended".to_owned()), &labels, 0);
            }
        }
        let cases: Vec<Case> = cases.iter().map(|(case, _)| *case).collect();
        let results = results(Measurements::of(&section), &cases);
        section.add_results(results);
        section
    }

    fn case(memory_bytes: Option<u64>) -> Case {
        Case { source: Source::Cache, size: Size::K4, workers: 1, connections: 200, memory_bytes }
    }

    #[test]
    fn claims_are_judged_by_the_figures_without_the_control_run() {
        let pair = |ring, libaio| {
            let limited =
                [("ringroad io_uring, direct", Some(ring)), ("ringroad libaio, direct", Some(libaio))];
            let control = [("ringroad io_uring, direct", Some(1.05)), ("ringroad libaio, direct", Some(1.0))];
            section(&[(case(Some(1 << 20)), &limited), (case(None), &control)])
        };
        let (much, equal) = (pair(3.0, 1.0), pair(1.0, 1.0));
        assert_eq!(much.findings[0].verdict, Verdict::Holds);
        assert_eq!(equal.findings[0].verdict, Verdict::Fails);
        assert!(much.findings[0].sentence.contains("4k: 3.00"), "{:?}", much.findings[0]);
        // sendfile was not measured; the control run was equal.
        assert_eq!(much.findings[1].verdict, Verdict::Open);
        assert_eq!(much.findings[4].verdict, Verdict::Holds);
        let titles: Vec<&str> = much.tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(titles.iter().filter(|title| title.starts_with("As written up")).count(), 1, "{titles:?}");
    }

    #[test]
    fn a_failed_server_shows_its_reason_and_nginx_uses_its_best_result() {
        let rates = [
            ("nginx sendfile", Some(10.0)),
            ("nginx threads", Some(5.0)),
            ("ringroad sendfile", None),
            ("ringroad io_uring, direct", Some(20.0)),
        ];
        let section = section(&[(case(None), &rates)]);
        let table = section.tables.last().unwrap();
        let row = |name: &str| table.rows.iter().find(|row| row.name == name).unwrap();
        let failed = &row("ringroad sendfile").cells;
        assert!(failed[..7].iter().all(|cell| *cell == Cell::Broken("it ended".to_owned())), "{failed:?}");
        assert_eq!(table.columns[8].name, "of nginx sendfile");
        let Cell::Figure { summary, .. } = row("ringroad io_uring, direct").cells[8] else {
            panic!("{table:?}")
        };
        assert_eq!(summary.median, 2.0);
    }
}
