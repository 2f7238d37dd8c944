//! PING frames to upstreams, which check whether a connection still works.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::start;
use crate::common::http2::{self, RESET, WINDOW};
use crate::common::http2_origin::Http2Origin;

/// A grpc-go server closes a connection with "too_many_pings" after three PINGs without a header section or DATA in between. A
/// cancelled call therefore causes no PING if the upstream has sent a frame shortly before.
#[test]
fn cancelled_calls_do_not_flood_the_upstream_with_pings() {
    let (tell, told) = channel();
    let app = Http2Origin::start(&[], move |conn| {
        for _ in 0..10 {
            if !conn.until(|conn| !conn.requests.is_empty()) {
                return;
            }
            conn.frame(WINDOW, 0, 0, &1u32.to_be_bytes());
            tell.send(()).expect("the test waits");
            if !conn.until(|conn| conn.requests.values().any(|asked| asked.reset.is_some())) {
                return;
            }
            // The next call may arrive before the reset.
            conn.requests.retain(|_, asked| asked.reset.is_none());
        }
        while let Some(asked) = conn.request() {
            let pings = conn.pings.to_string();
            conn.reply(asked.stream, 200, &[], pings.as_bytes());
        }
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    for _ in 0..10 {
        let stream = client.ask("/grpc/silent");
        told.recv().expect("a call");
        client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    }
    let pings: u32 = client.get("/grpc/count").text().parse().expect("a number");
    assert_eq!(pings, 0);
    assert_eq!(app.connections(), 1);
}

/// The upstream may be dead. If it is not, a third PING could make it close the connection of all calls.
#[test]
#[expect(clippy::disallowed_methods, reason = "the silence has no event")]
fn an_upstream_that_stays_silent_gets_two_pings_and_no_further_call() {
    let (tell, told) = channel();
    let app = Http2Origin::start(&[], move |conn| {
        while conn.until(|conn| !conn.requests.is_empty()) {
            tell.send(conn.pings).expect("the test waits");
            if !conn.until(|conn| conn.requests.values().any(|asked| asked.reset.is_some())) {
                return;
            }
            conn.requests.retain(|_, asked| asked.reset.is_none());
            tell.send(conn.pings).expect("the test waits");
        }
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    for (pings, connections) in [(0, 1), (1, 1), (2, 1), (0, 2)] {
        let stream = client.ask("/grpc/silent");
        let got = (told.recv().expect("a call"), app.connections());
        assert_eq!(got, (pings, connections));
        // Longer than the silence after which a cancelled call causes a PING.
        std::thread::sleep(Duration::from_secs(4));
        client.frame(RESET, 0, stream, &8u32.to_be_bytes());
        told.recv().expect("the end of the call");
    }
}
