//! `ringroad fmt` over every configuration in the repository, and `ringroad explain` compared with a server that runs
//! the same configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::control::BINARY;
use conf::{FileId, MapLoader, Source, Statement, parse};
use testkit::program::run;
use testkit::{Client, Server, TempDir};

/// Adds the files below a directory that look like configurations.
fn configurations(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("the directory is there").flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_conf = [".conf", ".types", ".map"].iter().any(|end| name.ends_with(end))
            || ["_params", "default", "koi-utf", "koi-win", "win-utf"].iter().any(|end| name.ends_with(end));
        match path.is_dir() {
            true if name != "target" && !name.starts_with('.') => configurations(&path, found),
            false if is_conf => found.push(path),
            _ => {}
        }
    }
}

/// Returns the statements without their line numbers.
fn shape(text: &[u8]) -> Option<String> {
    fn write(statements: &[Statement], out: &mut String) {
        for statement in statements {
            for word in [&statement.name].into_iter().chain(&statement.args) {
                *out += &format!("{:?}{} ", word.text, word.quoted);
            }
            *out += if statement.block.is_some() { "{\n" } else { ";\n" };
            write(statement.children(), out);
            *out += if statement.block.is_some() { "}\n" } else { "" };
        }
    }
    // Included files do not exist here: `include` is parsed as an unknown directive.
    let text = String::from_utf8_lossy(text).replace("include ", "include_ ");
    let loader: MapLoader = [("/n.conf", text.into_bytes())].into_iter().collect();
    let tree = parse(&Source::new("/n.conf"), &loader).expect("the file is in the map");
    let mut out = String::new();
    write(&tree.statements, &mut out);
    tree.fault().is_none().then_some(out)
}

#[test]
fn formatting_changes_no_configuration_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["examples", "crates", "bench", "docs"] {
        configurations(&root.join(folder), &mut files);
    }
    if Path::new("/etc/nginx/nginx.conf").exists() {
        configurations(Path::new("/etc/nginx"), &mut files);
    }
    let mut count = 0;
    for path in &files {
        let text = fs::read(path).expect("it was listed");
        let Some(before) = shape(&text) else { continue };
        let file = FileId::file(path);
        let once = conf::format(&text, file.clone()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(shape(&once).as_ref(), Some(&before), "{}", path.display());
        assert_eq!(conf::format(&once, file).as_ref(), Ok(&once), "{}", path.display());
        let comments = |text: &[u8]| text.iter().filter(|byte| **byte == b'#').count();
        assert_eq!(comments(&text), comments(&once), "{}", path.display());
        count += 1;
    }
    assert!(count > 25, "{count} of {files:?}");
}

/// The examples must be formatted as `fmt` does.
#[test]
fn the_examples_are_formatted() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for entry in fs::read_dir(examples).expect("the directory is there").flatten() {
        let file = entry.path().join("nginx.conf");
        // The write-ups are unchanged since their publication.
        if file.exists() && !entry.file_name().to_string_lossy().starts_with("write-up") {
            let said = run(BINARY, &["fmt", "--check", &file.display().to_string()]);
            assert!(said.status.success() && said.stdout.is_empty(), "{}", said.stderr);
        }
    }
}

#[test]
fn fmt_prints_writes_and_checks() {
    let dir = TempDir::new("fmt");
    let file = dir.write("a.conf", "http{# c\nroot  a;}");
    let path = file.display().to_string();
    let expected = "http { # c\n    root a;\n}\n";
    assert_eq!(run(BINARY, &["fmt", &path]).stdout, expected);
    let said = run(BINARY, &["fmt", "--check", &path]);
    assert_eq!(
        (said.status.code(), said.stderr),
        (Some(1), format!("ringroad: \"{path}\" is not formatted\n"))
    );
    assert!(run(BINARY, &["fmt", "-w", &path]).status.success());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), expected);
    assert!(run(BINARY, &["fmt", "--check", &path]).status.success());
    let file = dir.write("b.conf", "http {\n root a\n}\n");
    let path = file.display().to_string();
    let said = run(BINARY, &["fmt", "-w", &path]);
    let marked = format!(
        "ringroad: [emerg] unexpected \"}}\" in {path}:3\n    2 |  root a\n      |        ^ a \";\" is missing here\n"
    );
    assert_eq!((said.status.code(), said.stderr), (Some(1), marked));
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "http {\n root a\n}\n");
}

