//! `ringroad fmt [-w|--check] FILE`: formats the text of a configuration.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
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
    match if formatted == text { Ok(()) } else { replace(path, &formatted) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed("write()", path, &error),
    }
}

/// Replaces the content of a file. The new content is complete on the disk before the old one is removed. Symbolic links, owner and
/// mode are preserved; hard links are not, unless the directory is not writable.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let (file, draft) = match draft_of(&path) {
        Ok(created) => created,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return std::fs::write(path, bytes),
        Err(error) => return Err(error),
    };
    let written = (&file).write_all(bytes).and_then(|()| file.sync_all());
    written.and_then(|()| std::fs::rename(&draft, &path)).inspect_err(|_| remove(&draft))
}

/// Creates an empty file beside a regular file, with the same owner and mode. The name begins with a dot, so that no `include` with a
/// wildcard finds it.
fn draft_of(path: &Path) -> std::io::Result<(File, PathBuf)> {
    let facts = std::fs::metadata(path)?;
    let name = path.file_name().filter(|_| facts.is_file()).ok_or(ErrorKind::PermissionDenied)?;
    let draft = path.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let owned = fchown(&file, Some(facts.uid()), Some(facts.gid()));
    owned.and_then(|()| file.set_permissions(facts.permissions())).inspect_err(|_| remove(&draft))?;
    Ok((file, draft))
}

/// Removes a draft after an error, which is reported instead of a failure here.
fn remove(draft: &Path) {
    let _ = std::fs::remove_file(draft);
}

/// Reports an error of the file system, in the form of configuration errors.
fn failed(call: &str, path: &Path, error: &std::io::Error) -> ExitCode {
    print_error(format_args!("ringroad: {call} \"{}\" failed ({})\n", path.display(), error_text(error)));
    ExitCode::FAILURE
}
