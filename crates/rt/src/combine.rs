//! The few combinators of futures that a server needs.
//!
//! They are types, not asynchronous functions: such a function stores a future that is its argument twice, as the argument and as the
//! variable that it polls, so that a few nested ones would need many times the memory of the innermost.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::reactor;

/// The result of the future that completed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first future.
    Left(A),
    /// The second future.
    Right(B),
}

pin_project! {
    /// The future of [`select`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Select<A, B> {
        #[pin]
        first: A,
        #[pin]
        second: B,
    }
}

/// Waits for either of two futures and drops the other. If both are complete, returns the result of the first.
pub fn select<A: Future, B: Future>(first: A, second: B) -> Select<A, B> {
    Select { first, second }
}

impl<A: Future, B: Future> Future for Select<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let both = self.project();
        if let Poll::Ready(output) = both.first.poll(context) {
            return Poll::Ready(Either::Left(output));
        }
        both.second.poll(context).map(Either::Right)
    }
}

pin_project! {
    /// The future of [`join`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Join<A: Future, B: Future> {
        #[pin]
        first: A,
        #[pin]
        second: B,
        outputs: (Option<A::Output>, Option<B::Output>),
    }
}

/// Waits for both futures, which make progress concurrently.
pub fn join<A: Future, B: Future>(first: A, second: B) -> Join<A, B> {
    Join { first, second, outputs: (None, None) }
}

impl<A: Future, B: Future> Future for Join<A, B> {
    type Output = (A::Output, B::Output);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let both = self.project();
        let (one, other) = both.outputs;
        if one.is_none()
            && let Poll::Ready(output) = both.first.poll(context)
        {
            *one = Some(output);
        }
        if other.is_none()
            && let Poll::Ready(output) = both.second.poll(context)
        {
            *other = Some(output);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            outputs => {
                *both.outputs = outputs;
                Poll::Pending
            }
        }
    }
}

pin_project! {
    /// The future of [`try_join`].
    #[must_use = "futures do nothing unless polled"]
    pub struct TryJoin<A, B> {
        #[pin]
        first: A,
        #[pin]
        second: B,
        is_done: (bool, bool),
    }
}

/// Waits for both futures, which make progress concurrently, or for the first error; then the other is dropped.
pub fn try_join<E, A, B>(first: A, second: B) -> TryJoin<A, B>
where
    A: Future<Output = Result<(), E>>,
    B: Future<Output = Result<(), E>>,
{
    TryJoin { first, second, is_done: (false, false) }
}

impl<E, A, B> Future for TryJoin<A, B>
where
    A: Future<Output = Result<(), E>>,
    B: Future<Output = Result<(), E>>,
{
    type Output = Result<(), E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), E>> {
        let both = self.project();
        let (first, second) = both.is_done;
        if !*first && let Poll::Ready(result) = both.first.poll(context) {
            result?;
            *first = true;
        }
        if !*second && let Poll::Ready(result) = both.second.poll(context) {
            result?;
            *second = true;
        }
        if *first && *second { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
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
