//! Shared by the tests of process control: the binary, small configurations, one request.
#![allow(dead_code, reason = "each test file uses a part of it")]

use testkit::{Client, Deadline, ListenAddr, Server};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringroad");

/// Returns the configuration of a server with one address that responds to everything with `text`.
pub(crate) fn site(main: &str, text: &str) -> String {
    format!(
        "{main} events {{}} http {{ access_log off; server {{ listen 127.0.0.1:0; \
         location / {{ return 200 {text}; }} }} }}"
    )
}

/// Returns the body of one request on a separate connection.
pub(crate) fn ask(address: &ListenAddr) -> String {
    Client::connect(address).get("/").text()
}

/// Waits until the response is `text`, as after a reload.
pub(crate) fn wait_for_answer(server: &Server, text: &str) {
    let answered =
        testkit::wait::until(text, Deadline::default(), || (ask(server.addr(0)) == text).then_some(()));
    answered.unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
}

/// Waits until a condition is true.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let outcome = testkit::wait::until(what, Deadline::default(), || holds().then_some(()));
    outcome.unwrap_or_else(|late| panic!("{late}"));
}
