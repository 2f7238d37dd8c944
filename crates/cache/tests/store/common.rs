//! The engines of this machine, a store in a separate directory, and helpers for fills and lookups.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cache::{
    Body, Config, FillError, Hit, Key, Levels, Located, Meta, New, Note, Notify, PurgeEffect, Refused, Scope,
    Store,
};
use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::fault::FaultPlan;
use io::{DiskVia, Drained};
use rt::Runtime;
use testkit::{Content, TempDir};

/// Maximum wait of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Size of a chunk in bytes.
pub(crate) const CHUNK: u64 = cache::CHUNK_BYTES;

/// A network backend and a disk backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) names: (&'static str, &'static str),
    pub(crate) net: NetKind,
    pub(crate) via: DiskVia,
    /// Memory limit of the process in bytes.
    pub(crate) memory_max: Option<u64>,
}

const PAIRS: [(&str, NetKind, &str, DiskVia); 5] = [
    ("io_uring", NetKind::Uring, "io_uring", DiskVia::Ring),
    ("epoll", NetKind::Epoll, "threads", DiskVia::Pool(0)),
    ("epoll", NetKind::Epoll, "libaio", DiskVia::Libaio),
    ("epoll", NetKind::Epoll, "sync", DiskVia::Sync),
    ("io_uring", NetKind::Uring, "threads", DiskVia::Pool(0)),
];

/// The engine of tests that do not depend on engines.
pub(crate) const PLAIN: Pair =
    Pair { names: ("epoll", "threads"), net: NetKind::Epoll, via: DiskVia::Pool(0), memory_max: None };

impl Pair {
    pub(crate) fn config(self, faults: &str) -> EngineConfig {
        let pooled = matches!(self.via, DiskVia::Pool(_) | DiskVia::Libaio);
        let pools = pooled.then(|| ThreadPool::new("test", 4, 4096).unwrap());
        let faults = (!faults.is_empty()).then(|| Arc::new(FaultPlan::parse(faults).unwrap()));
        EngineConfig {
            net: self.net,
            disk_ring: self.via == DiskVia::Ring,
            disk_libaio: self.via == DiskVia::Libaio,
            ring_entries: 256,
            recv_buffers: 256,
            pool_bytes_max: 64 << 20,
            memory_max: self.memory_max,
            pools: pools.into_iter().collect(),
            faults,
            ..EngineConfig::default()
        }
    }

    /// Runs a future on a separate runtime.
    pub(crate) fn run<F: Future>(self, test: F) -> F::Output {
        self.run_with("", test)
    }

    /// As [`Pair::run`], over an engine with injected faults.
    pub(crate) fn run_with<F: Future>(self, faults: &str, test: F) -> F::Output {
        self.run_for(PATIENCE, faults, test)
    }

    /// As [`Pair::run_with`], with the time limit `patience`.
    pub(crate) fn run_for<F: Future>(self, patience: Duration, faults: &str, test: F) -> F::Output {
        let mut runtime = Runtime::new(io::build(self.config(faults)).unwrap());
        let output = runtime.block_on(async {
            let timer = rt::Timer::new();
            timer.set(rt::now() + patience);
            let output = timer.limit(test).await.expect("the test ends in time");
            timer.set(rt::now() + PATIENCE);
            timer.limit(quiet()).await.expect("background tasks end in time");
            MANAGERS.set(0);
            output
        });
        assert_eq!(runtime.shutdown(Instant::now() + PATIENCE), Drained::Clean, "{:?}", self.names);
        output
    }
}

thread_local! {
    /// Number of managers that run on this thread.
    static MANAGERS: Cell<usize> = const { Cell::new(0) };
}

/// Waits until only manager tasks remain: removals and writes in the background have ended.
pub(crate) async fn quiet() {
    until(|| rt::counters().tasks <= MANAGERS.get()).await;
}

