//! A server whose worker is taken over, and everything that an attacker would like to reach: files outside of the configuration,
//! processes of the same user, listeners that are not upstreams.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use testkit::process::{self, Pid};
use testkit::takeover::{Entry, Layout, Outcome, Ring, Thread};
use testkit::{Client, Deadline, Origin, Program, Reply, Server, TempDir, wait};

use crate::common::BINARY;

/// The user of the server's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starter {
    /// The master is root, the worker nobody.
    Root,
    /// All are nobody.
    Nobody,
}

/// Starts a command as user nobody.
const AS_NOBODY: &str = "/usr/bin/setpriv --reuid nobody --regid nogroup --clear-groups";

/// User nobody of Debian and Fedora.
const NOBODY: Uid = Uid::from_raw(65534);

/// Number of a thread's current directory in calls that have a directory: AT_FDCWD.
pub(super) const HERE: u64 = -100_i64 as u64;

/// openat(2) and its flags.
pub(super) const OPENAT: u64 = 257;
pub(super) const READ: u64 = 0;
pub(super) const WRITE: u64 = 1;
pub(super) const CREATE: u64 = 0o101;
pub(super) const TRUNCATE: u64 = 0o1001;

/// A taken-over worker with its surroundings.
pub(super) struct Target {
    pub(super) thread: Thread,
    ring: Ring,
    server: Server,
    worker: Pid,
    /// A directory to which all users may write, and which the configuration does not name.
    outside: TempDir,
    /// The directory of the cache.
    cache: TempDir,
    /// A process of the worker's user.
    bystander: Program,
    /// Listeners that are not upstreams.
    pub(super) port: TcpListener,
    name: String,
    _socket: UnixListener,
    _origin: Origin,
}

/// Creates a directory to which all users may write.
fn open_to_all(name: &'static str) -> TempDir {
    let dir = TempDir::new(name);
    permit(dir.path(), 0o777);
    dir
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

impl Target {
    /// Starts a server and takes over its worker. Returns the reason if this is impossible on this machine.
    pub(super) fn start(mode: &str, starter: Starter) -> Result<Target, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("it takes root".to_owned());
        }
        if mode != "off" && !supports_the_directive() {
            return Err("the program has no directive \"sandbox\"".to_owned());
        }
        let (outside, cache) = (open_to_all("outside"), open_to_all("escape-cache"));
        for (name, mode) in [("secret", 0o644), ("writable", 0o666)] {
            outside.write(name, "not in the configuration");
            permit(&outside.path().join(name), mode);
        }
        let owned = outside.write("owned", "of the worker's user");
        nix::unistd::chown(&owned, Some(NOBODY), None).map_err(|error| error.to_string())?;
        let origin = Origin::start(|_| Reply::ok().body("from the upstream"));
        let server = serve(mode, starter, &outside, &cache, &origin)?;
        let worker = *server.workers().first().ok_or("no worker")?;
        let mut nobody = AS_NOBODY.split(' ');
        let setpriv = nobody.next().unwrap_or_default();
        let bystander = Program::start(setpriv, &nobody.chain(["sleep", "600"]).collect::<Vec<_>>());
        let name = format!("/proc/{}/comm", bystander.pid());
        let runs = || (fs::read_to_string(&name).ok()? == "sleep\n").then_some(());
        wait::until("a process of user nobody", Deadline::default(), runs)
            .map_err(|late| late.to_string())?;
        let layout = Layout::determine(&mut Thread::take(bystander.pid(), bystander.pid())?)?;
        let thread = process::threads(worker).into_iter().find(|thread| thread.name.starts_with("worker "));
        let thread = Thread::take(worker, thread.ok_or("no worker thread")?.tid)?;
        let ring = Ring::of(&thread, worker, layout)?;
        let name = format!("ringroad-escape-{}", bystander.pid());
        let address = UnixAddr::from_abstract_name(&name).expect("a short name");
        let socket = UnixListener::bind_addr(&address).map_err(|error| error.to_string())?;
        let port = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        Ok(Target {
            thread,
            ring,
            server,
            worker,
            outside,
            cache,
            bystander,
            port,
            name,
            _socket: socket,
            _origin: origin,
        })
    }

    pub(super) fn worker(&self) -> Pid {
        self.worker
    }

    pub(super) fn master(&self) -> u64 {
        self.server.pid() as u64
    }

    pub(super) fn bystander(&self) -> u64 {
        self.bystander.pid() as u64
    }

    /// Starts another process of the worker's user and stops it.
    pub(super) fn stopped_process(&self) -> Program {
        let process = sleeping_process();
        process.signal(rustix::process::Signal::STOP);
        let status = format!("/proc/{}/status", process.pid());
        let stopped = || fs::read_to_string(&status).ok()?.contains("State:\tT").then_some(());
        wait::until("the stop", Deadline::default(), stopped).unwrap_or_else(|late| panic!("{late}"));
        process
    }

    /// Copies a path below the directory that the configuration does not name.
    pub(super) fn outside(&mut self, name: &str) -> u64 {
        let path = self.outside.path().join(name);
        self.path(&path)
    }

    /// Copies a path below the root of the site, which the worker only reads.
    pub(super) fn root(&mut self, name: &str) -> u64 {
        let path = self.server.path("html").join(name);
        self.path(&path)
    }

    /// Creates a file in the cache, as a worker may, and copies its path.
    pub(super) fn cached(&mut self, name: &str) -> Result<u64, i32> {
        let path = self.cache.path().join(name);
        let address = self.path(&path);
        self.thread.call(OPENAT, &[HERE, address, CREATE, 0o600])?;
        Ok(address)
    }

    /// Copies a path below the cache.
    pub(super) fn in_cache(&mut self, name: &str) -> u64 {
        let path = self.cache.path().join(name);
        self.path(&path)
    }

    pub(super) fn path(&mut self, path: &Path) -> u64 {
        self.thread.bytes(path.as_os_str().as_encoded_bytes())
    }

    pub(super) fn text(&mut self, text: &str) -> u64 {
        self.thread.bytes(text.as_bytes())
    }

    pub(super) fn call(&mut self, number: u64, arguments: &[u64]) -> Outcome {
        self.thread.call(number, arguments)
    }

    /// Opens a file by its absolute path.
    pub(super) fn open(&mut self, path: u64, flags: u64) -> Outcome {
        self.call(OPENAT, &[HERE, path, flags, 0o600])
    }

    /// Returns the descriptor of the worker's io_uring.
    pub(super) fn ring_fd(&self) -> u64 {
        self.ring.fd()
    }

    pub(super) fn submit(&mut self, entry: &Entry) -> Outcome {
        self.ring.submit(&mut self.thread, entry)
    }

    /// Copies the address of a listener that is not an upstream: `struct sockaddr_in`, 16 bytes.
    pub(super) fn other_port(&mut self) -> u64 {
        let port = self.port.local_addr().expect("it listens").port();
        let mut address = [0; 16];
        address[0] = 2;
        address[2..4].copy_from_slice(&port.to_be_bytes());
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
        self.thread.bytes(&address)
    }

    /// Copies the address of an abstract unix socket of another process; returns it with its length.
    pub(super) fn abstract_socket(&mut self) -> (u64, u64) {
        let mut address = vec![1, 0, 0];
        address.extend_from_slice(self.name.as_bytes());
        (self.thread.bytes(&address), address.len() as u64)
    }

    /// Continues the worker, which must still serve.
    pub(super) fn still_serves(self) {
        let Target { thread, server, .. } = self;
        drop(thread);
        assert_eq!(Client::connect(server.addr(0)).get("/page").text(), "a page");
        assert_eq!(Client::connect(server.addr(0)).get("/upstream").text(), "from the upstream");
    }
}

