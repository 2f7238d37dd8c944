//! Features of nginx whose work is more than a lookup: passwords (apr1), SSI, rewrites, compression of proxied responses. No write-up
//! has these rows.
//!
//! All responses are small, so that the feature is most of the work of a request. The password is verified for each request, as
//! nginx does. The page with SSI includes another location; the compressed one comes from another server of the same program.

use std::time::Duration;

use crate::context::Bench;
use crate::failure::Failure;
use crate::load::Expect;
use crate::report::model::Section;
use crate::scenario::comparison::{self, Compared, NGINX, READY, SERVERS, Text, labels_of};
use crate::scenario::measurements::{Measurements, at};
use crate::scenario::served::{self, ServerCpus};

/// Number of connections.
const CONNECTIONS: u32 = 16;

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(1);

/// A user "bench" with the password "bench", as `openssl passwd -apr1` stores it.
const PASSWORD_FILE: &str = "bench:$apr1$8sFt66rZ$nXz91wca9H/Fd9yjURL4d1\n";

/// The field of a request with this user.
const AUTHORIZATION: &str = "Authorization: Basic YmVuY2g6YmVuY2g=";

/// A row: its name, the path of its requests, and a further field of them.
type Feature = (&'static str, &'static str, Option<&'static str>);

const FEATURES: [Feature; 4] = [
    ("password, apr1", "/password", Some(AUTHORIZATION)),
    ("SSI with an include", "/page", None),
    ("ten rewrites", "/old/0", None),
    ("proxied, gzip", "/gzip", Some("Accept-Encoding: gzip")),
];

/// Number of lines in the compressed response.
const LINES: usize = 100;

/// Adds the tables of features to a section.
pub(super) fn add(bench: &Bench, section: &mut Section) -> Result<(), Failure> {
    let directory = bench.workspace.directory("features")?;
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(Failure::file("write", &path))
    };
    file("users", PASSWORD_FILE)?;
    file("compressed.txt", &"A line of a text that is proxied and compressed.\n".repeat(LINES))?;
    let cpus = ServerCpus::of_one_worker(bench, section);
    let servers = (&SERVERS[..], ", features");
    let mut servers = comparison::start(bench, section, &cpus, servers, |variant, instance| {
        let directory = directory.display();
        let socket = instance.directory.join("origin").display().to_string();
        // Each rewrite matches, and the last one ends the series.
        let rewrites: String =
            (0..10).map(|step| format!("    rewrite ^/old/{step}$ /old/{};\n", step + 1)).collect();
        let server = format!(
            "{READY}\nlocation = /password {{\n    auth_basic bench;\n    auth_basic_user_file {directory}/users;\n    \
             try_files /none @done;\n}}\nlocation @done {{ return 200 done; }}\n\
             location = /page {{\n    default_type text/html;\n    ssi on;\n    \
             return 200 'before <!--#include virtual=\"/part\" --> after';\n}}\nlocation = /part {{ return 200 part; }}\n\
             location /old/ {{\n{rewrites}    return 200 done;\n}}\n\
             location = /gzip {{\n    gzip on;\n    gzip_proxied any;\n    gzip_types text/plain;\n    \
             proxy_pass http://unix:{socket}:/compressed.txt;\n}}"
        );
        let http = format!("server {{ listen unix:{socket}; default_type text/plain; root {directory}; }}");
        variant.configuration(instance, &Text { http, server, ..Text::default() })
    })?;
    for (name, path, field) in FEATURES {
        let labels = at([("feature", &name), ("workers", &1), ("connections", &CONNECTIONS)]);
        let mut plan = served::load(bench, &cpus.split, CONNECTIONS, LENGTH);
        plan.headers = field.map(str::to_owned).into_iter().collect();
        plan.expect = Expect { status: Some(200), ..Expect::default() };
        let words = format!("{name}, {CONNECTIONS} connections");
        served::compare(bench, section, &mut servers, (&words, path), &plan, |variant| {
            Some(labels_of(variant, &labels))
        })?;
        let compared = Compared { measurements: Measurements::of(section), variants: &SERVERS };
        let title = format!("Features: {name}, one worker, {CONNECTIONS} long connections");
        let results = compared.costs(&title, &NGINX, &labels);
        section.add_results(results);
    }
    Ok(())
}
