//! The scenarios: one module for each command of the suite, in one table.

mod cache;
mod cold;
mod comparison;
mod crowd;
mod delay;
mod described;
mod disk;
mod echo;
mod fill;
mod h2;
mod h3;
mod http;
mod isolate;
mod large;
mod measurements;
mod nop;
mod origin;
mod served;
mod stream;
mod stream_proxy;
mod tls;
mod wire;

use clap::{ArgMatches, Command};

use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::Section;
use crate::report::write_ups;
use described::Scenario;

/// A scenario in the table of commands.
pub(crate) struct ScenarioEntry {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) question: &'static str,
    pub(crate) quick_share: u32,
    pub(crate) minutes: u32,
    /// Adds the options of the command.
    pub(crate) augment: fn(Command) -> Command,
    /// Parses the options. No file is created and no process started before all options are parsed.
    pub(crate) prepare: fn(&ArgMatches) -> Result<Prepared, Failure>,
}

/// A scenario with parsed options.
pub(crate) type Prepared = Box<dyn FnOnce(&Bench) -> Result<Section, Failure>>;

/// All scenarios, in the order in which `all` runs them.
pub(crate) const SCENARIOS: &[ScenarioEntry] = &[
    entry::<nop::NopOptions>(),
    entry::<disk::DiskOptions>(),
    entry::<echo::EchoOptions>(),
    entry::<wire::WireOptions>(),
    entry::<http::HttpOptions>(),
    entry::<crowd::CrowdOptions>(),
    entry::<cold::ColdOptions>(),
    entry::<fill::FillOptions>(),
    entry::<cache::CacheOptions>(),
    entry::<large::LargeOptions>(),
    entry::<isolate::IsolateOptions>(),
    entry::<stream::StreamOptions>(),
    entry::<stream_proxy::StreamProxyOptions>(),
    entry::<tls::TlsOptions>(),
    entry::<h2::FilesOptions>(),
    entry::<h2::CallsOptions>(),
    entry::<h3::Http3Options>(),
    entry::<delay::DelayOptions>(),
];

pub(crate) use disk::worker::{COMMAND as DISK_WORKER, main as disk_worker};
pub(crate) use echo::server::{COMMAND as ECHO_SERVER, main as echo_server};

const fn entry<S: Scenario>() -> ScenarioEntry {
    ScenarioEntry {
        name: S::NAME,
        title: S::TITLE,
        question: S::QUESTION,
        quick_share: S::QUICK_SHARE,
        minutes: S::MINUTES,
        augment: S::augment_args,
        prepare: prepare::<S>,
    }
}

/// Parses the options of a scenario.
fn prepare<S: Scenario>(matches: &ArgMatches) -> Result<Prepared, Failure> {
    let scenario = S::from_arg_matches(matches)?;
    Ok(Box::new(move |bench| {
        let mut section = Section {
            scenario: S::NAME.to_owned(),
            title: S::TITLE.to_owned(),
            question: S::QUESTION.to_owned(),
            write_up: write_ups::of_scenario(S::NAME).map(|write_up| write_up.number.clone()),
            ..Section::default()
        };
        let results = scenario.run(bench, &mut section)?;
        section.add_results(results);
        Ok(section)
    }))
}
