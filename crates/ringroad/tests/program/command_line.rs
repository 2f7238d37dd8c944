//! The texts generated from the table of commands: help, manual page, completions. Each option is in all of them.

use std::process::{Command, Stdio};

use crate::control::BINARY;
use testkit::TempDir;
use testkit::program::{Finished, run};

/// Runs a command that must print a text with success and nothing on standard error; returns the text.
fn printed(args: &[&str]) -> String {
    let Finished { status, stdout, stderr, .. } = run(BINARY, args);
    assert!(status.success() && stderr.is_empty() && !stdout.is_empty(), "{args:?}: {status} {stderr}");
    stdout
}

/// Returns the commands that the help lists.
fn commands() -> Vec<String> {
    let help = printed(&["help"]);
    let (_, list) = help.split_once("\nCommands:\n").expect("a list of commands");
    let names = list.lines().take_while(|line| !line.is_empty());
    names.map(|line| line.split_whitespace().next().expect("a name").to_owned()).collect()
}

/// Returns the options in a help text: `--listen`, `-w`.
fn options(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("\nOptions:\n").expect("a list of options");
    let lines = list.lines().take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  -"));
    let names = lines.map(|line| line.trim_start().split("  ").next().unwrap_or_default());
    let names = names.map(|names| names.split(" :").next().unwrap_or_default());
    let words = names.flat_map(|names| names.split([',', ' ']));
    words.filter(|word| word.starts_with('-') && word.len() > 1).map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_summary_and_a_help_text() {
    let names = commands();
    for name in
        ["serve", "check", "explain", "fmt", "engines", "stat", "bench", "reference", "completions", "help"]
    {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    for name in &names {
        let shown = printed(&["help", name]);
        assert!(shown.starts_with(&format!("Usage: ringroad {name}")), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 90), "{shown}");
        // `bench`, in builds that include it, prints the help of its own parser.
        if name != "bench" {
            assert_eq!(printed(&[name, "--help"]), shown);
        }
    }
    // The short form writes to the same stream as nginx.
    let said = run(BINARY, &["-h"]);
    assert!(said.status.success() && said.stdout.is_empty());
    assert_eq!(said.stderr, printed(&["--help"]));
}

#[test]
fn help_describes_directives() {
    let shown = printed(&["help", "limit_req"]);
    assert!(shown.starts_with("Syntax:   limit_req zone=NAME [burst=NUMBER]"), "{shown}");
    assert!(shown.contains("\nContext:  http, server, location\n"), "{shown}");
    assert!(shown.contains("\nExamples:\n  limit_req zone="), "{shown}");
    let said = run(BINARY, &["help", "proxy_past"]);
    assert_eq!(said.status.code(), Some(2));
    assert_eq!(
        said.stderr,
        "ringroad help: \"proxy_past\" is neither a command nor a directive; did you mean \"proxy_pass\"?\n"
    );
}

#[test]
fn editors_get_all_directives_as_json() {
    let rows: serde_json::Value = serde_json::from_str(&printed(&["reference", "json"])).expect("JSON");
    let rows = rows.as_array().expect("an array");
    assert!(rows.len() > 600, "{}", rows.len());
    let row = rows.iter().find(|row| row["name"] == "ring_entries").expect("it is a directive");
    assert_eq!(row["syntax"], "ring_entries NUMBER;");
    assert_eq!((&row["default"], &row["contexts"][0]), (&"1024".into(), &"events".into()));
}

#[test]
fn each_option_is_in_the_manual_and_in_all_completions() {
    let page = printed(&["help", "man"]);
    let scripts = ["bash", "zsh", "fish"].map(|shell| (shell, printed(&["completions", shell])));
    let mut all = options(&printed(&["help"]));
    assert!(all.len() > 10, "{all:?}");
    for name in commands() {
        let help = printed(&["help", &name]);
        assert!(
            page.contains(&format!("\n.Cm {name}\n")) && page.contains(&format!("\n.Ss ringroad {name}\n"))
        );
        for (shell, script) in &scripts {
            assert!(script.contains(&name), "{shell} lacks {name}");
        }
        let own = options(&help);
        assert!(own.contains(&"--help".to_owned()), "{help}");
        all.extend(own);
    }
    for option in &all {
        let bare = option.trim_start_matches('-');
        let in_page = if option.starts_with("--") {
            format!("Fl -{}", bare.replace('-', "\\-"))
        } else {
            format!("Fl {bare}")
        };
        assert!(page.contains(&in_page), "the manual lacks {option}");
        for (shell, script) in &scripts {
            let form = match (*shell, option.starts_with("--")) {
                ("fish", true) => format!("-l {bare} "),
                ("fish", false) => format!("-s '{bare}'"),
                ("zsh", _) => option.replace("-?", "-\\?"),
                _ => option.clone(),
            };
            assert!(script.contains(&form), "{shell} lacks {option}");
        }
    }
}

/// Runs a checker over a text; reports if it is not installed.
fn checked(program: &str, args: &[&str], name: &str, text: &str) {
    let dir = TempDir::new("checked");
    let file = dir.write(name, text);
    let found = Command::new(program).args(args).arg(&file).stdin(Stdio::null()).output();
    let output = match found {
        Ok(output) => output,
        Err(error) => return testkit::skip(format_args!("{program} is not installed: {error}")),
    };
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.is_empty(), "{program} {args:?}: {}\n{said}", output.status);
}

