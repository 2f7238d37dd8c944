//! gRPC with its official libraries: grpc-go and Python's grpcio, on both sides of `grpc_pass`. Each kind of call, with
//! and without TLS, and calls that continue while connections are closed and processes exit.
//!
//! The programs are `grpc/go` and `grpc/calls.py`. Both have the same command-line arguments.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::tls::Authority;
use crate::common::{BINARY, Running};
use rustix::process::Signal;
use testkit::program::{run, signal_process};
use testkit::{Deadline, Server, Setup, TempDir, wait};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info; admin_socket admin.sock;
events { }
http {
  client_max_body_size 100m; large_client_header_buffers 4 32k; grpc_buffer_size 32k;
  keepalive_requests @REQUESTS@;
  log_format calls '$server_addr $connection "$request" $status .'; access_log logs/access.log calls;
  upstream app { server @APP@; keepalive 8; }
  server { listen 127.0.0.1:0; http2 on; location / { grpc_pass grpc://app; } }
  server { listen 127.0.0.2:0 ssl; http2 on; ssl_certificate a.pem; ssl_certificate_key a.key;
           grpc_deadline on; location / { grpc_pass grpc://app; } }
}
"#;

/// Every kind of call.
const KINDS: [&str; 9] = ["unary", "large", "metadata", "down", "up", "both", "fails", "deadline", "cancel"];

/// Number of concurrent calls.
const WORKERS: usize = 6;

/// How to start the program of a language.
struct Language {
    program: PathBuf,
    script: Option<PathBuf>,
    _folder: TempDir,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc")
}

/// Builds the Go program; its modules come from the module cache, or from the proxy.
fn go() -> Option<Language> {
    let dir = TempDir::new("grpc-go");
    let program = dir.path().join("calls");
    let run = |args: &[&str]| Command::new("go").args(args).current_dir(directory().join("go")).output();
    if !run(&["mod", "download"]).is_ok_and(|output| output.status.success()) {
        testkit::skip("go is not installed, or has no access to its modules (google.golang.org/grpc)");
        return None;
    }
    let built = run(&["build", "-o", program.to_str()?, "."]).expect("it is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(Language { program, script: None, _folder: dir })
}

fn python() -> Option<Language> {
    let import = Command::new("python3").args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    if !import.is_ok_and(|status| status.success()) {
        testkit::skip("grpcio is not installed (python3 -m pip install grpcio)");
        return None;
    }
    let script = Some(directory().join("calls.py"));
    Some(Language { program: PathBuf::from("python3"), script, _folder: TempDir::new("grpc-python") })
}

/// A running program, and the lines that it prints.
struct Peer {
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All lines printed so far.
    seen: Vec<String>,
    _running: Running,
}

impl Language {
    fn start(&self, args: &[&str]) -> Peer {
        let mut command = Command::new(&self.program);
        command.args(self.script.as_deref()).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("it is a program");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Peer { input, lines, seen: Vec::new(), _running: Running(child) }
    }

    /// Starts a gRPC server; returns it with its address.
    fn serve(&self) -> (Peer, String) {
        let mut peer = self.start(&["server"]);
        let address = peer.wait(|line| Some(line.strip_prefix("listening ")?.to_owned()));
        (peer, address)
    }
}

impl Peer {
    /// Waits for a line.
    fn wait<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Deadline::default();
        loop {
            let left = deadline.left().unwrap_or_default();
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|end| panic!("{end}: {}", self.seen.join("\n")));
            let found = find(&line);
            self.seen.push(line);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Returns the number of calls, streams and failures so far.
    fn counts(&mut self) -> [u64; 3] {
        self.input.as_mut().and_then(|input| input.write_all(b"?").and_then(|()| input.flush()).ok());
        self.wait(|line| numbers(line, "so far "))
    }

    /// Waits until a number of further calls, and a further stream, have been made.
    fn go_on(&mut self) {
        let [calls, streams, _] = self.counts();
        let more = || {
            let now = self.counts();
            (now[0] >= calls + 60 && now[1] > streams).then_some(())
        };
        wait::until("calls", Deadline::default(), more).expect("they go on");
    }

    /// Stops the calls, and returns their numbers.
    fn finish(&mut self) -> [u64; 3] {
        self.input = None;
        self.wait(|line| numbers(line, "done "))
    }

    fn failures(&self) -> Vec<&String> {
        self.seen.iter().filter(|line| line.starts_with("failed")).collect()
    }
}

fn numbers(line: &str, name: &str) -> Option<[u64; 3]> {
    let mut numbers = line.strip_prefix(name)?.split(' ').map(|number| number.parse().expect("a number"));
    Some(std::array::from_fn(|_| numbers.next().expect("three of them")))
}

/// Starts the proxy in front of a gRPC server; returns it with its CA file.
fn start(app: &str, requests: usize) -> (Server, PathBuf) {
    let authority = Authority::new("root");
    let (pem, key) = authority.server("a.test");
    let setup = Setup::new(CONF).value("APP", app).value("REQUESTS", &requests.to_string());
    let builder = setup.builder(BINARY).text("conf/a.pem", &pem).text("conf/a.key", &key);
    let server = builder.text("conf/root.pem", &authority.pem).start();
    let root = server.path("conf/root.pem");
    (server, root)
}

fn each_kind(language: &Language) {
    let (_app, address) = language.serve();
    let (server, root) = start(&address, 1000);
    let root = root.to_str().expect("a path");
    for (index, authority) in [(0, None), (1, Some(root))] {
        let address = server.addr(index).tcp().to_string();
        let args = ["client", &address].into_iter().chain(authority).collect::<Vec<_>>();
        let mut client = language.start(&args);
        for kind in KINDS {
            client.wait(|line| match line.strip_prefix("ok ") {
                Some(found) => (found == kind).then_some(()),
                None => panic!("{kind}: {line}"),
            });
        }
    }
}

#[test]
fn each_kind_of_grpc_call_from_go_works() {
    go().iter().for_each(each_kind);
}

#[test]
fn each_kind_of_grpc_call_from_python_works() {
    python().iter().for_each(each_kind);
}

/// Asserts that each server has had one connection.
fn assert_one_connection_each(server: &Server) {
    for index in [0, 1] {
        let address = format!("{} ", server.addr(index).tcp().ip());
        let is_logged = || server.access_log().contains(&address).then_some(());
        wait::until("log lines", Deadline::default(), is_logged).expect("there were calls");
        let log = server.access_log();
        let of_server = log.lines().filter_map(|line| line.strip_prefix(&address));
        let numbers: HashSet<&str> = of_server.filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(numbers.len(), 1, "{log}");
    }
}

/// Calls whose deadlines expire are cancelled by their client, 200 on one connection, before or after the proxy has passed them
/// on. None may end the connection: the client would report UNAVAILABLE for other calls.
#[test]
fn two_hundred_deadlines_of_go_end_no_other_call() {
    const CALLS: u64 = 200;
    let Some(go) = go() else { return };
    let (_app, address) = go.serve();
    let (server, root) = start(&address, 1000);
    let root = root.to_str().expect("a path");
    for (index, authority) in [(0, None), (1, Some(root))] {
        let (address, count) = (server.addr(index).tcp().to_string(), CALLS.to_string());
        let args = ["deadlines", &address, &count].into_iter().chain(authority).collect::<Vec<_>>();
        let counts = go.start(&args).wait(|line| match line.strip_prefix("expired ") {
            Some(counts) => Some(counts.to_owned()),
            None => panic!("{line}"),
        });
        // The proxy or the server may notice a deadline first: a call is then cancelled there.
        let number = |code: &str| {
            let (_, rest) = counts.split_once(&format!("{code}:"))?;
            rest.split([' ', ']']).next()?.parse::<u64>().ok()
        };
        let [expired, cancelled] = ["DeadlineExceeded", "Canceled"].map(|code| number(code).unwrap_or(0));
        assert_eq!(expired + cancelled, CALLS, "{counts}");
        assert!(expired > 0, "{counts}");
    }
    assert_one_connection_each(&server);
}

/// A channel of grpcio cancels 129 streaming calls, one more than the number of concurrent streams of the proxy.
#[test]
fn cancelled_streaming_calls_of_python_end_no_other_stream() {
    const CALLS: u64 = 129;
    let Some(python) = python() else { return };
    let (_app, address) = python.serve();
    let (server, root) = start(&address, 1000);
    let root = root.to_str().expect("a path");
    for (index, authority) in [(0, None), (1, Some(root))] {
        let (address, count) = (server.addr(index).tcp().to_string(), CALLS.to_string());
        let args = ["cancels", &address, &count].into_iter().chain(authority).collect::<Vec<_>>();
        python.start(&args).wait(|line| match line.strip_prefix("cancelled ") {
            Some(_) => Some(()),
            None => panic!("{line}"),
        });
    }
    assert_one_connection_each(&server);
}

/// Connections that are closed after some requests, a reload in place, replaced processes, and a drain: clients are
/// informed of each by GOAWAY, and no call over TLS fails.
fn no_call_fails(language: &Language) {
    let (_app, address) = language.serve();
    let (mut server, root) = start(&address, 25);
    let address = server.addr(1).tcp().to_string();
    let mut load = language.start(&["load", &address, &WORKERS.to_string(), root.to_str().expect("a path")]);
    load.go_on();
    let reloaded = server.conf().replace("keepalive_requests 25", "keepalive_requests 35");
    server.rewrite_conf(&reloaded);
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    load.go_on();
    for processes in ["2", "1"] {
        let before = server.workers();
        let now = format!("worker_processes {processes};");
        let text = server.conf().replace("worker_processes 1;", &now).replace("worker_processes 2;", &now);
        server.rewrite_conf(&text);
        server.reload();
        let is_new = || server.is_replaced(&before).then_some(());
        wait::until("another process", Deadline::default(), is_new).expect("the old one ends");
        load.go_on();
    }
    let socket = server.path("admin.sock").display().to_string();
    for command in ["drain", "undrain"] {
        let done = run(BINARY, &[command, "--socket", &socket]);
        assert!(done.status.success(), "{}", done.stderr);
        load.go_on();
    }
    let [calls, streams, failed] = load.finish();
    assert_eq!(failed, 0, "of {calls} calls and {streams} streams: {:?}", load.failures());
}

#[test]
fn go_reconnects_without_a_failed_call() {
    go().iter().for_each(no_call_fails);
}

#[test]
fn python_reconnects_without_a_failed_call() {
    python().iter().for_each(no_call_fails);
}

/// If a worker is killed, its active calls fail. A client may send its next calls on the same connection until it has
/// read the end of the connection: two more failures per thread are allowed.
fn a_kill_ends_open_calls(language: &Language) {
    let (_app, address) = language.serve();
    let (server, _) = start(&address, 1000);
    let address = server.addr(0).tcp().to_string();
    let mut load = language.start(&["load", &address, &WORKERS.to_string()]);
    load.go_on();
    let before = server.workers();
    signal_process(before[0], Signal::KILL).expect("it is ours");
    let is_new = || server.is_replaced(&before).then_some(());
    wait::until("another worker", Deadline::default(), is_new).expect("the master starts it");
    load.go_on();
    load.go_on();
    let [calls, _, failed] = load.finish();
    let failures = load.failures();
    assert!(failed <= 3 * WORKERS as u64, "{failed} of {calls}: {failures:?}");
    assert!(failures.iter().all(|line| line.to_lowercase().contains("unavailable")), "{failures:?}");
}

#[test]
fn a_killed_worker_costs_go_only_the_open_calls() {
    go().iter().for_each(a_kill_ends_open_calls);
}

#[test]
fn a_killed_worker_costs_python_only_the_open_calls() {
    python().iter().for_each(a_kill_ends_open_calls);
}

/// Returns the first number in a line.
fn first_number(line: &str) -> usize {
    let digits = line.split(|char: char| !char.is_ascii_digit()).find(|part| !part.is_empty());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Load by ghz, on connections that are closed after 500 calls.
///
/// ghz has an old grpc-go (1.34), which may choose a connection for a call although it has just read the connection's end. If
/// this happens twice, it fails the call with one of two messages. The server may have received such a call once: each begun
/// stream has its response.
#[test]
fn ghz_gets_a_response_to_each_call() {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([Path::new(&home).join("go/bin")]);
    let Some(ghz) = folders.find_map(|folder| Some(folder.join("ghz")).filter(|file| file.is_file())) else {
        return testkit::skip("ghz is not installed (go install github.com/bojand/ghz/cmd/ghz@latest)");
    };
    let Some(go) = go() else { return };
    let (_app, address) = go.serve();
    let (server, _) = start(&address, 500);
    let mut command = Command::new(ghz);
    command.arg("--insecure").arg("--proto").arg(directory().join("calls.proto"));
    command.args(["--call", "calls.Calls.Unary", "-d", r#"{"data":"aGVsbG8="}"#, "-n", "3000", "-c", "50"]);
    let output =
        command.args(["--connections", "5", "--timeout", "100s"]).arg(server.addr(0).tcp().to_string());
    let output = output.output().expect("it is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let count = |part: &str| said.lines().find(|line| line.contains(part)).map_or(0, first_number);
    let passed = count("[OK]");
    let kept_back = count("desc = the connection is draining");
    let kept_back = kept_back + count("desc = transport is closing");
    // ghz sometimes makes a call more than it was told to.
    let calls = count("Count:");
    assert!(calls >= 3000 && passed + kept_back == calls, "{said}");
    assert!(kept_back <= 30, "{said}");
    let log = server.wait_for_access_log(passed, Deadline::default());
    let of_200 = log.lines().filter(|line| line.contains("\" 200 ")).count();
    assert_eq!(log.lines().count(), of_200, "{said}");
    assert!((passed..=passed + kept_back).contains(&of_200), "{of_200} lines\n{said}");
}
