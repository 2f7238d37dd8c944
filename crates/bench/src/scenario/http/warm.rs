//! A file of 1 KiB that is in memory: what a server adds to `return 200` when it has to look for what it sends. No
//! write-up has this row. It is the one where nginx is not the fastest of the others, so lighttpd stands beside it, and
//! nginx twice: with its cache of open files it saves the look-up, and notices a changed file later.

use std::fs;
use std::path::Path;

use super::{LENGTH, Way};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{Length, Plan};
use crate::method::pin::{self, Split};
use crate::method::rounds::in_turns;
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Run, Section, Table};
use crate::scenario::figures::{Rounds, cell, column, ratio_cell, row, series};
use crate::scenario::served::{self, Served, ServerCpus};

/// As many as in the project's other comparisons of a request's cost.
const CONNECTIONS: u32 = 100;
/// Bytes of the file.
const BYTES: usize = 1024;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server1k {
    Ring,
    Epoll,
    Nginx,
    NginxOpenFiles,
    Lighttpd,
}

impl Server1k {
    /// Ours first, then the others.
    const ALL: [Server1k; 5] =
        [Server1k::Ring, Server1k::Epoll, Server1k::Nginx, Server1k::NginxOpenFiles, Server1k::Lighttpd];

    fn name(self) -> &'static str {
        match self {
            Server1k::Ring => Way::Ring.name(),
            Server1k::Epoll => Way::Epoll.name(),
            Server1k::Nginx => Way::Nginx.name(),
            Server1k::NginxOpenFiles => "nginx, open_file_cache",
            Server1k::Lighttpd => "lighttpd",
        }
    }

    /// The program, or why there is none.
    fn program(self, bench: &Bench) -> Result<Program, String> {
        match self {
            Server1k::Ring | Server1k::Epoll => Ok(Program::ours(bench)),
            Server1k::Nginx | Server1k::NginxOpenFiles => {
                Peer::Nginx.find(bench).map(Program::Nginx).map_err(|missing| missing.to_string())
            }
            Server1k::Lighttpd => {
                Peer::Lighttpd.find(bench).map(Program::Lighttpd).map_err(|missing| missing.to_string())
            }
        }
    }

    /// As their packages come: `sendfile on` is in nginx's own configuration.
    fn configuration(self, place: &Place, files: &Path) -> String {
        let files = files.display();
        if self == Server1k::Lighttpd {
            return format!(
                "server.document-root = \"{files}\"\nserver.event-handler = \"linux-sysepoll\"\n\
                 server.max-keep-alive-requests = 1000000000\nserver.max-fds = 4096\n"
            );
        }
        let engine = if self == Server1k::Ring { "io_uring" } else { "epoll" };
        let cache = if self == Server1k::NginxOpenFiles { "open_file_cache max=100; " } else { "" };
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 8192; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   sendfile on;\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port};\n\
             \x20       location / {{ {cache}root {files}; }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port
        )
    }
}

/// One server's row.
struct Measured {
    server: Server1k,
    rounds: Rounds<Served>,
    calls: Result<f64, String>,
}

/// Adds the table of it to the section of `bench http`.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let files = bench.workspace.folder("warm")?;
    let path = files.join("1k");
    let written = fs::write(&path, [b'x'; BYTES]);
    written.map_err(|error| Failure::File { path: path.clone(), doing: "write", error })?;
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let (mut servers, mut missing) = (Vec::new(), Vec::new());
    for one in Server1k::ALL {
        let program = match one.program(bench) {
            Ok(program) => program,
            Err(reason) => {
                missing.push((one, reason));
                continue;
            }
        };
        let server = Server::start(bench, one.name(), &program, &place.conditions(), |place| {
            one.configuration(place, &files)
        })?;
        let name = format!("{}, 1 KiB file", one.name());
        section.configurations.push(Fact { name, value: server.configuration().to_owned() });
        servers.push((one, server));
    }
    bench.progress(format_args!("http: a file of 1 KiB, {CONNECTIONS} connections"));
    let mut measured = measure(bench, &mut servers, &place.split)?;
    // Before the control group that they are in.
    servers.into_iter().for_each(|(_, server)| server.end());
    for (server, reason) in missing {
        section.skip(&format!("{}, 1 KiB file", server.name()), &reason);
        measured.push(Measured { server, rounds: vec![Err(reason.clone())], calls: Err(reason) });
    }
    section.tables.push(table(&measured));
    section.runs.extend(measured.iter().flat_map(runs));
    Ok(())
}

