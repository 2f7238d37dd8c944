//! The server under test: started in a separate directory and controlled by signals. It never outlives the test.
//!
//! [`ServerBuilder`] creates `conf/`, `logs/` and `html/`, completes the configuration and starts the binary with
//! `-p DIR -c conf/nginx.conf`. The server is ready when its pid file exists: by then it listens on every socket and
//! has logged a line `listening on ADDRESS` for each. [`Server::addr`] gets the ports that the kernel selected from
//! these lines. Dropping a [`Server`] kills it and its workers; if the test is panicking, its error log is printed
//! first.
//!
//! The first line of the configuration gets the directives that the harness relies on and the test omits: `daemon off`,
//! `pid logs/nginx.pid`, `error_log logs/error.log notice`. A test that sets `error_log` in the main context must use a
//! file and at least the level `notice`. The directives of [`EVENTS_VARIABLE`] are added to `events`, and
//! [`PROTOCOL_VARIABLE`](crate::bridge::PROTOCOL_VARIABLE) adds `http2 on`, [`SANDBOX_VARIABLE`] adds `sandbox`.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use rustix::process::Signal;

use crate::bridge;
use crate::conf_text::{main_directive, with_events, with_http_default, with_preamble};
use crate::files::Content;
use crate::nginx;
use crate::process::{self, Pid};
use crate::program::{Program, read_lossy, signal_process};
use crate::tempdir::TempDir;
use crate::wait::{self, Deadline};

/// Path of the configuration, relative to the directory.
const CONF_FILE: &str = "conf/nginx.conf";

/// The environment variable with directives for `events` of every server under test, unless its test has them:
/// `engine_fault write delay=50ms;` finds tests that assume that a write completes immediately.
pub const EVENTS_VARIABLE: &str = "RINGROAD_TEST_EVENTS";

/// The environment variable with the mode of the `sandbox` directive for every server under test whose configuration
/// has none: `off`, `on` or `strict`.
pub const SANDBOX_VARIABLE: &str = "RINGROAD_TEST_SANDBOX";

/// The beginning of the log line about a system call that a sandbox refused. No call of a test may be refused.
const REFUSED_CALL: &str = "sandbox: the system call";

/// The text before the address in a log line about a listening socket.
const LISTENING: &str = "listening on ";

/// Directives added to a configuration because of environment variables.
#[derive(Clone, Debug, Default)]
struct Additions {
    /// Directives for `events`.
    events: String,
    /// Whether `http2 on` is added, for tests of HTTP/1 that connect by HTTP/2.
    over_http2: bool,
    /// The mode of the sandbox.
    sandbox: Option<String>,
    /// Whether a test has no [`StrictLimit`].
    is_strict_possible: bool,
    /// Arguments of `sandbox_path`.
    sandbox_paths: Vec<String>,
    /// Whether the server knows directives that nginx does not have.
    is_ours: bool,
}

