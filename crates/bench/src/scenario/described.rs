//! The trait of a scenario: its command, its section in the report, and its measurement.

use clap::{Args, ValueEnum};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::{Results, Section};

/// The options of a command of the suite, the texts of its section, and its measurement.
pub(crate) trait Scenario: Args + 'static {
    /// Name on the command line.
    const NAME: &'static str;
    /// Heading of its section, and its line in the list of commands. If the heading depends on the options, `run`
    /// changes it; the same applies to the question.
    const TITLE: &'static str;
    /// The question that it examines, in one sentence.
    const QUESTION: &'static str;
    /// Share of the time of `bench all --quick`: about the seconds that the scenario needs on an idle machine.
    const QUICK_SHARE: u32 = 10;
    /// About the minutes that it needs with the default options, on an idle machine of two processors.
    const MINUTES: u32;

    /// Measures, and records the measurements in its section; returns their presentation.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure>;
}

/// Returns the values that the user named, or else the defaults.
pub(crate) fn or_default<T: Clone>(named: &[T], default: &[T]) -> Vec<T> {
    if named.is_empty() { default.to_vec() } else { named.to_vec() }
}

/// A value of an option. Tables use its name on the command line too.
pub(crate) trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl<T: ValueEnum> Named for T {}
