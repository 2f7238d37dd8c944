//! Detection of peer programs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    /// A proxy, which serves no files.
    Haproxy,
    /// Verifies the figures of `bench disk`.
    Fio,
    /// Shows the system calls of `bench disk`.
    Strace,
    /// The load generator of `bench h2` and `bench grpc`.
    H2load,
}

impl Peer {
    /// All peers, in the order of the report.
    pub(crate) const ALL: [Peer; 7] =
        [Peer::Nginx, Peer::Lighttpd, Peer::H2o, Peer::Haproxy, Peer::Fio, Peer::Strace, Peer::H2load];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Nginx => "nginx",
            Peer::Lighttpd => "lighttpd",
            Peer::H2o => "h2o",
            Peer::Haproxy => "haproxy",
            Peer::Fio => "fio",
            Peer::Strace => "strace",
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
    pub(crate) fn find(self, named: &[(Peer, PathBuf)]) -> Result<Tool, String> {
        let name = self.name();
        let named = named.iter().find(|(peer, _)| *peer == self).map(|(_, path)| path.clone());
        if named.as_deref() == Some(Path::new(LEFT_OUT)) {
            return Err(format!("{name} is excluded by --peer"));
        }
        let path = named.or_else(|| in_path(name)).ok_or_else(|| self.missing())?;
        let option = match self {
            Peer::Nginx | Peer::Lighttpd => "-V",
            Peer::Haproxy => "-v",
            _ => "--version",
        };
        let about = about(&path, option);
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

/// Parses `NAME=PATH` of `--peer`: the path of a program, or [`LEFT_OUT`].
pub(crate) fn parse_named(text: &str) -> Result<(Peer, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PATH, such as nginx=/opt/nginx/sbin/nginx")?;
    let Some(peer) = Peer::ALL.into_iter().find(|peer| peer.name() == name) else {
        return Err(format!("known peers are {}", Peer::ALL.map(Peer::name).join(", ")));
    };
    let path = if path == LEFT_OUT { PathBuf::from(path) } else { parse_program(path)? };
    Ok((peer, path))
}

/// Parses the path of a program. The result is absolute, because programs are started in other working directories.
pub(crate) fn parse_program(text: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    if is_program(&path) { Ok(path) } else { Err(format!("{text}: no such program")) }
}

/// Returns the peers for the head of a report: the version of each, or why it is missing. The second list has a sentence with the
/// remedy for each one that is not installed.
pub(crate) fn facts(named: &[(Peer, PathBuf)]) -> (Vec<Fact>, Vec<String>) {
    let (mut facts, mut missing) = (Vec::new(), Vec::new());
    for peer in Peer::ALL {
        let found = peer.find(named).map(|tool| tool.version);
        if found.is_err() && !named.iter().any(|(one, _)| *one == peer) {
            missing.push(peer.missing());
        }
        facts.push(Fact::new(peer.name(), found.unwrap_or_else(|reason| reason)));
    }
    (facts, missing)
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
fn is_program(path: &Path) -> bool {
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
