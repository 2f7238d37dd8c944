//! Files that are in memory: what a server adds to `return 200` when it has to look for what it sends, and what a byte
//! costs it. No write-up has these rows. They are those where nginx is not the fastest of the others, so lighttpd and
//! H2O stand beside it, and nginx twice: with its cache of open files it saves the look-up, and notices a changed file
//! later.
//!
//! The smallest file is also asked for over a connection for each request, as by clients that fetch one thing and go.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::cost::{self, Measured};
use super::{Kind, Way};
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::{Length, Plan, Reuse};
use crate::method::pin::{self, Split};
use crate::peers::server::{Place, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Fact, Section};
use crate::scenario::served::{self, ServerCpus};

/// As many as in the project's other comparisons of a request's cost.
const CONNECTIONS: u32 = 100;

/// Length of one measurement in a result for keeping: there are many, and each compares servers within seconds.
const LENGTH: Duration = Duration::from_secs(1);

/// Names of the files, and their bytes.
const FILES: [(&str, usize); 4] = [("1k", 1 << 10), ("10k", 10 << 10), ("100k", 100 << 10), ("1m", 1 << 20)];

/// What is asked for in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    /// One of [`FILES`].
    file: (&'static str, usize),
    kind: Kind,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        let long = FILES.into_iter().map(|file| Case { file, kind: Kind::Long });
        long.chain([Case { file: FILES[0], kind: Kind::Short }])
    }

    fn title(self) -> String {
        let (name, kind) = (self.file.0, self.kind.name());
        format!("A file of {name} in memory, one worker, {CONNECTIONS} {kind} connections")
    }
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// As in the other tables, for files. Deferred as H2O is, who has the kernel hold back a connection until its request
    /// is there.
    As(Way),
    NginxOpenFiles,
    /// The same without `sendfile`.
    NginxOpenFilesRead,
    Lighttpd,
    H2o,
}

impl Who {
    /// Ours first, then the others.
    const ALL: [Who; 8] = [
        Who::As(Way::Ring),
        Who::As(Way::RingDeferred),
        Who::As(Way::Epoll),
        Who::As(Way::Nginx),
        Who::NginxOpenFiles,
        Who::NginxOpenFilesRead,
        Who::Lighttpd,
        Who::H2o,
    ];

    fn name(self) -> &'static str {
        match self {
            Who::As(way) => way.name(),
            Who::NginxOpenFiles => "nginx, open_file_cache",
            Who::NginxOpenFilesRead => "nginx, open_file_cache, sendfile off",
            Who::Lighttpd => "lighttpd",
            Who::H2o => "h2o",
        }
    }

    /// Whether it differs in this case from the same without what its name says.
    fn takes_part(self, case: Case) -> bool {
        self != Who::As(Way::RingDeferred) || case.kind == Kind::Short
    }

    /// The program, or why there is none.
    fn program(self, bench: &Bench) -> Result<Program, String> {
        let (peer, program): (Peer, fn(_) -> Program) = match self {
            Who::As(way) if !way.is_nginx() => return Ok(Program::ours(bench)),
            Who::As(_) | Who::NginxOpenFiles | Who::NginxOpenFilesRead => (Peer::Nginx, Program::Nginx),
            Who::Lighttpd => (Peer::Lighttpd, Program::Lighttpd),
            Who::H2o => (Peer::H2o, Program::H2o),
        };
        peer.find(bench).map(program).map_err(|missing| missing.to_string())
    }

    /// As their packages come: `sendfile on` is in nginx's own configuration. Short files cost nginx less without it, which is
    /// its default where nothing is written.
    fn configuration(self, place: &Place, files: &Path) -> String {
        let files = files.display();
        let (way, cache, sendfile) = match self {
            Who::As(way) => (way, "", "on"),
            Who::NginxOpenFiles => (Way::Nginx, "open_file_cache max=100; ", "on"),
            Who::NginxOpenFilesRead => (Way::Nginx, "open_file_cache max=100; ", "off"),
            Who::Lighttpd => {
                return format!(
                    "server.document-root = \"{files}\"\nserver.event-handler = \"linux-sysepoll\"\n\
                     server.max-keep-alive-requests = 1000000000\nserver.max-fds = 4096\n"
                );
            }
            Who::H2o => {
                return format!(
                    "num-threads: 1\nmax-connections: 4096\nhosts:\n  default:\n    paths:\n      /:\n        \
                     file.dir: {files}\n"
                );
            }
        };
        let (engine, listener) = (way.engine(), way.listener());
        format!(
            "worker_processes 1;\n\
             events {{ worker_connections 8192; use {engine}; }}\n\
             http {{\n\
             \x20   access_log off;\n\
             \x20   keepalive_requests 1000000000;\n\
             \x20   sendfile {sendfile};\n\
             \x20   server {{\n\
             \x20       listen 127.0.0.1:{port} backlog=4096{listener};\n\
             \x20       location / {{ {cache}root {files}; }}\n\
             \x20   }}\n\
             }}\n",
            port = place.port
        )
    }
}

