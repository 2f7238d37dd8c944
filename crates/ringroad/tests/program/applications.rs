//! Configurations of well-known applications load and serve in a sandbox, without a refused access.
//!
//! The configurations in `applications/` are written for this test, in the style of the documentation of each application. Small servers
//! stand for the applications. A root contains symbolic links where the application has them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use testkit::fastcgi::{self, FastCgi};
use testkit::origin::{Object, Objects};
use testkit::{Client, DnsServer, Origin, Reply, Response, Server, Setup, TempDir};

use crate::common::BINARY;
use crate::common::tls::{self, Authority};

/// A request with its expected response: host, target, status, a part of the body.
type Request = (&'static str, &'static str, u16, &'static str);

struct Application {
    name: &'static str,
    conf: &'static str,
    requests: &'static [Request],
}

macro_rules! application {
    ($name:literal, $requests:expr) => {
        Application {
            name: $name,
            conf: include_str!(concat!("applications/", $name, ".conf")),
            requests: $requests,
        }
    };
}

/// The configurations. A second request for a target of a cache is a hit.
static APPLICATIONS: [Application; 20] = [
    application!(
        "nextcloud",
        &[
            ("cloud.test", "/index.php/apps", 200, "script nextcloud/index.php"),
            ("cloud.test", "/core/style.css", 200, "a style"),
            ("cloud.test", "/config/config.php", 404, ""),
            ("cloud.test", "/apps/files", 200, "script nextcloud/index.php"),
        ]
    ),
    application!(
        "gitlab",
        &[
            ("gitlab.test", "/group/project", 200, "origin /group/project"),
            ("gitlab.test", "/missing", 404, "GitLab's own page"),
        ]
    ),
    application!(
        "mastodon",
        &[
            ("mastodon.test", "/about", 200, "origin /about"),
            ("mastodon.test", "/about", 200, "origin /about"),
            ("mastodon.test", "/packs/app.js", 200, "a script"),
            ("mastodon.test", "/packs/none.js", 404, "Mastodon's own page"),
        ]
    ),
    application!(
        "wordpress",
        &[
            ("blog.test", "/2026/hello", 200, "script wordpress/index.php"),
            ("blog.test", "/2026/hello", 200, "script wordpress/index.php"),
            ("blog.test", "/wp-content/theme.css", 200, "a style"),
            ("blog.test", "/wp-content/uploads/x.php", 403, ""),
        ]
    ),
    application!(
        "drupal",
        &[
            ("drupal.test", "/node/1", 200, "script drupal/web/index.php"),
            ("drupal.test", "/core/drupal.js", 200, "a script"),
            ("drupal.test", "/sites/default/private/x", 403, ""),
        ]
    ),
    application!(
        "jenkins",
        &[
            ("jenkins.test", "/job/1/", 200, "origin /job/1/"),
            ("jenkins.test", "/userContent/readme.txt", 200, "a text"),
        ]
    ),
    application!(
        "gitea",
        &[
            ("git.test", "/git/user/project", 200, "origin /user/project"),
            ("git.test", "/git/assets/app.js", 200, "a script"),
        ]
    ),
    application!(
        "matrix",
        &[
            ("matrix.test", "/_matrix/client/v3/sync", 200, "origin /_matrix/client/v3/sync"),
            ("matrix.test", "/.well-known/matrix/server", 200, "m.server"),
        ]
    ),
    application!(
        "jellyfin",
        &[
            ("media.test", "/web/", 200, "origin /web/"),
            ("media.test", "/Items/7/Images", 200, "origin /Items/7/Images"),
            ("media.test", "/Items/7/Images", 200, "origin /Items/7/Images"),
        ]
    ),
    application!(
        "debian-mirror",
        &[
            ("deb.test", "/debian/dists/", 200, "stable/"),
            ("deb.test", "/debian/dists/stable/Release", 200, "Suite: stable"),
            ("deb.test", "/debian/pool/a.deb", 200, "a package"),
        ]
    ),
    application!(
        "apt-cache",
        &[
            ("apt.test", "/debian/pool/main/a.deb", 200, ""),
            ("apt.test", "/debian/pool/main/a.deb", 200, ""),
            ("apt.test", "/debian/dists/stable/Release", 200, "origin /debian/dists/stable/Release"),
        ]
    ),
    application!(
        "s3-media",
        &[
            ("s3.test", "/media/picture.jpg", 200, "origin /media/picture.jpg"),
            ("s3.test", "/media/picture.jpg", 200, "origin /media/picture.jpg"),
        ]
    ),
    application!(
        "hls",
        &[
            ("live.test", "/channel.m3u8", 200, "#EXTM3U"),
            ("live.test", "/segment.ts", 200, "a segment"),
            ("live.test", "/signed/a", 403, ""),
        ]
    ),
    application!(
        "php-pool",
        &[
            ("alpha.tenants.test", "/page", 200, "script tenants/alpha/public/index.php"),
            ("beta.tenants.test", "/", 200, "the page of beta"),
        ]
    ),
    application!("grafana", &[("grafana.test", "/grafana/d/1", 200, "origin /d/1")]),
    application!(
        "prometheus",
        &[
            ("metrics.test", "/metrics", 200, "connections"),
            ("metrics.test", "/status", 200, "Active connections"),
            ("metrics.test", "/healthz", 200, "ok"),
            ("metrics.test", "/prometheus/graph", 200, "origin /graph"),
        ]
    ),
    application!("docker-registry", &[("registry.test", "/v2/_catalog", 200, "origin /v2/_catalog")]),
    application!("nexus", &[("nexus.test", "/repository/a.jar", 200, "origin /repository/a.jar")]),
    application!(
        "rails",
        &[("app.test", "/orders", 200, "origin /orders"), ("app.test", "/assets/app.css", 200, "a style"),]
    ),
    application!(
        "django",
        &[
            ("django.test", "/admin", 200, "uwsgi"),
            ("django.test", "/report", 200, "a protected file"),
            ("django.test", "/static/site.css", 200, "a style"),
        ]
    ),
];

/// Files of the sites, below `@SITE@`.
const FILES: [(&str, &str); 31] = [
    ("nextcloud/index.php", ""),
    ("nextcloud/core/style.css", "a style"),
    ("nextcloud/config/config.php", ""),
    ("gitlab/public/404.html", "GitLab's own page"),
    ("mastodon/public/packs/app.js", "a script"),
    ("mastodon/public/500.html", "Mastodon's own page"),
    ("wordpress/index.php", ""),
    ("wordpress/wp-content/theme.css", "a style"),
    ("wordpress/wp-content/uploads/x.php", ""),
    ("drupal/web/index.php", ""),
    ("drupal/web/core/drupal.js", "a script"),
    ("drupal/web/sites/default/private/x", ""),
    ("jenkins/war/static.css", ""),
    ("jenkins/userContent/readme.txt", "a text"),
    ("gitea/public/app.js", "a script"),
    ("matrix/.well-known/matrix/server", "{\"m.server\": \"matrix.test:443\"}"),
    ("mirror/debian/dists/trixie/Release", "Suite: stable"),
    ("mirror-disk/a.deb", "a package"),
    ("hls/channel.m3u8", "#EXTM3U"),
    ("hls/segment.ts", "a segment"),
    ("hls/signed/a", ""),
    ("tenants/alpha/public/index.php", ""),
    ("tenants/beta/public/index.html", "the page of beta"),
    ("grafana/htpasswd", "operator:{PLAIN}secret\n"),
    ("rails/releases/7/public/assets/app.css", "a style"),
    ("rails/releases/7/public/500.html", ""),
    ("rails/shared/keep", ""),
    ("django/media/keep", ""),
    ("django/static/site.css", "a style"),
    ("django/protected/report.pdf", "a protected file"),
    ("django/manage.py", ""),
];

/// Symbolic links, below `@SITE@`. The pool of the mirror is on another disk, whose path the configuration names by `sandbox_path`.
const LINKS: [(&str, &str); 3] = [
    ("trixie", "mirror/debian/dists/stable"),
    ("../../mirror-disk", "mirror/debian/pool"),
    ("releases/7", "rails/current"),
];

/// The applications behind the configurations.
struct Origins {
    http: Origin,
    unix: Origin,
    uwsgi: Origin,
    fastcgi: FastCgi,
    dns: DnsServer,
    site: TempDir,
    authority: Authority,
}

impl Origins {
    fn start() -> Origins {
        let site = TempDir::new("applications");
        for (name, text) in FILES {
            site.write(name, text);
        }
        for (target, name) in LINKS {
            symlink(target, site.path().join(name)).expect("a new link");
        }
        open_to_all(site.path());
        let objects = Objects::new();
        objects.rule(|target| {
            target.ends_with(".deb").then(|| Object::new(300_000).cache_control("max-age=60"))
        });
        let packages = objects.handler();
        let http = Origin::start(move |request| {
            if request.target.ends_with(".deb") {
                return packages(request);
            }
            Reply::text(format!("origin {}", request.target))
        });
        let socket = site.path().join("application.sock");
        let unix = Origin::start_unix(&socket, |request| Reply::text(format!("origin {}", request.target)));
        fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .expect("our own socket");
        let uwsgi = Origin::raw(|connection| {
            let request = connection.read_some().unwrap_or_default();
            let is_report = request.windows(7).any(|window| window == b"/report");
            let response: &[u8] = if is_report {
                b"HTTP/1.1 200 OK\r\nX-Accel-Redirect: /protected/report.pdf\r\n\r\n"
            } else {
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuwsgi"
            };
            connection.send(response);
        });
        let root = format!("{}/", site.path().display());
        let fastcgi = FastCgi::start(move |request| {
            let script = request.param("SCRIPT_FILENAME").unwrap_or_default().replace(&root, "");
            fastcgi::Reply::script(request, format!("Content-Type: text/plain\r\n\r\nscript {script}\n"))
        });
        let dns = DnsServer::start();
        dns.set_addresses("mirror.test", &["127.0.0.1"], 60);
        Origins { http, unix, uwsgi, fastcgi, dns, site, authority: Authority::new("authority of the test") }
    }

    /// Starts a server with the configuration of an application.
    fn serve(&self, application: &Application, mode: Option<&str>) -> Server {
        let main = match mode {
            Some(mode) => {
                format!("sandbox {mode}; sandbox_path {};", self.site.path().join("mirror-disk").display())
            }
            None => String::new(),
        };
        let text = format!(
            "worker_processes 2; {main} events {{}} http {{ types {{ text/css css; text/html html; }}\n{}\n}}",
            application.conf
        );
        let names: Vec<&str> = application.requests.iter().map(|request| request.0).collect();
        let setup = Setup::new(&text)
            .origin(&self.http)
            .upstream("UWSGI", self.uwsgi.addr())
            .value("SOCKET", self.unix.addr().to_string().trim_start_matches("unix:"))
            .value("FASTCGI", &self.fastcgi.address().to_string())
            .value("PORT", &self.http.port().to_string())
            .value("DNS", &self.dns.addr().port().to_string())
            .value("SITE", &self.site.path().display().to_string());
        for name in ["store", "uploads"] {
            let directory = setup.data().join(name);
            fs::create_dir(&directory).expect("a new directory");
            fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777))
                .expect("our own");
        }
        let builder = setup.builder(BINARY);
        tls::files(builder, "site", &self.authority.issue_names(&names)).start()
    }
}

