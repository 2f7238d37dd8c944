//! Requests that are open but have not begun: they are held back while the client cancels many requests, or while the work of
//! as many cancelled requests has not ended. A request that is cancelled before it begins costs no work, and no upstream gets it.

use std::collections::VecDeque;
use std::time::Instant;

use super::stream::DecodedRequest;

/// The requests of a connection that have not begun, in the order of their arrival.
#[derive(Default)]
pub(super) struct HeldRequests {
    requests: VecDeque<DecodedRequest>,
    /// Time before which no request begins.
    until: Option<Instant>,
}

impl HeldRequests {
    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request.
    pub(super) fn add(&mut self, request: DecodedRequest) {
        self.requests.push_back(request);
    }

    /// Sets the time before which no further request begins.
    pub(super) fn delay(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Returns the time of the next start, if it is in the future.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        self.until.filter(|until| *until > rt::now())
    }

    /// Removes the first request.
    pub(super) fn take(&mut self) -> Option<DecodedRequest> {
        self.requests.pop_front()
    }

    /// Removes the requests that the client has cancelled.
    pub(super) fn take_cancelled(&mut self) -> Vec<DecodedRequest> {
        if !self.requests.iter().any(DecodedRequest::is_cancelled) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.requests);
        let (cancelled, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(DecodedRequest::is_cancelled);
        self.requests = rest.into();
        cancelled
    }
}
