//! The head of a report: which server leads and by how much, and the best settings on this machine. Computed from the
//! rankings of the scenarios.
//!
//! A server has one row per mode. Makers are compared by the best row of each, so that no preselected mode favours one
//! of them. In comparisons of engines, each engine is a separate maker.

use crate::method::stats::Summary;
use crate::report::model::{Cell, RankedResult, Ranking, Report};
use crate::report::text;

/// Relative difference below which two figures without a spread (measured once) are considered equal.
const NOTEWORTHY: f64 = 0.05;

/// The value of `use` that applies by default if the kernel permits it: this directive alone is equivalent to the
/// default.
const DEFAULT: &str = "use io_uring;";

#[derive(Clone, Copy)]
pub(crate) struct Ranked<'a> {
    pub(crate) ranked_result: &'a RankedResult,
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

/// Returns the figures of the selected results, the best first.
fn ranked<'a>(ranking: &'a Ranking, is_one: impl Fn(&RankedResult) -> bool) -> Vec<Ranked<'a>> {
    let figure = |ranked_result: &'a RankedResult| match ranked_result.cell {
        Cell::Figure { summary, decimals } => Some(Ranked { ranked_result, summary, decimals }),
        _ => None,
    };
    let mut found: Vec<Ranked<'_>> =
        ranking.results.iter().filter(|ranked_result| is_one(ranked_result)).filter_map(figure).collect();
    found.sort_by(|one, other| one.summary.median.total_cmp(&other.summary.median));
    if !ranking.is_less_better {
        found.reverse();
    }
    found
}

/// Returns the best row of each maker, the leader first.
pub(crate) fn leaders(ranking: &Ranking) -> Vec<Ranked<'_>> {
    let mut best: Vec<Ranked<'_>> = Vec::new();
    for one in ranked(ranking, |_| true) {
        let maker = &one.ranked_result.maker;
        if maker.is_empty() || best.iter().all(|other| other.ranked_result.maker != *maker) {
            best.push(one);
        }
    }
    best
}

/// Returns the results whose measurement failed, with the reason.
pub(crate) fn broken(ranking: &Ranking) -> impl Iterator<Item = (&RankedResult, &str)> {
    ranking.results.iter().filter_map(|ranked_result| match &ranked_result.cell {
        Cell::Broken(reason) => Some((ranked_result, reason.as_str())),
        _ => None,
    })
}

/// Returns the maker and its mode: `nginx, aio threads`, `Ringroad (epoll)`.
pub(crate) fn name(ranked_result: &RankedResult) -> String {
    let RankedResult { name, maker, .. } = ranked_result;
    match name.get(..maker.len()) {
        Some(start) if start.eq_ignore_ascii_case(maker) => format!("{maker}{}", &name[maker.len()..]),
        _ => format!("{maker} ({name})"),
    }
}

fn figure(one: &Ranked<'_>, unit: &str) -> String {
    let number = text::number(one.summary.median, one.decimals);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Returns a sentence with the best row of each server, and the distance of each from the leader.
pub(crate) fn sentence(ranking: &Ranking) -> String {
    let named = |one: &Ranked<'_>| format!("{} {}", name(one.ranked_result), figure(one, &ranking.unit));
    let ranked = leaders(ranking);
    let (leader, others) = match &ranked[..] {
        [] => return "Nothing was measured.".to_owned(),
        [only] => return format!("{}; nothing else has a result.", named(only)),
        [leader, others @ ..] => (leader, others),
    };
    let share = if ranking.is_less_better { "times as much" } else { "of that" };
    let compared = others.iter().map(|other| {
        let ratio = other.summary.median / leader.summary.median;
        let distance = match other.is_level_with(leader) {
            true => "equal within the spread".to_owned(),
            false => format!("{ratio:.2} {share}"),
        };
        format!("{} ({distance})", named(other))
    });
    format!("Best: {}; {}.", named(leader), compared.collect::<Vec<_>>().join(", "))
}

/// Where Ringroad stands in the comparisons with other servers, each with its ratio to the best of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) ahead: Vec<String>,
    /// Within the spread.
    pub(crate) equal: Vec<String>,
    pub(crate) behind: Vec<String>,
}

/// Returns the standing over all rankings with a peer.
pub(crate) fn standing(report: &Report) -> Standing {
    let mut standing = Standing::default();
    for ranking in report.sections.iter().flat_map(|section| &section.rankings) {
        let leaders = leaders(ranking);
        let is_ours = |one: &&Ranked<'_>| one.ranked_result.setting.is_some();
        let ours = leaders.iter().position(|one| is_ours(&one));
        let peer = leaders.iter().position(|one| !is_ours(&one) && !one.ranked_result.maker.is_empty());
        let (Some(ours), Some(peer)) = (ours, peer) else { continue };
        let (one, other) = (&leaders[ours], &leaders[peer]);
        let ratio = one.summary.median / other.summary.median;
        let text = format!("{}: {ratio:.2} times that of {}", ranking.title, name(other.ranked_result));
        match (one.is_level_with(other), ours < peer) {
            (true, _) => standing.equal.push(text),
            (false, true) => standing.ahead.push(text),
            (false, false) => standing.behind.push(text),
        }
    }
    standing
}

/// A setting of Ringroad that is faster on this machine than the default.
pub(crate) struct Advice<'a> {
    pub(crate) about: &'a str,
    pub(crate) setting: &'a str,
    pub(crate) because: String,
}

