//! Finds traps in a configuration: directives that are valid, but probably do not what their author expects.
//!
//! ```text
//! Tree --Model--> nodes with parents --rules--> Finding --allow comments--> report as text, JSON or SARIF; fixes of the text
//! ```
//! Each [`Rule`] is data with a function: its name, its level, texts for its section in docs/lint.md, and a configuration with the
//! trap and one without, which are also its tests. A rule reads only the tree and the [`Facts`] of the caller, such as whether a
//! file exists. The crate makes no I/O.
//!
//! Crates of the workspace that it may use: `conf`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`report`], [`page`] | findings as text, JSON and SARIF; docs/lint.md |
//! | [`run`] | runs the rules, applies `# lint: allow` comments, makes fixes |
//! | [`rules`] | the rules, a file for each subject |
//! | [`rule`] | a rule, a finding, a level |
//! | [`model`] | the statements with their parents, and the settings in effect |
//! | [`text`] | variables, patterns, addresses and names in arguments |
#![forbid(unsafe_code)]

mod model;
mod page;
mod report;
mod rule;
mod rules;
mod run;
mod text;

pub use model::{Facts, NoFacts, Refusal};
pub use page::page;
pub use report::{Form, print};
pub use rule::{Finding, Level, Rule};
pub use rules::all;
pub use run::{Options, fix, lint, refused};
