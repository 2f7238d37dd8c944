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

fn read(backends: &Backends, file: &Fd) -> Op {
    let buf = backends.pool.get(4096).unwrap();
    let (device, via) = (DeviceId::default(), DiskVia::Libaio);
    Op::Read { file: file.clone(), offset: 0, len: 4096, buf, device, via }
}

/// Returns the route of an operation that requests libaio.
fn choice(backends: &mut Backends, op: Op) -> Route {
    let (id, _) = backends.slots.insert(op, 0);
    backends.route(id, DiskVia::Libaio, DeviceId::default())
}

/// io_submit(2) blocks for everything except direct reads.
#[test]
fn libaio_gets_only_direct_reads() {
    let Some(mut backends) = backends(true, 1) else { return };
    let (direct, buffered) = files();
    let (device, via) = (DeviceId::default(), DiskVia::Libaio);
    let mut buf = backends.pool.get(4096).unwrap();
    buf.append(b"x");
    let others = [
        read(&backends, &buffered),
        Op::Write { file: direct.clone().unwrap_or(buffered.clone()), offset: 0, buf, device, via },
        Op::Sync { file: buffered.clone(), device, via },
        Op::Stat { target: StatTarget::File(buffered), device, via },
        Op::Open { dir: None, path: c"/".into(), how: OpenHow::default(), device, via },
    ];
    for op in others {
        let name = format!("{op:?}");
        assert_eq!(choice(&mut backends, op), Route::Pool(0, DeviceId::default()), "{name}");
    }
    if let Some(direct) = direct {
        let op = read(&backends, &direct);
        assert_eq!(choice(&mut backends, op), Route::Libaio(DeviceId::default()));
    }
}

#[test]
fn reads_fall_back_from_libaio_to_the_pool_to_the_thread() {
    let (Some(direct), _) = files() else { return };
    for (pools, expected) in [(1, Route::Pool(0, DeviceId::default())), (0, Route::Sync)] {
        let Some(mut backends) = backends(false, pools) else { return };
        let op = read(&backends, &direct);
        assert_eq!(choice(&mut backends, op), expected);
    }
}
