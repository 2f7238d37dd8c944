//! The engines of this machine, for tests of the runtime over real engines.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::facts::DeviceId;
use io::op::PeerAddr;
use io::{Disk, DiskVia, Drained, Segments};
use rt::{Runtime, Socket};

/// Maximum wait of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A network backend and a disk backend, with the `DiskVia` for operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Names in the report.
    pub(crate) names: (&'static str, &'static str),
    /// The network backend.
    pub(crate) net: NetKind,
    /// The disk backend.
    pub(crate) via: DiskVia,
}

const NETS: [(&str, NetKind); 2] = [("io_uring", NetKind::Uring), ("epoll", NetKind::Epoll)];

const DISKS: [(&str, DiskVia); 4] = [
    ("io_uring", DiskVia::Ring),
    ("libaio", DiskVia::Libaio),
    ("threads", DiskVia::Pool(0)),
    ("sync", DiskVia::Sync),
];

impl Pair {
    /// Returns the device and the backend of operations on files.
    pub(crate) fn disk(self) -> Disk {
        Disk { device: DeviceId(1), via: self.via }
    }

    /// Returns the settings for this pair.
    pub(crate) fn config(self) -> EngineConfig {
        let pooled = matches!(self.via, DiskVia::Pool(_) | DiskVia::Libaio);
        let pools = pooled.then(|| ThreadPool::new("test", 2, 1024).unwrap());
        EngineConfig {
            net: self.net,
            disk_ring: self.via == DiskVia::Ring,
            disk_libaio: self.via == DiskVia::Libaio,
            ring_entries: 256,
            recv_buffers: 256,
            pool_bytes_max: 64 << 20,
            pools: pools.into_iter().collect(),
            ..EngineConfig::default()
        }
    }

    /// Runs a future on a separate runtime, and checks that nothing remains in flight.
    pub(crate) fn run<F: Future>(self, test: F) -> F::Output {
        let mut runtime = Runtime::new(io::build(self.config()).unwrap());
        let output = runtime.block_on(async {
            let timer = rt::Timer::new();
            timer.set(rt::now() + PATIENCE);
            timer.limit(test).await.expect("the test ends in time")
        });
        assert_eq!(runtime.shutdown(Instant::now() + PATIENCE), Drained::Clean, "{:?}", self.names);
        output
    }
}

/// Runs a test on every pair that this machine supports, and reports it.
pub(crate) fn on_each_pair(test: impl Fn(Pair)) {
    on_each(&DISKS, test);
}

/// Runs a test once on every network backend that this machine supports.
pub(crate) fn on_each_net(test: impl Fn(Pair)) {
    on_each(&[("sync", DiskVia::Sync)], test);
}

fn on_each(disks: &[(&'static str, DiskVia)], test: impl Fn(Pair)) {
    for (net_name, net) in NETS {
        for &(disk_name, via) in disks {
            let pair = Pair { names: (net_name, disk_name), net, via };
            match io::build(pair.config()) {
                Ok(_) => {
                    test(pair);
                    testkit::engines::report_ran(net_name, disk_name);
                }
                Err(error) => testkit::engines::report_skipped(net_name, disk_name, &error.to_string()),
            }
        }
    }
}

/// Returns a listening socket on loopback and its address.
pub(crate) fn listening() -> (OwnedFd, PeerAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = PeerAddr::Inet(listener.local_addr().unwrap());
    (listener.into(), address)
}

/// Sends a vector and returns it for reuse.
pub(crate) async fn send(socket: &mut Socket, bytes: Vec<u8>) -> Vec<u8> {
    let segments = Segments::from(bytes);
    let (result, mut segments) = socket.writer.send(segments, false).await;
    result.unwrap();
    segments.take_vec().unwrap_or_default()
}

/// Receives exactly as many bytes as `wanted` has, and compares them.
pub(crate) async fn expect(socket: &mut Socket, mut wanted: &[u8]) {
    while !wanted.is_empty() {
        let buf = socket.reader.recv().await.unwrap().expect("the peer is not done");
        let (head, rest) = wanted.split_at(buf.len().min(wanted.len()));
        assert!(*buf == *head, "other bytes than were sent");
        wanted = rest;
    }
}
