//! `ringroad serve` and `ringroad check`: the commands in addition to nginx's options, on real files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::control::BINARY;
use rustix::process::Signal;
use testkit::origin::{Origin, Reply};
use testkit::program::{Program, run};
use testkit::{Client, Deadline, ListenAddr, TempDir};

/// Starts `ringroad serve` on a free port; returns its address.
fn serve(dir: &TempDir) -> (Program, ListenAddr) {
    let folder = dir.path().display().to_string();
    let mut program = Program::start(BINARY, &["serve", &folder, "--listen", "127.0.0.1:0"]);
    let line = program.wait_for_output("http://", Deadline::default());
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.and_then(|address| address.parse().ok()).expect("a URL alone on its line");
    (program, ListenAddr::Tcp(address))
}

#[test]
fn serve_serves_a_directory_and_nothing_outside_it() {
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
    assert_eq!(get("/").field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(get("/style.css").field("Content-Type"), Some("text/css; charset=utf-8"));
    assert_eq!(get("/sub/a%20b.txt").text(), "spaces");
    assert_eq!(get("/in/a%20b.txt").text(), "spaces");
    for target in ["/out/secret.txt", "/../outside", "/%2e%2e/secret.txt", "/none"] {
        let response = get(target);
        assert!((400..=404).contains(&response.status), "{target}: {}", response.status);
    }
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
    assert!(program.stderr().contains("\"GET /style.css HTTP/1.1\" 200"), "{}", program.stderr());
    assert!(!dir.path().join("logs").exists(), "nothing is written into the directory");
}

#[test]
fn proxy_passes_requests_on_with_the_fields_of_the_client() {
    let origin = Origin::start(|request| {
        let field = |name| request.header(name).unwrap_or_default();
        let names =
            ["Host", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Upgrade", "Connection"];
        Reply::text(names.map(field).join("|"))
    });
    let target = origin.addr().to_string();
    let mut program = Program::start(BINARY, &["proxy", "--to", &target, "--listen", "127.0.0.1:0"]);
    let line = program.wait_for_output("http://", Deadline::default());
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.and_then(|address| address.parse().ok()).expect("a URL alone on its line");
    let mut client = Client::connect(&ListenAddr::Tcp(address));
    // A client cannot choose its own address.
    let sent = [("Host", "app.example"), ("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https")];
    let response = client.request("GET", "/a?b", &sent);
    assert_eq!(response.text(), "app.example|127.0.0.1|app.example|http||");
    assert_eq!(origin.last_request().target, "/a?b");
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
    for (args, said) in [
        (&["proxy"][..], "ringroad: proxy needs the address of the application: --to :3000, for example\n"),
        (
            &["proxy", "--to", "ftp://a"],
            "ringroad: \"ftp://a\" is not the address of an application; write PORT, :PORT, HOST:PORT, unix:PATH, or a URL with http or https\n",
        ),
    ] {
        let output = run(BINARY, args);
        assert_eq!((output.status.code(), output.stderr.as_str()), (Some(2), said));
    }
}

/// The message about a name that is not found names the argument, not a text that the user has never seen.
#[test]
fn proxy_names_its_argument_if_the_application_is_not_found() {
    let args = ["proxy", "--to", "nohost.invalid:80", "--listen", "127.0.0.1:0"];
    let mut program = Program::start(BINARY, &args);
    program.wait_for_output("http://", Deadline::default());
    let said = testkit::wait::until("the message", Deadline::default(), || {
        Some(program.stderr()).filter(|said| said.contains("host not found"))
    });
    let said = said.expect("in time");
    let line = said.lines().find(|line| line.contains("host not found")).expect("a line");
    assert!(line.contains("\"nohost.invalid\" (") && line.ends_with(") in --to"), "{line}");
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
}

/// Without a charset browsers would read UTF-8 in a legacy encoding.
#[test]
fn serve_names_the_charset_of_texts() {
    let dir = TempDir::new("charset");
    for name in
        ["a.html", "a.txt", "a.md", "a.css", "a.js", "a.mjs", "a.json", "a.xml", "a.svg", "a.png", "a.x"]
    {
        dir.write(name, "Grüße");
    }
    let (_program, address) = serve(&dir);
    for (name, expected) in [
        ("a.html", "text/html; charset=utf-8"),
        ("a.txt", "text/plain; charset=utf-8"),
        ("a.md", "text/plain; charset=utf-8"),
        ("a.css", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.mjs", "text/javascript; charset=utf-8"),
        ("a.json", "application/json"),
        ("a.xml", "text/xml"),
        ("a.svg", "image/svg+xml"),
        ("a.png", "image/png"),
        ("a.x", "application/octet-stream"),
    ] {
        let response = Client::connect(&address).get(&format!("/{name}"));
        assert_eq!(
            (response.field("Content-Type"), response.text().as_str()),
            (Some(expected), "Grüße"),
            "{name}"
        );
    }
}

#[test]
fn serve_serves_a_directory_with_a_dollar_sign_in_its_name() {
    let dir = TempDir::new("of-$5-$home");
    dir.write("a.txt", "here");
    let (_program, address) = serve(&dir);
    assert_eq!(Client::connect(&address).get("/a.txt").text(), "here");
}

#[test]
fn serve_lists_directories_as_pages() {
    let dir = TempDir::new("list");
    dir.write("b.txt", "12345");
    dir.write("a.bin", vec![0; 3 << 20]);
    dir.write("über/x", "");
    dir.write(".hidden", "");
    let (mut program, address) = serve(&dir);
    let get = |target: &str| Client::connect(&address).get(target);
    let page = get("/");
    assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
    let text = page.text();
    for part in [
        "<meta name=\"viewport\"",
        "prefers-color-scheme:dark",
        "<a href=\"%C3%BCber/\">über/</a>",
        "title=\"3145728 bytes\">3.0 MiB<",
        "<a href=\"?sort=size&amp;order=desc\">Size</a>",
        "<p>1 directory, 2 files, 3.0 MiB</p>",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("<script") && !text.contains("hidden"), "{text}");
    let order = |target: &str| {
        let text = get(target).text();
        let place = |name: &str| text.find(&format!("\">{name}")).expect("it is listed");
        place("a.bin") < place("b.txt")
    };
    assert!(order("/") && !order("/?sort=size") && order("/?sort=size&order=desc") && !order("/?order=desc"));
    assert!(get("/%C3%BCber/").text().contains("<a href=\"../\">../</a>"));
    assert_eq!(get("/?sort=%3Cscript").status, 200);
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
}

#[test]
fn serve_reports_the_remedy_for_a_port_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("bound").to_string();
    let dir = TempDir::new("taken");
    let said = run(BINARY, &["serve", &dir.path().display().to_string(), "--listen", &address]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.starts_with(&format!("ringroad: {address} is in use")), "{}", said.stderr);
    assert!(said.stderr.contains("--listen 127.0.0.1:0"), "{}", said.stderr);
}

#[test]
fn serve_as_root_warns_that_the_user_of_the_workers_cannot_read_the_directory() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("changing the user takes root");
        return;
    }
    let dir = TempDir::new("closed");
    let site = dir.write("home/site/a.txt", "a").parent().expect("it has a parent").display().to_string();
    let closed = dir.path().join("home");
    std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("an own directory");
    let mut program = Program::start(BINARY, &["serve", &site, "--listen", "127.0.0.1:0"]);
    let url = program.wait_for_output("http://", Deadline::default());
    let stderr = program.stderr();
    assert!(stderr.contains("read as user \"nobody\""), "{stderr}");
    assert!(stderr.contains(&format!("cannot search \"{}\"", closed.display())), "{stderr}");
    let address = url.trim().trim_start_matches("http://").trim_end_matches('/');
    let address = ListenAddr::Tcp(address.parse().expect("a URL alone on its line"));
    assert_eq!(Client::connect(&address).get("/a.txt").status, 403);
    let logged = program.wait_for_output("a.txt\" failed", Deadline::default());
    assert!(logged.contains("(13: Permission denied)"), "{logged}");
}

