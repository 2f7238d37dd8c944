//! Files: roots, aliases, types, lists of directories.

use std::path::Path;

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Note, Warning};
use crate::rule::{Findings, Fix, Rule};
use crate::text;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "alias-traversal",
        level: Error,
        what: "The location has no slash at its end, but the `alias` has one.",
        why: "`/files../secret` is the file `../secret` of the alias: clients read files beside the directory.",
        mend: "End the location with a slash, as the alias.",
        bad: "server { location /files { alias /srv/files/; } }",
        good: "server { location /files/ { alias /srv/files/; } }",
        check: alias_traversal,
    },
    Rule {
        name: "alias-without-slash",
        level: Warning,
        what: "The location ends with a slash, but the `alias` does not.",
        why: "`/files/a` is the file `/srv/filesa`.",
        mend: "End the alias with a slash.",
        bad: "server { location /files/ { alias /srv/files; } }",
        good: "server { location /files/ { alias /srv/files/; } }",
        check: |model, found| {
            for (at, own) in aliases(model) {
                if own.is_prefix()
                    && own.path.ends_with('/')
                    && !at.arg(0).ends_with('/')
                    && !at.arg(0).contains('$')
                {
                    let (path, alias) = (own.path, at.arg(0));
                    let fix = Fix::SetArgument(0, format!("{alias}/"));
                    found.fixable(
                        at,
                        format_args!("{path}a is the file {alias}a"),
                        format_args!("write \"{alias}/\""),
                        fix,
                    );
                }
            }
        },
    },
    Rule {
        name: "alias-without-group",
        level: Warning,
        what: "`alias` in a location with a regular expression has no group of it.",
        why: "There the alias replaces the complete path: all requests get the same file.",
        mend: "Write `alias /srv/$1;` with a group in the pattern, or use `root`.",
        bad: "server { location ~ ^/files/(.*)$ { alias /srv/files/; } }",
        good: "server { location ~ ^/files/(.*)$ { alias /srv/files/$1; } }",
        check: |model, found| {
            for (at, own) in aliases(model) {
                if own.is_regex() && !at.arg(0).contains('$') {
                    found.add(
                        at,
                        "all requests of this location get the same path",
                        "use a group of the pattern: \"alias …/$1;\"",
                    );
                }
            }
        },
    },
    Rule {
        name: "root-repeats-location",
        level: Warning,
        what: "The path of the location is at the end of `root` too.",
        why: "`root` is the directory before the complete path: `/img/a.png` is searched at `/srv/img/img/a.png`.",
        mend: "Omit the path of the location from `root`, or write `alias`.",
        bad: "server { location /img/ { root /srv/img/; } }",
        good: "server { location /img/ { root /srv; } }",
        check: root_repeats,
    },
    Rule {
        name: "root-of-system",
        level: Error,
        what: "`root` is a directory of the system.",
        why: "Clients can read `/etc/passwd`, keys and programs.",
        mend: "Use a directory that has only the files to be served.",
        bad: "server { root /etc; }",
        good: "server { root /srv/www; }",
        check: root_of_system,
    },
    Rule {
        name: "root-from-client",
        level: Error,
        what: "The client chooses the directory of `root` or `alias`.",
        why: "With a field, a cookie or an argument as a part of the path, clients read files of other directories (`../`).",
        mend: "Select the directory by a `map` with the permitted values.",
        bad: "server { root /srv/$arg_site; }",
        good: "map $arg_site $site { default main; blog blog; } server { root /srv/$site; }",
        check: |model, found| {
            for name in ["root", "alias"] {
                for at in model.named(name) {
                    let names = text::variables(at.arg(0));
                    if let Some(name) = names
                        .into_iter()
                        .find(|name| ["arg_", "cookie_", "http_"].iter().any(|start| name.starts_with(start)))
                    {
                        found.add(
                            at,
                            format_args!("the client chooses the directory by ${name}"),
                            "select it by a \"map\" with the permitted values",
                        );
                    }
                }
            }
        },
    },
    Rule {
        name: "missing-root",
        level: Warning,
        what: "The directory of `root` or `alias` does not exist.",
        why: "The start succeeds; each request gets 404.",
        mend: "Create the directory, or correct the path.",
        bad: "server { root /nonexistent/www; }",
        good: "server { root /nonexistent/$host; }",
        check: missing_root,
    },
    Rule {
        name: "autoindex-everywhere",
        level: Warning,
        what: "All directories of a site are listed.",
        why: "Lists show backups and unfinished files to everybody.",
        mend: "Set `autoindex on` only in the location of downloads.",
        bad: "server { root /srv; autoindex on; location / { try_files $uri $uri/ /index.html; } }",
        good: "server { root /srv; location /download/ { autoindex on; } }",
        check: |model, found| {
            for at in model.named("autoindex").filter(|at| at.arg(0) == "on") {
                let Some(block) = at.parent() else { continue };
                let is_root = block.name() == "location" && Location::of(block).path == "/";
                let is_guarded = super::access::is_guarded(block);
                // The lists of a site of downloads are its purpose; those of an application are not.
                let is_application = block.server().is_some_and(|server| {
                    server
                        .inside()
                        .any(|at| at.name().ends_with("_pass") || matches!(at.name(), "try_files" | "index"))
                });
                let is_everywhere = matches!(block.name(), "http" | "server") || is_root;
                if is_everywhere && !is_guarded && (is_application || block.name() == "http") {
                    found.add(
                        at,
                        "each directory without an index is listed",
                        "set it only in the location of downloads",
                    );
                }
            }
        },
    },
    Rule {
        name: "lost-types",
        level: Warning,
        what: "`types` in an inner block replaces all MIME types of the outer one.",
        why: "Files of all other types are then sent as `default_type`; browsers refuse style sheets and scripts of a wrong type.",
        mend: "Use `default_type` for one location, or include mime.types in the block too.",
        bad: "types { text/html html; text/css css; } server { location / { types { text/x-log log; } } }",
        good: "types { text/html html; text/css css; } server { location /logs/ { types { } default_type text/plain; } }",
        check: lost_types,
    },
    Rule {
        name: "no-types",
        level: Warning,
        what: "Files are served without MIME types.",
        why: "Without `include mime.types;` only html, gif and jpg have a type; browsers refuse style sheets and scripts.",
        mend: "Add `include mime.types;` to `http`.",
        bad: "server { listen 80; root /srv; }",
        good: "types { text/html html; text/css css; } server { listen 80; root /srv; }",
        check: no_types,
    },
    Rule {
        name: "refused",
        level: Error,
        what: "`ringroad -t` refuses the configuration.",
        why: "A server with this error does not start, and a reload keeps the old configuration. The finding has the message of `-t`. Errors \
              about files that this user may not read, such as keys, are no findings.",
        mend: "Write what the finding says; `ringroad help DIRECTIVE` shows the syntax of a directive.",
        bad: "sendfile maybe;",
        good: "sendfile on;",
        check: |_, _| {},
    },
    Rule {
        name: "empty-include",
        level: Note,
        what: "A pattern of `include` matches no file.",
        why: "Unlike for a name without `*` this is no error. Often the directory or the suffix is misspelt.",
        mend: "Correct the pattern, or remove the line.",
        bad: "include /nonexistent/*.conf;",
        good: "server { root /srv/*; }",
        check: |_, _| {},
    },
    Rule {
        name: "body-size-unlimited",
        level: Note,
        what: "`client_max_body_size 0` accepts bodies of any size.",
        why: "One client can fill the disk of the temporary files.",
        mend: "Set the largest size that the application accepts.",
        bad: "server { client_max_body_size 0; }",
        good: "server { client_max_body_size 100m; }",
        check: |model, found| {
            for at in
                model.named("client_max_body_size").filter(|at| matches!(at.arg(0), "0" | "0m" | "0k" | "0g"))
            {
                found.add(
                    at,
                    "bodies of any size are accepted",
                    "set the largest size that the application accepts",
                );
            }
        },
    },
    Rule {
        name: "dotfiles-in-root",
        level: Warning,
        what: "The directory of a site has hidden files such as `.git` or `.env`, and no rule denies them.",
        why: "Clients download the history of the source code and passwords.",
        mend: "Add `location ~ /\\. { deny all; }`, or serve a directory without them.",
        bad: "server { root /with-dotfiles; }",
        good: "server { root /with-dotfiles; location ~ /\\. { deny all; } }",
        check: dotfiles,
    },
];

