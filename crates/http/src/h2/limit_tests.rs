//! Tests of the limits on frames and streams without effect: which clients they end, and which they must not end.

use super::tests::*;
use super::{Fault, Limits};

/// A grpc-go client acknowledges each message of a server stream with WINDOW_UPDATE and PING, to estimate the bandwidth.
#[test]
fn a_stream_of_short_messages_is_not_a_flood() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    for _ in 0..5000 {
        peer.session.push_data(1, 10, false, &mut peer.out);
        peer.feed(&[window(0, 10), window(1, 10), frame(PING, 0, 0, b"12345678")].concat())
            .expect("a client that acknowledges messages");
    }
    // Windows that split a body into short frames earn no credit, whichever window it is.
    for (stream, other) in [(0, 1), (1, 0)] {
        let mut peer = Peer::with(Limits::default());
        peer.feed(&[get(1), window(other, 1 << 20)].concat()).expect("a request");
        let fault = (0..20_000).find_map(|_| {
            let len = peer.session.sendable(1).min(8 << 10);
            peer.session.push_data(1, len, false, &mut peer.out);
            peer.feed(&window(stream, 1)).err()
        });
        assert_eq!(fault, Some(Fault::Flood), "{stream}");
    }
}
