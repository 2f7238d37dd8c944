//! What this project wants to reach, and how a run stands against it: any report says on any machine which of its aims
//! were met there.
//!
//! [`table`] holds the aims as data; here they are judged by the single measurements of a report, so that reports of
//! earlier programs, and those merged of parts, are judged by the aims of today. A ratio is formed round by round, as
//! everywhere in the suite. Where several modes of a server could stand for it the best of them does, by the figure that
//! the aim names; the others are in the scenario's own tables.
//!
//! An aim whose scenario is not in the report is left out. One that was not measured says why.

mod figure;
mod runs;
mod table;

use crate::method::stats::Summary;
use crate::report::model::{Aim, Cell, Column, Row, Section, Standing, Table};
use figure::Figure;
use runs::{Found, Pick};
pub(crate) use table::TITLE;
use table::{Bound, Wanted};

/// Judges all aims that these sections could have measured.
pub(crate) fn judge(sections: &[Section]) -> Vec<Aim> {
    let is_there = |wanted: &Wanted| sections.iter().any(|section| section.scenario == wanted.ours.scenario);
    table::all().iter().filter(|wanted| is_there(wanted)).map(|wanted| judge_one(sections, wanted)).collect()
}

fn judge_one(sections: &[Section], wanted: &Wanted) -> Aim {
    let ours = wanted.ours.find(sections, wanted.figure, wanted.best_by);
    let theirs = wanted.theirs.as_ref().map(|pick| pick.find(sections, wanted.figure, wanted.best_by));
    let measured = measured(&ours, theirs.as_ref());
    let standing = match &measured {
        Err(_) => Standing::Unmeasured,
        Ok(summary) if wanted.bound.is_met(summary) => Standing::Met,
        Ok(_) => Standing::Missed,
    };
    let name = |found: &Result<Found, String>, pick: &Pick| match found {
        Ok(found) => found.server.clone(),
        Err(_) => pick.words(),
    };
    let beside = match (&theirs, &wanted.theirs) {
        (Some(found), Some(pick)) => wanted.beside.map_or_else(|| name(found, pick), str::to_owned),
        _ => String::new(),
    };
    Aim {
        row: wanted.row.to_owned(),
        case: wanted.case.clone(),
        scenario: wanted.ours.scenario.to_owned(),
        figure: wanted.figure.name().to_owned(),
        ours: name(&ours, &wanted.ours),
        beside,
        bound: wanted.bound.words(),
        measured: match measured {
            Ok(summary) => Cell::Figure { summary, decimals: wanted.decimals() },
            Err(reason) => Cell::Missing(reason),
        },
        standing,
    }
}

/// The figure itself, or its ratio to the other one; or why there is none.
fn measured(ours: &Result<Found, String>, theirs: Option<&Result<Found, String>>) -> Result<Summary, String> {
    let ours = ours.as_ref().map_err(Clone::clone)?;
    let nothing = || "too little was measured".to_owned();
    let Some(theirs) = theirs else {
        return Summary::of(&ours.figures()).ok_or_else(nothing);
    };
    let theirs = theirs.as_ref().map_err(Clone::clone)?;
    Summary::of(&ours.ratios(theirs)).ok_or_else(nothing)
}

/// As a table like any other of a report.
pub(crate) fn as_table(aims: &[Aim]) -> Table {
    let column = |name: &str| Column { name: name.to_owned(), unit: String::new() };
    let row = |aim: &Aim| Row {
        name: if aim.case.is_empty() { aim.row.clone() } else { format!("{}, {}", aim.row, aim.case) },
        cells: vec![
            Cell::Text(aim.ours.clone()),
            Cell::Text(aim.figure.clone()),
            Cell::Text(if aim.beside.is_empty() { "–".to_owned() } else { format!("of {}", aim.beside) }),
            Cell::Text(aim.bound.clone()),
            aim.measured.clone(),
            Cell::Text(words(aim.standing).to_owned()),
        ],
    };
    Table {
        title: summary(aims),
        columns: ["measured", "figure", "as a ratio", "aim", "here", ""].map(column).to_vec(),
        rows: aims.iter().map(row).collect(),
    }
}

/// How many were met, in a sentence.
pub(crate) fn summary(aims: &[Aim]) -> String {
    let count = |standing| aims.iter().filter(|aim| aim.standing == standing).count();
    format!(
        "{} met, {} missed, {} not measured",
        count(Standing::Met),
        count(Standing::Missed),
        count(Standing::Unmeasured)
    )
}

/// A line for each, for a terminal: what was missed is what is looked for.
pub(crate) fn as_text(aims: &[Aim]) -> String {
    let line = |aim: &Aim| {
        let beside = if aim.beside.is_empty() { String::new() } else { format!(" of {}", aim.beside) };
        let here = super::text::cell(&aim.measured);
        format!(
            "{:12} {here}, aim {}: {}, {}: {}, {}{beside}\n",
            words(aim.standing),
            aim.bound,
            aim.row,
            aim.case,
            aim.ours,
            aim.figure
        )
    };
    aims.iter().map(line).chain([format!("aims: {}\n", summary(aims))]).collect()
}