/// Returns the recommended settings on this machine, and the cases for which the default is best.
pub(crate) fn advice(report: &Report) -> (Vec<Advice<'_>>, Vec<&str>) {
    let (mut better, mut as_it_is) = (Vec::new(), Vec::new());
    // An instant run yields no usable figures.
    if report.scale == "instant" {
        return (better, as_it_is);
    }
    for ranking in report.sections.iter().flat_map(|section| &section.rankings) {
        let ours = ranked(ranking, |ranked_result| ranked_result.setting.is_some());
        let setting = |one: &Ranked<'_>| one.ranked_result.setting.clone().unwrap_or_default();
        let is_default = |one: &&Ranked<'_>| matches!(setting(one).as_str(), "" | DEFAULT);
        let ([best, _, ..], Some(default)) = (&ours[..], ours.iter().find(is_default)) else { continue };
        if is_default(&best) || best.is_level_with(default) {
            as_it_is.push(ranking.title.as_str());
            continue;
        }
        let ratio = best.summary.median / default.summary.median;
        better.push(Advice {
            about: &ranking.title,
            setting: best.ranked_result.setting.as_deref().unwrap_or_default(),
            because: format!(
                "{} for {} of the default: {ratio:.2} times as much",
                figure(best, &ranking.unit),
                figure(default, &ranking.unit),
            ),
        });
    }
    (better, as_it_is)
}

/// Returns the value that the longest bar represents, including its spread.
pub(crate) fn longest(ranking: &Ranking) -> f64 {
    let highest = leaders(ranking).iter().map(|one| one.summary.high).max_by(f64::total_cmp);
    highest.filter(|highest| *highest > 0.0).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Section;

    fn ranked_result(name: &str, maker: &str, setting: Option<&str>, rounds: [f64; 3]) -> RankedResult {
        let [low, median, high] = rounds;
        RankedResult {
            name: name.to_owned(),
            maker: maker.to_owned(),
            setting: setting.map(str::to_owned),
            cell: Cell::Figure { summary: Summary { median, low, high }, decimals: 1 },
        }
    }

    fn ranking(is_less_better: bool, results: Vec<RankedResult>) -> Ranking {
        let (title, unit) = ("Processor time".to_owned(), "us".to_owned());
        Ranking { title, unit, is_less_better, results }
    }

    #[test]
    fn the_best_result_of_each_server_is_compared() {
        let results = || {
            vec![
                ranked_result("epoll", "Ringroad", Some("use epoll;"), [2.9, 3.0, 3.1]),
                ranked_result("nginx, tuned", "nginx", None, [3.9, 4.0, 4.1]),
                ranked_result("io_uring", "Ringroad", Some("use io_uring;"), [1.9, 2.0, 2.1]),
                ranked_result("h2o", "H2O", None, [4.05, 4.1, 4.2]),
            ]
        };
        let less = sentence(&ranking(true, results()));
        assert_eq!(
            less,
            "Best: Ringroad (io_uring) 2.0 us; nginx, tuned 4.0 us (2.00 times as much), H2O 4.1 us (2.05 times as \
             much)."
        );
        let more = sentence(&ranking(false, results()));
        assert_eq!(
            more,
            "Best: H2O 4.1 us; nginx, tuned 4.0 us (equal within the spread), Ringroad (epoll) 3.0 us (0.73 of that)."
        );
    }

    #[test]
    fn the_standing_compares_with_the_best_peer() {
        let peer = || ranked_result("nginx", "nginx", None, [9.0, 10.0, 11.0]);
        let slow = || ranked_result("h2o", "H2O", None, [90.0, 90.0, 91.0]);
        let of = |rounds| {
            let ours = ranked_result("io_uring", "Ringroad", Some("use io_uring;"), rounds);
            ranking(true, vec![slow(), ours, peer()])
        };
        let rankings = vec![of([4.0, 5.0, 6.0]), of([9.5, 10.5, 12.0]), of([14.0, 15.0, 16.0])];
        let report =
            Report { sections: vec![Section { rankings, ..Section::default() }], ..Report::default() };
        let text = |ratio: &str| vec![format!("Processor time: {ratio} times that of nginx")];
        let expected = Standing { ahead: text("0.50"), equal: text("1.05"), behind: text("1.50") };
        assert_eq!(standing(&report), expected);
    }

    #[test]
    fn failed_results_are_named_and_never_lead() {
        let mut one = ranking(true, vec![ranked_result("nginx", "nginx", None, [1.0, 1.0, 1.0])]);
        let cell = Cell::Broken("it ended".to_owned());
        one.results.push(RankedResult { cell, ..ranked_result("epoll", "Ringroad", None, [0.0; 3]) });
        assert_eq!(sentence(&one), "nginx 1.0 us; nothing else has a result.");
        let failed: Vec<_> =
            broken(&one).map(|(ranked_result, reason)| (name(ranked_result), reason)).collect();
        assert_eq!(failed, [("Ringroad (epoll)".to_owned(), "it ended")]);
    }

    #[test]
    fn a_setting_is_recommended_if_it_is_better_than_the_default() {
        let advised = |rounds: [f64; 3]| {
            let results = vec![
                ranked_result("as it comes", "Ringroad", Some(""), [9.0, 10.0, 11.0]),
                ranked_result("direct", "Ringroad", Some("directio 2k;"), rounds),
                ranked_result("nginx", "nginx", None, [90.0, 90.0, 90.0]),
            ];
            let rankings = vec![ranking(false, results)];
            let sections = vec![Section { rankings, ..Section::default() }];
            let report = Report { sections, ..Report::default() };
            let (better, as_it_is) = advice(&report);
            (better.first().map(|advice| advice.setting.to_owned()), as_it_is.len())
        };
        assert_eq!(advised([19.0, 20.0, 21.0]), (Some("directio 2k;".to_owned()), 0));
        assert_eq!(advised([10.0, 10.5, 12.0]), (None, 1), "the difference may be chance");
        assert_eq!(advised([1.0, 2.0, 3.0]), (None, 1));
    }
}
