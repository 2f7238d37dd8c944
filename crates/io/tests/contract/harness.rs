//! Shared code of the contract tests: the engine pairs of this machine, an engine that waits for one completion at a
//! time, and peers on loopback.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::facts::DeviceId;
use io::op::{OpenHow, RecvInto};
use io::{
    Completion, Disk, DiskOp, DiskVia, Drained, Engine, Errno, Fd, NetOp, Op, OpId, Payload, Segments, Wait,
};
use testkit::engines::{report_ran, report_skipped};

/// Token of all operations.
pub(crate) const TOKEN: u64 = u64::MAX - 3;

/// Maximum duration of any single step of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A disk backend, with its name in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskBackend {
    Uring,
    Libaio,
    Threads,
    Sync,
}

/// A network backend combined with a disk backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) net: NetKind,
    pub(crate) disk: DiskBackend,
}

impl Pair {
    fn all() -> impl Iterator<Item = Pair> {
        let disks = [DiskBackend::Uring, DiskBackend::Libaio, DiskBackend::Threads, DiskBackend::Sync];
        let nets = [NetKind::Uring, NetKind::Epoll];
        nets.into_iter().flat_map(move |net| disks.into_iter().map(move |disk| Pair { net, disk }))
    }

    /// Returns the names of both backends in the report.
    fn names(self) -> (&'static str, &'static str) {
        let net = match self.net {
            NetKind::Uring => "io_uring",
            NetKind::Epoll => "epoll",
        };
        let disk = match self.disk {
            DiskBackend::Uring => "io_uring",
            DiskBackend::Libaio => "libaio",
            DiskBackend::Threads => "threads",
            DiskBackend::Sync => "sync",
        };
        (net, disk)
    }

    /// Returns the backend for file operations.
    pub(crate) fn via(self) -> DiskVia {
        match self.disk {
            DiskBackend::Uring => DiskVia::Ring,
            DiskBackend::Libaio => DiskVia::Libaio,
            DiskBackend::Threads => DiskVia::Pool(0),
            DiskBackend::Sync => DiskVia::Sync,
        }
    }

    /// Returns settings for this pair with low limits, so that tests reach them.
    pub(crate) fn config(self) -> EngineConfig {
        let pools = match self.disk {
            DiskBackend::Threads | DiskBackend::Libaio => vec![ThreadPool::new("test", 4, 1024).unwrap()],
            DiskBackend::Uring | DiskBackend::Sync => Vec::new(),
        };
        EngineConfig {
            net: self.net,
            disk_ring: self.disk == DiskBackend::Uring,
            disk_libaio: self.disk == DiskBackend::Libaio,
            ring_entries: 128,
            ops_max: 1024,
            recv_buffers: 64,
            pool_bytes_max: 32 << 20,
            iowq_workers: 8,
            pools,
            ..EngineConfig::default()
        }
    }

    /// Returns the reason why this pair is not available on the machine.
    fn missing(self) -> Option<String> {
        match io::build(self.config()) {
            Err(error) => Some(error.to_string()),
            Ok(engine) if engine.caps().net != self.net => Some("another network engine came".to_owned()),
            Ok(engine) if self.disk == DiskBackend::Uring && !engine.caps().disk_ring => {
                Some("no ring for the disk".to_owned())
            }
            Ok(engine) if self.disk == DiskBackend::Libaio && !engine.caps().disk_libaio => {
                Some("no libaio".to_owned())
            }
            Ok(_) => None,
        }
    }
}

/// Returns the pairs available on this machine; the first call reports them and the skipped pairs.
pub(crate) fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let is_available = |pair: &Pair| {
            let ((net, disk), missing) = (pair.names(), pair.missing());
            match &missing {
                None => report_ran(net, disk),
                Some(reason) => report_skipped(net, disk, reason),
            }
            missing.is_none()
        };
        Pair::all().filter(is_available).collect()
    })
}

/// Runs a test on every available pair. Afterwards drains the engine and checks that each operation has ended once.
pub(crate) fn on_each_pair(test: impl Fn(&mut Bench)) {
    on_each_pair_with(|_| {}, test);
}

