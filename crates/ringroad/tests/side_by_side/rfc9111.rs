//! Requirements of RFC 9111, 9110, 5861, 8246, 9211 and 9213 on a cache, as sequences of requests: this server must
//! meet all except those that docs/caching.md names as policy. The cases are in `rfc9111/cases.txt`, written from the
//! RFCs' texts.
//!
//! For comparison, if they are installed, nginx, Apache Traffic Server and Squid get the same requests (`--ignored`).
//! Their results are only reported: the test fails only for a case that a peer passes and this server fails. With
//! `RINGROAD_RFC9111_REPORT=FILE` the table is written to the file.

use std::fmt::Write;
use std::time::Duration;

use crate::cases::peers::{PEERS, nginx_conf};
use crate::cases::{Case, Site, cases};
use crate::common::BINARY;
use testkit::Setup;

/// Starts this server with its defaults, except for options that the RFCs leave to the configuration.
fn ours() -> Site {
    let own = "early_hints 1; proxy_cache_request_control on; proxy_cache_status_header ringroad;";
    Site::start(Duration::from_secs(60), |origin| {
        let setup = Setup::new(&nginx_conf(own, "127.0.0.1:0", "@DATA@", "@ORIGIN@")).origin(origin);
        let server = setup.start(BINARY);
        let address = server.addr(0).clone();
        Some(((server, setup), address))
    })
    .expect("it is built")
}

#[test]
fn the_cache_conforms_to_the_rfcs() {
    let cases = cases();
    assert!(cases.len() >= 150, "{}", cases.len());
    let results = ours().run(&cases);
    let wrong: Vec<String> = unexpected(&cases, &results);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Returns the cases that failed, and cases that passed although a row documents that they fail.
fn unexpected(cases: &[Case], results: &[Option<String>]) -> Vec<String> {
    let shown = |(case, result): (&Case, &Option<String>)| match (case.policy, result) {
        (None, Some(wrong)) => Some(format!("{} ({}): {wrong}", case.name, case.section)),
        (Some(row), None) => Some(format!("{}: does what is asked for, against {row}", case.name)),
        _ => None,
    };
    cases.iter().zip(results).filter_map(shown).collect()
}

#[test]
#[ignore = "peers that are not part of the gate"]
fn no_peer_passes_where_this_server_fails() {
    let cases = cases();
    let own = ours().run(&cases);
    let mut columns = vec![("Ringroad", own.clone())];
    for peer in PEERS {
        if let Some(site) = peer.start() {
            columns.push((peer.name, site.run(&cases)));
        }
    }
    let report = report(&cases, &columns);
    eprintln!("{report}");
    if let Some(path) = std::env::var_os("RINGROAD_RFC9111_REPORT") {
        std::fs::write(path, &report).expect("the report is written");
    }
    let wrong = unexpected(&cases, &own);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns a Markdown table: a row per case, a column per server.
fn report(cases: &[Case], columns: &[(&str, Vec<Option<String>>)]) -> String {
    let mut out = String::new();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(out, "| case | RFC | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()));
    let mut group = "";
    for (number, case) in cases.iter().enumerate() {
        if case.group != group {
            group = case.group;
            let _ = writeln!(out, "| **{group}** | | {} |", vec![""; names.len()].join(" | "));
        }
        let cell = |(index, results): (usize, &Vec<Option<String>>)| match (&results[number], case.policy) {
            (None, _) => "yes".to_owned(),
            (Some(_), Some(row)) if index == 0 => format!("policy {row}"),
            (Some(wrong), _) => wrong.replace('|', "/"),
        };
        let cells: Vec<String> =
            columns.iter().enumerate().map(|(index, (_, results))| cell((index, results))).collect();
        let _ = writeln!(out, "| {} | {} | {} |", case.name, case.section, cells.join(" | "));
    }
    let right =
        |results: &Vec<Option<String>>| results.iter().filter(|wrong| wrong.is_none()).count().to_string();
    let counts: Vec<String> = columns.iter().map(|(_, results)| right(results)).collect();
    let _ = writeln!(out, "| **as expected, of {}** | | {} |", cases.len(), counts.join(" | "));
    out
}
