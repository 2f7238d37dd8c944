//! A bounded queue from any thread to a task: how threads talk to each other.
//!
//! The receiver's thread is woken through its task's waker, which ends the engine's wait only when that
//! thread sleeps. Main types: [`Sender`] and [`Receiver`], made by [`channel`].

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// Sends into a mailbox from any thread.
pub struct Sender<T>(Arc<MailboxState<T>>);

/// The end of a mailbox that takes messages out; moved to the thread that reads it.
pub struct Receiver<T>(Arc<MailboxState<T>>);

struct MailboxState<T> {
    queue: Mutex<Messages<T>>,
    capacity: usize,
}

struct Messages<T> {
    messages: VecDeque<T>,
    reader: Option<Waker>,
    senders: usize,
    /// Whether the receiver still exists.
    open: bool,
    refused: u64,
}

/// Why a message was not taken; the message comes back.
#[derive(PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox is at its capacity.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

// Not derived: a message need not be printable.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "Full",
            SendError::Closed(_) => "Closed",
        })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Full(_) => f.write_str("the mailbox is full"),
            SendError::Closed(_) => f.write_str("the mailbox has no receiver"),
        }
    }
}

/// A mailbox for at most `capacity` messages.
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Messages { messages: VecDeque::new(), reader: None, senders: 1, open: true, refused: 0 };
    let shared = Arc::new(MailboxState { queue: Mutex::new(queue), capacity: capacity.max(1) });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> MailboxState<T> {
    fn queue(&self) -> MutexGuard<'_, Messages<T>> {
        // No code can panic while it holds the lock, but for an allocation that fails.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: Send> Sender<T> {
    /// Puts a message into the mailbox without waiting.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut queue = self.0.queue();
        if !queue.open {
            return Err(SendError::Closed(message));
        }
        if queue.messages.len() >= self.0.capacity {
            queue.refused += 1;
            return Err(SendError::Full(message));
        }
        queue.messages.push_back(message);
        assert!(queue.messages.len() <= self.0.capacity, "a full mailbox takes no message");
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }

    /// Whether the receiver is gone, so that no message would be read.
    pub fn is_closed(&self) -> bool {
        !self.0.queue().open
    }

    /// Messages refused because the mailbox was full, since start.
    pub fn refused(&self) -> u64 {
        self.0.queue().refused
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.queue().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        assert!(queue.senders > 0, "a sender was counted");
        queue.senders -= 1;
        let reader = if queue.senders == 0 { queue.reader.take() } else { None };
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl<T: Send> Receiver<T> {
    /// The next message; `None` when there is none and no sender is left. Dropping the future loses none.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// The next message if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.queue().messages.pop_front()
    }

    /// As [`Receiver::recv`], for a hand-written future.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = self.0.queue();
        if let Some(message) = queue.messages.pop_front() {
            return Poll::Ready(Some(message));
        }
        if queue.senders == 0 {
            return Poll::Ready(None);
        }
        match &mut queue.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.open = false;
        let (messages, reader) = (std::mem::take(&mut queue.messages), queue.reader.take());
        drop(queue);
        // Dropped without the lock: a message may own a sender of this mailbox.
        drop((messages, reader));
    }
}
