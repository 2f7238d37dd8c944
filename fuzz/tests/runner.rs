//! Tests that the runner detects violated properties, and that every target has its files.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use ringroad_fuzz::smoke::{self, Options};
use ringroad_fuzz::{TARGETS, Target};

fn run(targets: &[Target], only: Option<&str>) -> io::Result<Vec<smoke::Summary>> {
    let mut summaries = Vec::new();
    let options = Options { time: Duration::ZERO, seed: 1, only: only.map(str::to_owned) };
    smoke::run(targets, &options, |summary| summaries.push(summary.clone()))?;
    Ok(summaries)
}

#[test]
fn every_target_has_seeds_and_a_program_for_libfuzzer() {
    let manifest = include_str!("../Cargo.toml");
    for target in &TARGETS {
        let summaries = run(&TARGETS, Some(target.name)).expect("the corpus is readable");
        assert!(summaries.len() == 1 && summaries[0].seeds >= 3, "{summaries:?}");
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{}.rs\"", target.name)), "{}", target.name);
    }
}

#[test]
fn an_input_that_violates_a_property_is_saved() {
    let refuses_get = |data: &[u8]| assert!(!data.windows(4).any(|four| four == b"GET "));
    let target = Target { name: "request_head", run: refuses_get, tokens: &[] };
    let summaries = run(&[target], None).expect("the corpus is readable");
    let file = summaries[0].broken.as_deref().expect("a seed has a GET");
    let input = fs::read(file).expect("the input was written");
    assert!(input.windows(4).any(|four| four == b"GET "));
    fs::remove_file(file).expect("it is ours");
    assert!(file.starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts")));
}

#[test]
fn an_unknown_target_name_is_an_error() {
    assert!(run(&TARGETS, Some("none")).is_err());
}
