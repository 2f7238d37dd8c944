//! The origin's listening socket. It accepts, starts a thread for each connection, and can stop listening without
//! losing its port.
//!
//! The kernel may assign a port without a listener to another process. So a second socket is bound to the port from the
//! start and never listens: connections are refused, and the port stays reserved.

use std::fs;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SocketFlags;

use crate::gate::lock;
use crate::origin::connection::Connection;
use crate::origin::hub::Hub;
use crate::ports::{bound, reserved};
use crate::server::ListenAddr;
use crate::socket::Socket;

/// The function that runs on each connection.
pub(crate) type Script = Arc<dyn Fn(&mut Connection) + Send + Sync>;

/// Listen backlog: more than the number of connections that a test opens concurrently.
const BACKLOG: i32 = 4096;

/// What the origin does with an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAccept {
    /// Serve it.
    Serve,
    /// Close it immediately.
    Close,
    /// Reset it immediately.
    Reset,
    /// Keep it open without reading or sending.
    Ignore,
}

/// A command to the accepting thread.
enum Command {
    Refuse,
    AcceptAgain,
    End,
}

/// A listening socket with the thread that accepts.
pub(crate) struct Listener {
    addr: ListenAddr,
    on_accept: Arc<Mutex<OnAccept>>,
    commands: Sender<(Command, Sender<()>)>,
    /// A byte written here makes the thread check its commands.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// Socket bound to the port of a TCP listener, never listening.
    _keeper: Option<OwnedFd>,
}

impl Listener {
    /// Returns any port of 127.0.0.1.
    pub(crate) fn tcp_any() -> ListenAddr {
        ListenAddr::Tcp(([127, 0, 0, 1], 0).into())
    }

    #[track_caller]
    pub(crate) fn start(address: ListenAddr, hub: Arc<Hub>, script: Script) -> Listener {
        let (addr, keeper) = match address {
            ListenAddr::Tcp(address) => {
                let (keeper, address) = reserved(address);
                (ListenAddr::Tcp(address), Some(keeper))
            }
            ListenAddr::Unix(path) => (ListenAddr::Unix(path), None),
        };
        let socket = listening(&addr);
        let (commands, receiver) = channel();
        let (wake, woken) = UnixStream::pair().unwrap_or_else(|error| panic!("socketpair: {error}"));
        let on_accept = Arc::new(Mutex::new(OnAccept::Serve));
        let accepting = Accepting {
            addr: addr.clone(),
            socket: Some(socket),
            commands: receiver,
            woken,
            on_accept: Arc::clone(&on_accept),
            hub,
            script,
            ignored: Vec::new(),
        };
        let thread = Builder::new().name("origin".to_owned()).spawn(move || accepting.run());
        let thread = Some(thread.unwrap_or_else(|error| panic!("thread: {error}")));
        Listener { addr, on_accept, commands, wake, thread, _keeper: keeper }
    }

    pub(crate) fn addr(&self) -> &ListenAddr {
        &self.addr
    }

    pub(crate) fn on_accept(&self, what: OnAccept) {
        *lock(&self.on_accept) = what;
    }

    pub(crate) fn refuse(&self) {
        self.send(Command::Refuse);
    }

    pub(crate) fn accept_again(&self) {
        self.send(Command::AcceptAgain);
    }

    pub(crate) fn end(&mut self) {
        self.send(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Sends a command and waits until it has been executed.
    fn send(&self, command: Command) {
        use std::io::Write as _;
        let (done, wait) = channel();
        let _ = self.commands.send((command, done));
        let _ = (&self.wake).write(b"!");
        // An error means that the thread has ended, so there is nothing to wait for.
        let _ = wait.recv();
    }
}

/// The state of the accepting thread.
struct Accepting {
    addr: ListenAddr,
    socket: Option<OwnedFd>,
    commands: Receiver<(Command, Sender<()>)>,
    woken: UnixStream,
    on_accept: Arc<Mutex<OnAccept>>,
    hub: Arc<Hub>,
    script: Script,
    /// Connections that are not served, kept open until the end.
    ignored: Vec<Socket>,
}

impl Accepting {
    fn run(mut self) {
        loop {
            let (connection, command) = self.wait();
            if connection && let Some(socket) = self.accept() {
                self.begin(socket);
            }
            if !command {
                continue;
            }
            let _ = std::io::Read::read(&mut &self.woken, &mut [0]);
            let Ok((command, done)) = self.commands.recv() else { return };
            match command {
                Command::Refuse => self.stop_listening(),
                Command::AcceptAgain if self.socket.is_none() => self.socket = Some(listening(&self.addr)),
                Command::AcceptAgain => {}
                Command::End => {
                    self.stop_listening();
                    if let ListenAddr::Unix(path) = &self.addr {
                        let _ = fs::remove_file(path);
                    }
                    return;
                }
            }
            let _ = done.send(());
        }
    }

    /// Closes the listening socket. A child of another test has a copy of it between its fork(2) and exec(2), which would still
    /// accept connections; shutdown(2) ends the listening for all copies.
    fn stop_listening(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Read);
        }
    }

