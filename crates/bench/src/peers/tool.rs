//! Detection of peer programs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::Fact;

/// Value of `--peer` that skips a peer, as if it were not installed.
pub(crate) const LEFT_OUT: &str = "none";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A web server configured in nginx's language.
    Nginx,
    /// The web server measured in write-up 001.
    Lighttpd,
    /// A web server that is fast with small files.
    H2o,
    /// The load generator of `bench h2` and `bench grpc`.
    H2load,
}

impl Peer {
    /// All peers, in the order of the report.
    pub(crate) const ALL: [Peer; 4] = [Peer::Nginx, Peer::Lighttpd, Peer::H2o, Peer::H2load];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Nginx => "nginx",
            Peer::Lighttpd => "lighttpd",
            Peer::H2o => "h2o",
            Peer::H2load => "h2load",
        }
    }

    /// Returns why it is not available, and how to get it.
    fn missing(self) -> String {
        let name = self.name();
        let package = if self == Peer::H2load { "nghttp2-client" } else { name };
        format!("{name} is not installed (apt-get install {package}, or --peer {name}=PATH)")
    }

    /// Finds the program: at the path that the user named, in `PATH`, or in Debian's directories for programs of root.
    /// The error is the reason why it is not available.
    pub(crate) fn find(self, bench: &Bench) -> Result<Tool, String> {
        let name = self.name();
        let named = bench.peer_paths.iter().find(|(peer, _)| peer == name).map(|(_, path)| path.clone());
        if named.as_deref() == Some(Path::new(LEFT_OUT)) {
            return Err(format!("{name} is excluded by --peer"));
        }
        let path = named.or_else(|| in_path(name)).ok_or_else(|| self.missing())?;
        let is_short = matches!(self, Peer::Nginx | Peer::Lighttpd);
        let about = about(&path, if is_short { "-V" } else { "--version" });
        let version = about.lines().next().unwrap_or("version unknown").trim().to_owned();
        Ok(Tool { path, version, about })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Path of the program; not part of a report.
    pub(crate) path: PathBuf,
    /// First line of its version output.
    pub(crate) version: String,
    /// Complete version output: build options and backends.
    pub(crate) about: String,
}

/// Validates the peers that the user named: the name must be known and the program executable.
pub(crate) fn check_named(named: &[(String, PathBuf)]) -> Result<(), Failure> {
    for (name, path) in named {
        if !Peer::ALL.iter().any(|peer| peer.name() == name) {
            let known: Vec<&str> = Peer::ALL.iter().map(|peer| peer.name()).collect();
            return Err(Failure::Usage(format!("--peer {name}: known peers are {}", known.join(", "))));
        }
        if path != Path::new(LEFT_OUT) && !is_program(path) {
            return Err(Failure::Usage(format!("--peer {name}={}: no such program", path.display())));
        }
    }
    Ok(())
}

/// Returns the peers for the head of a report: the version of each, or why it is missing.
pub(crate) fn facts(bench: &Bench) -> Vec<Fact> {
    let fact = |peer: Peer| {
        Fact::new(peer.name(), peer.find(bench).map_or_else(|missing| missing, |tool| tool.version))
    };
    Peer::ALL.map(fact).to_vec()
}

pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let listed = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&listed)
        .chain(fixed)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

/// Whether a path is an executable file.
pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Returns the version output of a program. Both streams are read, because programs differ in the stream and in the
/// exit status.
fn about(path: &Path, option: &str) -> String {
    let Ok(output) = Command::new(path).arg(option).stdin(Stdio::null()).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_found_by_name() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("no-such-program-of-ringroad"), None);
        // A directory and a file without execute permission are rejected.
        assert!(!is_program(Path::new("/")));
        assert!(!is_program(Path::new("/proc/version")));
    }

    #[test]
    fn a_missing_peer_is_reported_with_the_remedy() {
        assert_eq!(
            Peer::Lighttpd.missing(),
            "lighttpd is not installed (apt-get install lighttpd, or --peer lighttpd=PATH)"
        );
    }
}
