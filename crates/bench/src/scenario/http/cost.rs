//! The cost of a request beside nginx's, as a table: shared by the rows of warm files and of proxied requests.

use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Plan;
use crate::method::rounds::in_turns;
use crate::peers::server::Server;
use crate::report::model::{Run, Table};
use crate::scenario::figures::{Rounds, cell, column, ratio_cell, row, series};
use crate::scenario::served::{self, Served};

/// The server whose processor time the others are divided by.
const BASE: &str = "nginx";

/// One server's row.
pub(super) struct Measured {
    server: &'static str,
    rounds: Rounds<Served>,
    calls: Result<f64, String>,
}

impl Measured {
    /// The row of a server that could not be started.
    pub(super) fn missing(server: &'static str, reason: &str) -> Measured {
        Measured { server, rounds: vec![Err(reason.to_owned())], calls: Err(reason.to_owned()) }
    }
}

/// Measures the same load on each of these servers, in turns, after a short load of each. Then system calls are counted.
pub(super) fn measure(
    bench: &Bench,
    mut servers: Vec<(&'static str, &mut Server)>,
    load: impl Fn(&Server) -> Result<Plan, Failure>,
) -> Result<Vec<Measured>, Failure> {
    for (_, server) in &servers {
        served::warm_up(bench, &load(server)?)?;
    }
    let rounds = in_turns(bench, &mut servers, |(_, server), _| {
        let plan = load(server)?;
        served::measure(bench, server, &plan).map(without_errors)
    })?;
    let mut measured = Vec::new();
    for ((name, server), rounds) in servers.into_iter().zip(rounds) {
        bench.check_interrupted()?;
        let calls = served::calls_per_answer(bench, server, &load(server)?);
        measured.push(Measured { server: name, rounds, calls });
    }
    Ok(measured)
}

/// A server that fails requests may be cheap: beyond a thousandth of the answers its row has the errors and no figure.
fn without_errors(served: Served) -> Result<Served, String> {
    let (answers, errors) = (served.outcome.tally.answers, served.outcome.tally.errors);
    if errors.total() * 1000 > answers {
        return Err(format!("{} errors beside {answers} answers: {errors}", errors.total()));
    }
    Ok(served)
}

/// Rate, latency and processor time of each server. The ratio is to nginx as it comes, round by round.
pub(super) fn table(title: String, measured: &[Measured]) -> Table {
    let nginx = measured.iter().find(|one| one.server == BASE);
    let nginx = nginx.map_or_else(|| Err(format!("{BASE} was not measured")), |one| cpu(&one.rounds));
    let rows = measured.iter().map(|one| {
        let latency =
            |percentile| cell(&series(&one.rounds, |served| served.outcome.latency_us(percentile) / 1e3), 3);
        let cells = vec![
            cell(&series(&one.rounds, |served| served.outcome.answers_per_second()), 0),
            latency(50.0),
            latency(99.0),
            cell(&cpu(&one.rounds), 2),
            ratio_cell(&cpu(&one.rounds), &nginx, 2),
            cell(&one.calls.clone().map(|calls| vec![calls]), 3),
        ];
        row(one.server, cells)
    });
    Table {
        title,
        columns: vec![
            column("requests", "1/s"),
            column("p50", "ms"),
            column("p99", "ms"),
            column("server CPU", "us/request"),
            column("CPU / nginx's", ""),
            column("system calls", "1/request"),
        ],
        rows: rows.collect(),
    }
}

/// Processor time of a request, by round.
fn cpu(rounds: &Rounds<Served>) -> Result<Vec<f64>, String> {
    let figure = |round: &Result<Served, String>| {
        let served = round.as_ref().map_err(String::clone)?;
        served.server_us_per_answer().ok_or_else(|| "a process of the server ended".to_owned())
    };
    rounds.iter().map(figure).collect()
}

/// The single measurements of a server, with the labels of their case.
pub(super) fn runs(measured: &Measured, case: &[(&str, String)]) -> Vec<Run> {
    let run = |(round, served): (usize, &Result<Served, String>)| {
        let of_round = [("server", measured.server.to_owned()), ("round", round.to_string())];
        let mut run = served.as_ref().ok()?.run(&[case, &of_round].concat());
        if let Ok(calls) = measured.calls {
            run.figures.insert("system_calls_per_request".to_owned(), calls);
        }
        Some(run)
    };
    measured.rounds.iter().enumerate().filter_map(run).collect()
}
