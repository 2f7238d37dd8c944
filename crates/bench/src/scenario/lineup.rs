//! The servers of a comparison: started alike, measured in turns, each round filed under the labels of its case.

use crate::context::Bench;
use crate::failure::Failure;
use crate::peers::server::{Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Run, Section, Standing, Table};
use crate::scenario::served::ServerCpus;
use crate::scenario::sheet::{
    Contestant, Figure, Labels, NOTHING, Rows, Sheet, Shown, at, named, under, without,
};

/// A server with the directives that make it what its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// As it stands in tables.
    pub(crate) name: &'static str,
    /// Whose it is; none for ours.
    pub(crate) peer: Option<Peer>,
    /// What `use` says; "" leaves the choice to the server.
    pub(crate) engine: &'static str,
    /// Further directives of `events`.
    pub(crate) events: &'static str,
    /// What `listen` says behind the rest.
    pub(crate) listen: &'static str,
    /// Further directives of the location.
    pub(crate) location: &'static str,
}

/// The three that most scenarios compare.
pub(crate) const RING: Way = Way::ours("io_uring", "io_uring");
pub(crate) const EPOLL: Way = Way::ours("epoll", "epoll");
pub(crate) const NGINX: Way = Way::of("nginx", Peer::Nginx);
pub(crate) const SERVERS: [Way; 3] = [RING, EPOLL, NGINX];

impl Way {
    pub(crate) const fn ours(name: &'static str, engine: &'static str) -> Way {
        Way { name, peer: None, engine, events: "", listen: "", location: "" }
    }

    pub(crate) const fn of(name: &'static str, peer: Peer) -> Way {
        Way { name, peer: Some(peer), engine: "epoll", events: "", listen: "", location: "" }
    }

    pub(crate) const fn listening(self, listen: &'static str) -> Way {
        Way { listen, ..self }
    }

    pub(crate) const fn with(self, location: &'static str) -> Way {
        Way { location, ..self }
    }

    pub(crate) const fn polling(self, events: &'static str) -> Way {
        Way { events, ..self }
    }

    /// Whose server it is, in charts.
    pub(crate) fn maker(&self) -> &'static str {
        match self.peer {
            None => "Ringroad",
            Some(Peer::H2o) => "H2O",
            Some(peer) => peer.name(),
        }
    }

    /// The directives that make ours what it is; nothing for the others, about whose settings no advice is given.
    fn setting(&self) -> Option<String> {
        let engine = if self.engine.is_empty() { String::new() } else { format!("use {};", self.engine) };
        let listen =
            if self.listen.is_empty() { String::new() } else { format!("listen …{};", self.listen) };
        let parts = [engine.as_str(), self.events.trim(), &listen, self.location.trim()];
        let written: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.peer.is_none().then(|| written.join(" "))
    }

    /// The program, or why there is none.
    pub(crate) fn program(&self, bench: &Bench) -> Result<Program, String> {
        match self.peer {
            None => Ok(Program::ours(bench)),
            Some(peer) => Program::of(bench, peer).map_err(|missing| missing.to_string()),
        }
    }

    /// nginx's directives are ours too, so that one text serves both: all but the engine and the listener is the same.
    pub(crate) fn configuration(&self, instance: &Instance, text: &Text) -> String {
        let Text { workers, connections, events, http, server } = text;
        let (own, listen, port) = (self.events, self.listen, instance.port);
        let engine = if self.engine.is_empty() { String::new() } else { format!(" use {};", self.engine) };
        let indented =
            |text: &str, by: &str| text.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
        format!(
            "worker_processes {workers};\nevents {{ worker_connections {connections};{engine}{own}{events} }}\n\
             http {{\n    access_log off;\n    keepalive_requests 1000000000;\n{}    \
             server {{\n        listen 127.0.0.1:{port} backlog=4096{listen};\n{}    }}\n}}\n",
            indented(http, "    "),
            indented(server, "        ")
        )
    }
}

/// What a configuration has beside its way.
pub(crate) struct Text {
    pub(crate) workers: usize,
    /// Connections of each worker.
    pub(crate) connections: u32,
    pub(crate) events: String,
    pub(crate) http: String,
    pub(crate) server: String,
}

impl Default for Text {
    fn default() -> Text {
        let none = String::new;
        Text { workers: 1, connections: 8192, events: none(), http: none(), server: none() }
    }
}

/// A location that a server serves before anything is measured.
pub(crate) const READY: &str = "location = /ready { return 204; }";

/// The programs of those that are installed; why the others are not is noted in the section.
pub(crate) fn programs(
    bench: &Bench,
    section: &mut Section,
    ways: impl IntoIterator<Item = Way>,
    suffix: &str,
) -> Vec<(Way, Program)> {
    let mut found = Vec::new();
    for way in ways {
        match way.program(bench) {
            Ok(program) => found.push((way, program)),
            Err(reason) => section.skip(&format!("{}{suffix}", way.name), &reason),
        }
    }
    found
}

/// Starts those that are installed, one port after the other from the named one on. `suffix` tells them from the
/// same servers of another part of the report.
pub(crate) fn start(
    bench: &Bench,
    section: &mut Section,
    (place, port): (&ServerCpus, Option<u16>),
    (ways, suffix): (&[Way], &str),
    configuration: impl Fn(&Way, &Instance) -> String,
) -> Result<Vec<(Way, Server)>, Failure> {
    let mut servers = Vec::new();
    for (way, program) in programs(bench, section, ways.iter().copied(), suffix) {
        let name = format!("{}{suffix}", way.name);
        let mut conditions = place.conditions();
        conditions.port = port.map(|port| port.saturating_add(servers.len() as u16));
        let server =
            Server::start(bench, &name, &program, &conditions, |instance| configuration(&way, instance))?;
        section.configure(&name, server.configuration());
        servers.push((way, server));
    }
    Ok(servers)
}