/// As [`on_each_pair`], with changed settings.
pub(crate) fn on_each_pair_with(change: impl Fn(&mut EngineConfig), test: impl Fn(&mut Bench)) {
    for &pair in pairs() {
        println!("on {pair:?}");
        let mut config = pair.config();
        change(&mut config);
        let mut bench = Bench::new(pair, config);
        test(&mut bench);
        bench.end();
    }
}

/// Runs a test once per network backend, for behaviour that does not depend on the disk backend.
pub(crate) fn on_each_net(test: impl Fn(&mut Bench)) {
    for net in [NetKind::Uring, NetKind::Epoll] {
        if let Some(pair) = pairs().iter().find(|pair| pair.net == net) {
            println!("on {pair:?}");
            let mut bench = Bench::new(*pair, pair.config());
            test(&mut bench);
            bench.end();
        }
    }
}

/// An engine, and the completions not taken yet.
pub(crate) struct Bench {
    pub(crate) pair: Pair,
    pub(crate) engine: Box<dyn Engine>,
    seen: Vec<Completion>,
    /// Whether the engine must drain cleanly; `false` in tests that make it leak.
    pub(crate) drains: bool,
}

impl Bench {
    pub(crate) fn new(pair: Pair, config: EngineConfig) -> Bench {
        let engine = io::build(config).expect("the pair was built before");
        Bench { pair, engine, seen: Vec::new(), drains: true }
    }

    pub(crate) fn submit(&mut self, op: Op) -> OpId {
        self.engine.submit(op, TOKEN).expect("the table has room")
    }

    /// Runs one turn that waits at most `longest`; completions are stored for [`Bench::next`].
    pub(crate) fn turn(&mut self, longest: Duration) {
        self.engine.turn(Wait::Until(Instant::now() + longest), &mut self.seen).expect("a turn works");
    }

    /// Waits for the next completion of `id`.
    pub(crate) fn next(&mut self, id: OpId) -> Completion {
        let before = Instant::now();
        let completion = self.next_within(id, PATIENCE);
        assert!(before.elapsed() < PATIENCE, "{id:?} was found by a deadline only: {completion:?}");
        if before.elapsed() > PATIENCE / 20 {
            println!("{:?} for {completion:?}", before.elapsed());
        }
        completion.unwrap_or_else(|| panic!("{id:?} did not complete"))
    }

    /// Returns the next completion of `id`, if it arrives in time.
    pub(crate) fn next_within(&mut self, id: OpId, longest: Duration) -> Option<Completion> {
        let deadline = Instant::now() + longest;
        loop {
            if let Some(place) = self.seen.iter().position(|completion| completion.id == id) {
                assert_eq!(self.seen[place].token, TOKEN, "a completion has the token of its operation");
                return Some(self.seen.remove(place));
            }
            if Instant::now() >= deadline {
                return None;
            }
            self.engine.turn(Wait::Until(deadline), &mut self.seen).expect("a turn works");
        }
    }

