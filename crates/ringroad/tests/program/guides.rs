//! Runs the commands in `docs/guides/` and in README's tasks unchanged, except for the ports.
//!
//! The blocks of a page that are marked `sh` run in one shell. A line `#> text` is text that the commands since the
//! preceding such line must print. `needs=PROGRAM` after `sh` skips a block if that program is not installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::control::BINARY;
use rustix::process::Signal;
use testkit::TempDir;
use testkit::ports::free_port;
use testkit::program::{Program, run, signal_process};
use testkit::{Deadline, skip};

/// Range of ports that the pages use.
const PORTS: std::ops::Range<u16> = 8000..8090;

/// Port of the application of `examples/python-application`.
const APPLICATION_PORT: u16 = 9025;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Commands, and the texts that they must print.
#[derive(Debug, Default, PartialEq, Eq)]
struct Segment {
    commands: String,
    expected: Vec<String>,
}

/// Returns the commands of a page that can run here.
fn segments(page: &str, has: &dyn Fn(&str) -> bool) -> Vec<Segment> {
    let mut segments = vec![Segment::default()];
    let mut runs = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), runs) {
            (Some(language), None) => {
                let mut words = language.split(' ');
                let is_shell = words.next() == Some("sh");
                runs = Some(is_shell && words.all(|word| word.strip_prefix("needs=").is_none_or(has)));
            }
            (Some(_), Some(_)) => runs = None,
            (None, Some(true)) => {
                let last = segments.last_mut().expect("there is one from the start");
                match line.strip_prefix("#> ") {
                    Some(text) => last.expected.push(text.to_owned()),
                    None if last.expected.is_empty() => last.commands += &format!("{line}\n"),
                    None => segments.push(Segment { commands: format!("{line}\n"), expected: Vec::new() }),
                }
            }
            (None, _) => {}
        }
    }
    segments
}

/// Returns whether a program is installed.
fn has(program: &str) -> bool {
    let found = Command::new("sh").arg("-c").arg(format!("command -v {program} >/dev/null")).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        skip(format_args!("{program} is not installed"));
    }
    found
}

/// The daemons that a page has started, found by their pid files; stopped when dropped.
struct Daemons<'a>(&'a Path);

impl Drop for Daemons<'_> {
    fn drop(&mut self) {
        let found =
            Command::new("find").arg(self.0).args(["-name", "*.pid"]).output().expect("find is everywhere");
        for file in String::from_utf8_lossy(&found.stdout).lines() {
            let pid = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
            // It may have exited already.
            let _ = pid.map(|pid| signal_process(pid, Signal::TERM));
        }
    }
}

/// Runs the commands of a page in a new directory that contains the examples and the seccomp profile.
fn run_page(page: &str) {
    run_page_in(&TempDir::new("guide"), page, &[]);
}

/// As `run_page`, in a directory of the caller and with these environment variables.
fn run_page_in(dir: &TempDir, page: &str, environment: &[(&str, &str)]) {
    let text = fs::read_to_string(root().join(page)).expect("the page is there");
    run_text(dir, page, &text, environment);
}