/// Runs a test on every pair that this machine supports, and reports it.
pub(crate) fn on_each_pair(test: impl Fn(Pair)) {
    for (net_name, net, disk_name, via) in PAIRS {
        let pair = Pair { names: (net_name, disk_name), net, via, memory_max: None };
        match io::build(pair.config("")) {
            Ok(_) => {
                test(pair);
                testkit::engines::report_ran(net_name, disk_name);
            }
            Err(error) => testkit::engines::report_skipped(net_name, disk_name, &error.to_string()),
        }
    }
}

/// A directory for a cache, the settings of its stores, and the notes that the cache has reported.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) config: Config,
    pub(crate) notes: Arc<Mutex<Vec<Note>>>,
}

impl Place {
    pub(crate) fn new() -> Place {
        let (dir, notes) = (TempDir::new("cache"), Arc::<Mutex<Vec<Note>>>::default());
        let reported = Arc::clone(&notes);
        let config = Config {
            levels: Levels::new(&[1, 2]).unwrap(),
            notify: Notify(Arc::new(move |note| reported.lock().unwrap().push(note))),
            ..Config::new("test", dir.path().join("cache"))
        };
        Place { dir, config, notes }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.config.path.clone()
    }

    /// Opens a store on [`PLAIN`] for a test, without a manager.
    pub(crate) fn opened<T>(&self, test: impl AsyncFnOnce(Arc<Store>) -> T) -> T {
        self.opened_on(PLAIN, test)
    }

    /// As [`Place::opened`], on these engines.
    pub(crate) fn opened_on<T>(&self, pair: Pair, test: impl AsyncFnOnce(Arc<Store>) -> T) -> T {
        pair.run(async { test(self.open(pair)).await })
    }

    /// As [`Place::opened`], with a running manager that is stopped at the end.
    pub(crate) fn managed<T>(&self, test: impl AsyncFnOnce(Arc<Store>) -> T) -> T {
        self.managed_on(PLAIN, "", test)
    }

    /// As [`Place::managed`], on these engines with injected faults.
    pub(crate) fn managed_on<T>(
        &self,
        pair: Pair,
        faults: &str,
        test: impl AsyncFnOnce(Arc<Store>) -> T,
    ) -> T {
        pair.run_with(faults, async {
            let store = self.open(pair);
            start(&store).await;
            let result = test(Arc::clone(&store)).await;
            stop(&store).await;
            result
        })
    }

    pub(crate) fn open(&self, pair: Pair) -> Arc<Store> {
        Store::open(Config { via: pair.via, ..self.config.clone() }).unwrap()
    }

    pub(crate) fn notes(&self) -> Vec<Note> {
        self.notes.lock().unwrap().clone()
    }

    /// Returns the files of entries below the directory, by their paths, with their contents.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        walk(&self.path(), &mut |path| {
            if path.file_name().is_some_and(|name| name.len() == cache::HEX_LEN) {
                found.insert(path.to_owned(), std::fs::read(path).unwrap());
            }
        });
        found
    }

    /// Returns the files in the staging directory.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.path().join("ringroad.tmp"), &mut |path| found.push(path.to_owned()));
        found
    }
}

fn walk(folder: &Path, look: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => walk(&path, look),
            false => look(&path),
        }
    }
}

/// Returns the key text of an object.
pub(crate) fn text(number: u64) -> Vec<u8> {
    format!("http://origin.example/object/{number}").into_bytes()
}

/// Returns the body of an object.
pub(crate) fn body(number: u64, size: u64) -> Vec<u8> {
    Content::new(number + 1, size).bytes(0..size)
}

pub(crate) const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n";

/// Returns an object to be stored.
pub(crate) fn new(store: &Store, number: u64, length: Option<u64>) -> New {
    let text = text(number);
    New {
        key: Key::of(&text),
        meta: Arc::new(Meta {
            status: 200,
            fresh_until_ms: 2_000_000_000_000,
            length,
            etag: format!("\"{number}\"").into_bytes(),
            ..Meta::default()
        }),
        text,
        head: HEAD.into(),
        is_partial: false,
        request: store.register_request(),
        ticket: None,
    }
}

