//! What the `serve_*` suites share: which binary is under test, and what its name is on the wire.
//!
//! The suites describe nginx's behaviour, so they can be run against nginx itself: with
//! `RINGROAD_TEST_PEER=nginx` in the environment [`serve`] starts Debian's nginx, and a test that [`ours_only`]
//! marks is passed over. That is how an expectation is checked before the server is blamed for missing it.
//!
//! Not here: the harness itself, which is crate `testkit`.
#![allow(dead_code, reason = "each suite is a program of its own and uses a part")]

pub(crate) mod beside;
pub(crate) mod cache;
pub(crate) mod http2;
pub(crate) mod http2_origin;
pub(crate) mod tls;

use testkit::server::ServerBuilder;
use testkit::{Client, Server, nginx};

/// The binary that Cargo built for this test run.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// The environment variable that names another server to run the suites against.
const PEER_VARIABLE: &str = "RINGROAD_TEST_PEER";

/// Whether the suites run against Debian's nginx instead of the binary.
pub(crate) fn against_nginx() -> bool {
    std::env::var_os(PEER_VARIABLE).is_some_and(|peer| peer == "nginx")
}

/// Whether a test of what only this project promises can go on; says so when not.
pub(crate) fn ours_only(what: &str) -> bool {
    if against_nginx() {
        testkit::skip(format_args!("against nginx: {what}"));
    }
    !against_nginx()
}

/// The name that stands in the `Server` field and below error pages with `server_tokens off`.
pub(crate) fn server_name() -> &'static str {
    if against_nginx() { "nginx" } else { "ringroad" }
}

/// Starts the server under test with this configuration.
#[track_caller]
pub(crate) fn serve(conf: &str) -> Server {
    serve_with(conf, |builder| builder)
}

/// As [`serve`], with files and links that `prepare` makes first.
#[track_caller]
pub(crate) fn serve_with(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Server {
    if against_nginx() {
        return nginx::start_with(conf, prepare).expect("the suite was told to run against nginx");
    }
    prepare(Server::builder(BINARY).conf(conf)).start()
}

/// A configuration with one server on a port that the kernel picks; `http` goes before the server block.
pub(crate) fn one_server(http: &str, server: &str) -> String {
    format!(
        "worker_processes 1;\nevents {{}}\nhttp {{ {http}\nserver {{ listen 127.0.0.1:0;\n{server}\n}} }}\n"
    )
}

/// A connection to the first listener.
#[track_caller]
pub(crate) fn client(server: &Server) -> Client {
    Client::connect(server.addr(0))
}

/// Sends raw bytes on a connection of their own and returns the status of the answer, after which the server
/// must have closed the connection.
#[track_caller]
pub(crate) fn refused(server: &Server, bytes: impl AsRef<[u8]>) -> u16 {
    let mut client = client(server);
    client.send(bytes.as_ref());
    let response = client.response();
    assert_eq!(
        response.field("connection"),
        Some("close"),
        "to {:?}: {}",
        String::from_utf8_lossy(bytes.as_ref()),
        response.status
    );
    client.expect_end();
    response.status
}

/// Asserts that a server had nothing to complain of.
pub(crate) fn assert_no_errors(server: &Server) {
    let log = server.error_log();
    for level in ["[error]", "[crit]", "[alert]", "[emerg]"] {
        assert!(!log.contains(level), "{log}");
    }
}

/// Waits until what came before this call is older than so many seconds. Whether something is fresh goes by the clock's
/// full seconds, and nothing but the clock says when they are over.
#[track_caller]
pub(crate) fn until_stale(seconds: u64) {
    let end = testkit::date::now() + seconds + 1;
    let over = || (testkit::date::now() >= end).then_some(());
    testkit::wait::until("the clock", testkit::Deadline::default(), over).expect("it goes on");
}

/// The built-in page for a status, as nginx words it.
pub(crate) fn error_page(status: &str) -> String {
    let name = server_name();
    format!(
        "<html>\r\n<head><title>{status}</title></head>\r\n<body>\r\n<center><h1>{status}</h1></center>\r\n\
         <hr><center>{name}</center>\r\n</body>\r\n</html>\r\n"
    )
}

/// A program that is stopped with the test.
pub(crate) struct Running(pub(crate) std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
