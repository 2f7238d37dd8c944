//! Web servers of a run: ours, nginx, lighttpd, H2O. Each is started in the same way, with a configuration in its own
//! language, on a port that is free, with files in a directory of its own; and is ended with all its processes.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::process::{Child, CpuTime, Launch};
use crate::peers::client::Client;
use crate::peers::tool::{Missing, Peer};

/// How long a server has until its first response. A cache that is read at the start may need some of it.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The same where nothing is measured: a peer that does not respond should not hold up a test for long.
const READY_TIMEOUT_INSTANT: Duration = Duration::from_secs(8);

/// How long one attempt to get a response may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a server may take to finish in order, with what it saves then.
const QUIT_TIMEOUT: Duration = Duration::from_secs(15);

/// Which server: the program, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    kind: ProgramKind,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramKind {
    /// Reads nginx's language.
    Ours,
    Peer(Peer),
    /// A server of this suite, which speaks no HTTP. Its configuration is its command line.
    Echo,
}

impl Program {
    /// Ours, in the build that is measured.
    pub(crate) fn ours(bench: &Bench) -> Program {
        Program { kind: ProgramKind::Ours, path: bench.ringroad.clone() }
    }

    /// Another one, where it is installed.
    pub(crate) fn of(bench: &Bench, peer: Peer) -> Result<Program, Missing> {
        Ok(Program { kind: ProgramKind::Peer(peer), path: peer.find(bench)?.path })
    }

    /// The echo server of this very program.
    pub(crate) fn echo() -> Program {
        Program { kind: ProgramKind::Echo, path: PathBuf::from("/proc/self/exe") }
    }

    /// What every configuration of it starts with: it stays in the foreground and writes into its own directory only.
    fn head(&self, instance: &Instance) -> String {
        let directory = instance.directory.display();
        match self.kind {
            ProgramKind::Echo => String::new(),
            ProgramKind::Peer(Peer::Lighttpd) => format!(
                "server.bind = \"127.0.0.1\"\nserver.port = {}\nserver.pid-file = \"{directory}/logs/pid\"\n\
                 server.errorlog = \"{directory}/logs/error.log\"\n",
                instance.port
            ),
            ProgramKind::Peer(Peer::H2o) => {
                let user = if rustix::process::geteuid().is_root() { "user: root\n" } else { "" };
                format!(
                    "pid-file: {directory}/logs/pid\nerror-log: {directory}/logs/error.log\n{user}\
                     listen:\n  host: 127.0.0.1\n  port: {}\n",
                    instance.port
                )
            }
            _ => {
                // Workers that keep root need no further care for rights of files and groups.
                let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
                format!(
                    "daemon off;\npid {directory}/logs/pid;\nerror_log {directory}/logs/error.log warn;\n{user}"
                )
            }
        }
    }

    /// Each has its own way to be told of a configuration.
    fn arguments(&self, directory: &Path, conf: &Path, text: &str) -> Vec<String> {
        let (prefix, conf) = (format!("{}/", directory.display()), conf.display().to_string());
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match self.kind {
            ProgramKind::Echo => words(&text.split_ascii_whitespace().collect::<Vec<_>>()),
            ProgramKind::Ours => words(&["-p", &prefix, "-c", &conf]),
            ProgramKind::Peer(Peer::Lighttpd) => words(&["-D", "-f", &conf]),
            ProgramKind::Peer(Peer::H2o) => words(&["-c", &conf]),
            // Without -e it complains about the log that is built in, which only root may open.
            ProgramKind::Peer(_) => {
                words(&["-p", &prefix, "-c", &conf, "-e", &format!("{prefix}logs/error.log")])
            }
        }
    }
}

/// What a configuration has to know of where it is used.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Where it listens on loopback.
    pub(crate) port: u16,
    /// The server's own directory: logs, caches, temporary files. Gone with the run.
    pub(crate) directory: PathBuf,
}

/// How a server is to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    /// Processors that it may use; none means all.
    pub(crate) cpus: Vec<usize>,
    /// Directories of control groups ([`crate::method::cgroup::Group::directories`]).
    pub(crate) groups: Vec<PathBuf>,
    /// The port to listen on; none takes one that is free.
    pub(crate) port: Option<u16>,
    /// The path that is asked for until it responds; "" means `/ready`.
    pub(crate) ready_path: String,
    /// What a handshake with it is made with, where it speaks TLS: the end of one is its first response.
    pub(crate) tls: Option<tls::Client>,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    /// What tables and messages call it.
    label: String,
    instance: Instance,
    configuration: String,
    child: Child,
}

