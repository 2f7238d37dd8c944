//! Log targets other than plain files: syslog, compressed and buffered files, names with variables; no target delays a
//! request, whatever its state.

use std::fs;
use std::io::Read;
use std::net::UdpSocket;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{client, one_server, ours_only, serve, serve_with};
use rustix::process::Signal;
use testkit::process::fd_targets;
use testkit::{Client, Deadline, Server, TempDir};

/// Timeout for a message or a line.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns a log format with lines of about 64 KiB, so that a few lines fill a buffer.
fn long_format() -> String {
    format!("log_format long '$arg_n {}';", "x".repeat(64 << 10))
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Waits until `look` accepts the file's content.
#[track_caller]
fn wait_for<T>(path: &Path, mut look: impl FnMut(&[u8]) -> Option<T>) -> T {
    let found = testkit::wait::until(&path.display().to_string(), Deadline::default(), || {
        look(&fs::read(path).unwrap_or_default())
    });
    found.unwrap_or_else(|late| panic!("{late}: {}", text(path)))
}

#[track_caller]
fn wait_for_lines(path: &Path, count: usize) -> Vec<String> {
    wait_for(path, |bytes| {
        let lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

/// Creates a directory with a syslog socket in it.
fn syslog_server() -> (TempDir, UnixDatagram, String) {
    let folder = TempDir::new("syslog");
    let path = folder.path().join("log");
    let socket = UnixDatagram::bind(&path).expect("a socket in its own directory");
    let path = path.display().to_string();
    listen_to(&socket, &path);
    (folder, socket, path)
}

/// Makes a path accessible to all users: started as root, the server serves as another user.
fn for_everybody(path: impl AsRef<Path>) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it is ours");
}

fn listen_to(socket: &UnixDatagram, path: &str) {
    for_everybody(path);
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes it");
}

/// Starts a server whose workers may create files in `logs`.
fn serve_open(conf: &str) -> Server {
    serve_with(conf, |builder| {
        let builder = builder.text("html/index.html", "index").text("logs/own/empty", "");
        for folder in ["logs", "logs/own"] {
            for_everybody(builder.dir().join(folder));
        }
        builder
    })
}

#[track_caller]
fn message(socket: &UnixDatagram) -> String {
    let mut bytes = vec![0; 128 << 10];
    let count = socket.recv(&mut bytes).expect("a message comes");
    String::from_utf8(bytes[..count].to_vec()).expect("text")
}

/// Splits `<190>Nov  1 09:30:00 rest` into priority, time and rest.
fn parts(message: &str) -> (&str, &str, &str) {
    let (priority, rest) = message.split_once('>').expect("a priority");
    let (time, rest) = rest.split_at(15);
    (&priority[1..], time, &rest[1..])
}

#[test]
fn the_access_log_is_sent_to_syslog() {
    let (_folder, socket, path) = syslog_server();
    let server = serve(&one_server(
        "log_format own '$request|$status';",
        &format!(
            "access_log syslog:server=unix:{path} own;
             location /own {{ access_log syslog:server=unix:{path},facility=mail,tag=Web_1,severity=warn,nohostname own; return 204; }}
             location / {{ return 204; }}"
        ),
    ));
    let mut client = client(&server);
    client.get("/a");
    let first = message(&socket);
    let (priority, time, rest) = parts(&first);
    assert_eq!(priority, (23 * 8 + 6).to_string());
    assert!(
        time.as_bytes()[3] == b' ' && time.as_bytes()[6] == b' ' && time.as_bytes()[9] == b':',
        "{first}"
    );
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").expect("it is there");
    assert_eq!(rest, format!("{} nginx: GET /a HTTP/1.1|204", hostname.trim().to_lowercase()));
    client.get("/own");
    let second = message(&socket);
    let (priority, _, rest) = parts(&second);
    assert_eq!((priority, rest), ("20", "Web_1: GET /own HTTP/1.1|204"));
}

#[test]
fn lines_are_sent_to_syslog_over_udp() {
    for address in ["127.0.0.1", "[::1]"] {
        let Ok(socket) = UdpSocket::bind(format!("{address}:0")) else {
            testkit::skip(format_args!("no {address} here"));
            continue;
        };
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes it");
        let port = socket.local_addr().expect("it is bound").port();
        let log = format!("access_log syslog:server={address}:{port},nohostname own; return 204;");
        let server = serve(&one_server("log_format own '$request';", &log));
        client(&server).get("/udp");
        let mut bytes = [0; 2048];
        let count = socket.recv(&mut bytes).expect("a message comes");
        let message = String::from_utf8_lossy(&bytes[..count]).into_owned();
        assert!(message.starts_with("<190>") && message.ends_with(" nginx: GET /udp HTTP/1.1"), "{message}");
    }
}

#[test]
fn a_syslog_server_that_refuses_datagrams_is_not_reported_to_work() {
    if !ours_only("nginx reports each lost message") {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("some port is free");
    let port = socket.local_addr().expect("it is bound").port();
    drop(socket);
    let server = serve(&one_server("", &format!("access_log syslog:server=127.0.0.1:{port}; return 204;")));
    // A report could follow the first after a second.
    for _ in 0..5 {
        let mut client = client(&server);
        (0..4).for_each(|_| assert_eq!(client.get("/").status, 204));
        leave_time(Duration::from_millis(400));
    }
    let log = server.error_log();
    assert!(log.contains("failed (111: Connection refused) while logging to syslog"), "{log}");
    assert!(!log.contains("it works again"), "{log}");
}

#[test]
fn the_error_log_is_sent_to_syslog_with_each_lines_level() {
    let (_folder, socket, path) = syslog_server();
    let conf = format!(
        "error_log logs/error.log notice;\n{}",
        one_server(&format!("error_log syslog:server=unix:{path},nohostname,severity=debug;"), "root html;")
    );
    let server = serve(&conf);
    let mut client = client(&server);
    client.get("/missing");
    let line = message(&socket);
    let (priority, _, rest) = parts(&line);
    // local7 and error: the severity configured for the target is not used.
    assert_eq!(priority, "187", "{line}");
    let rest = rest.strip_prefix("nginx: ").expect("the tag");
    // nginx sends its own time and level too.
    assert!(
        rest[19..].starts_with(" [error] ") && rest.ends_with("host: \"a\"") || rest.contains("host: "),
        "{line}"
    );
    assert!(
        rest.contains("html/missing\" failed (2: No such file or directory), client: 127.0.0.1"),
        "{line}"
    );
    // nginx truncates a message that is longer than its buffer.
    client.get(&format!("/{}", "y".repeat(1500)));
    let line = message(&socket);
    assert!(line.len() < 2100 && line.contains("yyy"), "{} bytes", line.len());
}

#[test]
fn a_long_json_line_to_syslog_remains_json() {
    if !ours_only("nginx does not have this format") {
        return;
    }
    let (_folder, socket, path) = syslog_server();
    let log = format!("error_log syslog:server=unix:{path} error format=json;");
    let server = serve(&one_server(&log, "server_name here.test; root html;"));
    client(&server).get(&format!("/{}", "y".repeat(1500)));
    let line = message(&socket);
    let (_, object) = line.split_once("nginx: ").expect("a header");
    let object: serde_json::Value = serde_json::from_str(object).unwrap_or_else(|_| panic!("{line}"));
    assert_eq!((&object["server"], &object["client"]), (&"here.test".into(), &"127.0.0.1".into()));
    assert!(object["request"].as_str().is_some_and(|text| text.starts_with("GET /yyy")), "{line}");
    assert!(line.len() < 2200, "{} bytes", line.len());
}

#[test]
fn a_restarted_syslog_server_is_reconnected() {
    if !ours_only("nginx loses lines when a syslog server restarts") {
        return;
    }
    let (_folder, socket, path) = syslog_server();
    let log = format!("access_log syslog:server=unix:{path},nohostname own; return 204;");
    let server = serve(&one_server("log_format own '$request';", &log));
    // A connection each: there may be more requests than `keepalive_requests` allows.
    let get = |target: &str| client(&server).get(target);
    get("/1");
    assert!(message(&socket).ends_with("GET /1 HTTP/1.1"));
    drop(socket);
    fs::remove_file(&path).expect("it was bound");
    // A process started by another test may have a copy of the socket until it calls execve().
    let line = testkit::wait::until("a lost line", Deadline::default(), || {
        get("/2");
        let log = server.error_log();
        log.lines().find(|line| line.contains("while logging to syslog, server: unix:")).map(str::to_owned)
    });
    let line = line.expect("the socket is gone");
    assert!(
        line.contains("[alert]") && line.contains("connect() failed (2: No such file or directory)"),
        "{line}"
    );
    assert!(line.ends_with(&format!("server: unix:{path}, 1 line was lost")), "{line}");
    let socket = UnixDatagram::bind(&path).expect("the name is free");
    listen_to(&socket, &path);
    get("/3");
    // The last of the earlier lines may be received only now.
    let first = message(&socket);
    let last = if first.ends_with("GET /2 HTTP/1.1") { message(&socket) } else { first };
    assert!(last.ends_with("GET /3 HTTP/1.1"), "{last}");
}

#[test]
fn a_syslog_server_that_does_not_read_delays_no_client() {
    if !ours_only("nginx does not queue lines") {
        return;
    }
    let (_folder, socket, path) = syslog_server();
    let log = format!("access_log syslog:server=unix:{path},nohostname long; return 204;");
    let server = serve(&one_server(&long_format(), &log));
    let mut client = client(&server);
    // More than the socket and the queue hold together.
    for n in 0..700 {
        assert_eq!(client.get(&format!("/?n={n}")).status, 204);
    }
    let line = server.wait_for_log("is too slow", Deadline::default());
    assert!(
        line.contains(&format!("writing to \"syslog:unix:{path}\" is too slow, 1 line was dropped")),
        "{line}"
    );
    // Queued messages arrive in order, followed by new ones. The line of the last response may be logged after the
    // queue has space again.
    let mut read = 0;
    while read <= 100 || !server.error_log().contains("it works again") {
        let text = message(&socket);
        assert!(text.contains(&format!("nginx: {read} x")), "{}", &text[..60]);
        read += 1;
        if read % 64 == 0 {
            client.get("/?n=late");
        }
        if read >= 200 {
            break;
        }
    }
}

/// Creates a FIFO that is open at both ends, so that neither the server nor the test waits to open it.
fn fifo(label: &str) -> (TempDir, fs::File, String) {
    let folder = TempDir::new(label);
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("coreutils");
    assert!(made.success());
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut options = fs::OpenOptions::new();
    let pipe = options.read(true).write(true).custom_flags(nonblocking).open(&path).expect("a FIFO");
    let path = path.display().to_string();
    (folder, pipe, path)
}

/// Network engines. Each writes logs in another way: by io_uring, or by a thread pool.
const NETS: [&str; 2] = ["", "use epoll;"];

#[test]
fn an_unread_pipe_delays_no_client() {
    if !ours_only("nginx waits in write()") {
        return;
    }
    for net in NETS {
        let (_folder, mut pipe, path) = fifo("fifo");
        let log = format!("access_log {path} long; access_log logs/access.log short; return 204;");
        let conf = one_server(&format!("{} log_format short '$arg_n';", long_format()), &log);
        let server = serve(&conf.replace("events {}", &format!("events {{ {net} }}")));
        let mut client = client(&server);
        for n in 0..400 {
            assert_eq!(client.get(&format!("/?n={n}")).status, 204);
        }
        // The other log is not delayed either.
        assert_eq!(server.wait_for_access_log(400, Deadline::default()).lines().count(), 400);
        let line = server.wait_for_log("is too slow", Deadline::default());
        assert!(
            line.contains("[alert] ") && line.contains("/pipe\" is too slow, 1 line was dropped"),
            "{line}"
        );
        let mut bytes = vec![0; 1 << 20];
        let started = Instant::now();
        while !server.error_log().contains("it works again") {
            // An empty FIFO is not an error.
            let _ = pipe.read(&mut bytes);
            assert!(started.elapsed() < PATIENCE, "queued lines are written: {}", server.error_log());
        }
        let line = server.wait_for_log("it works again", Deadline::default());
        assert!(line.contains("lines were dropped; it works again"), "{line}");
    }
}

#[test]
fn an_unread_pipe_does_not_delay_the_stop() {
    if !ours_only("nginx waits in write()") {
        return;
    }
    for net in NETS {
        let (_folder, _pipe, path) = fifo("fifo-end");
        let conf = one_server(&long_format(), &format!("access_log {path} long; return 204;"));
        let conf = conf.replace("events {}", &format!("events {{ {net} }}"));
        let server = serve(&format!("error_log logs/error.log notice; error_log {path};\n{conf}"));
        let mut client = client(&server);
        for n in 0..40 {
            assert_eq!(client.get(&format!("/?n={n}")).status, 204);
        }
        assert!(server.quit_and_wait().success());
    }
}

#[test]
fn a_slow_log_disk_delays_no_client() {
    if !ours_only("the disk is made slow by the fault engine") {
        return;
    }
    let conf = one_server("log_format own '$arg_n';", "access_log logs/access.log own; return 204;");
    let server = serve(&conf.replace("events {}", "events { engine_fault write delay=2s; }"));
    let mut client = client(&server);
    let started = Instant::now();
    for n in 0..100 {
        assert_eq!(client.get(&format!("/?n={n}")).status, 204);
    }
    assert!(started.elapsed() < PATIENCE / 2, "each write takes two seconds: {:?}", started.elapsed());
    let log = server.wait_for_access_log(100, Deadline::default());
    assert!(log.lines().enumerate().all(|(n, line)| line == n.to_string()), "{log}");
}

#[test]
fn reloads_lose_no_lines_and_leak_no_files() {
    if !ours_only("the harness cannot pick the port of nginx again") {
        return;
    }
    let conf = |name: &str, options: &str| {
        let log =
            format!("access_log logs/access.log own {options}; access_log logs/{name}.log own; return 204;");
        one_server("log_format own '$arg_n';", &log)
    };
    let mut server = serve(&conf("first", "buffer=32k"));
    let mut client = client(&server);
    let buffered = ["", "buffer=1k", "buffer=1k flush=1h", ""];
    for (round, options) in buffered.into_iter().enumerate() {
        assert_eq!(client.get(&format!("/?n={round}")).status, 204);
        wait_for_lines(&server.path(&format!("logs/{}.log", name_of(round))), 1);
        server.rewrite_conf(&conf(name_of(round + 1), options));
        server.reload();
        server.wait_for_log_count("exited with code 0", round + 1, Deadline::default());
        client = self::client(&server);
    }
    let log = server.wait_for_access_log(4, Deadline::default());
    assert_eq!(log, "0\n1\n2\n3\n");
    testkit::wait::until("old logs are closed", Deadline::default(), || {
        let old = (0..4).map(|round| server.path(&format!("logs/{}.log", name_of(round))));
        (!old.into_iter().any(|path| is_open(&server, &path))).then_some(())
    })
    .expect("nothing needs them");
}

fn name_of(round: usize) -> &'static str {
    ["first", "second", "third", "fourth", "fifth"][round]
}

#[test]
fn a_full_disk_loses_lines_and_is_reported_once_a_minute() {
    let server = serve(&one_server("", "access_log /dev/full; return 204;"));
    let mut client = client(&server);
    for _ in 0..20 {
        assert_eq!(client.get("/").status, 204);
    }
    let line = server.wait_for_log("write() to \"/dev/full\" failed", Deadline::default());
    assert!(line.contains("[alert]") && line.contains("failed (28: No space left on device)"), "{line}");
    for _ in 0..20 {
        assert_eq!(client.get("/").status, 204);
    }
    let told = |log: &str| log.lines().filter(|line| line.contains("/dev/full")).count();
    assert_eq!(told(&server.error_log()), 1, "{}", server.error_log());
}

#[test]
fn a_full_disk_is_reported_once_a_minute_for_all_names_with_variables() {
    if !ours_only("nginx reports each log separately") {
        return;
    }
    let server = serve_open(&one_server(
        "",
        "root html; location / { access_log /dev/$arg_v; return 204; }
         location /good { access_log logs/$arg_v.log; return 204; }
         location /metrics { access_log off; metrics; }",
    ));
    let mut client = client(&server);
    // The same full device by many names.
    for n in 0..20 {
        client.get(&format!("/?v={}full", "./".repeat(n)));
        client.get("/good?v=a");
    }
    let lost = testkit::wait::until("all losses", Deadline::default(), || {
        let page = self::client(&server).get("/metrics").text();
        page.contains("lost_total{target=\"names with variables\"} 20\n").then_some(())
    });
    lost.expect("they are counted");
    wait_for_lines(&server.path("logs/a.log"), 20);
    let line = server.wait_for_log("full\" failed (28: No space left on device)", Deadline::default());
    assert!(line.contains("[alert]"), "{line}");
    assert_eq!(server.error_log().matches("[alert]").count(), 1, "{}", server.error_log());
}

#[expect(clippy::disallowed_methods, reason = "a line that has failed to be written shows nowhere")]
fn leave_time(pause: Duration) {
    std::thread::sleep(pause);
}

#[test]
fn free_space_on_a_full_log_disk_is_reported() {
    if !ours_only("nginx does not report losses") {
        return;
    }
    // A limit on the size of files, setrlimit(2), acts like a full disk and needs no root privileges: 512 KiB here.
    let conf = one_server(&long_format(), "access_log logs/access.log long; return 204;");
    let limited = |builder: testkit::ServerBuilder| builder.shell("trap '' XFSZ; ulimit -f 1024");
    let server = serve_with(&conf, limited);
    let mut client = client(&server);
    // Eight lines fit into the file. The other four fit after it has been truncated, so a line that is written only then
    // does not fill the file again.
    for n in 0..12 {
        assert_eq!(client.get(&format!("/?n={n}")).status, 204);
    }
    let line = server.wait_for_log("write() to ", Deadline::default());
    assert!(line.contains("/access.log\" failed (27: File too large), "), "{line}");
    let file = fs::OpenOptions::new().write(true).open(server.path("logs/access.log")).expect("it is ours");
    // A line that is being written when space is available again is not lost. A loss followed by another within the
    // second between two reports is not reported yet. So each round waits, longer than the round before.
    let mut pause = Duration::from_millis(500);
    let line = testkit::wait::until("a loss and a write after it", Deadline::default(), || {
        // A new connection per round: the rounds may need more requests than `keepalive_requests` allows.
        let mut client = self::client(&server);
        for n in 0..12 {
            assert_eq!(client.get(&format!("/?n={n}")).status, 204);
        }
        leave_time(pause);
        file.set_len(0).expect("it is ours");
        assert_eq!(client.get("/?n=after").status, 204);
        leave_time(Duration::from_secs(1) + pause);
        pause *= 2;
        let log = server.error_log();
        log.lines().find(|line| line.contains("it works again")).map(str::to_owned)
    });
    let line = line.unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
    assert!(line.contains("failed (27: File too large), ") && line.contains(" lost; it works"), "{line}");
    let written = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("after x").then_some(());
    wait_for(&server.path("logs/access.log"), written);
}

/// On a full disk only the lines that are not in the file count as lost, and a line after a torn line begins on a new line.
#[test]
fn a_partly_written_batch_of_lines_is_not_lost_and_a_torn_line_joins_no_other() {
    if !ours_only("nginx does not count losses") {
        return;
    }
    for target in ["logs/access.log", "logs/access.log buffer=64k flush=100ms"] {
        let location = format!(
            "log_format line '$arg_n $arg_x'; access_log {} line;",
            target.replacen(' ', " line ", 1)
        );
        let location =
            if target.contains(' ') { location.replace("flush=100ms line", "flush=100ms") } else { location };
        let conf =
            one_server("", "location = /metrics { access_log off; metrics; } location / { return 204; }");
        let conf = conf.replace("server {", &format!("{location} server {{"));
        // At most 16 KiB.
        let limited = |builder: testkit::ServerBuilder| builder.shell("trap '' XFSZ; ulimit -f 32");
        let server = serve_with(&conf, limited);
        let mut client = client(&server);
        const LINES: usize = 60;
        let text = "x".repeat(400);
        for n in 0..LINES {
            assert_eq!(client.get(&format!("/?n={n}&x={text}")).status, 204);
        }
        let path = server.path("logs/access.log");
        let lost = || {
            let page = self::client(&server).get("/metrics").text();
            let lost = page.lines().filter(|line| line.starts_with("ringroad_log_lines_lost_total{"));
            let numbers = lost.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
            numbers.sum::<usize>()
        };
        let complete = || {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
            text.matches('\n').count()
        };
        testkit::wait::until("all lines written or lost", Deadline::default(), || {
            (complete() + lost() >= LINES).then_some(())
        })
        .unwrap_or_else(|_| panic!("{target}: {} {}", complete(), lost()));
        assert!(complete() > 30 && complete() + lost() == LINES, "{target}: {} {}", complete(), lost());
        let torn = fs::read(&path).expect("a log");
        assert_eq!(torn.len(), 16 << 10, "{target}: it is full");
        // Space is available again: the file is continued after the torn line.
        let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
        file.set_len((16 << 10) - 1000).expect("it is ours");
        let is_torn = !fs::read(&path).expect("a log").ends_with(b"\n");
        assert!(is_torn, "{target}: 1000 is no multiple of the length of a line");
        assert_eq!(client.get("/?n=after&x=y").status, 204);
        wait_for(&path, |bytes| bytes.ends_with(b"\nafter y\n").then_some(()));
    }
}

#[test]
fn log_names_may_contain_variables() {
    let server = serve_open(&one_server(
            "log_format own '$request|$status';",
            "root html; access_log logs/$arg_v.log own;
             location /none { access_log logs/none/$arg_v.log own; return 204; }
             location /rootless { root missing; return 204; }
             location /chosen { root $arg_root; return 204; }
             location /top { root /; return 204; }
             location /cached { open_log_file_cache max=10 inactive=1h; access_log ${arg_v}ogs/cached.log own; return 204; }",
    ));
    let mut client = client(&server);
    for target in ["/?v=a", "/?v=b", "/?v=a&2", "/nowhere?v=a"] {
        client.get(target);
    }
    let lines = wait_for_lines(&server.path("logs/a.log"), 3);
    assert_eq!(
        lines,
        ["GET /?v=a HTTP/1.1|200", "GET /?v=a&2 HTTP/1.1|200", "GET /nowhere?v=a HTTP/1.1|404"]
    );
    assert_eq!(wait_for_lines(&server.path("logs/b.log"), 1), ["GET /?v=b HTTP/1.1|200"]);

    client.get("/none?v=c");
    let line = server.wait_for_log("logs/none/c.log\" failed", Deadline::default());
    assert!(line.contains("[crit]") && line.contains("*1 open() \""), "{line}");
    assert!(line.contains("failed (2: No such file or directory) while logging request, client: 127.0.0.1, server: , request: \"GET /none?v=c"), "{line}");

    client.get("/rootless?v=d");
    let line = server.wait_for_log("existence failed", Deadline::default());
    assert!(line.contains("[error]") && line.contains("*1 testing \""), "{line}");
    assert!(line.contains("/missing\" existence failed (2: No such file or directory) while logging request, client: 127.0.0.1"), "{line}");
    assert!(!server.path("logs/d.log").exists());

    // A root that begins with a variable is relative to the prefix, as for files.
    client.get("/chosen?v=e&root=html");
    client.get("/top?v=e");
    assert_eq!(wait_for_lines(&server.path("logs/e.log"), 2).len(), 2);
    client.get("/chosen?v=f&root=html/index.html");
    server.wait_for_log("html/index.html\" existence failed (20: Not a directory)", Deadline::default());
    assert!(!server.path("logs/f.log").exists());

    for n in 0..3 {
        client.get(&format!("/cached?v=l&{n}"));
    }
    let path = server.path("logs/cached.log");
    assert_eq!(wait_for_lines(&path, 3).len(), 3);
    assert!(is_open(&server, &path));
    assert!(!is_open(&server, &server.path("logs/a.log")), "without a cache it is closed");
}

#[test]
fn symlinks_in_log_names_with_variables_are_followed_as_configured() {
    let server = serve_with(
        &one_server(
            "log_format own '$request';",
            "root html; access_log logs/$arg_v.log own;
             location /on { disable_symlinks on; return 204; }
             location /from { disable_symlinks on from=${document_root}/..; return 204; }
             location /owner { disable_symlinks if_not_owner; return 204; }
             location /off { return 204; }",
        ),
        |builder| {
            let builder = builder.text("html/index.html", "index").text("elsewhere/a.log", "");
            let builder = builder.sandbox_path("elsewhere rw");
            let folder = builder.dir().join("logs");
            testkit::create_dir_all(&folder).expect("it is ours");
            for name in ["logs", "elsewhere", "elsewhere/a.log"] {
                for_everybody(builder.dir().join(name));
            }
            let _ = std::os::unix::fs::symlink("../elsewhere/a.log", folder.join("link.log"));
            builder
        },
    );
    let mut client = client(&server);
    for (told, target) in ["/on?v=link", "/from?v=link", "/owner?v=link"].into_iter().enumerate() {
        client.get(target);
        let line = server.wait_for_log_count("logs/link.log\" failed", told + 1, Deadline::default());
        assert!(line.contains("[crit]") && line.contains("*1 openat() \""), "{line}");
        assert!(line.contains("failed (40: Too many levels of symbolic links)"), "{line}");
    }
    for target in ["/off?v=link", "/owner?v=link", "/owner?v=new", "/from?v=new"] {
        client.get(target);
    }
    assert_eq!(wait_for_lines(&server.path("elsewhere/a.log"), 1), ["GET /off?v=link HTTP/1.1"]);
    assert_eq!(wait_for_lines(&server.path("logs/new.log"), 2).len(), 2);
}

/// Returns whether a worker has the file open.
fn is_open(server: &Server, path: &Path) -> bool {
    let open = server.workers().into_iter().flat_map(fd_targets);
    open.into_iter().any(|target| Path::new(&target) == path)
}

#[test]
fn cached_logs_are_bounded_and_follow_their_names() {
    let server = serve_open(&one_server(
        "log_format own '$request';",
        "access_log logs/$arg_v.log own; open_log_file_cache max=1 valid=1s;
         location /twice { open_log_file_cache max=9 min_uses=2; return 204; }
         location / { return 204; }",
    ));
    let mut client = client(&server);
    let log = |name: &str| server.path(&format!("logs/{name}.log"));
    client.get("/?v=a");
    wait_for_lines(&log("a"), 1);
    client.get("/?v=b");
    wait_for_lines(&log("b"), 1);
    let closed = testkit::wait::until("the older one closes", Deadline::default(), || {
        (!is_open(&server, &log("a")) && is_open(&server, &log("b"))).then_some(())
    });
    closed.expect("one file may be open");

    // The server detects after `valid` that a file has been moved.
    fs::rename(log("b"), log("moved")).expect("it is there");
    testkit::wait::until("a new file", Deadline::default(), || {
        self::client(&server).get("/?v=b");
        log("b").exists().then_some(())
    })
    .expect("the name is resolved again");

    client.get("/twice?v=c");
    wait_for_lines(&log("c"), 1);
    let closed = || (!is_open(&server, &log("c"))).then_some(());
    testkit::wait::until("a log that was used once", Deadline::default(), closed).expect("it is closed");
    client.get("/twice?v=c");
    wait_for_lines(&log("c"), 2);
    assert!(is_open(&server, &log("c")), "used twice");
}

#[test]
fn reopening_closes_cached_logs() {
    if !ours_only("nginx resolves the name only after `valid`") {
        return;
    }
    let server = serve_open(&one_server(
        "",
        "access_log logs/$arg_v.log; open_log_file_cache max=9 valid=1h; return 204;",
    ));
    client(&server).get("/?v=a");
    let path = server.path("logs/a.log");
    wait_for_lines(&path, 1);
    fs::rename(&path, server.path("logs/old.log")).expect("it is there");
    server.signal(Signal::USR1);
    // The master logs two lines, the worker the third.
    server.wait_for_log_count("reopening logs", 3, Deadline::default());
    testkit::wait::until("a new file", Deadline::default(), || {
        client(&server).get("/?v=a");
        path.exists().then_some(())
    })
    .expect("the name is resolved again");
}

#[test]
fn a_buffer_is_written_when_it_is_full() {
    let server = serve(&one_server(
        "log_format own '$arg_n';",
        "access_log logs/access.log own buffer=1k; access_log logs/now.log own; return 204;",
    ));
    let mut client = client(&server);
    client.get("/?n=first");
    wait_for_lines(&server.path("logs/now.log"), 1);
    assert_eq!(server.access_log(), "", "it waits");
    for n in 0..20 {
        client.get(&format!("/?n={n}-{}", "x".repeat(60)));
    }
    let log = server.wait_for_access_log(10, Deadline::default());
    assert!(log.starts_with("first\n0-xxx"), "{log}");
}

#[test]
fn a_compressed_log_is_one_valid_gzip_file() {
    let server = serve(&one_server(
        "log_format own '$arg_n';",
        "access_log logs/a.gz own gzip=9 buffer=1k; access_log logs/b.gz own gzip flush=20ms; return 204;",
    ));
    let mut client = client(&server);
    let padding = "x".repeat(60);
    for n in 0..60 {
        client.get(&format!("/?n={n}-{padding}"));
    }
    let unpacked = |bytes: &[u8]| {
        let mut text = String::new();
        let read = flate2::read::MultiGzDecoder::new(bytes).read_to_string(&mut text);
        // Fewer lines than a buffer holds (sixteen) are delayed; their number depends on the duration of each write.
        read.is_ok().then_some(text).filter(|text| text.lines().count() >= 40)
    };
    for name in ["logs/a.gz", "logs/b.gz"] {
        let text = wait_for(&server.path(name), unpacked);
        for (n, line) in text.lines().enumerate() {
            assert_eq!(line, format!("{n}-{padding}"), "{name}");
        }
    }
}

/// Each gzip member is the output of one write.
#[test]
fn a_write_of_a_large_buffer_ends_with_a_line() {
    let server =
        serve(&one_server(&long_format(), "access_log logs/a.gz long gzip buffer=512k; return 204;"));
    let mut client = client(&server);
    for n in 0..9 {
        client.get(&format!("/?n={n}"));
    }
    let members = |bytes: &[u8]| {
        let (mut rest, mut lines) = (bytes, 0);
        while !rest.is_empty() {
            let mut text = Vec::new();
            let mut member = flate2::bufread::GzDecoder::new(rest);
            member.read_to_end(&mut text).ok()?;
            rest = member.into_inner();
            assert_eq!(text.last(), Some(&b'\n'), "after {lines} lines");
            lines += text.iter().filter(|&&byte| byte == b'\n').count();
        }
        (lines >= 3).then_some(())
    };
    wait_for(&server.path("logs/a.gz"), members);
}

#[test]
fn buffered_lines_are_written_to_the_previously_open_file() {
    let server = serve(&one_server(
        "log_format own '$arg_n';",
        "access_log logs/access.log own buffer=32k; access_log logs/now.log own; return 204;",
    ));
    let mut client = client(&server);
    client.get("/?n=before");
    wait_for_lines(&server.path("logs/now.log"), 1);
    let (log, old) = (server.path("logs/access.log"), server.path("logs/old.log"));
    fs::rename(&log, &old).expect("opened at the start");
    server.signal(Signal::USR1);
    assert_eq!(wait_for_lines(&old, 1), ["before"]);
    testkit::wait::until("the new file", Deadline::default(), || log.exists().then_some(()))
        .expect("opened again");
    client.get("/?n=after");
    let kept = TempDir::new("kept");
    let copy = kept.path().join("copy");
    fs::hard_link(&log, &copy).expect("the same file system");
    assert!(server.quit_and_wait().success());
    assert_eq!((text(&copy).as_str(), old.exists()), ("after\n", false));
}

#[test]
fn error_logs_have_levels_and_are_inherited() {
    let server = serve(&one_server(
        "error_log logs/http.log; error_log logs/crit.log crit;",
        "root html; location /own { error_log logs/own.log info; }
         location /both { error_log logs/one.log; error_log logs/two.log warn; }",
    ));
    let mut client = client(&server);
    for target in ["/a", "/own/b", "/both/c"] {
        assert_eq!(client.get(target).status, 404);
    }
    let log = |name: &str| server.path(&format!("logs/{name}.log"));
    for (name, uri) in [("http", "/a"), ("own", "/own/b"), ("one", "/both/c"), ("two", "/both/c")] {
        let lines = wait_for_lines(&log(name), 1);
        assert!(lines.len() == 1 && lines[0].contains(&format!("html{uri}\" failed")), "{name}: {lines:?}");
    }
    assert_eq!(text(&log("crit")), "");
}

#[test]
fn errors_do_not_wait_for_the_buffer_of_an_access_log() {
    let server = serve(&one_server(
        "log_format own '$request';",
        "access_log logs/both.log own buffer=32k; error_log logs/both.log; root html;",
    ));
    assert_eq!(client(&server).get("/missing").status, 404);
    let lines = wait_for_lines(&server.path("logs/both.log"), 1);
    assert!(lines.len() == 1 && lines[0].contains("html/missing\" failed"), "{lines:?}");
}

#[test]
fn an_unread_error_log_delays_no_client() {
    if !ours_only("nginx waits in write()") {
        return;
    }
    let (_folder, _pipe, path) = fifo("fifo-errors");
    let conf = one_server("large_client_header_buffers 4 64k;", "root html; access_log off;");
    // The process's own log too: reports about it are logged to the other file, and process control does not wait.
    let server = serve(&format!("error_log logs/error.log notice; error_log {path} info;\n{conf}"));
    let mut client = client(&server);
    let long = "x".repeat(30_000);
    for n in 0..700 {
        assert_eq!(client.get(&format!("/{n}?{long}")).status, 404);
    }
    let line = server.wait_for_log("is too slow", Deadline::default());
    assert!(line.contains(&format!("writing to \"{path}\" is too slow, 1 line was dropped")), "{line}");
    server.reload();
    server.wait_for_log("exited with code 0", Deadline::default());
    assert!(server.quit_and_wait().success());
}

#[test]
fn error_logs_can_be_written_as_json() {
    if !ours_only("nginx does not have this format") {
        return;
    }
    let server = serve(&format!(
        "error_log logs/error.log notice; error_log logs/json.log notice format=json;\n{}",
        one_server("", "server_name here.test; root html;")
    ));
    let mut client = Client::connect(server.addr(0));
    client.request("GET", "/q%22?x=\\", &[("Host", "asked.test"), ("Referer", "http://\u{e4}/")]);
    let path = server.path("logs/json.log");
    let line = wait_for(&path, |bytes| {
        String::from_utf8_lossy(bytes).lines().find(|line| line.contains("No such file")).map(str::to_owned)
    });
    let file = server.path("html/q").display().to_string();
    for part in [
        "{\"time\":\"2".to_owned(),
        "\",\"level\":\"error\",\"pid\":".to_owned(),
        ",\"connection\":1,\"message\":\"open() \\\"".to_owned(),
        format!("{file}\\\"\\\" failed (2: No such file or directory)\",\"client\":\"127.0.0.1\""),
        "\"server\":\"here.test\",\"request\":\"GET /q%22?x=\\\\ HTTP/1.1\",\"host\":\"asked.test\""
            .to_owned(),
        "\"referrer\":\"http://\u{e4}/\"}".to_owned(),
    ] {
        assert!(line.contains(&part), "{part} in {line}");
    }
    // The master writes the same format.
    let first = text(&path).lines().next().expect("the start is logged").to_owned();
    let end = format!("\"message\":\"ringroad/{}\"}}", env!("CARGO_PKG_VERSION"));
    assert!(first.starts_with("{\"time\":\"2") && first.ends_with(&end), "{first}");
}
