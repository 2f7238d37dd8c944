//! `ringroad bench cold`: serving files from the disk, with more files than memory, for each engine and each mode of
//! nginx.
//!
//! ```text
//!   files/4k/0 ...  ----------------------------------------> server under a memory limit --> generator
//!        |                                                         ^
//!        +--> origin --> proxy that fills --> caches/PROGRAM-SIZE -+   (the origin has ended by then)
//! ```
//!
//! A set is four times the memory of a server, so that at most a quarter of the requested files can be resident. Every
//! measurement starts a new server and drops the page cache first, so it does not depend on the one before. Without
//! root neither is possible; the report and its titles then state that nothing was limited.
//!
//! [`variants`] has the servers, [`data`] the files and the caches filled with them, [`measure`] one measurement. [`limit`]
//! measures the machine without a server, and [`results`] generates the tables, plots and findings.

mod data;
mod limit;
mod measure;
mod results;
mod variants;

use clap::{Args, value_parser};

use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::page_cache;
use crate::peers::tool::Peer;
use crate::report::model::{Results, Section};
use crate::scenario::described::Scenario;
use crate::scenario::measurements::Measurements;
use data::{Caches, Files, Size};
use measure::{Case, CaseRun, ColdServer};
use variants::{ColdVariant, FILE_AIO, Source, VARIANTS};

/// Numbers of workers in the write-up's two tables.
const WORKERS: [usize; 2] = [1, 4];
/// Numbers of clients in the write-up.
const CONNECTIONS: [u32; 2] = [200, 1000];

/// Number of files that the write-up requested at random.
const NAMES: u64 = 25_000;

/// Maximum number of files with `--quick`.
const NAMES_QUICK: u64 = 32_768;

/// Size of the set of each file size, as a multiple of the server's memory.
const SETS_PER_MEMORY: u64 = 4;

#[derive(Args, Clone, Debug)]
pub(super) struct ColdOptions {
    /// File sizes
    #[arg(long, value_delimiter = ',', value_name = "SIZES", default_value = "4k,100k,1m", value_parser = Size::parse)]
    sizes: Vec<Size>,
    /// Memory in MiB of each server including its page cache; the files of each size occupy four times as much
    /// [default: 128; 64 with --quick]
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u64).range(16..=1 << 20))]
    memory: Option<u64>,
    /// Only the write-up's own procedure: 25 000 names through the proxy cache, 200 and 1 000 connections, the control
    /// run without a memory limit, and files served directly
    #[arg(long)]
    seed_000: bool,
}

/// The fixed parameters of one run.
struct ColdPlan<'a> {
    bench: &'a Bench,
    sizes: Vec<Size>,
    memory_bytes: u64,
    files: Files,
    subjects: Vec<ColdServer>,
}

impl Scenario for ColdOptions {
    const NAME: &'static str = "cold";
    const MINUTES: u32 = 12;
    const QUICK_SHARE: u32 = 55;
    const TITLE: &'static str = "Cold files";
    const QUESTION: &'static str =
        "At which rate does each engine deliver files that are not in the page cache?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let plan = ColdPlan::make(bench, self, section)?;
        let cases = if self.seed_000 { plan.write_up_cases() } else { plan.all() };
        let cases = plan.measure(section, &cases)?;
        Ok(results::results(Measurements::of(section), &cases))
    }
}

/// Returns Ringroad's variants and, if nginx is installed, nginx's.
fn subjects(bench: &Bench, section: &mut Section) -> Vec<ColdServer> {
    let nginx = Peer::Nginx.find(&bench.peer_paths);
    if let Err(missing) = &nginx {
        section.skip("nginx", missing);
    }
    let has_file_aio = nginx.as_ref().is_ok_and(|tool| tool.about.contains(FILE_AIO));
    let mut subjects = Vec::new();
    for variant in VARIANTS {
        let Ok(program) = variant.of.program(bench) else { continue };
        if variant.needs_file_aio() && !has_file_aio {
            let why =
                format!("this nginx is built without {FILE_AIO}; --peer nginx=PATH selects another build");
            section.skip(variant.of.name, &why);
            continue;
        }
        subjects.push(ColdServer { variant, program });
    }
    subjects
}

