//! The sites in `examples/` run unchanged except for the port, and behave as their README describes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{ours_only, serve_with, server_name};
use testkit::{Client, Content, Deadline, Response, Server, wait};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Copies a directory with its content.
fn copy(from: &Path, to: &Path) {
    testkit::create_dir_all(to).expect("a directory of the test");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            testkit::copy(&path, &target).expect("a file of the test");
        }
    }
}

/// Starts an example: its directories are below the prefix, its files in the directory of the configuration.
fn start(name: &str) -> Server {
    let from = examples().join(name);
    let conf = fs::read_to_string(from.join("nginx.conf")).expect("the example has a configuration");
    let mut ports = conf.split("listen 127.0.0.1:").skip(1).map(|rest| &rest[..4]);
    let port = ports.next().expect("the example listens");
    let conf = conf.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
    serve_with(&conf, |builder| {
        let root = builder.dir().to_owned();
        copy(&from, &root);
        copy(&from, &root.join("conf"));
        testkit::copy(examples().join("mime.types"), root.join("mime.types")).expect("it is there");
        // A worker started by root drops root's privileges, and opens logs with variables itself.
        fs::set_permissions(root.join("logs"), fs::Permissions::from_mode(0o777)).expect("it is ours");
        builder
    })
}

fn client(server: &Server) -> Client {
    Client::connect(server.addr(0))
}

fn get(server: &Server, target: &str, fields: &[(&str, &str)]) -> Response {
    client(server).request("GET", target, fields)
}

/// Waits until a log has this many lines; returns them.
fn lines(server: &Server, name: &str, count: usize) -> Vec<String> {
    let look = || {
        let text = fs::read_to_string(server.path(name)).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    };
    wait::until("lines of a log", Deadline::default(), look).expect("they are written")
}

#[test]
fn a_static_site_works() {
    let server = start("static-site");
    let page = get(&server, "/", &[("Accept-Encoding", "gzip")]);
    assert_eq!((page.status, page.field("Content-Encoding")), (200, Some("gzip")));
    assert_eq!(page.field("Cache-Control"), Some("no-cache"));
    assert_eq!(page.field("Vary"), Some("Accept-Encoding"));
    assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.field("X-Content-Type-Options"), Some("nosniff"));
    assert_eq!(page.field("Server"), Some(server_name()));
    assert!(get(&server, "/about", &[]).text().contains("<h1>About</h1>"));
    let style = get(&server, "/assets/site.5f0c1a7e.css", &[]);
    assert_eq!(style.field("Cache-Control"), Some("public, max-age=31536000, immutable"));
    assert_eq!(style.field("Content-Type"), Some("text/css"));
    assert_eq!(get(&server, "/assets/ring.svg", &[]).field("Cache-Control"), Some("public, max-age=86400"));
    let missing = get(&server, "/nothing", &[]);
    assert_eq!((missing.status, missing.text().contains("<h1>Not here</h1>")), (404, true));
    assert_eq!(missing.field("Cache-Control"), None);
    assert_eq!(get(&server, "/404.html", &[]).status, 404, "it is internal");
    assert_eq!(get(&server, "/.git/config", &[]).status, 404);
    let plain = get(&server, "/", &[]);
    let tag = plain.field("ETag").expect("a file has one");
    let same = get(&server, "/", &[("If-None-Match", tag)]);
    assert_eq!((same.status, same.body.len()), (304, 0));
    // A precompressed file is sent unchanged.
    testkit::write(server.path("html/assets/ring.svg.gz"), "compressed before").expect("a file");
    let before = get(&server, "/assets/ring.svg", &[("Accept-Encoding", "gzip")]);
    assert_eq!(before.text(), "compressed before");
}

#[test]
fn a_single_page_application_works() {
    let server = start("single-page-app");
    for target in ["/", "/orders/17", "/settings"] {
        let page = get(&server, target, &[]);
        assert_eq!((page.status, page.field("Cache-Control")), (200, Some("no-cache")), "{target}");
        assert!(page.text().contains("<main id=\"view\">"));
        assert_eq!(page.field("Content-Security-Policy"), Some("default-src 'self'"));
    }
    let script = get(&server, "/assets/app-9c41d2.js", &[]);
    assert_eq!(script.field("Content-Type"), Some("application/javascript"));
    let cache: Vec<&str> = script.head.all("Cache-Control").collect();
    assert_eq!(cache, ["max-age=31536000", "public, immutable"]);
    assert_eq!(get(&server, "/assets/app-000000.js", &[]).status, 404);
    let api = get(&server, "/api/orders", &[]);
    assert_eq!((api.status, api.field("Content-Type")), (501, Some("application/json")));
}

