//! Finding the programs of others.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::Fact;

/// In the place of a path: run as if the peer were not installed, to see what others would see.
const LEFT_OUT: &str = "none";

/// What the suite knows to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A web server in our own language.
    Nginx,
    /// The web server of write-up 001.
    Lighttpd,
    /// A web server that is quick with small files.
    H2o,
    /// Checks the figures of `bench disk`.
    Fio,
    /// The generator of `bench h2` and `bench grpc`.
    H2load,
}

impl Peer {
    /// In the order of the report.
    pub(crate) const ALL: [Peer; 5] = [Peer::Nginx, Peer::Lighttpd, Peer::H2o, Peer::Fio, Peer::H2load];

    /// Of the program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Nginx => "nginx",
            Peer::Lighttpd => "lighttpd",
            Peer::H2o => "h2o",
            Peer::Fio => "fio",
            Peer::H2load => "h2load",
        }
    }

    /// Of Debian's package.
    fn package(self) -> &'static str {
        if self == Peer::H2load { "nghttp2-client" } else { self.name() }
    }

    /// How each is asked for its version and how it was built.
    fn version_option(self) -> &'static str {
        match self {
            Peer::Nginx | Peer::Lighttpd => "-V",
            Peer::Fio | Peer::H2o | Peer::H2load => "--version",
        }
    }

    /// Looks for it where the user said, then in `PATH` and where Debian keeps what only root is expected to run.
    pub(crate) fn find(self, bench: &Bench) -> Result<Tool, Missing> {
        let named =
            bench.peer_paths.iter().find(|(name, _)| name == self.name()).map(|(_, path)| path.clone());
        if named.as_deref() == Some(Path::new(LEFT_OUT)) {
            return Err(Missing { peer: self, is_left_out: true });
        }
        let found = named.or_else(|| in_path(self.name()));
        let path = found.ok_or(Missing { peer: self, is_left_out: false })?;
        let about = about(&path, self.version_option());
        let version = about.lines().next().unwrap_or("of an unknown version").trim().to_owned();
        Ok(Tool { peer: self, path, version, about })
    }
}

/// A program that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Which one it is.
    pub(crate) peer: Peer,
    /// Where it is; not part of a report.
    pub(crate) path: PathBuf,
    /// The first line of what it says of itself.
    pub(crate) version: String,
    /// All of it: options it was built with, backends it has.
    pub(crate) about: String,
}

/// A program that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    peer: Peer,
    /// The user said so.
    is_left_out: bool,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_left_out {
            return f.write_str("left out by --peer");
        }
        let (name, package) = (self.peer.name(), self.peer.package());
        write!(f, "{name} is not installed (apt-get install {package}, or --peer {name}=PATH)")
    }
}

/// Checks what the user said about peers: a name that is known, a program that can be executed.
pub(crate) fn check_named(named: &[(String, PathBuf)]) -> Result<(), Failure> {
    for (name, path) in named {
        if !Peer::ALL.iter().any(|peer| peer.name() == name) {
            let known: Vec<&str> = Peer::ALL.iter().map(|peer| peer.name()).collect();
            return Err(Failure::Usage(format!("--peer {name}: known are {}", known.join(", "))));
        }
        if path != Path::new(LEFT_OUT) && !is_program(path) {
            return Err(Failure::Usage(format!("--peer {name}={}: no such program", path.display())));
        }
    }
    Ok(())
}

/// The peers for the head of a report: the version of each, or why there is none.
pub(crate) fn facts(bench: &Bench) -> Vec<Fact> {
    let fact = |peer: Peer| {
        let value = peer.find(bench).map_or_else(|missing| missing.to_string(), |tool| tool.version);
        Fact::new(peer.name(), value)
    };
    Peer::ALL.map(fact).to_vec()
}

/// Looks for a program by its name.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let listed = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&listed)
        .chain(fixed)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

/// A file with a permission to execute it.
fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Its description of itself; both streams, because programs differ in the stream and in the exit status.
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
    fn programs_are_found_by_name_and_nothing_else_is() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("no-such-program-of-ringroad"), None);
        // A directory and a file that cannot be executed are no programs.
        assert!(!is_program(Path::new("/")));
        assert!(!is_program(Path::new("/proc/version")));
    }

    #[test]
    fn a_peer_that_is_named_has_to_be_there() {
        let named = |name: &str, path: &str| check_named(&[(name.to_owned(), PathBuf::from(path))]);
        assert!(named("nginx", "/bin/sh").is_ok());
        assert!(named("nginx", "none").is_ok());
        for (name, path) in [("nginx", "/nowhere/nginx"), ("apache", "/bin/sh")] {
            let failure = named(name, path).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{failure}");
        }
    }

    #[test]
    fn a_missing_peer_says_what_to_do() {
        let text = Missing { peer: Peer::Lighttpd, is_left_out: false }.to_string();
        assert_eq!(text, "lighttpd is not installed (apt-get install lighttpd, or --peer lighttpd=PATH)");
    }
}
