//! `ringroad bench load --against-wrk`: what a request costs this generator, and what it costs wrk.
//!
//! The two take turns against the same server: wrk as fast as it can, then this generator at the rate that wrk had. Each
//! is a process of its own on the same processors, and its processor time is what the kernel counted for that process
//! (getrusage(2)), from its start to its end, so that nobody's own account is believed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use serde::Serialize;

use super::plan::{Length, Pace, Plan, Reuse};
use super::target::Piece;
use crate::failure::Failure;
use crate::method::namespace::congestion_control;
use crate::method::stats::Summary;
use crate::peers::tool;

/// One turn of each.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pair {
    wrk: Cost,
    ringroad: Cost,
}

/// What one run answered and cost.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    answers: f64,
    answers_per_second: f64,
    cpu_us_per_answer: f64,
}

/// All pairs, and what the comparison depends on.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    url: String,
    connections: u32,
    seconds: f64,
    processors: Vec<usize>,
    wrk: String,
    kernel: String,
    congestion_control: String,
    pairs: Vec<Pair>,
    /// Of the ratios of processor time per answer, this generator's to wrk's, pair by pair.
    ratio: Option<Summary>,
}

/// Compares the two on a plan that both can carry out, in so many pairs.
pub(crate) fn compare(plan: &Plan, cpus: &[usize], pairs: u32) -> Result<Comparison, Failure> {
    let (url, seconds) = common_ground(plan)?;
    let wrk = tool::in_path("wrk")
        .ok_or_else(|| Failure::Other("wrk is not installed (apt-get install wrk)".to_owned()))?;
    let ringroad = std::env::current_exe()
        .map_err(Failure::file("find this program at", Path::new("/proc/self/exe")))?;
    let measure = || -> Result<Pair, Failure> {
        let wrk = run_wrk(&wrk, plan, cpus, seconds, &url)?;
        let ringroad = run_ringroad(&ringroad, plan, cpus, (seconds, wrk.answers_per_second), &url)?;
        Ok(Pair { wrk, ringroad })
    };
    let pairs = (0..pairs).map(|_| measure()).collect::<Result<Vec<Pair>, Failure>>()?;
    let costs = |cost: fn(&Pair) -> Cost| -> Vec<f64> {
        pairs.iter().map(|pair| cost(pair).cpu_us_per_answer).collect()
    };
    let ratio = Summary::of_ratios(&costs(|pair| pair.ringroad), &costs(|pair| pair.wrk));
    let uname = rustix::system::uname();
    Ok(Comparison {
        url,
        connections: plan.connections,
        seconds,
        processors: cpus.to_vec(),
        wrk: version(&wrk),
        kernel: format!("Linux {}", uname.release().to_string_lossy()),
        congestion_control: congestion_control(),
        pairs,
        ratio,
    })
}

/// The URL and the length, where wrk can do what the plan says.
fn common_ground(plan: &Plan) -> Result<(String, f64), Failure> {
    let wrong = |what: &str| Failure::Usage(format!("--against-wrk: {what}"));
    let [target] = &plan.targets[..] else { return Err(wrong("one URL, since wrk takes one")) };
    if target.pieces.iter().any(|piece| matches!(piece, Piece::Number { .. })) {
        return Err(wrong("wrk knows no patterns"));
    }
    if plan.reuse != (Reuse::KeepAlive { depth: 1 }) || plan.pace != Pace::Closed {
        return Err(wrong("wrk knows no pipelines, rates or connections for one request"));
    }
    if plan.method != "GET" || !plan.body.is_empty() {
        return Err(wrong("only GET"));
    }
    match plan.length {
        Length::Time(time) if time.as_secs() >= 1 => Ok((target.text.clone(), time.as_secs() as f64)),
        _ => Err(wrong("whole seconds, one at least")),
    }
}

/// wrk as fast as it can: its rate, and what the kernel counted for it.
fn run_wrk(path: &Path, plan: &Plan, cpus: &[usize], seconds: f64, url: &str) -> Result<Cost, Failure> {
    let connections = (plan.connections as usize).max(cpus.len());
    let mut arguments =
        vec![format!("-t{}", cpus.len()), format!("-c{connections}"), format!("-d{seconds}s")];
    arguments.extend(plan.headers.iter().flat_map(|line| ["-H".to_owned(), line.clone()]));
    arguments.push(url.to_owned());
    let (said, cpu_seconds) = run_pinned(path, &arguments, cpus)?;
    // "  123456 requests in 5.01s, 17.89MB read"
    let line = said.lines().find(|line| line.contains(" requests in "));
    let mut words = line.unwrap_or_default().split_ascii_whitespace();
    let answers = words.next().and_then(|word| word.parse::<f64>().ok());
    let time = words.nth(2).and_then(|word| word.trim_end_matches("s,").parse::<f64>().ok());
    let failed = || Failure::Program {
        name: "wrk".to_owned(),
        problem: "says nothing of its requests".to_owned(),
        said: said.lines().last().unwrap_or_default().to_owned(),
    };
    cost(answers.ok_or_else(failed)?, time.ok_or_else(failed)?, cpu_seconds).ok_or_else(failed)
}

