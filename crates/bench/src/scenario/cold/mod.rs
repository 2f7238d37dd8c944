//! `ringroad bench cold`: files from the disk, more of them than memory, for each engine and each mode of nginx.
//!
//! ```text
//!   files/4k/0 ...  ----------------------------------------> server under a memory limit --> generator
//!        |                                                         ^
//!        +--> origin --> proxy that fills --> caches/PROGRAM-SIZE -+   (the origin has ended by then)
//! ```
//!
//! A set is four times the memory that a server has, so that at most a quarter of what is asked for can come out of the
//! page cache. Every measurement starts its own server and drops the cache first: nothing is left of the one before.
//! Without root neither is possible; the report says so, and its titles say that nothing was limited.
//!
//! [`ways`] are the servers, [`data`] the files and the caches filled with them, [`measure`] one measurement, [`limit`]
//! what the machine could do without a server, [`told`] what is made of them.

mod data;
mod limit;
mod measure;
mod told;
mod ways;

use clap::{Args, value_parser};

use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::page_cache;
use crate::peers::tool::Peer;
use crate::report::model::Section;
use crate::scenario::described::Scenario;
use crate::scenario::sheet::Sheet;
use data::{Caches, Files, Size};
use measure::{Case, ColdServer, measure};
use ways::{ColdWay, FILE_AIO, Source, WAYS};

/// Workers and connections of the write-up's two tables.
const WORKERS: [usize; 2] = [1, 4];
/// The write-up's numbers of clients.
const CONNECTIONS: [u32; 2] = [200, 1000];

/// Names of files that the write-up asked for at random.
const NAMES: u64 = 25_000;

/// The most with `--quick`.
const NAMES_QUICK: u64 = 32_768;

/// The set of each size is so many times the memory that a server has.
const SETS_PER_MEMORY: u64 = 4;

#[derive(Args, Clone, Debug)]
pub(super) struct ColdOptions {
    /// Sizes of files
    #[arg(long, value_delimiter = ',', value_name = "SIZES", default_value = "4k,100k,1m")]
    sizes: Vec<Size>,
    /// MiB of memory for each server with its page cache; the files of each size take four times as much
    /// [default: 128; 64 with --quick]
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u64).range(16..=1 << 20))]
    memory: Option<u64>,
    /// The write-up's own procedure and nothing else: 25 000 names through the proxy cache, 200 and 1 000 connections,
    /// the control run without a memory limit, and files served directly
    #[arg(long)]
    seed_000: bool,
}

/// Everything that is fixed for one run.
struct ColdPlan<'a> {
    bench: &'a Bench,
    sizes: Vec<Size>,
    memory_bytes: u64,
    files: Files,
    subjects: Vec<ColdServer>,
}

impl Scenario for ColdOptions {
    const NAME: &'static str = "cold";
    const SECONDS: u32 = 700;
    const HELP: &'static str =
        "Files that do not fit into memory: every engine, nginx in each of its modes, and the proxy cache";
    const TITLE: &'static str = "Cold files";
    const QUESTION: &'static str =
        "How fast is a server whose files do not fit into memory, with each way to read them?";

    /// Measures as the options say.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<(), Failure> {
        let plan = ColdPlan::make(bench, self, section)?;
        let cases = if self.seed_000 { plan.as_written_up() } else { plan.all() };
        let cases = plan.measure(section, &cases)?;
        let told = told::told(Sheet::of(section), &section.runs, &cases);
        section.tell(told);
        Ok(())
    }
}