#[test]
fn fmt_preserves_the_mode_and_a_link_and_loses_nothing_if_a_write_fails() {
    let dir = TempDir::new("fmt-write");
    let text = format!("http{{{}}}", "root  a;".repeat(1000));
    let file = dir.write("real.conf", &text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
    let link = dir.path().join("link.conf");
    std::os::unix::fs::symlink("real.conf", &link).expect("a link");
    let path = link.display().to_string();
    // A file may have at most one block of 512 or 1 024 bytes.
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$0\" fmt -w \"$1\"";
    let said = run("/bin/sh", &["-c", limited, BINARY, &path]);
    let expected = format!("ringroad: write() \"{path}\" failed (27: File too large)\n");
    assert_eq!((said.status.code(), said.stderr), (Some(1), expected));
    assert_eq!(fs::read_to_string(&file).expect("it is there"), text);
    assert!(run(BINARY, &["fmt", "-w", &path]).status.success());
    assert_eq!(fs::read_to_string(&file).expect("it is there").lines().count(), 1002);
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 2, "no temporary file is left");
}

const SITE: &str = "events {}
http {
    access_log off;
    proxy_cache_path cache keys_zone=app:1m;
    upstream app { least_conn; server 127.0.0.1:9; server 127.0.0.1:10; }
    map $uri $odd { default 1; }
    server {
        listen 127.0.0.1:8080;
        server_name one.example *.wild.example;
        root html;
        rewrite ^/old/(.*)$ /new/$1;
        location / { }
        location = /exact { return 204; }
        location ^~ /static/ { alias html/; }
        location /api/ { proxy_pass http://app; proxy_cache app; proxy_cache_key $host$uri; }
        location ~ \\.php$ { fastcgi_pass 127.0.0.1:9000; }
        location /moved { rewrite ^/moved/(.*)$ /api/$1 last; }
        location /try/ { try_files $uri /a.txt =404; }
        location /private/ { allow 10.0.0.0/8; deny all; }
        location /odd/ { if ($odd) { return 403; } if ($request_method = POST) { return 405; } }
    }
    server { listen 127.0.0.1:8080; server_name ~^re(gex)?\\.example$; return 301 https://$host$request_uri; }
}
";

/// Runs `explain` without a server: returns the lines that follow from the configuration.
fn explained(file: &Path, args: &[&str]) -> String {
    let path = file.display().to_string();
    let all: Vec<&str> = ["explain", "-c", &path].iter().chain(args).copied().collect();
    let said = run(BINARY, &all);
    assert!(said.status.success(), "{args:?}: {}", said.stderr);
    said.stdout.replace(&format!("{path}:"), "CONF:")
}

#[test]
fn explain_prints_listener_server_location_and_handler() {
    let dir = TempDir::new("explain");
    let file = dir.write("nginx.conf", SITE);
    dir.write("html/a.txt", "12345");
    for (args, lines) in [
        (
            &["http://one.example:8080/a.txt"][..],
            &[
                "exact name \"one.example\"",
                "location   / at CONF:12: the longest prefix",
                "html/a.txt, 5 bytes, sent by ",
            ][..],
        ),
        (
            &["http://x.wild.example:8080/none"],
            &[
                "wildcard \"*.wild.example\"",
                "html/none\" failed (2: No such file or directory)",
                "response   404\n",
            ],
        ),
        (
            &["http://other:8080/"],
            &["the default server of this listener", "html/\" is forbidden", "response   403\n"],
        ),
        (
            &["http://regex.example:8080/a?b"],
            &[
                "a regular expression of server_name matches",
                "301 https://regex.example/a?b by \"return\" at CONF:22",
            ],
        ),
        (
            &["http://one.example:8080/exact"],
            &["location   = /exact at CONF:13: an exact match", "response   204 by"],
        ),
        (&["http://one.example:8080/static/a.txt"], &["^~ skips regular expressions", "html/a.txt, 5 bytes"]),
        (
            &["http://one.example:8080/static/x.php"],
            &["not ~ \\.php$: a regular expression that is not evaluated"],
        ),
        (
            &["http://one.example:8080/x.php"],
            &[
                "the first regular expression that matches",
                "not /: a prefix; a matching regular expression has precedence",
                "fastcgi_pass 127.0.0.1:9000",
            ],
        ),
        (&["http://one.example:8080/old/a%20b"], &["rewrite    /old/a b becomes /new/a b at CONF:11"]),
        (
            &["http://one.example:8080/moved/x?y=1", "-X", "POST"],
            &[
                "/moved/x becomes /api/x",
                "location   /api/",
                "zone app at CONF:15, key one.example/api/x",
                "POST is not among proxy_cache_methods",
                "upstream   app at CONF:5, least_conn: 127.0.0.1:9, 127.0.0.1:10",
            ],
        ),
        (
            &["http://one.example:8080/try/x"],
            &["try_files  /try/x: ", "does not exist", "/a.txt: ", "html/a.txt, 5 bytes"],
        ),
        (
            &["http://one.example:8080/private/x"],
            &["access     deny all at CONF:19: 403\n", "response   403\n"],
        ),
        (
            &["http://one.example:8080/private/x", "--from", "10.1.2.3"],
            &["access     allow 10.0.0.0/8 at CONF:19: allows the request\n"],
        ),
        (
            &["http://one.example:8080/odd/", "-X", "POST"],
            &["if         ($odd) at CONF:20 is true", "response   403 by \"return\""],
        ),
        (&["http://127.0.0.1:8080/", "-H", "Host: one.example"], &["exact name \"one.example\""]),
    ] {
        let text = explained(&file, args);
        for line in lines {
            assert!(text.contains(line), "{args:?}: {line}\n{text}");
        }
    }
    // Without a file, as for a server.
    dir.write("conf/nginx.conf", SITE);
    let folder = dir.path().display().to_string();
    let said = run(BINARY, &["explain", "-p", &folder, "http://one.example:8080/a.txt"]);
    assert!(said.stdout.contains("html/a.txt, 5 bytes"), "{}{}", said.stdout, said.stderr);
    for (url, code, message) in [
        ("one.example/", 2, "is not a URL"),
        ("http://one.example/", 1, "no server listens on this address, only on 127.0.0.1:8080"),
    ] {
        let said = run(BINARY, &["explain", "-c", &file.display().to_string(), url]);
        assert_eq!(said.status.code(), Some(code));
        assert!(said.stderr.contains(message), "{}", said.stderr);
    }
}

#[test]
fn explain_can_ask_by_http_3() {
    let dir = TempDir::new("explain-http3");
    let (certificate, key) = crate::common::tls::Authority::new("root").server("a.test");
    dir.write("a.pem", certificate);
    dir.write("a.key", key);
    let text = "events {} http { ssl_certificate a.pem; ssl_certificate_key a.key;
        server { listen 127.0.0.1:8443 quic; listen 127.0.0.1:8443 ssl; listen 127.0.0.1:8080;
          location / { if ($http3) { return 202; } return 201; } } }";
    let file = dir.write("nginx.conf", text);
    let url = "https://127.0.0.1:8443/";
    let by_tcp = explained(&file, &[url]);
    assert!(by_tcp.contains("listener   127.0.0.1:8443, TLS\n"), "{by_tcp}");
    assert!(by_tcp.contains("response   201"), "{by_tcp}");
    let by_quic = explained(&file, &["--http3", url]);
    assert!(by_quic.contains("listener   quic:127.0.0.1:8443, HTTP/3\n"), "{by_quic}");
    assert!(by_quic.contains("response   202"), "{by_quic}");
    let path = file.display().to_string();
    let refused = |url: &str| run(BINARY, &["explain", "-c", &path, "--http3", url]).stderr;
    assert!(refused("https://127.0.0.1:8080/").contains("no server listens by QUIC on this address"));
    assert!(refused("http://127.0.0.1:8443/").contains("HTTP/3 always uses TLS"));
}

#[test]
fn explain_reports_whether_the_sandbox_allows_the_file() {
    let dir = TempDir::new("explain");
    let top = fs::canonicalize(dir.path()).unwrap();
    dir.write("www/a.txt", "12345");
    dir.write("mirror/b.txt", "12345");
    std::os::unix::fs::symlink(top.join("mirror"), top.join("www/mirror")).unwrap();
    let conf = format!(
        "sandbox on; events {{}}\nhttp {{ server {{ listen 127.0.0.1:8080;\nroot {}/www; }} }}\n",
        top.display()
    );
    let file = dir.write("nginx.conf", conf);
    let text = explained(&file, &["http://one.example:8080/a.txt"]);
    assert!(text.contains("sandbox    allowed by root at CONF:3\n"), "{text}");
    let text = explained(&file, &["http://one.example:8080/mirror/b.txt"]);
    let top = top.display();
    let expected = format!(
        "sandbox    the symbolic link {top}/www/mirror leads out: refused with 403, allowed by \"sandbox_path {top}/mirror;\"\n"
    );
    assert!(text.contains(&expected) && text.contains("\nresponse   403\n"), "{expected}{text}");
}

#[test]
fn explain_does_not_invent_the_response_of_an_upstream() {
    let dir = TempDir::new("explain");
    let conf = "events {}\nhttp { server { listen 127.0.0.1:8080; location / { proxy_pass http://127.0.0.1:1; } } }\n";
    let text = explained(&dir.write("nginx.conf", conf), &["http://one.example:8080/"]);
    let responses: Vec<&str> = text.lines().filter(|line| line.starts_with("response")).collect();
    assert_eq!(responses, ["response   that of the upstream"], "{text}");
}

#[test]
fn explain_reports_paths_that_the_worker_may_not_read() {
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("without root the workers have the test's permissions");
    }
    let dir = TempDir::new("explain");
    dir.write("html/open.txt", "1");
    let secret = dir.write("html/secret.txt", "1");
    let below = dir.write("html/closed/a.txt", "1");
    let close = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    close(&secret, 0o600);
    close(below.parent().expect("a directory"), 0o700);
    let file = dir.write(
        "nginx.conf",
        format!("events {{}} http {{ server {{ listen 8080; root {}/html; }} }}", dir.path().display()),
    );
    for (name, line) in [
        ("open.txt", "open.txt, 1 bytes, sent by"),
        (
            "secret.txt",
            "secret.txt cannot be read by the worker's user nobody: 403 (chmod o+r, or another \"user\")",
        ),
        (
            "closed/a.txt",
            "closed cannot be searched by the worker's user nobody: 403 (chmod o+x, or another \"user\")",
        ),
    ] {
        let said = explained(&file, &[&format!("http://a:8080/{name}")]);
        assert!(said.contains(line), "{said}");
        assert!(said.starts_with(&format!("request    GET http://a:8080/{name} from")), "{said}");
    }
}