/// Runs the commands of this text of a page.
fn run_text(dir: &TempDir, page: &str, text: &str, environment: &[(&str, &str)]) {
    let work = dir.path().join("work");
    fs::create_dir_all(work.join("bin")).expect("a directory of the test");
    for path in [dir.path(), &work] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    symlink(BINARY, work.join("bin/ringroad")).expect("a link");
    let copied = Command::new("cp").arg("-r").arg(root().join("examples")).arg(&work).status();
    assert!(copied.is_ok_and(|status| status.success()), "the examples are copied");
    // As with the usual umask, which the pages assume: the worker runs as another user.
    let opened = Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(work.join("examples")).status();
    assert!(opened.is_ok_and(|status| status.success()), "they are ours");
    let profile = root().join("packaging/image/seccomp.json");
    fs::copy(profile, work.join("seccomp.json")).expect("packages have it next to the examples");
    let segments = segments(text, &has);
    // These ports replace the fixed ports of the pages, which may be in use. All programs of the pages set SO_REUSEADDR.
    let reserved: BTreeMap<u16, u16> =
        PORTS.chain([APPLICATION_PORT]).map(|port| (port, free_port())).collect();
    let mut script = String::from("set -eu\numask 022\nexport PATH=\"$PWD/bin:$PATH:/usr/sbin\"\n");
    for (number, segment) in segments.iter().enumerate() {
        let _infallible = writeln!(script, "{{\n{}}} >out.{number} 2>&1 </dev/null", segment.commands);
    }
    // Complete numbers are replaced: a reserved port may contain the digits of a fixed one.
    let localised = |text: String| -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
        while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
            let length = rest[start..].find(|letter: char| !letter.is_ascii_digit());
            let end = length.map_or(rest.len(), |length| start + length);
            out.push_str(&rest[..start]);
            match rest[start..end].parse().ok().and_then(|port: u16| reserved.get(&port)) {
                Some(here) => out.push_str(&here.to_string()),
                None => out.push_str(&rest[start..end]),
            }
            rest = &rest[end..];
        }
        out + rest
    };
    let script = localised(script);
    for example in fs::read_dir(work.join("examples")).expect("they were copied").flatten() {
        let conf = example.path().join("nginx.conf");
        if let Ok(text) = fs::read_to_string(&conf) {
            fs::write(&conf, localised(text)).expect("it is ours");
        }
    }
    let segments: Vec<Segment> = segments
        .into_iter()
        .map(|Segment { commands, expected }| Segment {
            commands,
            expected: expected.into_iter().map(localised).collect(),
        })
        .collect();
    dir.write("script", &script);
    let daemons = Daemons(&work);
    let mut command = Command::new("bash");
    command.arg(dir.path().join("script")).current_dir(&work).envs(environment.iter().copied());
    let mut program = Program::spawn(command, dir.path());
    let status = program.wait_until_ended(Deadline::default());
    let out = |number: usize| fs::read_to_string(work.join(format!("out.{number}"))).unwrap_or_default();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (number, segment) in segments.iter().enumerate() {
        let Segment { commands, expected } = segment;
        for text in expected {
            assert!(
                words(&out(number)).contains(&words(text)),
                "{page} expects {text:?} of\n{commands}--- but got\n{}--- {status}",
                out(number)
            );
        }
    }
    let all: String = (0..segments.len()).map(out).collect();
    assert!(status.success(), "{page}: {status}\n{all}\n{}", program.stderr());
    drop(daemons);
}

/// Every page must have a test below.
#[test]
fn every_guide_has_a_test() {
    let here = include_str!("guides.rs");
    for entry in fs::read_dir(root().join("docs/guides")).expect("the directory is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let is_run = here.contains(&format!("\"docs/guides/{name}\""));
        assert!(is_run || name == "README.md", "{name} has no test");
        let index = fs::read_to_string(root().join("docs/guides/README.md")).expect("the index");
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "{name} is not in the index");
    }
}

#[test]
fn the_guide_on_migrating_from_nginx_and_back_works() {
    run_page("docs/guides/from-nginx.md");
}

#[test]
fn the_guide_on_caching_an_application_works() {
    run_page("docs/guides/cache.md");
}

#[test]
fn the_guide_on_package_mirrors_works() {
    run_page("docs/guides/package-mirror.md");
}

#[test]
fn the_guide_on_an_edge_cache_works() {
    run_page("docs/guides/edge.md");
}

#[test]
fn the_guide_on_load_balancing_works() {
    run_page("docs/guides/load-balancing.md");
}

#[test]
fn the_guide_on_websocket_and_event_streams_works() {
    run_page("docs/guides/streams.md");
}

#[test]
fn the_guide_on_running_behind_a_proxy_works() {
    run_page("docs/guides/behind-a-proxy.md");
}

#[test]
fn the_guide_on_json_logs_works() {
    run_page("docs/guides/json-logs.md");
}

/// Checks the notifications of the page's servers. `NOTIFY_SOCKET` is set as under systemd.
#[test]
fn the_guide_on_systemd_works() {
    let dir = TempDir::new("guide");
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket in the test's own directory");
    manager.set_nonblocking(true).expect("it is a socket");
    run_page_in(&dir, "docs/guides/systemd.md", &[("NOTIFY_SOCKET", &path.to_string_lossy())]);
    if !has("systemd-socket-activate") {
        return;
    }
    let (mut heard, mut message) = (Vec::new(), [0; 4096]);
    while let Ok(count) = manager.recv(&mut message) {
        let text = String::from_utf8_lossy(&message[..count]).into_owned();
        let news = ["READY=1", "RELOADING=1", "STOPPING=1"];
        heard.extend(news.into_iter().filter(|news| text.lines().any(|line| line == *news)));
    }
    assert_eq!(heard, ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]);
}

