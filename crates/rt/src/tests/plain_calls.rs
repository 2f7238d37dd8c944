//! Tests of plain system calls, and of calls that are avoided, where an engine would use a kernel worker or behave
//! incorrectly.

use std::ffi::CString;
use std::future::pending;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use io::op::PeerAddr;
use io::segments::Source;
use io::{Errno, Segments};
use rustix::fs::{Mode, OFlags};

use super::{pair, run};
use crate::file::stat_of_turn;
use crate::{Elapsed, File, Socket, Timer, counters, now, pool, yield_now};

#[test]
fn a_shutdown_and_an_fstat_need_no_engine_operation() {
    run(|_| async {
        let (near, mut far) = pair();
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = Socket::new(near);
        socket.writer.shutdown();
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "at once, before any turn");
        let (exe, mode) = (std::env::current_exe().unwrap(), Mode::empty());
        let file = File::new(rustix::fs::open(exe, OFlags::RDONLY, mode).unwrap());
        assert!(file.stat_inline().unwrap().size > 0);
        assert_eq!(counters().engine.submitted, 0);
    });
}

#[test]
fn bytes_are_sent_immediately_until_the_socket_is_full() {
    run(|_| async {
        let (near, mut far) = pair();
        rustix::io::ioctl_fionbio(&near, true).unwrap();
        let memory = rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, &[b'b'; 100]).unwrap();
        let (mut socket, file) = (Socket::new(near), File::new(memory));
        let mut data = Segments::new();
        data.push(Source::Static(b"he"));
        data.push(Source::Vec(b"ad".to_vec()));
        socket.writer.send_now(&mut data, true).unwrap();
        assert!(data.is_empty());
        assert_eq!(socket.writer.sendfile_now(&file, 90, 100), Ok(10), "up to the end of the file");
        assert_eq!(socket.writer.sendfile_now(&file, 100, 100), Ok(0));
        let mut head = [0; 14];
        far.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"headbbbbbbbbbb");

        let mut data = Segments::new();
        while data.is_empty() {
            data = Segments::new();
            data.push(Source::Vec(vec![7; 50_000]));
            socket.writer.send_now(&mut data, false).unwrap();
        }
        let left = data.len();
        socket.writer.send_now(&mut data, false).unwrap();
        assert_eq!(data.len(), left, "it is left to the engine");
        assert_eq!(socket.writer.sendfile_now(&file, 0, 10), Err(Errno::AGAIN));
        drop(far);
        assert_eq!(socket.writer.sendfile_now(&file, 0, 10), Err(Errno::PIPE));
        assert_eq!(socket.writer.send_now(&mut data, false), Err(Errno::CONNABORTED), "nothing follows it");
        assert_eq!(counters().engine.submitted, 0);
    });
}

#[test]
fn a_deadline_needs_no_engine_operation() {
    run(|fake| async move {
        let timer = Timer::new();
        timer.set(now() + Duration::from_millis(1));
        assert_eq!(timer.limit(pending::<()>()).await, Err(Elapsed));
        assert_eq!(counters().engine.submitted, 0);
        timer.set(now() + Duration::from_millis(1));
        assert!(timer.limit(Socket::connect(PeerAddr::Unix("/nobody".into()))).await.is_err());
        assert_eq!(fake.abandoned(), 1);
        let connect_and_close = counters().engine.submitted;
        assert!(connect_and_close <= 2, "{connect_and_close} operations for one connect");
    });
}

#[test]
fn available_bytes_and_the_shutdown_need_no_engine_operation() {
    run(|_| async {
        let (near, mut far) = pair();
        rustix::io::ioctl_fionbio(&near, true).unwrap();
        let mut socket = Socket::new(near);
        assert!(socket.reader.recv_now().is_none(), "nothing has come");
        far.write_all(b"bytes").unwrap();
        let received = socket.reader.recv_now().expect("they are here").unwrap().expect("not the end");
        assert_eq!(&received[..], b"bytes");
        socket.close_directly();
        drop(socket);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "at once, before any turn");
        assert_eq!(counters().engine.submitted, 0);
    });
}

#[test]
fn the_end_of_a_stream_is_received_immediately() {
    run(|_| async {
        let (near, far) = pair();
        rustix::io::ioctl_fionbio(&near, true).unwrap();
        let mut socket = Socket::new(near);
        drop(far);
        assert!(matches!(socket.reader.recv_now(), Some(Ok(None))));
        assert!(
            socket.reader.recv_now().is_none() && socket.reader.recv().await.unwrap().is_none(),
            "and again"
        );
        assert_eq!(counters().engine.submitted, 0);
    });
}

#[test]
fn bytes_read_from_a_file_are_reused_until_the_next_turn_or_receive() {
    run(|_| async {
        let (near, mut far) = pair();
        let mut socket = Socket::new(near);
        // File systems in memory do not support such reads.
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let memory = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap();
        let path = CString::new(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        let write = |text: &[u8]| rustix::io::pwrite(&memory, text, 0).unwrap();
        let file = File::new(rustix::io::dup(&memory).unwrap());
        let read = |file: &File| {
            let mut buf = pool().get(16).unwrap();
            buf.append(b"head ");
            file.read_of_turn(0, 3, &mut buf).unwrap();
            buf.to_vec()
        };
        let size = || stat_of_turn(&path).unwrap().size;

        let file_size = || file.stat_of_turn().unwrap().size;

        write(b"one");
        assert_eq!((read(&file), size(), file_size()), (b"head one".to_vec(), 3, 3));
        write(b"two");
        assert_eq!(read(&file), b"head two", "it is kept from the second time on");
        write(b"three");
        assert_eq!((read(&file), size(), file_size()), (b"head two".to_vec(), 3, 3));
        let other = File::new(rustix::io::dup(&memory).unwrap());
        assert_eq!(read(&other), b"head thr", "it is another open file");

        far.write_all(b"!").unwrap();
        assert!(matches!(socket.reader.recv_now(), Some(Ok(Some(_)))));
        assert_eq!((read(&file), size(), file_size()), (b"head thr".to_vec(), 5, 5));
        assert_eq!(read(&file), b"head thr");
        let shared = |file: &File| file.shared_of_turn(0, 3).unwrap().map(|bytes| bytes.to_vec());
        assert_eq!(shared(&file), Some(b"thr".to_vec()), "the bytes that were read are shared");
        write(b"a story");
        yield_now().await;
        assert_eq!(shared(&file), None, "the first of a turn reads");
        write(b"another");
        assert_eq!(shared(&file), Some(b"ano".to_vec()), "the second reads for all");
        write(b"a story");
        assert_eq!(shared(&file), Some(b"ano".to_vec()));
        yield_now().await;
        assert_eq!((read(&file), size()), (b"head a s".to_vec(), 7));
        rustix::fs::ftruncate(&memory, 2).unwrap();
        assert_eq!(read(&file), b"head a ", "what is there");
    });
}
