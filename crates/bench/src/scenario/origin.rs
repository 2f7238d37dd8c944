//! An origin within this process: it accepts connections, and a thread serves each of them. The scenario
//! writes the responses.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::failure::Failure;
use crate::method::pin;

/// A running origin. Dropping it ends what listens; its connections end with their other sides.
pub(crate) struct Origin {
    port: u16,
    is_ended: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts it on this processor, or on all of them. `serve` has a connection until its end.
    pub(crate) fn start(
        cpu: Option<usize>,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) -> Result<Origin, Failure> {
        let failed = || Failure::kernel("listening on 127.0.0.1");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let listening = thread::spawn(move || {
            // Where it cannot be pinned, it runs anywhere: the figures are then those of a busier machine.
            let _ = cpu.map(pin::this_thread);
            while let Ok((socket, _)) = listener.accept() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                thread::spawn(move || serve(socket));
            }
        });
        Ok(Origin { port, is_ended, listening: Some(listening) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// A request without a body; none at the end of the connection.
pub(crate) fn read_head(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let count = socket.read(&mut part).ok().filter(|&count| count > 0)?;
        head.extend_from_slice(&part[..count]);
    }
    Some(head)
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.listening.take().map(JoinHandle::join);
    }
}