    /// Runs turns until `condition` is true.
    pub(crate) fn turn_until(&mut self, mut condition: impl FnMut(&mut Bench) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "what the test waits for did not happen");
            self.turn(Duration::from_millis(5));
        }
    }

    /// Runs turns until no operation is in flight.
    pub(crate) fn turn_until_idle(&mut self) {
        self.turn_until(|bench| {
            let counters = bench.engine.counters();
            counters.submitted == counters.completed
        });
    }

    /// Returns one of the three destinations of received bytes.
    pub(crate) fn destination(&self, mode: usize) -> RecvInto {
        match mode {
            0 => RecvInto::Owned(self.engine.pool().get(4096).unwrap()),
            1 => RecvInto::Pool,
            _ => RecvInto::Stream,
        }
    }

    /// Returns the number of bytes of lent buffers.
    pub(crate) fn bytes_held(&self) -> u64 {
        let counters = self.engine.pool().counters();
        counters.bytes - counters.idle_bytes
    }

    /// Returns all completions that were not taken yet.
    pub(crate) fn take_seen(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.seen)
    }

    /// Submits an operation and waits for its terminal completion, which must be the only one.
    pub(crate) fn run(&mut self, op: Op) -> Completion {
        let id = self.submit(op);
        let completion = self.next(id);
        assert!(!completion.more, "one completion was expected");
        completion
    }

    /// Sends all of `bytes`.
    pub(crate) fn send_all(&mut self, socket: &Fd, bytes: &[u8]) -> Result<(), Errno> {
        let mut data = Segments::from(bytes.to_vec());
        while !data.is_empty() {
            let send = Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: false });
            let completion = self.run(send);
            data = segments(completion.payload);
            data.advance(completion.result? as usize);
        }
        Ok(())
    }

    /// Receives once.
    pub(crate) fn recv(&mut self, socket: &Fd, into: RecvInto) -> Completion {
        self.run(Op::Net(NetOp::Recv { socket: socket.clone(), into }))
    }

    pub(crate) fn open(&mut self, path: &std::path::Path, flags: i32) -> Result<Fd, Errno> {
        let completion = self.run(open(path, flags, DeviceId(0), self.pair.via()));
        completion.result?;
        match completion.payload {
            Payload::Opened(fd) => Ok(Fd::from(fd)),
            other => panic!("an open brought {other:?}"),
        }
    }

    /// Reads at `offset` until `len` bytes or the end of the file were read: a short read is legal.
    pub(crate) fn read_fully(&mut self, file: &Fd, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let mut whole = Vec::new();
        loop {
            let part = self.read(file, offset + whole.len() as u64, len - whole.len() as u32)?;
            whole.extend_from_slice(&part);
            if part.is_empty() || whole.len() == len as usize {
                return Ok(whole);
            }
        }
    }

    /// Reads once at `offset` into a buffer of `len`.
    pub(crate) fn read(&mut self, file: &Fd, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let buf = self.engine.pool().get(len as usize).expect("the pool has room");
        let (file, via) = (file.clone(), self.pair.via());
        let completion = self.run(Op::Disk {
            at: Disk { device: DeviceId(0), via },
            op: DiskOp::Read { file, offset, len, buf },
        });
        let Payload::Buf(buf) = completion.payload else { panic!("a read gives its buffer back") };
        let count = completion.result?;
        assert_eq!(count as usize, buf.len(), "the buffer's length is the count");
        Ok(buf.to_vec())
    }

    fn end(&mut self) {
        if self.drains {
            self.assert_drains();
        }
    }

    /// Drains the engine; all operations must end by themselves or by the drain.
    pub(crate) fn assert_drains(&mut self) {
        let before = Instant::now();
        assert_eq!(self.engine.drain(before + PATIENCE), Drained::Clean);
        assert!(before.elapsed() < PATIENCE, "the drain missed a completion and woke up by its deadline");
        let counters = self.engine.counters();
        assert_eq!(counters.submitted, counters.completed, "each operation ends once");
        assert_eq!(counters.unmatched, 0);
    }
}

/// Returns an open operation.
pub(crate) fn open(path: &std::path::Path, flags: i32, device: DeviceId, via: DiskVia) -> Op {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let how = OpenHow { flags, mode: 0o600, ..OpenHow::default() };
    Op::Disk { at: Disk { device, via }, op: DiskOp::Open { dir: None, path, how } }
}

/// Returns the segments of a completed send.
pub(crate) fn segments(payload: Payload) -> Segments {
    match payload {
        Payload::Segments(segments) => segments,
        other => panic!("a send brought {other:?}"),
    }
}

/// Returns the bytes of a completed receive; an empty slice at the end of the stream.
pub(crate) fn received(payload: &Payload) -> &[u8] {
    match payload {
        Payload::Buf(buf) => buf,
        _ => &[],
    }
}

/// Returns a listening socket for the engine, with its address.
pub(crate) fn listener() -> (Fd, std::net::SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (Fd::from(OwnedFd::from(listener)), address)
}

/// Returns a connection: the engine's socket and the blocking peer.
pub(crate) fn connection() -> (Fd, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_write_timeout(Some(PATIENCE)).unwrap();
    (Fd::from(OwnedFd::from(ours)), peer)
}

/// Returns bytes that depend on their position, so that shifted or repeated ranges are detected.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place ^ (place >> 8) ^ (place >> 16).wrapping_mul(37)) as u8).collect()
}
