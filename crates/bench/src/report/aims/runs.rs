//! Which measurements of a report an aim is about: a scenario, the conditions, and the servers that may stand for it.

use crate::method::stats::Summary;
use crate::report::model::{Run, Section};

use super::figure::Figure;

/// Some measurements of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) scenario: &'static str,
    /// The label that names who was measured: mostly `server`.
    pub(super) who: &'static str,
    /// The best of these counts.
    pub(super) servers: &'static [&'static str],
    /// Labels and their values: `workers=1; connections=100`. With `!=` any other value.
    pub(super) at: String,
}

/// The measurements of the one that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    scenario: &'static str,
    pub(super) server: String,
    /// By round.
    by_round: Vec<(String, f64)>,
}

impl Pick {
    /// The measurements of the best server, or why there are none.
    pub(super) fn find(
        &self,
        sections: &[Section],
        figure: Figure,
        best_by: Figure,
    ) -> Result<Found, String> {
        let sections: Vec<&Section> =
            sections.iter().filter(|section| section.scenario == self.scenario).collect();
        if sections.is_empty() {
            return Err(format!("bench {} was not part of this run", self.scenario));
        }
        // A merged report may have a scenario in two variants: the first that has the figure is taken.
        let found = sections.iter().find_map(|section| self.best(section, figure, best_by));
        found.ok_or_else(|| self.reason(&sections))
    }

    /// The best of the servers that were measured in a section.
    fn best(&self, section: &Section, figure: Figure, best_by: Figure) -> Option<Found> {
        let conditions = conditions(&self.at);
        let measured = self.servers.iter().filter_map(|server| {
            let runs: Vec<&Run> =
                section.runs.iter().filter(|run| self.is_of(run, server, &conditions)).collect();
            let of = |figure: Figure| -> Vec<f64> { runs.iter().filter_map(|run| figure.of(run)).collect() };
            let rank = Summary::of(&of(best_by))?.median;
            let by_round = runs.iter().filter_map(|run| Some((round(run), figure.of(run)?))).collect();
            Some((rank, Found { scenario: self.scenario, server: (*server).to_owned(), by_round }))
        });
        let sign = if best_by.more_is_better() { -1.0 } else { 1.0 };
        let best = measured.min_by(|(a, _), (b, _)| (sign * a).total_cmp(&(sign * b)));
        best.map(|(_, found)| found).filter(|found| !found.by_round.is_empty())
    }

    fn is_of(&self, run: &Run, server: &str, conditions: &[Condition<'_>]) -> bool {
        let label = |name: &str| run.labels.get(name).map(String::as_str);
        label(self.who) == Some(server)
            && conditions.iter().all(|one| (label(one.name) == Some(one.value)) == one.is_wanted)
    }

    /// Why nothing was found: what the scenario itself said, where it did.
    fn reason(&self, sections: &[&Section]) -> String {
        if let Some(failed) = sections.iter().find_map(|section| section.failed.clone()) {
            return failed;
        }
        let conditions = conditions(&self.at);
        let refused = sections.iter().flat_map(|section| &section.runs).find_map(|run| {
            let is_ours = self.servers.iter().any(|server| self.is_of(run, server, &conditions));
            let said = run.labels.get("nothing").or_else(|| run.labels.get("refused"));
            said.filter(|_| is_ours).cloned()
        });
        let skipped = || {
            let facts = sections.iter().flat_map(|section| &section.skipped);
            let is_about = |name: &str| {
                self.servers.iter().any(|server| server.starts_with(name) || name.starts_with(server))
            };
            facts.filter(|fact| is_about(&fact.name)).map(|fact| fact.value.clone()).next()
        };
        // A shorter run leaves out cases.
        refused.or_else(skipped).unwrap_or_else(|| "not part of this run".to_owned())
    }

    /// Who is meant, where nobody was found.
    pub(super) fn words(&self) -> String {
        match self.servers {
            [one] => (*one).to_owned(),
            several => format!("the best of {}", several.join("; ")),
        }
    }
}

impl Found {
    /// The figures in the order of the rounds.
    pub(super) fn figures(&self) -> Vec<f64> {
        self.by_round.iter().map(|(_, figure)| *figure).collect()
    }

    /// The ratios to another one, round by round. Where rounds cannot be told to belong together (another scenario, a
    /// round that failed) it is the ratio to the median.
    pub(super) fn ratios(&self, theirs: &Found) -> Vec<f64> {
        let median = Summary::of(&theirs.figures()).map_or(f64::NAN, |summary| summary.median);
        let is_one_run = self.scenario == theirs.scenario;
        let ratio = |(round, ours): &(String, f64)| {
            let same = theirs.by_round.iter().find(|(other, _)| is_one_run && other == round);
            ours / same.map_or(median, |(_, figure)| *figure)
        };
        self.by_round.iter().map(ratio).filter(|ratio| ratio.is_finite()).collect()
    }
}

/// A label that a measurement has to have, or not to have.
struct Condition<'a> {
    name: &'a str,
    value: &'a str,
    is_wanted: bool,
}

fn conditions(text: &str) -> Vec<Condition<'_>> {
    let one = |part| match str::split_once(part, "!=") {
        Some((name, value)) => Some(Condition { name, value, is_wanted: false }),
        None => part.split_once('=').map(|(name, value)| Condition { name, value, is_wanted: true }),
    };
    text.split("; ").filter_map(one).collect()
}

/// Scenarios number the rounds of a comparison, so that a pair can be told.
fn round(run: &Run) -> String {
    run.labels.get("round").cloned().unwrap_or_default()
}
