//! `ringroad lint`: fixes in files, exit statuses, and reports for programs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::control::BINARY;
use serde_json::Value;
use testkit::TempDir;

/// A configuration with findings of all levels, in two files. Three of them have a fix.
const MAIN: &str = "events {}
http {
    limit_req_zone $http_x_user zone=users:1m rate=1r/s;
    include \"a part.conf\";
}
";
const PART: &str = "server {
    listen 443;   # https
    server_name localhost;
    location /files {
        alias /srv/files/;
    }
    location /private/ {
        return 200;
        allow 10.0.0.0/8;
    }
}
";

/// Creates the configuration.
fn directory() -> TempDir {
    let dir = TempDir::new("lint");
    dir.write("main.conf", MAIN);
    dir.write("a part.conf", PART);
    dir
}

/// Runs the command in a directory; returns its exit status, standard output and standard error.
fn lint(dir: &TempDir, args: &[&str]) -> (i32, String, String) {
    let command = Command::new(BINARY).arg("lint").args(args).current_dir(dir.path()).output();
    let Output { status, stdout, stderr } = command.expect("the binary was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code().expect("an exit status"), text(stdout), text(stderr))
}

/// Returns the names of the rules in a report as JSON.
fn rules(report: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().map(|finding| finding["rule"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn fixes_are_written_to_the_files_and_nothing_else_changes() {
    let dir = directory();
    let part = dir.path().join("a part.conf");
    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
    let (code, before, _) = lint(&dir, &["main.conf", "--format", "json"]);
    assert_eq!(code, 1, "{before}");
    let report: Value = serde_json::from_str(&before).expect("JSON");
    let fixable = report["findings"].as_array().expect("a list").iter();
    let fixable = fixable.filter(|finding| finding["fixable"] == true).count();
    assert!(fixable >= 3, "{before}");
    let (_, after, said) = lint(&dir, &["main.conf", "--fix", "--format", "json"]);
    assert_eq!(said, format!("ringroad lint: {fixable} fixed\n"));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("a file");
    assert_eq!(read("main.conf"), MAIN.replace("$http_x_user", "$binary_remote_addr"));
    let expected = PART
        .replace("listen 443;   # https", "listen 443 ssl;   # https")
        .replace("allow 10.0.0.0/8;\n", "allow 10.0.0.0/8;\n        deny all;\n");
    let fixed = read("a part.conf");
    assert_eq!(fixed, expected);
    assert_eq!(std::fs::metadata(&part).expect("a file").permissions().mode() & 0o777, 0o640);
    // What remains has no fix, so a second run changes nothing.
    let remaining = rules(&after);
    assert!(!remaining.is_empty() && remaining.len() < rules(&before).len(), "{remaining:?}");
    let (_, again, said) = lint(&dir, &["main.conf", "--fix", "--format", "json"]);
    assert_eq!((said.as_str(), again), ("ringroad lint: 0 fixed\n", after));
    assert_eq!(read("a part.conf"), fixed);
}

#[test]
fn exit_statuses_tell_findings_from_unusable_configurations() {
    let dir = directory();
    let (code, text, _) = lint(&dir, &["main.conf"]);
    assert!(code == 1 && text.lines().last().is_some_and(|line| line.contains(" error")), "{text}");
    dir.write(
        "clean.conf",
        "events {} http { server { listen 127.0.0.1:8080; location / { return 204; } } }",
    );
    let (code, text, _) = lint(&dir, &["clean.conf", "--level", "warning"]);
    assert_eq!((code, text.as_str()), (0, "0 errors, 0 warnings, 0 notes\n"));
    // A comment accepts one finding at its place.
    dir.write(
        "a part.conf",
        "# lint: allow listen-443-without-ssl\nserver { listen 443; server_name localhost; return 200; }",
    );
    let (_, text, _) = lint(&dir, &["main.conf", "--format", "json"]);
    assert!(!rules(&text).contains(&"listen-443-without-ssl".to_owned()), "{text}");
    for (args, expected, message) in [
        (&["missing.conf"][..], 1, "No such file"),
        (&["main.conf", "--rule", "alias-traversl"], 2, "did you mean alias-traversal?"),
        (&["main.conf", "--format", "xml"], 2, "write text, json or sarif"),
        (&["main.conf", "--level", "all"], 2, "write note, warning or error"),
        (&["main.conf", "-c", "main.conf"], 2, "write one of them"),
    ] {
        let (code, _, said) = lint(&dir, args);
        assert!(code == expected && said.contains(message), "{args:?}: {code}: {said}");
    }
}

/// What `-t` refuses is a finding, in every form of the report.
#[test]
fn configurations_that_a_test_refuses_are_findings() {
    let dir = TempDir::new("lint-refused");
    let server = "server { listen 127.0.0.1:8080; return 204; }";
    for (text, line, directive, message, remedy) in [
        (
            format!("events {{}}\nhttp {{\nsendfile maybe;\n{server} }}"),
            3,
            "sendfile",
            "invalid value \"maybe\" in \"sendfile\" directive",
            "\"ringroad help sendfile\" shows the syntax",
        ),
        (
            format!("events {{}}\nhttp {{\nkeepalive_timeout 30sec; {server} }}"),
            3,
            "keepalive_timeout",
            "\"keepalive_timeout\" directive invalid value",
            "did you mean \"30s\"?",
        ),
        (
            format!("events {{}}\nhttp {{ {server}\n\nproxy_pas http://a; }}"),
            4,
            "proxy_pas",
            "unknown directive \"proxy_pas\"",
            "did you mean \"proxy_pass\"",
        ),
        (
            "events {}\nhttp {\nserver { limit_req zone=nope; } }".to_owned(),
            3,
            "limit_req",
            "zero size shared memory zone \"nope\"",
            "limit_req_zone $binary_remote_addr zone=nope:10m rate=10r/s;",
        ),
        (format!("http {{ {server} }}"), 0, "", "no \"events\" section", "add \"events {}\""),
        (
            "events {".to_owned(),
            1,
            "events",
            "unexpected end of file",
            "the block \"events\" of line 1 is not closed",
        ),
        (
            "events {}\nhttp { root /a\n}".to_owned(),
            3,
            "",
            "unexpected \"}\"",
            "a \";\" is missing before it",
        ),
    ] {
        let file = dir.write("a.conf", &text).display().to_string();
        let test = Command::new(BINARY).args(["-t", "-c", &file, "-p"]).arg(dir.path()).output();
        let test = String::from_utf8_lossy(&test.expect("it runs").stderr).into_owned();
        assert!(test.contains(message) && test.contains("test failed"), "{test}");
        let (code, shown, _) = lint(&dir, &["-c", "a.conf"]);
        assert!(code == 1 && shown.contains(message) && shown.contains(remedy), "{code}: {shown}");
        let place = if line == 0 { file.clone() } else { format!("{file}:{line}") };
        assert!(shown.contains(&format!("{place}: error: ")) && shown.contains("[refused]"), "{shown}");
        let (code, json, _) = lint(&dir, &["a.conf", "--format", "json", "--level", "error"]);
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let findings = json["findings"].as_array().expect("a list");
        let found = findings.iter().find(|finding| finding["rule"] == "refused").expect("a finding");
        assert_eq!((code, &found["level"], &found["line"]), (1, &"error".into(), &line.into()), "{json}");
        assert_eq!((&found["file"], &found["directive"]), (&file.into(), &directive.into()), "{json}");
        assert!(found["remedy"].as_str().is_some_and(|text| text.contains(remedy)), "{json}");
        let (code, sarif, _) = lint(&dir, &["a.conf", "--format", "sarif"]);
        let sarif: Value = serde_json::from_str(&sarif).expect("JSON");
        let results = sarif["runs"][0]["results"].as_array().expect("a list");
        let result = results.iter().find(|result| result["ruleId"] == "refused").expect("a result");
        assert_eq!((code, &result["level"]), (1, &"error".into()));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a.conf");
        assert_eq!(place["region"]["startLine"].as_u64(), Some(line).filter(|line| *line > 0), "{result}");
    }
    // A comment accepts it, another rule does not check it, and a fix leaves it.
    dir.write("a.conf", format!("events {{}}\nhttp {{\nsendfile maybe; # lint: allow refused\n{server} }}"));
    assert_eq!(lint(&dir, &["a.conf", "--level", "error"]).0, 0);
    dir.write("a.conf", format!("events {{}}\nhttp {{\nsendfile maybe;\n{server} }}"));
    assert_eq!(lint(&dir, &["a.conf", "--rule", "alias-traversal"]).0, 0);
    let (code, text, said) = lint(&dir, &["a.conf", "--fix"]);
    assert!(code == 1 && said == "ringroad lint: 0 fixed\n" && text.contains("[refused]"), "{text}{said}");
    // Rules are not applied to a file that is not complete, whatever --rule says.
    dir.write("a.conf", "events {} http { server { location /a { alias /b/;");
    let (code, text, _) = lint(&dir, &["a.conf", "--rule", "alias-traversal"]);
    assert!(code == 1 && text.contains("[refused]") && !text.contains("[alias-traversal]"), "{text}");
}

/// An ordinary user may check a configuration with keys that only root can read.
#[test]
fn files_that_only_the_server_may_read_are_no_findings() {
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("changing the user takes root");
    }
    let dir = TempDir::new("lint-closed");
    let (certificate, key) = crate::common::tls::Authority::new("root").server("a.test");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    dir.write("a.pem", certificate);
    let key = dir.write("a.key", key);
    let tls =
        "listen 127.0.0.1:8443 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key;";
    dir.write("a.conf", format!("events {{}} http {{ server {{ {tls} return 204; }} }}"));
    let as_nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY, "lint", "a.conf"]);
        let output = command.current_dir(dir.path()).output().expect("setpriv is everywhere");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (closed, as_root) = (as_nobody(), lint(&dir, &["a.conf"]).1);
    assert!(!closed.contains("[refused]") && !as_root.contains("[refused]"), "{closed}{as_root}");
    std::fs::remove_file(&key).expect("it is there");
    assert!(as_nobody().contains("[refused]"));
}

/// The requirements of SARIF 2.1.0 on the objects that the report has (sections 3.13, 3.14, 3.18, 3.19, 3.27, 3.29, 3.30, 3.49).
#[test]
fn the_report_as_sarif_is_valid() {
    let dir = directory();
    let (_, json, _) = lint(&dir, &["main.conf", "--format", "json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let findings = json["findings"].as_array().expect("a list");
    let (code, text, _) = lint(&dir, &["main.conf", "--format", "sarif"]);
    assert_eq!(code, 1);
    let log: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().is_some_and(|schema| schema.contains("sarif-2.1.0")), "{text}");
    let [run] = log["runs"].as_array().expect("runs").as_slice() else { panic!("one run: {text}") };
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "ringroad lint");
    let levels = ["none", "note", "warning", "error"];
    let is_level = |value: &Value| value.as_str().is_some_and(|level| levels.contains(&level));
    let has_text = |message: &Value| message["text"].as_str().is_some_and(|text| !text.is_empty());
    let mut names = BTreeSet::new();
    for rule in driver["rules"].as_array().expect("rules") {
        assert!(names.insert(rule["id"].as_str().expect("a name")), "twice: {rule}");
        for message in ["shortDescription", "fullDescription", "help"] {
            assert!(has_text(&rule[message]), "{message} of {rule}");
        }
        assert!(is_level(&rule["defaultConfiguration"]["level"]), "{rule}");
    }
    let results = run["results"].as_array().expect("results");
    assert_eq!(results.len(), findings.len());
    for (result, finding) in results.iter().zip(findings) {
        assert!(
            names.contains(result["ruleId"].as_str().expect("a name")) && has_text(&result["message"]),
            "{result}"
        );
        assert!(is_level(&result["level"]), "{result}");
        let [location] = result["locations"].as_array().expect("a list").as_slice() else {
            panic!("{result}")
        };
        let place = &location["physicalLocation"];
        assert_eq!(place["region"]["startLine"], finding["line"], "1-based: {result}");
        assert!(finding["line"].as_u64() > Some(0), "{finding}");
        // The files are below the directory of the command, and a URI has no blank.
        let uri = place["artifactLocation"]["uri"].as_str().expect("a URI");
        assert!(["main.conf", "a%20part.conf"].contains(&uri), "{result}");
    }
    assert!(results.iter().any(|result| result["level"] == "error"), "{text}");
    // A file outside of the directory has a URI with a scheme.
    let file = dir.path().join("main.conf").display().to_string();
    let output = Command::new(BINARY).args(["lint", &file, "--format", "sarif"]).current_dir("/usr").output();
    let log: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("JSON");
    let uri = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert!(uri.as_str().is_some_and(|uri| uri.starts_with("file:///")), "{uri}");
}
