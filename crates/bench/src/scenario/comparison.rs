//! The servers of a comparison: started in the same way, measured in turn, with each round recorded under the labels of
//! its case.

use std::path::Path;

use crate::context::Bench;
use crate::failure::Failure;
use crate::peers::server::{Instance, Program, Server};
use crate::peers::tool::Peer;
use crate::report::model::{Ranking, Results, Run, Section, Table};
use crate::scenario::measurements::{
    Figure, Labels, Measurements, NOTHING, Rows, ShownColumn, at, named, under, without,
};
use crate::scenario::served::{CALLS, CPU, P50, P99, P999, RATE, ServerCpus};

/// A server with the directives that select the mode in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Name in tables.
    pub(crate) name: &'static str,
    /// The peer; `None` for Ringroad.
    pub(crate) peer: Option<Peer>,
    /// Value of `use`; "" leaves the choice to the server.
    pub(crate) engine: &'static str,
    /// Further directives of the `events` block.
    pub(crate) events: &'static str,
    /// Further parameters of `listen`.
    pub(crate) listen: &'static str,
    /// Further directives of the location.
    pub(crate) location: &'static str,
}

/// Parameter of `listen` that defers accepts until the request has arrived.
pub(crate) const DEFERRED: &str = " deferred";

/// The three servers that most scenarios compare.
pub(crate) const RING: Variant = Variant::ours("io_uring", "io_uring");
pub(crate) const EPOLL: Variant = Variant::ours("epoll", "epoll");
pub(crate) const NGINX: Variant = Variant::of("nginx", Peer::Nginx);
pub(crate) const SERVERS: [Variant; 3] = [RING, EPOLL, NGINX];
/// A proxy that serves no files.
pub(crate) const HAPROXY: Variant = Variant::of("haproxy", Peer::Haproxy);

impl Variant {
    pub(crate) const fn ours(name: &'static str, engine: &'static str) -> Variant {
        Variant { name, peer: None, engine, events: "", listen: "", location: "" }
    }

    pub(crate) const fn of(name: &'static str, peer: Peer) -> Variant {
        Variant { name, peer: Some(peer), engine: "epoll", events: "", listen: "", location: "" }
    }

    pub(crate) const fn listening(self, listen: &'static str) -> Variant {
        Variant { listen, ..self }
    }

    pub(crate) const fn with(self, location: &'static str) -> Variant {
        Variant { location, ..self }
    }

    /// Returns the label of its measurements.
    pub(crate) fn labels(&self) -> Labels {
        at([("server", &self.name)])
    }

