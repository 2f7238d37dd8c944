//! Limits, and settings that only seem to limit.

use crate::model::{At, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "limit-key-from-client",
        level: Error,
        what: "The client chooses the key of a limit.",
        why: "With a field, a cookie or an argument as the key, a client gets a new limit by another value, and fills the zone.",
        mend: "Use `$binary_remote_addr`; behind a proxy with `real_ip_header`.",
        bad: "limit_req_zone $http_x_forwarded_for zone=a:1m rate=1r/s; server { limit_req zone=a; }",
        good: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; server { limit_req zone=a; }",
        check: |model, found| {
            for name in ["limit_req_zone", "limit_conn_zone"] {
                for at in model.named(name) {
                    let names = text::variables(at.arg(0));
                    let is_chosen = |name: &&&str| {
                        ["http_", "arg_", "cookie_"].iter().any(|start| name.starts_with(start))
                            && **name != "http_host"
                    };
                    // Together with the address the number of keys is limited for a client only by its values.
                    if let Some(chosen) = names.iter().find(is_chosen) {
                        let chosen = *chosen;
                        found.fixable(
                            at,
                            format_args!("a client gets a new limit by another value of ${chosen}"),
                            "write $binary_remote_addr",
                            Fix::SetArgument(0, "$binary_remote_addr".to_owned()),
                        );
                    }
                }
            }
        },
    },
    Rule {
        name: "limit-key-constant",
        level: Warning,
        what: "The key of a limit is the same for all clients.",
        why: "One client that reaches the limit stops all others.",
        mend: "Use `$binary_remote_addr`, in addition to a limit for the server.",
        bad: "limit_req_zone $server_name zone=a:1m rate=1r/s; server { limit_req zone=a; }",
        good: "limit_req_zone $server_name zone=a:1m rate=100r/s; limit_req_zone $binary_remote_addr zone=b:1m rate=1r/s; server { limit_req zone=a; limit_req zone=b; }",
        check: limit_key_constant,
    },
    Rule {
        name: "limits-replaced",
        level: Warning,
        what: "`limit_req` of an inner block drops the limits of the outer one.",
        why: "`limit_req` and `limit_conn` are inherited only by blocks without one.",
        mend: "Repeat the outer limit in the inner block.",
        bad: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; limit_req_zone $uri zone=b:1m rate=9r/s; server { limit_req zone=a; location /x { limit_req zone=b; } }",
        good: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; limit_req_zone $uri zone=b:1m rate=9r/s; server { limit_req zone=a; location /x { limit_req zone=a; limit_req zone=b; } }",
        check: limits_replaced,
    },
    Rule {
        name: "timeout-unlimited",
        level: Note,
        what: "A timeout of more than a day lets idle connections stay.",
        why: "Clients and upstreams that disappear without a message occupy connections for this time.",
        mend: "Use minutes; for WebSocket and events let the application send pings.",
        bad: "server { location / { proxy_read_timeout 7d; proxy_pass http://127.0.0.1:1; } }",
        good: "server { location / { proxy_read_timeout 1h; proxy_pass http://127.0.0.1:1; } }",
        check: |model, found| {
            const NAMES: [&str; 6] = [
                "proxy_read_timeout",
                "proxy_send_timeout",
                "keepalive_timeout",
                "send_timeout",
                "client_body_timeout",
                "client_header_timeout",
            ];
            for at in model.all().filter(|at| NAMES.contains(&at.name())) {
                let time = at.arg(0);
                let days = time.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
                let seconds = time.trim_end_matches('s').parse::<u64>().ok();
                let weeks = time.ends_with('w') || time.ends_with('y') || time.ends_with('M');
                if days.is_some_and(|days| days > 1)
                    || seconds.is_some_and(|seconds| seconds > 86_400)
                    || weeks
                {
                    found.add(
                        at,
                        format_args!("idle connections stay for {time}"),
                        "use minutes, and pings of the application",
                    );
                }
            }
        },
    },
];

fn limit_key_constant(model: &Model<'_>, found: &mut Findings<'_>) {
    const CONSTANT: [&str; 6] = ["server_name", "server_addr", "server_port", "hostname", "scheme", "pid"];
    for zone in ["limit_req_zone", "limit_conn_zone"] {
        let user = zone.trim_end_matches("_zone");
        for at in model.named(zone) {
            let names = text::variables(at.arg(0));
            let is_constant = names.iter().all(|name| CONSTANT.contains(name));
            let name = at
                .args()
                .find_map(|arg| arg.strip_prefix("zone="))
                .and_then(|zone| zone.split(':').next())
                .unwrap_or_default();
            let uses =
                |limit: &At<'_, '_>| limit.args().any(|arg| arg.strip_prefix("zone=").unwrap_or(arg) == name);
            // Beside a limit for each client, it protects the application.
            let is_alone = model.all().filter(|limit| limit.name() == user && uses(limit)).any(|limit| {
                limit
                    .parent()
                    .is_some_and(|block| block.children().filter(|child| child.name() == user).count() == 1)
            });
            if is_constant && is_alone {
                found.add(
                    at,
                    "all clients share this limit",
                    "use $binary_remote_addr, in addition to a limit for the server",
                );
            }
        }
    }
}

fn limits_replaced(model: &Model<'_>, found: &mut Findings<'_>) {
    for name in ["limit_req", "limit_conn"] {
        for block in model.all().filter(|at| at.name() == "location") {
            let zone = |at: At<'_, '_>| at.args().next().unwrap_or_default().to_owned();
            let own: Vec<String> = block.children().filter(|child| child.name() == name).map(zone).collect();
            let Some(first) = block.children().find(|child| child.name() == name) else { continue };
            let outer = block.parent().map(|outer| {
                let of = |above: At<'_, '_>| {
                    above.children().filter(|child| child.name() == name).map(zone).collect::<Vec<_>>()
                };
                outer.here_and_above().map(of).find(|list| !list.is_empty()).unwrap_or_default()
            });
            let lost: Vec<String> =
                outer.unwrap_or_default().into_iter().filter(|zone| !own.contains(zone)).collect();
            // A stricter limit of its own is usual, if its key is the same.
            let key = |zone: &str| {
                let name = zone.strip_prefix("zone=").unwrap_or(zone);
                model
                    .all()
                    .filter(|at| at.name().starts_with("limit_") && at.name().ends_with("_zone"))
                    .find(|at| {
                        at.args().any(|arg| {
                            arg.strip_prefix("zone=").is_some_and(|zone| zone.split(':').next() == Some(name))
                        })
                    })
                    .map(|at| at.arg(0))
            };
            let keys: Vec<_> = own.iter().map(|zone| key(zone)).collect();
            let lost: Vec<_> = lost.into_iter().filter(|zone| !keys.contains(&key(zone))).collect();
            if !lost.is_empty() {
                let names = lost.join(", ");
                found.add(
                    first,
                    format_args!("this block drops the limit {names}"),
                    format_args!("repeat \"{name} {names};\" in this block"),
                );
            }
        }
    }
}