/// Ends them, before the control group that they are in.
pub(crate) fn end(servers: Vec<(Way, Server)>) {
    servers.into_iter().for_each(|(_, server)| server.end());
}

/// The rows of these servers in a table, under the name of each.
pub(crate) fn rows(ways: &[Way]) -> Rows {
    named("server", ways.iter().map(|way| way.name))
}

/// The servers of one comparison over the measurements of a section.
#[derive(Clone, Copy)]
pub(crate) struct Compared<'a> {
    pub(crate) sheet: Sheet<'a>,
    pub(crate) ways: &'a [Way],
}

impl Compared<'_> {
    /// A row for each server in one case.
    pub(crate) fn rows(&self, case: &Labels) -> Rows {
        under(&rows(self.ways), case)
    }

    pub(crate) fn table(&self, title: &str, case: &Labels, columns: &[Shown]) -> Table {
        self.sheet.table(title, &self.rows(case), columns)
    }

    /// The servers beside each other, for the head of the report.
    pub(crate) fn standing(&self, title: &str, figure: Figure, case: &Labels) -> Standing {
        let contestant = |way: &Way| Contestant {
            name: way.name.to_owned(),
            maker: way.maker(),
            setting: way.setting(),
            labels: of(way, case),
        };
        self.sheet.standing(title, figure, self.ways.iter().map(contestant))
    }
}

/// The labels of a server in one case.
pub(crate) fn of(way: &Way, case: &Labels) -> Labels {
    [case.as_slice(), &at([("server", &way.name)])].concat()
}

/// What came of one measurement, or why nothing did, under its labels.
pub(crate) type Filed = (Labels, Result<Run, String>);

/// Measures each of some things in every round, and files what came of it.
pub(crate) fn measure_all<V>(
    bench: &Bench,
    section: &mut Section,
    things: &mut [V],
    mut all: impl FnMut(&mut V, u32, &mut Section) -> Result<Vec<Filed>, Failure>,
) -> Result<(), Failure> {
    // A B C A B C, never A A B B: a drift of the machine (temperature, neighbours, free memory) is a drift for all of them.
    let mut measured: Vec<Vec<Vec<Filed>>> = things.iter().map(|_| Vec::new()).collect();
    for round in 0..bench.repetitions() {
        for (thing, results) in things.iter_mut().zip(&mut measured) {
            bench.check_interrupted()?;
            bench.progress.tick();
            results.push(all(thing, round, section)?);
        }
    }
    for rounds in measured {
        for (round, filed) in rounds.into_iter().enumerate() {
            filed.into_iter().for_each(|(labels, measured)| file(section, measured, &labels, round));
        }
    }
    Ok(())
}

/// The same where each thing has one measurement.
pub(crate) fn measure<V>(
    bench: &Bench,
    section: &mut Section,
    things: &mut [V],
    labels: impl Fn(&V) -> Labels,
    mut one: impl FnMut(&mut V, u32, &mut Section) -> Result<Result<Run, String>, Failure>,
) -> Result<(), Failure> {
    measure_all(bench, section, things, |thing, round, section| {
        let measured = one(thing, round, section)?;
        Ok(vec![(labels(thing), measured)])
    })
}

/// Keeps one measurement under its labels.
pub(crate) fn file(section: &mut Section, measured: Result<Run, String>, labels: &Labels, round: usize) {
    let mut run = measured
        .unwrap_or_else(|reason| Run { labels: [(NOTHING.to_owned(), reason)].into(), ..Run::default() });
    run.labels.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    run.labels.insert("round".to_owned(), round.to_string());
    section.runs.push(run);
}

/// Adds a figure that was measured once, for all rounds, to the measurements with these labels; or why there is none.
pub(crate) fn add(section: &mut Section, labels: &Labels, name: &str, figure: &Result<f64, String>) {
    let is_wanted = |run: &&mut Run| labels.iter().all(|(name, value)| run.labels.get(*name) == Some(value));
    for run in section.runs.iter_mut().filter(is_wanted) {
        match figure {
            Ok(figure) => run.set(name, *figure),
            Err(reason) => {
                run.labels.insert(without(name), reason.clone());
            }
        }
    }
}

/// A failure of one measurement is the reason for its cell; the user's own end of the run is not.
pub(crate) fn or_reason<T>(measured: Result<T, Failure>) -> Result<Result<T, String>, Failure> {
    match measured {
        Err(Failure::Interrupted) => Err(Failure::Interrupted),
        measured => Ok(measured.map_err(|failure| failure.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_differ_in_what_ways_say() {
        let instance = Instance { port: 8080, directory: "/x".into() };
        let text = |way: Way| {
            let server = format!("{READY}\nlocation / {{ return 200; {}}}", way.location);
            way.configuration(&instance, &Text { server, ..Text::default() })
        };
        assert_eq!(text(EPOLL), text(NGINX));
        assert_eq!(text(RING), text(EPOLL).replace("use epoll", "use io_uring"));
        assert_eq!(text(RING.listening(" reuseport")), text(RING).replace("4096", "4096 reuseport"));
        assert_eq!(text(RING.with("aio on; ")), text(RING).replace("200; ", "200; aio on; "));
    }
}
