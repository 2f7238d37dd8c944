//! `-t --diff`: shows the changes that a reload would make in the running server.
//!
//! The master compares the configurations: it has the running one, and reads the files like a reload, with its own
//! privileges and paths.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::call::{call, path_in, shown};
use super::output::{print, print_error};
use crate::paths::Request;

/// Queries the server with this configuration, and prints its response. A server with a different main file is an
/// error, because it would compare that file.
pub(super) fn run(request: &Request) -> ExitCode {
    let response = path_in(request).and_then(|path| call(&path, &json!({ "command": "diff" })));
    let answer = response.and_then(|(_, answer)| {
        let (ours, theirs) =
            (request.main.display().to_string(), answer["file"].as_str().unwrap_or_default());
        match ours == theirs {
            true => Ok(answer),
            false => Err(format!("the running server reads \"{}\", not \"{ours}\"", shown(theirs))),
        }
    });
    match answer {
        Ok(answer) => {
            print(describe(&answer));
            ExitCode::SUCCESS
        }
        Err(message) => {
            print_error(format_args!("ringroad: --diff: {message}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Formats the response as lines.
fn describe(answer: &Value) -> String {
    let texts = |name: &str| -> Vec<String> {
        answer[name].as_array().into_iter().flatten().filter_map(Value::as_str).map(shown).collect()
    };
    let (changes, reasons) = (texts("changes"), texts("replacement"));
    if changes.is_empty() && reasons.is_empty() {
        return format!("a reload changes nothing in configuration {}\n", answer["generation"]);
    }
    let mut out = format!("a reload changes configuration {}:\n", answer["generation"]);
    for change in changes {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{change}");
    }
    let _ = match reasons.is_empty() {
        true => writeln!(out, "the worker process takes it in place"),
        false => writeln!(out, "a new worker process is needed: {}", reasons.join(", ")),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_states_the_kind_of_reload() {
        let answer = |changes: &[&str], replacement: &[&str]| json!({ "generation": 3, "changes": changes, "replacement": replacement });
        assert_eq!(describe(&answer(&[], &[])), "a reload changes nothing in configuration 3\n");
        assert_eq!(
            describe(&answer(&["+ gzip on"], &[])),
            "a reload changes configuration 3:\n+ gzip on\nthe worker process takes it in place\n"
        );
        let text = describe(&answer(&["a"], &["worker_processes 2 -> 4", "env"]));
        assert!(text.ends_with("\na new worker process is needed: worker_processes 2 -> 4, env\n"), "{text}");
    }
}