/// Ours and, where it is installed, nginx.
fn subjects(bench: &Bench, section: &mut Section) -> Vec<ColdServer> {
    let nginx = Peer::Nginx.find(bench);
    if let Err(missing) = &nginx {
        section.skip("nginx", &missing.to_string());
    }
    let has_file_aio = nginx.as_ref().is_ok_and(|tool| tool.about.contains(FILE_AIO));
    let mut subjects = Vec::new();
    for way in WAYS {
        let Ok(program) = way.of.program(bench) else { continue };
        if way.needs_file_aio() && !has_file_aio {
            let why =
                format!("this nginx is built without {FILE_AIO}; --peer nginx=PATH takes another build");
            section.skip(way.of.name, &why);
            continue;
        }
        subjects.push(ColdServer { way, program });
    }
    subjects
}

/// Whether a way is measured in a case.
type Wanted = fn(&ColdWay) -> bool;

/// Those of the write-up's table.
const PUBLISHED: Wanted = |way| way.published.is_some();

/// Those, ours without a setting, nginx's best over a cache, and the files without one: who asks how fast a hit can be wants to see it beside the
/// write-up's, and who asks what it costs, beside the same without a cache.
const HITS: Wanted =
    |way| way.published.is_some() || way.is_default() || way.is_best_of_hits() || way.is_plain;