#[test]
fn a_download_mirror_works() {
    let server = start("download-mirror");
    let system = Content::new(7, 16 << 20);
    system.write_to(&server.path("files/releases/system.iso"));
    let list = get(&server, "/releases/", &[]).text();
    assert!(list.contains("<a href=\"system.iso\">system.iso</a>") && list.contains("16M"), "{list}");
    let json = get(&server, "/json/releases/", &[]);
    assert_eq!(json.field("Content-Type"), Some("application/json"));
    assert!(json.text().contains("\"name\":\"system.iso\", \"type\":\"file\""), "{}", json.text());
    let part = get(&server, "/releases/system.iso", &[("Range", "bytes=100-199")]);
    assert_eq!(part.status, 206);
    system.assert_range(100..200, &part.body);
    // The server may notice the end of the preceding request only after the client has its complete response.
    let hold = || {
        let mut client = client(&server);
        client.send(testkit::client::request_bytes("GET", "/releases/system.iso", &[]));
        (client.head().status == 200).then_some(client)
    };
    let _held =
        [(); 2].map(|()| wait::until("a download", Deadline::default(), hold).expect("there is room"));
    assert_eq!(get(&server, "/releases/system.iso", &[]).status, 429);
    assert_eq!(get(&server, "/docs/install.txt", &[]).status, 200, "small files are not limited");
    server.wait_for_log("limiting connections by zone \"downloads\"", Deadline::default());
    let mut client = client(&server);
    // All at once: on a slow machine, the rate would permit each of twenty separate requests.
    client.send(testkit::client::request_bytes("GET", "/", &[]).repeat(20));
    let statuses: Vec<u16> = (0..20).map(|_| client.response().status).collect();
    assert!(statuses[..5].iter().all(|&status| status == 200) && statuses.contains(&429), "{statuses:?}");
    server.wait_for_log("limiting requests, excess: 1", Deadline::default());
}

#[test]
fn a_protected_area_works() {
    let server = start("protected-area");
    // "reader:open sesame" and "keeper:let me in", base64-encoded.
    let (reader, keeper) = ("Basic cmVhZGVyOm9wZW4gc2VzYW1l", "Basic a2VlcGVyOmxldCBtZSBpbg==");
    let with = |target: &str, secret: &str| get(&server, target, &[("Authorization", secret)]);
    assert_eq!(get(&server, "/", &[]).status, 200);
    let asked = get(&server, "/members/", &[]);
    assert_eq!((asked.status, asked.field("WWW-Authenticate")), (401, Some("Basic realm=\"Members\"")));
    assert_eq!(with("/members/", "Basic cmVhZGVyOndyb25n").status, 401);
    let page = with("/members/", reader);
    assert_eq!((page.status, page.field("Cache-Control")), (200, Some("private, no-store")));
    assert_eq!(with("/members/", keeper).status, 200);
    assert_eq!(get(&server, "/members/join.html", &[]).status, 200);
    let refused = with("/admin/", reader);
    assert_eq!(
        (refused.status, refused.field("WWW-Authenticate")),
        (401, Some("Basic realm=\"Administration\""))
    );
    assert_eq!(with("/admin/", keeper).text(), "<h1>For keepers</h1>\n");
    let log = lines(&server, "logs/access.log", 8);
    assert!(
        log.iter().any(|line| line.contains("127.0.0.1 keeper [") && line.ends_with("\" 200")),
        "{log:?}"
    );
    // A client that guesses passwords is limited before it has tried the complete list.
    let mut client = client(&server);
    let guesses: Vec<u16> = (0..30).map(|_| client.get("/members/").status).collect();
    assert_eq!(guesses.iter().find(|&&status| status != 401), Some(&503), "{guesses:?}");
}

