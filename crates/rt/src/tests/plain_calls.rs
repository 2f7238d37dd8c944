//! What is done by a plain call, or by none, because an engine would hand it to a kernel worker or get it wrong.

use std::future::pending;
use std::io::Read;
use std::time::Duration;

use io::op::PeerAddr;

use super::{pair, run};
use crate::{Elapsed, File, Socket, Timer, counters, now};

#[test]
fn a_shutdown_and_a_look_at_an_open_file_are_no_operations() {
    run(|_| async {
        let (near, mut far) = pair();
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = Socket::new(near);
        socket.shutdown_write();
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "at once, before any turn");
        let (exe, mode) = (std::env::current_exe().unwrap(), rustix::fs::Mode::empty());
        let file = File::new(rustix::fs::open(exe, rustix::fs::OFlags::RDONLY, mode).unwrap());
        assert!(file.stat_inline().unwrap().size > 0);
        assert_eq!(counters().engine.submitted, 0);
    });
}

#[test]
fn a_deadline_is_no_operation_and_is_linked_to_none() {
    run(|fake| async move {
        let timer = Timer::new();
        timer.set(now() + Duration::from_millis(1));
        assert_eq!(timer.limit(pending::<()>()).await, Err(Elapsed));
        assert_eq!(counters().engine.submitted, 0);
        timer.set(now() + Duration::from_millis(1));
        assert!(timer.limit(Socket::connect(PeerAddr::Unix("/nobody".into()))).await.is_err());
        assert_eq!(fake.abandoned(), 1);
        let connect_and_close = counters().engine.submitted;
        assert!(connect_and_close <= 2, "{connect_and_close} operations for one connect");
    });
}