#[test]
fn the_manual_page_is_clean_mdoc() {
    checked("mandoc", &["-T", "lint", "-W", "style"], "ringroad.8", &printed(&["help", "man"]));
}

#[test]
fn each_shell_reads_its_completions() {
    checked("bash", &["-n"], "ringroad.bash", &printed(&["completions", "bash"]));
    checked("zsh", &["-n"], "_ringroad", &printed(&["completions", "zsh"]));
    checked("fish", &["-n"], "ringroad.fish", &printed(&["completions", "fish"]));
}

/// Returns bash's completions for a line.
fn offered(words: &[&str]) -> Vec<String> {
    let script = printed(&["completions", "bash"]);
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let line = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _ringroad; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ")
    );
    let output = Command::new("bash").arg("-c").arg(line).output().expect("bash is everywhere");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_matching_words() {
    assert_eq!(offered(&["ringroad", "se"]), ["serve"]);
    assert_eq!(offered(&["ringroad", "serve", "--li"]), ["--listen"]);
    assert_eq!(offered(&["ringroad", "completions", "z"]), ["zsh"]);
    assert_eq!(offered(&["ringroad", "help", "che"]), ["check"]);
    assert_eq!(offered(&["ringroad", "-s", "re"]), ["reopen", "reload"]);
    assert_eq!(offered(&["ringroad", "-t", "-s", "st"]), ["stop"]);
}

#[test]
fn misspelled_arguments_get_a_suggestion_and_status_2() {
    for (args, text) in [
        (&["sevre"][..], "ringroad: unknown command \"sevre\"; did you mean \"serve\"?\n"),
        (&["frobnicate"], "ringroad: unknown command \"frobnicate\"; \"ringroad -h\" lists the commands\n"),
        (&["--verison"], "ringroad: unknown option \"--verison\"; did you mean \"--version\"?\n"),
        (
            &["help", "chek"],
            "ringroad help: \"chek\" is neither a command nor a directive; did you mean \"check\"?\n",
        ),
        (
            &["check", "--jsno", "a"],
            "ringroad check: unknown option \"--jsno\"; did you mean \"--json\"?\nUsage: ringroad check [-c FILE] [--all] [--json] [-p PREFIX] [FILE]\n",
        ),
        (
            &["completions", "csh"],
            "ringroad completions: no completions for \"csh\": SHELL is bash, zsh or fish\nUsage: ringroad completions SHELL\n",
        ),
    ] {
        let said = run(BINARY, args);
        assert_eq!((said.status.code(), said.stderr.as_str()), (Some(2), text), "{args:?}");
    }
}

