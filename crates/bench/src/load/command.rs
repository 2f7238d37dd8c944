//! The command `ringroad bench load`: the load generator on the command line.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum, value_parser};
use io::engine::NetKind;

use super::plan::{Expect, Length, LoopKind, Plan, QuicSettings, Reuse};
use super::show::{to_json, to_text};
use super::target::Target;
use super::tls_client::tls_client;
use crate::failure::Failure;
use crate::method::signals;

/// Options of `bench load`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoadOptions {
    /// URLs of one server, requested in turn; {0-99} in a URL is a random number, {0..99} counts
    #[arg(value_name = "URL")]
    url: Vec<String>,
    /// File with further URLs, one per line
    #[arg(long, value_name = "FILE")]
    urls: Option<PathBuf>,
    /// Number of connections of all threads together
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Processors to use, one pinned thread on each: 0,2 [default: all allowed processors]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Send the requests over HTTP/3, with this number in flight on each connection; certificates are not verified
    #[arg(long, value_name = "STREAMS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "engine", value_parser = value_parser!(u32).range(1..=1000))]
    http3: Option<u32>,
    /// With --http3, percentage of the datagrams that are lost in each direction
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "http3", value_parser = value_parser!(u32).range(..=90))]
    loss: u32,
    /// I/O engine of the connections [default: io_uring where available]
    #[arg(long, value_enum)]
    engine: Option<EngineName>,
    /// Open loop: requests per second, independent of the server's speed; latency counts from the time each request was
    /// due
    // A load below 0.001 per second, one request in a quarter of an hour, would not be visible.
    #[arg(long, value_name = "R", value_parser = between(0.001, 1e9, "requests a second, from 0.001 to 1e9"))]
    rate: Option<f64>,
    /// Time in microseconds within which due requests of an open loop are sent together; latencies may be too long by
    /// as much [default: 400 from 50000 requests per second and thread, else 0]
    #[arg(long, value_name = "US", value_parser = value_parser!(u64).range(..=GRAIN_US_MAX))]
    grain: Option<u64>,
    /// Open a new connection for each request
    #[arg(long)]
    close: bool,
    /// Seconds of the load [default: 10]
    #[arg(long, value_name = "S", value_parser = between(f64::MIN_POSITIVE, 3600.0, "a number of seconds above 0, at most 3600"))]
    seconds: Option<f64>,
    /// Seconds of a load that is not counted, before the counted one [default: 1]
    #[arg(long, value_name = "S", value_parser = between(0.0, 3600.0, "seconds, from 0 to 3600"))]
    warm_up: Option<f64>,
    /// End after this number of requests; no warm-up
    #[arg(long, value_name = "N", conflicts_with_all = ["warm_up", "seconds"], value_parser = value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Timeout in seconds for a connection and for a response
    // With 0, every request would fail.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = between(0.001, 3600.0, "seconds, from 0.001 to 3600"))]
    timeout: f64,
    /// Method of the requests
    #[arg(short = 'X', long, value_name = "NAME", default_value = "GET", value_parser = method)]
    method: String,
    /// Additional header field (may be repeated)
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<String>,
    /// File with the body of each request
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Status code that responses must have [default: 200 to 399]
    #[arg(long, value_name = "CODE", value_parser = value_parser!(u16).range(100..=999))]
    expect_status: Option<u16>,
    /// Length in bytes that response bodies must have
    #[arg(long, value_name = "BYTES")]
    expect_length: Option<u64>,
    /// CRC-32C that response bodies must have, in hexadecimal
    #[arg(long, value_name = "HEX", value_parser = crc32c)]
    expect_crc32c: Option<u32>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Maximum grain in microseconds, 0.1 s: a longer one would delay the end of a load and the detection of timeouts.
const GRAIN_US_MAX: u64 = 100_000;

/// Difference between the seeds of the warm-up and of the counted load.
const WARM_UP_SEED: u64 = 1 << 31;

/// The engines, by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EngineName {
    #[value(name = "uring", alias = "io_uring")]
    Uring,
    Epoll,
}

impl From<EngineName> for NetKind {
    fn from(name: EngineName) -> NetKind {
        match name {
            EngineName::Uring => NetKind::Uring,
            EngineName::Epoll => NetKind::Epoll,
        }
    }
}

