//! `cargo xtask instructions`: compares the number of instructions that frequently executed functions take with the
//! committed figures.
//!
//! callgrind (of valgrind) counts the instructions of the program of crate `instructions`, without privileges and with
//! the same result on all machines of one kind. Comparing times would need an idle machine and a tolerance of 20 %; an
//! increase of the instructions by 2 % is caused by a change of the code, intended or not. `--bless` writes the current
//! counts.
//!
//! The comparison detects changes of the sources, but another compiler generates other code too. So the committed file
//! names its tools; with other tools, differences are printed and do not fail the check.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::{Failure, workspace};

/// Path of the committed figures.
const FILE: &str = "crates/instructions/counts.txt";

/// Maximum ratio of a count to the committed figure.
const MORE_MAX: f64 = 1.02;

/// The same for a complete request, which makes system calls. On a slow or busy machine, one turn of the event loop
/// handles more events, and timers expire more often in a thousand requests.
const MORE_MAX_COURSE: f64 = 1.10;

/// A count with a smaller ratio should be committed, so that later changes do not lose the improvement.
const LESS_MIN: f64 = 0.98;

/// The program runs each function (*piece*) twice; the second run has this many repetitions more than the first.
const REPETITIONS: u64 = 1000;

const HEADER: &str = "\
# Instructions of one call of each function in crates/instructions/src/pieces.rs and, for complete requests, whole.rs.
# `cargo xtask instructions` counts them with callgrind. It fails if a function takes over 2 % more than here, or a
# complete request over 10 % more, but only with the tools of the line `made with`; with others it prints the difference.
# `cargo xtask instructions --bless` writes this file.
";

/// Number of instructions by piece.
type Counts = BTreeMap<String, u64>;

/// Counts and compares; a missing tool is reported and is not a failure.
pub(crate) fn check() -> Result<(), Failure> {
    let Some((made_with, counts)) = count()? else { return Ok(()) };
    let (known_with, known) = parse(&workspace::read(FILE)?);
    print!("{}", table(&known, &counts));
    if made_with != known_with {
        println!("not compared: the committed counts were made with {known_with}, these with {made_with}");
        return Ok(());
    }
    if counts.iter().any(|(name, &count)| ratio(&known, name, count).is_some_and(|ratio| ratio < LESS_MIN)) {
        println!(
            "some counts are smaller than committed: store them with `cargo xtask instructions --bless`"
        );
    }
    Failure::unless_empty(
        "the comparison of instructions (after an intended change, use --bless)",
        problems(&known, &counts),
    )
}

/// Counts and writes the file.
pub(crate) fn bless() -> Result<(), Failure> {
    let Some((made_with, counts)) = count()? else { return Ok(()) };
    let (_, known) = parse(&workspace::read(FILE).unwrap_or_default());
    print!("{}", table(&known, &counts));
    let mut text = format!("{HEADER}made with {made_with}\n");
    for (name, count) in &counts {
        let _ = writeln!(text, "{name} {count}");
    }
    workspace::write(FILE, &text)
}

/// Returns the version of valgrind; `None` if it is not installed.
pub(crate) fn tool() -> Option<String> {
    let version = Command::new("valgrind").arg("--version").stderr(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

/// Returns the command that compiles the program.
pub(crate) fn build() -> Command {
    cargo("build")
}

fn cargo(command: &str) -> Command {
    workspace::cargo(&[command, "--quiet", "--profile", "instructions", "-p", "instructions"])
}

/// Returns the counts and their tools; `None` if callgrind is not installed.
fn count() -> Result<Option<(String, Counts)>, Failure> {
    let Some(valgrind) = tool() else {
        println!("not counted: valgrind is not installed (apt-get install valgrind)");
        return Ok(None);
    };
    let rustc = workspace::output(Command::new("rustc").arg("-vV").current_dir(workspace::root()))?;
    let line = |name: &str| rustc.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
    let (host, release) = (line("host: ").to_owned(), line("release: ").to_owned());
    let folder = workspace::root().join("target/instructions");
    let file = |error| Failure::File { path: folder.clone(), error };
    std::fs::create_dir_all(&folder).map_err(file)?;
    let profile = folder.join("callgrind.out");
    // Most of valgrind's messages are about system calls that it does not know.
    let words = folder.join("valgrind.log");
    let runner = format!(
        "valgrind --tool=callgrind --quiet --log-file={} --callgrind-out-file={}",
        words.display(),
        profile.display()
    );
    let variable = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"));
    // A failed run must not leave the counts of an earlier one.
    let _ = std::fs::remove_file(&profile);
    workspace::run(cargo("run").env(variable, runner))?;
    let text =
        std::fs::read_to_string(&profile).map_err(|error| Failure::File { path: profile.clone(), error })?;
    let counts = instructions(&text);
    if counts.is_empty() {
        return Err(Failure::Format { what: "callgrind's output", detail: "no piece is in it".to_owned() });
    }
    // memchr selects its code by the features of the processor, which valgrind does not hide.
    let avx2 = if has_avx2() { "with AVX2" } else { "without AVX2" };
    Ok(Some((format!("rustc {release}, {host} {avx2}, {valgrind}"), counts)))
}

fn has_avx2() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().find(|line| line.starts_with("flags")).is_some_and(|line| line.contains(" avx2"))
}

/// Computes the instructions of one run of each measured function from a callgrind profile
/// (<https://valgrind.org/docs/manual/cl-format.html>). `more` runs a function `REPETITIONS` times more often than `fewer`.
///
/// ```text
/// fn=(12) instructions::fewer
/// cfn=(14) instructions::pieces::cache_key      the name is written at its first use, later only its number
/// calls=1 180
/// 42 1234567                                    the line of the call, and its cost with all functions that it calls
/// ```
fn instructions(profile: &str) -> Counts {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut caller, mut called, mut is_call) = ("", "", false);
    let (mut fewer, mut more) = (Counts::new(), Counts::new());
    for line in profile.lines() {
        if is_call {
            is_call = false;
            let cost = line.split_ascii_whitespace().next_back().and_then(|cost| cost.parse::<u64>().ok());
            if let (Some(piece), Some(cost)) = (piece_of(called), cost) {
                match caller {
                    "instructions::fewer" | "instructions::fewer_requests" => {
                        *fewer.entry(piece.to_owned()).or_default() += cost
                    }
                    "instructions::more" | "instructions::more_requests" => {
                        *more.entry(piece.to_owned()).or_default() += cost
                    }
                    _ => {}
                }
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(name) = line.strip_prefix("fn=") {
            caller = resolve(&mut names, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = resolve(&mut names, name);
        }
    }
    let of = |(name, cost): (&String, &u64)| {
        let less = fewer.get(name)?;
        // Rounded to the nearest integer: the growth of a table adds a fraction of an instruction per call.
        Some((name.clone(), (cost.saturating_sub(*less) + REPETITIONS / 2) / REPETITIONS))
    };
    more.iter().filter_map(of).collect()
}

/// Returns the name of the piece, if the function is one.
fn piece_of(function: &str) -> Option<&str> {
    ["instructions::pieces::", "instructions::whole::"]
        .iter()
        .find_map(|module| function.strip_prefix(module))
}

/// Resolves a compressed name: `(14) name` or `(14)`.
fn resolve<'a>(names: &mut BTreeMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(text).copied().unwrap_or_default(),
    }
}

/// Parses the committed file: the tools, and the counts.
fn parse(text: &str) -> (String, Counts) {
    let made_with = text.lines().find_map(|line| line.strip_prefix("made with ")).unwrap_or("nothing");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("made with"));
    let count = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    (made_with.to_owned(), lines.filter_map(count).collect())
}