/// What `sandbox strict` does not permit; docs/sandbox.md and docs/tls.md have these limits.
#[derive(Clone, Copy, Debug)]
pub enum StrictLimit {
    /// The configuration or a variable has a private key, so that a worker would know it.
    KeyInWorker,
    /// A request determines the port of a connection, and no directive can name it.
    PortOfRequest,
}

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// IP address and port.
    Tcp(SocketAddr),
    /// Path of a unix socket.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Returns the address and port. Panics on a unix socket.
    pub fn tcp(&self) -> SocketAddr {
        match self {
            ListenAddr::Tcp(address) => *address,
            ListenAddr::Unix(path) => panic!("{} is a unix socket", path.display()),
        }
    }

    /// Parses the address after "listening on " in the log: `127.0.0.1:80`, `[::1]:80`, `unix:/path`.
    fn parse(text: &str) -> Option<ListenAddr> {
        match text.strip_prefix("unix:") {
            Some(path) => Some(ListenAddr::Unix(path.into())),
            None => {
                let text = text.strip_prefix("quic:").or_else(|| text.strip_prefix("udp:")).unwrap_or(text);
                text.parse().ok().map(ListenAddr::Tcp)
            }
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(address) => write!(f, "{address}"),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The start parameters of a server.
#[derive(Debug)]
pub struct ServerBuilder {
    binary: PathBuf,
    conf: String,
    additions: Additions,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    shell: Option<String>,
    addresses: Option<Vec<ListenAddr>>,
    deadline: Deadline,
    dir: TempDir,
    /// A directory that exists as long as the server runs.
    kept: Option<Arc<TempDir>>,
}

/// Starts a server that needs io_uring. The limit of locked memory applies to all servers of a user together: if it is
/// reached, the start is retried until other servers have ended.
#[track_caller]
pub fn start_with_memory(mut start: impl FnMut() -> Result<Server, String>) -> Server {
    let has_started = || match start() {
        Err(reason) if reason.contains("RLIMIT_MEMLOCK") => None,
        started => Some(started.unwrap_or_else(|failure| panic!("{failure}"))),
    };
    let server = wait::until("locked memory", Deadline::default(), has_started);
    server.unwrap_or_else(|late| panic!("{late}"))
}

impl ServerBuilder {
    /// Sets the configuration text. With port `:0` the kernel selects a port.
    pub fn conf(mut self, text: &str) -> ServerBuilder {
        self.conf = text.to_owned();
        self
    }

    /// Permits a path to the sandbox of the server, unless the server is nginx: `mirror`, `uploads rw`.
    pub fn sandbox_path(mut self, argument: &str) -> ServerBuilder {
        self.additions.sandbox_paths.push(argument.to_owned());
        self
    }

    /// Adds `sandbox on` instead of `sandbox strict`, because of a documented limit of `strict`.
    pub fn not_strict(mut self, _: StrictLimit) -> ServerBuilder {
        self.additions.is_strict_possible = false;
        self
    }

    /// Adds a command line argument.
    pub fn arg(mut self, arg: &str) -> ServerBuilder {
        self.args.push(arg.to_owned());
        self
    }

    /// Sets an environment variable of the server.
    pub fn env(mut self, name: &str, value: &str) -> ServerBuilder {
        self.envs.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets shell commands that run before the server is executed: `ulimit -S -n 256`.
    pub fn shell(mut self, commands: &str) -> ServerBuilder {
        self.shell = Some(commands.to_owned());
        self
    }

    /// Sets the time limit of the start.
    pub fn deadline(mut self, deadline: Deadline) -> ServerBuilder {
        self.deadline = deadline;
        self
    }

    /// Sets the addresses, for a server that does not log them.
    pub fn addresses(mut self, addresses: Vec<ListenAddr>) -> ServerBuilder {
        self.addresses = Some(addresses);
        self
    }

    /// Creates a file with known content, relative to the directory (`html/a.bin`).
    pub fn file(self, relative: &str, content: Content) -> ServerBuilder {
        content.write_to(&self.dir.path().join(relative));
        self
    }

    /// Creates a file with this text, relative to the directory.
    pub fn text(self, relative: &str, text: &str) -> ServerBuilder {
        self.dir.write(relative, text);
        self
    }

    /// Prevents the removal of another directory as long as the server runs. If it were removed with its creator, the
    /// worker would try to create it again, which fails unless all users may write to its parent.
    pub(crate) fn keep(mut self, dir: &Arc<TempDir>) -> ServerBuilder {
        self.kept = Some(Arc::clone(dir));
        self
    }

    /// Returns the directory, before the start: for links, devices and permissions that `file` cannot create.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the server and waits until it is ready; panics with its output on failure.
    #[track_caller]
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Starts the server and waits until it is ready; returns its output on failure.
    pub fn try_start(self) -> Result<Server, String> {
        let (deadline, pid_file) = (self.deadline, self.dir.path().join(pid_file(&self.conf)));
        let addresses = self.addresses.clone();
        let mut server = self.spawn();
        let outcome = wait::until("the pid file", deadline, || {
            // Checked before the file: the parent of a daemon exits successfully, but only after the daemon has written
            // the file.
            let ended = server.exited();
            if let Some(pid) = read_pid(&pid_file) {
                return Some(Ok(pid));
            }
            ended.map(|status| Err(format!("the server ended before it was ready: {status}")))
        });
        match outcome.unwrap_or_else(|late| Err(late.to_string())) {
            Ok(pid) => server.pid = pid,
            Err(failure) => return Err(format!("{failure}\n{}", server.evidence())),
        }
        server.addresses = addresses.unwrap_or_else(|| server.logged_addresses());
        Ok(server)
    }

    /// Runs the server until it exits, for configurations that it must reject and for `-t`.
    #[track_caller]
    pub fn run_to_end(self) -> (ExitStatus, String) {
        let deadline = self.deadline;
        let mut server = self.spawn();
        let status = server.wait_until_ended(deadline);
        (status, server.stderr())
    }

    fn spawn(self) -> Server {
        for folder in ["conf", "logs", "html"] {
            self.dir.dir(folder);
        }
        let root = self.dir.path().to_owned();
        self.dir.write(CONF_FILE, complete(&self.conf, &self.additions));
        let mut command = match &self.shell {
            None => Command::new(&self.binary),
            Some(commands) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("{commands} && exec \"$0\" \"$@\"")).arg(&self.binary);
                shell
            }
        };
        // nginx requires a slash at the end of the prefix, because it concatenates names to it.
        command.arg("-p").arg(format!("{}/", root.display())).arg("-c").arg(CONF_FILE).args(&self.args);
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        let is_daemon = main_directive(&self.conf, "daemon").is_some_and(|value| value == "on");
        let pid_file = Some(root.join(pid_file(&self.conf))).filter(|_| is_daemon);
        let program = Program::spawn_guarded(command, &root.join("logs"), pid_file.as_deref());
        Server {
            pid: program.pid(),
            program,
            error_log: main_directive(&self.conf, "error_log")
                .map_or_else(|| root.join("logs/error.log"), |name| root.join(name)),
            addresses: Vec::new(),
            conf: self.conf,
            additions: self.additions,
            dir: self.dir,
            _kept: self.kept,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    program: Program,
    /// The content of the pid file. It is the child of this process, unless the configuration has `daemon on`.
    pid: Pid,
    error_log: PathBuf,
    addresses: Vec<ListenAddr>,
    conf: String,
    additions: Additions,
    dir: TempDir,
    /// Removed after the program has exited.
    _kept: Option<Arc<TempDir>>,
}

impl Server {
    /// Prepares a server: `binary` is `env!("CARGO_BIN_EXE_ringroad")` in an integration test.
    pub fn builder(binary: impl Into<PathBuf>) -> ServerBuilder {
        let binary = binary.into();
        let is_ours = !binary.ends_with(nginx::BINARY);
        let events = std::env::var(EVENTS_VARIABLE).ok().filter(|_| is_ours);
        let over_http2 = bridge::is_enabled() && is_ours;
        let sandbox = std::env::var(SANDBOX_VARIABLE).ok().filter(|mode| is_ours && !mode.is_empty());
        ServerBuilder {
            binary,
            conf: String::new(),
            additions: Additions {
                events: events.unwrap_or_default(),
                over_http2,
                sandbox,
                is_strict_possible: true,
                sandbox_paths: Vec::new(),
                is_ours,
            },
            args: Vec::new(),
            envs: Vec::new(),
            shell: None,
            addresses: None,
            deadline: Deadline::default(),
            dir: TempDir::new("server"),
            kept: None,
        }
    }

    /// Starts a server that needs only its configuration.
    #[track_caller]
    pub fn start(binary: impl Into<PathBuf>, conf: &str) -> Server {
        Server::builder(binary).conf(conf).start()
    }

    /// Returns the address of the listener with this index, in the order of the configuration.
    #[track_caller]
    pub fn addr(&self, index: usize) -> &ListenAddr {
        let known = self.addresses.len();
        self.addresses
            .get(index)
            .unwrap_or_else(|| panic!("listener {index} of {known}\n{}", self.evidence()))
    }

    /// Returns the addresses logged so far, in order: for reloads that added listeners.
    pub fn logged_addresses(&self) -> Vec<ListenAddr> {
        let log = self.error_log();
        let after = |line: &str| line.split_once(LISTENING).map(|(_, address)| address.trim().to_owned());
        log.lines().filter_map(after).filter_map(|address| ListenAddr::parse(&address)).collect()
    }

    /// Returns the process id of the master, or of the only process with `master_process off`.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the worker processes: the running children of the master, without the signing process of `sandbox strict` and
    /// the one of ACME. Empty with `master_process off`.
    pub fn workers(&self) -> Vec<Pid> {
        let others = ["ringroad: signing process", "ringroad: acme process"];
        let mut children = process::children(self.pid);
        children.retain(|&pid| !others.iter().any(|title| process::command_line_begins(pid, title)));
        children
    }

    /// Returns the only worker process. Waits while there are several, as after a reload that started a new one.
    pub fn worker(&self) -> Pid {
        let only = || match self.workers()[..] {
            [worker] => Some(worker),
            _ => None,
        };
        wait::until("exactly one worker process", Deadline::default(), only)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Whether one worker process runs, and it is none of these.
    pub fn is_replaced(&self, before: &[Pid]) -> bool {
        // One list: a worker may start between two.
        matches!(self.workers()[..], [worker] if !before.contains(&worker))
    }

    /// Returns the directory that `-p` names.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a path below the directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// Like [`ServerBuilder::keep`], for a running server.
    pub(crate) fn keep(&mut self, dir: &Arc<TempDir>) {
        self._kept = Some(Arc::clone(dir));
    }

    /// Keeps the directory for inspection.
    pub fn keep_dir(&mut self) {
        self.dir.keep();
    }

    /// Returns the configuration as the test set it.
    pub fn conf(&self) -> &str {
        &self.conf
    }

    /// Replaces the configuration file, completed as at the start. Call [`Server::reload`] afterwards.
    pub fn rewrite_conf(&mut self, text: &str) {
        self.conf = text.to_owned();
        self.dir.write(CONF_FILE, complete(text, &self.additions));
    }

    /// Sends SIGHUP. The log shows the result: [`Server::wait_for_log`].
    #[track_caller]
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    /// Sends a signal to the master.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        signal_process(self.pid, signal)
            .unwrap_or_else(|error| panic!("{signal:?} to {}: {error}\n{}", self.pid, self.evidence()));
    }

    /// Sends SIGQUIT and waits for the exit.
    #[track_caller]
    pub fn quit_and_wait(mut self) -> ExitStatus {
        self.signal(Signal::QUIT);
        self.wait_until_ended(Deadline::default())
    }

    /// Sends SIGTERM and waits for the exit.
    #[track_caller]
    pub fn stop_and_wait(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_until_ended(Deadline::default())
    }

    /// Waits for the server's exit without sending a signal. With `daemon on`, the status is that of the process that
    /// was started: only its status is available to the test.
    #[track_caller]
    pub fn wait_until_ended(&mut self, deadline: Deadline) -> ExitStatus {
        let ended = wait::until("the server's end", deadline, || {
            self.exited().filter(|_| !self.is_daemon() || !process::is_alive(self.pid))
        });
        ended.unwrap_or_else(|late| panic!("{late}\n{}", self.evidence()))
    }

    /// Returns the exit status if the started process has exited; the status is stored.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.program.exited()
    }

    /// Returns the error log so far.
    pub fn error_log(&self) -> String {
        read_lossy(&self.error_log)
    }

    /// Returns the access log so far: `logs/access.log`, nginx's default below its prefix.
    pub fn access_log(&self) -> String {
        read_lossy(&self.path("logs/access.log"))
    }

    /// Returns the standard error of the server.
    pub fn stderr(&self) -> String {
        self.program.stderr()
    }

    /// Returns the standard output of the server.
    pub fn stdout(&self) -> String {
        self.program.stdout()
    }

    /// Waits until a line of the error log contains `text`; returns the first such line.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str, deadline: Deadline) -> String {
        self.wait_for_log_count(text, 1, deadline)
    }

    /// Waits until `count` lines of the error log contain `text`; returns the last of those.
    #[track_caller]
    pub fn wait_for_log_count(&self, text: &str, count: usize, deadline: Deadline) -> String {
        let what = format!("{text:?} in the error log, {count} times");
        let found = wait::until(&what, deadline, || {
            let log = self.error_log();
            let line = log.lines().filter(|line| line.contains(text)).nth(count.saturating_sub(1));
            line.map(str::to_owned)
        });
        found.unwrap_or_else(|late| panic!("{late}\n{}", self.evidence()))
    }

    /// Waits until the access log has `count` lines, and returns it: a line may be written after the response.
    #[track_caller]
    pub fn wait_for_access_log(&self, count: usize, deadline: Deadline) -> String {
        let what = format!("{count} lines in the access log");
        let found = wait::until(&what, deadline, || {
            let log = self.access_log();
            (log.lines().count() >= count).then_some(log)
        });
        found.unwrap_or_else(|late| panic!("{late}\n{}{}", self.access_log(), self.evidence()))
    }

    /// Whether the serving process is not the process that was started.
    fn is_daemon(&self) -> bool {
        self.pid != self.program.pid()
    }

    fn evidence(&self) -> String {
        format!("--- error log\n{}--- stderr\n{}", self.error_log(), self.stderr())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("testkit: logs of the server of the failed test\n{}", self.evidence());
        } else if let Some(line) = self.error_log().lines().find(|line| line.contains(REFUSED_CALL)) {
            panic!("the sandbox lacks a call: {line}");
        }
        // A daemon is not a child of this process, and its pid may be out of date. Its command line confirms the pid,
        // because it contains the server's directory.
        if self.is_daemon() && process::command_line_has(self.pid, self.dir.path()) {
            // The master is killed first, because it would replace killed workers.
            let workers = self.workers();
            for pid in [self.pid].into_iter().chain(workers) {
                let _ = signal_process(pid, Signal::KILL);
            }
        }
    }
}

