//! The requested files, and the caches that are filled with them.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::measure::ColdServer;
use super::variants::Setting;
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Length;
use crate::method::pin::{self, Split};
use crate::peers::server::Conditions;
use crate::peers::tool::Peer;
use crate::scenario::served;

/// A size of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size {
    pub(super) bytes: u64,
    name: &'static str,
    /// Size of nginx's output buffers with which it reads such files by direct I/O in the fewest reads.
    pub(super) read_size: &'static str,
    /// Number of files in flight per thread without a server: enough small files to keep a fast disk busy, and so few
    /// large ones that their buffers stay well below the memory limit.
    pub(super) depth: u32,
}

impl Size {
    /// One page, and one block of most file systems.
    pub(super) const K4: Size = Size { bytes: 4 << 10, name: "4k", read_size: "4k", depth: 64 };
    /// The size of the write-up's control runs.
    pub(super) const K100: Size = Size { bytes: 100 << 10, name: "100k", read_size: "100k", depth: 32 };
    /// Several reads for every engine.
    const M1: Size = Size { bytes: 1 << 20, name: "1m", read_size: "512k", depth: 16 };
    /// The sizes of the write-up, from the smallest to the largest.
    pub(super) const ALL: [Size; 3] = [Size::K4, Size::K100, Size::M1];

    /// Parses a value of the option.
    pub(super) fn parse(name: &str) -> Result<Size, String> {
        Size::ALL.into_iter().find(|size| size.name == name).ok_or_else(|| "4k, 100k or 1m".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The files of each size, in one directory per size: `ROOT/4k/0` and so on.
pub(super) struct Files {
    /// The parent directory of all sets.
    pub(super) root: PathBuf,
    /// Total bytes of the files of one size.
    set_bytes: u64,
    /// Maximum number of files of one size.
    names_max: u64,
}

impl Files {
    /// Creates the files: `set_bytes` of each size, but at most `names_max` files.
    pub(super) fn make(
        bench: &Bench,
        sizes: &[Size],
        set_bytes: u64,
        names_max: u64,
    ) -> Result<Files, Failure> {
        let files = Files { root: bench.workspace.directory("files")?, set_bytes, names_max };
        for &size in sizes {
            bench.progress(format_args!("cold: creating {} files of {size}", files.count(size)));
            files.make_size(bench, size)?;
        }
        Ok(files)
    }

    /// Returns the number of files of a size; the set is larger than the memory.
    pub(super) fn count(&self, size: Size) -> u64 {
        (self.set_bytes / size.bytes).clamp(1, self.names_max)
    }

    pub(super) fn directory(&self, size: Size) -> PathBuf {
        self.root.join(size.to_string())
    }

    /// Creates the files of one size in one directory: the file system looks up names there by a hash.
    fn make_size(&self, bench: &Bench, size: Size) -> Result<(), Failure> {
        let directory = self.directory(size);
        fs::create_dir_all(&directory).map_err(Failure::file("create the directory", &directory))?;
        let mut content = vec![0_u8; size.bytes as usize];
        for number in 0..self.count(size) {
            // A hundred thousand files take a while: an interruption must not wait for all of them.
            if number % 1024 == 0 {
                bench.check_interrupted()?;
            }
            // The content of each file is different, so that no layer below can deduplicate the files.
            for word in content.chunks_exact_mut(8) {
                word.copy_from_slice(&number.to_le_bytes());
            }
            let path = directory.join(number.to_string());
            let written = fs::File::create_new(&path).and_then(|mut file| file.write_all(&content));
            written.map_err(Failure::file("write", &path))?;
        }
        Ok(())
    }
}

/// Caches of both servers, filled with all files of some sizes through a proxy. The origin is stopped afterwards, so a
/// miss is an error.
pub(super) struct Caches<'a> {
    bench: &'a Bench,
    files: &'a Files,
    /// The parent directory, with one subdirectory per program and size.
    root: PathBuf,
    /// Port of the origin, which the configurations contain; nothing listens on it during measurements.
    origin_port: u16,
}

/// Number of connections that fill a cache.
const FILL_CONNECTIONS: u32 = 64;

/// Maximum number of attempts to fill a cache until it has no misses.
const FILLS_MAX: u32 = 3;

impl<'a> Caches<'a> {
    /// Fills one cache for each program and size.
    pub(super) fn fill(
        bench: &'a Bench,
        files: &'a Files,
        sizes: &[Size],
        fillers: &[&ColdServer],
    ) -> Result<Caches<'a>, Failure> {
        let root = bench.workspace.directory("caches")?;
        let caches = Caches { bench, files, root, origin_port: bench.ports.reserve()? };
        for filler in fillers {
            for &size in sizes {
                bench.progress(format_args!(
                    "cold: filling the cache of {} with {size}",
                    filler.variant.of.name
                ));
                caches.fill_one(size, filler)?;
            }
        }
        Ok(caches)
    }

    /// Fills a cache, and repeats this until a pass without the origin has no misses.
    fn fill_one(&self, size: Size, filler: &ColdServer) -> Result<(), Failure> {
        let mut misses = 0;
        for _ in 0..FILLS_MAX {
            // It is Ringroad instead of a peer: the suite works without installed peers, and filling a cache is not
            // measured.
            let conditions = Conditions { port: Some(self.origin_port), ..Conditions::default() };
            let origin = served::origin(self.bench, &self.files.root, conditions)?;
            // Twice: a cache that gets more than it can write skips some responses, and stores them at the next request.
            self.request_all(size, filler, 2)?;
            // From here on a miss finds no origin and causes an error, which the measurements would detect.
            drop(origin);
            misses = self.request_all(size, filler, 1)?;
            if misses == 0 {
                return Ok(());
            }
        }
        let (name, count) = (filler.variant.of.name, self.files.count(size));
        let missing = format!("after filling, the cache of {name} lacks {misses} of {count} files of {size}");
        Err(Failure::Other(missing))
    }

    /// Returns the cache directory of a program and size, and the origin's port.
    pub(super) fn of(&self, peer: Option<Peer>, size: Size) -> (PathBuf, u16) {
        let name = peer.map_or("ours", Peer::name);
        (self.root.join(format!("{name}-{size}")), self.origin_port)
    }

    /// Starts a server with a cache and requests each file `times` times; returns the number of failed responses in the
    /// last pass.
    fn request_all(&self, size: Size, filler: &ColdServer, times: u32) -> Result<u64, Failure> {
        let cache = Some(self.of(filler.variant.of.peer, size));
        let setting = Setting { size, workers: 1, files: &self.files.root, cache };
        let server = filler.start(self.bench, &setting, &Conditions::default())?;
        let count = self.files.count(size);
        // More connections than files would request some of them twice concurrently.
        let connections = FILL_CONNECTIONS.min(count as u32).max(1);
        // All processors, since this is not measured.
        let split = Split::of(&pin::available(), usize::MAX);
        // `..` counts: every number is requested once, instead of random ones.
        let url = server.url(&format!("/{size}/{{0..{}}}", count - 1));
        let mut plan = served::load(self.bench, &split, connections, Duration::ZERO).for_url(&url)?;
        (plan.length, plan.expect) = (Length::Requests(count), served::complete_file(size.bytes));
        let mut errors = 0;
        for _ in 0..times {
            let outcome = crate::load::run(&plan);
            self.bench.check_interrupted()?;
            errors = outcome?.tally.errors.total();
        }
        Ok(errors)
    }
}