#[test]
fn the_guide_on_containers_works() {
    run_page("docs/guides/containers.md");
}

#[test]
fn the_guide_on_https_by_acme_works() {
    run_page("docs/guides/https-application.md");
}

#[test]
fn the_guide_on_metrics_and_grafana_works() {
    run_page("docs/guides/metrics.md");
}

#[test]
fn the_guide_on_grpc_works() {
    run_page("docs/guides/grpc.md");
}

#[test]
fn the_guide_on_mutual_tls_works() {
    run_page("docs/guides/mutual-tls.md");
}

#[test]
fn the_guide_on_php_in_production_works() {
    run_page("docs/guides/php.md");
}

#[test]
fn the_guide_on_caches_larger_than_memory_works() {
    run_page("docs/guides/large-cache.md");
}

#[test]
fn the_guide_on_migrating_from_varnish_works() {
    run_page("docs/guides/from-varnish.md");
}

#[test]
fn the_guide_on_migrating_from_haproxy_works() {
    run_page("docs/guides/from-haproxy.md");
}

#[test]
fn the_guide_on_migrating_from_caddy_works() {
    run_page("docs/guides/from-caddy.md");
}

/// Grafana shows an empty panel for a name that does not exist, without an error.
#[test]
fn the_dashboard_for_grafana_uses_existing_metrics() {
    let counters = run(BINARY, &["reference", "counters"]).stdout;
    let text = fs::read_to_string(root().join("examples/metrics/grafana.json")).expect("the file is there");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a text")).collect();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let names: Vec<&str> =
            words.filter(|word| word.starts_with("ringroad_") || word.starts_with("process_")).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            let kind = if family == name { "" } else { " histogram " };
            let row = counters.lines().find(|line| line.starts_with(&format!("| `{family}` |")));
            let row = row.unwrap_or_else(|| panic!("{name} of {expression} does not exist"));
            assert!(row.contains(kind), "{row}");
            // Labels that the expression groups by or compares are labels of the metric, or of Prometheus.
            for label in [
                "code", "server", "location", "upstream", "peer", "zone", "state", "limit", "reason",
                "device", "op",
            ] {
                let uses = expression.contains(&format!("{label}="))
                    || expression.contains(&format!("{label},"))
                    || expression.contains(&format!(" {label})"))
                    || expression.contains(&format!("({label})"));
                assert!(!uses || row.contains(&format!("`{label}`")), "{label} of {expression}: {row}");
            }
        }
    }
}

#[test]
fn the_tasks_of_the_readme_work() {
    run_page("README.md");
}

/// Every command ends, and succeeds. The results of the requests are checked by `serve/sites.rs`.
#[test]
fn the_commands_of_the_examples_can_be_pasted() {
    let examples = fs::read_dir(root().join("examples")).expect("the directory is there");
    let names = examples.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let pages: Vec<String> = names.map(|name| format!("examples/{name}/README.md")).collect();
    let pages = pages.iter().filter(|page| root().join(page).exists());
    std::thread::scope(|scope| {
        for page in pages {
            scope.spawn(move || {
                let text = fs::read_to_string(root().join(page)).expect("the page is there");
                // The program of the test instead of that of the page, which is the same.
                let text = text.replace("cargo build --release -p ringroad\n", "");
                let text =
                    text.replace("target/release/ringroad", "ringroad").replace("/tmp/origin", "origin");
                // Programs that some lines need. Pages that start them are skipped without them.
                let needed = [
                    ("php-fpm8.2", "php-fpm8.2"),
                    ("uwsgi-core", "uwsgi-core"),
                    ("jq ", "jq"),
                    ("openssl", "openssl"),
                ];
                if needed.iter().any(|(command, program)| text.contains(command) && !has(program)) {
                    return;
                }
                let dir = TempDir::new("example");
                dir.write("work/report.pdf", "a report");
                run_text(&dir, page, &text, &[]);
            });
        }
    });
}

#[test]
fn commands_and_expected_output_are_distinguished() {
    let page = "text\n```sh\na\n#> b\n#> c\nd\n```\n```nginx\ne\n```\n```sh needs=x\nf\n```\n```sh needs=y\ng\n```\n";
    let found = segments(page, &|program| program == "y");
    let segment = |commands: &str, expected: &[&str]| Segment {
        commands: commands.to_owned(),
        expected: expected.iter().map(|&text| text.to_owned()).collect(),
    };
    assert_eq!(found, [segment("a\n", &["b", "c"]), segment("d\ng\n", &[])]);
}