#[test]
fn check_prints_nothing_about_a_valid_configuration() {
    let dir = TempDir::new("check");
    let file = dir.write(
        "nginx.conf",
        "events {}\nhttp {\n  sendfile on;\n  tcp_nopush on;\n  server {\n    listen 127.0.0.1:8080;\n    location /big \
         {\n      directio 4m;\n    }\n  }\n}\n",
    );
    let path = file.display().to_string();
    let said = run(BINARY, &["check", &path]);
    assert!(said.status.success(), "{}{}", said.stdout, said.stderr);
    assert!(
        said.stdout.starts_with("This configuration loads. Directives: ") && said.stdout.lines().count() == 1
    );
    let said = run(BINARY, &["check", "--all", &path]);
    for line in [
        format!("{path}:1: supported events\n"),
        format!("{path}:3: supported sendfile\n"),
        format!("{path}:8: supported directio\n"),
    ] {
        assert!(said.stdout.contains(&line), "{line}{}", said.stdout);
    }
    assert!(said.stdout.contains("/big: "), "the engine of each location: {}", said.stdout);
    let json = run(BINARY, &["check", "--json", &path]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!((&json["verdict"], &json["loads"]), (&"works".into(), &true.into()));
}

#[test]
fn check_lists_what_the_sandbox_refuses_and_the_directive_that_allows_it() {
    let dir = TempDir::new("check");
    let top = std::fs::canonicalize(dir.path()).unwrap();
    dir.write("www/sub/a.txt", "");
    dir.write("mirror/b.txt", "");
    std::os::unix::fs::symlink(top.join("mirror"), top.join("www/sub/mirror")).unwrap();
    std::os::unix::fs::symlink(top.join("www/sub/a.txt"), top.join("www/inside")).unwrap();
    let (shown, www) = (top.display(), top.join("www"));
    let text = format!(
        "sandbox on; sandbox_path /no-such-directory; events {{}}\nhttp {{\n  map $host $known {{ default {0}; }}\n  server {{\n    root {0};\n    location /a {{ root \
         $arg_dir; }}\n    location /b {{ root $known; }}\n    location /c {{ proxy_pass http://$arg_to; }}\n  }}\n}}\n",
        www.display()
    );
    let path = dir.write("nginx.conf", text).display().to_string();
    let said = run(BINARY, &["check", &path]);
    let expected = format!(
        "Refused by the sandbox (3):\n  root \"$arg_dir\": only a request determines the path; allow its directory: \
         sandbox_path DIRECTORY;\n    {path}:6\n  the sandbox permits nothing for \"/no-such-directory\" of \"sandbox_path\", which \
         does not exist: create it in {path}:1\n  {shown}/www/sub/mirror: this symbolic link leads to \"{shown}/mirror\", \
         which no directive names; allow it: sandbox_path {shown}/mirror;\n\n"
    );
    assert!(said.stdout.contains(&expected) && said.status.success(), "{expected}{}", said.stdout);
    let json = run(BINARY, &["check", "--json", &path]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let found = &json["refused_by_sandbox"];
    assert_eq!(found["paths"][0]["value"], "$arg_dir");
    assert_eq!(found["omitted"][0]["path"], "/no-such-directory");
    assert_eq!(found["links"][0]["allow"], format!("sandbox_path {shown}/mirror;"));
    assert_eq!(found["links"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["any_port"][0]["place"], format!("{path}:8"));
    assert_eq!(found["any_port_is_refused"], false);
    assert_eq!(found["search_is_complete"], true);
    let strict = std::fs::read_to_string(&path).expect("our file").replace("sandbox on;", "sandbox strict;");
    dir.write("nginx.conf", strict);
    let said = run(BINARY, &["check", &path]);
    let expected = format!(
        "  proxy_pass \"http://$arg_to\": only a request determines the port, and \"sandbox strict\" allows only those that a \
         directive names; allow them: upstream NAME {{ server ADDRESS:PORT; }}\n    {path}:8\n"
    );
    assert!(said.stdout.contains(&expected) && said.stdout.contains("sandbox (4):"), "{}", said.stdout);
}

#[test]
fn check_reports_all_problems_in_one_run() {
    let dir = TempDir::new("check");
    let file = dir.write(
        "bad.conf",
        "events {}\nhttp {\n  degradation sbrk=1m;\n  sendfil on;\n  root;\n  autoindex yes; etag 1;\n  include \
         gone.conf;\n  server {\n    listen 127.0.0.1:8443 ssl;\n    ssl_certificate gone.pem;\n    ssl_certificate_key \
         gone.pem;\n  }\n  lua_code_cache on;\n  server {\n    index etag; etag 2;\n  }\n}\nmail {}\n",
    );
    let path = file.display().to_string();
    let said = run(BINARY, &["check", "--all", &path]);
    assert_eq!(said.status.code(), Some(1));
    for line in [
        format!("unknown directive \"sendfil\" in {path}:4; did you mean \"sendfile\"?\n"),
        format!("invalid number of arguments in \"root\" directive in {path}:5"),
        // Every error is listed, while a start reports only the first.
        "  invalid value \"yes\" in \"autoindex\" directive".to_owned(),
        "  invalid value \"1\" in \"etag\" directive".to_owned(),
        "  invalid value \"2\" in \"etag\" directive".to_owned(),
        format!("gone.conf\" failed (2: No such file or directory) in {path}:7"),
        "gone.pem\"".to_owned(),
        "  module http_degradation (the heap size of this server does not show its load: use limit_conn"
            .to_owned(),
        format!(": 1 directive\n    {path}:3 degradation\n"),
        format!("{path}:18 mail\n"),
        "  module http_lua, which is not nginx's own (docs/third-party-modules.md): 1 directive\n".to_owned(),
        format!("{path}:6: wrong autoindex: "),
        // The error of the next statement on the line quotes a word of this one.
        format!("{path}:15: supported index\n"),
        "\nThis configuration does not load: it has errors. Directives: ".to_owned(),
    ] {
        assert!(said.stdout.contains(&line), "{line}{}", said.stdout);
    }
    assert!(!said.stdout.contains(": supported ssl_certificate"), "{}", said.stdout);
}

#[test]
fn check_distinguishes_missing_features_from_errors() {
    let dir = TempDir::new("check");
    for (text, kind, title) in [
        ("mail {}", "missing", "Not supported yet (1):\n  module mail of nginx: 1 directive\n"),
        (
            "http { geoip_country /a; geoip_city /b; }",
            "never",
            "Will not be supported (2):\n  module http_geoip (MaxMind no longer publishes its files: use geo",
        ),
    ] {
        let file = dir.write("nginx.conf", format!("events {{}}\n{text}\n"));
        let path = file.display().to_string();
        let said = run(BINARY, &["check", &path]);
        assert_eq!(said.status.code(), Some(2), "{}", said.stdout);
        assert!(said.stdout.starts_with(title), "{}", said.stdout);
        assert!(!said.stdout.contains("supported yet, "), "{}", said.stdout);
        let json = run(BINARY, &["check", "--json", &path]).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!((&json["verdict"], &json["problems"][0]["kind"]), (&kind.into(), &kind.into()));
    }
    for (text, kind, status, line) in [
        ("http { sendfil on; }", "misspelt", 1, "Misspelt (1):\n  unknown directive \"sendfil\""),
        ("http { frobnicate on; }", "unknown", 1, "Unknown (1):\n  unknown directive \"frobnicate\""),
        (
            "http { lua_code_cache on; }",
            "third-party",
            2,
            "Of third-party modules of nginx (1):\n  module http_lua, which is not nginx's own",
        ),
        (
            "http { upstream u { server 127.0.0.1; ntlm; } }",
            "commercial",
            2,
            "Of the commercial edition of nginx (1):\n  unknown directive \"ntlm\"",
        ),
        (
            "http { server { satisfy_any on; } }",
            "wrong",
            1,
            "Wrong (1):\n  unknown directive \"satisfy_any\"",
        ),
    ] {
        let path = dir.write("nginx.conf", format!("events {{}}\n{text}\n")).display().to_string();
        let said = run(BINARY, &["check", &path]);
        assert_eq!(said.status.code(), Some(status), "{}", said.stdout);
        assert!(said.stdout.starts_with(line), "{}", said.stdout);
        let json = run(BINARY, &["check", "--json", &path]).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!((&json["verdict"], &json["problems"][0]["kind"]), (&kind.into(), &kind.into()));
    }
    // The judgement of a module that is not available is that of its directives.
    for (text, title) in [
        (
            "load_module modules/ngx_http_lua_module.so; events {} http { lua_code_cache on; }",
            "Of third-party modules of nginx (2):\n  module http_lua, which is not nginx's own \
             (docs/third-party-modules.md): 2 directives\n",
        ),
        (
            "load_module ngx_mail_module.so; events {} mail {}",
            "Not supported yet (2):\n  module mail of nginx: 2 directives\n",
        ),
    ] {
        let path = dir.write("nginx.conf", text).display().to_string();
        let said = run(BINARY, &["check", &path]);
        assert_eq!(said.status.code(), Some(2), "{}", said.stdout);
        assert!(said.stdout.starts_with(title), "{}", said.stdout);
        assert!(said.stdout.contains(&format!("{path}:1 load_module\n")), "{}", said.stdout);
    }
    assert_eq!(run(BINARY, &["check", "/nonexistent"]).status.code(), Some(1));
}

/// One judgement: `check` must not call a configuration good that cannot be started here.
#[test]
fn check_and_the_test_of_a_start_have_the_same_result() {
    let dir = TempDir::new("check");
    let prefix = dir.path().display().to_string();
    let main = "pid here.pid; error_log stderr; events {} ";
    for (text, reason) in [
        (format!("{main} http {{ access_log off; server {{ listen 127.0.0.1:0; }} }}"), ""),
        (
            format!("user no-such-user; {main} http {{ access_log off; server {{ listen 127.0.0.1:0; }} }}"),
            "getpwnam(\"no-such-user\") failed",
        ),
        (
            format!("{main} http {{ access_log gone/access.log; server {{ listen 127.0.0.1:0; }} }}"),
            "gone/access.log\" failed (2: No such file or directory)",
        ),
        (
            format!("{main} http {{ access_log off; server {{ listen 192.0.2.1:8080; }} }}"),
            "bind() to 192.0.2.1:8080 failed (99: Cannot assign requested address)",
        ),
        (
            "pid gone/a.pid; events {} http { access_log off; error_log stderr; server { listen 127.0.0.1:0; } }".to_owned(),
            "gone/a.pid\" failed (2: No such file or directory)",
        ),
        (format!("admin_socket gone/a.sock; {main} http {{ access_log off; server {{ listen 127.0.0.1:0; }} }}"), "admin_socket: bind() of"),
    ] {
        // The user of the worker is only read by root.
        if reason.starts_with("getpwnam") && !rustix::process::geteuid().is_root() {
            continue;
        }
        let path = dir.write("nginx.conf", &text).display().to_string();
        let tested = run(BINARY, &["-t", "-p", &prefix, "-c", "nginx.conf"]);
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        let before = files();
        let checked = run(BINARY, &["check", &path]);
        assert_eq!(files(), before, "a check creates no files");
        assert_eq!(
            tested.status.code(),
            checked.status.code(),
            "{text}: {}{}",
            tested.stderr,
            checked.stdout
        );
        assert_eq!(tested.status.success(), reason.is_empty(), "{text}: {}", tested.stderr);
        assert!(checked.stdout.contains(reason) && tested.stderr.contains(reason), "{}", checked.stdout);
        let json = run(BINARY, &["check", "--json", &path]).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        let kind = if reason.is_empty() { "works" } else { "machine" };
        assert_eq!((&json["verdict"], &json["loads"]), (&kind.into(), &reason.is_empty().into()));
    }
}

/// A difference means that `cargo xtask reference` has not been run.
#[test]
fn pages_of_the_reference_are_current() {
    let pages = [
        ("directives.md", include_str!("../../../../docs/directives.md"), &["reference"][..]),
        ("counters.md", include_str!("../../../../docs/counters.md"), &["reference", "counters"]),
        ("lint.md", include_str!("../../../../docs/lint.md"), &["reference", "lint"]),
    ];
    for (name, stored, args) in pages {
        let generated = run(BINARY, args).stdout;
        let first = stored.lines().zip(generated.lines()).find(|(stored, generated)| stored != generated);
        assert!(stored == generated, "docs/{name}: run `cargo xtask reference`: {first:?}");
    }
}

#[test]
fn the_reference_has_a_row_for_each_directive() {
    let said = run(BINARY, &["reference"]);
    assert!(said.status.success());
    for name in ["worker_processes", "sendfile", "root_beneath", "aio_sendfile", "access_log"] {
        assert!(said.stdout.contains(&format!("| `{name} ")), "{name}");
    }
    // The list contains unsupported directives, but no supported ones.
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
