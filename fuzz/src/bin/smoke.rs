//! `smoke [--seconds N] [--seed N] [--target NAME]`: runs the fuzz targets with a stable compiler.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use ringroad_fuzz::TARGETS;
use ringroad_fuzz::smoke::{self, Options};

const USAGE: &str = "usage: smoke [--seconds N] [--seed N] [--target NAME]";

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut broken = 0;
    let result = smoke::run(&TARGETS, &options, |summary| {
        println!("{:18} {:3} seeds {:10} runs", summary.name, summary.seeds, summary.runs);
        if let Some(file) = &summary.broken {
            println!("{:18} a property is violated by {}", summary.name, file.display());
            broken += 1;
        }
    });
    match result {
        Ok(()) if broken == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("smoke: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { time: Duration::from_secs(60), seed: 1, only: None };
    while let Some(name) = args.next() {
        let value = args.next()?;
        match name.as_str() {
            "--seconds" => options.time = Duration::from_secs(value.parse().ok()?),
            "--seed" => options.seed = value.parse().ok()?,
            "--target" => options.only = Some(value),
            _ => return None,
        }
    }
    Some(options)
}
