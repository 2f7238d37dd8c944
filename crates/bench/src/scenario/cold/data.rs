//! The files that are asked for, and the caches that are filled with them.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::measure::ColdServer;
use super::ways::Setting;
use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Length;
use crate::method::pin::{self, Split};
use crate::peers::server::{Conditions, Server};
use crate::peers::tool::Peer;
use crate::scenario::described::name_of;
use crate::scenario::served;

/// The sizes of the write-up, from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Size {
    #[value(name = "4k")]
    /// 4 KiB: one page, and one block of most file systems.
    K4,
    #[value(name = "100k")]
    /// 100 KiB: what the write-up's control runs had.
    K100,
    #[value(name = "1m")]
    /// 1 MiB: several reads for every engine.
    M1,
}

impl Size {
    /// Bytes of a file.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Size::K4 => 4 << 10,
            Size::K100 => 100 << 10,
            Size::M1 => 1 << 20,
        }
    }

    /// What nginx's output buffers have to be so that it reads such files directly, in the fewest reads.
    pub(super) fn read_size(self) -> &'static str {
        match self {
            Size::K4 => "4k",
            Size::K100 => "100k",
            Size::M1 => "512k",
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

/// Files of each size in a directory: `ROOT/4k/0` and so on.
pub(super) struct Files {
    /// The directory of all sets.
    pub(super) root: PathBuf,
    /// Bytes of all files of one size.
    set_bytes: u64,
    /// Most files of one size.
    names_max: u64,
}

impl Files {
    /// Makes them. So many bytes of each size, yet at most so many files.
    pub(super) fn make(
        bench: &Bench,
        sizes: &[Size],
        set_bytes: u64,
        names_max: u64,
    ) -> Result<Files, Failure> {
        let files = Files { root: bench.workspace.directory("files")?, set_bytes, names_max };
        for &size in sizes {
            bench.progress(format_args!("cold: making {} files of {size}", files.count(size)));
            files.make_size(bench, size)?;
        }
        Ok(files)
    }

    /// Files of a size, so that the set is larger than the memory.
    pub(super) fn count(&self, size: Size) -> u64 {
        (self.set_bytes / size.bytes()).clamp(1, self.names_max)
    }

    /// All files of a size.
    pub(super) fn paths(&self, size: Size) -> Vec<PathBuf> {
        let directory = self.root.join(size.to_string());
        (0..self.count(size)).map(|number| directory.join(number.to_string())).collect()
    }

    /// Makes the files of one size, in one directory: names are looked up by a hash there.
    fn make_size(&self, bench: &Bench, size: Size) -> Result<(), Failure> {
        let directory = self.root.join(size.to_string());
        fs::create_dir_all(&directory).map_err(Failure::file("create the directory", &directory))?;
        let mut content = vec![0_u8; size.bytes() as usize];
        for number in 0..self.count(size) {
            // A hundred thousand files take a while: an interruption does not wait for all of them.
            if number % 1024 == 0 {
                bench.check_interrupted()?;
            }
            // Content of its own, so that no layer below can keep one copy for all.
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

/// Caches of both servers, filled with all files of some sizes through a proxy whose origin has ended since: a
/// miss is an error.
pub(super) struct Caches {
    /// A directory below for each program and size.
    root: PathBuf,
    /// The port of the origin, where nothing listens now.
    origin_port: u16,
}

/// Connections that fill a cache.
const FILL_CONNECTIONS: u32 = 64;

/// Times that a cache is filled until one without a miss is given up.
const FILLS_MAX: u32 = 3;

impl Caches {
    /// Fills one for each program and size, until a round without the origin finds nothing missing.
    pub(super) fn fill(
        bench: &Bench,
        files: &Files,
        sizes: &[Size],
        fillers: &[&ColdServer],
    ) -> Result<Caches, Failure> {
        let mut caches = Caches { root: bench.workspace.directory("caches")?, origin_port: 0 };
        let mut wanted: Vec<(&ColdServer, Size)> =
            fillers.iter().flat_map(|&filler| sizes.iter().map(move |&size| (filler, size))).collect();
        let mut missing = String::new();
        for _ in 0..FILLS_MAX {
            let origin = caches.origin(bench, files)?;
            for &(filler, size) in &wanted {
                bench.progress(format_args!("cold: filling the cache of {} with {size}", filler.way.of.name));
                caches.ask_for_all(bench, files, size, filler, 2)?;
            }
            // From here on a miss finds no origin, and is an error that the measurements would show.
            origin.end();
            let mut still = Vec::new();
            for &(filler, size) in &wanted {
                let misses = caches.ask_for_all(bench, files, size, filler, 1)?;
                if misses > 0 {
                    missing = format!(
                        "the cache of {} has {misses} of {} files of {size} missing after it was filled",
                        filler.way.of.name,
                        files.count(size)
                    );
                    still.push((filler, size));
                }
            }
            wanted = still;
            if wanted.is_empty() {
                return Ok(caches);
            }
        }
        Err(Failure::Other(missing))
    }

    /// The server of what is not in a cache yet. Ours, and not a peer: the suite works where no peer is installed, and
    /// what fills a cache is not measured. Always on the same port, which stands in the configurations.
    fn origin(&mut self, bench: &Bench, files: &Files) -> Result<Server, Failure> {
        let port = (self.origin_port != 0).then_some(self.origin_port);
        let conditions = Conditions { port, ..Conditions::default() };
        let origin = served::origin(bench, &files.root, conditions)?;
        self.origin_port = origin.address().port();
        Ok(origin)
    }

    /// The directory of a program's cache of a size, and the origin's port.
    pub(super) fn of(&self, peer: Option<Peer>, size: Size) -> (PathBuf, u16) {
        let name = peer.map_or("ours", Peer::name);
        (self.root.join(format!("{name}-{size}")), self.origin_port)
    }

    /// The server whose cache is filled, in front of an origin that has the files.
    fn server(
        &self,
        bench: &Bench,
        files: &Files,
        size: Size,
        filler: &ColdServer,
    ) -> Result<Server, Failure> {
        let (directory, port) = self.of(filler.way.of.peer, size);
        let setting = Setting { size, workers: 1, files: &files.root, cache: Some((&directory, port)) };
        Server::start(bench, filler.way.of.name, &filler.program, &Conditions::default(), |instance| {
            filler.way.configuration(&setting, instance)
        })
    }

    /// Asks a new server over a cache for each file so many times; returns how many were no good responses at last. A fill
    /// asks twice: a cache that is given more than it can write lets some go by, and stores them the next time.
    fn ask_for_all(
        &self,
        bench: &Bench,
        files: &Files,
        size: Size,
        filler: &ColdServer,
        times: u32,
    ) -> Result<u64, Failure> {
        let server = self.server(bench, files, size, filler)?;
        let count = files.count(size);
        // More connections than files would ask for some of them twice at the same moment.
        let connections = FILL_CONNECTIONS.min(count as u32).max(1);
        // All processors: nothing is measured.
        let split = Split::of(&pin::available(), usize::MAX);
        let mut plan = served::load(bench, &split, connections, Duration::ZERO);
        (plan.length, plan.expect) = (Length::Requests(count), served::whole(size.bytes()));
        // Two dots: each number in turn, and none by chance.
        let plan = served::aimed(&plan, &server, &format!("/{size}/{{0..{}}}", count - 1))?;
        let mut errors = 0;
        for _ in 0..times {
            let outcome = crate::load::run(&plan);
            bench.check_interrupted()?;
            errors = outcome?.tally.errors.total();
        }
        server.end();
        Ok(errors)
    }
}
