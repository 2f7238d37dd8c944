//! The DNS server, with manually encoded queries.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use testkit::Gate;
use testkit::dns::{Answer, DnsServer, Kind, Record};

/// Encodes a query with recursion desired and an EDNS record, as resolvers send it.
fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out = [id, 0x0100, 1, 0, 0, 1].map(u16::to_be_bytes).concat();
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend([kind, 1].map(u16::to_be_bytes).concat());
    out.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    out
}

fn send_query(server: &DnsServer, id: u16, name: &str, kind: u16) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports");
    socket.connect(server.addr()).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(180))).expect("no zero");
    socket.send(&query(id, name, kind)).expect("it is sent");
    socket
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut out = vec![0; 2000];
    let count = socket.recv(&mut out).expect("a response arrives");
    out.truncate(count);
    out
}

fn udp(server: &DnsServer, name: &str, kind: u16) -> Vec<u8> {
    receive(&send_query(server, 7, name, kind))
}

/// Returns response code and number of records.
fn outcome(answer: &[u8]) -> (u8, u8) {
    (answer[3] & 15, answer[7])
}

#[test]
fn addresses_have_their_ttl_and_can_change() {
    let server = DnsServer::start();
    server.set_addresses("A.example", &["127.0.0.1", "127.0.0.2", "::1"], 300);
    let answer = udp(&server, "a.EXAMPLE", 1);
    assert_eq!(answer[..2], [0, 7]);
    assert_eq!(outcome(&answer), (0, 2));
    assert!(answer.ends_with(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 127, 0, 0, 2]), "{answer:?}");
    let v6 = udp(&server, "a.example", 28);
    assert!(v6.ends_with(&[0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), "{v6:?}");
    server.set_addresses("a.example", &["127.0.0.3"], 1);
    assert!(udp(&server, "a.example", 1).ends_with(&[0, 0, 0, 1, 0, 4, 127, 0, 0, 3]));
    assert_eq!(outcome(&udp(&server, "a.example", 33)), (0, 0));
    assert_eq!(outcome(&udp(&server, "b.example", 1)), (3, 0));
    server.remove("a.example");
    assert_eq!(outcome(&udp(&server, "a.example", 1)), (3, 0));
    server.wait_for_count("a.example", Kind::A, 3);
    assert_eq!((server.count("a.example", Kind::Aaaa), server.asked().len()), (1, 6));
}

#[test]
fn aliases_and_services_contain_names() {
    let server = DnsServer::start();
    let records = vec![Record::cname("b.c", 5), Record::address("127.0.0.9", 5).of("b.c")];
    server.set("a.c", Kind::A, Answer::Records(records));
    let answer = udp(&server, "a.c", 1);
    let tail = [
        &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 5, 0, 5, 1, b'b', 1, b'c', 0][..],
        &[1, b'b', 1, b'c', 0, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 127, 0, 0, 9],
    ];
    assert!(answer.ends_with(&tail.concat()), "{answer:?}");
    server.set("_http._tcp.a", Kind::Srv, Answer::Records(vec![Record::srv(1, 2, 8080, "h", 60)]));
    let answer = udp(&server, "_http._tcp.a", 33);
    assert!(answer.ends_with(&[0, 9, 0, 1, 0, 2, 31, 144, 1, b'h', 0]), "{answer:?}");
}

#[test]
fn failures_are_sent_as_configured() {
    let server = DnsServer::start();
    let right = || Box::new(Answer::addresses(&["127.0.0.1"], 1));
    let times = Answer::Times(2, Box::new(Answer::ServFail), right());
    server.set("a", Kind::A, times).set("b", Kind::A, Answer::Refused).set("c", Kind::A, Answer::Code(1));
    let codes: Vec<_> = (0..4).map(|_| outcome(&udp(&server, "a", 1))).collect();
    assert_eq!(codes, [(2, 0), (2, 0), (0, 1), (0, 1)]);
    assert_eq!((outcome(&udp(&server, "b", 1)).0, outcome(&udp(&server, "c", 1)).0), (5, 1));
    server.set("a", Kind::A, Answer::Both(Box::new(Answer::WrongId(right())), right()));
    let socket = send_query(&server, 9, "a", 1);
    assert_eq!((receive(&socket)[1], receive(&socket)[1]), (10, 9));
    server.set("a", Kind::A, Answer::WrongQuestion(right()));
    assert_eq!(udp(&server, "a", 1)[12..18], *b"\x05not-a");
    server.set("a", Kind::A, Answer::Raw(b"junk".to_vec()));
    assert_eq!(udp(&server, "a", 1), b"\x00\x07junk");
}

#[test]
fn lost_and_late_responses_do_not_delay_others() {
    let server = DnsServer::start();
    let gate = Gate::new();
    let right = Box::new(Answer::addresses(&["127.0.0.1"], 1));
    server.set("late", Kind::A, Answer::Late(gate.clone(), right)).set("lost", Kind::A, Answer::Lost);
    let late = send_query(&server, 1, "late", 1);
    gate.wait_reached();
    let lost = send_query(&server, 2, "lost", 1);
    server.wait_for_count("lost", Kind::A, 1);
    assert_eq!(outcome(&udp(&server, "other", 1)), (3, 0));
    for socket in [&late, &lost] {
        socket.set_nonblocking(true).expect("it is a socket");
        let error = socket.recv(&mut [0; 100]).expect_err("no response has arrived");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        socket.set_nonblocking(false).expect("it is a socket");
    }
    gate.open();
    assert_eq!(outcome(&receive(&late)), (0, 1));
    server.set("late", Kind::A, Answer::Late(Gate::new(), Box::new(Answer::NxDomain)));
    let _held = send_query(&server, 3, "late", 1);
    server.wait_for_count("late", Kind::A, 2);
    // Dropping the server must not wait for a gate that is never opened.
}

#[test]
fn a_truncated_response_is_complete_over_tcp() {
    let server = DnsServer::start();
    let whole = Box::new(Answer::addresses(&["127.0.0.1", "127.0.0.2"], 1));
    server.set("a", Kind::A, Answer::Truncated(whole));
    let cut = udp(&server, "a", 1);
    assert_eq!((cut[2] & 2, cut[7]), (2, 0));
    let mut stream = TcpStream::connect(server.addr()).expect("it listens");
    for id in [1, 2] {
        let query = query(id, "a", 1);
        stream.write_all(&(query.len() as u16).to_be_bytes()).expect("it is sent");
        stream.write_all(&query).expect("it is sent");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("a response arrives");
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).expect("it is complete");
        assert_eq!((answer[1], answer[2] & 2, answer[7]), (id as u8, 0, 2));
    }
    let asked: Vec<bool> = server.asked().iter().map(|asked| asked.over_tcp).collect();
    assert_eq!(asked, [false, true, true]);
}
