//! Tests of the backend that is chosen for an operation.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use testkit::TempDir;

use super::*;
use crate::op::{OpenHow, StatTarget};

fn backends(libaio: bool, pools: usize) -> Option<Backends> {
    let config = EngineConfig {
        net: NetKind::Epoll,
        disk_ring: false,
        disk_libaio: libaio,
        pool_bytes_max: 8 << 20,
        pools: (0..pools).map(|_| ThreadPool::new("test", 1, 16).unwrap()).collect(),
        ..EngineConfig::default()
    };
    let backends = Backends::new(config);
    backends.inspect_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Opens a file for direct reads and for buffered reads; the first is `None` if direct reads are not supported.
fn files() -> (Option<Fd>, Fd) {
    let dir = TempDir::new("io-backends");
    let path = dir.write("page", [0_u8; 4096]);
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let buffered = File::open(&path).unwrap();
    let direct = direct.inspect_err(|error| eprintln!("skipped: O_DIRECT: {error}")).ok();
    (direct.map(|file| Fd::from(OwnedFd::from(file))), Fd::from(OwnedFd::from(buffered)))
}

const LIBAIO: Disk = Disk { device: DeviceId(0), via: DiskVia::Libaio };

fn read(backends: &Backends, file: &Fd) -> DiskOp {
    let buf = backends.pool.get(4096).unwrap();
    DiskOp::Read { file: file.clone(), offset: 0, len: 4096, buf }
}

/// io_submit(2) blocks for everything except direct reads.
#[test]
fn libaio_gets_only_direct_reads() {
    let Some(backends) = backends(true, 1) else { return };
    let (direct, buffered) = files();
    let mut buf = backends.pool.get(4096).unwrap();
    buf.append(b"x");
    let others = [
        read(&backends, &buffered),
        DiskOp::Write { file: direct.clone().unwrap_or(buffered.clone()), offset: 0, buf },
        DiskOp::Sync { file: buffered.clone() },
        DiskOp::Stat { target: StatTarget::File(buffered) },
        DiskOp::Open { dir: None, path: c"/".into(), how: OpenHow::default() },
    ];
    for op in others {
        assert_eq!(backends.route(LIBAIO, &op), Route::Pool(0, LIBAIO.device), "{op:?}");
    }
    if let Some(direct) = direct {
        assert_eq!(backends.route(LIBAIO, &read(&backends, &direct)), Route::Libaio(LIBAIO.device));
    }
}

#[test]
fn reads_fall_back_from_libaio_to_the_pool_to_the_thread() {
    let (Some(direct), _) = files() else { return };
    for (pools, expected) in [(1, Route::Pool(0, LIBAIO.device)), (0, Route::Sync)] {
        let Some(backends) = backends(false, pools) else { return };
        assert_eq!(backends.route(LIBAIO, &read(&backends, &direct)), expected);
    }
}
