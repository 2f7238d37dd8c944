//! The keys that the master sends to the signing process.

use std::time::SystemTime;

use acme::settings::Order;
use acme::state::StateDirectory;
use tls::apart::KeyName;
use tls::issue::self_signed_pem;
use tls::signing::KeyKind;

use super::*;
use crate::control::signer::{FromSigner, ToSigner};

#[test]
fn acme_keys_of_a_pending_configuration_are_in_use() {
    let folder = begin("pending-keys");
    let mut arena = strict(&folder, "");
    let path = folder.join("state");
    let names = vec!["a.example".to_owned()];
    let pem = self_signed_pem(&names, KeyKind::EcdsaP256, SystemTime::now()).expect("a certificate");
    let state = StateDirectory::open(&path).expect("it can be made");
    let digest = Order { names, ..Order::default() }.digest();
    state.set_certificate(&digest, pem.as_bytes()).expect("it is written");
    write_strict(
        &folder,
        &format!(
            "acme_issuer one {{ uri https://localhost:14000/dir; state_path {}; accept_terms_of_service; }}
            server {{ listen 127.0.0.2:0 ssl; server_name a.example; acme_certificate one;
            ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }}",
            path.display()
        ),
    );
    let name = KeyName::of_text(pem.as_bytes()).expect("a key");
    let is_used = |master: &Master| master.keys_in_use().iter().any(|key| key.name() == name);
    assert!(!is_used(&arena.master));
    arena.master.obey(Signal::SIGHUP);
    assert!(arena.master.pending.is_some(), "the worker has not responded");
    assert!(is_used(&arena.master));
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn many_confirmations_of_a_worker_collect_the_keys_in_use_once() {
    let folder = begin("collected-keys");
    let mut arena = strict(&folder, "");
    let worker = arena.master.workers[0].pid();
    let id = arena.master.signer.id().expect("a signing process");
    let mut signer = arena.processes.remove(&id).expect("it runs");
    let mut collections = || {
        let mut count = 0;
        while let Ok(Received::Packet(packet)) = signer.channel.receive() {
            let message = ToSigner::decode(&packet.body).expect("it is well-formed");
            count += u64::from(matches!(message, ToSigner::Keys { is_complete: true, .. }));
        }
        count
    };
    collections();
    let challenge = Challenge::Http { token: "t".to_owned(), text: "t.x".to_owned() };
    for number in 1..=100 {
        let change = AcmeChange::Install(challenge.clone());
        arena.master.workers[0].send(&ToWorker::Acme(number, change), Vec::new());
        arena.tell(worker, &ToMaster::AcmeDone(number).encode());
        arena.master.keep_signer();
    }
    assert!(simulated::is_alive(worker));
    assert_eq!(collections(), 0, "there is a pause");
    assert!(arena.master.signer.deadline().is_some_and(|at| at > Instant::now()));
    arena.master.signer.skip_collect_pause();
    for _ in 0..2 {
        arena.master.keep_signer();
    }
    assert_eq!((collections(), arena.master.signer.deadline()), (1, None));
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

/// Returns the numbers of the messages with sockets that a signing process has received.
fn lines_of(signer: &mut Process) -> Vec<u64> {
    let mut lines = Vec::new();
    while let Ok(Received::Packet(packet)) = signer.channel.receive() {
        if let Ok(ToSigner::Serve { line, .. }) = ToSigner::decode(&packet.body) {
            lines.push(line);
        }
    }
    lines
}

/// Reloads a configuration that needs another worker process.
fn reload_by_replacement(arena: &mut Arena, folder: &Path, round: u32) {
    let text = std::fs::read_to_string(folder.join("a.conf")).expect("it was written");
    std::fs::write(folder.join("a.conf"), format!("env A{round}=1;\n{text}")).expect("it is writable");
    arena.master.obey(Signal::SIGHUP);
    arena.turn();
}

#[test]
fn sockets_that_the_signing_process_refuses_are_created_again() {
    let folder = begin("refused-sockets");
    let mut arena = strict(&folder, "");
    let worker = arena.master.workers[0].pid();
    let id = arena.master.signer.id().expect("a signing process");
    let mut signer = arena.processes.remove(&id).expect("it runs");
    // The start has used the first number.
    let first = 1;
    let is_served = |arena: &Arena| arena.master.signer.serves(&arena.master.workers[0]);
    let refuse = |arena: &mut Arena, signer: &mut Process, line| {
        let message = FromSigner::Refused { line, reason: "8 of 8 are open".to_owned() };
        signer.channel.send(&message.encode(), Vec::new()).expect("the master runs");
        arena.master.keep_signer();
    };
    refuse(&mut arena, &mut signer, first + 1);
    assert!(is_served(&arena), "a number of another worker");
    for round in 1..=2 {
        refuse(&mut arena, &mut signer, first + round - 1);
        assert!(!is_served(&arena) && lines_of(&mut signer).is_empty(), "there is a pause");
        assert!(arena.master.signer.deadline().is_some());
        arena.master.signer.skip_reconnect_pause();
        arena.master.keep_signer();
        assert!(is_served(&arena));
        assert_eq!(lines_of(&mut signer), [first + round]);
    }
    let of_worker = arena.processes.get_mut(&worker).expect("it runs");
    let mut connected = 0;
    while let Ok(Received::Packet(packet)) = of_worker.channel.receive() {
        connected += usize::from(matches!(ToWorker::decode(&packet.body), Ok(ToWorker::Signer)));
    }
    assert_eq!(connected, 2);
    let log = std::fs::read_to_string(folder.join("error.log")).expect("the log");
    assert_eq!(log.matches("8 of 8 are open").count(), 1, "{log}");
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_configuration_waits_until_the_signing_process_has_room_for_its_worker() {
    let folder = begin("signer-room");
    let mut arena = strict(&folder, "");
    let first = arena.master.workers[0].pid();
    arena.master.signer.set_sockets_max(4);
    reload_by_replacement(&mut arena, &folder, 1);
    let second = arena.master.workers[1].pid();
    arena.tell(
        second,
        &ToMaster::Ready { method: "epoll".to_owned(), remark: None, is_outdated: false }.encode(),
    );
    assert!(matches!(arena.master.workers[0].stage, Stage::Leaving { .. }));
    let generation = arena.master.cycle.generation;
    reload_by_replacement(&mut arena, &folder, 2);
    assert!(arena.master.pending.is_none() && arena.master.workers.len() == 2);
    let log = std::fs::read_to_string(folder.join("error.log")).expect("the log");
    assert!(log.contains("and other workers use 4 of 4: reload when they have finished"), "{log}");
    // After an exit of the signing process, the worker that serves gets sockets first.
    arena.master.signer.set_sockets_max(2);
    simulated::exit(arena.master.signer.id().expect("a signing process"), 1);
    arena.turn();
    arena.turn();
    let served: Vec<bool> =
        arena.master.workers.iter().map(|worker| arena.master.signer.serves(worker)).collect();
    assert_eq!(served, [false, true]);
    arena.master.signer.set_sockets_max(4);
    simulated::exit(first, 0);
    arena.turn();
    assert_eq!(arena.master.cycle.generation, generation);
    reload_by_replacement(&mut arena, &folder, 3);
    assert!(arena.master.pending.is_some());
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_worker_does_not_start_the_signing_process_during_its_pause() {
    let folder = begin("signer-pause");
    let mut arena = strict(&folder, "");
    let exits = (0..100).take_while(|_| {
        let id = arena.master.signer.id();
        id.into_iter().for_each(|id| simulated::exit(id, 1));
        arena.master.keep_signer();
        id.is_some()
    });
    assert!((2..20).contains(&exits.count()), "then there is a pause");
    let worker = arena.master.start_worker(None, false).expect("it starts without the signing process");
    assert!(arena.master.signer.id().is_none() && !arena.master.signer.serves(&worker));
    std::fs::remove_dir_all(&folder).expect("it was made here");
}
