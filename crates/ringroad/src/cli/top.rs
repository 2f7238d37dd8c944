//! `ringroad top`: shows the URLs, clients and locations of a running server with the most requests, bytes, misses or
//! time.
//!
//! It aggregates the same lines as `ringroad log` shows, so the cost for the server is the same. Above 10 000 requests
//! per second it does not receive all lines, and displays the number of the missing ones.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::call::{self, ReceiveResult, lines, shown};
use super::failure::CommandFailure;
use super::log::{filter, server_and_location};
use super::options::{Arguments, RANKS};

/// Number of rows of each table without `-n`.
const ROWS: usize = 8;

/// Interval in seconds without `--every`.
const EVERY: u64 = 2;

/// Maximum number of names in a table; further ones are combined into one row.
const NAMES_MAX: usize = 20_000;

/// Name of the combined row.
const OTHERS: &str = "(others)";

/// Moves the cursor to the top left corner and clears the screen below (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the tables until it is interrupted; once with `-1`.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match show(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("top"),
    }
}

/// Parses the number of an option.
fn number(given: &Arguments, name: &str, default: u64, most: u64) -> Result<u64, CommandFailure> {
    let Some(text) = given.value(name).map(|text| text.to_string_lossy()) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| CommandFailure::misuse(format_args!("\"{text}\" is not a number from 1 to {most}")))
}

/// Parses the options, connects, and aggregates one interval after the other.
fn show(given: &Arguments) -> Result<(), CommandFailure> {
    let rank = given.value("by").map_or("rate".into(), |rank| rank.to_string_lossy());
    if !RANKS.contains(&rank.as_ref()) {
        let ranks = RANKS.join(", ");
        return Err(CommandFailure::misuse(format_args!("\"{rank}\" is not a rank; the ranks are {ranks}")));
    }
    let rows = number(given, "n", ROWS as u64, 1000)? as usize;
    let every = Duration::from_secs(number(given, "every", EVERY, 3600)?);
    let filter = filter(given)?;
    let path = call::socket_path(given)?;
    let (mut connection, _) = call::call(&path, &json!({ "command": "log", "filter": filter }))?;
    let mut out = std::io::stdout().lock();
    let clear = if out.is_terminal() { CLEAR } else { "" };
    loop {
        let (start, mut seen) = (Instant::now(), Seen::default());
        loop {
            match connection.receive(Some(start + every))? {
                ReceiveResult::Packet(packet) => lines(packet).for_each(|line| seen.add(&line)),
                ReceiveResult::Nothing => break,
                ReceiveResult::End => return Err("the server has exited".into()),
            }
            // The interval is checked after each packet too, because under load packets arrive without a pause.
            if start.elapsed() >= every {
                break;
            }
        }
        let text = seen.tables(start.elapsed().as_secs_f64().max(0.001), &rank, rows);
        let is_read = out.write_all(format!("{clear}{text}").as_bytes()).and_then(|()| out.flush()).is_ok();
        if given.has("1") || !is_read {
            return Ok(());
        }
        let _ = writeln!(out);
    }
}

/// Sums over the requests with one name.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: u64,
    /// Bytes of responses, including header sections.
    bytes: u64,
    /// Number of requests of a cached location that were passed to an upstream.
    misses: u64,
    /// Number of responses with status 500 or higher.
    errors: u64,
    /// Time in us from the first byte of each request to the last byte of its response.
    micros: u64,
}

impl Sums {
    /// Adds without an overflow, whatever numbers a worker sends.
    fn add(&mut self, more: Sums) {
        self.requests = self.requests.saturating_add(more.requests);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.misses = self.misses.saturating_add(more.misses);
        self.errors = self.errors.saturating_add(more.errors);
        self.micros = self.micros.saturating_add(more.micros);
    }

    /// Returns the sum by which rows are sorted.
    fn by(&self, rank: &str) -> u64 {
        match rank {
            "bytes" => self.bytes,
            "misses" => self.misses,
            "time" => self.micros,
            _ => self.requests,
        }
    }
}

/// The requests of an interval.
#[derive(Debug, Default)]
struct Seen {
    /// Sums over all requests, independent of the limit on names.
    all: Sums,
    /// Number of requests that the server did not show.
    dropped: u64,
    /// Sums by host and path.
    urls: HashMap<String, Sums>,
    /// Sums by client address.
    clients: HashMap<String, Sums>,
    /// Sums by server and location.
    locations: HashMap<String, Sums>,
}

