//! A real browser: headless Chromium, which trusts a test CA, with a page of two hundred images over HTTP/2.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::serve_with;
use crate::common::tls::Authority;
use testkit::{Deadline, Gate, Origin, Reply, TempDir};

const IMAGES: usize = 200;

/// Images of 20 KiB, all from one file. Both the server and the page must report the protocol of each.
const CONF: &str = r#"worker_processes 1; events { }
http {
  types { text/html html; text/css css; image/svg+xml svg; }
  log_format line '$server_protocol $status $connection $uri|$http_priority'; access_log logs/access.log line;
  server {
    listen 127.0.0.1:0 ssl; http2 on; ssl_certificate a.pem; ssl_certificate_key a.key; root html;
    location /images/ { rewrite ^ /image.svg break; }
  }
}
"#;

const PAGE: &str = r#"<!doctype html><link rel="stylesheet" href="/style.css"><body><script>
let whole = 0, failed = 0;
for (let number = 0; number < 200; number++) {
  const image = new Image();
  image.onload = () => whole += image.naturalWidth === 7;
  image.onerror = () => failed++;
  image.src = `/images/${number}.svg`;
}
onload = () => {
  const protocols = new Set(performance.getEntriesByType('resource').map(entry => entry.nextHopProtocol));
  document.body.textContent = `result: ${whole} whole, ${failed} failed, by ${[...protocols]}`;
};
</script>"#;

/// Returns the path of an installed program.
fn installed(names: &[&str], package: &str) -> Option<PathBuf> {
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        testkit::skip(format_args!("{} is not installed (apt-get install {package})", names[0]));
    }
    found
}

/// Creates a home directory whose browser trusts the CA.
fn home_that_trusts(certutil: PathBuf, root: &str) -> TempDir {
    let home = TempDir::new("browser");
    let database = home.path().join(".pki/nssdb");
    std::fs::create_dir_all(&database).expect("a directory of the test");
    std::fs::write(home.path().join("root.pem"), root).expect("a file of the test");
    let database = format!("sql:{}", database.display());
    let run = |args: &[&str]| {
        let mut command = Command::new(&certutil);
        let output = command.current_dir(home.path()).args(["-d", &database]).args(args).output();
        let output = output.expect("it is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["-N", "--empty-password"]);
    run(&["-A", "-t", "C,,", "-n", "root of the test", "-i", "root.pem"]);
    home
}

/// Shows `https://a.test/page.html`; returns the final page, and what the browser said.
fn show(chromium: PathBuf, home: &TempDir, address: SocketAddr) -> (String, String) {
    let mut command = Command::new(chromium);
    command.env("HOME", home.path()).args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]);
    command.arg(format!("--user-data-dir={}", home.path().join("profile").display()));
    command
        .arg(format!("--host-resolver-rules=MAP a.test:443 {address}"))
        .args(["--timeout=60000", "--dump-dom"]);
    let output =
        command.arg("https://a.test/page.html").stdin(Stdio::null()).output().expect("it is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_browser_loads_a_page_of_two_hundred_images() {
    let Some(chromium) = installed(&["chromium", "chromium-browser", "google-chrome"], "chromium") else {
        return;
    };
    let Some(certutil) = installed(&["certutil"], "libnss3-tools") else { return };
    let authority = Authority::new("root of the test");
    let (pem, key) = authority.server("a.test");
    let image = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='7' height='7'><!--{}--></svg>",
        "x".repeat(20_000)
    );
    let server = serve_with(CONF, |builder| {
        let builder = builder.text("conf/a.pem", &pem).text("conf/a.key", &key).text("html/page.html", PAGE);
        builder.text("html/image.svg", &image).text("html/style.css", "body { color: green }")
    });
    let home = home_that_trusts(certutil, &authority.pem);
    let (page, said) = show(chromium, &home, server.addr(0).tcp());
    assert!(page.contains(&format!("result: {IMAGES} whole, 0 failed, by h2<")), "{page}\n{said}");
    let log = server.wait_for_access_log(IMAGES + 2, Deadline::default());
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("favicon")).collect();
    assert!(lines.iter().all(|line| line.starts_with("HTTP/2.0 200 ")), "{log}");
    let connections: std::collections::BTreeSet<_> =
        lines.iter().map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(connections.len(), 1, "one connection for all: {log}");
    // A resource that blocks rendering is more urgent than images.
    let urgent = |line: &&&str| line.contains("/style.css|u=0");
    assert_eq!(lines.iter().filter(urgent).count(), 1, "{log}");
}

