//! `cargo xtask aims REPORT.json`: compares the results of a `ringroad bench` run with the project's aims.
//!
//! `bench/aims.json` lists the aims. An aim is a figure of a server in one case of a scenario, optionally divided by a
//! second figure, and a bound. An entry of `groups` is a name for several servers, of which the best one counts: by the
//! aim's figure, or by the figure that `best_by` names. Ratios are computed for each round. The bound is compared with
//! the median of the rounds, but `not_above` with the lowest round. An aim is omitted if its scenario is not in the
//! report.

use std::path::Path;

use serde_json::Value;

use crate::{Failure, workspace};

/// Path of the file with the aims.
const FILE: &str = "bench/aims.json";

/// The figures of the file: name, figure of a measurement, its divisor, and its factor. Some figures have different
/// names in different scenarios.
const FIGURES: &[(&str, &str, &str, f64)] = &[
    ("cpu", "server_cpu_us_per_request", "", 1.0),
    ("cpu", "server_cpu_seconds", "requests", 1e6),
    ("cpuperbyte", "server_cpu_seconds", "body_bytes", 1e12),
    ("calls", "system_calls_per_request", "", 1.0),
    ("rate", "requests_per_second", "", 1.0),
    ("rate", "operations", "seconds", 1.0),
    ("bandwidth", "body_bytes", "seconds", 1.0),
    ("bandwidth", "bytes", "seconds", 1.0),
    ("p50", "p50_us", "", 1.0),
    ("p50", "p50_ms", "", 1e3),
    ("p99", "p99_us", "", 1.0),
    ("p99", "p99_ms", "", 1e3),
    ("p999", "p99_9_us", "", 1.0),
    ("p999", "p99_9_ms", "", 1e3),
    ("idlememory", "bytes_per_idle_connection", "", 1.0),
    ("written", "written_bytes_per_stored_byte", "", 1.0),
];

/// Prints a line for each aim whose scenario is in the report, missed aims first.
pub(crate) fn compare(report: &str) -> Result<(), Failure> {
    let aims = parse(FILE, &workspace::read(FILE)?)?;
    let text = std::fs::read_to_string(report)
        .map_err(|error| Failure::File { path: Path::new(report).to_owned(), error })?;
    let mut lines = judge(&aims, &parse("the report", &text)?);
    lines.sort_by_key(|(standing, _)| *standing);
    for (standing, line) in &lines {
        println!("{:12} {line}", format!("{standing:?}").to_lowercase());
    }
    let count = |wanted| lines.iter().filter(|(standing, _)| *standing == wanted).count();
    let [missed, met, unmeasured] = [AimResult::Missed, AimResult::Met, AimResult::Unmeasured].map(count);
    println!("aims: {met} met, {missed} missed, {unmeasured} not measured");
    Ok(())
}

fn parse(what: &'static str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Format { what, detail: error.to_string() })
}

/// Result of an aim, in the order of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AimResult {
    Missed,
    Met,
    Unmeasured,
}

/// Returns the result and a line for each aim of a scenario in the report.
fn judge(aims: &Value, report: &Value) -> Vec<(AimResult, String)> {
    let ran = |aim: &&Value| list(&report["sections"]).iter().any(|one| one["scenario"] == aim["scenario"]);
    list(&aims["aims"]).iter().filter(ran).map(|aim| judge_one(aim, &aims["groups"], report)).collect()
}

