//! Tests of the limits on frames and streams without effect: floods must end the connection, and ordinary clients must not be
//! affected.

use std::time::Duration;

use super::client_tests::Client;
use super::tests::*;
use super::{ErrorCode, Fault, HeadFault, Limits, Session, Strain, hpack};
use crate::request::ParseError;

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

/// A head that is too large is refused, even if its fields are table entries of one byte each.
#[test]
fn header_blocks_are_limited_by_their_decoded_size() {
    let long = "x".repeat(9000);
    let field = [LINE.as_slice(), &[("a", &long)]].concat();
    assert_eq!(asked(&field), Err(HeadFault::Refused(ParseError::FieldLineTooLong)));
    let mut bomb = line_and(&[]);
    bomb.extend([0x40, 1, b'a', 0x7f, 0x81, 0x1e]);
    bomb.extend([b'x'; 4000]);
    bomb.extend([0xbe; 10_000]);
    let mut peer = Peer::new();
    peer.feed(&frame(HEADERS, END | WHOLE, 1, &bomb)).expect("a connection that goes on");
    assert_eq!(peer.heads[0].1.as_ref().err(), Some(&HeadFault::Refused(ParseError::HeadTooLong)));
    assert!(peer.raw.len() <= 34 << 10, "{}", peer.raw.len());
}

/// Endless fragments: both their bytes and their number are limited.
#[test]
fn a_flood_of_fragments_ends_the_connection() {
    let wanted = Some((Fault::HeadTooLarge, ErrorCode::EnhanceYourCalm));
    for size in [0, 1, 16_000] {
        let mut peer = Peer::new();
        peer.feed(&frame(HEADERS, END, 1, &line_and(&[]))).expect("an incomplete header block");
        let fragment = frame(CONTINUATION, 0, 1, &vec![0; size]);
        let fault = (0..200).find_map(|_| peer.feed(&fragment).err());
        assert_eq!(fault.map(|fault| (fault, fault.code())), wanted, "{size}");
        assert!(peer.session.held_for_test() <= (67 << 10) + size, "{size}");
    }
}

/// Frames that cause work without effect.
#[test]
fn floods_of_frames_without_effect_end_the_connection() {
    let wanted = Some((Fault::Flood, ErrorCode::EnhanceYourCalm));
    for bytes in [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, 0, 0, &[]),
        frame(PRIORITY, 0, 1, &[0; 5]),
        window(1, 1),
        frame(DATA, 0, 1, &[]),
        frame(0xfe, 0, 0, &[]),
        frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1]),
        reset(1),
    ] {
        let mut peer = Peer::new();
        peer.feed(&post(1)).expect("a request");
        let is_free = |peer: &Peer| peer.session.strain() == Strain::None;
        let count = (0..2000).take_while(|_| peer.feed(&bytes).is_ok() && is_free(&peer)).count();
        assert!((900..=1000).contains(&count), "{count} of {bytes:?}");
        let count = (0..4000).position(|_| peer.feed(&bytes).is_err());
        assert!(count.is_some_and(|count| (1900..=2000).contains(&count)), "{count:?} of {bytes:?}");
        assert_eq!(peer.session.strain(), Strain::Ended);
        assert_eq!(peer.fault(&bytes), wanted);
    }
    // Time, bodies and responses replenish the budget.
    let mut peer = Peer::new();
    for round in 0..500 {
        let stream = 2 * round + 1;
        peer.feed(&[get(stream), window(stream, 1), window(0, 1), frame(PING, 0, 0, &[0; 8])].concat())
            .expect("responses replenish the budget");
        peer.respond(stream);
    }
    for _ in 0..100 {
        (0..50).for_each(|_| drop(peer.feed(&frame(PING, 0, 0, &[0; 8])).expect("time refills the budget")));
        peer.session.pass_time(5);
    }
}

/// A body whose windows open byte by byte: each WINDOW_UPDATE costs budget, and frames of one byte replenish none.
#[test]
fn window_updates_byte_by_byte_are_limited() {
    let mut peer = Peer::new();
    peer.feed(&[setting(0x4, 0), get(1)].concat()).expect("a request");
    let fault = (0..4000).find_map(|_| {
        let fault = peer.feed(&window(1, 1)).err();
        let len = peer.session.sendable(1);
        peer.session.push_data(1, len, false, &mut peer.out);
        fault
    });
    assert_eq!(fault, Some(Fault::Flood));
    // For sufficiently long frames the window may be opened any number of times.
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    for _ in 0..5000 {
        peer.session.push_data(1, 1024, false, &mut peer.out);
        peer.feed(&[window(1, 1024), window(0, 1024)].concat()).expect("long DATA refills the budget");
    }
}

/// Streams that are opened and immediately reset, by a caller that holds requests back as long as it must: few of them begin, and the
/// frames of the others count as a flood.
#[test]
fn rapid_resets_are_limited() {
    let mut peer = Peer::new();
    let mut begun = 0;
    let fault = (0..5000).find_map(|number| {
        let stream = 2 * number + 1;
        let fed = peer.feed(&get(stream)).err();
        let is_held = !peer.session.start_delay().is_zero();
        peer.session.hold(stream, is_held);
        begun += u32::from(!is_held);
        let fed = fed.or_else(|| peer.feed(&reset(stream)).err());
        peer.session.release(stream, &mut peer.out);
        fed
    });
    assert_eq!(fault.map(|fault| (fault, fault.code())), Some((Fault::Flood, ErrorCode::EnhanceYourCalm)));
    assert_eq!(begun, 17);
    // A client that cancels every other request is not a flood.
    let mut peer = Peer::new();
    for number in 0..1000 {
        let stream = 4 * number + 1;
        peer.feed(&[get(stream), get(stream + 2), reset(stream + 2)].concat())
            .expect("half of the requests are cancelled");
        peer.session.release(stream + 2, &mut peer.out);
        peer.respond(stream);
        assert_eq!(peer.session.start_delay(), Duration::ZERO);
    }
}