#[test]
fn an_api_with_tokens_works() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = start("api-tokens");
    let token = |name: &str| {
        let text = fs::read_to_string(examples().join("api-tokens").join(name)).expect("a token");
        format!("Bearer {}", text.trim())
    };
    let with = |target: &str, value: &str| get(&server, target, &[("Authorization", value)]);
    let (reader, keeper) = (token("reader.jwt"), token("keeper.jwt"));
    let asked = get(&server, "/api/items.json", &[]);
    assert_eq!((asked.status, asked.field("WWW-Authenticate")), (401, Some("Bearer realm=\"API\"")));
    let page = with("/api/items.json", &reader);
    assert_eq!(
        (page.text().as_str(), page.field("Cache-Control")),
        ("[{\"item\": 1}]\n", Some("private, no-store"))
    );
    let refused = with("/api/items.json", &format!("{reader}x"));
    let expected = "Bearer realm=\"API\",error=\"invalid_token\"";
    assert_eq!((refused.status, refused.field("WWW-Authenticate")), (401, Some(expected)));
    assert_eq!(with("/api/admin.json", &reader).status, 403);
    assert_eq!(with("/api/admin.json", &keeper).text(), "{\"users\": 2}\n");
    let log = lines(&server, "logs/access.log", 5);
    let has = |begin: &str, end: &str| log.iter().any(|line| line.starts_with(begin) && line.ends_with(end));
    assert!(has("127.0.0.1 reader [", "\" 200") && has("127.0.0.1 - [", "\" 401"), "{log:?}");
    // Each subject has its own rate.
    let mut client = client(&server);
    let mut status =
        |value: &str| client.request("GET", "/api/items.json", &[("Authorization", value)]).status;
    let statuses: Vec<u16> = (0..30).map(|_| status(&reader)).collect();
    assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}");
    assert_eq!(status(&keeper), 200);
}