impl<'a> ColdPlan<'a> {
    /// Finds the servers and makes the files. What cannot be measured is noted in the section.
    fn make(bench: &'a Bench, options: &ColdOptions, section: &mut Section) -> Result<ColdPlan<'a>, Failure> {
        let mut sizes = options.sizes.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let memory_bytes = match (options.memory, bench.scale) {
            (Some(mib), _) => mib << 20,
            (None, Scale::Instant) => 128 << 20,
            (None, Scale::Quick) => 64 << 20,
            (None, Scale::Normal | Scale::Full) => 128 << 20,
        };
        if !bench.is_root() {
            section.skip("memory limit", "control groups need root: the page cache keeps what it can");
            section.skip("dropping the page cache", "needs root: files are partly in memory");
        }
        let subjects = subjects(bench, section);
        let set_bytes = if bench.scale == Scale::Instant { 1 << 20 } else { memory_bytes * SETS_PER_MEMORY };
        // The files, and a cache of them for each program. Checked first: a full disk would be noticed by others too.
        bench.workspace.need_space(set_bytes * sizes.len() as u64 * 3)?;
        let names_max = match (options.seed_000, bench.scale) {
            (true, _) => NAMES,
            // More than can be asked for in half a second: making and storing them takes longer than all else.
            (false, Scale::Quick) => NAMES_QUICK,
            (false, _) => u64::MAX,
        };
        let files = Files::make(bench, &sizes, set_bytes, names_max)?;
        if options.seed_000 {
            let made: Vec<String> =
                sizes.iter().map(|&size| format!("{} of {size}", files.count(size))).collect();
            section.skip(
                "25 000 names of each size",
                &format!("{} take four times the memory limit", made.join(", ")),
            );
        }
        Ok(ColdPlan { bench, sizes, memory_bytes, files, subjects })
    }

    /// The ordinary case: one worker and the smaller number of clients.
    fn case(&self, source: Source, size: Size) -> Case {
        let memory_bytes = self.bench.is_root().then_some(self.memory_bytes);
        Case { source, size, workers: 1, connections: CONNECTIONS[0], memory_bytes }
    }

    /// What a report has. The product of everything takes hours and is what `--full` is for; one thing at a time
    /// shows what each does. Every way at one worker and 200 connections, then one thing at a time.
    fn all(&self) -> Vec<(Case, Wanted)> {
        let is_brief = self.bench.scale <= Scale::Quick;
        let main: Wanted = |way| way.is_main;
        // With what the write-up compares its figures of 1 000 connections with, where it differs most.
        let crowded: Wanted = |way| way.is_main || way.published.is_some();
        let every: Wanted = if is_brief { main } else { |_| true };
        let mut cases: Vec<(Case, Wanted)> = Vec::new();
        for &size in &self.sizes {
            cases.push((self.case(Source::Files, size), every));
        }
        if self.bench.scale == Scale::Full {
            for &size in &self.sizes {
                for source in [Source::Files, Source::Cache] {
                    for workers in WORKERS {
                        for connections in CONNECTIONS {
                            cases.push((Case { workers, connections, ..self.case(source, size) }, every));
                        }
                    }
                }
            }
        } else {
            for &size in &self.sizes {
                cases.push((self.case(Source::Cache, size), HITS));
                if !is_brief {
                    let wanted = if size == Size::K4 { crowded } else { main };
                    cases.push((Case { workers: WORKERS[1], ..self.case(Source::Cache, size) }, PUBLISHED));
                    cases.push((Case { workers: WORKERS[1], ..self.case(Source::Files, size) }, main));
                    cases.push((
                        Case { connections: CONNECTIONS[1], ..self.case(Source::Files, size) },
                        wanted,
                    ));
                }
            }
        }
        // The control run: without a limit the files stay in memory, and the engines have nothing to differ in.
        if !is_brief && let Some(size) = self.middle_size() {
            cases.push((Case { memory_bytes: None, ..self.case(Source::Cache, size) }, PUBLISHED));
        }
        cases
    }

    /// The write-up's own runs: its two tables (one and four workers, 200 and 1 000 connections), the control run
    /// without a memory limit, and what the other reporter measured, files served directly with nothing limited.
    fn as_written_up(&self) -> Vec<(Case, Wanted)> {
        let mut cases: Vec<(Case, Wanted)> = Vec::new();
        // No server: the machine's limit, above the write-up's rows as 100 %.
        for &size in &self.sizes {
            cases.push((self.case(Source::Files, size), |_| false));
        }
        for workers in WORKERS {
            for connections in CONNECTIONS {
                for &size in &self.sizes {
                    cases.push((Case { workers, connections, ..self.case(Source::Cache, size) }, PUBLISHED));
                }
            }
        }
        if let Some(size) = self.middle_size() {
            cases.push((Case { memory_bytes: None, ..self.case(Source::Cache, size) }, PUBLISHED));
            for workers in WORKERS {
                cases.push((
                    Case { workers, memory_bytes: None, ..self.case(Source::Files, size) },
                    PUBLISHED,
                ));
            }
        }
        cases
    }

    /// The size that the write-up's control runs had, or what stands for it.
    fn middle_size(&self) -> Option<Size> {
        self.sizes.iter().copied().find(|&size| size == Size::K100).or_else(|| self.sizes.first().copied())
    }

    /// Measures one case after the other, each with all of its servers in turns; caches are filled before the first.
    /// Returns the cases that were measured, each once.
    fn measure(&self, section: &mut Section, cases: &[(Case, Wanted)]) -> Result<Vec<Case>, Failure> {
        let caches = if cases.iter().any(|(case, _)| case.source == Source::Cache) {
            Some(Caches::fill(self.bench, &self.files, &self.sizes, &self.fillers())?)
        } else {
            None
        };
        if self.bench.is_root() {
            page_cache::drop_all()?;
        }
        let mut measured: Vec<Case> = Vec::new();
        for (case, wanted) in cases {
            // The product of `--full` holds cases that stand alone too.
            if measured.contains(case) {
                continue;
            }
            // Over plain files it would be measured twice.
            let is_apart = |way: &ColdWay| way.is_plain && case.source == Source::Files;
            let chosen = |subject: &&ColdServer| wanted(subject.way) && !is_apart(subject.way);
            let subjects: Vec<&ColdServer> = self.subjects.iter().filter(chosen).collect();
            measure(self.bench, section, (&self.files, caches.as_ref()), &subjects, *case)?;
            measured.push(*case);
        }
        Ok(measured)
    }

    /// One way of each program: how it reads does not matter for what it stores.
    fn fillers(&self) -> Vec<&ColdServer> {
        let first = |is_nginx| self.subjects.iter().find(|subject| subject.way.is_nginx() == is_nginx);
        [false, true].into_iter().filter_map(first).collect()
    }
}
