//! The command line compared with nginx's: texts, streams, exit statuses. No test keeps a server running for long.

use std::path::Path;
use std::process::{Command, Output};

use crate::control::BINARY;
use testkit::{Client, Server, TempDir};

/// Exit status and output of one call.
struct Said {
    code: i32,
    out: String,
    err: String,
}

fn run(args: &[&str]) -> Said {
    let Output { status, stdout, stderr } =
        Command::new(BINARY).args(args).output().expect("the binary was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// Creates a prefix directory with a configuration.
fn prefix(conf: &str) -> (TempDir, String) {
    let dir = TempDir::new("cli");
    dir.write("conf/nginx.conf", conf);
    let path = format!("{}/", dir.path().display());
    (dir, path)
}

const EMPTY: &str = "error_log logs/error.log; pid logs/nginx.pid; events {} http { access_log off; }";

#[test]
fn the_version_is_printed_in_the_form_that_tools_match() {
    let version = format!("nginx version: nginx/1.31.5 (ringroad-{})\n", env!("CARGO_PKG_VERSION"));
    let said = run(&["-v"]);
    assert_eq!((said.code, said.err.as_str(), said.out.as_str()), (0, version.as_str(), ""));
    let said = run(&["-V"]);
    let rest = said.err.strip_prefix(&version).expect("the version first");
    let (library, rest) = rest.split_once('\n').expect("several lines");
    assert!(library.starts_with("built with OpenSSL 1.1.1 (compatible; AWS-LC "), "{library}");
    let rest = rest.strip_prefix("TLS SNI support enabled\n").expect("SNI");
    assert!(rest.starts_with("configure arguments: --prefix=/"), "{rest}");
    for argument in [" --conf-path=/etc/nginx/nginx.conf ", " --with-threads ", " --with-http_dav_module "] {
        assert!(rest.contains(argument), "{rest}");
    }
    assert_eq!((said.code, rest.lines().count()), (0, 1));
    for option in ["-h", "-?", "-hV"] {
        let said = run(&[option]);
        assert_eq!(said.code, 0);
        assert!(
            said.err.starts_with(&version) && said.err.contains("\nUsage: ringroad [-?hvVtTq]"),
            "{}",
            said.err
        );
        assert!(said.err.contains("\n  -T            : test configuration, dump it and exit\n"));
    }
}

#[test]
fn wrong_options_exit_with_status_1_and_messages_of_nginx() {
    for (args, text) in [
        (&["-x"][..], "invalid option: \"x\"; \"ringroad -h\" lists the options"),
        (&["-s"], "option \"-s\" requires parameter"),
        (
            &["-s", "restart"],
            "invalid option: \"-s restart\"; the signals are stop, quit, reopen, reload and upgrade",
        ),
        (&["-c"], "option \"-c\" requires file name"),
        (&["-p"], "option \"-p\" requires directory name"),
        (&["-t", "-g"], "option \"-g\" requires parameter"),
    ] {
        let said = run(args);
        assert_eq!((said.code, said.err), (1, format!("ringroad: {text}\n")), "{args:?}");
    }
}

#[test]
fn a_valid_configuration_is_reported_as_valid() {
    let (dir, prefix) = prefix(EMPTY);
    let file = format!("{prefix}conf/nginx.conf");
    let expected = format!(
        "ringroad: the configuration file {file} syntax is ok\n\
         ringroad: configuration file {file} test is successful\n"
    );
    for args in [
        &["-t", "-p", &prefix][..],
        &["-tp", &prefix],
        &["-t", "-p", prefix.trim_end_matches('/')],
        &["-t", "-p", &prefix, "-c", "conf/nginx.conf"],
        &["-t", "-c", &file, "-p", &prefix, "-g", "worker_processes 2;"],
    ] {
        let said = run(args);
        assert_eq!((said.code, said.err.as_str(), said.out.as_str()), (0, expected.as_str(), ""), "{args:?}");
    }
    let said = run(&["-t", "-q", "-p", &prefix]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(!dir.path().join("logs/nginx.pid").exists(), "a test leaves no pid file behind");
}

#[test]
fn a_relative_prefix_is_applied_once() {
    // As the commands of the examples do it: from the parent directory of the prefix, with files and logs below the
    // prefix.
    let builder = Server::builder(BINARY);
    let folder = builder.dir().to_owned();
    let (around, name) =
        (folder.parent().expect("a parent directory"), folder.file_name().expect("it has one"));
    let server = builder
        .conf(
            "pid logs/nginx.pid; events {} http { access_log logs/to.log; index page;
             server { listen 127.0.0.1:0; error_page 404 /page;
             location /area/ { alias html/; auth_basic a; auth_basic_user_file users; } } }",
        )
        .text("html/page", "the page")
        .text("conf/users", "anna:{PLAIN}secret\n")
        .shell(&format!("cd '{}'", around.display()))
        .arg("-p")
        .arg(&name.to_string_lossy())
        .start();
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/").text(), "the page");
    assert_eq!(client.get("/none").text(), "the page");
    let password = [("Host", "a"), ("Authorization", "Basic YW5uYTpzZWNyZXQ=")];
    assert_eq!(client.request("GET", "/area/page", &password).text(), "the page");
    assert!(server.path("logs/to.log").exists() && !folder.join(name).exists());
    drop(client);
    assert!(server.quit_and_wait().success());
}

#[test]
fn wrong_configurations_are_reported_with_line_and_status_1() {
    let (_dir, prefix) = prefix("events {}\nhttp {\n  lsten 80;\n}\n");
    let file = format!("{prefix}conf/nginx.conf");
    let said = run(&["-t", "-p", &prefix]);
    let emerg = format!("ringroad: [emerg] unknown directive \"lsten\" in {file}:3");
    let failed = format!("ringroad: configuration file {file} test failed\n");
    assert_eq!(said.code, 1);
    assert!(said.err.starts_with(&emerg) && said.err.ends_with(&failed), "{}", said.err);
    assert!(!said.err.contains("syntax is ok"));
    // A start prints the same message, without the lines about a test.
    let said = run(&["-p", &prefix]);
    assert_eq!(said.code, 1);
    let marked = "    3 |   lsten 80;\n      |   ^^^^^\n";
    assert!(said.err.starts_with(&emerg) && said.err.ends_with(marked), "{}", said.err);
    assert_eq!(said.err.lines().count(), 3, "{}", said.err);
    // `-q` hides only success.
    assert!(run(&["-tq", "-p", &prefix]).err.ends_with(&failed));

    let said = run(&["-t", "-p", &prefix, "-c", "none.conf"]);
    let open = format!("[emerg] open() \"{prefix}none.conf\" failed (2: No such file or directory)");
    assert!(said.code == 1 && said.err.contains(&open), "{}", said.err);
}

#[test]
fn a_configuration_test_shows_several_errors_with_their_lines() {
    let (dir, prefix) = prefix(
        "events {}\nhttp {\n  server {\n    proxy_pas http://a;\n    listen 127.0.0.1:0\n    root a;\n  }\n  \
         include none/*.conf;\n  sendfile maybe;\n  ssl on;\n  include none.conf;\n  gzip “on”;\n}\n",
    );
    let file = format!("{prefix}conf/nginx.conf");
    let said = run(&["-t", "-p", &prefix]);
    let conf = dir.path().join("conf").display().to_string();
    let expected = [
        format!(
            "ringroad: [emerg] unknown directive \"proxy_pas\" in {file}:4; did you mean \"proxy_pass\", which is allowed in \
             location, if in location, limit_except?\n    4 |     proxy_pas http://a;\n      |     ^^^^^^^^^\n"
        ),
        format!("in {file}:6"),
        "    5 |     listen 127.0.0.1:0\n      |                       ^ a \";\" is missing here\n"
            .to_owned(),
        format!("in {file}:9\n    9 |   sendfile maybe;\n      |            ^^^^^\n"),
        format!(
            "unknown directive \"ssl\" in {file}:10; nginx 1.25.1 removed it: write \"listen 443 ssl\"\n"
        ),
        format!(
            "/none.conf\" failed (2: No such file or directory) in {file}:11; relative names start from \"{prefix}conf\", the \
             directory of the main file\n   11 |   include none.conf;\n"
        ),
        "   12 |   gzip “on”;\n      |        ^^^^ a typographic quote: write \" or '\n".to_owned(),
        format!("ringroad: configuration file {file} test failed\n"),
    ];
    let mut rest = said.err.as_str();
    for part in expected {
        let place = rest.find(&part).unwrap_or_else(|| panic!("{part:?} in {conf}\n{}", said.err));
        rest = &rest[place + part.len()..];
    }
    assert_eq!((said.code, rest), (1, ""));
    assert_eq!(said.err.matches("[emerg]").count(), 6, "{}", said.err);
    // Tools read the first line, and the log contains only complete lines.
    let log = std::fs::read_to_string(dir.path().join("logs/error.log")).expect("the default log");
    assert!(log.contains("unknown directive \"proxy_pas\"") && !log.contains("^^^"), "{log}");
    // No more messages than fit on a page.
    dir.write("conf/nginx.conf", format!("events {{}}\n{}", "foo;\n".repeat(30)));
    let said = run(&["-t", "-p", &prefix]);
    assert_eq!(said.err.matches("[emerg]").count(), 20, "{}", said.err);
    assert!(said.err.contains("\nringroad: 10 more errors\n"), "{}", said.err);
}

/// An error caused by a wrong definition is not reported a second time.
#[test]
fn errors_caused_by_an_earlier_error_are_not_reported() {
    let (_dir, prefix) = prefix(
        "events {}\nhttp {\n  limit_req_zone $binary_remote_addr zone=one:x rate=1r/s;\n  map $uri $mapped { a b c; }\n  \
         server { listen 127.0.0.1:0; limit_req zone=one; return 200 $mapped; }\n}\n",
    );
    let said = run(&["-t", "-p", &prefix]);
    assert_eq!((said.code, said.err.matches("[emerg]").count()), (1, 2), "{}", said.err);
}

#[test]
fn missing_sections_are_reported_after_the_syntax_check() {
    let (_dir, prefix) = prefix("pid logs/nginx.pid;");
    let said = run(&["-t", "-p", &prefix]);
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(said.code, 1);
    assert!(lines[0].ends_with("syntax is ok"), "{lines:?}");
    assert_eq!(
        lines[1],
        "ringroad: [emerg] no \"events\" section in configuration; add \"events {}\" at the top of the file"
    );
    assert!(lines[2].ends_with("test failed"), "{lines:?}");
}

#[test]
fn global_directives_can_be_given_on_the_command_line() {
    let (_dir, prefix) = prefix("events {} http { access_log off; }");
    for (text, message) in [
        ("pid a", "unexpected end of parameter, expecting \";\" in command line"),
        ("events {}", "block directives are not supported in -g option in command line"),
        ("foo bar;", "unknown directive \"foo\" in command line"),
    ] {
        let said = run(&["-t", "-p", &prefix, "-g", text]);
        assert!(said.code == 1 && said.err.contains(message), "{text}: {}", said.err);
    }
    let said = run(&["-t", "-p", &prefix, "-g", "pid /nonexistent/a.pid;"]);
    let open = "[emerg] open() \"/nonexistent/a.pid\" failed (2: No such file or directory) in command line";
    assert!(said.code == 1 && said.err.contains(open), "{}", said.err);
}

#[test]
fn a_log_or_pid_file_that_cannot_be_opened_is_reported_with_its_line() {
    let conf = "events {}\nhttp { server { listen 127.0.0.1:0;\naccess_log none/a.log; } }\n";
    let (_dir, prefix) = prefix(conf);
    let file = format!("{prefix}conf/nginx.conf");
    let expected = format!(
        "open() \"{prefix}none/a.log\" failed (2: No such file or directory) in {file}:3; the directory of the file does not \
         exist\n"
    );
    for args in [&["-t", "-p", &prefix][..], &["-p", &prefix]] {
        let said = run(args);
        assert!(said.code == 1 && said.err.contains(&expected), "{}", said.err);
    }
}

#[test]
fn a_dump_prints_every_file_once_to_standard_output() {
    let (dir, prefix) = prefix("events {}\nhttp { access_log off; include more/*.conf; }\n# end");
    let one = dir.write("conf/more/1.conf", "server { listen 127.0.0.1:0; }\n");
    let two = dir.write("conf/more/2.conf", "# nothing");
    let said = run(&["-T", "-p", &prefix]);
    let main = std::fs::read_to_string(dir.path().join("conf/nginx.conf")).expect("just written");
    let expected = format!(
        "# configuration file {prefix}conf/nginx.conf:\n{main}\n\
         # configuration file {}:\nserver {{ listen 127.0.0.1:0; }}\n\n\
         # configuration file {}:\n# nothing\n",
        shown(&one, &prefix),
        shown(&two, &prefix),
    );
    assert_eq!((said.code, said.out), (0, expected), "{}", said.err);
    assert!(said.err.ends_with("test is successful\n"));
}

/// Returns the path of a file as a dump prints it: the prefix as given, one slash, and the path below it.
fn shown(path: &Path, prefix: &str) -> String {
    let below = path.display().to_string();
    let below = below.strip_prefix(prefix.trim_end_matches('/')).expect("the file is below the prefix");
    format!("{prefix}{}", below.trim_start_matches('/'))
}

#[test]
fn signals_need_a_valid_pid_file() {
    let (dir, prefix) = prefix(EMPTY);
    let pid = format!("{prefix}logs/nginx.pid");
    let said = run(&["-s", "reload", "-p", &prefix]);
    let expected = format!(
        "ringroad: [error] open() \"{pid}\" failed (2: No such file or directory); no server runs with this configuration\n"
    );
    assert_eq!((said.code, said.err), (1, expected));
    for text in ["", "abc\n", "-1\n", "0\n"] {
        dir.write("logs/nginx.pid", text);
        let said = run(&["-s", "stop", "-p", &prefix]);
        let expected = format!(
            "ringroad: [error] invalid PID number \"{}\" in \"{pid}\"; signal the master process by kill(1), or start the \
             server again\n",
            text.trim()
        );
        assert_eq!((said.code, said.err), (1, expected));
    }
    // A process ID that is certainly unused: our own child, reaped.
    let mut child = Command::new("true").spawn().expect("true is everywhere");
    child.wait().expect("it ends");
    dir.write("logs/nginx.pid", format!("{}\n", child.id()));
    for (name, number) in [("stop", 15), ("quit", 3), ("reopen", 10), ("reload", 1)] {
        let said = run(&["-s", name, "-p", &prefix]);
        let expected = format!(
            "ringroad: [alert] kill({}, {number}) failed (3: No such process); no server runs with this configuration, \
                 \"{pid}\" is outdated\n",
            child.id()
        );
        assert_eq!((said.code, said.err), (1, expected));
    }
    let log = std::fs::read_to_string(dir.path().join("logs/error.log")).expect("the default log");
    assert!(log.contains("[notice]") && log.contains(": signal process started\n"), "{log}");
    dir.write("conf/nginx.conf", "events { }\nhttp { root x }\n");
    let said = run(&["-s", "reload", "-p", &prefix]);
    assert!(said.code == 1 && said.err.contains("no signal was sent"), "{}", said.err);
}

#[test]
fn a_signal_is_sent_only_to_a_ringroad_process() {
    let (dir, prefix) = prefix(EMPTY);
    let mut other = Command::new("sleep").arg("1000").spawn().expect("sleep is everywhere");
    dir.write("logs/nginx.pid", format!("{}\n", other.id()));
    for name in ["stop", "quit", "reopen", "reload"] {
        let said = run(&["-s", name, "-p", &prefix]);
        assert_eq!(said.code, 1, "{}", said.err);
        let start = format!(
            "ringroad: [error] process {} of \"{prefix}logs/nginx.pid\" is not ringroad but \"/",
            other.id()
        );
        assert!(said.err.starts_with(&start) && said.err.contains("--any-process"), "{}", said.err);
        assert_eq!(other.try_wait().expect("it is ours"), None, "it runs on");
    }
    let said = run(&["-s", "stop", "-p", &prefix, "--any-process"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let status = other.wait().expect("it is ours");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
}

#[test]
fn an_error_log_that_cannot_be_opened_causes_an_alert() {
    let (_dir, prefix) = prefix(EMPTY);
    let said = run(&["-t", "-p", &prefix, "-e", "none/error.log"]);
    let alert = format!(
        "ringroad: [alert] could not open error log file: open() \"{prefix}none/error.log\" failed \
         (2: No such file or directory)\n"
    );
    assert!(said.code == 0 && said.err.starts_with(&alert), "{}", said.err);
    // With `-e stderr` lines have the form of the log.
    let said = run(&["-t", "-p", &prefix, "-e", "stderr", "-c", "none.conf"]);
    let line = said.err.lines().next().unwrap_or_default();
    assert!(line.contains(" [emerg] ") && line.contains("#") && !line.starts_with("ringroad"), "{line}");
}

#[test]
fn engines_of_this_machine_are_printed_as_text_and_as_json() {
    let said = run(&["engines"]);
    assert!(said.code == 0 && said.out.contains("io_uring"), "{}", said.out);
    let said = run(&["engines", "--json"]);
    assert!(said.code == 0 && said.out.starts_with("{\"net\":") && said.out.ends_with("}\n"), "{}", said.out);
    assert_eq!(run(&["engines", "--xml"]).code, 2);
}

#[test]
fn serve_reports_errors_with_an_explanation() {
    let said = run(&["serve"]);
    let usage = "Usage: ringroad serve [--listen ADDR] [--tls [NAME,...]] [--acme-directory URL] DIR\n";
    assert_eq!((said.code, said.err), (2, format!("ringroad serve: DIR is missing\n{usage}")));
    let said = run(&["serve", "/nonexistent"]);
    let expected = "ringroad: cannot serve \"/nonexistent\": 2: No such file or directory\n";
    assert_eq!((said.code, said.err.as_str()), (1, expected));
}

/// The workers' user cannot write to the directory, whether the test runs as root or not.
#[test]
fn an_unwritable_temporary_directory_causes_a_warning() {
    let folder = TempDir::new("cli-temp");
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).expect("it can be made");
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o500))
        .expect("it is ours");
    let text = format!(
        "events {{}} http {{\n proxy_temp_path /dev/null/a;\n client_body_temp_path {}/a/b; }}",
        closed.display()
    );
    let (_dir, prefix) = prefix(&text);
    let said = run(&["-t", "-p", &prefix]);
    assert_eq!(said.code, 0, "{}", said.err);
    for (path, line) in [(format!("{}/a/b", closed.display()), 3), ("/dev/null/a".into(), 2)] {
        let start = format!("[warn] workers cannot write temporary files to \"{path}\": ");
        let end = format!(" in {prefix}conf/nginx.conf:{line}");
        let is_told = said.err.lines().any(|text| text.contains(&start) && text.ends_with(&end));
        assert!(is_told, "{}", said.err);
    }
}

/// Typical mistakes of beginners, and the correction that each message names.
#[test]
fn typical_mistakes_are_reported_with_a_correction() {
    let (dir, prefix) = prefix(EMPTY);
    let file = dir.write("site.conf", EMPTY).display().to_string();
    for (args, code, remedy) in [
        (&["start"][..], 2, "unknown command \"start\"; write \"ringroad\"\n".to_owned()),
        (&["stop"], 2, "write \"ringroad -s stop\"".to_owned()),
        (&["reload"], 2, "write \"ringroad -s reload\"".to_owned()),
        (&["version"], 2, "write \"ringroad --version\"".to_owned()),
        (&[&file], 2, format!("\"ringroad check {file}\" checks a configuration")),
        (&[&prefix], 2, format!("\"ringroad serve {prefix}\" serves a directory")),
        (&["-t", "site.conf"], 1, "write \"-c site.conf\" if it is the configuration file".to_owned()),
        (&["completions", "tcsh"], 2, "SHELL is bash, zsh or fish".to_owned()),
        (
            &["stat", "-1", "http://127.0.0.1:1/"],
            1,
            "a location with \"dashboard;\" of a running server".to_owned(),
        ),
    ] {
        let said = run(args);
        assert_eq!(said.code, code, "{args:?}: {}", said.err);
        assert!(said.err.contains(&remedy), "{args:?}: {}", said.err);
    }
}

#[test]
fn a_relative_configuration_path_error_explains_the_prefix() {
    let (dir, _) = prefix(EMPTY);
    dir.write("site.conf", EMPTY);
    let here = dir.path();
    let output =
        Command::new(BINARY).args(["-t", "-c", "site.conf"]).current_dir(here).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("a relative -c starts from the prefix"), "{said}");
    assert!(said.contains(&format!("-c \"{}\"", here.join("site.conf").display())), "{said}");
    // A nonexistent prefix is a typing error: the server creates nothing for it.
    let missing = here.join("prefiks");
    let output = Command::new(BINARY).arg("-p").arg(&missing).output().expect("it runs");
    assert!(!output.status.success() && !missing.exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn stat_reports_a_server_that_does_not_respond() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let url = format!("http://{}/status", listener.local_addr().expect("it is bound"));
    let said = run(&["stat", "-1", &url]);
    assert!(said.code == 1 && said.err.contains("no response within "), "{}", said.err);
}
