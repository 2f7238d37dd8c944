//! PostgreSQL, Redis and an SSH server behind `stream`, with their own clients.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testkit::{Content, Deadline, Server, TempDir, ports, skip, wait};

use crate::common::tls::Authority;
use crate::support::serve;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Running(child.expect("the program is installed"))
    }
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Returns whether a program exists; the test reports it otherwise.
fn has(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        skip(format_args!("{program} is not installed (apt-get install {package})"));
    }
    found.is_ok()
}

/// Runs a command that succeeds. Returns its output.
#[track_caller]
fn output(command: &mut Command) -> String {
    let run = command.stdin(Stdio::null()).output().expect("the program is installed");
    let text = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    assert!(run.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&run.stderr));
    text
}

/// A command that root runs as another user, because the program refuses root.
fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(program);
    command
}

/// A PostgreSQL server with a database cluster of its own.
struct Postgres {
    _running: Running,
    _data: TempDir,
    address: SocketAddr,
}

impl Postgres {
    /// Returns the directory of the programs of PostgreSQL, if it is installed.
    fn programs() -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let found =
            versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists());
        if found.is_none() {
            skip("PostgreSQL is not installed (apt-get install postgresql)");
        }
        found
    }

    fn start(programs: &Path) -> Postgres {
        let data = TempDir::new("postgresql");
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        let (cluster, port) = (data.path().join("cluster"), ports::free_port());
        let mut init = unprivileged(&programs.join("initdb"));
        output(init.arg("-D").arg(&cluster).args(["-A", "trust", "-U", "postgres", "-N"]));
        let mut server = unprivileged(&programs.join("postgres"));
        server.arg("-D").arg(&cluster).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-F"]);
        let running = Running::start(server.arg("-k").arg(data.path()));
        let postgres = Postgres { _running: running, _data: data, address: local(port) };
        let is_ready = || psql(postgres.address, "select 1").output().is_ok_and(|run| run.status.success());
        wait::until("PostgreSQL", Deadline::default(), || is_ready().then_some(())).expect("it starts");
        postgres
    }
}

/// A client that executes a statement and prints its result.
fn psql(server: SocketAddr, statement: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-U", "postgres", "-Atc", statement]);
    command
}

