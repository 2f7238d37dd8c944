//! Tests of section 8 of RFC 9113: the fields, bodies and trailers of requests.

use super::tests::*;
use super::*;
use crate::fields::{HeaderId, Method};
use crate::request::{Head, ParseError, Policy};

/// RFC 9113 section 8.1: trailers end a request, have no pseudo-header fields, and obey the rules for fields.
#[test]
fn trailers_end_a_request() {
    let mut peer = Peer::new();
    let trailers = |flags: u8, fields: &[(&str, &str)]| frame(HEADERS, flags | WHOLE, 1, &block(fields));
    let bytes = [post(1), frame(DATA, 0, 1, b"xy"), trailers(END, &[("a", "b")])].concat();
    let events = peer.feed(&bytes).expect("a request");
    assert_eq!(events[2], Event::Data { stream: 1, start: 0, end: 0, ends: true });
    assert_eq!(peer.session.take_trailers(), [(b"a".to_vec(), b"b".to_vec())]);
    assert_eq!(peer.session.take_trailers(), [], "once");
    for bytes in [
        trailers(0, &[("a", "b")]),
        trailers(END, &[(":path", "/")]),
        trailers(END, &[("A", "b")]),
        trailers(END, &[("a", "b\n")]),
        trailers(END, &[("te", "x")]),
        trailers(END, &[("transfer-encoding", "x")]),
    ] {
        let mut peer = Peer::new();
        peer.feed(&[post(1), bytes].concat()).expect("a connection that goes on");
        assert_eq!(peer.resets(), [(1, ErrorCode::Protocol as u32)]);
    }
}

/// RFC 9110 section 6.5.1: no trailer changes how the message is processed. The decoded length of trailers is limited, even if the block is
/// short.
#[test]
fn trailers_are_limited() {
    let mut peer = Peer::new();
    let trailers = |fields: &[(&str, &str)]| frame(HEADERS, END | WHOLE, 1, &block(fields));
    let all = [("content-length", "1"), ("te", "trailers"), ("a", "b"), ("host", "h"), ("a", "c")];
    peer.feed(&[post(1), trailers(&all)].concat()).expect("a request");
    let kept = peer.session.take_trailers();
    assert_eq!(kept.iter().map(|(_, value)| value.as_slice()).collect::<Vec<_>>(), [b"b", b"c"]);
    let (half, most) = ("x".repeat(4_000), "x".repeat(8_190));
    for (fields, is_good) in
        [(vec![("a", &half); 2], true), (vec![("a", &half); 3], false), (vec![("ab", &most)], true)]
    {
        let mut peer = Peer::new();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        peer.feed(&[post(1), trailers(&fields)].concat()).expect("a connection that goes on");
        assert_eq!((peer.resets().is_empty(), peer.session.take_trailers().is_empty()), (is_good, !is_good));
    }
}

/// RFC 9113 section 8.1.1: a body must have the announced length.
#[test]
fn a_body_must_have_the_announced_length() {
    let request = frame(HEADERS, WHOLE, 1, &line_and(&[("content-length", "3")]));
    let trailers = frame(HEADERS, END | WHOLE, 1, &block(&[("a", "b")]));
    let data = |flags, bytes: &[u8]| frame(DATA, flags, 1, bytes);
    for (bytes, is_good) in [
        (data(END, b"abc"), true),
        ([data(0, b"ab"), data(END, b"c")].concat(), true),
        ([data(0, b"abc"), trailers.clone()].concat(), true),
        (data(END, b"ab"), false),
        (data(0, b"abcd"), false),
        (data(END, b""), false),
        ([data(0, b"ab"), trailers].concat(), false),
    ] {
        let mut peer = Peer::new();
        peer.feed(&[request.clone(), bytes].concat()).expect("a connection that goes on");
        let wanted = if is_good { vec![] } else { vec![(1, ErrorCode::Protocol as u32)] };
        assert_eq!(peer.resets(), wanted);
    }
}

/// RFC 9113 sections 8.3 and 8.3.1: pseudo-header fields.
#[test]
fn pseudo_fields_must_be_first_unique_and_known() {
    let [method, scheme, path, authority] = LINE;
    let malformed = |malformed| Err(HeadFault::Malformed(malformed));
    for (fields, wanted) in [
        (vec![method, scheme, path, authority], Ok(())),
        (vec![authority, path, scheme, method, ("a", "b")], Ok(())),
        (vec![method, scheme, path, ("host", "here")], Ok(())),
        (vec![method, scheme, path], Err(HeadFault::Refused(ParseError::MissingHost))),
        (vec![scheme, path, authority], malformed(Malformed::Missing)),
        (vec![method, path, authority], malformed(Malformed::Missing)),
        (vec![method, scheme, authority], malformed(Malformed::Missing)),
        (vec![], malformed(Malformed::Missing)),
        (vec![method, method, scheme, path, authority], malformed(Malformed::Pseudo)),
        (vec![method, scheme, path, path, authority], malformed(Malformed::Pseudo)),
        (vec![method, scheme, path, ("a", "b"), authority], malformed(Malformed::Pseudo)),
        (vec![method, scheme, path, authority, (":status", "200")], malformed(Malformed::Pseudo)),
        (vec![method, scheme, path, authority, (":other", "x")], malformed(Malformed::Pseudo)),
        (vec![method, scheme, (":path", ""), authority], malformed(Malformed::Path)),
        (vec![method, scheme, (":path", "a"), authority], malformed(Malformed::Path)),
        (vec![method, scheme, (":path", "*"), authority], malformed(Malformed::Path)),
        (vec![method, scheme, (":path", "http://here/"), authority], malformed(Malformed::Path)),
        (vec![(":method", "OPTIONS"), scheme, (":path", "*"), authority], Ok(())),
        (vec![method, scheme, (":path", "/a "), authority], malformed(Malformed::Value)),
        (vec![method, scheme, (":path", "/\r\n"), authority], malformed(Malformed::Value)),
        (vec![method, scheme, path, (":authority", "here\0")], malformed(Malformed::Value)),
        (vec![method, (":scheme", ""), path, authority], malformed(Malformed::Scheme)),
        (vec![method, (":scheme", "1x"), path, authority], malformed(Malformed::Scheme)),
        (
            vec![method, scheme, (":path", "/ x"), authority],
            Err(HeadFault::Refused(ParseError::InvalidTarget)),
        ),
        (
            vec![(":method", "G T"), scheme, path, authority],
            Err(HeadFault::Refused(ParseError::InvalidMethod)),
        ),
        (vec![method, scheme, path, authority, ("host", "here")], Ok(())),
        (vec![method, scheme, path, authority, ("host", "there")], malformed(Malformed::Host)),
    ] {
        assert_eq!(asked(&fields), wanted, "{fields:?}");
    }
}

