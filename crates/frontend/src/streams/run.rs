//! The task of one request.

use std::pin::pin;
use std::rc::Rc;

use http::fields::BodyLength;
use rt::Timer;

use crate::listen_socket::ListenSocket;
use crate::streams::Link;
use crate::streams::transport::StreamTransport;
use exchange::request::Request;
use exchange::transport::{After, Received};
use exchange::{cut_off, pump};
use rt::panics::catch;

/// Runs a request until its end. `reset` is the code to end the stream with after the response, if the request violated the protocol.
pub(crate) async fn run<L: Link>(
    link: L,
    listen_socket: Rc<ListenSocket>,
    mut request: Box<Request>,
    mut received: Received,
    reset: Option<L::Code>,
) {
    let mut transport =
        StreamTransport { link, listen_socket, timer: Timer::new(), earlier: 0, stored_window: None };
    // No handler reads a body of length 0, so bytes that the client sends nevertheless would be noticed too late.
    let is_empty = matches!(request.head.body(), BodyLength::Exactly(0));
    if is_empty
        && matches!(received, Received::Head)
        && let Err(refused) = transport.receive_end(&mut request).await
    {
        received = refused;
    }
    let ran = cut_off::unless(catch(pin!(pump::run(&mut transport, &mut request, received)))).await;
    let after = pump::end_of_run(&mut transport, &mut request, ran);
    let StreamTransport { link, .. } = transport;
    // Background subrequests count as part of the stream, so that a client cannot start more of them than it makes requests.
    if let Some(background) = request.background.take() {
        background.wait_empty().await;
    }
    if let Some(body) = request.body.take() {
        body.clean().await;
    }
    // Pooled requests still refer to their last stream.
    request.conn.client.take();
    let reset = match after {
        // The client has sent its body too slowly, or `return 444` refuses the request.
        After::Drop if request.sent == 0 && matches!(request.response.status, 408 | 444) => {
            Some(L::code_without_response())
        }
        After::Drop => None,
        After::KeepAlive | After::Close => reset,
    };
    link.release(reset);
    link.thread().recycle_request(request);
}