/// Whether the program has the directive `sandbox`.
pub(super) fn supports_the_directive() -> bool {
    let (status, _) = Server::builder(BINARY).conf("sandbox off; events {}").arg("-t").run_to_end();
    status.success()
}

/// Starts a process of user nobody that only sleeps.
fn sleeping_process() -> Program {
    let mut words = AS_NOBODY.split(' ');
    let setpriv = words.next().unwrap_or_default();
    let process = Program::start(setpriv, &words.chain(["sleep", "600"]).collect::<Vec<_>>());
    let name = format!("/proc/{}/comm", process.pid());
    let runs = || (fs::read_to_string(&name).ok()? == "sleep\n").then_some(());
    wait::until("a process of user nobody", Deadline::default(), runs)
        .unwrap_or_else(|late| panic!("{late}"));
    process
}

fn serve(
    mode: &str,
    starter: Starter,
    outside: &TempDir,
    cache: &TempDir,
    origin: &Origin,
) -> Result<Server, String> {
    let script = outside.write("nobody", format!("#!/bin/sh\nexec {AS_NOBODY} {BINARY} \"$@\"\n"));
    permit(&script, 0o755);
    let binary = match starter {
        Starter::Root => PathBuf::from(BINARY),
        Starter::Nobody => script,
    };
    // A program without the directive has no sandbox.
    let sandbox =
        if mode == "off" && !supports_the_directive() { String::new() } else { format!("sandbox {mode};") };
    let conf = format!(
        "user nobody nogroup; worker_processes 1; {sandbox} events {{ use io_uring; }} http {{ access_log off;
           proxy_cache_path {} keys_zone=z:1m;
           server {{ listen 127.0.0.1:0; root html;
             location /upstream {{ proxy_cache z; proxy_pass http://{}; }} }} }}",
        cache.path().display(),
        origin.addr()
    );
    let builder = Server::builder(binary).conf(&conf).text("html/page", "a page");
    let builder = ["page.copy", "removed", "removed by ring"]
        .into_iter()
        .fold(builder, |builder, name| builder.text(&format!("html/{name}"), "a copy"));
    permit(builder.dir(), 0o777);
    for name in ["conf", "logs", "html"] {
        let directory = builder.dir().join(name);
        fs::create_dir_all(&directory).expect("our own directory");
        permit(&directory, 0o777);
    }
    for name in ["page", "page.copy", "removed", "removed by ring"] {
        permit(&builder.dir().join("html").join(name), 0o666);
    }
    builder.try_start()
}
