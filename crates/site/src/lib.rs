//! The configuration of a server: settings, servers, locations, zones, and text with variables. This crate knows no request and
//! no names of modules.
//!
//! [`config`] reads it with the declarations of modules, and is the interface for other crates. Types for the processing of
//! requests are generic over the request.
//!
//! Crates of the workspace that it may use: `io`, `http`, `conf`, `telemetry`, `transfer`.
//!
//! | module | content |
//! |---|---|
//! | [`route`] | listener, server and location of a request, for `ringroad explain` |
//! | [`find_location`] | the search for the location of a URI |
//! | [`phases`] | the handlers of a location by phase, with `Place`, the position of a request among them; the phases are those of its subject |
//! | [`expected_refusals`] | what the sandbox will refuse, for `ringroad check` |
//! | [`enforced`] | the restrictions of this process, and the reasons of refusals |
//! | [`path_snapshot`] | the files that allowed paths led to, to find replaced ones |
//! | [`allowed_paths`] | the paths of `needs` without symbolic links, as the kernel compares them, and the reason why a path is refused |
//! | [`omitted_paths`] | paths of directives that the sandbox does not allow, with the reasons |
//! | [`real_paths`] | resolves the symbolic links of a path, and lists them |
//! | [`needs`] | the directories and ports that a configuration needs while it serves |
//! | [`network`] | networks |
//! | [`config`] | converts statements to settings: `resolve` (blocks), `location_names` (arguments of `location`), `settings` (one value for each type of settings), `scope` (inheritance). `declaration` is what a module declares for the configuration: directives, settings, hooks at the end of a block; `cx` is the argument of a setter |
//! | [`settings`] | settings of `main`, `events` and the HTTP core, a file for each group of readers (`reading`: requests and their bodies). Their directives are in `core-modules/http_core` and `core-modules/core` |
//! | [`shared_zone`] | state that all threads share |
//! | [`variables`], [`slots`] | the functions of variables; values stored in a request |
//! | [`extensions`] | values by type |
//! | [`known_values`] | values of variables that the configuration determines |
//! | [`registry`] | names of variables |
//! | [`uses`] | how directives use paths and ports, recorded while they are read |
//! | [`template`] | text with variables |
//! | [`var_ref`] | references to variables |
//! | [`pattern`], [`wildcard`] | regular expressions; values by host name |
//! | [`ids`] | the blocks `http` and `stream`, indices of servers and locations |
//! | [`address`] | addresses of connections |
#![forbid(unsafe_code)]

pub mod address;
pub mod allowed_paths;
pub mod config;
pub mod enforced;
pub mod expected_refusals;
pub mod extensions;
pub mod find_location;
pub mod ids;
pub mod known_values;
pub mod needs;
pub mod network;
pub mod omitted_paths;
pub mod path_snapshot;
pub mod pattern;
pub mod phases;
mod real_paths;
pub mod registry;
pub mod route;
pub mod settings;
pub mod shared_zone;
pub mod slots;
pub mod template;
pub mod uses;
pub mod var_ref;
pub mod variables;
pub mod wildcard;

pub use config::{cx, declaration};