/// Whether a variant is measured in a case.
type Wanted = fn(&ColdVariant) -> bool;

/// The variants of the write-up's table.
const PUBLISHED: Wanted = |variant| variant.is_published;

/// The ways of the write-up, Ringroad's default, nginx's best way for cache hits, and the plain files without a cache.
/// A reader can compare the fastest hit with the write-up's rows, and its cost with serving the same files without a
/// cache.
const HITS: Wanted =
    |variant| variant.is_published || variant.is_default() || variant.is_best_of_hits() || variant.is_plain;

impl<'a> ColdPlan<'a> {
    /// Finds the servers and creates the files. Omissions are recorded in the section.
    fn make(bench: &'a Bench, options: &ColdOptions, section: &mut Section) -> Result<ColdPlan<'a>, Failure> {
        let mut sizes = options.sizes.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let memory_bytes = options.memory.unwrap_or(bench.scaled(128, 64, 128)) << 20;
        if !bench.is_root() {
            section.skip("memory limit", "cgroups need root: the page cache is not limited");
            section.skip("dropping the page cache", "needs root: some files are in the page cache");
        }
        let subjects = subjects(bench, section);
        let set_bytes = if bench.scale == Scale::Instant { 1 << 20 } else { memory_bytes * SETS_PER_MEMORY };
        // Space for the files and for one cache of them per program. Checked first, since a full disk would affect
        // other programs too.
        bench.workspace.need_space(set_bytes * sizes.len() as u64 * 3)?;
        let names_max = match (options.seed_000, bench.scale) {
            (true, _) => NAMES,
            // More files than can be requested in half a second: creating and storing them takes longer than all other
            // steps.
            (false, Scale::Quick) => NAMES_QUICK,
            (false, _) => u64::MAX,
        };
        let files = Files::make(bench, &sizes, set_bytes, names_max)?;
        if options.seed_000 {
            let made: Vec<String> =
                sizes.iter().map(|&size| format!("{} of {size}", files.count(size))).collect();
            section.skip(
                "25 000 names of each size",
                &format!("{} files have four times the size of the memory limit", made.join(", ")),
            );
        }
        Ok(ColdPlan { bench, sizes, memory_bytes, files, subjects })
    }

    /// Returns the base case: one worker and the smaller number of clients.
    fn case(&self, source: Source, size: Size) -> Case {
        let memory_bytes = self.bench.is_root().then_some(self.memory_bytes);
        Case { source, size, workers: 1, connections: CONNECTIONS[0], memory_bytes }
    }

    /// Returns the cases of a normal report: every variant at one worker and 200 connections, then variations of one
    /// parameter at a time. The product of all parameters takes hours and is measured with `--full`.
    fn all(&self) -> Vec<(Case, Wanted)> {
        let is_brief = self.bench.scale <= Scale::Quick;
        let main: Wanted = |variant| variant.is_main;
        let every: Wanted = if is_brief { main } else { |_| true };
        let files = self.sizes.iter().map(|&size| (self.case(Source::Files, size), every));
        let mut cases: Vec<(Case, Wanted)> = files.collect();
        if self.bench.scale == Scale::Full {
            cases.extend(self.product(Source::Files, every));
            cases.extend(self.product(Source::Cache, every));
        } else {
            for &size in &self.sizes {
                let (files, hits) = (self.case(Source::Files, size), self.case(Source::Cache, size));
                cases.push((hits, HITS));
                if !is_brief {
                    // With the variants that the write-up compares at 1 000 connections, where they differ most.
                    let crowded: Wanted = |variant| variant.is_main || variant.is_published;
                    let wanted = if size == Size::K4 { crowded } else { main };
                    cases.push((Case { workers: WORKERS[1], ..hits }, PUBLISHED));
                    cases.push((Case { workers: WORKERS[1], ..files }, main));
                    cases.push((Case { connections: CONNECTIONS[1], ..files }, wanted));
                }
            }
        }
        // The control run: without a memory limit the files are resident, and the engines should not differ.
        if !is_brief && let Some(size) = self.middle_size() {
            cases.push((Case { memory_bytes: None, ..self.case(Source::Cache, size) }, PUBLISHED));
        }
        cases
    }

    /// Returns every combination of the parameters.
    fn product(&self, source: Source, wanted: Wanted) -> Vec<(Case, Wanted)> {
        let mut cases = Vec::new();
        for workers in WORKERS {
            for connections in CONNECTIONS {
                for &size in &self.sizes {
                    cases.push((Case { workers, connections, ..self.case(source, size) }, wanted));
                }
            }
        }
        cases
    }

    /// Returns the write-up's own runs: its two tables (one and four workers, 200 and 1 000 connections), the control
    /// run without a memory limit, and files served directly without any limit, as the other reporter measured.
    fn write_up_cases(&self) -> Vec<(Case, Wanted)> {
        // No server: only the machine's limit, the 100 % above the write-up's rows.
        let none: Wanted = |_| false;
        let limits = self.sizes.iter().map(|&size| (self.case(Source::Files, size), none));
        let mut cases: Vec<(Case, Wanted)> = limits.collect();
        cases.extend(self.product(Source::Cache, PUBLISHED));
        if let Some(size) = self.middle_size() {
            cases.push((Case { memory_bytes: None, ..self.case(Source::Cache, size) }, PUBLISHED));
            let files = Case { memory_bytes: None, ..self.case(Source::Files, size) };
            cases.extend(WORKERS.map(|workers| (Case { workers, ..files }, PUBLISHED)));
        }
        cases
    }

    /// Returns the size of the write-up's control runs, or a substitute.
    fn middle_size(&self) -> Option<Size> {
        self.sizes.iter().copied().find(|&size| size == Size::K100).or_else(|| self.sizes.first().copied())
    }

    /// Measures the cases in order, each with all of its servers in turn; caches are filled before the first case.
    /// Returns the measured cases without duplicates.
    fn measure(&self, section: &mut Section, cases: &[(Case, Wanted)]) -> Result<Vec<Case>, Failure> {
        let has_hits = cases.iter().any(|(case, _)| case.source == Source::Cache);
        let fill = || Caches::fill(self.bench, &self.files, &self.sizes, &self.fillers());
        let caches = has_hits.then(fill).transpose()?;
        if self.bench.is_root() {
            page_cache::drop_all()?;
        }
        let mut measured: Vec<Case> = Vec::new();
        for &(case, wanted) in cases {
            // The product of `--full` includes cases that are also listed separately.
            if measured.contains(&case) {
                continue;
            }
            // Over plain files the variant would be measured twice.
            let is_apart = |variant: &ColdVariant| variant.is_plain && case.source == Source::Files;
            let chosen = |subject: &&ColdServer| wanted(subject.variant) && !is_apart(subject.variant);
            let subjects: Vec<&ColdServer> = self.subjects.iter().filter(chosen).collect();
            let run = CaseRun { bench: self.bench, files: &self.files, caches: caches.as_ref(), case };
            run.measure(section, &subjects)?;
            measured.push(case);
        }
        Ok(measured)
    }

    /// Returns one way of each program: its way of reading does not affect the stored entries.
    fn fillers(&self) -> Vec<&ColdServer> {
        let first = |is_nginx| self.subjects.iter().find(|subject| subject.variant.is_nginx() == is_nginx);
        [false, true].into_iter().filter_map(first).collect()
    }
}