impl Seen {
    /// Adds the request of a line.
    fn add(&mut self, line: &Value) {
        if let Some(dropped) = line["dropped"].as_u64() {
            self.dropped = self.dropped.saturating_add(dropped);
            return;
        }
        // A worker announces that it has begun.
        if line["watching"].is_u64() {
            return;
        }
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        let sums = Sums {
            requests: 1,
            bytes: line["sent"].as_u64().unwrap_or(0),
            misses: u64::from(matches!(text("cache"), "MISS" | "EXPIRED" | "BYPASS")),
            errors: u64::from(line["code"].as_u64().is_some_and(|code| code >= 500)),
            micros: line["phases"]["last_byte"].as_u64().unwrap_or(0),
        };
        self.all.add(sums);
        // The query is omitted: it differs between requests for the same resource.
        let path = text("uri").split('?').next().unwrap_or_default();
        count(&mut self.urls, format!("{}{path}", text("host")), sums);
        count(&mut self.clients, text("client").to_owned(), sums);
        count(&mut self.locations, server_and_location(text("server"), text("location")), sums);
    }

    /// Formats all tables.
    fn tables(&self, seconds: f64, rank: &str, rows: usize) -> String {
        let mut out = String::new();
        let rate = |count: u64| count as f64 / seconds;
        let _infallible = writeln!(
            out,
            "{:.1} requests/s, {:.1} KiB/s, {:.1} misses/s over {seconds:.1} s, by {rank}; {} requests were not received",
            rate(self.all.requests),
            rate(self.all.bytes) / 1024.0,
            rate(self.all.misses),
            self.dropped,
        );
        for (title, table) in [("URL", &self.urls), ("client", &self.clients), ("location", &self.locations)]
        {
            let _infallible = writeln!(
                out,
                "\n{:>9} {:>11} {:>9} {:>8} {:>9} {:>9}  {title}",
                "req/s", "sent KiB/s", "misses/s", "5xx/s", "time s/s", "mean ms"
            );
            let mut ranked: Vec<_> = table.iter().collect();
            ranked.sort_by(|(a_name, a), (b_name, b)| b.by(rank).cmp(&a.by(rank)).then(a_name.cmp(b_name)));
            for (name, sums) in ranked.into_iter().take(rows) {
                let _infallible = writeln!(
                    out,
                    "{:>9.1} {:>11.1} {:>9.1} {:>8.1} {:>9.3} {:>9.3}  {}",
                    rate(sums.requests),
                    rate(sums.bytes) / 1024.0,
                    rate(sums.misses),
                    rate(sums.errors),
                    rate(sums.micros) / 1e6,
                    sums.micros as f64 / 1e3 / sums.requests.max(1) as f64,
                    shown(name),
                );
            }
        }
        out
    }
}

/// Adds to the sums of a name, or to the combined row if the table is full.
fn count(table: &mut HashMap<String, Sums>, name: String, sums: Sums) {
    let name = if table.len() >= NAMES_MAX && !table.contains_key(&name) { OTHERS.to_owned() } else { name };
    table.entry(name).or_default().add(sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(uri: &str, client: &str, sent: u64, cache: &str, micros: u64) -> Value {
        json!({ "host": "a", "uri": uri, "client": client, "server": "a", "location": "/", "sent": sent,
            "cache": cache, "code": 200, "phases": { "last_byte": micros } })
    }

    #[test]
    fn names_are_ranked_by_the_requested_value() {
        let mut seen = Seen::default();
        for _ in 0..3 {
            seen.add(&line("/many?x=1", "1.1.1.1", 10, "HIT", 5));
        }
        seen.add(&line("/large", "2.2.2.2", 5000, "HIT", 10));
        seen.add(&line("/slow", "1.1.1.1", 10, "MISS", 9000));
        seen.add(&json!({ "dropped": 4 }));
        let first = |rank: &str| {
            let text = seen.tables(2.0, rank, 1);
            let row = text.lines().nth(3).expect("a row").to_owned();
            row.rsplit("  ").next().expect("a name").to_owned()
        };
        assert_eq!(["rate", "bytes", "misses", "time"].map(first), ["a/many", "a/large", "a/slow", "a/slow"]);
        let text = seen.tables(2.0, "rate", 2);
        assert!(
            text.starts_with("2.5 requests/s, 2.5 KiB/s, 0.5 misses/s over 2.0 s, by rate; 4 requests"),
            "{text}"
        );
        assert!(
            text.contains("      2.0         0.0       0.5      0.0     0.005     2.254  1.1.1.1\n"),
            "{text}"
        );
        assert!(text.ends_with("     0.005     1.805  a /\n"), "{text}");
    }

    #[test]
    fn names_are_limited() {
        let mut table = HashMap::new();
        for number in 0..NAMES_MAX + 50 {
            count(&mut table, number.to_string(), Sums { requests: 1, ..Sums::default() });
        }
        assert_eq!((table.len(), table[OTHERS].requests), (NAMES_MAX + 1, 50));
    }
}
