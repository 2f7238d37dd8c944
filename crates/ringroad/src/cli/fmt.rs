//! `ringroad fmt [-w|--check] FILE`: formats the text of a configuration.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conf::FileId;

use super::failure::CommandFailure;
use super::options::Arguments;
use super::output::{print, print_error};
use super::request::file_of;
use crate::listen::error_text;

/// The name of standard input in messages.
const STDIN: &str = "standard input";

/// Formats a file.
pub(super) fn run(given: &Arguments) -> ExitCode {
    let name =
        match file_of(given).and_then(|file| file.ok_or_else(|| CommandFailure::misuse("FILE is missing"))) {
            Ok(name) => name,
            Err(failure) => return failure.report("fmt"),
        };
    let is_stdin = name == "-";
    let path = Path::new(if is_stdin { STDIN.as_ref() } else { name });
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
/// mode are preserved; hard links are not. Without permission to create a file in the directory, the file is written in place.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let (file, draft) = match draft_of(&path) {
        Ok(created) => created,
        Err(error) if needs_write_in_place(&error) => return std::fs::write(path, bytes),
        Err(error) => return Err(error),
    };
    let written = (&file).write_all(bytes).and_then(|()| file.sync_all());
    match written.and_then(|()| std::fs::rename(&draft, &path)).inspect_err(|_| remove(&draft)) {
        Err(error) if needs_write_in_place(&error) => std::fs::write(path, bytes),
        done => done,
    }
}

/// Whether no file can be created in the directory, or the file cannot be replaced because it is a mount point.
fn needs_write_in_place(error: &std::io::Error) -> bool {
    use ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Creates an empty file in the directory of a regular file, with the same owner and mode. Its name begins with a dot, so that no
/// wildcard of an `include` matches it.
fn draft_of(path: &Path) -> std::io::Result<(File, PathBuf)> {
    let facts = std::fs::metadata(path)?;
    let name = path.file_name().filter(|_| facts.is_file()).ok_or(ErrorKind::PermissionDenied)?;
    let draft = path.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let owned = fchown(&file, Some(facts.uid()), Some(facts.gid()));
    owned.and_then(|()| file.set_permissions(facts.permissions())).inspect_err(|_| remove(&draft))?;
    Ok((file, draft))
}

/// Removes a draft after an error. A failure of the removal is ignored, because the first error is reported.
fn remove(draft: &Path) {
    let _ = std::fs::remove_file(draft);
}

/// Reports an error of the file system, in the form of configuration errors.
fn failed(call: &str, path: &Path, error: &std::io::Error) -> ExitCode {
    print_error(format_args!("ringroad: {call} \"{}\" failed ({})\n", path.display(), error_text(error)));
    ExitCode::FAILURE
}