/// The same configuration serves requests: each location names itself in the response.
#[test]
fn explain_and_the_server_find_the_same_location() {
    let names = ["/", "= /a", "/a", "/a/b/", "^~ /s/", "~ \\.txt$", "~* \\.TXT$", "~ ^/a/b/c"];
    let block = |(number, name): (usize, &&str)| {
        format!("location {name} {{ add_header X-Found {number}; return 200; }}\n")
    };
    let blocks: String = names.iter().enumerate().map(block).collect();
    let conf = format!("events {{}} http {{ access_log off; server {{ listen 127.0.0.1:0; {blocks} }} }}");
    let server = Server::start(BINARY, &conf);
    let dir = TempDir::new("explain");
    let file = dir.write("nginx.conf", conf.replace(":0;", ":8080;"));
    for target in [
        "/",
        "/a",
        "/ab",
        "/a/",
        "/a/b",
        "/a/b/",
        "/a/b/c",
        "/a/b/c.txt",
        "/s/x.txt",
        "/x.txt",
        "/x.Txt",
        "/a//b/c",
        "/%61",
    ] {
        let response = Client::connect(server.addr(0)).get(target);
        let number: usize =
            response.field("X-Found").and_then(|text| text.parse().ok()).expect("each has one");
        let found = names[number];
        let text = explained(&file, &[&format!("http://x:8080{target}")]);
        assert!(text.contains(&format!("\nlocation   {found} at ")), "{target}: {found}\n{text}");
    }
}

