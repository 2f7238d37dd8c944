//! `ringroad fmt [-w|--check] FILE`: formats the text of a configuration.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use conf::FileId;

use super::options::Arguments;
use super::output::{print, print_error};
use crate::listen::error_text;

/// The name of standard input in messages.
const STDIN: &str = "standard input";

/// Formats a file.
pub(super) fn run(given: &Arguments) -> ExitCode {
    let name = &given.operands[0];
    let is_stdin = name == "-";
    let path = Path::new(if is_stdin { STDIN.as_ref() } else { name.as_os_str() });
    let text = match is_stdin {
        true => {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text).map(|_| text)
        }
        false => std::fs::read(path),
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => return failed("open()", path, &error),
    };
    let formatted = match conf::format(&text, FileId::file(path)) {
        Ok(formatted) => formatted,
        Err(error) => {
            print_error(format_args!("ringroad: [{}] {error}\n", error.level()));
            print_error(conf::excerpt_of(&error, &text).unwrap_or_default());
            return ExitCode::FAILURE;
        }
    };
    if given.has("check") {
        let is_formatted = formatted == text;
        if !is_formatted {
            print_error(format_args!("ringroad: \"{}\" is not formatted\n", path.display()));
        }
        return if is_formatted { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if !given.has("write") || is_stdin {
        print(formatted);
        return ExitCode::SUCCESS;
    }
    // Written in place: symbolic links, owner and mode are preserved.
    match if formatted == text { Ok(()) } else { std::fs::write(path, formatted) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed("write()", path, &error),
    }
}

/// Reports an error of the file system, in the form of configuration errors.
fn failed(call: &str, path: &Path, error: &std::io::Error) -> ExitCode {
    print_error(format_args!("ringroad: {call} \"{}\" failed ({})\n", path.display(), error_text(error)));
    ExitCode::FAILURE
}