/// RFC 9113 section 8.5: CONNECT has only a method and an authority; tunnels are not enabled here.
#[test]
fn connect_has_only_an_authority() {
    let connect = (":method", "CONNECT");
    let refused = Err(HeadFault::Refused(ParseError::ConnectRefused));
    assert_eq!(asked(&[connect, (":authority", "here:443")]), refused);
    let wanted = Err(HeadFault::Malformed(Malformed::Missing));
    assert_eq!(asked(&[connect, (":authority", "here:443"), (":path", "/")]), wanted);
    assert_eq!(asked(&[connect, (":authority", "here:443"), (":scheme", "http")]), wanted);
}

/// RFC 8441 section 4: with `:protocol` there are a scheme and a path, and the request becomes an HTTP/1 upgrade request.
#[test]
fn extended_connect_becomes_an_upgrade_request() {
    let all = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "here"),
    ];
    let (mut head, mut raw, mut scratch, policy) =
        (Head::new(), Vec::new(), Scratch::default(), Policy::default());
    let mut reader = HeadReader::new(&mut scratch, &mut head, &mut raw, &policy);
    all.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes()));
    assert_eq!(reader.finish(false), Ok(()));
    assert_eq!((head.method(), head.request_uri(&raw)), (Method::Get, &b"/chat"[..]));
    assert_eq!(head.get(&raw, HeaderId::Upgrade), Some(&b"websocket"[..]));
    assert!(!head.body().has_body(), "the following bytes are not a body");
    let key = head.named(&raw, b"sec-websocket-key").next().expect("a key").to_vec();
    assert!(key.len() == 24 && key.ends_with(b"=="), "{}", key.escape_ascii());
    let wanted = Err(HeadFault::Malformed(Malformed::Missing));
    assert_eq!(asked(&[all[0], all[1], all[2], all[4]]), wanted, "no path");
    assert_eq!(asked(&[all[0], all[1], all[3], all[4]]), wanted, "no scheme");
    let wanted = Err(HeadFault::Malformed(Malformed::Pseudo));
    assert_eq!(asked(&[(":method", "GET"), all[1], all[2], all[3], all[4]]), wanted, "no CONNECT");
}

/// RFC 9113 sections 8.2.1 and 8.2.2: names, values, and connection-specific fields.
#[test]
fn fields_must_obey_the_rules_of_http2() {
    let malformed = |malformed| Err(HeadFault::Malformed(malformed));
    for (field, wanted) in [
        (("a", "b"), Ok(())),
        (("te", "trailers"), Ok(())),
        (("a", ""), Ok(())),
        (("A", "b"), malformed(Malformed::Name)),
        (("", "b"), malformed(Malformed::Name)),
        (("a b", "b"), malformed(Malformed::Name)),
        (("a:b", "b"), malformed(Malformed::Name)),
        (("a\u{e4}", "b"), malformed(Malformed::Name)),
        (("a\r\n", "b"), malformed(Malformed::Name)),
        (("a", "b\r\nc: d"), malformed(Malformed::Value)),
        (("a", "b\0"), malformed(Malformed::Value)),
        (("a", " b"), malformed(Malformed::Value)),
        (("a", "b\t"), malformed(Malformed::Value)),
        (("connection", "close"), malformed(Malformed::Connection)),
        (("proxy-connection", "close"), malformed(Malformed::Connection)),
        (("keep-alive", "1"), malformed(Malformed::Connection)),
        (("transfer-encoding", "chunked"), malformed(Malformed::Connection)),
        (("upgrade", "h2c"), malformed(Malformed::Connection)),
        (("te", "gzip"), malformed(Malformed::Connection)),
        (("content-length", "1x"), Err(HeadFault::Refused(ParseError::InvalidContentLength))),
    ] {
        let fields: Vec<_> = LINE.into_iter().chain([field]).collect();
        assert_eq!(asked(&fields), wanted, "{field:?}");
    }
}

/// RFC 9113 section 8.2.3: several cookie fields are joined.
#[test]
fn cookies_are_joined() {
    let mut peer = Peer::new();
    let fields = line_and(&[("cookie", "a=b"), ("x", "y"), ("cookie", "c=d")]);
    peer.feed(&frame(HEADERS, END | WHOLE, 1, &fields)).expect("a request");
    let head = peer.heads[0].1.as_ref().expect("a good head");
    let cookies: Vec<_> = head.all(&peer.raw, HeaderId::Cookie).collect();
    assert_eq!(cookies, [b"a=b; c=d"]);
    assert_eq!(head.get(&peer.raw, HeaderId::Host), Some(&b"here"[..]));
    assert_eq!(head.request_uri(&peer.raw), b"/a?b");
}
