//! The web servers of a run: Ringroad, nginx, lighttpd, H2O, HAProxy. Each is started in the same way: with a configuration in
//! its language, on a free port, and with a separate directory. At the end all its processes are ended.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::process::{Child, Launch};
use crate::peers::client::{self, Client};
use crate::peers::tool::Peer;

/// Timeout of a server's first response. Loading a cache at the start may need much of it.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The same for instant runs: a peer that does not respond should not delay a test for long.
const READY_TIMEOUT_INSTANT: Duration = Duration::from_secs(8);

/// Timeout of a graceful shutdown, including the state that the server saves.
const QUIT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    kind: ProgramKind,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramKind {
    /// Ringroad, configured in nginx's language.
    Ours,
    Peer(Peer),
    /// The echo server of this suite, which does not speak HTTP. Its configuration is its command line.
    Echo,
}

impl Program {
    /// Returns Ringroad, in the build to be measured.
    pub(crate) fn ours(bench: &Bench) -> Program {
        Program { kind: ProgramKind::Ours, path: bench.ringroad.clone() }
    }

    /// Returns a peer, or why it is not available.
    pub(crate) fn of(bench: &Bench, peer: Peer) -> Result<Program, String> {
        Ok(Program { kind: ProgramKind::Peer(peer), path: peer.find(&bench.peer_paths)?.path })
    }

    /// Returns the echo server, which is part of this program.
    pub(crate) fn echo() -> Program {
        Program { kind: ProgramKind::Echo, path: PathBuf::from("/proc/self/exe") }
    }

    /// Returns the start of every configuration of this program: the server stays in the foreground and writes only
    /// into its directory.
    fn head(&self, instance: &Instance) -> String {
        let (host, directory) = (instance.host, instance.directory.display());
        match self.kind {
            // HAProxy writes to its standard error, and its address is below the first section of its configuration.
            ProgramKind::Echo | ProgramKind::Peer(Peer::Haproxy) => String::new(),
            ProgramKind::Peer(Peer::Lighttpd) => format!(
                "server.bind = \"{host}\"\nserver.port = {}\nserver.pid-file = \"{directory}/logs/pid\"\n\
                 server.errorlog = \"{directory}/logs/error.log\"\n",
                instance.port
            ),
            ProgramKind::Peer(Peer::H2o) => {
                let user = if rustix::process::geteuid().is_root() { "user: root\n" } else { "" };
                format!(
                    "pid-file: {directory}/logs/pid\nerror-log: {directory}/logs/error.log\n{user}\
                     listen:\n  host: {host}\n  port: {}\n",
                    instance.port
                )
            }
            _ => {
                // With workers as root, permissions of files and cgroups need no attention.
                let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
                format!(
                    "daemon off;\npid {directory}/logs/pid;\nerror_log {directory}/logs/error.log warn;\n{user}"
                )
            }
        }
    }

    /// Returns the command line, in the syntax of each program.
    fn arguments(&self, directory: &Path, conf: &Path, text: &str) -> Vec<OsString> {
        let (prefix, conf) = (format!("{}/", directory.display()), conf.display().to_string());
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        match self.kind {
            ProgramKind::Echo => words(&text.split_ascii_whitespace().collect::<Vec<_>>()),
            ProgramKind::Ours => words(&["-p", &prefix, "-c", &conf]),
            ProgramKind::Peer(Peer::Lighttpd) => words(&["-D", "-f", &conf]),
            ProgramKind::Peer(Peer::H2o) => words(&["-c", &conf]),
            ProgramKind::Peer(Peer::Haproxy) => words(&["-db", "-f", &conf]),
            // Without -e, nginx complains about its compiled-in log path, which only root may open.
            ProgramKind::Peer(_) => {
                words(&["-p", &prefix, "-c", &conf, "-e", &format!("{prefix}logs/error.log")])
            }
        }
    }
}

/// The parts of a configuration that differ between instances.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Address to listen on.
    pub(crate) host: Ipv4Addr,
    pub(crate) port: u16,
    /// The server's directory: logs, caches, temporary files. Removed with the run.
    pub(crate) directory: PathBuf,
}