/// Returns the directives `alias` with the name of their location.
fn aliases<'m, 't>(model: &'m Model<'t>) -> impl Iterator<Item = (At<'m, 't>, Location<'t>)> {
    model
        .named("alias")
        .filter_map(|at| Some((at, Location::of(at.parent().filter(|parent| parent.name() == "location")?))))
}

fn alias_traversal(model: &Model<'_>, found: &mut Findings<'_>) {
    for (at, own) in aliases(model) {
        if own.is_prefix() && !own.path.ends_with('/') && at.arg(0).ends_with('/') {
            let (path, alias) = (own.path, at.arg(0));
            found.add(
                at,
                format_args!("{path}../x is the file {alias}../x"),
                format_args!("write \"location {path}/\""),
            );
        }
    }
}

fn root_repeats(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("root") {
        let Some(location) = at.parent().filter(|parent| parent.name() == "location") else { continue };
        let own = Location::of(location);
        let (path, root) = (own.path.trim_end_matches('/'), at.arg(0).trim_end_matches('/'));
        let is_doubled = own.is_prefix() && path.len() > 1 && root.ends_with(path);
        let is_missing = model.facts.exists(Path::new(&format!("{root}{path}"))) != Some(true);
        if is_doubled && is_missing {
            let short = &root[..root.len() - path.len()];
            found.add(
                at,
                format_args!("{path}/x is searched at {root}{path}/x"),
                format_args!(
                    "write \"root {};\" or \"alias {root}/;\"",
                    if short.is_empty() { "/" } else { short }
                ),
            );
        }
    }
}

