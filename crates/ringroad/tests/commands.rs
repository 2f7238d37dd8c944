//! `ringroad serve` and `ringroad check`: the commands beside nginx's options, on real files.
#![forbid(unsafe_code)]

mod control;

use control::BINARY;
use rustix::process::Signal;
use testkit::program::{Program, run};
use testkit::{Client, Deadline, ListenAddr, TempDir};

/// Starts `ringroad serve` on a free port and returns where it listens.
fn serve(dir: &TempDir) -> (Program, ListenAddr) {
    let folder = dir.path().display().to_string();
    let mut program = Program::start(BINARY, &["serve", &folder, "--listen", "127.0.0.1:0"]);
    let line = program.wait_for_output("http://", Deadline::default());
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.and_then(|address| address.parse().ok()).expect("a URL alone on its line");
    (program, ListenAddr::Tcp(address))
}

#[test]
fn serve_serves_a_folder_and_nothing_outside_of_it() {
    let outside = TempDir::new("outside");
    outside.write("secret.txt", "secret");
    let dir = TempDir::new("inside");
    dir.write("index.html", "<p>home</p>");
    dir.write("sub/a b.txt", "spaces");
    dir.write("style.css", "p {}");
    std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).expect("a link");
    std::os::unix::fs::symlink("sub", dir.path().join("in")).expect("a link");
    let (mut program, address) = serve(&dir);
    let get = |target: &str| Client::connect(&address).get(target);
    assert_eq!(get("/").text(), "<p>home</p>");
    assert_eq!(get("/").field("Content-Type"), Some("text/html"));
    assert_eq!(get("/style.css").field("Content-Type"), Some("text/css"));
    assert_eq!(get("/sub/a%20b.txt").text(), "spaces");
    assert_eq!(get("/in/a%20b.txt").text(), "spaces");
    for target in ["/out/secret.txt", "/../outside", "/%2e%2e/secret.txt", "/none"] {
        let response = get(target);
        assert!((400..=404).contains(&response.status), "{target}: {}", response.status);
    }
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
    assert!(program.stderr().contains("\"GET /style.css HTTP/1.1\" 200"), "{}", program.stderr());
    assert!(!dir.path().join("logs").exists(), "nothing is written into the folder");
}

#[test]
fn serve_names_the_remedy_for_a_taken_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("bound").to_string();
    let dir = TempDir::new("taken");
    let said = run(BINARY, &["serve", &dir.path().display().to_string(), "--listen", &address]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.starts_with(&format!("ringroad: {address} is in use")), "{}", said.stderr);
    assert!(said.stderr.contains("--listen 127.0.0.1:0"), "{}", said.stderr);
}

#[test]
fn check_judges_every_directive_and_each_location() {
    let dir = TempDir::new("check");
    let file = dir.write(
        "nginx.conf",
        "events {}\nhttp {\n  sendfile on;\n  server {\n    listen 127.0.0.1:8080;\n    location /big {\n      \
         directio 4m;\n    }\n  }\n}\n",
    );
    let path = file.display().to_string();
    let said = run(BINARY, &["check", &path]);
    assert!(said.status.success(), "{}{}", said.stdout, said.stderr);
    for line in [
        format!("{path}:1: honoured events\n"),
        format!("{path}:3: honoured sendfile\n"),
        format!("{path}:7: honoured directio\n"),
    ] {
        assert!(said.stdout.contains(&line), "{line}{}", said.stdout);
    }
    assert!(said.stdout.contains("/big: "), "the engine of each location: {}", said.stdout);
    assert!(said.stdout.contains("\nThis configuration loads: "), "{}", said.stdout);

    let file = dir.write(
        "bad.conf",
        "events {}\nhttp {\n  degradation sbrk=1m;\n  sendfil on;\n  root;\n  autoindex yes; etag 1;\n}\nstream {}\n",
    );
    let path = file.display().to_string();
    let said = run(BINARY, &["check", &path]);
    assert_eq!(said.status.code(), Some(1));
    for line in [
        format!("{path}:3: not supported yet degradation: of module http_degradation\n"),
        format!("{path}:4: unknown sendfil: did you mean \"sendfile\"?\n"),
        format!("{path}:5: wrong root: invalid number of arguments"),
        // Each of them, where a start names the first one.
        format!("{path}:6: wrong autoindex: invalid value \"yes\" in \"autoindex\" directive"),
        format!("{path}:6: wrong etag: invalid value \"1\" in \"etag\" directive"),
        format!("{path}:8: not supported yet stream: "),
    ] {
        assert!(said.stdout.contains(&line), "{line}{}", said.stdout);
    }
    assert!(said.stdout.contains("\nThis configuration does not load: "), "{}", said.stdout);
    assert_eq!(run(BINARY, &["check"]).status.code(), Some(1));
}

#[test]
fn the_reference_has_a_row_for_each_directive() {
    let said = run(BINARY, &["reference"]);
    assert!(said.status.success());
    for name in ["worker_processes", "sendfile", "root_beneath", "aio_sendfile", "access_log"] {
        assert!(said.stdout.contains(&format!("| `{name} ")), "{name}");
    }
    // Unsupported directives are listed too, supported ones are not among them.
    assert!(said.stdout.contains("\n| http_degradation | `degradation` | http |"), "{}", said.stdout);
    assert!(!said.stdout.contains("`sendfile` |") && !said.stdout.contains("`include` |"));
}

#[test]
fn the_reference_has_a_row_for_each_counter() {
    let said = run(BINARY, &["reference", "counters"]);
    assert!(said.status.success());
    for name in ["cache_unstored_total", "cache_owner", "connections", "requests_total"] {
        assert!(said.stdout.contains(&format!("| `ringroad_{name}` |")), "{name}");
    }
    assert!(said.stdout.contains("\n* `stale_preferred`: "), "{}", said.stdout);
}