/// Returns a parser of numbers within bounds, which rejects NaN.
pub(crate) fn between(
    low: f64,
    high: f64,
    expected: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| expected.to_owned())
    }
}

/// Parses a method: only characters that cannot break the request line, so that each request stays one request.
fn method(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_token { Ok(text.to_owned()) } else { Err("letters, as in GET".to_owned()) }
}

/// Parses one field line. Any field name is accepted, so that servers can be tested with unusual ones.
fn header(text: &str) -> Result<String, String> {
    let is_line = text.split_once(':').is_some_and(|(name, _)| !name.trim().is_empty());
    let is_clean = !text.bytes().any(|byte| byte < b' ' && byte != b'\t');
    if is_line && is_clean { Ok(text.to_owned()) } else { Err("NAME: VALUE on one line".to_owned()) }
}

/// Parses a checksum in hexadecimal, with or without `0x`.
fn crc32c(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let parsed = u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    parsed.ok_or_else(|| "eight hexadecimal digits".to_owned())
}

/// Runs the load that the command line describes, after a warm-up.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = LoadOptions::from_arg_matches(matches)?;
    let plan = options.plan()?;
    // A signal ends the load early; the counts so far are printed.
    signals::watch(Arc::clone(&plan.stop));
    let warm_up = Duration::from_secs_f64(options.warm_up.unwrap_or(1.0));
    if matches!(plan.length, Length::Time(_)) && !warm_up.is_zero() {
        // Other random numbers: the counted load must not request the same files again.
        let seed = plan.seed.wrapping_add(WARM_UP_SEED);
        super::run(&Plan { length: Length::Time(warm_up), seed, ..plan.clone() })?;
        if plan.stop.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
    }
    let outcome = super::run(&plan)?;
    let text =
        if options.json { format!("{:#}\n", to_json(&plan, &outcome)) } else { to_text(&plan, &outcome) };
    // A closed pipe does not fail the measurement.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

impl LoadOptions {
    /// Returns the plan that the options describe.
    fn plan(&self) -> Result<Plan, Failure> {
        if self.grain.is_some() && self.rate.is_none() {
            return Err(Failure::Usage("--grain needs an open loop: set --rate too".to_owned()));
        }
        let list = self.urls.as_deref().map(read).transpose()?.unwrap_or_default();
        let list = String::from_utf8_lossy(&list);
        let listed = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let urls = self.url.iter().map(String::as_str).chain(listed);
        let targets = urls.map(Target::parse).collect::<Result<Vec<_>, _>>()?;
        let is_https = self.http3.is_some();
        if let Some(target) = targets.iter().find(|target| target.is_https != is_https) {
            let text = &target.text;
            return Err(Failure::Usage(match is_https {
                true => format!("URL \"{text}\": HTTP/3 needs https"),
                false => {
                    format!(
                        "URL \"{text}\": https is only supported over HTTP/3: add --http3, or measure http"
                    )
                }
            }));
        }
        let quic = match self.http3 {
            Some(streams) => {
                let tls = tls_client(false, b"h3")?;
                Some(QuicSettings { tls, streams, early_data: false, loss_percent: self.loss })
            }
            None => None,
        };
        Ok(Plan {
            method: self.method.clone(),
            headers: self.header.clone(),
            body: self.body.as_deref().map(read).transpose()?.unwrap_or_default(),
            engine: self.engine.map(NetKind::from),
            connections: self.connections,
            cpus: self.cpus.clone(),
            loop_kind: self.rate.map_or(LoopKind::Closed, |rate| LoopKind::Open { rate }),
            reuse: if self.close { Reuse::PerRequest } else { Reuse::KeepAlive },
            length: match self.requests {
                Some(requests) => Length::Requests(requests),
                None => Length::Time(Duration::from_secs_f64(self.seconds.unwrap_or(10.0))),
            },
            timeout: Duration::from_secs_f64(self.timeout),
            expect: Expect {
                status: self.expect_status,
                length: self.expect_length,
                crc32c: self.expect_crc32c,
            },
            seed: self.seed,
            grain: self.grain.map(Duration::from_micros),
            quic,
            ..Plan::new(targets)
        })
    }
}

/// Reads a file; an error names the file and the problem.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(Failure::file("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lines_are_complete() {
        assert!(header("A: b").is_ok());
        for wrong in ["A", ": b", "A: b\r\nC: d"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
