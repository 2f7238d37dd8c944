//! The nginx configuration language: parses text to a tree with locations, defines directives as data, and reports errors.
//!
//! A configuration goes through three steps, each with its type:
//!
//! ```text
//! Source --parse(loader)--> Tree --Table::scope, Scope::admit--> &Spec + Statement --value::*--> typed values
//! ```
//!
//! * [`parse`] handles words, blocks and `include`, but no other directive.
//! * [`Table`] contains directives as data. [`Scope::admit`] checks whether a statement is allowed in its block; [`check()`]
//!   and [`visit`] check a complete tree.
//! * [`value`] parses the text of an argument as a size, a time, a flag.
//!
//! The modules define the tables of their directives and the setters. This crate has only the names of nginx's directives, for
//! messages about those that the server does not have. It performs no I/O: files are read through a [`Loader`]. Errors have
//! nginx's texts, so that tools which parse the output of `nginx -t` work here too.
//!
//! Crates of the workspace that it may use: none.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`mod@changes`] | the differences between two configurations |
//! | [`mod@print`] | statements to text |
//! | [`mod@format`], [`mod@edit`] | `ringroad fmt`; changes of single statements |
//! | [`mod@check`] | the check of a statement |
//! | [`mod@excerpt`] | the line of an error with a mark |
//! | [`remedy`] | what to write instead of typical mistakes |
//! | [`layered`] | lists that blocks inherit or replace |
//! | [`tree`], [`lexer`], [`value`], [`error`] | text to statements with file and line; arguments to values; errors |
//! | [`source`], [`glob`] | files and the function that loads them; patterns of `include` |
//! | [`spec`], [`nginx`] | directives as data; every directive that nginx has |
//! | [`removed`], [`commercial`] | directives that nginx had; those of its commercial edition |
//! | [`third_party`] | third-party modules by the names of their directives |
//! | [`lua`] | the end of a block of Lua code |
#![forbid(unsafe_code)]

mod changes;
mod check;
mod commercial;
mod edit;
mod error;
mod excerpt;
mod format;
mod glob;
mod layered;
mod lexer;
mod lua;
mod nginx;
mod print;
mod remedy;
mod removed;
mod source;
mod spec;
mod third_party;
mod tree;
pub mod value;

pub use changes::{Change, ChangeKind, changes};
pub use check::{CheckResult, Report, Scope, Visit, check, visit};
pub use commercial::instead_of_commercial;
pub use edit::{Edit, EditKind, edit, includes};
pub use error::{Error, ErrorKind, Level, Object};
pub use excerpt::{excerpt, excerpt_of, remedy_of, typography};
pub use format::format;
pub use glob::{expand as expand_glob, matches as glob_matches};
pub use layered::Layered;
pub use nginx::{NginxDirective, differences, instead_of, nginx_directives};
pub use print::{Bare, dump, print};
pub use removed::is_removed;
pub use source::{FileId, Loader, MapLoader, Source, SourceFile, Sources, Span};
pub use spec::{Args, Block, Contexts, Repeat, Spec, Support, Table, similar};
pub use third_party::{is_of_third_party, third_party_module, third_party_variable};
pub use tree::{Statement, Tree, Word, parse, parse_past_faults};
