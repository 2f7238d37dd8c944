//! The load generator: `h2load` of nghttp2.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::H2Case;
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::disturbance::Watch;
use crate::method::process::Launch;
use crate::peers::server::Server;
use crate::peers::tool::Tool;
use crate::report::model::Run;

/// Time that h2load may need beside the duration of its load.
const EXTRA_LIMIT: Duration = Duration::from_secs(60);

/// A gRPC message of 64 bytes with its prefix: the flag "not compressed" and the length.
pub(super) const MESSAGE: [u8; 69] = {
    let mut message = [b'm'; 69];
    (message[0], message[1], message[2], message[3], message[4]) = (0, 0, 0, 0, 64);
    message
};

/// The parameters of h2load for all measurements.
pub(super) struct Load {
    tool: Tool,
    cpus: Vec<usize>,
    directory: PathBuf,
    length: Duration,
}

impl Load {
    pub(super) fn new(tool: Tool, bench: &Bench, cpus: &[usize], length: Duration) -> Result<Load, Failure> {
        let directory = bench.workspace.directory("h2load")?;
        let message = directory.join("message");
        fs::write(&message, MESSAGE).map_err(Failure::file("write", &message))?;
        Ok(Load { tool, cpus: cpus.to_vec(), directory, length })
    }

    /// Runs one measurement of a case; returns h2load's counts and the server's CPU time. The number of requests is
    /// increased until they take at least half of the duration: in its timed mode h2load ends a load before its
    /// connections are established.
    pub(super) fn run(&self, server: &mut Server, port: u16, case: &H2Case) -> Result<Run, Failure> {
        let mut count = u64::from(case.connections * case.streams) * 2;
        loop {
            let run = self.requests(server, port, case, count)?;
            let part = self.length.as_secs_f64() * run.figures["requests_per_second"] / count as f64;
            if part <= 2.0 {
                return Ok(run);
            }
            count = (count as f64 * part.min(10.0)) as u64;
        }
    }

    fn requests(&self, server: &mut Server, port: u16, case: &H2Case, count: u64) -> Result<Run, Failure> {
        server.check_running()?;
        let scheme = if case.is_grpc { "http" } else { "https" };
        let mut arguments = vec![
            format!("--clients={}", case.connections),
            format!("--max-concurrent-streams={}", case.streams),
            format!("--requests={count}"),
            "--threads=1".to_owned(),
        ];
        if case.is_grpc {
            arguments.push("--header=content-type: application/grpc".to_owned());
            arguments.push("--header=te: trailers".to_owned());
            arguments.push(format!("--data={}", self.directory.join("message").display()));
        }
        arguments.push(format!("{scheme}://127.0.0.1:{port}{}", case.path));
        let output = self.directory.join("output");
        let watch = Watch::start();
        let cpu = server.child.cpu_time();
        let (arguments, cpus) = (arguments.into_iter().map(Into::into).collect(), self.cpus.clone());
        let launch = Launch { arguments, cpus, ..Launch::new("h2load", &self.tool.path) };
        let ran = launch.run(&output, self.length + EXTRA_LIMIT);
        let seconds = cpu.until(&server.child.cpu_time());
        let disturbed = watch.end();
        server.check_running()?;
        ran?;
        let text = fs::read_to_string(&output).unwrap_or_default();
        let seconds = seconds.ok_or_else(|| Failure::Other("a process of the server ended".to_owned()))?;
        let run = parse_output(&text, seconds).map_err(Failure::Other)?;
        Ok(Run { disturbed, ..run })
    }
}

/// Parses h2load's output: `finished in 1.00s, 123.45 req/s, 1.20MB/s` and `requests: 10 total, 10 started, 10 done, 10
/// succeeded, 0 failed, 0 errored, 0 timeout`.
fn parse_output(text: &str, server_cpu_seconds: f64) -> Result<Run, String> {
    let line = |start: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(start));
    let counts = line("requests: ").ok_or("h2load counted no requests")?;
    let count = |name: &str| {
        let found = counts.split(',').find_map(|part| part.trim().strip_suffix(name)?.trim().parse().ok());
        found.ok_or_else(|| format!("the output of h2load has no count of requests that {name}"))
    };
    let (succeeded, failed, errored): (f64, f64, f64) =
        (count("succeeded")?, count("failed")?, count("errored")?);
    let rate =
        line("finished in ").and_then(|rest| rest.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok());
    let rate: f64 = rate.ok_or("the output of h2load has no rate")?;
    if succeeded == 0.0 || failed + errored > 0.0 {
        return Err(format!("{succeeded} requests succeeded, {failed} failed, {errored} had an error"));
    }
    Ok(Run::of([
        ("requests", succeeded),
        ("requests_per_second", rate),
        ("server_cpu_seconds", server_cpu_seconds),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed_and_failures_are_not_figures() {
        let text = |failed: u32| {
            format!(
                "starting benchmark...\n\nfinished in 1.00s, 98765.43 req/s, 10.2MB/s\nrequests: 99000 total, 98800 \
                 started, 98765 done, 98765 succeeded, {failed} failed, 0 errored, 0 timeout\nstatus codes: 98765 2xx"
            )
        };
        let run = parse_output(&text(0), 0.5).expect("all of it is there");
        assert_eq!(run.figures["requests"], 98765.0);
        assert_eq!(run.figures["requests_per_second"], 98765.43);
        assert_eq!(run.figures["server_cpu_seconds"], 0.5);
        assert_eq!(
            parse_output(&text(3), 0.5).unwrap_err(),
            "98765 requests succeeded, 3 failed, 0 had an error"
        );
        assert!(parse_output("", 0.5).is_err());
    }
}
