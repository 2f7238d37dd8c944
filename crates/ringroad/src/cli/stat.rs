//! `ringroad stat [-1] [URL]`: shows metrics of a running server in a terminal, updated every second. URL is the address
//! of its `dashboard`; without it, that of the first location with `dashboard` in the configuration.
//!
//! Rates and percentiles cover the time since the previous query. The first display, and that of `-1`, covers the time
//! since the start of the server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::failure::CommandFailure;
use super::fetch::{self, Asked};
use super::options::Arguments;
use super::output::{print, try_print};

/// Maximum time of a query.
const QUERY_TIME: Duration = Duration::from_secs(5);

/// Interval between two queries.
const PAUSE: Duration = Duration::from_secs(1);

/// Moves the cursor to the top left corner and clears the screen (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the metrics until the command is interrupted.
#[expect(clippy::disallowed_methods, reason = "the program has no other task between two queries")]
pub(super) fn run(given: &Arguments) -> ExitCode {
    let once = given.has("1");
    let asked = match Asked::of(given, &[("dashboard", "")], QUERY_TIME) {
        Ok(asked) => asked,
        Err(failure) => return failure.report("stat"),
    };
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before = Value::Null;
    loop {
        let now = match snapshot(&asked) {
            Ok(now) => now,
            Err(reason) => return CommandFailure::from(format!("{}: {reason}", asked.url)).report("stat"),
        };
        let text = table(&now, &before);
        if once {
            print(text);
            return ExitCode::SUCCESS;
        }
        if try_print(format!("{clear}{text}\n")).is_err() {
            return ExitCode::SUCCESS;
        }
        before = now;
        std::thread::sleep(PAUSE);
    }
}

/// Queries the metrics.
fn snapshot(asked: &Asked) -> Result<Value, String> {
    let remedy = "URL must be a location with \"dashboard;\" of a running server";
    let reply = fetch::get(asked, "?snapshot").map_err(|reason| format!("{reason}; {remedy}"))?;
    if reply.status != 200 {
        let status = reply.status;
        let refusal = asked.refusal(status);
        return Err(match refusal.as_str() {
            "" => format!("status {status}; URL must be a location with \"dashboard;\""),
            refusal => format!("status {status}{refusal}"),
        });
    }
    serde_json::from_slice(&reply.body).map_err(|_| "the location has no \"dashboard;\"".to_owned())
}

/// Number of times in each histogram bucket.
type Times = BTreeMap<u64, u64>;

/// Formats the metrics as lines.
fn table(now: &Value, before: &Value) -> String {
    // Values from before a restart of the server cannot be compared.
    let before = if before["started"] == now["started"] { before } else { &Value::Null };
    let float = |value: &Value| value.as_f64().unwrap_or(0.0);
    let from = if before.is_null() { float(&now["started"]) } else { float(&before["now"]) };
    let seconds = (float(&now["now"]) - from).max(0.001);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let requests = rate(whole(&now["requests"]["total"]), whole(&before["requests"]["total"]));
    let connections = &now["connections"];
    let mut text = format!(
        "ringroad {}, up {} s, configuration {}: {requests:.1} requests/s, {} connections, {} idle\n",
        now["version"].as_str().unwrap_or_default(),
        (float(&now["now"]) - float(&now["started"])).round(),
        whole(&now["generation"]),
        whole(&connections["active"]) + whole(&connections["idle"]),
        whole(&connections["idle"]),
    );
    if now["reloads"]["is_last_refused"] == true {
        text.push_str("The last reload was refused: see the error log, or ringroad -t\n");
    }
    let _ = writeln!(
        text,
        "\n{:>9} {:>8} {:>8} {:>9} {:>9} {:>11}  location",
        "req/s", "4xx/s", "5xx/s", "p50 ms", "p99 ms", "sent KiB/s"
    );
    for zone in items(&now["zones"]) {
        let same = |old: &&Value| old["server"] == zone["server"] && old["location"] == zone["location"];
        let old = items(&before["zones"]).find(same).unwrap_or(&Value::Null);
        let of = |read: &dyn Fn(&Value) -> u64| rate(read(zone), read(old));
        let times = since(&zone["times"], &old["times"]);
        let _ = writeln!(
            text,
            "{:>9.1} {:>8.1} {:>8.1} {:>9} {:>9} {:>11.1}  {} {}",
            of(&|zone| whole(&zone["requests"])),
            of(&|zone| class(&zone["codes"], '4')),
            of(&|zone| class(&zone["codes"], '5')),
            quantile(&times, 0.5),
            quantile(&times, 0.99),
            of(&|zone| whole(&zone["sent"])) / 1024.0,
            zone["server"].as_str().unwrap_or_default(),
            zone["location"].as_str().unwrap_or_default(),
        );
    }
    text.push_str(&upstreams(now, before, &rate));
    text
}