/// The path of a request that is passed to another location, or is refused: what a client gets, and what `explain` shows.
#[test]
fn explain_and_the_server_give_the_same_response() {
    let conf = "events {} http { access_log off; error_log stderr crit;
    map $arg_x $odd { default 0; 1 1; }
    server { listen 127.0.0.1:PORT; root html; error_page 405 /405.txt;
    location / { }
    location /internal/ { internal; }
    location /reached/ { error_page 404 =200 /internal/page.txt; }
    location /limited/ { limit_except GET { deny all; } alias html/; }
    location /fallback/ { error_page 404 @named; }
    location @named { return 202 named; }
    location /denied/ { deny all; error_page 403 /page.txt; }
    location /denied-named/ { deny all; error_page 403 @named; }
    location /satisfy/ { satisfy any; deny all; auth_basic x; auth_basic_user_file users; alias html/; }
    location /satisfy-allow/ { satisfy any; allow all; auth_basic x; auth_basic_user_file users; alias html/; }
    location /all/ { deny all; auth_basic x; auth_basic_user_file users; }
    location /if/ { if ($odd) { return 418; } alias html/; }
    location /try/ { try_files $uri $uri/ @named; }
    location /gone/ { return 410; error_page 410 /page.txt; }
    location /loop/ { rewrite ^ /loop/x last; }
    location /sub/ { auth_request /internal/none; alias html/; }
    location /drop/ { return 444; }
    } }
