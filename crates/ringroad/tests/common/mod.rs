//! Shared by the suites: the choice of the binary under test, and its name in responses.
//!
//! The tests describe nginx's behaviour, so they can be run against nginx itself: with `RINGROAD_TEST_PEER=nginx` in
//! the environment [`serve`] starts Debian's nginx, and a test marked by [`ours_only`] is skipped. This verifies an
//! expectation before a failure is regarded as the server's.
//!
//! The test harness itself is crate `testkit`.
#![allow(dead_code, reason = "each suite is a program of its own and uses a part")]

pub(crate) mod beside;
pub(crate) mod cache;
pub(crate) mod http2;
pub(crate) mod http2_origin;
pub(crate) mod load;
pub(crate) mod tls;

use testkit::server::ServerBuilder;
use testkit::{Client, Server, nginx};

/// Path of the binary that Cargo built for this test run.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// Environment variable that names another server to run the tests against.
const PEER_VARIABLE: &str = "RINGROAD_TEST_PEER";

/// Returns whether the tests run against Debian's nginx instead of the binary.
pub(crate) fn against_nginx() -> bool {
    std::env::var_os(PEER_VARIABLE).is_some_and(|peer| peer == "nginx")
}

/// Returns whether a test of a feature specific to this project may run; prints a line if not.
pub(crate) fn ours_only(what: &str) -> bool {
    if against_nginx() {
        testkit::skip(format_args!("against nginx: {what}"));
    }
    !against_nginx()
}

/// Returns the name in the `Server` field and on error pages with `server_tokens off`.
pub(crate) fn server_name() -> &'static str {
    if against_nginx() { "nginx" } else { "ringroad" }
}

/// Starts the server under test with this configuration.
#[track_caller]
pub(crate) fn serve(conf: &str) -> Server {
    serve_with(conf, |builder| builder)
}

/// Like [`serve`], with files and links that `prepare` creates first.
#[track_caller]
pub(crate) fn serve_with(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Server {
    if against_nginx() {
        return nginx::start_with(conf, prepare).expect("RINGROAD_TEST_PEER=nginx needs an installed nginx");
    }
    prepare(Server::builder(BINARY).conf(conf)).start()
}

/// Returns a configuration with one server on a port that the kernel assigns; `http` is inserted before the server
/// block.
pub(crate) fn one_server(http: &str, server: &str) -> String {
    format!(
        "worker_processes 1;\nevents {{}}\nhttp {{ {http}\nserver {{ listen 127.0.0.1:0;\n{server}\n}} }}\n"
    )
}

/// Connects to the first listener.
#[track_caller]
pub(crate) fn client(server: &Server) -> Client {
    Client::connect(server.addr(0))
}

/// Sends bytes on a separate connection and returns the response's status; checks that the server then closes the
/// connection.
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

/// Asserts that the server has logged no errors.
pub(crate) fn assert_no_errors(server: &Server) {
    let log = server.error_log();
    for level in ["[error]", "[crit]", "[alert]", "[emerg]"] {
        assert!(!log.contains(level), "{log}");
    }
}

/// Waits until everything received before this call is older than this many seconds. Freshness is computed in full
/// seconds of the clock, so only the clock can be waited for.
#[track_caller]
pub(crate) fn until_stale(seconds: u64) {
    let end = testkit::date::now() + seconds + 1;
    let over = || (testkit::date::now() >= end).then_some(());
    testkit::wait::until("the clock", testkit::Deadline::default(), over).expect("it goes on");
}

/// Returns the built-in page for a status, with nginx's text.
pub(crate) fn error_page(status: &str) -> String {
    let name = server_name();
    format!(
        "<html>\r\n<head><title>{status}</title></head>\r\n<body>\r\n<center><h1>{status}</h1></center>\r\n\
         <hr><center>{name}</center>\r\n</body>\r\n</html>\r\n"
    )
}

/// A program that is killed when the value is dropped.
pub(crate) struct Running(pub(crate) std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