fn measure(
    bench: &Bench,
    servers: &mut [(Server1k, Server)],
    split: &Split,
) -> Result<Vec<Measured>, Failure> {
    let load = |server: &Server| -> Result<Plan, Failure> {
        let mut plan = served::plan(bench, &server.url("/1k"), split, CONNECTIONS)?;
        plan.length = Length::Time(bench.length(LENGTH));
        plan.expect.status = Some(200);
        plan.expect.length = Some(BYTES as u64);
        Ok(plan)
    };
    for (_, server) in servers.iter() {
        served::warm_up(bench, &load(server)?)?;
    }
    let rounds = in_turns(bench, servers, |(_, server), _| {
        let plan = load(server)?;
        served::measure(bench, server, &plan).map(Ok)
    })?;
    let mut measured = Vec::new();
    for ((one, server), rounds) in servers.iter().zip(rounds) {
        bench.check_interrupted()?;
        let calls = served::calls_per_answer(bench, server, &load(server)?);
        measured.push(Measured { server: *one, rounds, calls });
    }
    Ok(measured)
}

/// The processor time of a request, for who asks which server to take; the ratio is to nginx as it comes.
fn table(measured: &[Measured]) -> Table {
    let cpu = |rounds: &Rounds<Served>| -> Result<Vec<f64>, String> {
        let figure = |round: &Result<Served, String>| {
            let served = round.as_ref().map_err(String::clone)?;
            served.server_us_per_answer().ok_or_else(|| "a process of the server ended".to_owned())
        };
        rounds.iter().map(figure).collect()
    };
    let nginx = measured.iter().find(|one| one.server == Server1k::Nginx);
    let nginx = nginx.map_or_else(|| Err("nginx was not measured".to_owned()), |one| cpu(&one.rounds));
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
        row(one.server.name(), cells)
    });
    Table {
        title: format!("A file of 1 KiB in memory, one worker, {CONNECTIONS} long connections"),
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

fn runs(measured: &Measured) -> impl Iterator<Item = Run> {
    let run = |(round, served): (usize, &Result<Served, String>)| {
        let labels = [
            ("server", measured.server.name().to_owned()),
            ("file", format!("{BYTES} bytes, in memory")),
            ("workers", "1".to_owned()),
            ("connections", CONNECTIONS.to_string()),
            ("round", round.to_string()),
        ];
        let mut run = served.as_ref().ok()?.run(&labels);
        if let Ok(calls) = measured.calls {
            run.figures.insert("system_calls_per_request".to_owned(), calls);
        }
        Some(run)
    };
    measured.rounds.iter().enumerate().filter_map(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_differ_in_what_their_names_say() {
        let place = Place { port: 8080, folder: "/x".into() };
        let text = |server: Server1k| server.configuration(&place, Path::new("/files"));
        assert_eq!(text(Server1k::Epoll), text(Server1k::Nginx));
        assert_eq!(text(Server1k::Ring), text(Server1k::Epoll).replace("use epoll", "use io_uring"));
        let cached = text(Server1k::NginxOpenFiles);
        assert_eq!(cached, text(Server1k::Nginx).replace("root", "open_file_cache max=100; root"));
        assert!(text(Server1k::Lighttpd).contains("server.document-root = \"/files\""));
    }
}