/// This generator at the rate that wrk had, without a warm-up, which wrk has not either.
fn run_ringroad(
    path: &Path,
    plan: &Plan,
    cpus: &[usize],
    (seconds, rate): (f64, f64),
    url: &str,
) -> Result<Cost, Failure> {
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let mut arguments: Vec<String> =
        ["bench", "load", "--json", "--warm-up", "0"].iter().map(|word| (*word).to_owned()).collect();
    arguments.extend(["--cpus".to_owned(), list.join(","), "-c".to_owned(), plan.connections.to_string()]);
    arguments.extend(["--seconds".to_owned(), seconds.to_string(), "--rate".to_owned(), rate.to_string()]);
    arguments.extend(plan.headers.iter().flat_map(|line| ["-H".to_owned(), line.clone()]));
    arguments.push(url.to_owned());
    let (said, cpu_seconds) = run_pinned(path, &arguments, cpus)?;
    let failed = || Failure::Program {
        name: "ringroad".to_owned(),
        problem: "says nothing of its requests".to_owned(),
        said: said.lines().last().unwrap_or_default().to_owned(),
    };
    let outcome: serde_json::Value = serde_json::from_str(&said).map_err(|_| failed())?;
    let figure = |name: &str| outcome[name].as_f64().ok_or_else(failed);
    cost(figure("answers")?, figure("seconds")?, cpu_seconds).ok_or_else(failed)
}

/// What an answer cost; nothing where there was none.
fn cost(answers: f64, seconds: f64, cpu_seconds: f64) -> Option<Cost> {
    let is_usable = answers > 0.0 && seconds > 0.0;
    is_usable.then(|| Cost {
        answers,
        answers_per_second: answers / seconds,
        cpu_us_per_answer: cpu_seconds * 1e6 / answers,
    })
}

/// Runs a program to its end on these processors: what it said and the processor time that it took.
fn run_pinned(path: &Path, arguments: &[String], cpus: &[usize]) -> Result<(String, f64), Failure> {
    let file = Failure::file("run", path);
    let enter = std::env::current_exe().map_err(file)?;
    let mut command = Command::new(enter);
    command.args(["bench", "enter", "--parent"]).arg(std::process::id().to_string());
    for cpu in cpus {
        command.arg("--cpu").arg(cpu.to_string());
    }
    command.arg("--").arg(path).args(arguments).stdin(Stdio::null());
    // Only one child runs at a time, so that what the children took more is what this one took.
    let before = children_seconds()?;
    let output = command.output().map_err(file)?;
    let cpu_seconds = children_seconds()? - before;
    if !output.status.success() {
        return Err(Failure::Program {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            problem: format!("failed ({})", output.status),
            said: String::from_utf8_lossy(&output.stderr)
                .trim()
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned(),
        });
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), cpu_seconds))
}

/// Processor time of all children that have ended, the kernel's for them included.
fn children_seconds() -> Result<f64, Failure> {
    let usage: Usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(Failure::kernel("getrusage"))?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The first line of what wrk says of itself.
fn version(path: &Path) -> String {
    let output = Command::new(path).arg("-v").stdin(Stdio::null()).output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().unwrap_or("wrk of an unknown version").trim().to_owned()
}

impl Comparison {
    /// The pairs, one on a line.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} connections, {} s each, processors {:?}\n{}; {}; congestion control {}\n",
            self.url,
            self.connections,
            self.seconds,
            self.processors,
            self.wrk,
            self.kernel,
            self.congestion_control
        );
        for Pair { wrk, ringroad } in &self.pairs {
            let ratio = ringroad.cpu_us_per_answer / wrk.cpu_us_per_answer;
            // Writing into a string does not fail.
            let _ = writeln!(
                text,
                "wrk {:.0}/s {:.2} us of processor per answer, ringroad {:.0}/s {:.2} us, ratio {ratio:.3}",
                wrk.answers_per_second,
                wrk.cpu_us_per_answer,
                ringroad.answers_per_second,
                ringroad.cpu_us_per_answer,
            );
        }
        if let Some(Summary { median, low, high }) = self.ratio {
            let _ = writeln!(text, "ratio: median {median:.3} ({low:.3} to {high:.3})");
        }
        text
    }
}
