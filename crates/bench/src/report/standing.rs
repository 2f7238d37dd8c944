//! The head of a report: which server leads and by how much, and the best settings on this machine. Computed from the
//! standings of the scenarios.
//!
//! A server has one row per mode. Makers are compared by the best row of each, so that no preselected mode favours one
//! of them. In comparisons of engines, each engine is a separate maker.

use crate::method::stats::Summary;
use crate::report::model::{Cell, Entrant, Report, Standing};
use crate::report::text;

/// Relative difference below which two figures without a spread (measured once) are considered equal.
const NOTEWORTHY: f64 = 0.05;

/// The value of `use` that applies by default if the kernel permits it: this directive alone is equivalent to the
/// default.
const DEFAULT: &str = "use io_uring;";

/// An entrant with a figure.
#[derive(Clone, Copy)]
pub(crate) struct Ranked<'a> {
    pub(crate) entrant: &'a Entrant,
    pub(crate) summary: Summary,
    pub(crate) decimals: u8,
}

impl Ranked<'_> {
    /// Whether the difference may be chance.
    fn is_level_with(&self, other: &Ranked<'_>) -> bool {
        let (ours, theirs) = (self.summary, other.summary);
        if ours.low == ours.high || theirs.low == theirs.high {
            return (ours.median / theirs.median - 1.0).abs() < NOTEWORTHY;
        }
        ours.low <= theirs.high && theirs.low <= ours.high
    }
}

/// Returns the figures of the selected entrants, the best first.
fn ranked<'a>(standing: &'a Standing, is_one: impl Fn(&Entrant) -> bool) -> Vec<Ranked<'a>> {
    let figure = |entrant: &'a Entrant| match entrant.cell {
        Cell::Figure { summary, decimals } => Some(Ranked { entrant, summary, decimals }),
        _ => None,
    };
    let mut found: Vec<Ranked<'_>> =
        standing.entrants.iter().filter(|entrant| is_one(entrant)).filter_map(figure).collect();
    let order = |one: &Ranked<'_>, other: &Ranked<'_>| one.summary.median.total_cmp(&other.summary.median);
    found.sort_by(|one, other| match (order(one, other), standing.is_less_better) {
        (order, true) => order,
        (order, false) => order.reverse(),
    });
    found
}

/// Returns the best row of each maker, the leader first.
pub(crate) fn leaders(standing: &Standing) -> Vec<Ranked<'_>> {
    let mut best: Vec<Ranked<'_>> = Vec::new();
    for one in ranked(standing, |_| true) {
        let maker = &one.entrant.maker;
        if maker.is_empty() || best.iter().all(|other| other.entrant.maker != *maker) {
            best.push(one);
        }
    }
    best
}

/// Returns the entrants whose measurement failed, with the reason.
pub(crate) fn broken(standing: &Standing) -> impl Iterator<Item = (&Entrant, &str)> {
    standing.entrants.iter().filter_map(|entrant| match &entrant.cell {
        Cell::Broken(reason) => Some((entrant, reason.as_str())),
        _ => None,
    })
}

/// Returns the maker and its mode: `nginx, aio threads`, `Ringroad (epoll)`.
pub(crate) fn name(entrant: &Entrant) -> String {
    let Entrant { name, maker, .. } = entrant;
    match name.get(..maker.len()) {
        Some(start) if start.eq_ignore_ascii_case(maker) => format!("{maker}{}", &name[maker.len()..]),
        _ => format!("{maker} ({name})"),
    }
}

/// Formats a figure with its unit.
fn figure(one: &Ranked<'_>, unit: &str) -> String {
    let number = text::number(one.summary.median, one.decimals);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Returns a sentence about which entrant leads, and by how much.
pub(crate) fn sentence(standing: &Standing) -> String {
    let unit = &standing.unit;
    let ranked = leaders(standing);
    let [leader, others @ ..] = &ranked[..] else {
        return "Nothing was measured.".to_owned();
    };
    let own = format!("{} {}", name(leader.entrant), figure(leader, unit));
    if others.is_empty() {
        return format!("{own}; there is nothing to compare it with.");
    }
    let (level, behind): (Vec<&Ranked<'_>>, Vec<&Ranked<'_>>) =
        others.iter().partition(|other| other.is_level_with(leader));
    let said = |other: &&Ranked<'_>| {
        let ratio = other.summary.median / leader.summary.median;
        let share = if standing.is_less_better { "times as much" } else { "of that" };
        format!("{} {} ({ratio:.2} {share})", name(other.entrant), figure(other, unit))
    };
    let list = |of: &[&Ranked<'_>]| of.iter().map(said).collect::<Vec<_>>().join(", ");
    match (level.is_empty(), behind.is_empty()) {
        (true, _) => {
            format!("{} leads with {}; {}.", name(leader.entrant), figure(leader, unit), list(&behind))
        }
        (false, true) => format!("Level within the spread: {own}, {}.", list(&level)),
        (false, false) => {
            format!("Level within the spread: {own}, {}. Behind: {}.", list(&level), list(&behind))
        }
    }
}

/// A setting of Ringroad that is faster on this machine than the default.
pub(crate) struct Advice<'a> {
    pub(crate) about: &'a str,
    pub(crate) setting: &'a str,
    /// The gain, as text.
    pub(crate) because: String,
}

