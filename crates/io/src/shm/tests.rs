//! Tests that no byte changes after it was sent, and measurements of the cost of a chunk.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::*;

/// Fills the buffer with bytes that depend on their position and their chunk.
fn fill(buf: &mut Buf, len: usize, chunk: usize) {
    for (place, byte) in buf.space()[..len].iter_mut().enumerate() {
        *byte = (place / 251 + place + chunk * 89) as u8;
    }
    buf.set_len(len);
}

/// Sends a complete chunk. If the socket has no space for it, the test fails instead of waiting.
fn send(socket: impl AsFd, file: &Fd, len: usize) {
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let mut offset = 0;
    while offset < len as u64 {
        let rest = len - offset as usize;
        let sent = rustix::fs::sendfile(&socket, file, Some(&mut offset), rest).unwrap();
        assert!(sent > 0, "the chunk ended early");
    }
}

/// Returns the number of the file of a chunk.
fn inode(file: &Fd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

fn cached() -> usize {
    CACHED.with_borrow(Vec::len)
}

/// Sends four chunks through one slot while the reader does not read, and compares all bytes afterwards.
fn four_chunks_through_one_slot(near: impl AsFd, mut far: impl Read, len: usize) {
    let (mut expected, mut inodes) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let mut shared = take(len).unwrap();
        inodes.push(inode(&shared.file));
        assert!(shared.buf.space()[..len].iter().all(|&byte| byte == 0), "a chunk is not fresh");
        fill(&mut shared.buf, len, number);
        expected.extend_from_slice(&shared.buf);
        send(&near, &shared.file, len);
    }
    assert!(inodes.iter().all(|&inode| inode == inodes[0]), "all went through one slot");
    let mut received = vec![0; 4 * len];
    far.read_exact(&mut received).unwrap();
    let wrong = received.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert_eq!(wrong, 0, "of {} bytes", expected.len());
}

#[test]
fn shared_bytes_sent_over_tcp_do_not_change() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The accepted socket inherits the size of the receive buffer, which must hold all four chunks.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 1 << 20).unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 1 << 20).unwrap();
    trim();
    four_chunks_through_one_slot(near, far, 40_000);
}

#[test]
fn shared_bytes_sent_over_a_unix_socket_do_not_change() {
    let (near, far) = UnixStream::pair().unwrap();
    trim();
    four_chunks_through_one_slot(near, far, 10_000);
}

#[test]
fn a_chunk_is_not_reused_while_its_file_is_held() {
    trim();
    let Shared { file, mut buf } = take(5000).unwrap();
    fill(&mut buf, 5000, 1);
    drop(buf);
    assert_eq!(cached(), 1);
    let (other, number) = (take(5000).unwrap(), inode(&file));
    assert_ne!(inode(&other.file), number, "a chunk that is being sent was handed out");
    let mut byte = [0];
    rustix::io::pread(&file, &mut byte, 1000).unwrap();
    assert_eq!(byte[0], (1000 / 251 + 1000 + 89) as u8, "a chunk that is being sent was emptied");
    drop(file);
    let mut again = take(5000).unwrap();
    assert_eq!(inode(&again.file), number);
    assert!(again.buf.space().iter().all(|&byte| byte == 0));
    drop(other);
}

#[test]
fn idle_chunks_use_no_pages_and_can_be_released() {
    trim();
    let mut shared = take(RECYCLED_BYTES).unwrap();
    let file = shared.file.clone();
    fill(&mut shared.buf, RECYCLED_BYTES, 1);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, RECYCLED_BYTES as i64 / 512);
    let number = inode(&file);
    drop((shared, file));
    let again = take(1).unwrap();
    let found = rustix::fs::fstat(&again.file).unwrap();
    assert_eq!((found.st_ino, found.st_blocks), (number, 0));
    drop(again);
    assert_eq!((trim(), cached()), (1, 0));
}

#[test]
fn retained_chunks_are_bounded_and_long_chunks_are_freed() {
    trim();
    drop((0..CACHED_MAX + 3).map(|_| take(1).unwrap()).collect::<Vec<_>>());
    assert_eq!(cached(), CACHED_MAX);
    trim();
    let mut long = take(RECYCLED_BYTES + 1).unwrap();
    assert_eq!(long.buf.capacity(), RECYCLED_BYTES + rustix::param::page_size());
    assert!(long.buf.fixed_index().is_none());
    fill(&mut long.buf, RECYCLED_BYTES + 1, 0);
    drop(long);
    assert_eq!(cached(), 0);
    assert_eq!(take(usize::MAX / 2).unwrap_err(), Errno::INVAL);
}

#[test]
fn a_buffer_may_be_dropped_when_its_thread_ends() {
    thread_local!(static LATE: RefCell<Option<Buf>> = const { RefCell::new(None) });
    let ended = std::thread::spawn(|| {
        // Initialised before the list of chunks, and so destroyed after it.
        LATE.with_borrow_mut(|late| *late = None);
        LATE.set(Some(take(1).unwrap().buf));
    });
    ended.join().unwrap();
}

/// Prints the cost of filling new chunks and recycled chunks, compared with a pool buffer. `cargo test -p io --lib
/// cost_of_a_chunk -- --ignored --nocapture`.
#[test]
#[ignore = "prints times and asserts nothing"]
fn cost_of_a_chunk() {
    const ROUNDS: u32 = 2000;
    let source = take(RECYCLED_BYTES).unwrap();
    let pool = crate::buf::Pool::new(8 << 20);
    for len in [512 << 10, 1 << 20] {
        let read = |buf: &mut Buf| {
            let count = rustix::io::pread(&source.file, &mut buf.space()[..len], 0).unwrap();
            assert_eq!(count, len);
        };
        let report = |name: &str, run: &mut dyn FnMut()| {
            let start = Instant::now();
            (0..ROUNDS).for_each(|_| run());
            println!(
                "{len:8} bytes  {name:18} {:7.1} us",
                start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
            );
        };
        report("pool buffer", &mut || read(&mut pool.get(len).unwrap()));
        report("fresh", &mut || {
            read(&mut take(len).unwrap().buf);
            trim();
        });
        report("recycled", &mut || read(&mut take(len).unwrap().buf));
    }
}
