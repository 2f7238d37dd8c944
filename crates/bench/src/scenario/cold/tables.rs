//! What is made of the measurements: the write-up's table, one for each case, plots, and what they say of its claims.

use super::data::Size;
use super::measure::{Case, Measured, Outcome};
use super::ways::{LIMIT, Maker, Source, Way};
use super::{CONNECTIONS, WORKERS};
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Row, Section, Series, Table, Verdict};
use crate::scenario::figures::column;

/// Ratios nearer to 1 than this are called equal.
/// Repetitions of one server differ by a few hundredths here.
const EQUAL_WITHIN: f64 = 0.1;

/// A ratio from which the write-up's words for io_uring ("huge") are taken to be met.
/// Its own tables have 2.2 to 4.0.
const MUCH_FASTER: f64 = 2.0;

/// Fills the section's tables, plots and findings. The write-up's own form comes first, so that a reader who comes from
/// there finds the same rows and columns with other figures in them.
pub(super) fn fill(section: &mut Section, outcomes: &[Outcome]) {
    for workers in WORKERS {
        section.tables.extend(
            CONNECTIONS.iter().filter_map(|&connections| as_published(outcomes, workers, connections)),
        );
    }
    // Without a server it is the limit alone, which stands in the others too.
    let has_servers = |outcome: &&Outcome| outcome.by_way.iter().any(|(way, _)| way.maker != Maker::Machine);
    section.tables.extend(outcomes.iter().filter(has_servers).map(in_full));
    section.plots = plots(outcomes);
    section.findings = findings(outcomes);
}

/// The table of the write-up: megabytes a second of each engine at each size, through the proxy cache. None where no size
/// was measured with so many workers and connections.
fn as_published(outcomes: &[Outcome], workers: usize, connections: u32) -> Option<Table> {
    let of = |size: Size| {
        outcomes.iter().find(|outcome| {
            let case = outcome.case;
            case.source == Source::Cache
                && case.size == size
                && (case.workers, case.connections) == (workers, connections)
                && !is_control(outcomes, case)
        })
    };
    let sizes: Vec<(Size, &Outcome)> = Size::ALL.iter().filter_map(|&size| Some((size, of(size)?))).collect();
    let (_, first) = sizes.first()?;
    let is_row = |way: &Way| way.published.is_some() || way.maker == Maker::Machine;
    let rows = first.by_way.iter().filter(|(way, _)| is_row(way)).map(|(way, _)| Row {
        name: way.name.to_owned(),
        cells: sizes
            .iter()
            .map(|(_, outcome)| outcome.cell(way, |measured| measured.megabytes_per_second, 0))
            .collect(),
    });
    Some(Table {
        title: format!(
            "As written up: hits of the proxy cache, worker_processes {workers}, {connections} connections"
        ),
        columns: sizes.iter().map(|(size, _)| column(&size.to_string(), "MB/s")).collect(),
        rows: rows.collect(),
    })
}

/// Whether a case has no memory limit while others have one. Without root no case has one, and then none is a control
/// run: the tables say in their titles that nothing was limited.
fn is_control(outcomes: &[Outcome], case: Case) -> bool {
    case.memory_bytes.is_none() && outcomes.iter().any(|outcome| outcome.case.memory_bytes.is_some())
}

/// Everything that was measured of one case. The last column compares with nginx's best mode here, whichever that is:
/// its modes change places between sizes, and a mode chosen beforehand would flatter us.
fn in_full(outcome: &Outcome) -> Table {
    let case = outcome.case;
    let memory = match case.memory_bytes {
        Some(bytes) => format!("{} MiB of memory", bytes >> 20),
        None => "no memory limit".to_owned(),
    };
    let best = outcome.best_of_nginx().map(|(way, _)| way.name);
    let against = best.map_or_else(|| "of nginx's best".to_owned(), |name| format!("of {name}"));
    let columns = vec![
        column("rate", "requests/s"),
        column("throughput", "MB/s"),
        column("p50", "ms"),
        column("p99", "ms"),
        column("p99.9", "ms"),
        column("server CPU", "us/request"),
        column("read from disk", "bytes/byte sent"),
        column("of the limit", "%"),
        column(&against, "requests/requests"),
    ];
    let rows = outcome.by_way.iter().map(|(way, _)| Row {
        name: way.name.to_owned(),
        cells: vec![
            outcome.cell(way, |measured| measured.answers_per_second, 0),
            outcome.cell(way, |measured| measured.megabytes_per_second, 0),
            outcome.cell(way, |measured| measured.p50_ms, 1),
            outcome.cell(way, |measured| measured.p99_ms, 1),
            outcome.cell(way, |measured| measured.p999_ms, 1),
            outcome.cell(way, |measured| measured.cpu_us, 1),
            outcome.cell(way, |measured| measured.read_share, 2),
            outcome.share_cell(way),
            outcome.ratio_cell(way, best),
        ],
    });
    Table {
        title: format!(
            "{} of {}, {} worker{}, {} connections, {memory}",
            if case.source == Source::Files { "Files" } else { "Hits of the proxy cache" },
            case.size,
            case.workers,
            if case.workers == 1 { "" } else { "s" },
            case.connections
        ),
        columns,
        rows: rows.collect(),
    }
}

