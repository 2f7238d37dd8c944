//! Ownership: an operation owns its descriptor; an executed program does not inherit the descriptors of engines; an
//! engine cannot leave its thread.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use io::op::RecvInto;
use io::segments::Source;
use io::{Engine, Errno, Fd, NetOp, Op, Payload, Segments};

use crate::harness::{connection, on_each_pair, received};

#[test]
fn a_staged_operation_uses_the_descriptor_it_was_given() {
    on_each_pair(|bench| {
        for round in 0..20u8 {
            let (ours, mut peer) = connection();
            // The kernel looks up the descriptor when the operation is submitted, which is in the next turn.
            let id = bench.submit(Op::Net(NetOp::Recv { socket: ours.clone(), into: RecvInto::Pool }));
            drop(ours);
            let (_other, mut stranger) = connection();
            stranger.write_all(b"to somebody else").unwrap();
            peer.write_all(&[round]).unwrap();
            assert_eq!(received(&bench.next(id).payload), [round]);
        }
    });
}

#[test]
fn a_descriptor_that_is_not_a_socket_fails_only_its_operation() {
    on_each_pair(|bench| {
        let held = bench.bytes_held();
        let exe = std::env::current_exe().unwrap();
        for mode in 0..3 {
            let wrong = Fd::from(OwnedFd::from(File::open(&exe).unwrap()));
            let into = bench.destination(mode);
            let completion = bench.run(Op::Net(NetOp::Recv { socket: wrong.clone(), into }));
            // Any error except one that asks for a retry: the caller would retry in an endless loop.
            let ended = matches!(completion.result, Err(Errno::NOTSOCK | Errno::BADFD));
            assert!(ended && !completion.more, "mode {mode}: {:?}", completion.result);
            drop(completion);
            let data = Segments::from(Source::Static(b"x"));
            let completion =
                bench.run(Op::Net(NetOp::Send { socket: wrong, data, more: false, zero_copy: false }));
            assert_eq!(completion.result, Err(Errno::NOTSOCK));
            assert!(matches!(completion.payload, Payload::Segments(_)));
        }
        let (ours, mut peer) = connection();
        peer.write_all(b"right").unwrap();
        assert_eq!(received(&bench.recv(&ours, RecvInto::Pool).payload), b"right");
        bench.assert_drains();
        assert_eq!(bench.bytes_held(), held, "a buffer is missing");
    });
}

/// Returns the descriptors of this process that an engine or shared memory created: their kind, and whether they are
/// closed on exec.
fn engine_descriptors() -> Vec<(String, bool)> {
    const KINDS: [&str; 4] = [
        "anon_inode:[io_uring]",
        "anon_inode:[eventfd]",
        "anon_inode:[eventpoll]",
        "/memfd:ringroad-chunk (deleted)",
    ];
    let close_on_exec = |number: &str| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        Some(u32::from_str_radix(flags.trim(), 8).ok()? & libc::O_CLOEXEC as u32 != 0)
    };
    let kind = |number: &str| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some(link.to_str()?.to_owned()).filter(|link| KINDS.contains(&link.as_str()))
    };
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.file_name());
    let look = |number: std::ffi::OsString| {
        let number = number.to_str()?;
        let (before, closed) = (kind(number)?, close_on_exec(number)?);
        // Other tests open and close descriptors: a number that was reused during the check is skipped.
        (kind(number)? == before).then_some((before, closed))
    };
    numbers.filter_map(look).collect()
}

#[test]
fn an_executed_program_inherits_no_engine_descriptor() {
    on_each_pair(|bench| {
        let _chunk = io::shm::take(4096).unwrap();
        assert_eq!(bench.run(Op::NOP).result, Ok(0));
        let found = engine_descriptors();
        assert!(found.iter().any(|(kind, _)| kind.contains("eventfd")), "{found:?}");
        assert!(found.iter().any(|(kind, _)| kind.contains("memfd")), "{found:?}");
        assert!(found.iter().all(|(_, closed)| *closed), "{found:?}");
    });
}

/// Two implementations match a type that is `Send`, so that a call of this function does not compile for it.
trait Stays<Marker> {
    fn on_its_thread() {}
}

impl<T: ?Sized> Stays<()> for T {}

struct Moves;

impl<T: ?Sized + Send> Stays<Moves> for T {}

/// An io_uring may be used only by the thread that created it (`SINGLE_ISSUER`). The test is that this compiles.
#[test]
fn an_engine_cannot_be_sent_to_another_thread() {
    <dyn Engine as Stays<_>>::on_its_thread();
}