/// The conditions under which a server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    /// Allowed processors; empty means all.
    pub(crate) cpus: Vec<usize>,
    /// Directories of cgroups to join ([`crate::method::cgroup::Group::directories`]).
    pub(crate) groups: Vec<PathBuf>,
    /// The address to listen on; if `None`, that of loopback.
    pub(crate) host: Option<Ipv4Addr>,
    /// The port to listen on, one of [`Bench::ports`]; if `None`, any free port.
    pub(crate) port: Option<u16>,
    /// TLS client settings, if the server speaks TLS: a completed handshake then counts as its first response.
    pub(crate) tls: Option<tls::Client>,
}

/// A running server. Dropping it ends the server.
#[derive(Debug)]
pub(crate) struct Server {
    instance: Instance,
    /// The exact configuration that it was started with.
    pub(crate) configuration: String,
    pub(crate) child: Child,
}

impl Server {
    /// Starts the server under a name for messages, and waits for its first response, of any status. Fails with the
    /// server's last output line if it exits or does not respond. `configuration` writes the text after the
    /// head of [`Program`] (process id, error log, foreground; for lighttpd and H2O the address too).
    pub(crate) fn start(
        bench: &Bench,
        label: &str,
        program: &Program,
        conditions: &Conditions,
        configuration: impl FnOnce(&Instance) -> String,
    ) -> Result<Server, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory =
            bench.workspace.directory(&format!("server-{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        let port = conditions.port.map_or_else(|| bench.ports.reserve(), Ok)?;
        let host = conditions.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let instance = Instance { host, port, directory };
        let configuration = format!("{}{}", program.head(&instance), configuration(&instance));
        let logs = instance.directory.join("logs");
        fs::create_dir_all(&logs).map_err(Failure::file("create the directory", &logs))?;
        let conf = instance.directory.join("server.conf");
        fs::write(&conf, &configuration).map_err(Failure::file("write", &conf))?;
        let launch = Launch {
            arguments: program.arguments(&instance.directory, &conf, &configuration),
            cpus: conditions.cpus.clone(),
            groups: conditions.groups.clone(),
            directory: Some(instance.directory.clone()),
            ..Launch::new(label, &program.path)
        };
        let child = launch.start(&logs.join("output"))?;
        let mut server = Server { instance, configuration, child };
        let limit = if bench.scale == Scale::Instant { READY_TIMEOUT_INSTANT } else { READY_TIMEOUT };
        let address = server.address();
        let waited = server.child.wait_until(limit, || match &conditions.tls {
            None if program.kind == ProgramKind::Echo => TcpStream::connect(address).is_ok(),
            None => client::get(address, "/ready").is_ok(),
            Some(client) => Client::connect(address, Some(client)).is_ok(),
        });
        waited.map_err(|failure| server.failed(failure))?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.instance.host, self.instance.port))
    }

    /// Returns the URL of a path, which starts with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Fails with its last output line if it has exited.
    pub(crate) fn check_running(&mut self) -> Result<(), Failure> {
        match self.child.ended() {
            None => Ok(()),
            Some(_) => Err(self.failed(self.child.problem("exited while it was measured"))),
        }
    }

    /// Requests a graceful shutdown (SIGQUIT), waits for it, and then ends the server.
    pub(crate) fn quit(mut self) {
        self.child.signal(rustix::process::Signal::QUIT);
        self.child.wait(QUIT_TIMEOUT);
    }

    /// Adds the complete error log to a failure, if there is one.
    pub(crate) fn with_log(&self, failure: Failure) -> Failure {
        match fs::read_to_string(self.instance.directory.join("logs/error.log")) {
            Ok(log) if !log.is_empty() => Failure::Other(format!("{failure}; error log: {log}")),
            _ => failure,
        }
    }

    /// Replaces the standard error in a failure by the error log, if there is one: it is more detailed.
    fn failed(&self, failure: Failure) -> Failure {
        let log = crate::method::process::last_output(&self.instance.directory.join("logs/error.log"));
        match failure {
            Failure::Program { name, problem, said } if !log.is_empty() && !said.contains(&log) => {
                let said = if said.is_empty() { log } else { format!("{said}; {log}") };
                Failure::Program { name, problem, said }
            }
            other => other,
        }
    }
}
