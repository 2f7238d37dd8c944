//! Configurations without traps: sites as they are written by careful people, and the examples of the repository. Each error or
//! warning about them is a false positive, unless it is listed with the reason.

use std::path::{Path, PathBuf};

use conf::{Loader, Source};
use lint::{Level, NoFacts, Options, lint};

/// Reads from the disk; a missing include is a short list of types or parameters.
#[derive(Debug)]
struct Disk;

impl Loader for Disk {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match (read(path), name) {
            (Err(_), "mime.types") => Ok(b"types { text/html html; text/css css; image/png png; }".to_vec()),
            (Err(_), "fastcgi_params") => Ok(b"fastcgi_param QUERY_STRING $query_string;".to_vec()),
            (text, _) => text,
        }
    }

    fn glob(&self, _: &Path) -> std::io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

#[expect(clippy::disallowed_methods, reason = "a test reads files")]
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

/// True findings: file, rule, and why the configuration has it anyway.
const TRUE: &[(&str, &str, &str)] = &[(
    "nginx.conf",
    "add-header-inheritance",
    "split-traffic: a redirect for tests drops fields that it does not need",
)];

fn configurations(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => configurations(&path, found),
            false if path.extension().is_some_and(|end| end == "conf") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn careful_configurations_have_no_errors_and_warnings() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    configurations(&here.join("tests/sites"), &mut files);
    let own = files.len();
    configurations(&here.join("../../examples"), &mut files);
    configurations(&here.join("../../packaging"), &mut files);
    files.sort();
    assert!(own >= 22 && files.len() > own + 10, "{own} of {}", files.len());
    let (mut wrong, mut notes) = (Vec::new(), 0);
    for file in &files {
        let tree = conf::parse(&Source::new(file), &Disk).expect("it was listed");
        if let Some(fault) = tree.fault() {
            // Parts that other files include.
            assert!(!file.starts_with(here.join("tests")), "{fault}");
            continue;
        }
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        for finding in lint(&tree, &NoFacts, &Options::default()) {
            let is_listed = TRUE.iter().any(|(file, rule, _)| *file == name && *rule == finding.rule);
            match finding.level {
                Level::Note => notes += 1,
                _ if is_listed => {}
                _ => wrong.push(format!("{}: {} [{}]", finding.at, finding.message, finding.rule)),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} false positives in {} files:\n{}",
        wrong.len(),
        files.len(),
        wrong.join("\n")
    );
    assert!(notes < files.len() * 2, "{notes} notes in {} files", files.len());
}
