//! Tests of the limits on frames and streams without effect: floods must end the connection, and ordinary clients must not be
//! affected.

use super::client_tests::Client;
use super::tests::*;
use super::{Fault, Limits, hpack};

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

/// A client may cancel streams at a low rate for any time, after it has received a part of each response. Elapsed time earns
/// credit; the header section of a response does not. It costs a client nothing, so rapid resets after header sections must
/// remain limited.
#[test]
fn slowly_cancelled_streams_are_not_a_flood() {
    let mut head = Vec::new();
    hpack::push_status(&mut head, 200);
    let cancel = |peer: &mut Peer, number: u32| {
        let stream = 2 * number + 1;
        peer.feed(&get(stream)).expect("a request");
        peer.session.push_head(stream, &head, false, &mut peer.out);
        peer.session.push_data(stream, 100, false, &mut peer.out);
        let fed = peer.feed(&[window(0, 100), reset(stream)].concat());
        peer.session.release(stream, &mut peer.out);
        fed.err()
    };
    let mut peer = Peer::new();
    for number in 0..3000 {
        assert_eq!(cancel(&mut peer, number), None, "{number}");
        if number % 10 == 0 {
            peer.session.pass_time(1);
        }
    }
    let mut peer = Peer::new();
    assert_eq!((0..200).find_map(|number| cancel(&mut peer, number)), Some(Fault::ResetFlood));
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