/// Stores an object with a body of this size, in pieces of `piece` bytes.
pub(crate) async fn store_in_pieces(
    store: &Arc<Store>,
    new: New,
    body: &[u8],
    piece: usize,
) -> Result<(), FillError> {
    let mut fill = store.begin(new).await?;
    let mut at = 0;
    for part in body.chunks(piece) {
        fill.write(at, part).await?;
        at += part.len() as u64;
    }
    fill.commit().await
}

/// Stores an object of a known length.
pub(crate) async fn put(store: &Arc<Store>, number: u64, size: u64) -> Result<(), FillError> {
    store_in_pieces(store, new(store, number, Some(size)), &body(number, size), 10_000).await
}

/// Stores a range of an object as a partial entry.
pub(crate) async fn put_part(store: &Arc<Store>, number: u64, size: u64, range: Range<u64>) {
    let partial = New { is_partial: true, ..new(store, number, Some(size)) };
    let mut fill = store.begin(partial).await.unwrap();
    let bytes = &body(number, size)[range.start as usize..range.end as usize];
    fill.write(range.start, bytes).await.unwrap();
    fill.commit().await.unwrap();
}

/// Looks up an object without variants.
pub(crate) async fn find(store: &Arc<Store>, number: u64) -> Option<Hit> {
    let text = text(number);
    store.find(&Key::of(&text), &text, &|_| Vec::new()).await.unwrap()
}

/// Returns the complete body of a hit.
pub(crate) async fn whole(hit: Hit) -> Vec<u8> {
    match hit.body {
        Body::Image(range) => hit.image.bytes()[range].to_vec(),
        Body::File(located) => {
            let length = located.length;
            read(&located, 0..length).await.unwrap()
        }
    }
}

/// Reads a range of a body in a file.
pub(crate) async fn read(located: &Located, range: Range<u64>) -> Result<Vec<u8>, cache::StoreError> {
    let mut reader = located.read(range, 4);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(piece.bytes());
    }
    Ok(bytes)
}

/// Checks that the object is a hit with the stored content.
pub(crate) async fn assert_hit(store: &Arc<Store>, number: u64, size: u64) {
    let hit = find(store, number).await.unwrap_or_else(|| panic!("object {number} of {size} bytes: a miss"));
    assert_eq!(hit.head(), HEAD);
    assert_eq!(hit.meta.length, Some(size));
    assert!(whole(hit).await == body(number, size), "object {number} of {size} bytes is unchanged");
}

/// Returns the scope of a purge of one object.
pub(crate) fn key(number: u64) -> Scope {
    Scope::Key(Key::of(&text(number)).0)
}

/// Makes the entries in a scope unusable.
pub(crate) async fn purge(store: &Arc<Store>, scope: Scope) {
    store.purge(scope, PurgeEffect::Unusable).await.unwrap();
}

/// Returns the reason of a refusal.
pub(crate) fn refusal(error: FillError) -> Refused {
    match error {
        FillError::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

/// Starts [`Store::run`].
pub(crate) fn manage(store: &Arc<Store>) {
    MANAGERS.set(MANAGERS.get() + 1);
    let store = Arc::clone(store);
    rt::spawn(async move {
        store.run().await;
        MANAGERS.set(MANAGERS.get() - 1);
    });
}

/// Starts [`Store::run`] and waits until all entries and their sizes are known.
pub(crate) async fn start(store: &Arc<Store>) {
    manage(store);
    until(|| store.stats().is_measured).await;
}

/// Stops the store and waits until its manager has ended.
pub(crate) async fn stop(store: &Arc<Store>) {
    let before = MANAGERS.get();
    store.stop();
    until(|| MANAGERS.get() < before).await;
}

/// Waits until another task makes the condition true.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
    }
}
