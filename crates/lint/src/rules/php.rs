//! Programs behind FastCGI.

use crate::model::{At, Location, Model};
use crate::rule::Level::{Error, Warning};
use crate::rule::{Findings, Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "php-without-try-files",
        level: Warning,
        what: "PHP gets paths of files that do not exist.",
        why: "With PHP's default `cgi.fix_pathinfo` the request `/uploads/a.jpg/x.php` runs `/uploads/a.jpg` as a program.",
        mend: "Add `try_files $uri =404;` to the location.",
        bad: "server { location ~ \\.php$ { fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass 127.0.0.1:9; } }",
        good: "server { location ~ \\.php$ { try_files $uri =404; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass 127.0.0.1:9; } }",
        check: without_try_files,
    },
    Rule {
        name: "php-pattern-not-anchored",
        level: Error,
        what: "The location of PHP matches paths that only contain `.php`.",
        why: "`/uploads/a.php.jpg` is passed to PHP as a program.",
        mend: "End the pattern with `$`, or with `(/|$)` for path info.",
        bad: "server { location ~ \\.php { try_files $uri =404; fastcgi_param SCRIPT_FILENAME $document_root$uri; fastcgi_pass 127.0.0.1:9; } }",
        good: "server { location ~ \\.php$ { try_files $uri =404; fastcgi_param SCRIPT_FILENAME $document_root$uri; fastcgi_pass 127.0.0.1:9; } }",
        check: not_anchored,
    },
    Rule {
        name: "script-filename-missing",
        level: Error,
        what: "`fastcgi_pass` without the parameter `SCRIPT_FILENAME`.",
        why: "PHP-FPM then responds with an empty page and status 200, or \"File not found\".",
        mend: "Add `fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;` or `include fastcgi.conf;`.",
        bad: "server { location ~ \\.php$ { try_files $uri =404; fastcgi_param QUERY_STRING $query_string; fastcgi_pass 127.0.0.1:9; } }",
        good: "server { location ~ \\.php$ { try_files $uri =404; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass 127.0.0.1:9; } }",
        check: script_filename,
    },
];

/// Returns the locations that pass `.php` to FastCGI, with the pattern.
fn of_php<'m, 't>(model: &'m Model<'t>) -> impl Iterator<Item = (At<'m, 't>, &'t str)> {
    let passes = model.named("fastcgi_pass").filter_map(At::parent);
    let locations = passes.filter(|at| at.name() == "location");
    locations
        .map(|at| (at, Location::of(at)))
        .filter(|(_, own)| own.is_regex() && own.path.contains("php"))
        .map(|(at, own)| (at, own.path))
}

fn without_try_files(model: &Model<'_>, found: &mut Findings<'_>) {
    for (location, pattern) in of_php(model) {
        let checks = location.has_own(&["try_files"])
            || location.own("if").any(|at| at.args().any(|arg| arg.contains("-f") || arg.contains("-e")));
        // A pattern for named programs, such as ^/(index|status)\.php$, has no other paths.
        let is_open = !pattern.starts_with('^') || pattern.contains(".+") || pattern.contains(".*");
        let pass = location.own("fastcgi_pass").next();
        if let (false, true, Some(pass)) = (checks, is_open, pass) {
            found.fixable(
                pass,
                "paths such as /a.jpg/x.php reach PHP, which may run /a.jpg",
                "add \"try_files $uri =404;\"",
                Fix::AddAfter("try_files $uri =404;".to_owned()),
            );
        }
    }
}

fn not_anchored(model: &Model<'_>, found: &mut Findings<'_>) {
    for (location, pattern) in of_php(model) {
        let ends = ["$", "(/|$)", "(?:/|$)", "(/.*)?$"].iter().any(|end| pattern.ends_with(end))
            || pattern.contains("(?:$|/)")
            || pattern.contains("($|/)")
            || pattern.contains("(/|$)");
        if !ends {
            let kind = Location::of(location).kind;
            let message = format_args!("\"{pattern}\" matches /a.php.jpg");
            let fix = Fix::SetArgument(
                location.args().count() - 1,
                if location.arg(0) == kind { format!("{pattern}$") } else { format!("{kind}{pattern}$") },
            );
            found.fixable(location, message, format_args!("write \"{pattern}$\""), fix);
        }
    }
}

fn script_filename(model: &Model<'_>, found: &mut Findings<'_>) {
    for at in model.named("fastcgi_pass") {
        let Some(block) = at.parent() else { continue };
        let params = block.in_effect("fastcgi_param");
        let has = params.iter().any(|param| matches!(param.arg(0), "SCRIPT_FILENAME" | "PATH_TRANSLATED"));
        // Other applications than PHP find their program by other parameters.
        let is_php = of_php(model).any(|(location, _)| location == block);
        if is_php && !has && !params.is_empty() {
            found.fixable(
                at,
                "PHP-FPM finds no program without SCRIPT_FILENAME",
                "add \"fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\"",
                Fix::AddAfter("fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;".to_owned()),
            );
        }
    }
}
