//! HTTP/3 with clients.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../pebble/mod.rs"]
mod pebble;

mod client;
mod hostile;
mod limits;
mod offers;
mod peers;
mod relay;
mod reloads;
mod requests;
mod transport;
mod tunnels;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::serve_with;
use common::tls::{Authority, files};
use testkit::server::ServerBuilder;
use testkit::{Server, TempDir};

/// Starts a server with a QUIC address at index 0. `directives` are those of its server block.
fn serve(threads: u32, directives: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Server {
    let authority = Authority::new("root");
    let own = authority.server("localhost");
    serve_with(&conf(threads, directives), |builder| {
        prepare(files(builder, "a", &own).text("conf/root.pem", &authority.pem))
    })
}

/// Returns the configuration of [`serve`].
fn conf(threads: u32, directives: &str) -> String {
    format!(
        "worker_processes {threads}; error_log logs/error.log info; events {{}} http {{ \
         log_format facts '$request_method $uri $status $body_bytes_sent $server_protocol $http3 $ssl_protocol'; \
         access_log logs/access.log facts; limit_req_zone $scheme zone=one:32k rate=1r/m; client_max_body_size 0; \
         server {{ listen 127.0.0.1:0 quic; ssl_certificate a.pem; ssl_certificate_key a.key; root html; \
         {directives} }} }}"
    )
}

/// Makes a directory in which the worker processes may write.
fn writable(data: &TempDir) -> PathBuf {
    let site = data.dir("site");
    std::fs::set_permissions(&site, std::fs::Permissions::from_mode(0o777)).expect("its permissions");
    site
}

/// Returns the QUIC address of a server.
fn address(server: &Server) -> SocketAddr {
    server.addr(0).tcp()
}
