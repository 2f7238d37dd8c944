//! Merges several reports into one: scenarios that were measured separately, or again.
//!
//! Figures are never averaged across reports; `compare` shows how comparable different runs are. Each section stays as
//! it was measured, and machine facts that changed in between are shown for each report.

use crate::report::model::{Fact, Report};
use crate::report::text;

/// Adds the sections of another report. A scenario of the later report replaces the earlier result. The times and
/// commands of both are retained, so that a reader sees that the figures were not measured in one run.
pub(crate) fn merge(mut merged: Report, report: Report) -> Report {
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
        match merged.sections.iter_mut().find(|other| other.scenario == section.scenario) {
            // A failed section does not replace an existing result, and a later result replaces a failed section.
            Some(_) if section.failed.is_some() => {}
            Some(other) => *other = section,
            None => merged.sections.push(section),
        }
    }
    merged
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::report::model::Section;

    fn section(scenario: &str, question: &str) -> Section {
        Section { scenario: scenario.to_owned(), question: question.to_owned(), ..Section::default() }
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
    fn a_later_result_replaces_an_earlier_one() {
        let first = report("normal", "6.1", vec![section("nop", "old"), section("cold", "old")]);
        let second = report("quick", "6.18", vec![section("cold", "new"), section("disk", "new")]);
        let merged = merge(first, second);
        let questions: Vec<&str> = merged.sections.iter().map(|section| section.question.as_str()).collect();
        assert_eq!(questions, ["old", "new", "new"]);
        assert_eq!((merged.seconds, merged.scale.as_str()), (2.0, "quick"));
        let machine: Vec<&str> = merged.machine.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(machine, ["kernel", "kernel, 2026-11-22, 06:00 UTC"]);
    }

    #[test]
    fn a_result_replaces_a_failure_but_not_vice_versa() {
        let failed = || Section::failed("cold", &Failure::Interrupted);
        let good = || section("cold", "good");
        for order in [[good(), failed()], [failed(), good()]] {
            let [first, second] = order.map(|section| report("full", "6.1", vec![section]));
            let merged = merge(first, second);
            let failed: Vec<_> = merged.sections.iter().map(|section| section.failed.is_some()).collect();
            assert_eq!(failed, [false]);
        }
    }
}
