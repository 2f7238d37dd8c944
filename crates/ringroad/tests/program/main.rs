//! The program as a process: command line, files, signals, reloads, upgrades, ACME, guides.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../control/mod.rs"]
mod control;
#[path = "../pebble/mod.rs"]
mod pebble;

mod acme;
mod applications;
mod capabilities;
mod cli;
mod command_line;
mod commands;
mod cut_off;
mod engines;
#[cfg(target_arch = "x86_64")]
mod escapes;
mod fmt_explain;
mod guides;
mod health;
mod hints;
mod limits;
mod lint;
mod mistakes;
mod packaged_conf;
mod process;
mod reload;
mod replaced_paths;
mod sandbox;
mod sandbox_cpu;
mod signing;
mod tls_load;
mod tools_of_nginx;
mod trust;
mod units;
mod upgrade;