/// A standing as it is said.
pub(crate) fn words(standing: Standing) -> &'static str {
    match standing {
        Standing::Met => "met",
        Standing::Missed => "missed",
        Standing::Unmeasured => "not measured",
    }
}

impl Wanted {
    /// Bytes have none; all else is a ratio.
    fn decimals(&self) -> u8 {
        match (self.figure, &self.bound) {
            (Figure::IdleMemory, _) => 0,
            (_, Bound::AtMost(bound)) if *bound <= 0.1 => 3,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Fact, Run};

    fn run(labels: &[(&str, &str)], figures: &[(&str, f64)]) -> Run {
        Run {
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            ..Run::default()
        }
    }

    /// `return 200` over kept connections, so many microseconds for each of 1 000 requests.
    fn kept(server: &str, connections: &str, round: &str, us: f64) -> Run {
        run(
            &[
                ("server", server),
                ("connections kept", "long"),
                ("workers", "1"),
                ("connections", connections),
                ("round", round),
            ],
            &[("requests", 1000.0), ("server_cpu_seconds", us / 1e3)],
        )
    }

    fn section(runs: Vec<Run>) -> Section {
        Section { scenario: "http".to_owned(), runs, ..Section::default() }
    }

    fn of_case<'a>(aims: &'a [Aim], case: &str, figure: &str) -> &'a Aim {
        aims.iter().find(|aim| aim.case.starts_with(case) && aim.figure == figure).expect("an aim")
    }

    #[test]
    fn a_ratio_is_formed_round_by_round_and_judged() {
        let runs = vec![
            kept("io_uring", "100", "0", 3.0),
            kept("nginx", "100", "0", 6.0),
            // A slow minute for both.
            kept("io_uring", "100", "1", 7.0),
            kept("nginx", "100", "1", 10.0),
            kept("io_uring", "500", "0", 4.0),
            kept("nginx", "500", "0", 5.0),
        ];
        let aims = judge(&[section(runs)]);
        let met = of_case(&aims, "100 ", "CPU per request");
        assert_eq!(met.standing, Standing::Met);
        let Cell::Figure { summary, .. } = &met.measured else { panic!("{met:?}") };
        assert_eq!((summary.low, summary.high), (0.5, 0.7));
        assert_eq!(of_case(&aims, "500 ", "CPU per request").standing, Standing::Missed);
        let missing = of_case(&aims, "1000 ", "CPU per request");
        assert_eq!(missing.standing, Standing::Unmeasured);
        assert_eq!(missing.measured, Cell::Missing("not part of this run".to_owned()));
        assert!(aims.iter().all(|aim| aim.scenario == "http"), "other scenarios were not run");
    }

    #[test]
    fn a_missing_peer_is_the_reason() {
        let fact = Fact { name: "nginx".to_owned(), value: "nginx is not installed".to_owned() };
        let section = Section { skipped: vec![fact], ..section(vec![kept("io_uring", "100", "0", 3.0)]) };
        let aims = judge(&[section]);
        let aim = of_case(&aims, "100 ", "CPU per request");
        assert_eq!(aim.measured, Cell::Missing("nginx is not installed".to_owned()));
    }

    #[test]
    fn a_failed_scenario_is_the_reason_for_all_its_aims() {
        let failed = Section::failed("cold", &crate::failure::Failure::Interrupted);
        let aims = judge(&[failed]);
        assert!(aims.len() > 20);
        for aim in &aims {
            assert_eq!(aim.standing, Standing::Unmeasured);
            assert!(matches!(&aim.measured, Cell::Missing(reason) if reason.starts_with("interrupted")));
        }
    }

    #[test]
    fn the_best_mode_stands_for_a_server() {
        let cold = |server: &str, rate: f64, us: f64| {
            run(
                &[
                    ("server", server),
                    ("source", "files"),
                    ("size", "4k"),
                    ("workers", "1"),
                    ("connections", "200"),
                    ("memory", "128 MiB"),
                    ("round", "0"),
                ],
                &[("requests_per_second", rate), ("server_cpu_us_per_request", us)],
            )
        };
        let runs = vec![
            cold("ringroad io_uring, direct", 3000.0, 10.0),
            cold("nginx libaio, sized buffers", 2000.0, 20.0),
            cold("nginx threads", 1000.0, 8.0),
        ];
        let aims = judge(&[Section { scenario: "cold".to_owned(), runs, ..Section::default() }]);
        let best = of_case(&aims, "4k, 200 connections", "rate");
        assert_eq!((best.beside.as_str(), best.standing), ("nginx libaio, sized buffers", Standing::Met));
        // Processor time is compared with the same mode, not with the one that is cheapest because it does little.
        let cpu = of_case(&aims, "4k, 200 connections", "CPU per request");
        assert_eq!((cpu.beside.as_str(), cpu.standing), ("nginx libaio, sized buffers", Standing::Met));
    }

    #[test]
    fn a_table_has_a_cell_for_each_column() {
        let table = as_table(&judge(&[section(Vec::new())]));
        assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()));
        assert!(table.title.starts_with("0 met, 0 missed, "), "{}", table.title);
    }
}
