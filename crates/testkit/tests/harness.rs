//! The harness against a fake server (a shell script) and, if it is installed, against Debian's nginx.

use std::path::PathBuf;

use testkit::process::{children, is_alive};
use testkit::{Client, Content, Deadline, ListenAddr, Server, nginx, wait};

fn fake_server() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake_server.sh")
}

#[test]
fn addresses_are_read_from_the_log_in_order() {
    let server = Server::start(fake_server(), "events {}");
    assert_eq!(server.addr(0).tcp().port(), 4711);
    assert_eq!(server.addr(1).to_string(), "[::1]:4712");
    assert_eq!(*server.addr(2), ListenAddr::Unix("/run/a b.sock".into()));
}

#[test]
fn signals_reach_the_server_and_its_status_is_returned() {
    let server = Server::start(fake_server(), "events {}");
    server.reload();
    assert_eq!(server.wait_for_log("reloaded", Deadline::default()), "notice: reloaded");
    server.reload();
    server.wait_for_log_count("reloaded", 2, Deadline::default());
    assert_eq!(server.quit_and_wait().code(), Some(7));
}

#[test]
fn a_dropped_server_is_stopped_and_its_directory_removed() {
    let server = Server::start(fake_server(), "events {}");
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    assert!(children(std::process::id() as i32).contains(&pid));
    drop(server);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[test]
fn a_refused_start_returns_the_output_of_the_server() {
    let failure = Server::builder(fake_server()).arg("refuse").try_start().expect_err("it exits immediately");
    assert!(failure.contains("ended before it was ready"), "{failure}");
    assert!(failure.contains("refused by the test"), "{failure}");
    let (status, stderr) = Server::builder(fake_server()).arg("refuse").run_to_end();
    assert_eq!((status.code(), stderr.as_str()), (Some(1), "fake: [emerg] refused by the test\n"));
}

#[test]
fn nginx_serves_through_the_same_harness() {
    let conf = "worker_processes 2;\nevents {}\nhttp { server { listen 127.0.0.1:0; root html; } \
                server { listen 127.0.0.1:0; return 200 second; } }\n";
    let content = Content::new(9, 100_001);
    let started = nginx::start_with(conf, |builder| builder.file("html/a.bin", content));
    let Some(mut server) = started else { return };
    let mut client = Client::connect(server.addr(0));
    client.get("/a.bin").head.field("content-length").expect("nginx knows the size");
    content.assert_body(&client.get("/a.bin").body);
    let part = client.request("GET", "/a.bin", &[("Range", "bytes=5-4099")]);
    assert_eq!(part.status, 206);
    content.assert_range(5..4100, &part.body);
    assert_eq!(Client::connect(server.addr(1)).get("/").text(), "second");
    // The second worker may start a moment after the first one has responded.
    let both =
        wait::until("two workers", Deadline::default(), || (server.workers().len() == 2).then_some(()));
    both.expect("nginx starts as many as configured");
    assert_eq!(server.wait_for_access_log(4, Deadline::default()).lines().count(), 4);

    let port = server.addr(0).tcp().port();
    server.rewrite_conf(&format!(
        "events {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 reloaded; }} }}\n"
    ));
    server.reload();
    // Both old workers have exited, so neither of them accepts the next connection.
    server.wait_for_log_count("exited with code 0", 2, Deadline::default());
    assert_eq!(Client::connect(server.addr(0)).get("/").text(), "reloaded");
    drop(client);
    assert!(server.quit_and_wait().success());
}

#[test]
fn an_nginx_daemon_is_tracked_by_its_pid_file() {
    let conf = "daemon on; events {} http { server { listen 127.0.0.1:0; return 204; } }";
    let Some(server) = nginx::start(conf) else { return };
    assert_eq!(Client::connect(server.addr(0)).get("/").status, 204);
    let pid = server.pid();
    assert!(server.quit_and_wait().success());
    assert!(!is_alive(pid));
}

/// The environment variable that distinguishes the test run to be killed from all other runs.
const DIES: &str = "TESTKIT_DIES";

/// Not a test: the next test starts and kills it.
#[test]
fn helper_test_that_is_killed() {
    if std::env::var_os(DIES).is_none() {
        return;
    }
    let nginx = nginx::start("worker_processes 2; events {} http { server { listen 127.0.0.1:0; } }");
    let fake = Server::start(fake_server(), "events {}");
    let workers = |server: &Server| {
        let all = || Some(server.workers()).filter(|workers| workers.len() == 2);
        wait::until("the workers", Deadline::default(), all).expect("they start")
    };
    let mut pids = vec![fake.pid()];
    pids.extend(nginx.iter().map(Server::pid));
    pids.extend(nginx.iter().flat_map(workers));
    let daemon = nginx::start("daemon on; events {} http { server { listen 127.0.0.1:0; } }");
    pids.extend(daemon.iter().map(Server::pid));
    println!("pids: {}", pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    std::process::abort();
}

#[test]
fn a_killed_test_leaves_no_process_behind() {
    let program = std::env::current_exe().expect("it runs");
    let mut command = std::process::Command::new(program);
    let command = command.args(["--exact", "helper_test_that_is_killed", "--nocapture"]).env(DIES, "yes");
    let output = command.output();
    let output = String::from_utf8_lossy(&output.expect("it can be run again").stdout).into_owned();
    let pids = output.lines().find_map(|line| Some(line.split_once("pids: ")?.1));
    let pids: Vec<i32> = pids.expect(&output).split(' ').map(|pid| pid.parse().expect("a number")).collect();
    let gone = || (!pids.iter().any(|&pid| is_alive(pid))).then_some(());
    wait::until("the end of the servers", Deadline::default(), gone).expect("the guard ends them");
}