/// Each command tells usage errors (2) from failures (1).
#[test]
fn exit_statuses_tell_usage_errors_from_failures() {
    let dir = TempDir::new("statuses");
    let missing = dir.path().join("missing").display().to_string();
    let socket = dir.path().join("no.sock").display().to_string();
    let refused = "http://127.0.0.1:1/";
    let with = |args: &[&str]| {
        let replaced = |arg: &&str| match *arg {
            "MISSING" => missing.clone(),
            "SOCKET" => socket.clone(),
            "URL" => refused.to_owned(),
            arg => arg.to_owned(),
        };
        args.iter().map(replaced).collect::<Vec<_>>()
    };
    #[rustfmt::skip]
    let rows: &[(i32, &[&str])] = &[
        (2, &["serve"]),
        (2, &["serve", ".", "--listen", "99999"]),
        (2, &["serve", ".", "--acme-directory", "https://a/"]),
        (2, &["serve", ".", "--tls", "local"]),
        (2, &["serve", ".", "more"]),
        (1, &["serve", "MISSING"]),
        (2, &["proxy"]),
        (2, &["proxy", "--to", "ftp://a"]),
        (2, &["proxy", "--to", ":1", "--listen", "x"]),
        (2, &["proxy", "more"]),
        (2, &["check", "MISSING", "-c", "MISSING"]),
        (2, &["check", "--none"]),
        (1, &["check", "MISSING"]),
        (1, &["check", "-c", "MISSING"]),
        (2, &["explain"]),
        (2, &["explain", "a"]),
        (2, &["explain", "URL", "-H", "x"]),
        (2, &["explain", "URL", "--from", "x"]),
        (2, &["explain", "URL", "--http3"]),
        (1, &["explain", "URL", "-c", "MISSING"]),
        (1, &["explain", "URL", "--socket", "SOCKET"]),
        (2, &["fmt"]),
        (2, &["fmt", "MISSING", "-c", "MISSING"]),
        (1, &["fmt", "MISSING"]),
        (1, &["fmt", "-c", "MISSING"]),
        (2, &["lint", "MISSING", "--level", "x"]),
        (2, &["lint", "MISSING", "--rule", "x"]),
        (2, &["lint", "MISSING", "--format", "x"]),
        (1, &["lint", "MISSING"]),
        (2, &["engines", "more"]),
        (1, &["engines", "--user", "no-such-user"]),
        (2, &["stat", "a"]),
        (2, &["stat", "ftp://a/"]),
        (2, &["stat", "http://a\u{1}/"]),
        (1, &["stat", "-1", "URL"]),
        (1, &["stat", "-c", "MISSING"]),
        (2, &["health", "a"]),
        (2, &["health", "URL", "--timeout", "x"]),
        (1, &["health", "URL"]),
        (1, &["health", "-c", "MISSING"]),
        (2, &["trust", "a", "b"]),
        (1, &["trust", "MISSING"]),
        (2, &["log", "-n", "x", "--socket", "SOCKET"]),
        (2, &["log", "-f", "status=404", "--socket", "SOCKET"]),
        (2, &["log", "-f", "code>499", "--socket", "SOCKET"]),
        (1, &["log", "--socket", "SOCKET"]),
        (1, &["log", "-c", "MISSING"]),
        (2, &["top", "--by", "errors", "--socket", "SOCKET"]),
        (2, &["top", "-n", "0", "--socket", "SOCKET"]),
        (2, &["top", "--every", "x", "--socket", "SOCKET"]),
        (2, &["top", "-f", "x", "--socket", "SOCKET"]),
        (1, &["top", "--socket", "SOCKET"]),
        (2, &["drain", "now"]),
        (1, &["drain", "--socket", "SOCKET"]),
        (2, &["undrain", "now"]),
        (1, &["undrain", "--socket", "SOCKET"]),
        (2, &["reference", "x"]),
        (2, &["completions"]),
        (2, &["completions", "csh"]),
        (2, &["help", "x"]),
        (2, &["help", "a", "b"]),
    ];
    for (code, args) in rows {
        let args = with(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = run(BINARY, &args);
        assert_eq!(said.status.code(), Some(*code), "{args:?}: {}{}", said.stdout, said.stderr);
        assert!(said.stderr.starts_with("ringroad"), "{args:?}: {}", said.stderr);
    }
    // Every command is in the table, and its help names both.
    for name in commands().iter().filter(|name| *name != "bench") {
        assert!(rows.iter().any(|(code, args)| *code == 2 && args[0] == name), "{name} has no row");
        let help = printed(&["help", name]);
        let (_, statuses) = help.split_once("\nExit status:\n").expect("the statuses");
        assert!(statuses.contains("\n  2  "), "{help}");
        let has_failure = rows.iter().any(|(code, args)| *code == 1 && args[0] == name);
        assert!(!has_failure || statuses.contains("  1  "), "{help}");
    }
    let page = printed(&["help", "man"]);
    assert!(page.contains("\n.Sh EXIT STATUS\n"), "{page}");
}

/// A command that reads a configuration takes the file as `-c` too, and without a file the default one, as `-t` does.
#[test]
fn commands_that_read_a_configuration_accept_c_and_the_default_file() {
    let dir = TempDir::new("same-file");
    let text =
        "events {}\nhttp {\n    server {\n        listen 127.0.0.1:0;\n        return 204;\n    }\n}\n";
    let prefix = dir.path().display().to_string();
    let file = dir.write("conf/nginx.conf", text).display().to_string();
    std::fs::create_dir(dir.path().join("logs")).expect("a new directory");
    for name in ["check", "lint", "fmt"] {
        let by_operand = run(BINARY, &[name, &file]);
        assert_eq!(by_operand.status.code(), Some(0), "{name}: {}{}", by_operand.stdout, by_operand.stderr);
        assert_eq!(run(BINARY, &[name, "-c", &file]).stdout, by_operand.stdout, "{name}");
        if name != "fmt" {
            assert_eq!(run(BINARY, &[name, "-p", &prefix]).stdout, by_operand.stdout, "{name}");
            assert_eq!(run(BINARY, &[name, "-p", &prefix, "-c", &file]).stdout, by_operand.stdout, "{name}");
        }
    }
    // Without a prefix it is the file that -t names.
    let test = run(BINARY, &["-t"]).stderr;
    let default = "/etc/nginx/nginx.conf";
    let said = run(BINARY, &["check"]);
    assert!(test.contains(default), "{test}");
    if !std::path::Path::new(default).exists() {
        assert!(said.status.code() == Some(1) && said.stderr.contains(default), "{}", said.stderr);
    }
}

#[test]
fn the_long_version_contains_program_commit_and_kernel() {
    let text = printed(&["--version"]);
    let lines: Vec<&str> = text.lines().collect();
    let start = format!("ringroad {} (", env!("CARGO_PKG_VERSION"));
    assert!(lines[0].starts_with(&start) && lines[0].ends_with("configuration of nginx 1.31.5"), "{text}");
    assert!(lines[0].contains("(commit ") || lines[0].contains("(a build without a commit)"), "{text}");
    assert!(lines[1].starts_with("kernel ") && lines[1].contains("epoll"), "{text}");
}