#[test]
fn postgresql_is_checked_and_its_sessions_outlive_reloads() {
    let Some(programs) = Postgres::programs() else { return };
    let (one, two) = (Postgres::start(&programs), Postgres::start(&programs));
    // A server responds to SSLRequest with one letter.
    let server = serve(&format!(
        "upstream database {{ zone database 64k; server {}; server {}; }}
         match postgresql {{ send \\x00\\x00\\x00\\x08\\x04\\xd2\\x16\\x2f; expect ~ ^[SN]; }}
         server {{ listen 127.0.0.1:0; proxy_pass database; proxy_connect_timeout 2s;
           health_check match=postgresql interval=50ms mandatory; }}",
        one.address, two.address
    ));
    server.wait_for_log_count("peer is healthy", 2, Deadline::default());
    let address = server.addr(0).tcp();
    let port = || output(&mut psql(address, "show port"));
    let mut both = [port(), port()];
    both.sort();
    let mut expected = [one.address, two.address].map(|address| address.port().to_string());
    expected.sort();
    assert_eq!(both, expected);
    // Statements of eight clients, while the configuration is loaded again and again. A table for pgbench is on both servers.
    for address in [one.address, two.address] {
        let mut init = Command::new(programs.join("pgbench"));
        let init = init.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &address.port().to_string()]);
        output(init.args(["-i", "-q", "postgres"]));
    }
    let mut load = Command::new(programs.join("pgbench"));
    let load = load.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &address.port().to_string()]);
    let load = load
        .args(["-n", "-S", "-c", "8", "-T", "3", "postgres"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let load = load.spawn().expect("it is installed");
    for round in 1..=3 {
        server.reload();
        server.wait_for_log_count("in place", round, Deadline::default());
    }
    let load = load.wait_with_output().expect("it ends");
    let (text, errors) = (String::from_utf8_lossy(&load.stdout), String::from_utf8_lossy(&load.stderr));
    assert!(load.status.success() && text.contains("number of failed transactions: 0 "), "{text}{errors}");
    drop(one);
    server.wait_for_log("peer is unhealthy", Deadline::default());
    assert!((0..6).all(|_| port() == two.address.port().to_string()), "the other one serves all");
}

/// In clear, with many commands in flight, and with TLS that ends at `stream`.
#[test]
fn redis_serves_pipelines_and_clients_with_tls() {
    if !has("redis-server", "redis-server") {
        return;
    }
    let (data, port) = (TempDir::new("redis"), ports::free_port());
    let mut redis = Command::new("redis-server");
    redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(data.path());
    let _redis = Running::start(&mut redis);
    let authority = Authority::new("root");
    let (certificate, key) = authority.server("localhost");
    let [root, certificate, key] =
        [("root.pem", &authority.pem), ("redis.pem", &certificate), ("redis.key", &key)]
            .map(|(name, text)| data.write(name, text).display().to_string());
    let server = serve(&format!(
        "upstream redis {{ server 127.0.0.1:{port}; }}
         server {{ listen 127.0.0.1:0; proxy_pass redis; }}
         server {{ listen 127.0.0.2:0 ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
           proxy_pass redis; }}"
    ));
    let client = |program: &str, address: SocketAddr| {
        let mut command = Command::new(program);
        command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
        command
    };
    let (clear, tls) = (server.addr(0).tcp(), server.addr(1).tcp());
    let answers = || client("redis-cli", clear).arg("ping").output().is_ok_and(|run| run.stdout == b"PONG\n");
    wait::until("Redis", Deadline::default(), || answers().then_some(())).expect("it starts");
    let mut load = client("redis-benchmark", clear);
    let said =
        output(load.args(["-t", "set,get,lpush", "-n", "20000", "-c", "30", "-P", "16", "-d", "500", "-q"]));
    assert!(!said.contains("ERR") && said.matches("requests per second").count() == 3, "{said}");
    let mut cli = client("redis-cli", tls);
    cli.args(["--tls", "--sni", "localhost", "--cacert", &root]);
    assert_eq!(output(cli.args(["set", "name", "value"])), "OK");
    assert_eq!(output(client("redis-cli", clear).args(["get", "name"])), "value");
}

/// A login, and a file in both directions.
#[test]
fn an_ssh_server_is_reached_and_copies_files() {
    if !has("/usr/sbin/sshd", "openssh-server") || !has("ssh-keygen", "openssh-client") {
        return;
    }
    let (data, port) = (TempDir::new("ssh"), ports::free_port());
    for name in ["host", "client"] {
        let key = data.path().join(name);
        output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
    }
    // Root's server separates privileges in this directory.
    let _ = fs::create_dir_all("/run/sshd");
    let path = data.path().display().to_string();
    let mut sshd = Command::new("/usr/sbin/sshd");
    sshd.args(["-D", "-e", "-f", "/dev/null", "-h", &format!("{path}/host")]);
    for option in [
        format!("Port={port}"),
        "ListenAddress=127.0.0.1".to_owned(),
        format!("AuthorizedKeysFile={path}/client.pub"),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
        format!("PidFile={path}/pid"),
    ] {
        sshd.args(["-o", &option]);
    }
    let _sshd = Running::start(&mut sshd);
    let server = serve(&format!("server {{ listen 127.0.0.1:0; proxy_pass 127.0.0.1:{port}; }}"));
    let ssh = |command: &str| {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-i", &format!("{path}/client"), "-p"]);
        ssh.arg(server.addr(0).tcp().port().to_string());
        for option in
            ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
        {
            ssh.args(["-o", option]);
        }
        ssh.args(["127.0.0.1", command]);
        ssh
    };
    let answers = || ssh("echo ready").output().is_ok_and(|run| run.stdout == b"ready\n");
    wait::until("the SSH server", Deadline::default(), || answers().then_some(())).expect("it starts");
    let (len, content) = (24 << 20, Content::new(8, 24 << 20));
    content.write_to(&data.path().join("file"));
    // Through the server to the SSH server, and back.
    let file = fs::File::open(data.path().join("file")).expect("just written");
    let sent = ssh(&format!("cat > {path}/there")).stdin(file).status();
    assert!(sent.is_ok_and(|status| status.success()), "the upload");
    let back = ssh(&format!("cat {path}/there")).stdin(Stdio::null()).output().expect("it is installed");
    content.compare(0..len, &mut &back.stdout[..]).expect("the file");
    assert!(wait_for_sessions(&server), "{}", server.error_log());
}

/// Returns whether all sessions ended well.
fn wait_for_sessions(server: &Server) -> bool {
    let path = server.dir().join("logs/access.log");
    let lines = || fs::read_to_string(&path).unwrap_or_default();
    let complete = || (lines().lines().count() >= 3).then_some(());
    wait::until("the access log", Deadline::default(), complete).is_ok()
        && lines().lines().all(|line| line.starts_with("200 ") || line.starts_with("502 "))
}
