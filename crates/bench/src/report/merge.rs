//! Merges several reports into one: scenarios that were measured separately, or again.
//!
//! Figures are never averaged across reports; `compare` shows how comparable different runs are. Each section stays as
//! it was measured, and machine facts that changed in between are shown for each report.

use crate::report::model::{Fact, Report, Section};
use crate::report::text;

/// Adds to the first report the sections of the others. A scenario of a later report replaces the earlier result.
/// Returns `None` without reports.
pub(crate) fn merge(reports: Vec<Report>) -> Option<Report> {
    let mut reports = reports.into_iter();
    let mut merged = reports.next()?;
    for report in reports {
        add(&mut merged, report);
    }
    separate_plots(&mut merged);
    Some(merged)
}

/// Adds one report. Its times and commands are retained, so that a reader sees that the figures were not measured in
/// one run.
fn add(merged: &mut Report, report: Report) {
    let part = text::moment(&report.started);
    add_facts(&mut merged.machine, report.machine, &part);
    add_facts(&mut merged.peers, report.peers, &part);
    merged.seconds += report.seconds;
    merged.command.push(";".to_owned());
    merged.command.extend(report.command);
    // A merged report of a quick and a complete run must warn about the quick sections.
    if merged.scale != report.scale {
        // The smaller scale applies to the merged report.
        let rank = |scale: &str| ["instant", "quick", "normal", "full"].iter().position(|one| *one == scale);
        if rank(&report.scale) < rank(&merged.scale) {
            merged.scale = report.scale;
        }
    }
    merged.incomplete = merged.incomplete.take().or(report.incomplete);
    for section in report.sections {
        let of_scenario = |other: &&mut Section| other.scenario == section.scenario;
        // A failed section does not replace an existing result, and a later result replaces a failed section.
        if section.failed.is_some() && merged.sections.iter_mut().any(|other| of_scenario(&other)) {
            continue;
        }
        let same = |other: &&mut Section| {
            of_scenario(other) && (other.title == section.title || other.failed.is_some())
        };
        match merged.sections.iter_mut().find(same) {
            Some(other) => *other = section,
            None => merged.sections.push(section),
        }
    }
}

/// Facts that change from minute to minute: the first report's values are shown.
const PASSING: [&str; 3] = ["memory", "file system", "load before"];

/// Adds facts that are new, and facts with a different value under the name of their report.
fn add_facts(known: &mut Vec<Fact>, more: Vec<Fact>, part: &str) {
    for fact in more {
        // An identical fact is shown once.
        match known.iter().find(|other| other.name == fact.name) {
            Some(other) if other.value == fact.value || PASSING.contains(&fact.name.as_str()) => {}
            Some(_) => known.push(Fact::new(&format!("{}, {part}", fact.name), fact.value)),
            None => known.push(fact),
        }
    }
}

/// Makes plot ids unique: plots of two variants of a scenario may have the same id, which is also a file name.
fn separate_plots(report: &mut Report) {
    let mut seen: Vec<String> = Vec::new();
    for plot in report.sections.iter_mut().flat_map(|section| &mut section.plots) {
        let plain = plot.id.clone();
        let mut count = 1;
        while seen.contains(&plot.id) {
            count += 1;
            plot.id = format!("{plain}-{count}");
        }
        seen.push(plot.id.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::report::model::{Axis, AxisScale, Plot};

    fn axis() -> Axis {
        Axis { name: "x".to_owned(), unit: String::new(), scale: AxisScale::Linear }
    }

    fn section(scenario: &str, title: &str, question: &str) -> Section {
        Section {
            scenario: scenario.to_owned(),
            title: title.to_owned(),
            question: question.to_owned(),
            plots: vec![Plot {
                id: format!("{scenario}-p"),
                title: String::new(),
                x: axis(),
                y: axis(),
                series: Vec::new(),
            }],
            ..Section::default()
        }
    }

    fn report(scale: &str, kernel: &str, sections: Vec<Section>) -> Report {
        Report {
            started: "2026-11-22T06:00:00Z".to_owned(),
            seconds: 1.0,
            scale: scale.to_owned(),
            machine: vec![Fact::new("kernel", kernel)],
            sections,
            ..Report::default()
        }
    }

    #[test]
    fn a_later_result_replaces_an_earlier_one_and_variants_are_separate() {
        let first = report("normal", "6.1", vec![section("nop", "n", "old"), section("cold", "c", "old")]);
        let second =
            report("quick", "6.18", vec![section("cold", "c", "new"), section("cold", "d", "variant")]);
        let merged = merge(vec![first, second]).unwrap();
        let questions: Vec<&str> = merged.sections.iter().map(|section| section.question.as_str()).collect();
        assert_eq!(questions, ["old", "new", "variant"]);
        let ids: Vec<&str> = merged.sections.iter().map(|section| section.plots[0].id.as_str()).collect();
        assert_eq!(ids, ["nop-p", "cold-p", "cold-p-2"]);
        assert_eq!((merged.seconds, merged.scale.as_str()), (2.0, "quick"));
        let machine: Vec<&str> = merged.machine.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(machine, ["kernel", "kernel, 2026-11-22, 06:00 UTC"]);
    }

    #[test]
    fn a_result_replaces_a_failure_but_not_vice_versa() {
        let failed = || Section::failed("cold", &Failure::Interrupted);
        let good = || section("cold", "c", "good");
        for order in [vec![good(), failed()], vec![failed(), good()]] {
            let parts = order.into_iter().map(|section| report("full", "6.1", vec![section])).collect();
            let merged = merge(parts).unwrap();
            let failed: Vec<_> = merged.sections.iter().map(|section| section.failed.is_some()).collect();
            assert_eq!(failed, [false]);
        }
    }
}
