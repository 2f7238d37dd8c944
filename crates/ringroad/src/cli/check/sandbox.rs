//! The part of `ringroad check` about the sandbox: paths and ports that it will refuse, each with the directive that allows them.

use std::fmt::Write;

use serde_json::{Value, json};

use super::list_positions;
use crate::adapter::{Config, ExpectedRefusals, expected_refusals};

/// What the sandbox will refuse.
pub(super) struct SandboxSection {
    found: ExpectedRefusals,
}

/// Directive that allows a path that only a request determines. The operator knows the directory.
const ALLOWS_OPEN: &str = "sandbox_path DIRECTORY;";

/// Directive that allows ports that only a request determines.
const ALLOWS_PORTS: &str = "upstream NAME { server ADDRESS:PORT; }";

impl SandboxSection {
    /// Searches the paths of a valid configuration.
    pub(super) fn of(config: &Config) -> SandboxSection {
        SandboxSection { found: expected_refusals(config) }
    }

    /// Appends the section; nothing if nothing will be refused.
    pub(super) fn write(&self, text: &mut String, all: bool) {
        let ExpectedRefusals { open, omitted, links, any_ports, is_strict } = &self.found;
        let ports = if *is_strict { &any_ports[..] } else { &[] };
        let count = open.len() + omitted.len() + links.links.len() + ports.len();
        if count > 0 {
            let _infallible = writeln!(text, "Refused by the sandbox ({count}):");
            for need in open {
                let (name, value) = (&need.directive, &need.value);
                let _infallible = writeln!(
                    text,
                    "  {name} \"{value}\": only a request determines the path; allow its directory: {ALLOWS_OPEN}"
                );
                let position = need.position.as_ref().map(ToString::to_string);
                list_positions(text, &position.iter().map(String::as_str).collect::<Vec<_>>(), all);
            }
            for found in ports {
                let (name, value) = (&found.directive, &found.value);
                let _infallible = writeln!(
                    text,
                    "  {name} \"{value}\": only a request determines the port, and \"sandbox strict\" allows only those that a \
                     directive names; allow them: {ALLOWS_PORTS}"
                );
                let position = found.position.as_ref().map(ToString::to_string);
                list_positions(text, &position.iter().map(String::as_str).collect::<Vec<_>>(), all);
            }
            for path in omitted {
                let _infallible = writeln!(text, "  {path}");
            }
            for link in &links.links {
                let (from, to, allow) = (link.link.display(), link.target.display(), link.directive());
                let _infallible = writeln!(
                    text,
                    "  {from}: this symbolic link leads to \"{to}\", which no directive names; allow it: {allow}"
                );
            }
        }
        if links.is_partial {
            text.push_str("The search for symbolic links ended early: there are too many files.\n");
        }
        if count > 0 || links.is_partial {
            text.push('\n');
        }
    }

    /// Formats the section as JSON.
    pub(super) fn to_json(&self) -> Value {
        let ExpectedRefusals { open, omitted, links, any_ports, is_strict } = &self.found;
        let omitted = omitted.iter().map(|path| {
            let position = path.position.as_ref().map(ToString::to_string);
            json!({ "directive": path.directive, "path": path.path, "place": position, "reason": path.to_string() })
        });
        let open = open.iter().map(|need| {
            let position = need.position.as_ref().map(ToString::to_string);
            json!({ "directive": need.directive, "value": need.value, "place": position, "allow": ALLOWS_OPEN })
        });
        let found = links.links.iter();
        let found =
            found.map(|link| json!({ "link": link.link, "target": link.target, "allow": link.directive() }));
        let ports = any_ports.iter().map(|found| {
            let position = found.position.as_ref().map(ToString::to_string);
            json!({ "directive": found.directive, "value": found.value, "place": position })
        });
        json!({
            "paths": open.collect::<Vec<_>>(), "omitted": omitted.collect::<Vec<_>>(), "links": found.collect::<Vec<_>>(),
            "search_is_complete": !links.is_partial, "any_port": ports.collect::<Vec<_>>(),
            "any_port_is_refused": is_strict,
        })
    }
}