/// Adds the tables of them to the section of `bench http`.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let files = bench.workspace.folder("warm")?;
    for (name, bytes) in FILES {
        let path = files.join(name);
        let written = fs::write(&path, vec![b'x'; bytes]);
        written.map_err(|error| Failure::File { path: path.clone(), doing: "write", error })?;
    }
    let place = ServerCpus::new(bench, Split::of(&pin::available(), 1));
    let (mut servers, mut missing) = (Vec::new(), Vec::new());
    for who in Who::ALL {
        match who.program(bench) {
            Ok(program) => {
                let server = Server::start(bench, who.name(), &program, &place.conditions(), |place| {
                    who.configuration(place, &files)
                })?;
                let name = format!("{}, warm files", who.name());
                section.configurations.push(Fact { name, value: server.configuration().to_owned() });
                servers.push((who, server));
            }
            Err(reason) => {
                section.skip(&format!("{}, warm files", who.name()), &reason);
                missing.push((who, reason));
            }
        }
    }
    for case in Case::all() {
        bench.progress(format_args!(
            "http: a file of {}, {CONNECTIONS} {} connections",
            case.file.0,
            case.kind.name()
        ));
        let chosen = servers.iter_mut().filter(|(who, _)| who.takes_part(case));
        let chosen = chosen.map(|(who, server)| (who.name(), server)).collect();
        let mut measured = cost::measure(bench, chosen, |server| plan(bench, server, case, &place.split))?;
        let missing = missing.iter().filter(|(who, _)| who.takes_part(case));
        measured.extend(missing.map(|(who, reason)| Measured::missing(who.name(), reason)));
        section.tables.push(cost::table(case.title(), &measured));
        let labels = [
            ("file", case.file.0.to_owned()),
            // Not the label of `return 200`, which who looks for that would find here too.
            ("reuse", case.kind.name().to_owned()),
            ("workers", "1".to_owned()),
            ("connections", CONNECTIONS.to_string()),
        ];
        section.runs.extend(measured.iter().flat_map(|one| cost::runs(one, &labels)));
    }
    // Before the control group that they are in.
    servers.into_iter().for_each(|(_, server)| server.end());
    Ok(())
}

/// The load of a case on one server.
fn plan(bench: &Bench, server: &Server, case: Case, split: &Split) -> Result<Plan, Failure> {
    let (name, bytes) = case.file;
    let mut plan = served::plan(bench, &server.url(&format!("/{name}")), split, CONNECTIONS)?;
    if case.kind == Kind::Short {
        plan.reuse = Reuse::PerRequest;
    }
    plan.length = Length::Time(bench.length(LENGTH));
    plan.expect.status = Some(200);
    plan.expect.length = Some(bytes as u64);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_differ_in_what_their_names_say() {
        let place = Place { port: 8080, folder: "/x".into() };
        let text = |who: Who| who.configuration(&place, Path::new("/files"));
        assert_eq!(text(Who::As(Way::Epoll)), text(Who::As(Way::Nginx)));
        let ring = text(Who::As(Way::Ring));
        assert_eq!(ring, text(Who::As(Way::Epoll)).replace("use epoll", "use io_uring"));
        let cached = text(Who::NginxOpenFiles);
        assert_eq!(cached, text(Who::As(Way::Nginx)).replace("root", "open_file_cache max=100; root"));
        assert_eq!(text(Who::NginxOpenFilesRead), cached.replace("sendfile on", "sendfile off"));
        assert!(text(Who::Lighttpd).contains("server.document-root = \"/files\""));
        assert!(text(Who::H2o).contains("file.dir: /files"));
    }

    #[test]
    fn the_smallest_file_is_asked_for_in_both_ways() {
        let titles: Vec<String> = Case::all().map(Case::title).collect();
        assert_eq!(titles.len(), FILES.len() + 1);
        assert_eq!(titles[0], "A file of 1k in memory, one worker, 100 long connections");
        assert_eq!(titles[4], "A file of 1k in memory, one worker, 100 short connections");
    }
}