/// Permits all users to read a tree.
fn open_to_all(directory: &Path) {
    let _ = fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_to_all(&entry.path());
        }
    }
}

/// Makes a request in the protocol of the first listener; returns status and body.
fn request(
    origins: &Origins,
    server: &Server,
    application: &Application,
    host: &str,
    target: &str,
) -> (u16, String) {
    if application.conf.contains("127.0.0.1:0 ssl") {
        let clients = origins.authority.clients(&[&rustls::version::TLS13], None);
        let response = tls::text(&tls::get(server, &clients, host, target));
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        return (status, response);
    }
    let fields = [("Host", host), ("Authorization", &testkit::client::basic("operator:secret"))];
    let response: Response = Client::connect(server.addr(0)).request("GET", target, &fields);
    (response.status, response.text())
}

/// Whether a request needs the directive `sandbox_path`, because a link leaves the root.
fn leaves_the_root(target: &str) -> bool {
    target == "/debian/pool/a.deb"
}

/// Serves all applications: with this mode of the sandbox, or with the default and without `sandbox_path`.
fn all_applications(mode: Option<&str>) {
    let origins = Origins::start();
    let mut failures = Vec::new();
    for application in &APPLICATIONS {
        let server = origins.serve(application, mode);
        let is_possible = |request: &&Request| mode.is_some() || !leaves_the_root(request.1);
        for &(host, target, status, part) in application.requests.iter().filter(is_possible) {
            let (found, body) = request(&origins, &server, application, host, target);
            if found != status || !body.contains(part) {
                failures.push(format!(
                    "{}: {host}{target}: {found} {body}\n{}",
                    application.name,
                    server.error_log()
                ));
            }
        }
        let log = server.error_log();
        let refused = log.lines().filter(|line| line.contains("sandbox") && !line.contains("[notice]"));
        failures.extend(refused.map(|line| format!("{}: {line}", application.name)));
    }
    assert!(failures.is_empty(), "{mode:?}\n{}", failures.join("\n"));
}

#[test]
fn twenty_applications_are_served_by_default() {
    all_applications(None);
}

#[test]
fn twenty_applications_are_served_in_each_sandbox() {
    let (status, _) = Server::builder(BINARY).conf("sandbox off; events {}").arg("-t").run_to_end();
    if !status.success() {
        return testkit::skip("the program has no directive \"sandbox\"");
    }
    for mode in ["off", "on", "strict"] {
        all_applications(Some(mode));
    }
}
