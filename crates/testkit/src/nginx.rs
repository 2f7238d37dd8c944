//! Debian's nginx beside the server under test, if it is installed.
//!
//! [`start`] takes the same configuration text and answers with the same harness, so a comparison sends one script to
//! both. nginx cannot report its port for `:0`: free ports are picked and written in, and the start is repeated when
//! another process has taken one.

use std::net::TcpListener;
use std::path::PathBuf;

use crate::conf_text::{with_http_default, with_ports};
use crate::server::{ListenAddr, Server, ServerBuilder};

/// Where Debian installs it.
pub const BINARY: &str = "/usr/sbin/nginx";

/// Names another one, such as a newer version.
pub const VARIABLE: &str = "RINGROAD_TEST_NGINX";

/// The one that is started.
pub fn binary() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(BINARY), PathBuf::from)
}

/// How often a start is tried when the picked ports are taken meanwhile.
const ATTEMPTS: u32 = 5;

/// Starts nginx with this configuration, or prints the reason on standard error and returns `None`: it is not
/// installed, or was built without a module that has one of the directives.
///
/// The addresses are those of the `:0` listeners, in the order of the text.
pub fn start(conf: &str) -> Option<Server> {
    start_with(conf, |builder| builder)
}

/// As [`start`], with files and arguments that `prepare` adds to the builder.
pub fn start_with(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Option<Server> {
    let binary = binary();
    if !binary.exists() {
        let shown = binary.display();
        crate::engines::skip(format_args!("{shown} is not installed (apt-get install nginx-light)"));
        return None;
    }
    for attempt in 1.. {
        let mut picked = Vec::new();
        // Debian's default lies in /var/log/nginx, which an unprivileged nginx cannot open after a reload.
        let conf = with_http_default(conf, "access_log", "logs/access.log");
        let text = with_ports(&conf, || {
            let port = free_port();
            picked.push(ListenAddr::Tcp(([127, 0, 0, 1], port).into()));
            port
        });
        // `-e` keeps an unprivileged nginx from complaining about its compiled-in log.
        let builder = Server::builder(&binary).conf(&text).arg("-e").arg("logs/error.log").addresses(picked);
        match prepare(builder).try_start() {
            Ok(server) => return Some(server),
            Err(failure) if attempt < ATTEMPTS && failure.contains("Address already in use") => {}
            // Its modules depend on the package.
            Err(failure) if failure.contains("unknown directive") => {
                crate::engines::skip(format_args!(
                    "{} was built without a module of this test:\n{failure}",
                    binary.display()
                ));
                return None;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    None
}

/// A port that was free just before.
pub fn free_port() -> u16 {
    let probe = TcpListener::bind(("127.0.0.1", 0));
    let port = probe.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.unwrap_or_else(|error| panic!("no free port on loopback: {error}"))
}