    /// Returns the name of the server, for charts.
    pub(crate) fn maker(&self) -> &'static str {
        match self.peer {
            None => "Ringroad",
            Some(Peer::H2o) => "H2O",
            Some(Peer::Haproxy) => "HAProxy",
            Some(peer) => peer.name(),
        }
    }

    /// Returns the directives of a Ringroad mode; `None` for peers, since the report gives no advice about their
    /// settings.
    fn setting(&self) -> Option<String> {
        let engine = if self.engine.is_empty() { String::new() } else { format!("use {};", self.engine) };
        let listen =
            if self.listen.is_empty() { String::new() } else { format!("listen …{};", self.listen) };
        let parts = [engine.as_str(), self.events.trim(), &listen, self.location.trim()];
        let written: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.peer.is_none().then(|| written.join(" "))
    }

    /// Returns the program, or why it is not available.
    pub(crate) fn program(&self, bench: &Bench) -> Result<Program, String> {
        match self.peer {
            None => Ok(Program::ours(bench)),
            Some(peer) => Program::of(bench, peer),
        }
    }

    /// Returns the directives of a server that responds with status 200 in this location; HAProxy does so in all.
    pub(crate) fn returning(&self, location: &str) -> String {
        match self.peer {
            Some(Peer::Haproxy) => "    http-request return status 200\n".to_owned(),
            _ => format!("location {location} {{ return 200; }}\n"),
        }
    }

    /// Returns the configuration. Ringroad uses nginx's directives, so one text serves both: only the engine and the
    /// listener differ. For HAProxy, `text` has its directives.
    pub(crate) fn configuration(&self, instance: &Instance, text: &Text) -> String {
        if self.peer == Some(Peer::Haproxy) {
            return self.configuration_of_haproxy(instance, text);
        }
        let Text { workers, connections, events, http, server } = text;
        let (own, listen, host, port) = (self.events, self.listen, instance.host, instance.port);
        let engine = if self.engine.is_empty() { String::new() } else { format!(" use {};", self.engine) };
        let indented =
            |text: &str, by: &str| text.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
        format!(
            "worker_processes {workers};\nevents {{ worker_connections {connections};{engine}{own}{events} }}\n\
             http {{\n    access_log off;\n    keepalive_requests 1000000000;\n{}    \
             server {{\n        listen {host}:{port} backlog=4096{listen};\n{}    }}\n}}\n",
            indented(http, "    "),
            indented(server, "        ")
        )
    }

    /// Returns the configuration of HAProxy: `http` are further sections, `server` the directives of the frontend.
    fn configuration_of_haproxy(&self, instance: &Instance, text: &Text) -> String {
        let (host, port, connections) = (instance.host, instance.port, text.connections);
        let accepts = if self.listen == DEFERRED { " defer-accept" } else { "" };
        // Without strict-limits it also starts with fewer descriptors than its limits could need.
        format!(
            "global\n    nbthread {}\n    maxconn {connections}\n    no strict-limits\ndefaults\n    mode http\n    \
             timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n    option http-keep-alive\n    \
             http-reuse always\n{}{}frontend bench\n    bind {host}:{port} backlog 4096{accepts}\n{}",
            text.workers, self.location, text.http, text.server
        )
    }

    /// Returns the configuration for the files of a directory, in the language of the server. `certificate` is that of
    /// a server that speaks TLS. For peers with other languages, `text` has only the number of connections. HAProxy serves
    /// no files, so its configuration is that of `text`.
    pub(crate) fn serving(
        &self,
        instance: &Instance,
        files: &Path,
        certificate: Option<&Path>,
        text: Text,
    ) -> String {
        let (files, location, certificate) = (files.display(), self.location, certificate.map(Path::display));
        match self.peer {
            Some(Peer::Lighttpd) => format!(
                "server.document-root = \"{files}\"\nserver.event-handler = \"linux-sysepoll\"\n\
                 server.max-keep-alive-requests = 1000000000\nserver.max-fds = 4096\n{location}\n"
            ),
            Some(Peer::H2o) => {
                // These lines belong to the listener, with which each configuration of H2O begins. Its program that fetches
                // OCSP responses would count as memory and CPU time of the server.
                let tls = certificate.map_or_else(String::new, |path| {
                    format!(
                        "  ssl:\n    certificate-file: {path}\n    key-file: {path}\n    ocsp-update-interval: 0\n"
                    )
                });
                format!(
                    "{tls}num-threads: 1\nmax-connections: {}\nhttp1-request-timeout: 3600\nhosts:\n  default:\n    \
                     paths:\n      /:\n        file.dir: {files}\n",
                    text.connections
                )
            }
            Some(Peer::Haproxy) => self.configuration(instance, &text),
            _ => {
                let tls = certificate.map_or_else(String::new, |path| {
                    format!("ssl_certificate {path};\nssl_certificate_key {path};\n")
                });
                let server = format!("{}{tls}location / {{ {location}root {files}; }}", text.server);
                self.configuration(instance, &Text { server, ..text })
            }
        }
    }
}

