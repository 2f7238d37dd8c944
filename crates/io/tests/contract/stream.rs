//! Bytes over sockets: whole, in order, through every way to receive, with every kind of end.

use std::io::{Read, Write};
use std::net::Shutdown;

use io::op::RecvInto;
use io::{Fd, Op};

use crate::harness::{Bench, connection, on_each_pair, pattern, received};

/// Receives until `len` bytes or the end have come.
fn recv_whole(bench: &mut Bench, socket: &Fd, len: usize, mode: &str) -> Vec<u8> {
    let mut got = Vec::new();
    if mode == "stream" {
        let id = bench.submit(Op::Recv { socket: socket.clone(), into: RecvInto::Stream });
        loop {
            let completion = bench.next(id);
            got.extend_from_slice(received(&completion.payload));
            if completion.result.unwrap() == 0 {
                assert!(!completion.more, "the end of the stream ends the operation");
                return got;
            }
            assert!(completion.more, "a stream goes on until its end");
        }
    }
    while got.len() < len {
        let into = match mode {
            "pool" => RecvInto::Pool,
            _ => RecvInto::Owned(bench.engine.pool().get(16 << 10).unwrap()),
        };
        let completion = bench.recv(socket, into);
        assert!(completion.result.unwrap() > 0, "the peer has not closed yet");
        got.extend_from_slice(received(&completion.payload));
    }
    got
}

#[test]
fn bytes_arrive_whole_in_every_mode() {
    let bytes = pattern(700_001);
    on_each_pair(|bench| {
        for mode in ["owned", "pool", "stream"] {
            let (ours, mut peer) = connection();
            let sent = bytes.clone();
            let sender = std::thread::spawn(move || {
                peer.write_all(&sent).unwrap();
                peer.shutdown(Shutdown::Write).unwrap();
                let mut echoed = Vec::new();
                peer.read_to_end(&mut echoed).unwrap();
                echoed
            });
            let got = recv_whole(bench, &ours, bytes.len(), mode);
            assert!(got == bytes, "{mode}: {} bytes of {}", got.len(), bytes.len());
            bench.send_all(&ours, &got).unwrap();
            bench.run(Op::Close { fd: ours.into_owned().unwrap() });
            assert!(sender.join().unwrap() == bytes, "{mode}: the echo differs");
        }
        bench.assert_drains();
    });
}