impl Outcome {
    /// What a way came to in each round, or the reason of the first round that failed: the middle of the rounds that are
    /// left would be a figure of the better half.
    fn rounds(&self, name: &str) -> Option<Result<Vec<&Measured>, &str>> {
        let (_, rounds) = self.by_way.iter().find(|(way, _)| way.name == name)?;
        Some(rounds.iter().map(|round| round.as_ref().map_err(String::as_str)).collect())
    }

    /// One figure of each round.
    fn figures(&self, name: &str, figure: impl Fn(&Measured) -> f64) -> Option<Vec<f64>> {
        Some(self.rounds(name)?.ok()?.into_iter().map(figure).collect())
    }

    /// The middle of one figure with its spread.
    fn cell(&self, way: &Way, figure: impl Fn(&Measured) -> f64, decimals: u8) -> Cell {
        match self.rounds(way.name) {
            None => Cell::Missing("not measured here".to_owned()),
            Some(Err(reason)) => Cell::Missing(reason.to_owned()),
            Some(Ok(rounds)) => {
                let figures: Vec<f64> = rounds.into_iter().map(figure).collect();
                Summary::of(&figures).map_or_else(
                    || Cell::Missing("nothing was measured".to_owned()),
                    |summary| Cell::Figure { summary, decimals },
                )
            }
        }
    }

    /// The ratio of the rates, round by round.
    fn ratio(&self, ours: &str, theirs: &str) -> Option<Summary> {
        let rate = |measured: &Measured| measured.answers_per_second;
        Summary::of_ratios(&self.figures(ours, rate)?, &self.figures(theirs, rate)?)
    }

    /// How much of what the machine could do, in percent.
    fn share_cell(&self, way: &Way) -> Cell {
        if !self.by_way.iter().any(|(way, _)| way.maker == Maker::Machine) {
            return Cell::Missing(
                "no limit was measured: without one of memory, files come out of it".to_owned(),
            );
        }
        let percent = |ratio: f64| ratio * 100.0;
        self.ratio(way.name, LIMIT.name).map_or_else(
            || Cell::Missing("one of the two has no figure".to_owned()),
            |Summary { median, low, high }| Cell::Figure {
                summary: Summary { median: percent(median), low: percent(low), high: percent(high) },
                decimals: 0,
            },
        )
    }

    /// As [`Outcome::ratio`], for a table.
    fn ratio_cell(&self, way: &Way, best: Option<&str>) -> Cell {
        let Some(best) = best else { return Cell::Missing("nginx was not measured".to_owned()) };
        self.ratio(way.name, best).map_or_else(
            || Cell::Missing("one of the two has no figure".to_owned()),
            |summary| Cell::Figure { summary, decimals: 2 },
        )
    }

    /// nginx's fastest mode here.
    fn best_of_nginx(&self) -> Option<(&'static Way, f64)> {
        let rates = self.by_way.iter().filter(|(way, _)| way.maker == Maker::Nginx).filter_map(|(way, _)| {
            let rate = Summary::of(&self.figures(way.name, |measured| measured.answers_per_second)?)?;
            Some((*way, rate.median))
        });
        rates.max_by(|one, other| one.1.total_cmp(&other.1))
    }
}

/// Rate and p99 against connections, for each size that was measured with more than one number of them.
fn plots(outcomes: &[Outcome]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for size in Size::ALL {
        let of_size: Vec<&Outcome> = outcomes
            .iter()
            .filter(|outcome| {
                let case = outcome.case;
                case.source == Source::Files
                    && case.size == size
                    && case.workers == 1
                    && !is_control(outcomes, case)
            })
            .collect();
        // A line needs two points.
        if of_size.len() < 2 {
            continue;
        }
        // The 99th percentile and not the median: a disk that is waited for shows in the slow requests first.
        type Figure = fn(&Measured) -> f64;
        let kinds: [(&str, &str, &str, Figure); 2] = [
            ("rate", "rate", "requests/s", |measured| measured.answers_per_second),
            ("p99", "99th percentile of the latency", "ms", |measured| measured.p99_ms),
        ];
        for (id, name, unit, figure) in kinds {
            plots.push(Plot {
                id: format!("cold-{id}-{size}"),
                title: format!("Cold files of {size}: {name}"),
                x: axis("connections", ""),
                y: axis(name, unit),
                series: series(&of_size, figure),
            });
        }
    }
    plots.extend(timelines(outcomes));
    plots
}