fn root_of_system(model: &Model<'_>, found: &mut Findings<'_>) {
    const SYSTEM: [&str; 14] = [
        "",
        "/etc",
        "/root",
        "/home",
        "/var",
        "/usr",
        "/proc",
        "/sys",
        "/dev",
        "/boot",
        "/bin",
        "/lib",
        "/opt",
        "/etc/nginx",
    ];
    for name in ["root", "alias"] {
        for at in model.named(name) {
            let path = at.arg(0).trim_end_matches('/');
            // `location /.well-known` with the root `/` and the like serve one directory.
            let is_narrow = at
                .enclosing("location")
                .is_some_and(|location| name == "root" && Location::of(location).path.len() > 1);
            let is_refused = at.parent().is_some_and(|block| block.has_own(&["return", "deny"]));
            if at.arg(0).starts_with('/') && SYSTEM.contains(&path) && !is_narrow && !is_refused {
                let path = at.arg(0);
                found.add(
                    at,
                    format_args!("clients can read the files of the system below {path}"),
                    "use a directory with only the files to be served",
                );
            }
        }
    }
}

fn missing_root(model: &Model<'_>, found: &mut Findings<'_>) {
    for name in ["root", "alias"] {
        for at in model.named(name).filter(|at| !at.arg(0).contains('$')) {
            let path = at.arg(0);
            if model.facts.exists(Path::new(path)) == Some(false) {
                found.add(at, format_args!("\"{path}\" does not exist"), "create it, or correct the path");
            }
        }
    }
}

fn lost_types(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("types") {
        let Some(block) = at.parent() else { continue };
        let outer: usize = block
            .above()
            .map(|above| above.own("types").map(|types| types.children().count()).sum::<usize>())
            .find(|count| *count > 0)
            .unwrap_or(0);
        let own: usize = block.own("types").map(|types| types.children().count()).sum();
        let is_first = block.own("types").next() == Some(at);
        if is_first && own > 0 && own < outer {
            found.add(
                at,
                format_args!("this block loses the {outer} types of the outer one"),
                "include mime.types here too, or use \"default_type\"",
            );
        }
    }
}

fn no_types(model: &Model<'_>, found: &mut Findings<'_>) {
    // A file of `conf.d` is a part of a configuration.
    for http in model.named("http") {
        let has_types = http.inside().any(|at| at.name() == "types");
        let serves = http.inside().find(|at| matches!(at.name(), "root" | "alias") && !is_of_challenges(*at));
        let listens = http.inside().any(|at| at.name() == "listen");
        if let (false, true, Some(root)) = (has_types, listens, serves) {
            found.add(
                root,
                "style sheets and scripts have no MIME type",
                "add \"include mime.types;\" to \"http\"",
            );
        }
    }
}

/// Whether a root serves only challenges of ACME.
fn is_of_challenges(at: At<'_, '_>) -> bool {
    at.enclosing("location").is_some_and(|location| Location::of(location).path.contains(".well-known"))
}

fn dotfiles(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("root").filter(|at| !at.arg(0).contains('$')) {
        let Some(block) = at.parent() else { continue };
        let server = block.server().unwrap_or(block);
        let is_denied = server.inside().chain([server]).any(|inner| {
            inner.name() == "location"
                && Location::of(inner).is_regex()
                && Location::of(inner).path.contains("\\.")
                && inner.children().any(|child| child.written() == "deny all" || child.name() == "return")
        });
        let is_there = |name: &&str| model.facts.exists(&Path::new(at.arg(0)).join(name)) == Some(true);
        if let Some(name) = [".git", ".env", ".svn", ".hg", ".htpasswd"].iter().find(|name| is_there(name))
            && !is_denied
        {
            found.add(
                at,
                format_args!("clients can download {name} of this directory"),
                "add \"location ~ /\\. { deny all; }\"",
            );
        }
    }
}
