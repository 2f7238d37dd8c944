//! Shared by the tests in this directory: a server on worker threads, tested over a socket.
#![expect(clippy::disallowed_methods, reason = "a test may wait")]
// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use conf::{MapLoader, Source};
use modules::ModuleTable;
use rustix::fs::{Mode, OFlags};
use server::process::{Resources, Worker};
use site::settings::listen::ListenAddr;
use testkit::{Client, Deadline, Response, TempDir};

/// A server that ends with the test.
pub(crate) struct Site {
    worker: Option<Worker>,
    /// Its listening address.
    pub(crate) address: SocketAddr,
    /// The directory that is the prefix of its paths.
    pub(crate) folder: TempDir,
}

impl Site {
    /// Starts a server with this content of `http`; `PORT` stands for its port.
    pub(crate) fn start(label: &str, http: &str) -> Site {
        Site::start_with_events(label, "", http)
    }

    /// As [`Site::start`], with additional text in `events`.
    pub(crate) fn start_with_events(label: &str, events: &str, http: &str) -> Site {
        Site::start_with_modules(modules::all(), label, events, http)
    }

    /// As [`Site::start_with_events`], with these modules.
    pub(crate) fn start_with_modules(
        modules: &'static ModuleTable,
        label: &str,
        events: &str,
        http: &str,
    ) -> Site {
        let folder = TempDir::new(label);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        // Non-blocking, like the sockets that the master passes: with epoll, accept must not block.
        listener.set_nonblocking(true).expect("a socket takes the flag");
        let address = listener.local_addr().expect("it is bound");
        let http = http.replace("PORT", &address.port().to_string());
        let text =
            format!("events {{ use epoll; {events} }} http {{ aio off; error_log error.log; {http} }}");
        let source = Source::new("/nginx.conf");
        let loader: MapLoader = [("/nginx.conf", text)].into_iter().collect();
        let loaded = site::config::load(modules.declarations(), &source, folder.path(), &loader);
        let loaded = loaded.expect("the configuration is right");
        let logs = loaded.config.log_files();
        let logs = logs.into_iter().map(|path| (path.clone(), open_log(&path))).collect();
        let listeners = vec![(ListenAddr::Tcp(address), vec![listener.into()])];
        let worker = Worker::start_with_modules(
            modules,
            &loaded.config,
            Resources { listeners, logs, ..Resources::default() },
            "",
        );
        let worker = worker.expect("it starts");
        Site { worker: Some(worker), address, folder }
    }

    /// Opens a new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&testkit::ListenAddr::Tcp(self.address))
    }

    /// Returns the response to a GET request on a new connection.
    pub(crate) fn get(&self, target: &str) -> Response {
        self.client().get(target)
    }

    /// Returns the body of the response to a GET request on a new connection.
    pub(crate) fn text(&self, target: &str) -> String {
        self.get(target).text()
    }

    /// Returns the status of the response to a GET request on a new connection.
    pub(crate) fn status(&self, target: &str) -> u16 {
        self.get(target).head.status
    }

    /// Returns the lines of a log once it has at least `count`.
    pub(crate) fn lines(&self, name: &str, count: usize) -> Vec<String> {
        let path = self.folder.path().join(name);
        let lines = || {
            let lines: Vec<String> = read(&path).lines().map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        };
        let deadline = Deadline::default();
        testkit::wait::until("log lines", deadline, lines).expect("the lines are written")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
            worker.wait();
        }
    }
}

fn open_log(path: &Path) -> OwnedFd {
    if let Some(folder) = path.parent() {
        let _ = rustix::fs::mkdir(folder, Mode::RWXU);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).expect("a log file")
}

fn read(path: &PathBuf) -> String {
    let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).expect("the file is there");
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).expect("it is text");
    text
}