/// A line for each way that was measured in all of them. A way that failed in one has none: a line that ends early
/// would look as if it had been left out by choice.
fn series(outcomes: &[&Outcome], figure: fn(&Measured) -> f64) -> Vec<Series> {
    let Some(first) = outcomes.first() else { return Vec::new() };
    let line = |(way, _): &(&'static Way, Vec<Result<Measured, String>>)| {
        let mut points = Vec::new();
        for outcome in outcomes {
            let summary = Summary::of(&outcome.figures(way.name, figure)?)?;
            points.push([f64::from(outcome.case.connections), summary.median]);
        }
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        Some(Series { name: way.name.to_owned(), points })
    };
    first.by_way.iter().filter_map(line).collect()
}

/// What the disk read in each second, where a measurement was long enough to have several.
fn timelines(outcomes: &[Outcome]) -> Vec<Plot> {
    let plot = |outcome: &Outcome| {
        let line = |(way, rounds): &(&'static Way, Vec<Result<Measured, String>>)| {
            let timeline = &rounds.first()?.as_ref().ok()?.timeline;
            let at = timeline.columns.iter().position(|column| column.name == "read")?;
            let points = timeline.rows.iter().enumerate().map(|(second, row)| [(second + 1) as f64, row[at]]);
            let points: Vec<[f64; 2]> = points.collect();
            (points.len() > 1).then(|| Series { name: way.name.to_owned(), points })
        };
        let series: Vec<Series> = outcome.by_way.iter().filter_map(line).collect();
        let case = outcome.case;
        (!series.is_empty()).then(|| Plot {
            id: format!("cold-disk-{}", case.size),
            title: format!("What the disk reads while files of {} are sent", case.size),
            x: axis("time", "s"),
            y: axis("read", "MB/s"),
            series,
        })
    };
    // One plot for each size: with workers and connections varied they would be a dozen that look alike.
    let plain = outcomes.iter().filter(|outcome| {
        let case = outcome.case;
        case.source == Source::Files && case.workers == 1 && case.connections == CONNECTIONS[0]
    });
    plain.filter(|outcome| !is_control(outcomes, outcome.case)).filter_map(plot).collect()
}

fn axis(name: &str, unit: &str) -> Axis {
    Axis { name: name.to_owned(), unit: unit.to_owned(), scale: AxisScale::Linear }
}

/// The write-up's claims, each with what the figures say of it. They are about hits of a cache with one worker; the last
/// one is about plain files, where nginx's own two ways to use libaio were measured.
fn findings(outcomes: &[Outcome]) -> Vec<Finding> {
    let limited = |outcome: &&Outcome| {
        outcome.case.source == Source::Cache
            && outcome.case.workers == 1
            && outcome.case.connections == CONNECTIONS[0]
            && !is_control(outcomes, outcome.case)
    };
    let limited: Vec<&Outcome> = outcomes.iter().filter(limited).collect();
    let control = outcomes
        .iter()
        .find(|outcome| outcome.case.source == Source::Cache && is_control(outcomes, outcome.case));
    // Our own engines against each other: the write-up's pair was one server with either engine, too.
    let (ring, libaio, sendfile) =
        ("ringroad io_uring, direct", "ringroad libaio, direct", "ringroad sendfile");
    let mut findings = vec![
        Finding {
            claim: "Hits from the disk come two to four times as fast through io_uring as through libaio, and sendfile is \
                    no faster than libaio"
                .to_owned(),
            ..compare(&limited, ring, libaio, |ratio| ratio >= MUCH_FASTER)
        },
        Finding {
            claim: "sendfile is as fast as libaio".to_owned(),
            ..compare(&limited, sendfile, libaio, |ratio| (ratio - 1.0).abs() <= EQUAL_WITHIN)
        },
        Finding {
            claim: "Without a memory limit hits come out of memory, and libaio and io_uring are equal".to_owned(),
            ..compare(&control.into_iter().collect::<Vec<_>>(), ring, libaio, |ratio| {
                (ratio - 1.0).abs() <= EQUAL_WITHIN
            })
        },
    ];
    let files: Vec<&Outcome> = outcomes
        .iter()
        .filter(|outcome| {
            let case = outcome.case;
            case.source == Source::Files && case.workers == 1 && case.connections == CONNECTIONS[0]
        })
        .collect();
    findings.push(Finding {
        claim: "libaio as it was configured there is nginx's libaio at its best (with its default buffers nginx turns \
                direct reads off for files smaller than a buffer, and the read blocks)"
            .to_owned(),
        ..compare(&files, "nginx libaio, as written up", "nginx libaio, sized buffers", |ratio| {
            ratio >= 1.0 - EQUAL_WITHIN
        })
    });
    findings
}