";
    let conf_of = |port: &str| conf.replace("PORT", port);
    let files = ["a.txt", "page.txt", "405.txt", "internal/page.txt", "dir/index.html", "empty/x.txt"];
    let mut builder = Server::builder(BINARY).conf(&conf_of("0"));
    for file in files {
        builder = builder.text(&format!("html/{file}"), file);
    }
    let server = builder.text("users", "user:{PLAIN}word\n").text("conf/users", "user:{PLAIN}word\n").start();
    let file = server.path("conf/explained.conf");
    fs::write(&file, conf_of("8080")).expect("it is ours");
    let prefix = format!("{}/", server.dir().display());
    let login = "Authorization: Basic dXNlcjp3b3Jk";
    for (method, target, field) in [
        ("GET", "/a.txt", ""),
        ("POST", "/a.txt", ""),
        ("PUT", "/a.txt", ""),
        ("GET", "/dir", ""),
        ("GET", "/dir/", ""),
        ("GET", "/empty/", ""),
        ("GET", "/none.txt", ""),
        ("GET", "/internal/page.txt", ""),
        ("GET", "/reached/x", ""),
        ("GET", "/limited/a.txt", ""),
        ("HEAD", "/limited/a.txt", ""),
        ("POST", "/limited/a.txt", ""),
        ("GET", "/fallback/x", ""),
        ("GET", "/denied/x", ""),
        ("GET", "/denied-named/x", ""),
        ("GET", "/satisfy/a.txt", ""),
        ("GET", "/satisfy/a.txt", login),
        ("GET", "/satisfy-allow/a.txt", ""),
        ("GET", "/all/a.txt", login),
        ("GET", "/if/a.txt?x=1", ""),
        ("GET", "/if/a.txt?x=2", ""),
        ("GET", "/try/none", ""),
        ("GET", "/gone/", ""),
        ("GET", "/loop/", ""),
        ("GET", "/sub/a.txt", ""),
        ("GET", "/a.txt", "If-None-Match: *"),
        ("GET", "/a.txt", "Range: bytes=1-2"),
        ("GET", "/a.txt", "Range: bytes=100-"),
        ("GET", "/%zz", ""),
    ] {
        let mut client = Client::connect(server.addr(0));
        let more = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n"));
        let head = client.head();
        let url = format!("http://a:8080{target}");
        let path = file.display().to_string();
        let mut args = vec!["explain", "-p", &prefix, "-c", &path, "-X", method, &url];
        if !field.is_empty() {
            args.extend(["-H", field]);
        }
        let said = run(BINARY, &args);
        let text = format!("{}{}", said.stdout, said.stderr);
        let last = said.stdout.lines().last().unwrap_or_default();
        let shown = last.strip_prefix("response   ").and_then(|rest| rest.split(' ').next());
        assert_eq!(shown, Some(head.status.to_string().as_str()), "{method} {target} {field}: {text}");
        if let Some(place) = head.field("Location") {
            let path = place
                .trim_start_matches("http://a")
                .trim_start_matches(|c: char| c == ':' || c.is_ascii_digit());
            assert!(last.contains(path), "{place} {last}");
        }
    }
    let said =
        run(BINARY, &["explain", "-p", &prefix, "-c", &file.display().to_string(), "http://a:8080/drop/"]);
    assert!(said.stdout.contains("response   444 by \"return\" at "), "{}", said.stdout);
}