/// Returns the ratio of the current count to the committed one.
fn ratio(known: &Counts, name: &str, count: u64) -> Option<f64> {
    known.get(name).map(|&before| count as f64 / before.max(1) as f64)
}

fn table(known: &Counts, counts: &Counts) -> String {
    let mut text = format!("{:24} {:>9} {:>9} {:>8}\n", "instructions", "committed", "now", "");
    for (name, &count) in counts {
        let before = known.get(name).map_or_else(|| "–".to_owned(), u64::to_string);
        let change = ratio(known, name, count).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let _ = writeln!(text, "{name:24} {before:>9} {count:>9} {change:>8}");
    }
    text
}

/// Lists pieces with more instructions than committed, and pieces that only one side has.
fn problems(known: &Counts, counts: &Counts) -> Vec<String> {
    let gone = known.keys().filter(|name| !counts.contains_key(*name));
    let gone = gone.map(|name| format!("{name} is in {FILE} but was not counted"));
    let more = counts.iter().filter_map(|(name, &count)| match known.get(name) {
        None => Some(format!("{name} is not in {FILE}")),
        Some(before) if ratio(known, name, count)? > most(name) => {
            Some(format!("{name} takes {count} instructions, {before} before"))
        }
        Some(_) => None,
    });
    gone.chain(more).collect()
}

/// Returns the maximum ratio to the committed figure for a piece.
fn most(name: &str) -> f64 {
    if name.starts_with("course_") { MORE_MAX_COURSE } else { MORE_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
version: 1
events: Ir
fn=(1) instructions::fewer
10 5
cfn=(3) instructions::pieces::cache_key
calls=1 180
12 501000

fn=(2) instructions::more
20 5
cfn=(3)
calls=1 180
+2 801400
fn=(3)
180 1302400
cfn=(4) instructions::pieces::index
calls=2 1
180 99
fn=(5) instructions::fewer_requests
30 5
cfn=(6) instructions::whole::course_hit
calls=1 40
30 7000000
fn=(7) instructions::more_requests
40 5
cfn=(6)
calls=1 40
40 14000000
fn=(8) instructions::main
cfn=(6)
calls=1 40
50 900
";

    fn counts(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn setup_cost_cancels_out_and_calls_of_pieces_are_ignored() {
        assert_eq!(instructions(PROFILE), counts(&[("cache_key", 300), ("course_hit", 7000)]));
    }

    #[test]
    fn the_file_is_parsed_as_it_is_written() {
        let text = format!("{HEADER}made with rustc 1.0, x, y\ncache_key 300\n");
        assert_eq!(parse(&text), ("rustc 1.0, x, y".to_owned(), counts(&[("cache_key", 300)])));
    }

    #[test]
    fn an_increase_is_a_problem_and_a_decrease_is_not() {
        let known = counts(&[("a", 1000), ("b", 1000), ("c", 1000), ("gone", 1)]);
        let now = counts(&[("a", 1021), ("b", 1019), ("c", 10), ("new", 1)]);
        let found = problems(&known, &now);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("gone is in"));
        assert_eq!(found[1], "a takes 1021 instructions, 1000 before");
        assert!(found[2].starts_with("new is not in"));
    }
}