/// A page like a map that is moved: every 150 ms it aborts the six slow requests before, and makes six others and one that it waits for.
/// The page has loaded only when its last image has, so that the browser does not print it earlier.
const MAP: &str = r#"<!doctype html><body><img src="/held"><script>
let whole = 0, failed = 0, aborted = 0, controller = new AbortController();
const move = async number => {
  controller.abort();
  controller = new AbortController();
  for (let tile = 0; tile < 6; tile++) {
    const { signal } = controller;
    fetch(`/slow/?${number}-${tile}`, { signal }).then(tile => tile.text()).catch(() => aborted++);
  }
  // `whole += await …` would read `whole` before the wait, and lose what another call adds meanwhile.
  try { const text = await (await fetch(`/tile/?${number}`)).text(); whole += text.length === 20000; } catch { failed++; }
};
const moves = [];
const timer = setInterval(() => {
  moves.push(move(moves.length));
  if (moves.length < 60) return;
  clearInterval(timer);
  controller.abort();
  Promise.all(moves).then(() => setTimeout(() => {
    const protocols = new Set(performance.getEntriesByType('resource').map(entry => entry.nextHopProtocol).filter(name => name));
    document.body.firstChild.remove();
    document.body.textContent = `result: ${whole} whole, ${failed} failed, ${aborted} aborted, by ${[...protocols]}`;
    document.title = 'done';
    fetch('/release');
  }, 300));
}, 150);
</script>"#;

/// The browser cancels streams as fast as a user moves a map; the server must not treat it as an attack.
#[test]
fn a_browser_that_cancels_forty_requests_a_second_gets_every_other_response() {
    let Some(chromium) = installed(&["chromium", "chromium-browser", "google-chrome"], "chromium") else {
        return;
    };
    let Some(certutil) = installed(&["certutil"], "libnss3-tools") else { return };
    let authority = Authority::new("root of the test");
    let (pem, key) = authority.server("a.test");
    let gate = Gate::new();
    let origin = Origin::start(move |request| match request.target.as_str() {
        "/release" => {
            gate.open();
            Reply::text("x")
        }
        _ => Reply::text("x").wait_first(&gate),
    });
    let locations = format!(
        "location /slow/ {{ limit_rate 1k; alias html/; index tile; }}
         location /tile/ {{ alias html/; index tile; }}
         location = /held {{ proxy_read_timeout 170s; proxy_pass http://{0}; }} location = /release {{ proxy_pass http://{0}; }}",
        origin.addr()
    );
    let conf = CONF.replace("location /images/ { rewrite ^ /image.svg break; }", &locations);
    let server = serve_with(&conf, |builder| {
        let builder = builder.text("conf/a.pem", &pem).text("conf/a.key", &key).text("html/page.html", MAP);
        builder.text("html/tile", &"x".repeat(20_000))
    });
    let home = home_that_trusts(certutil, &authority.pem);
    let (page, said) = show(chromium, &home, server.addr(0).tcp());
    assert!(page.contains("result: 60 whole, 0 failed, 360 aborted, by h2"), "{page}\n{said}");
    let log = server.access_log();
    let of_tiles = log.lines().filter(|line| line.contains(" /tile/"));
    let connections: std::collections::BTreeSet<_> = of_tiles.map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(connections.len(), 1, "the connection stays open: {log}");
}