fn judge_one(aim: &Value, groups: &Value, report: &Value) -> (AimResult, String) {
    let figure = text(&aim["figure"]);
    let best_by = aim["best_by"].as_str().unwrap_or(figure);
    let find = |pick: &Value| {
        // For members that `pick` omits, those of the aim apply.
        let part = |name: &str| pick[name].as_str().unwrap_or_else(|| text(&aim[name]));
        let who = pick["who"].as_str().or(aim["who"].as_str()).unwrap_or("server");
        best(report, part("scenario"), who, &servers(groups, part("servers")), part("at"), figure, best_by)
    };
    let ours = find(aim);
    let theirs = aim.get("of").map(find);
    let (name, figures) = match (&ours, &theirs) {
        (Some((name, ours)), None) => (name.clone(), ours.iter().map(|(_, figure)| *figure).collect()),
        (Some((name, ours)), Some(Some((other, theirs)))) => {
            let is_one_run = aim["of"]["scenario"].is_null();
            (format!("{name} of {other}"), ratios(ours, theirs, is_one_run))
        }
        _ => (text(&aim["servers"]).to_owned(), Vec::new()),
    };
    let (standing, measured) = match median(figures.clone()) {
        None => (AimResult::Unmeasured, "no figure".to_owned()),
        Some(median) => {
            let low = figures.into_iter().fold(f64::INFINITY, f64::min);
            let bound = |name: &str| aim[name].as_f64();
            let is_met = bound("at_most").is_some_and(|bound| median <= bound)
                || bound("at_least").is_some_and(|bound| median >= bound)
                || bound("not_above").is_some_and(|bound| low <= bound);
            (if is_met { AimResult::Met } else { AimResult::Missed }, format!("{median:.3}"))
        }
    };
    let bounds = ["at_most", "at_least", "not_above"];
    let bound =
        bounds.iter().find_map(|name| Some(format!("{} {}", name.replace('_', " "), aim.get(*name)?)));
    let (row, case) = (text(&aim["row"]), text(&aim["case"]));
    (standing, format!("{measured}, {}: {row}, {case}: {figure}, {name}", bound.unwrap_or_default()))
}

/// The server with the best figures in a case, and its figures by round.
type Found = (String, Vec<(String, f64)>);

fn best(
    report: &Value,
    scenario: &str,
    who: &str,
    servers: &[String],
    at: &str,
    figure: &str,
    best_by: &str,
) -> Option<Found> {
    let sections = list(&report["sections"]).iter().filter(|section| section["scenario"] == scenario);
    let runs: Vec<&Value> = sections.flat_map(|section| list(&section["runs"])).collect();
    let measured = servers.iter().filter_map(|server| {
        let runs: Vec<&&Value> =
            runs.iter().filter(|run| run["labels"][who] == **server && holds(&run["labels"], at)).collect();
        let rank = median(runs.iter().filter_map(|run| value(run, best_by)).collect())?;
        let by_round = runs
            .iter()
            .filter_map(|run| Some((text(&run["labels"]["round"]).to_owned(), value(run, figure)?)))
            .collect();
        Some((rank, (server.clone(), by_round)))
    });
    let more_is_better = matches!(best_by, "rate" | "bandwidth");
    let sign = if more_is_better { -1.0 } else { 1.0 };
    measured.min_by(|(a, _), (b, _)| (sign * a).total_cmp(&(sign * b))).map(|(_, found)| found)
}

/// Whether labels match `a=x; b!=y`.
fn holds(labels: &Value, at: &str) -> bool {
    at.split("; ").filter(|part| !part.is_empty()).all(|part| match part.split_once("!=") {
        Some((name, value)) => labels[name] != value,
        None => part.split_once('=').is_some_and(|(name, value)| labels[name] == value),
    })
}

/// Returns a figure of one measurement.
fn value(run: &Value, figure: &str) -> Option<f64> {
    let of = |name: &str| run["figures"][name].as_f64();
    let mut known = FIGURES.iter().filter(|(name, ..)| *name == figure);
    let value = known.find_map(|(_, above, below, scale)| {
        let below = if below.is_empty() { 1.0 } else { of(below)? };
        Some(of(above)? / below * scale)
    });
    value.filter(|value| value.is_finite())
}

