//! Notices a client that leaves while a rate limit permits no bytes: the response would occupy its slots until the next send fails.
//!
//! ```text
//!   Open --the client ends its side--> Ended --a few bytes are sent early--> Probed --the socket is closed--> error
//! ```
//! A client that only ends its sending direction still receives its response, so the end alone does not show that the client has left.
//! But a client that has left resets the connection when it receives bytes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use io::Errno;
use rt::Sleep;

use crate::wire::Wire;
use transfer::body::SendError;

/// Interval of checking a connection whose client has ended its side.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// State of the client's side.
#[derive(Default)]
pub(super) enum Departure {
    /// Not observed yet.
    #[default]
    Unobserved,
    /// The client has not ended its side.
    Open(Pin<Box<dyn Future<Output = ()>>>),
    /// The client has ended its side; the number of bytes that were sent then.
    Ended(u64),
    /// Bytes were sent to a client that has ended its side.
    Probed(Pin<Box<Sleep>>),
}

impl Departure {
    /// Waits during a pause of a response of which `sent` bytes were sent. Is ready if bytes are to be sent early.
    ///
    /// # Errors
    /// The client has left.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        wire: &Wire,
        sent: u64,
    ) -> Poll<Result<(), SendError>> {
        loop {
            match self {
                Departure::Unobserved => {
                    let hung_up = wire.handle().hung_up();
                    *self = Departure::Open(Box::pin(hung_up));
                }
                Departure::Open(hung_up) => {
                    ready!(hung_up.as_mut().poll(context));
                    *self = Departure::Ended(sent);
                    return Poll::Ready(Ok(()));
                }
                Departure::Ended(before) if *before == sent => return Poll::Ready(Ok(())),
                Departure::Ended(_) => {
                    *self = Departure::Probed(Box::pin(rt::sleep_until(rt::now() + CHECK_EVERY)));
                }
                Departure::Probed(sleep) => {
                    ready!(sleep.as_mut().poll(context));
                    if wire.is_broken() {
                        return Poll::Ready(Err(SendError::Closed(Errno::CONNRESET)));
                    }
                    *sleep = Box::pin(rt::sleep_until(rt::now() + CHECK_EVERY));
                }
            }
        }
    }
}