/// The parts of a configuration that do not depend on the variant.
pub(crate) struct Text {
    pub(crate) workers: usize,
    /// Connections per worker.
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

/// Location for the readiness check.
pub(crate) const READY: &str = "location = /ready { return 204; }";

/// Returns the programs that are installed; the reasons for missing ones are recorded in the section.
pub(crate) fn programs(
    bench: &Bench,
    section: &mut Section,
    variants: impl IntoIterator<Item = Variant>,
    suffix: &str,
) -> Vec<(Variant, Program)> {
    let mut found = Vec::new();
    for variant in variants {
        match variant.program(bench) {
            Ok(program) => found.push((variant, program)),
            Err(reason) => section.skip(&format!("{}{suffix}", variant.name), &reason),
        }
    }
    found
}

/// Starts the installed servers. `suffix` distinguishes them from the same servers in another part of the report. A
/// server that does not start is recorded in the section with its reason; the function fails only if none starts.
pub(crate) fn start(
    bench: &Bench,
    section: &mut Section,
    place: &ServerCpus,
    (variants, suffix): (&[Variant], &str),
    configuration: impl Fn(&Variant, &Instance) -> String,
) -> Result<Vec<(Variant, Server)>, Failure> {
    let programs = programs(bench, section, variants.iter().copied(), suffix);
    start_programs(bench, section, place, (programs, suffix), configuration)
}

/// Does the same with these programs.
pub(crate) fn start_programs(
    bench: &Bench,
    section: &mut Section,
    place: &ServerCpus,
    (programs, suffix): (Vec<(Variant, Program)>, &str),
    configuration: impl Fn(&Variant, &Instance) -> String,
) -> Result<Vec<(Variant, Server)>, Failure> {
    let (mut servers, mut failed) = (Vec::new(), None);
    for (variant, program) in programs {
        let name = format!("{}{suffix}", variant.name);
        let mut conditions = place.conditions();
        if let Some(first) = place.first_port {
            let port = first.saturating_add(servers.len() as u16);
            conditions.port = Some(bench.ports.reserve_number(port)?);
        }
        match Server::start(bench, &name, &program, &conditions, |instance| configuration(&variant, instance))
        {
            Ok(server) => {
                section.configure(&name, &server.configuration);
                servers.push((variant, server));
            }
            // Other failures, such as a port in use, are not those of one server.
            Err(failure @ Failure::Program { .. }) => {
                section.skip(&name, &failure.to_string());
                failed = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    match failed {
        Some(failure) if servers.is_empty() => Err(failure),
        _ => Ok(servers),
    }
}

/// Returns a table row for each server, named after it.
pub(crate) fn rows(variants: &[Variant]) -> Rows {
    named("server", variants.iter().map(|variant| variant.name))
}

/// Values of the label `when`: without a disturbance, and with it.
pub(crate) const WHEN: [&str; 2] = ["alone", "beside"];

/// Returns columns of percentiles without and with a disturbance, and the ratio of both.
pub(crate) fn disturbance_columns() -> Vec<ShownColumn> {
    let [alone, beside] = WHEN.map(|when| at([("when", &when)]));
    let columns = |figure: Figure| {
        let name = |words: &str| format!("{} {words}", figure.name);
        [
            figure.at(&name("alone"), alone.clone()),
            figure.at(&name("beside"), beside.clone()),
            figure.over(&name("beside / alone"), alone.clone()).where_(beside.clone()),
        ]
    };
    [P50, P99, P999].into_iter().flat_map(columns).collect()
}

/// Returns a line for each server without and with a disturbance.
pub(crate) fn disturbance_lines(variants: &[Variant], case: impl Fn(&str) -> Labels) -> Rows {
    let line =
        |variant: &Variant, when| (format!("{}, {when}", variant.name), labels_of(variant, &case(when)));
    variants.iter().flat_map(|variant| WHEN.map(|when| line(variant, when))).collect()
}

/// The servers of one comparison, and the measurements of a section.
#[derive(Clone, Copy)]
pub(crate) struct Compared<'a> {
    pub(crate) measurements: Measurements<'a>,
    pub(crate) variants: &'a [Variant],
}

impl Compared<'_> {
    /// Returns a row for each server in one case.
    pub(crate) fn rows(&self, case: &Labels) -> Rows {
        under(&rows(self.variants), case)
    }

    pub(crate) fn table(&self, title: &str, case: &Labels, columns: &[ShownColumn]) -> Table {
        self.measurements.table(title, &self.rows(case), columns)
    }

    /// Returns a ranking of the servers, for the head of the report.
    pub(crate) fn ranking(&self, title: &str, figure: Figure, case: &Labels) -> Ranking {
        let mut ranking = self.measurements.ranking(title, figure, &self.rows(case));
        for result in &mut ranking.results {
            let variant = self.variants.iter().find(|variant| variant.name == result.name);
            result.maker = variant.map_or("", Variant::maker).to_owned();
            result.setting = variant.and_then(Variant::setting);
        }
        ranking
    }

    /// Returns the server with the least CPU time per request in one case, among those that `is_wanted` selects.
    pub(crate) fn cheapest(&self, case: &Labels, is_wanted: impl Fn(&Variant) -> bool) -> Option<Variant> {
        let cost =
            |variant: &Variant| self.measurements.middle(CPU, &labels_of(variant, case)).unwrap_or(f64::MAX);
        let wanted = self.variants.iter().copied().filter(is_wanted);
        wanted.min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }

    /// Returns a table and a ranking of rates, latencies and costs. CPU times are also shown as ratios to those of `base`.
    pub(crate) fn costs(&self, title: &str, base: &Variant, case: &Labels) -> Results {
        let over = CPU.over(&format!("CPU / that of {}", base.name), base.labels());
        let columns = [RATE.shown(), P50.shown(), P99.shown(), CPU.shown(), over, CALLS.shown()];
        Results {
            tables: vec![self.table(title, case, &columns)],
            rankings: vec![self.ranking(&format!("CPU time per request: {title}"), CPU, case)],
            ..Results::default()
        }
    }
}

/// Returns the labels of a server in one case.
pub(crate) fn labels_of(variant: &Variant, case: &Labels) -> Labels {
    [case.as_slice(), &variant.labels()].concat()
}

/// The result of one measurement, or the reason of a failure.
pub(crate) type Measured = Result<Run, String>;

/// Fact about measurements that are omitted.
const LATE: &str = "further measurements, because --quick ends after five minutes";

/// Whether the time of the scenario is over, which the section then states.
pub(crate) fn is_late(bench: &Bench, section: &mut Section) -> bool {
    let is_late = bench.is_late();
    if is_late {
        section.skip(LATE, "the time of this scenario is over");
    }
    is_late
}

/// Measures each of several things in every round, and records the results: one for each of its labels, in their order.
/// A failure is recorded as the reason of all of them, and does not end the measurement of the others.
pub(crate) fn measure_all<V>(
    bench: &Bench,
    section: &mut Section,
    things: &mut [V],
    labels: impl Fn(&V) -> Vec<Labels>,
    mut all: impl FnMut(&mut V, u32, &mut Section) -> Result<Vec<Measured>, Failure>,
) -> Result<(), Failure> {
    // In the order A B C A B C, never A A B B: a drift of the machine (temperature, neighbours, free memory) affects
    // all of them alike.
    for round in 0..bench.repetitions() {
        for thing in things.iter_mut() {
            bench.check_interrupted()?;
            if is_late(bench, section) {
                return Ok(());
            }
            let measured = or_reason(all(thing, round, section))?;
            // A failure may be an effect of the interruption.
            bench.check_interrupted()?;
            let labels = labels(thing);
            let measured = measured.unwrap_or_else(|reason| vec![Err(reason); labels.len()]);
            labels.iter().zip(measured).for_each(|(labels, one)| file(section, one, labels, round));
        }
    }
    Ok(())
}

/// Does the same for things with one measurement each.
pub(crate) fn measure<V>(
    bench: &Bench,
    section: &mut Section,
    things: &mut [V],
    labels: impl Fn(&V) -> Labels,
    mut one: impl FnMut(&mut V, u32, &mut Section) -> Result<Run, Failure>,
) -> Result<(), Failure> {
    measure_all(
        bench,
        section,
        things,
        |thing| vec![labels(thing)],
        |thing, round, section| Ok(vec![Ok(one(thing, round, section)?)]),
    )
}

/// Records one measurement under its labels.
pub(crate) fn file(section: &mut Section, measured: Measured, labels: &Labels, round: u32) {
    let mut run = measured
        .unwrap_or_else(|reason| Run { labels: [(NOTHING.to_owned(), reason)].into(), ..Run::default() });
    run.labels.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    run.labels.insert("round".to_owned(), round.to_string());
    section.runs.push(run);
}

/// Adds a figure that was measured once for all rounds to the measurements with these labels, or the reason why it is
/// missing.
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

/// Converts the failure of a measurement to the reason for its cell; an interruption by the user stays an error.
pub(crate) fn or_reason<T>(measured: Result<T, Failure>) -> Result<Result<T, String>, Failure> {
    match measured {
        Err(Failure::Interrupted) => Err(Failure::Interrupted),
        measured => Ok(measured.map_err(|failure| failure.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Progress, Scale};
    use crate::method::workspace::Workspace;

    #[test]
    fn a_failed_server_has_a_reason_and_the_others_are_measured() {
        let directory = std::env::temp_dir().join(format!("ringroad-comparison-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let bench = Bench {
            scale: Scale::Instant,
            progress: Progress::new(1),
            workspace: Workspace::new(&directory, false).unwrap(),
            ports: crate::peers::port::Ports::default(),
            is_own_network: false,
            ringroad: directory.clone(),
            peer_paths: Vec::new(),
            repetitions: Some(2),
            seconds: None,
            deadline: std::cell::Cell::default(),
        };
        let mut section = Section::default();
        let labels = |variant: &Variant| {
            ["one", "other"].map(|case| labels_of(variant, &at([("case", &case)]))).to_vec()
        };
        let run = |figure: f64| Ok(Run::of([("figure", figure)]));
        let all = |variant: &mut Variant, round: u32, _: &mut Section| match round {
            1 if variant.peer.is_some() => Err(Failure::Other("it ended".to_owned())),
            _ => Ok(vec![run(1.0), run(2.0)]),
        };
        measure_all(&bench, &mut section, &mut [NGINX, RING], labels, all).unwrap();
        let label = |run: &Run, name: &str| run.labels.get(name).cloned().unwrap_or_default();
        let found: Vec<_> = section
            .runs
            .iter()
            .map(|run| {
                let labels = ["server", "case", NOTHING].map(|name| label(run, name));
                (labels.join(" "), run.figures.get("figure").copied())
            })
            .collect();
        let found: Vec<_> = found.iter().map(|(labels, figure)| (labels.as_str(), *figure)).collect();
        let wanted = [
            ("nginx one ", Some(1.0)),
            ("nginx other ", Some(2.0)),
            ("io_uring one ", Some(1.0)),
            ("io_uring other ", Some(2.0)),
            ("nginx one it ended", None),
            ("nginx other it ended", None),
            ("io_uring one ", Some(1.0)),
            ("io_uring other ", Some(2.0)),
        ];
        assert_eq!(found, wanted);
        let stopped =
            measure_all(&bench, &mut section, &mut [RING], labels, |_, _, _| Err(Failure::Interrupted));
        assert!(matches!(stopped, Err(Failure::Interrupted)));
        // After the end of the scenario's time nothing is measured, and the section has the reason.
        bench.deadline.set(Some(std::time::Instant::now()));
        let mut late = Section::default();
        measure_all(&bench, &mut late, &mut [NGINX, RING], labels, all).unwrap();
        assert!(late.runs.is_empty() && late.skipped[0].name == LATE);
        drop(bench);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn configurations_differ_only_in_the_named_settings() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        let text = |variant: Variant| {
            let server = format!("{READY}\nlocation / {{ return 200; {}}}", variant.location);
            variant.configuration(&instance, &Text { server, ..Text::default() })
        };
        assert_eq!(text(EPOLL), text(NGINX));
        assert_eq!(text(RING), text(EPOLL).replace("use epoll", "use io_uring"));
        assert_eq!(text(RING.listening(" reuseport")), text(RING).replace("4096", "4096 reuseport"));
        assert_eq!(text(RING.with("aio on; ")), text(RING).replace("200; ", "200; aio on; "));
    }

    #[test]
    fn files_are_served_in_the_language_of_each_server() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        let text = |variant: Variant| variant.serving(&instance, Path::new("/files"), None, Text::default());
        let cached = NGINX.with("open_file_cache max=100; ");
        assert_eq!(text(cached), text(NGINX).replace("root", "open_file_cache max=100; root"));
        assert!(text(Variant::of("lighttpd", Peer::Lighttpd)).contains("server.document-root = \"/files\""));
        assert!(text(Variant::of("h2o", Peer::H2o)).contains("file.dir: /files"));
        for variant in [RING, Variant::of("h2o", Peer::H2o)] {
            let certificate = Some(Path::new("/key"));
            let text = variant.serving(&instance, Path::new("/files"), certificate, Text::default());
            assert_eq!(text.matches("/key").count(), 2, "{text}");
        }
    }
}
