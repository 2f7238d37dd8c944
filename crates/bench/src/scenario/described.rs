//! A scenario as its command, its section and its measurement describe it.

use clap::{Args, ValueEnum};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::Section;

/// The options of one command of the suite, what its section says, and what it measures.
pub(crate) trait Scenario: Args + 'static {
    /// On the command line.
    const NAME: &'static str;
    /// One line for the list of commands.
    const HELP: &'static str;
    /// The heading of its section. Where it depends on the options, `run` changes it, as it may change the question.
    const TITLE: &'static str;
    /// The question, in one sentence.
    const QUESTION: &'static str;
    /// Its time on two processors, for the time left that a terminal shows.
    const SECONDS: u32;

    /// Refuses what cannot be meant, before anything is made or started.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Measures, and fills its section.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<(), Failure>;
}

/// The name of a value on the command line, which is its name in tables too.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