impl Server {
    /// Starts it and waits for its first response, of whatever status. `configuration` writes all that follows the head
    /// of [`Program`] (process id, error log, foreground; for lighttpd and H2O the address too).
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
        let port = port_for(conditions.port)?;
        let instance = Instance { port, directory };
        let configuration = format!("{}{}", program.head(&instance), configuration(&instance));
        let logs = instance.directory.join("logs");
        fs::create_dir_all(&logs).map_err(Failure::file("create the directory", &logs))?;
        let conf = instance.directory.join("server.conf");
        fs::write(&conf, &configuration).map_err(Failure::file("write", &conf))?;
        let child = Launch::new(label, &program.path)
            .arguments(program.arguments(&instance.directory, &conf, &configuration))
            .cpus(&conditions.cpus)
            .groups(&conditions.groups)
            .directory(&instance.directory)
            .start(&logs.join("output"))?;
        let mut server = Server { label: label.to_owned(), instance, configuration, child };
        let limit = if bench.scale == Scale::Instant { READY_TIMEOUT_INSTANT } else { READY_TIMEOUT };
        server.wait_until_ready(limit, program, conditions)?;
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.instance.port))
    }

    /// The address of a path, which starts with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.instance.port)
    }

    /// The exact text that it was started with.
    pub(crate) fn configuration(&self) -> &str {
        &self.configuration
    }

    /// The ids of all its processes.
    pub(crate) fn tree(&self) -> std::collections::BTreeSet<u32> {
        self.child.tree()
    }

    /// Processor time of all its processes up to now.
    pub(crate) fn cpu_time(&self) -> CpuTime {
        self.child.cpu_time()
    }

    /// Fails with its last words when it has ended by itself.
    pub(crate) fn check_running(&mut self) -> Result<(), Failure> {
        match self.child.ended() {
            None => Ok(()),
            Some(_) => Err(self.failed(self.child.problem("ended while it was measured"))),
        }
    }

    /// Its response to a request over a new connection, header section and body; none where it does not respond.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        get(self.address(), path)
    }

    /// Asks it to finish in order (SIGQUIT), gives it time for that, and ends it.
    pub(crate) fn quit(mut self) {
        self.child.signal(rustix::process::Signal::QUIT);
        self.child.wait(QUIT_TIMEOUT);
        self.child.end();
    }

    /// Ends it with all its processes.
    pub(crate) fn end(mut self) {
        self.child.end();
    }

    /// A server that ends or stays silent fails with its last words.
    fn wait_until_ready(
        &mut self,
        limit: Duration,
        program: &Program,
        conditions: &Conditions,
    ) -> Result<(), Failure> {
        let path = if conditions.ready_path.is_empty() { "/ready" } else { &conditions.ready_path };
        let address = self.address();
        let waited = self.child.wait_until(limit, || match &conditions.tls {
            None if program.kind == ProgramKind::Echo => TcpStream::connect(address).is_ok(),
            None => answers(address, path),
            Some(client) => Client::connect(address, Some(client)).is_ok(),
        });
        waited.map_err(|failure| self.failed(failure))
    }

    /// The error log says more than the standard error, where there is one.
    fn failed(&self, failure: Failure) -> Failure {
        let log = crate::method::process::last_words(&self.instance.directory.join("logs/error.log"));
        match failure {
            Failure::Program { name, problem, said } if !log.is_empty() && !said.contains(&log) => {
                Failure::Program {
                    name,
                    problem,
                    said: if said.is_empty() { log } else { format!("{said}; {log}") },
                }
            }
            other => other,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on port {}", self.label, self.instance.port)
    }
}

/// A port that nothing listens on.
pub(crate) fn free_port() -> Result<u16, Failure> {
    port_for(None)
}

/// The wanted port if it is free, or any free port.
fn port_for(wanted: Option<u16>) -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.unwrap_or(0))).map_err(|error| {
        Failure::Kernel { doing: format!("listening on 127.0.0.1:{}", wanted.unwrap_or(0)), error }
    })?;
    // It is free again when this returns: the only other user of loopback ports is this run.
    let address = listener.local_addr().map_err(Failure::kernel("getsockname"))?;
    Ok(address.port())
}

/// Whether something that speaks HTTP responds there.
pub(crate) fn answers(address: SocketAddr, path: &str) -> bool {
    get(address, path).is_some_and(|said| said.starts_with("HTTP/1."))
}

/// All bytes that a request over a new connection brings; none where that fails.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect_timeout(&address, PROBE_TIMEOUT).ok()?;
    socket.set_read_timeout(Some(PROBE_TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).ok()?;
    let mut said = Vec::new();
    socket.read_to_end(&mut said).ok()?;
    Some(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_one_line() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let failure = port_for(Some(port)).unwrap_err().to_string();
        assert!(failure.starts_with(&format!("listening on 127.0.0.1:{port}: ")), "{failure}");
        assert_ne!(port_for(None).unwrap(), port);
    }

    #[test]
    fn silence_and_other_protocols_are_no_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let speak = |words: &'static [u8]| {
            let listener = listener.try_clone().unwrap();
            std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = [0; 512];
                assert!(socket.read(&mut request).unwrap() > 0);
                socket.write_all(words).unwrap();
            })
        };
        for (words, answer) in
            [(&b"HTTP/1.1 204 No Content\r\n\r\n"[..], true), (b"220 mail ready\r\n", false), (b"", false)]
        {
            let speaker = speak(words);
            assert_eq!(answers(address, "/ready"), answer);
            speaker.join().unwrap();
        }
        drop(listener);
        assert!(!answers(address, "/ready"));
    }
}