/// Returns a ratio for each round of `ours`: to the same round of `theirs` if both figures are of one run, else to the
/// median of `theirs`.
fn ratios(ours: &[(String, f64)], theirs: &[(String, f64)], is_one_run: bool) -> Vec<f64> {
    let middle = median(theirs.iter().map(|(_, figure)| *figure).collect()).unwrap_or(f64::NAN);
    let ratio = |(round, figure): &(String, f64)| {
        let same = theirs.iter().find(|(other, _)| is_one_run && other == round);
        figure / same.map_or(middle, |(_, figure)| *figure)
    };
    ours.iter().map(ratio).filter(|ratio| ratio.is_finite()).collect()
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    let upper = *figures.get(middle)?;
    Some(if figures.len() % 2 == 1 { upper } else { f64::midpoint(figures[middle - 1], upper) })
}

/// Returns the servers of a group, or a single server.
fn servers(groups: &Value, name: &str) -> Vec<String> {
    match groups[name].as_array() {
        Some(group) => group.iter().map(|server| text(server).to_owned()).collect(),
        None => vec![name.to_owned()],
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(server: &str, connections: &str, round: &str, us: f64) -> String {
        format!(
            r#"{{"labels":{{"server":"{server}","connections kept":"long","workers":"1","connections":"{connections}",
            "round":"{round}"}},"figures":{{"requests":1000.0,"server_cpu_seconds":{}}}}}"#,
            us / 1e3
        )
    }

    fn judged(runs: &[String]) -> Vec<(AimResult, String)> {
        let report = format!(r#"{{"sections":[{{"scenario":"http","runs":[{}]}}]}}"#, runs.join(","));
        let aims = workspace::read(FILE).expect("the aims are there");
        judge(&parse(FILE, &aims).expect("JSON"), &parse("the report", &report).expect("JSON"))
    }

    fn of(judged: &[(AimResult, String)], part: &str) -> AimResult {
        judged
            .iter()
            .find(|(_, line)| line.contains(part))
            .unwrap_or_else(|| panic!("no {part}: {judged:?}"))
            .0
    }

    #[test]
    fn a_ratio_is_computed_per_round_and_compared_with_its_bound() {
        let judged = judged(&[
            run("io_uring", "100", "0", 3.0),
            run("nginx", "100", "0", 6.0),
            // A slow round for both servers.
            run("io_uring", "100", "1", 7.0),
            run("nginx", "100", "1", 10.0),
            run("io_uring", "500", "0", 4.0),
            run("nginx", "500", "0", 5.0),
        ]);
        let row = |connections: &str| format!("kept connections, {connections} connections: cpu");
        assert_eq!(of(&judged, &row("100")), AimResult::Met);
        assert_eq!(of(&judged, &row("500")), AimResult::Missed);
        assert_eq!(of(&judged, &row("1000")), AimResult::Unmeasured);
        assert!(judged.iter().all(|(_, line)| !line.contains("cold files")), "other scenarios were not run");
    }

    #[test]
    fn every_aim_has_a_bound_and_a_known_figure() {
        let aims = workspace::read(FILE).expect("the aims are there");
        let aims = parse(FILE, &aims).expect("JSON");
        for aim in list(&aims["aims"]) {
            let bounds = ["at_most", "at_least", "not_above"].iter().filter(|name| aim[**name].is_number());
            assert_eq!(bounds.count(), 1, "{aim}");
            for name in ["figure", "best_by"].iter().filter_map(|name| aim[*name].as_str()) {
                assert!(FIGURES.iter().any(|(known, ..)| *known == name), "{aim}");
            }
        }
    }

    #[test]
    fn the_best_mode_represents_a_server() {
        let mode = |server: &str, rate: f64| {
            format!(
                r#"{{"labels":{{"server":"{server}","round":"0"}},"figures":{{"requests_per_second":{rate}}}}}"#
            )
        };
        let report = format!(
            r#"{{"sections":[{{"scenario":"cold","runs":[{},{}]}}]}}"#,
            mode("slow", 1.0),
            mode("fast", 2.0)
        );
        let report = parse("the report", &report).expect("JSON");
        let servers = ["slow".to_owned(), "fast".to_owned()];
        let found = best(&report, "cold", "server", &servers, "memory!=all", "rate", "rate");
        assert_eq!(found.map(|(name, _)| name), Some("fast".to_owned()));
    }
}
