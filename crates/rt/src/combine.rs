//! The few combinators of futures that a server needs.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::reactor;

/// The result of the future that completed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first future.
    Left(A),
    /// The second future.
    Right(B),
}

/// Waits for either of two futures and drops the other. If both are complete, returns the result of the first.
pub async fn select<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready(Either::Left(output));
        }
        second.as_mut().poll(context).map(Either::Right)
    })
    .await
}

/// Waits for both futures, which make progress concurrently.
pub async fn join<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            one = Some(output);
        }
        if other.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            other = Some(output);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (left, right) => {
                (one, other) = (left, right);
                Poll::Pending
            }
        }
    })
    .await
}

/// Waits for all of these futures, which make progress concurrently; returns their results in the same order. Suitable
/// for a few futures only, because each wake-up polls all of them.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(done) = future.as_mut().poll(context)
            {
                *output = Some(done);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Lets the other ready tasks run first, within this turn. Continues immediately if there are none.
pub async fn yield_to_ready() {
    let mut waits = reactor::with_current(|reactor| reactor.executor.is_alone());
    poll_fn(|context| {
        if std::mem::replace(&mut waits, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets the other tasks and the engine run before the calling task continues in the next turn.
pub async fn yield_now() {
    let mut waits = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waits, true) {
            return Poll::Ready(());
        }
        reactor::with_current(|reactor| reactor.executor.yield_to_next_turn(context));
        Poll::Pending
    })
    .await;
}