/// Adds the directives that the harness relies on and the text omits.
fn complete(conf: &str, additions: &Additions) -> String {
    let defaults = [
        ("daemon", "daemon off;"),
        ("pid", "pid logs/nginx.pid;"),
        ("error_log", "error_log logs/error.log notice;"),
    ];
    let missing = defaults.iter().filter(|(name, _)| main_directive(conf, name).is_none());
    // `strict` needs a master, which starts the signing process.
    let is_strict_possible = additions.is_strict_possible
        && main_directive(conf, "master_process").is_none_or(|value| value != "off");
    let mode = additions.sandbox.as_deref().map(|mode| match mode {
        "strict" if !is_strict_possible => "on",
        mode => mode,
    });
    let sandbox = mode.iter().filter(|_| main_directive(conf, "sandbox").is_none());
    let paths = additions.sandbox_paths.iter().filter(|_| additions.is_ours);
    let paths = paths.map(|path| format!("sandbox_path {path};"));
    let sandbox: Vec<String> = sandbox.map(|mode| format!("sandbox {mode};")).chain(paths).collect();
    let mut conf = with_events(conf, &additions.events);
    if additions.over_http2 {
        conf = with_http_default(&conf, "http2", "on");
    }
    with_preamble(&conf, &missing.map(|(_, line)| (*line).to_owned()).chain(sandbox).collect::<Vec<_>>())
}

/// Returns the pid file's name, relative to the prefix unless absolute.
fn pid_file(conf: &str) -> String {
    main_directive(conf, "pid").unwrap_or_else(|| "logs/nginx.pid".to_owned())
}

/// Reads the pid once the file is complete: it ends with a newline.
fn read_pid(path: &Path) -> Option<Pid> {
    fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()
}
