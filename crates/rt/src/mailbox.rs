//! A bounded queue from any thread to a task, for communication between threads.
//!
//! The waker of the receiving task wakes the receiver's thread; it ends the engine's wait only if that thread sleeps.
//! Main types: [`Sender`] and [`Receiver`], created by [`channel`].

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// The sending end of a mailbox, for any thread.
pub struct Sender<T>(Arc<MailboxState<T>>);

/// The receiving end of a mailbox; moved to the thread that reads it.
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
}

/// The reason why a message was not accepted, with the message.
#[derive(PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox is at its capacity.
    Full(T),
    /// The receiver was dropped.
    Closed(T),
}

// Not derived, because a message need not implement `Debug`.
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

/// Creates a mailbox for at most `capacity` messages.
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Messages { messages: VecDeque::new(), reader: None, senders: 1, open: true };
    let shared = Arc::new(MailboxState { queue: Mutex::new(queue), capacity: capacity.max(1) });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> MailboxState<T> {
    fn queue(&self) -> MutexGuard<'_, Messages<T>> {
        // No code can panic while it holds the lock, except for a failed allocation.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: Send> Sender<T> {
    /// Adds a message to the mailbox without waiting.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut queue = self.0.queue();
        if !queue.open {
            return Err(SendError::Closed(message));
        }
        if queue.messages.len() >= self.0.capacity {
            return Err(SendError::Full(message));
        }
        queue.messages.push_back(message);
        assert!(queue.messages.len() <= self.0.capacity, "a full mailbox accepts no message");
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }

    /// Whether the receiver was dropped, so that no message would be read.
    pub fn is_closed(&self) -> bool {
        !self.0.queue().open
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
    /// Returns the next message; `None` when the mailbox is empty and all senders were dropped. Dropping the future
    /// loses no message.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next message if there is one.
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
        // Dropped after the lock is released: a message may own a sender of this mailbox.
        drop((messages, reader));
    }
}
