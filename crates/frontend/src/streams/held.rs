//! Requests that are open but have not begun: they are held back while the client cancels many requests, or while the work of
//! as many cancelled requests has not ended. A request that is cancelled before it begins costs no work, and no upstream gets it.

use std::collections::VecDeque;
use std::time::Instant;

/// A request whose header section was decoded.
pub(crate) trait HeldRequest {
    /// Whether the client has cancelled the request, or disconnected.
    fn is_cancelled(&self) -> bool;
}

/// The requests of a connection that have not begun, in the order of their arrival.
pub(crate) struct HeldRequests<R> {
    requests: VecDeque<R>,
    /// Time before which no request begins.
    until: Option<Instant>,
}

impl<R> Default for HeldRequests<R> {
    fn default() -> HeldRequests<R> {
        HeldRequests { requests: VecDeque::new(), until: None }
    }
}

impl<R: HeldRequest> HeldRequests<R> {
    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request.
    pub(crate) fn add(&mut self, request: R) {
        self.requests.push_back(request);
    }

    /// Sets the time before which no further request begins.
    pub(crate) fn delay(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Returns the time of the next start, if it is in the future.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        self.until.filter(|until| *until > rt::now())
    }

    /// Removes the first request.
    pub(crate) fn take(&mut self) -> Option<R> {
        self.requests.pop_front()
    }

    /// Removes all requests.
    pub(crate) fn take_all(&mut self) -> Vec<R> {
        std::mem::take(&mut self.requests).into()
    }

    /// Removes the requests that the client has cancelled.
    pub(crate) fn take_cancelled(&mut self) -> Vec<R> {
        if !self.requests.iter().any(R::is_cancelled) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.requests);
        let (cancelled, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(R::is_cancelled);
        self.requests = rest.into();
        cancelled
    }
}
