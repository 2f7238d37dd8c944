//! Tests that drop every kind of future while it waits: its operation is abandoned, and nothing remains.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use io::facts::DeviceId;
use io::op::{OpenHow, PeerAddr};
use io::{Disk, DiskVia, Errno, Segments};

use super::fake::Fake;
use super::{pair, run, settle, start_and_drop};
use crate::net::FilePart;
use crate::{Either, File, Listener, Socket, counters, file, join, mailbox, now, select, sleep_until};

const DISK: Disk = Disk { device: DeviceId(1), via: DiskVia::Pool(0) };

fn a_file() -> File {
    File::new(pair().0)
}

fn a_buffer() -> io::Buf {
    let mut buf = crate::pool().get(100).unwrap();
    buf.append(b"abc");
    buf
}

fn bytes() -> Segments {
    Segments::from(b"abc".to_vec())
}

/// A future, and the number of its operations that are abandoned when it is dropped.
type Case = (&'static str, Pin<Box<dyn Future<Output = ()>>>);

fn cases() -> Vec<Case> {
    fn case<F: Future + 'static>(name: &'static str, future: F) -> Case {
        (name, Box::pin(async move { drop(future.await) }))
    }
    let open = File::open(None, c"/a".into(), OpenHow::default(), DISK);
    vec![
        case("open", open),
        case("stat", async { a_file().stat(DISK).await }),
        case("read", async { a_file().read_at(0, 10, a_buffer(), DISK).await }),
        case("write", async { a_file().write_at(0, a_buffer(), DISK).await }),
        case("sync", async { a_file().sync(DISK).await }),
        case("stat of a path", file::stat_path(c"/a".into(), DISK)),
        case("unlink", file::unlink(c"/a".into(), DISK)),
        case("rename", file::rename(c"/a".into(), c"/b".into(), DISK)),
        case("connect", Socket::connect(PeerAddr::Unix("/a".into()))),
        case("send", async { Socket::new(pair().0).writer.send(bytes(), false).await }),
        case("writable", async {
            let mut socket = Socket::new(pair().0);
            poll_fn(|context| socket.writer.poll_writable(context)).await
        }),
        case("sendfile", async {
            let file = a_file();
            let part = FilePart { file: &file, offset: 0, len: 10, disk: DISK };
            let mut socket = Socket::new(pair().0);
            poll_fn(|context| socket.writer.poll_sendfile(context, &part)).await
        }),
        case("accept", async { Listener::new(pair().0, false).accept().await }),
    ]
}

#[test]
fn a_dropped_future_abandons_its_operation() {
    run(|fake| async move {
        for (number, (name, future)) in cases().into_iter().enumerate() {
            start_and_drop(future).await;
            settle().await;
            assert_eq!(fake.abandoned(), number + 1, "{name}");
            assert_eq!(fake.flying(), [], "{name}");
            assert_eq!(counters().operations, 0, "{name}");
        }
    });
}

#[test]
fn a_dropped_queued_future_is_forgotten() {
    run(|fake| async move {
        fake.set_capacity(0);
        for (name, future) in cases() {
            start_and_drop(future).await;
            assert_eq!(fake.flying(), [], "{name}");
        }
        let mut socket = Socket::new(pair().0);
        start_and_drop(socket.reader.recv()).await;
        drop(socket);
        fake.set_capacity(100);
        settle().await;
        assert_eq!(counters().operations, 0);
        assert_eq!(fake.abandoned(), 0, "the engine never heard of them");
    });
}

#[test]
fn unpolled_completed_futures_release_their_results() {
    run(|fake| async move {
        let used = |fake: &Fake| fake.pool.counters().bytes - fake.pool.counters().idle_bytes;
        let file = a_file();
        let before = used(&fake);
        {
            let mut read = pin!(file.read_at(0, 10, a_buffer(), DISK));
            poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await;
            fake.end_with_memory("Read", Ok(10)).await;
            assert!(used(&fake) > before);
        }
        assert_eq!(used(&fake), before);
        assert_eq!(counters().operations, 0);
    });
}

#[test]
fn a_zero_copy_send_can_be_dropped_before_its_notification() {
    run(|fake| async move {
        let mut socket = Socket::new(pair().0);
        socket.writer.set_zero_copy(Some(1));
        {
            let mut sending = pin!(socket.writer.send(bytes(), false));
            poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending())).await;
            // After a short count the future waits for its segments to be returned.
            fake.progress(fake.only("Send"), Ok(1), io::Payload::None);
            settle().await;
            poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending())).await;
        }
        assert_eq!(fake.abandoned(), 1);
        assert_eq!(socket.writer.send(bytes(), false).await.0, Err(Errno::CONNABORTED));
    });
}

#[test]
fn waits_without_an_operation_can_be_dropped_safely() {
    run(|_| async {
        let (sender, mut receiver) = mailbox::channel(1);
        start_and_drop(receiver.recv()).await;
        start_and_drop(sleep_until(now() + std::time::Duration::from_secs(600))).await;
        start_and_drop(crate::yield_now()).await;
        crate::spawn(async {});
        start_and_drop(crate::yield_to_ready()).await;
        sender.send(1).unwrap();
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(counters().timers, 0);
    });
}

#[test]
fn joined_futures_run_concurrently() {
    run(|_| async {
        let (sender, mut receiver) = mailbox::channel(1);
        let sends = async {
            settle().await;
            sender.send(7).unwrap();
        };
        let (received, ()) = join(receiver.recv(), sends).await;
        assert_eq!(received, Some(7));
        assert!(matches!(select(join(async {}, async {}), settle()).await, Either::Left(_)));
    });
}