/// A finding without its claim: how two ways compare at each size, and whether that is as claimed.
fn compare(outcomes: &[&Outcome], one: &str, other: &str, as_claimed: fn(f64) -> bool) -> Finding {
    let ratios: Vec<(Size, Summary)> =
        outcomes.iter().filter_map(|outcome| Some((outcome.case.size, outcome.ratio(one, other)?))).collect();
    // By the middle of the rounds; the sentence has their spread, so that a verdict on the edge can be seen as one.
    let met = ratios.iter().filter(|(_, ratio)| as_claimed(ratio.median)).count();
    let verdict = match met {
        _ if ratios.is_empty() => Verdict::Open,
        0 => Verdict::Fails,
        met if met == ratios.len() => Verdict::Holds,
        _ => Verdict::Partly,
    };
    let words: Vec<String> = ratios
        .iter()
        .map(|(size, ratio)| format!("{:.2} ({:.2} to {:.2}) at {size}", ratio.median, ratio.low, ratio.high))
        .collect();
    let sentence = if words.is_empty() {
        format!("Not both of \"{one}\" and \"{other}\" could be measured here.")
    } else {
        format!("Requests a second of \"{one}\" by those of \"{other}\": {}.", words.join(", "))
    };
    Finding { claim: String::new(), verdict, sentence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Timeline;
    use crate::scenario::cold::ways::WAYS;

    fn measured(rate: f64) -> Measured {
        Measured {
            answers_per_second: rate,
            megabytes_per_second: rate / 250.0,
            p50_ms: 1.0,
            p99_ms: 2.0,
            p999_ms: 3.0,
            cpu_us: 10.0,
            read_share: 1.0,
            errors: 0,
            is_generator_bound: false,
            disturbed: None,
            timeline: Timeline::default(),
            configuration: String::new(),
        }
    }

    /// Cache hits of 4k at one worker, with rates by the names of ways; none means that it failed.
    fn outcome(rates: &[(&str, Option<f64>)], memory_bytes: Option<u64>) -> Outcome {
        let case = Case { source: Source::Cache, size: Size::K4, workers: 1, connections: 200, memory_bytes };
        let way = |name: &str| WAYS.iter().find(|way| way.name == name).unwrap();
        let rounds = |rate: Option<f64>| vec![rate.map(measured).ok_or_else(|| "it ended".to_owned())];
        Outcome { case, by_way: rates.iter().map(|(name, rate)| (way(name), rounds(*rate))).collect() }
    }

    #[test]
    fn a_claim_is_judged_by_the_figures() {
        let pair = |ring, libaio| {
            let limited = outcome(
                &[("ringroad io_uring, direct", Some(ring)), ("ringroad libaio, direct", Some(libaio))],
                Some(1 << 20),
            );
            let control = outcome(
                &[("ringroad io_uring, direct", Some(1.05)), ("ringroad libaio, direct", Some(1.0))],
                None,
            );
            findings(&[limited, control])
        };
        let (much, equal) = (pair(3.0, 1.0), pair(1.0, 1.0));
        assert_eq!(much[0].verdict, Verdict::Holds);
        assert_eq!(equal[0].verdict, Verdict::Fails);
        assert!(much[0].sentence.contains("3.00 (3.00 to 3.00) at 4k"), "{}", much[0].sentence);
        // sendfile was not measured; the control run was equal.
        assert_eq!(much[1].verdict, Verdict::Open);
        assert_eq!(much[2].verdict, Verdict::Holds);
    }

    #[test]
    fn a_server_that_failed_has_its_reason_in_every_cell() {
        let table = in_full(&outcome(
            &[
                ("nginx sendfile", Some(10.0)),
                ("ringroad sendfile", None),
                ("ringroad io_uring, direct", Some(20.0)),
            ],
            None,
        ));
        assert!(table.rows[1].cells[..7].iter().all(|cell| *cell == Cell::Missing("it ended".to_owned())));
        let ratio = |row: usize| match &table.rows[row].cells[8] {
            Cell::Figure { summary, .. } => Some(summary.median),
            _ => None,
        };
        assert_eq!((ratio(0), ratio(1), ratio(2)), (Some(1.0), None, Some(2.0)));
    }

    #[test]
    fn the_control_run_is_no_row_of_the_write_ups_table() {
        let rates = [("ringroad io_uring, direct", Some(5.0))];
        let outcomes =
            [outcome(&rates, None), outcome(&[("ringroad io_uring, direct", Some(2500.0))], Some(1 << 20))];
        let table = as_published(&outcomes, 1, 200).unwrap();
        assert_eq!(table.columns[0].name, "4k");
        let Cell::Figure { summary, .. } = table.rows[0].cells[0] else { panic!("{table:?}") };
        assert_eq!(summary.median, 10.0);
        assert!(as_published(&outcomes, 4, 200).is_none());
    }
}
