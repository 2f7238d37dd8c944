//! Panics of a module: what the client, the logs and the counters show.

use std::sync::{Arc, LazyLock};

use crate::support::Site;
use exchange::filter::{BodyFilter, Output};
use exchange::module::{Module, ModuleTable};
use exchange::request::Request;
use site::declaration::Declaration;
use transfer::coding::CodingError;

/// A module with a fault at each step of a response, selected by the query.
static FAULTY: Module = Module {
    add_to_plan: |_, _, plan| {
        plan.filter(Arc::new(()), |(), request| match &request.args[..] {
            b"head" => panic!("a fault of a header filter"),
            b"body" => {
                request.response.becomes_another(true);
                request.response.filters.push(Box::new(Faulty { passed: 0 }));
            }
            _ => {}
        });
        plan.log(Arc::new(()), |(), request| assert!(request.args != b"log", "a fault of a log"));
    },
    ..Module::of(Declaration::named("faulty"))
};

/// A stage that passes the first 200 000 bytes, most of which are sent.
struct Faulty {
    passed: usize,
}

impl BodyFilter for Faulty {
    fn push(&mut self, _: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        self.passed += input.len();
        assert!(self.passed < 200_000, "a fault after {} bytes", self.passed);
        out.extend(input);
        Ok(input.len())
    }

    fn finish(&mut self, _: &mut Request, _: &mut Output) -> Result<(), CodingError> {
        Ok(())
    }
}

fn modules() -> &'static ModuleTable {
    static TABLE: LazyLock<ModuleTable> =
        LazyLock::new(|| ModuleTable::new(&[modules::all().modules(), &[&FAULTY]]));
    &TABLE
}

const HTTP: &str =
    "log_format short '$request_uri $status [$request_completion]'; access_log access.log short;
    server { listen 127.0.0.1:PORT; root .; location = /metrics { metrics; access_log off; } }";

/// Returns the bytes up to the end of the connection.
fn reply(site: &Site, request: &[u8]) -> Vec<u8> {
    site.client().send(request).read_to_end()
}

/// Returns the number of panics as the metrics show it.
fn panics(site: &Site) -> u64 {
    let page = site.text("/metrics");
    let number = page.lines().find_map(|line| line.strip_prefix("ringroad_panics_total "));
    number.expect("it is counted").parse().expect("a number")
}

#[test]
fn a_panic_ends_a_response_with_an_alert_a_count_and_an_access_line() {
    let site = Site::start_with_modules(modules(), "panics", "", HTTP);
    site.folder.write("file", vec![b'x'; 300_000]);
    let before = panics(&site);
    // The header section was not sent: the connection just ends.
    assert_eq!(reply(&site, b"GET /file?head HTTP/1.1\r\nHost: a\r\n\r\n"), b"");
    // A part of the body was sent, and no last chunk.
    let cut = reply(&site, b"GET /file?body HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(cut.starts_with(b"HTTP/1.1 200 ") && !cut.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", cut.len());
    assert_eq!(site.status("/file"), 200, "the thread continues");
    // Other tests of this process may panic too.
    assert!(panics(&site) >= before + 2);
    let lines = site.lines("access.log", 3);
    assert_eq!(lines, ["/file?head 500 []", "/file?body 500 []", "/file 200 [OK]"]);
    let errors = site.lines("error.log", 2);
    for (line, cause, target) in
        [(&errors[0], "a fault of a header filter", "?head"), (&errors[1], "a fault after ", "?body")]
    {
        let about = format!("request: \"GET /file{target} HTTP/1.1\", host: \"a\"");
        assert!(line.contains(" [alert] ") && line.contains(cause) && line.contains(&about), "{line}");
        assert!(line.contains("panics.rs:"), "{line}");
    }
}

#[test]
fn a_panic_of_a_log_is_reported_without_a_second_access_line() {
    let site = Site::start_with_modules(modules(), "panics", "", HTTP);
    site.folder.write("file", b"x");
    let _ = reply(&site, b"GET /file?log HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(site.status("/file"), 200, "the thread continues");
    assert_eq!(site.lines("access.log", 2), ["/file?log 200 [OK]", "/file 200 [OK]"]);
    let errors = site.lines("error.log", 1);
    assert!(errors[0].contains(" [alert] ") && errors[0].contains("a fault of a log"), "{}", errors[0]);
}
