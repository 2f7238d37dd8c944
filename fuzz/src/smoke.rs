//! Runs targets with a stable compiler: first every seed of the corpus, then random mutations of the seeds until the
//! time is over.
//!
//! An input that violates a property is written to `artifacts/NAME/`, and the run continues with the next target. The
//! mutation is not guided by coverage, unlike libFuzzer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::Target;
use crate::mutate::{Random, mutate};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time for all targets together.
    pub time: Duration,
    /// Seed of the random mutations.
    pub seed: u64,
    /// Name of the only target to run; all targets if `None`.
    pub only: Option<String>,
}

/// Result of one target.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The target's name.
    pub name: &'static str,
    /// Number of seeds in the corpus.
    pub seeds: usize,
    /// Number of inputs run, including the seeds.
    pub runs: u64,
    /// The file with the input that violated a property, if one did.
    pub broken: Option<PathBuf>,
}

/// Maximum time for one input. Inputs have at most 40 KiB, so only a decoder that is not linear takes longer.
const ONE_RUN_MAX: Duration = Duration::from_secs(10);

/// Runs the selected targets one after the other and passes each summary to `report`.
///
/// # Errors
/// Fails if a corpus cannot be read, an input cannot be written, or no target has the given name.
pub fn run(targets: &[Target], options: &Options, mut report: impl FnMut(&Summary)) -> io::Result<()> {
    let chosen: Vec<&Target> = targets
        .iter()
        .filter(|target| options.only.as_deref().is_none_or(|name| name == target.name))
        .collect();
    if chosen.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no target has this name"));
    }
    let time = options.time / chosen.len() as u32;
    for target in chosen {
        report(&run_one(target, time, options.seed)?);
    }
    Ok(())
}

fn run_one(target: &Target, time: Duration, seed: u64) -> io::Result<Summary> {
    let seeds = corpus(target.name)?;
    let mut summary = Summary { name: target.name, seeds: seeds.len(), runs: 0, broken: None };
    let until = Instant::now() + time;
    let mut random = Random::new(seed);
    let mut inputs = seeds.iter().cloned().chain(std::iter::once(Vec::new()));
    loop {
        let input = match inputs.next() {
            Some(input) => input,
            None if Instant::now() >= until => return Ok(summary),
            None => {
                let mut input = pick(&seeds, &mut random).to_vec();
                mutate(&mut input, pick(&seeds, &mut random), target.tokens, &mut random);
                input
            }
        };
        summary.runs += 1;
        if !holds(target, &input) {
            summary.broken = Some(keep(target.name, &input)?);
            return Ok(summary);
        }
    }
}

fn pick<'a>(seeds: &'a [Vec<u8>], random: &mut Random) -> &'a [u8] {
    seeds.get(random.below(seeds.len())).map_or(&[], Vec::as_slice)
}

/// Runs a target once; returns false if it panicked or took too long.
fn holds(target: &Target, input: &[u8]) -> bool {
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    result.is_ok() && started.elapsed() < ONE_RUN_MAX
}

/// Returns the seeds of a target, ordered by file name.
fn corpus(name: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory("corpus", name))?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    files.into_iter().map(fs::read).collect()
}

/// Writes an input that violated a property. The name is its hash, as with libFuzzer.
fn keep(name: &str, input: &[u8]) -> io::Result<PathBuf> {
    let directory = directory("artifacts", name);
    fs::create_dir_all(&directory)?;
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let file = directory.join(format!("smoke-{hash:016x}"));
    fs::write(&file, input)?;
    Ok(file)
}

fn directory(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(name)
}
