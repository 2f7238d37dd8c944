//! Debian's nginx for comparisons with the server under test, if it is installed.
//!
//! [`start`] accepts the same configuration text and returns the same harness, so a comparison sends the same requests
//! to both servers. nginx cannot report the port that the kernel selects for `:0`, so free ports are inserted into the
//! text. The start is retried if another process has taken such a port.

use std::path::PathBuf;

use crate::conf_text::{with_http_default, with_ports};
use crate::ports::free_port;
use crate::server::{ListenAddr, Server, ServerBuilder};

/// Path of Debian's binary.
pub const BINARY: &str = "/usr/sbin/nginx";

/// The environment variable that names another binary, such as that of a newer version.
pub const VARIABLE: &str = "RINGROAD_TEST_NGINX";

/// Returns the path of the binary to start.
pub fn binary() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(BINARY), PathBuf::from)
}

/// Maximum number of start attempts if the selected ports are taken.
const ATTEMPTS: u32 = 5;

/// Returns the path of nginx. If nginx is not installed, this is reported and `None` returned.
pub fn installed() -> Option<PathBuf> {
    let binary = binary();
    if binary.exists() {
        return Some(binary);
    }
    let shown = binary.display();
    crate::engines::skip(format_args!("{shown} is not installed (apt-get install nginx-light)"));
    None
}

/// Starts nginx with this configuration. If nginx is not installed, or was built without a module that has one of the
/// directives, the reason is reported and `None` returned.
///
/// The addresses are those of the `:0` listeners, in the order of the text.
pub fn start(conf: &str) -> Option<Server> {
    start_with(conf, |builder| builder)
}

/// Like [`start`], with files and arguments that `prepare` adds to the builder.
pub fn start_with(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Option<Server> {
    let binary = installed()?;
    for attempt in 1.. {
        let mut picked = Vec::new();
        // Debian's default log is in /var/log/nginx, which an unprivileged nginx cannot open after a reload.
        let conf = with_http_default(conf, "access_log", "logs/access.log");
        let text = with_ports(&conf, || {
            let port = free_port();
            picked.push(ListenAddr::Tcp(([127, 0, 0, 1], port).into()));
            port
        });
        // `-e` prevents the error message of an unprivileged nginx about its compiled-in log.
        let builder = Server::builder(&binary).conf(&text).arg("-e").arg("logs/error.log").addresses(picked);
        match prepare(builder).try_start() {
            Ok(server) => return Some(server),
            Err(failure) if attempt < ATTEMPTS && failure.contains("Address already in use") => {}
            // The modules of nginx depend on the package.
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