    /// Waits for a connection or a command; returns which of them are available.
    fn wait(&self) -> (bool, bool) {
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        polled.extend(self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        // If interrupted or failed no events are reported, and the next iteration polls again.
        let _ = poll(&mut polled, None);
        let ready =
            |index: usize| polled.get(index).is_some_and(|one: &PollFd<'_>| !one.revents().is_empty());
        (ready(1), ready(0))
    }

    fn accept(&self) -> Option<Socket> {
        let accepted = rustix::net::accept_with(self.socket.as_ref()?, SocketFlags::CLOEXEC).ok()?;
        Some(match self.addr {
            ListenAddr::Tcp(_) => {
                let stream = TcpStream::from(accepted);
                // TCP_NODELAY: the bytes of a reply before a gate must arrive while the reply waits there.
                let _ = stream.set_nodelay(true);
                Socket::Tcp(stream)
            }
            ListenAddr::Unix(_) => Socket::Unix(UnixStream::from(accepted)),
        })
    }

    fn begin(&mut self, socket: Socket) {
        match *lock(&self.on_accept) {
            OnAccept::Serve => {}
            OnAccept::Close => return self.hub.update(|state| state.stats.connections += 1),
            OnAccept::Reset => {
                socket.reset_on_close();
                drop(socket);
                return self.hub.update(|state| state.stats.connections += 1);
            }
            OnAccept::Ignore => {
                self.ignored.push(socket);
                return self.hub.update(|state| state.stats.connections += 1);
            }
        }
        let socket = Arc::new(socket);
        let number = self.hub.connected(&socket);
        let (hub, script) = (Arc::clone(&self.hub), Arc::clone(&self.script));
        let work = move || {
            let mut connection = Connection::new(socket, Arc::clone(&hub), number);
            let outcome = catch_unwind(AssertUnwindSafe(|| script(&mut connection)));
            if let Err(panic) = outcome {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("something");
                hub.fault(format!("the script of connection {number} panicked: {text}"));
            }
            connection.finish_request();
            // Dropped before it is counted as closed, because a test that waits for the count may check the other end
            // immediately.
            drop(connection);
            hub.disconnected();
        };
        let thread = Builder::new().name(format!("origin {number}")).spawn(work);
        if let Err(error) = thread {
            self.hub.disconnected();
            self.hub.fault(format!("no thread for connection {number}: {error}"));
        }
    }
}

#[track_caller]
fn listening(address: &ListenAddr) -> OwnedFd {
    let outcome = match address {
        ListenAddr::Tcp(address) => bound(*address).and_then(|socket| {
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        }),
        ListenAddr::Unix(path) => {
            // The socket file of a previous listener may still exist.
            let _ = fs::remove_file(path);
            let bound = UnixListener::bind(path).unwrap_or_else(|error| panic!("bind {address}: {error}"));
            // A proxy started by root connects as another user, which needs write permission.
            let opened = fs::set_permissions(path, fs::Permissions::from_mode(0o777));
            opened.unwrap_or_else(|error| panic!("chmod {address}: {error}"));
            // A second listen(2): the standard library's backlog is 128 or 4096, depending on its version.
            rustix::net::listen(bound.as_fd(), BACKLOG).map(|()| bound.into())
        }
    };
    outcome.unwrap_or_else(|error| panic!("listen on {address}: {error}"))
}
