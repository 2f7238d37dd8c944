//! Tests of the limits on frames and streams without effect: floods must end the connection, and ordinary clients must not be
//! affected.

use super::client_tests::Client;
use super::tests::*;
use super::{ErrorCode, Fault, Limits, Session, Strain, hpack};

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
        let fault = (0..40_000).find_map(|_| {
            let len = peer.session.sendable(1).min(8 << 10);
            peer.session.push_data(1, len, false, &mut peer.out);
            peer.feed(&window(stream, 1)).err()
        });
        assert_eq!(fault, Some(Fault::Flood), "{stream}");
    }
}

/// A client may cancel any number of requests. While it receives the responses, further requests begin immediately at a low rate of
/// cancellation, and with a limited delay at a high rate; elapsed time ends the delay.
#[test]
fn cancelled_requests_delay_others_but_end_no_connection() {
    let mut head = Vec::new();
    hpack::push_status(&mut head, 200);
    let cancel = |peer: &mut Peer, number: u32, has_head: bool| {
        let stream = 2 * number + 1;
        peer.feed(&get(stream)).expect("a request");
        if has_head {
            peer.session.push_head(stream, &head, false, &mut peer.out);
            peer.session.push_data(stream, 100, false, &mut peer.out);
            peer.feed(&[window(0, 100), window(stream, 100)].concat()).expect("windows");
        }
        peer.feed(&reset(stream)).expect("a connection that continues");
        peer.session.release(stream, &mut peer.out);
        peer.session.start_delay().as_millis()
    };
    let mut peer = Peer::new();
    for number in 0..3000 {
        assert_eq!(cancel(&mut peer, number, number % 2 == 0), 0, "{number}");
        if number % 10 == 0 {
            peer.session.pass_time(1);
        }
    }
    for (has_head, free) in [(true, 64), (false, 16)] {
        let mut peer = Peer::new();
        assert_eq!(
            (0..2000).position(|number| cancel(&mut peer, number, has_head) > 0),
            Some(free + usize::from(has_head) * 3)
        );
        let delays: Vec<u128> = (2000..4000).map(|number| cancel(&mut peer, number, has_head)).collect();
        assert_eq!((delays.iter().max(), peer.session.strain()), (Some(&20), Strain::None));
        peer.session.pass_time(13);
        assert_eq!(peer.session.start_delay().as_millis(), 0);
    }
}

/// A client with a window of 511 bytes extends it after each frame of 256 bytes.
#[test]
fn a_download_through_a_small_window_is_not_a_flood() {
    let mut peer = Peer::new();
    peer.feed(&[setting(0x4, 511), get(1)].concat()).expect("a request");
    for _ in 0..8192 {
        let len = peer.session.sendable(1).min(256);
        peer.session.push_data(1, len, false, &mut peer.out);
        peer.feed(&[window(0, 256), window(1, 256)].concat()).expect("a download that continues");
        assert_eq!(peer.session.strain(), Strain::None);
    }
}

/// RFC 9113 section 5.1.2: a stream that was reset is closed, although the work for it has not ended.
#[test]
fn a_reset_stream_does_not_count_as_open() {
    let mut peer = Peer::new();
    for number in 0..128 {
        peer.feed(&get(2 * number + 1)).expect("a request");
    }
    peer.feed(&[reset(1), get(257)].concat()).expect("a request");
    assert_eq!(peer.resets(), []);
    peer.feed(&get(259)).expect("a request");
    assert_eq!(peer.resets(), [(259, ErrorCode::RefusedStream as u32)]);
}

/// A server that pings its idle clients every ten seconds.
#[test]
fn keepalive_pings_of_a_server_are_not_a_flood() {
    let mut client = Client::new(&[]);
    client.get();
    for _ in 0..5000 {
        client.session.pass_time(10);
        client.feed(&frame(PING, 0, 0, b"12345678")).expect("a connection that continues");
    }
}

/// A second stream with the same number would hide the first, so it is a fault of the caller.
#[test]
#[should_panic(expected = "a stream is opened once")]
fn a_stream_number_is_used_once() {
    let mut session = Session::new(Limits::default(), &mut Vec::new());
    session.open(1, true, None, ());
    session.open(1, true, None, ());
}