#[test]
fn explain_shows_each_step_of_a_redirected_request() {
    let dir = TempDir::new("explain");
    let file = dir.write(
        "nginx.conf",
        "events {}
http { access_log off; error_log stderr;
upstream app { server 127.0.0.1:9; server 127.0.0.1:10 backup; server 127.0.0.1:11 down; }
server { listen 127.0.0.1:8080;
location /a/ { satisfy any; deny all; auth_basic x; auth_basic_user_file users; error_page 401 @login; }
location @login { proxy_pass http://app; }
location /b/ { auth_request /check; limit_req zone=z; proxy_pass http://app; }
location = /check { internal; proxy_pass http://app/login; }
} limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; }
",
    );
    dir.write("users", "");
    for (url, lines) in [
        (
            "http://a:8080/a/x",
            &[
                "access     deny all at CONF:5: 403\n",
                "access     auth_basic x at CONF:5: 401\n",
                "error_page 401: continues with @login\n",
                "location   @login at CONF:6: a named location\n",
                "handler    proxy_pass http://app at CONF:6\n",
                "upstream   app at CONF:3, round robin: 127.0.0.1:9; backup: 127.0.0.1:10; down: 127.0.0.1:11\n",
            ][..],
        ),
        (
            "http://a:8080/b/x",
            &[
                "location   subrequest: = /check at CONF:8: an exact match\n",
                "handler    subrequest: proxy_pass http://app/login at CONF:8\n",
                "           subrequest: its response is unknown here: 200 is assumed\n",
                "limits     limit_req zone=z at CONF:7: depends on other requests, assumed to pass\n",
                "handler    proxy_pass http://app at CONF:7\n",
            ],
        ),
    ] {
        let text = explained(&file, &[url]);
        let mut rest = text.as_str();
        for line in lines {
            let at = rest.find(line).unwrap_or_else(|| panic!("{line}{text}"));
            rest = &rest[at + line.len()..];
        }
    }
}