/// Returns the recommended settings on this machine, and the cases for which the default is best.
pub(crate) fn advice(report: &Report) -> (Vec<Advice<'_>>, Vec<&str>) {
    let (mut better, mut as_it_is) = (Vec::new(), Vec::new());
    // An instant run yields no usable figures.
    if report.scale == "instant" {
        return (better, as_it_is);
    }
    for standing in report.sections.iter().flat_map(|section| &section.standings) {
        let ours = ranked(standing, |entrant| entrant.setting.is_some());
        let setting = |one: &Ranked<'_>| one.entrant.setting.clone().unwrap_or_default();
        let is_default = |one: &&Ranked<'_>| matches!(setting(one).as_str(), "" | DEFAULT);
        let ([best, _, ..], Some(default)) = (&ours[..], ours.iter().find(is_default)) else { continue };
        if is_default(&best) || best.is_level_with(default) {
            as_it_is.push(standing.title.as_str());
            continue;
        }
        let ratio = best.summary.median / default.summary.median;
        better.push(Advice {
            about: &standing.title,
            setting: best.entrant.setting.as_deref().unwrap_or_default(),
            because: format!(
                "{} for {} of the default: {ratio:.2} times as much",
                figure(best, &standing.unit),
                figure(default, &standing.unit),
            ),
        });
    }
    (better, as_it_is)
}

/// Returns the value that the longest bar represents, including its spread.
pub(crate) fn longest(standing: &Standing) -> f64 {
    let highest = leaders(standing).iter().map(|one| one.summary.high).max_by(f64::total_cmp);
    highest.filter(|highest| *highest > 0.0).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Section;

    fn entrant(name: &str, maker: &str, setting: Option<&str>, rounds: [f64; 3]) -> Entrant {
        let [low, median, high] = rounds;
        Entrant {
            name: name.to_owned(),
            maker: maker.to_owned(),
            setting: setting.map(str::to_owned),
            cell: Cell::Figure { summary: Summary { median, low, high }, decimals: 1 },
        }
    }

    fn standing(is_less_better: bool, entrants: Vec<Entrant>) -> Standing {
        let (title, unit) = ("Processor time".to_owned(), "us".to_owned());
        Standing { title, unit, is_less_better, entrants }
    }

    #[test]
    fn the_best_result_of_each_server_is_compared() {
        let entrants = || {
            vec![
                entrant("epoll", "Ringroad", Some("use epoll;"), [2.9, 3.0, 3.1]),
                entrant("nginx, tuned", "nginx", None, [3.9, 4.0, 4.1]),
                entrant("io_uring", "Ringroad", Some("use io_uring;"), [1.9, 2.0, 2.1]),
                entrant("h2o", "H2O", None, [4.05, 4.1, 4.2]),
            ]
        };
        let less = sentence(&standing(true, entrants()));
        assert_eq!(
            less,
            "Ringroad (io_uring) leads with 2.0 us; nginx, tuned 4.0 us (2.00 times as much), H2O 4.1 us (2.05 times \
             as much)."
        );
        let more = sentence(&standing(false, entrants()));
        assert_eq!(
            more,
            "Level within the spread: H2O 4.1 us, nginx, tuned 4.0 us (0.98 of that). Behind: Ringroad (epoll) 3.0 us (0.73 of \
             that)."
        );
    }

    #[test]
    fn failed_results_are_named_and_never_lead() {
        let mut one = standing(true, vec![entrant("nginx", "nginx", None, [1.0, 1.0, 1.0])]);
        let cell = Cell::Broken("it ended".to_owned());
        one.entrants.push(Entrant { cell, ..entrant("epoll", "Ringroad", None, [0.0; 3]) });
        assert_eq!(sentence(&one), "nginx 1.0 us; there is nothing to compare it with.");
        let failed: Vec<_> = broken(&one).map(|(entrant, reason)| (name(entrant), reason)).collect();
        assert_eq!(failed, [("Ringroad (epoll)".to_owned(), "it ended")]);
    }

    #[test]
    fn a_setting_is_recommended_if_it_is_better_than_the_default() {
        let advised = |rounds: [f64; 3]| {
            let entrants = vec![
                entrant("as it comes", "Ringroad", Some(""), [9.0, 10.0, 11.0]),
                entrant("direct", "Ringroad", Some("directio 2k;"), rounds),
                entrant("nginx", "nginx", None, [90.0, 90.0, 90.0]),
            ];
            let standings = vec![standing(false, entrants)];
            let sections = vec![Section { standings, ..Section::default() }];
            let report = Report { sections, ..Report::default() };
            let (better, as_it_is) = advice(&report);
            (better.first().map(|advice| advice.setting.to_owned()), as_it_is.len())
        };
        assert_eq!(advised([19.0, 20.0, 21.0]), (Some("directio 2k;".to_owned()), 0));
        assert_eq!(advised([10.0, 10.5, 12.0]), (None, 1), "the difference may be chance");
        assert_eq!(advised([1.0, 2.0, 3.0]), (None, 1));
    }
}
