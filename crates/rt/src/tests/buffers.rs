//! Tests of waiting for buffers: in order, and without losses when a task gives up.

use std::future::Future;
use std::rc::Rc;

use io::Wait;

use super::{run, settle, watch};
use crate::reactor::{BUFFER_WAIT_MAX, wait_limit};
use crate::{buffer, reactor};

const LARGE: usize = 1 << 20;

fn all(pool: &io::Pool) -> Vec<io::Buf> {
    std::iter::from_fn(|| pool.get(LARGE)).collect()
}

#[test]
fn buffer_requests_are_served_in_order() {
    run(|fake| async move {
        let mut held = all(&fake.pool);
        let waiting: Vec<_> = (0..3).map(|_| watch(async { buffer(LARGE, 0).await })).collect();
        settle().await;
        let served = || {
            let is_some = |place: &Rc<std::cell::Cell<Option<io::Buf>>>| {
                let buf = place.take();
                let is_some = buf.is_some();
                place.set(buf);
                is_some
            };
            waiting.iter().map(is_some).collect::<Vec<_>>()
        };
        assert_eq!(served(), [false, false, false]);
        held.pop();
        settle().await;
        assert_eq!(served(), [true, false, false]);
        // A small request that is made later also has to wait, although memory for it is free.
        let small = watch(async { buffer(1, 0).await.capacity() });
        settle().await;
        assert_eq!(small.take(), None);
        held.truncate(held.len() - 2);
        settle().await;
        assert_eq!((served(), small.take()), (vec![true; 3], Some(4096)));
    });
}

#[test]
fn a_dropped_request_releases_its_slot_and_its_buffer() {
    run(|fake| async move {
        let mut held = all(&fake.pool);
        let mut first = Box::pin(buffer(LARGE, 0));
        assert!(futures_pending(&mut first).await);
        let second = watch(async { buffer(LARGE, 0).await.capacity() });
        settle().await;
        held.pop();
        settle().await;
        assert_eq!(second.take(), None, "it was lent to the first one");
        drop(first);
        settle().await;
        assert_eq!(second.take(), Some(LARGE));
    });
}

#[test]
fn the_reserved_share_is_left_to_others() {
    run(|fake| async move {
        // A quarter is reserved for such buffers: it is used up first.
        let _own: Vec<_> = (0..2).map(|_| fake.pool.get(LARGE)).collect();
        let spared = fake.pool.bytes_max() - 3 * LARGE as u64;
        let one = buffer(LARGE, spared).await;
        let other = watch(async move { buffer(LARGE, spared).await.capacity() });
        settle().await;
        assert_eq!(other.take(), None);
        drop(one);
        settle().await;
        assert_eq!(other.take(), Some(LARGE));
    });
}

#[test]
fn the_reserve_for_bodies_is_available_whatever_heads_use() {
    run(|fake| async move {
        let heads: Vec<_> = std::iter::from_fn(|| fake.pool.get(4096)).collect();
        let spared = fake.pool.bytes_max() / 4;
        assert!(fake.pool.spare_bytes() <= spared, "heads have taken all that they can");
        let bodies: Vec<_> = (0..8).map(|_| watch(async move { buffer(256 << 10, spared).await })).collect();
        settle().await;
        assert!(bodies.iter().all(|body| body.take().is_some()), "two mebibytes of eight");
        drop(heads);
    });
}

/// Another thread that releases a buffer does not wake this one.
#[test]
fn the_engine_waits_briefly_while_tasks_wait_for_buffers() {
    run(|fake| async move {
        let limit = || wait_limit(&reactor::current());
        let _held = all(&fake.pool);
        let mut wanted = Box::pin(buffer(LARGE, 0));
        assert!(futures_pending(&mut wanted).await);
        assert_eq!(limit(), Wait::Until(crate::now() + BUFFER_WAIT_MAX));
        drop(wanted);
        assert_eq!(limit(), Wait::Forever);
    });
}

/// Polls once.
async fn futures_pending(wanted: &mut std::pin::Pin<Box<crate::BufferRequest>>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(wanted.as_mut().poll(context).is_pending())).await
}