/// Formats the servers of upstream groups as lines.
fn upstreams(now: &Value, before: &Value, rate: &dyn Fn(u64, u64) -> f64) -> String {
    let mut text = String::new();
    for peer in items(&now["peers"]) {
        if text.is_empty() {
            let _ = writeln!(
                text,
                "\n{:>9} {:>8} {:>8} {:>9} {:>9}  server",
                "req/s", "active", "fails", "p50 ms", "state"
            );
        }
        let same = |old: &&Value| old["upstream"] == peer["upstream"] && old["id"] == peer["id"];
        let old = items(&before["peers"]).find(same).unwrap_or(&Value::Null);
        let _ = writeln!(
            text,
            "{:>9.1} {:>8} {:>8} {:>9} {:>9}  {} {}",
            rate(whole(&peer["requests"]), whole(&old["requests"])),
            whole(&peer["active"]),
            whole(&peer["fails"]),
            quantile(&since(&peer["times"], &old["times"]), 0.5),
            peer["state"].as_str().unwrap_or_default(),
            peer["upstream"].as_str().unwrap_or_default(),
            peer["server"].as_str().unwrap_or_default(),
        );
    }
    text
}

/// Returns the elements of a list; none if the value is not a list.
fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns a number; 0 if the value is not a number.
fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Returns the number of responses with statuses of a class.
fn class(codes: &Value, first: char) -> u64 {
    let codes = codes.as_object().into_iter().flatten();
    codes.filter(|(code, _)| code.starts_with(first)).map(|(_, count)| whole(count)).sum()
}

/// Returns the times recorded since the previous query.
fn since(now: &Value, before: &Value) -> Times {
    let pairs =
        |times: &Value| -> Times { items(times).map(|pair| (whole(&pair[0]), whole(&pair[1]))).collect() };
    let (mut times, old) = (pairs(now), pairs(before));
    for (index, count) in old {
        if let Some(now) = times.get_mut(&index) {
            *now = now.saturating_sub(count);
        }
    }
    times
}

/// Returns the lower bound of a bucket in ms. Bucket 0 begins at 0 and bucket 1 at 16 us; then there are four buckets
/// per octave.
fn begin_ms(index: u64) -> f64 {
    match index.checked_sub(1) {
        None => 0.0,
        Some(index) => {
            let octave = i32::try_from(index / 4).unwrap_or(i32::MAX);
            0.016 * 2_f64.powi(octave) * (1.0 + (index % 4) as f64 / 4.0)
        }
    }
}

/// Returns a quantile in ms: the middle of the bucket that contains it.
fn quantile(times: &Times, share: f64) -> String {
    let rank = share * times.values().sum::<u64>() as f64;
    let mut seen = 0;
    let found = times.iter().find(|(_, count)| {
        seen += **count;
        **count > 0 && seen as f64 >= rank
    });
    match found {
        None => "-".to_owned(),
        Some((0, _)) => "<0.016".to_owned(),
        Some((index, _)) => format!("{:.3}", f64::midpoint(begin_ms(*index), begin_ms(index + 1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(now: f64, requests: u64, times: &Value) -> Value {
        json!({
            "version": "1", "started": 100.0, "now": now, "generation": 2,
            "requests": { "total": requests }, "connections": { "active": 1, "idle": 2 },
            "zones": [{
                "server": "a", "location": "/x", "requests": requests, "codes": { "200": 1, "404": requests, "502": 2 },
                "sent": requests * 1024, "times": times,
            }],
            "peers": [{ "upstream": "u", "id": 1, "server": "127.0.0.1:1", "state": "up", "requests": requests,
                "active": 3, "fails": 4, "times": [] }],
        })
    }

    #[test]
    fn rates_cover_the_time_since_the_previous_query() {
        let first = snapshot(110.0, 20, &json!([[1, 20]]));
        let second = snapshot(112.0, 30, &json!([[1, 20], [5, 9], [0, 1]]));
        let since_start = table(&first, &Value::Null);
        assert!(
            since_start
                .starts_with("ringroad 1, up 10 s, configuration 2: 2.0 requests/s, 3 connections, 2 idle\n")
        );
        assert!(
            since_start.contains("      2.0      2.0      0.2     0.018     0.018         2.0  a /x\n"),
            "{since_start}"
        );
        let later = table(&second, &first);
        assert!(
            later.contains("      5.0      5.0      0.0     0.036     0.036         5.0  a /x\n"),
            "{later}"
        );
        assert!(
            later.ends_with("      5.0        3        4         -        up  u 127.0.0.1:1\n"),
            "{later}"
        );
        let mut refused = first.clone();
        refused["reloads"] = json!({ "is_last_refused": true });
        assert_eq!(
            table(&refused, &Value::Null).lines().nth(1),
            Some("The last reload was refused: see the error log, or ringroad -t")
        );
        assert_eq!(since_start.lines().nth(1), Some(""));
        let restarted = json!({ "started": 1.0, "now": 2.0 });
        assert_eq!(table(&first, &restarted), since_start, "another process");
    }

    #[test]
    fn quantiles_are_in_the_middle_of_a_bucket() {
        let times: Times = [(0, 1), (1, 1), (9, 2)].into();
        assert_eq!([0.2, 0.5, 0.99].map(|share| quantile(&times, share)), ["<0.016", "0.018", "0.072"]);
        assert_eq!(quantile(&Times::new(), 0.5), "-");
    }
}
