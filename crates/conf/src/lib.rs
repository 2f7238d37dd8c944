//! The nginx configuration language: text in, a tree with spans, directives as data, diagnostics.
//!
//! A configuration goes through three steps, each with its type:
//!
//! ```text
//! Source --parse(loader)--> Tree --Table::scope, Scope::admit--> &Spec + Statement --value::*--> typed values
//! ```
//!
//! * [`parse`] knows words, blocks and `include`, but no directive.
//! * [`Table`] holds directives as data. [`Scope::admit`] says whether a statement may stand where it stands;
//!   [`check`] and [`visit`] do that for a whole tree.
//! * [`value`] turns the text of an argument into a size, a time, a flag.
//!
//! The owners of the directives keep the tables of existing directives and their setters; this crate names none. It
//! does no input or output either; files come from a [`Loader`]. All texts of errors are those of nginx, so that tools
//! that read `nginx -t` can read these too.
#![forbid(unsafe_code)]

mod changes;
mod check;
mod error;
mod excerpt;
mod format;
mod glob;
mod layered;
mod lexer;
mod nginx;
mod print;
mod removed;
mod source;
mod spec;
mod tree;
pub mod value;

pub use changes::{Change, ChangeKind, changes};
pub use check::{Report, Scope, Verdict, Visit, check, visit};
pub use error::{Error, ErrorKind, Level};
pub use excerpt::{excerpt, excerpt_of, typography};
pub use format::format;
pub use glob::{expand as expand_glob, matches as glob_matches};
pub use layered::Layered;
pub use nginx::{NginxDirective, differences, instead_of, nginx_directives};
pub use print::{dump, print};
pub use source::{FileId, Loader, MapLoader, Source, SourceFile, Sources, Span};
pub use spec::{Args, Block, Contexts, Repeat, Spec, State, Table, edit_distance, slips_max};
pub use tree::{Statement, Tree, Word, parse, parse_past_faults};