#[test]
fn a_list_of_blocked_addresses_works() {
    if !ours_only("keyval") {
        return;
    }
    let server = start("blocklist");
    // The directory of the configuration is not that of the state.
    fs::set_permissions(server.path("state"), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let change = |method: &str, body: &str| {
        let fields = [("Content-Type", "application/json"), ("Content-Length", &*body.len().to_string())];
        let mut client = client(&server);
        client
            .send(testkit::client::request_bytes(method, "/api/9/http/keyvals/blocked", &fields))
            .send(body);
        client.response().status
    };
    assert_eq!(get(&server, "/", &[]).text(), "<h1>Open to everybody else</h1>\n");
    assert_eq!(change("POST", "{\"127.0.0.0/8\": \"too many requests\"}"), 201);
    let blocked = get(&server, "/", &[]);
    assert_eq!((blocked.status, blocked.text().as_str()), (403, "Blocked: too many requests\n"));
    let list = "{\n\"127.0.0.0/8\":\"too many requests\"\n}\n";
    assert_eq!(get(&server, "/api/9/http/keyvals/blocked", &[]).text(), list);
    assert_eq!(fs::read_to_string(server.path("state/blocked.json")).expect("it was written"), list);
    // An exception, and the end of the rule.
    assert_eq!(change("POST", "{\"127.0.0.1\": \"\"}"), 201);
    assert_eq!(get(&server, "/", &[]).status, 200);
    assert_eq!(change("DELETE", ""), 204);
    assert_eq!(get(&server, "/", &[]).status, 200);
    let log = lines(&server, "logs/access.log", 8);
    assert!(log.iter().any(|line| line.ends_with("403 \"too many requests\"")), "{log:?}");
}

#[test]
fn a_site_under_maintenance_works() {
    let server = start("maintenance");
    let staff = [("X-Forwarded-For", "192.0.2.7")];
    assert_eq!(get(&server, "/", &[]).text(), "<h1>The site</h1>\n");
    testkit::write(server.path("html/closed"), "").expect("a file");
    for target in ["/", "/any/page"] {
        let closed = get(&server, target, &[]);
        assert_eq!((closed.status, closed.field("Retry-After")), (503, Some("600")), "{target}");
        assert_eq!(closed.field("Cache-Control"), Some("no-store"));
        assert!(closed.text().contains("<h1>Back soon</h1>"));
    }
    assert_eq!(get(&server, "/", &staff).text(), "<h1>The site</h1>\n");
    assert_eq!(get(&server, "/closed", &staff).status, 404, "the switch is no page");
    fs::remove_file(server.path("html/closed")).expect("it was there");
    assert_eq!(get(&server, "/", &[]).status, 200);
}

#[test]
fn redirects_work() {
    let server = start("redirects");
    let target = |host: &str, target: &str| {
        let response = get(&server, target, &[("Host", host)]);
        (response.status, response.field("Location").unwrap_or_default().to_owned())
    };
    let to = |status: u16, location: &str| (status, location.to_owned());
    for (host, asked, expected) in [
        ("www.example.test", "/a?b=c", to(301, "http://example.test/a?b=c")),
        ("deep.example-old.test", "/", to(301, "http://example.test/")),
        ("localhost", "/contact.php?from=mail", to(301, "/help/contact.html?from=mail")),
        ("example.test", "/index.php", to(301, "/")),
        ("localhost", "/user/anna", to(301, "/help/people.html?name=anna")),
        ("localhost", "/blog/2019/04/a-title", to(301, "/posts/2019-04-a-title.html")),
        ("localhost", "/blog/2019/04/a-title/?x=1", to(301, "/posts/2019-04-a-title.html?x=1")),
        ("localhost", "/events/summer", to(302, "/posts/")),
        ("localhost", "/help", to(301, "/help/")),
        ("localhost", "/gone/for/good", to(410, "")),
        ("localhost", "/posts/2019-04-a-title.html", to(200, "")),
    ] {
        assert_eq!(target(host, asked), expected, "{host}{asked}");
    }
}

#[test]
fn many_tenants_work() {
    if !ours_only("the harness gives each of its listeners another port") {
        return;
    }
    let server = start("multi-tenant");
    let of = |host: &str| get(&server, "/", &[("Host", host)]);
    for (host, tenant) in [("anna.sites.test", "anna"), ("BEN.sites.test", "ben"), ("www.shop.test", "shop")]
    {
        let page = of(host);
        assert_eq!(page.text(), format!("<h1>The site of {tenant}</h1>\n"));
        assert_eq!(page.field("X-Tenant"), Some(tenant));
    }
    for host in ["carl.sites.test", "..sites.test", "x.anna.sites.test", "localhost"] {
        assert!(matches!(of(host).status, 421 | 400), "{host}");
    }
    assert_eq!(get(&server, "/none", &[("Host", "anna.sites.test")]).status, 404);
    let log = lines(&server, "logs/anna.log", 2);
    assert!(log.iter().any(|line| line.ends_with(" anna.sites.test \"GET / HTTP/1.1\" 200 26")), "{log:?}");
    assert_eq!((log.len(), lines(&server, "logs/shop.log", 1).len()), (2, 1));
}

#[test]
fn health_checks_work() {
    let server = start("health-check");
    assert_eq!(get(&server, "/live", &[]).text(), "alive\n");
    let not_yet = get(&server, "/ready", &[]);
    assert_eq!((not_yet.status, not_yet.text().as_str()), (503, "not ready\n"));
    assert_eq!(not_yet.field("Cache-Control"), Some("no-store"));
    testkit::write(server.path("html/ready"), "").expect("a file");
    let ready = get(&server, "/ready", &[]);
    assert_eq!(
        (ready.status, ready.text().as_str(), ready.field("Content-Type")),
        (200, "ready\n", Some("text/plain"))
    );
    assert!(get(&server, "/status", &[]).text().starts_with("Active connections: "));
    let numbers = get(&server, "/status.json", &[]);
    assert_eq!(numbers.field("Content-Type"), Some("application/json"));
    let text = numbers.text();
    assert!(text.starts_with("{\"active\": ") && text.contains(", \"writing\": "), "{text}");
    assert_eq!(get(&server, "/", &[]).status, 200);
    let log = lines(&server, "logs/access.log", 1);
    assert!(log.len() == 1 && log[0].contains("\"GET / HTTP/1.1\""), "{log:?}");
}

#[test]
fn an_image_host_works() {
    let server = start("image-host");
    let image = |fields: &[(&str, &str)]| get(&server, "/images/photo.png", fields);
    let plain = image(&[]);
    assert_eq!((plain.status, plain.field("Content-Type")), (200, Some("image/png")));
    assert_eq!(plain.field("Cache-Control"), Some("max-age=2592000"));
    assert!(plain.body.starts_with(b"\x89PNG"));
    let better = image(&[("Accept", "image/avif,image/webp,*/*")]);
    assert_eq!((better.field("Content-Type"), better.field("Vary")), (Some("image/webp"), Some("Accept")));
    assert!(better.body.starts_with(b"RIFF"));
    let from = |referrer: &str| image(&[("Referer", referrer)]).field("Content-Type").map(str::to_owned);
    for friend in ["http://images.example.test/a", "https://blog.example.test/", "http://x.friends.test/"] {
        assert_eq!(from(friend).as_deref(), Some("image/png"), "{friend}");
    }
    for other in ["http://elsewhere.test/", "http://example.test.elsewhere.test/"] {
        assert_eq!(from(other).as_deref(), Some("image/svg+xml"), "{other}");
    }
    let seen = get(&server, "/seen.gif", &[]);
    assert_eq!((seen.field("Content-Type"), seen.body.len()), (Some("image/gif"), 43));
    assert_eq!(seen.field("Cache-Control"), Some("no-cache"));
    let log = lines(&server, "logs/access.log", 8);
    assert!(log.iter().any(|line| line.ends_with("\"http://elsewhere.test/\" 1")), "{log:?}");
}

#[test]
fn json_logs_work() {
    let server = start("json-logs");
    let agent = [("User-Agent", "a \"strange\"\\agent")];
    let answer = get(&server, "/?q=%22quoted%22", &agent);
    let id = answer.field("X-Request-Id").expect("every response has one").to_owned();
    assert_eq!(get(&server, "/live", &[]).status, 204);
    assert_eq!(get(&server, "/broken", &[]).status, 500);
    assert_eq!(get(&server, "/none", &[]).status, 404);
    // Each thread writes its lines independently.
    let log = lines(&server, "logs/access.json", 3);
    let first = log.iter().find(|line| line.contains("\"status\":200,")).expect("the first request is there");
    assert!(first.starts_with("{\"time\":\"20") && first.ends_with("\"}"), "{first}");
    assert!(first.contains(&format!("\"id\":\"{id}\",\"client\":\"127.0.0.1\"")), "{first}");
    assert!(
        first.contains("\"path\":\"/index.html\",\"query\":\"q=%22quoted%22\",\"status\":200,"),
        "{first}"
    );
    assert!(first.contains("\"agent\":\"a \\\"strange\\\"\\\\agent\""), "{first}");
    assert!(log.iter().all(|line| !line.contains("/live")), "{log:?}");
    let errors = lines(&server, "logs/errors.json", 2);
    for status in ["\"status\":500,", "\"status\":404,"] {
        assert!(errors.len() == 2 && errors.iter().any(|line| line.contains(status)), "{errors:?}");
    }
}

#[test]
fn split_traffic_works() {
    let server = start("split-traffic");
    let visit = |agent: &str, cookie: &str| {
        let fields = [("User-Agent", agent), ("Cookie", cookie)];
        let response = get(&server, "/", &fields);
        let version = response.field("Set-Cookie").unwrap_or_default().to_owned();
        (response.text().contains("as it will be"), version.starts_with("version=new;"))
    };
    let all: Vec<(bool, bool)> = (0..100).map(|number| visit(&format!("visitor {number}"), "a=b")).collect();
    assert!(all.iter().all(|(is_new, says_new)| is_new == says_new));
    let new = all.iter().filter(|(is_new, _)| *is_new).count();
    assert!((5..=40).contains(&new), "about 20 of 100: {new}");
    let again: Vec<(bool, bool)> =
        (0..100).map(|number| visit(&format!("visitor {number}"), "a=b")).collect();
    assert_eq!(all, again, "each client gets the same variant");
    for number in 0..10 {
        let agent = format!("visitor {number}");
        assert_eq!(visit(&agent, "version=new"), (true, true));
        assert_eq!(visit(&agent, "a=b; version=current"), (false, false));
    }
    let chosen = get(&server, "/try/new", &[]);
    assert_eq!(chosen.status, 302);
    assert!(chosen.field("Set-Cookie").is_some_and(|cookie| cookie.starts_with("version=new;")));
}

#[test]
fn login_works() {
    if !ours_only("auth_oidc") {
        return;
    }
    let server = start("login");
    assert_eq!(get(&server, "/goodbye", &[]).text(), "Goodbye\n");
    assert_eq!(get(&server, "/callback?code=x&state=y", &[]).status, 400);
    // With Dex on this machine it is a redirect.
    assert!(matches!(get(&server, "/", &[]).status, 302 | 502));
}

#[test]
fn tracing_works() {
    if !ours_only("otel") {
        return;
    }
    let server = start("tracing");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    assert_eq!(get(&server, "/", &[("traceparent", &parent)]).text(), format!("{trace}\n"));
    let field = get(&server, "/field", &[("traceparent", &parent)]).text();
    assert!(field.starts_with(&format!("00-{trace}-")) && field.ends_with("-01\n"), "{field}");
    let new = get(&server, "/", &[]).text();
    assert!(new.len() == 33 && !new.contains(trace), "{new}");
    let log = lines(&server, "logs/access.log", 3);
    assert_eq!(log.iter().filter(|line| line.starts_with(trace)).count(), 2, "{log:?}");
}

#[test]
fn pages_with_includes_work() {
    let server = start("pages-from-parts");
    let page = get(&server, "/?x=1", &[]);
    let text = page.text();
    assert!(text.starts_with("<!doctype html>") && text.contains("<title>Start</title>"), "{text}");
    assert!(
        text.contains("<p>You asked for /?x=1.</p>") && text.contains("Hello, whoever you are."),
        "{text}"
    );
    assert!(text.contains("<pre>Active connections: ") && text.contains("<footer>Made on 20"), "{text}");
    assert!(!text.contains("<!--#"), "{text}");
    assert_eq!((page.field("Last-Modified"), page.field("Cache-Control")), (None, Some("no-cache")));
    assert!(get(&server, "/?name=%3Cb%3EAnna", &[]).text().contains("<p>Hello, %3Cb%3EAnna.</p>"));
    assert!(get(&server, "/news.html", &[]).text().contains("<p>There is no news.</p>"));
    testkit::write(server.path("html/parts/newest.html"), "<p>It is here.</p>").expect("a part");
    let news = get(&server, "/news.html", &[]).text();
    assert!(news.contains("<p>It is here.</p>") && !news.contains("no news"), "{news}");
    for part in ["/parts/head.html", "/parts/count"] {
        assert_eq!(get(&server, part, &[]).status, 404, "{part}");
    }
}

#[test]
fn a_file_drop_works() {
    let server = start("file-drop");
    for folder in ["files", "temp"] {
        fs::set_permissions(server.path(folder), fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    let send = |method: &str, target: &str, fields: &[(&str, &str)], body: &str| {
        let length = body.len().to_string();
        let mut all = vec![("Host", "localhost"), ("Content-Length", &length)];
        all.extend(fields);
        let mut client = client(&server);
        client.send([testkit::client::request_bytes(method, target, &all), body.into()].concat());
        client.response().status
    };
    let member = ("Authorization", "Basic cmVhZGVyOm9wZW4gc2VzYW1l");
    assert_eq!(send("PUT", "/2026/report.txt", &[], "text"), 401);
    assert_eq!(send("PUT", "/2026/report.txt", &[member], "text"), 201);
    assert_eq!(send("PUT", "/2026/report.txt", &[member], "other"), 204);
    assert_eq!(get(&server, "/2026/report.txt", &[]).text(), "other");
    assert!(get(&server, "/2026/", &[]).text().contains("report.txt"));
    assert_eq!(send("MOVE", "/2026/report.txt", &[member, ("Destination", "/2026/final.txt")], ""), 204);
    assert_eq!(get(&server, "/2026/report.txt", &[]).status, 404);
    assert_eq!(send("DELETE", "/", &[member], ""), 409);
    assert_eq!(send("DELETE", "/2026/", &[member], ""), 204);
    assert_eq!(get(&server, "/2026/final.txt", &[]).status, 404);
    assert_eq!(get(&server, "/read-me.txt", &[]).status, 200);
}

/// HTTP/3 itself is tested with another client, in `tests/http3`.
#[test]
fn an_http_3_site_works() {
    let own = crate::common::tls::Authority::new("root");
    let (certificate, key) = own.server("localhost");
    let port = testkit::ports::free_port();
    let from = examples().join("http3");
    let conf = fs::read_to_string(from.join("nginx.conf")).expect("the example has a configuration");
    let server = serve_with(&conf.replace(":8026", &format!(":{port}")), |builder| {
        let root = builder.dir().to_owned();
        copy(&from, &root);
        testkit::copy(examples().join("mime.types"), root.join("mime.types")).expect("it is there");
        fs::set_permissions(root.join("logs"), fs::Permissions::from_mode(0o777)).expect("it is ours");
        builder.text("conf/certificate.pem", &certificate).text("conf/key.pem", &key)
    });
    let clients = own.clients(&[&rustls::version::TLS13], None);
    let get = |target: &str| {
        let response = crate::common::tls::get(&server, &clients, "localhost", target);
        String::from_utf8_lossy(&response).into_owned()
    };
    let page = get("/");
    assert!(page.contains(&format!("Alt-Svc: h3=\":{port}\"; ma=3600")), "{page}");
    assert!(page.contains("Served over HTTP/3"), "{page}");
    assert!(get("/protocol").ends_with("HTTP/1.1\n"));
}
