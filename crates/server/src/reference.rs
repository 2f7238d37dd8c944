//! Generates text from the tables: the reference page of directives and variables, and the `configure arguments` that
//! tools read from `-V`.

use std::fmt::Write;

use conf::{NginxDirective, Spec, Support, nginx_directives};

use modules::Module;

use crate::synopses::{nginx_page, specs, synopsis};

/// Returns the reference page in Markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Directives and variables\n\n\
         Generated from the tables in the code; do not edit. Directives of module `ringroad` exist only in Ringroad; the others \
         follow nginx's documentation except as noted. `include FILE;` belongs to no module: every block may contain \
         it, and FILE may be a pattern. Capitals stand for a value; [ ] may be omitted, | separates alternatives, … repeats \
         the part before it. A directive is supported, accepted without effect, or \
         [not supported](#directives-that-are-not-supported): a configuration that contains it is refused. `ringroad check` \
         uses the same tables, and `ringroad help DIRECTIVE` prints a row of them with examples.\n",
    );
    write_counts(&mut page);
    // Sorted by name, so that a move of a row in a table does not change the page.
    let mut names: Vec<&str> = specs().map(|spec| spec.module).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        write_module(&mut page, name);
    }
    write_not_supported(&mut page);
    page.push_str("\n# Variables\n\n| variable | value | can be set |\n|---|---|---|\n");
    for (name, help, set) in variables() {
        line(&mut page, format_args!("| `${name}` | {help} | {} |", if set { "yes" } else { "" }));
    }
    page
}

/// Modules of nginx that are not counted: they run programs or transform content, and will not be supported.
const NOT_COUNTED: [&str; 3] = ["http_perl", "http_xslt", "http_image"];

/// Modules that are not supported and may be supported later, with the reason.
const NOT_YET: [(&str, &str); 0] = [];

/// nginx's directives in `http` by their support here.
struct Counts {
    rows: usize,
    honoured: usize,
    /// Directives without effect in nginx too, with the reason.
    idle: Vec<(&'static str, &'static str)>,
    /// Directives accepted without effect, with the reason.
    accepted: Vec<(&'static str, &'static str)>,
    /// Directives rejected as unsupported: module and name.
    refused: Vec<(&'static str, &'static str)>,
}

fn counts() -> Counts {
    let is_counted = |row: &&NginxDirective| {
        (row.module == "http" || row.module.starts_with("http_")) && !NOT_COUNTED.contains(&row.module)
    };
    let mut counts =
        Counts { rows: 0, honoured: 0, idle: Vec::new(), accepted: Vec::new(), refused: Vec::new() };
    for row in nginx_directives().iter().filter(is_counted) {
        counts.rows += 1;
        let spec = specs().find(|spec| spec.name == row.name && spec.contexts.intersects(row.contexts));
        match spec.map(|spec| &spec.state) {
            Some(Support::Honoured | Support::Differs(_)) => counts.honoured += 1,
            Some(Support::Accepted(why)) => counts.accepted.push((row.name, why)),
            Some(Support::Idle(why)) => counts.idle.push((row.name, why)),
            None => counts.refused.push((row.module, row.name)),
        }
    }
    counts
}

/// Writes the share of supported directives of nginx's `http`, and the unsupported directives.
fn write_counts(page: &mut String) {
    let Counts { rows, honoured, idle, accepted, refused } = counts();
    let percent = |count: usize| format!("{:.1} %", 100.0 * count as f64 / rows as f64);
    line(
        page,
        format_args!(
            "\n## Support of nginx's `http` modules\n\nnginx 1.31.5 has {rows} directives in the modules of `http`, by module and context, without \
             those of perl, xslt and image filter.\n\n| state | directives | share |\n|---|---|---|\n\
             | supported | {honoured} | {} |\n| without effect, as in nginx on Linux | {} | {} |\n\
             | accepted without effect | {} | {} |\n| not supported | {} | {} |",
            percent(honoured),
            idle.len(),
            percent(idle.len()),
            accepted.len(),
            percent(accepted.len()),
            refused.len(),
            percent(refused.len())
        ),
    );
    for (title, rows) in
        [("Without effect, as in nginx on Linux", &idle), ("Accepted without effect", &accepted)]
    {
        line(page, format_args!("\n{title}:\n\n| directive | reason |\n|---|---|"));
        for (name, why) in rows {
            line(page, format_args!("| `{name}` | {} |", cell(why)));
        }
    }
    let mut modules: Vec<&str> = refused.iter().map(|(module, _)| *module).collect();
    modules.dedup();
    page.push_str("\nNot supported:\n\n| module | directives | reason |\n|---|---|---|\n");
    for module in modules {
        let names = refused.iter().filter(|(of, _)| *of == module);
        let names: Vec<String> = names.map(|(_, name)| format!("`{name}`")).collect();
        line(page, format_args!("| {module} | {} | {} |", names.join(", "), cell(why_refused(module))));
    }
}

/// Returns the reason why the directives of a module are not supported.
fn why_refused(module: &str) -> &'static str {
    let not_yet = NOT_YET.iter().find(|(name, _)| *name == module).map(|(_, why)| *why);
    conf::instead_of(module).or(not_yet).unwrap_or_default()
}

/// Writes a table of the directives of one of nginx's modules, by name.
fn write_module(page: &mut String, name: &str) {
    let link = nginx_page(name).map(|page| format!("[nginx's page]({page})\n\n")).unwrap_or_default();
    line(
        page,
        format_args!(
            "\n## {name}\n\n{link}| directive | context | default | effect | state |\n|---|---|---|---|---|"
        ),
    );
    // The sort is stable, so that the rows of a directive with two contexts stay in order.
    let mut here: Vec<&Spec> = specs().filter(|spec| spec.module == name).collect();
    here.sort_by_key(|spec| spec.name);
    for spec in here {
        let default = spec.default.map(|default| format!("`{}`", cell(default))).unwrap_or_default();
        let (note, state) = match spec.state {
            Support::Honoured => (String::new(), "supported"),
            Support::Differs(how) => (format!(" *Differs from nginx: {how}.*"), "supported"),
            Support::Accepted(why) => (format!(" *Accepted without effect: {why}.*"), "accepted"),
            Support::Idle(why) => (format!(" *Without effect, as in nginx on Linux: {why}.*"), "accepted"),
        };
        line(
            page,
            format_args!(
                "| `{}` | {} | {default} | {}{note} | {state} |",
                cell(&synopsis(spec)),
                spec.contexts,
                cell(spec.help)
            ),
        );
    }
}

/// Writes the directives that only nginx has, by module: the rows behind the message "not supported yet".
fn write_not_supported(page: &mut String) {
    page.push_str(
        "\n# Directives that are not supported\n\n| module | directive | context | state |\n|---|---|---|---|\n",
    );
    // A name may be supported in one context and not in another, such as `server` in `http` and in `stream`.
    let is_supported = |row: &&NginxDirective| {
        specs().any(|spec| spec.name == row.name && spec.contexts.intersects(row.contexts))
    };
    let mut rows: Vec<&NginxDirective> = nginx_directives()
        .iter()
        // Directives that read files, such as `include`, belong to no module here.
        .filter(|row| row.module != "conf_file" && !is_supported(row))
        .collect();
    rows.sort_by_key(|row| (row.module, row.name));
    for NginxDirective { module, name, contexts, .. } in rows {
        line(page, format_args!("| {module} | `{name}` | {contexts} | not supported |"));
    }
}

/// Returns every variable and family of variables, sorted by name, each with its sentence and whether `set` may change
/// it.
fn variables() -> Vec<(String, &'static str, bool)> {
    let single = |module: &'static Module| {
        module
            .variables
            .iter()
            .map(|variable| (variable.name.to_owned(), variable.help, variable.set.is_some()))
    };
    let families = |module: &'static Module| {
        module.prefixed.iter().map(|family| (format!("{}*name*", family.prefix), family.help, false))
    };
    let mut all: Vec<_> = modules::all()
        .modules()
        .iter()
        .copied()
        .flat_map(|module| single(module).chain(families(module)))
        .collect();
    all.sort();
    all
}

/// Escapes pipes, which would end a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Appends a line with its line end.
fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(page, "{text}");
}

/// Returns the arguments for `-V`: `--with-…` for supported optional features, `--without-…` for unsupported standard
/// features, with nginx's names.
pub fn configure_arguments() -> Vec<String> {
    let mut arguments = Vec::new();
    for (directive, argument) in OPTIONAL_PARTS {
        // A directive that only Ringroad has is not the feature that a tool expects by this argument.
        if specs().any(|spec| spec.name == *directive && spec.module != "ringroad") {
            arguments.push((*argument).to_owned());
        }
    }
    for (module, argument) in OPTIONAL_MODULES {
        if has(module) {
            arguments.push(format!("--with-{argument}"));
        }
    }
    for (module, argument) in STANDARD_MODULES {
        if !has(module) {
            arguments.push(format!("--without-{argument}"));
        }
    }
    arguments
}

/// Whether any directive of this nginx module is supported.
fn has(module: &str) -> bool {
    // Detects a misspelt module name in the tables below.
    debug_assert!(nginx_directives().iter().any(|row| row.module == module), "{module}");
    // A module whose directives have no effect is not reported as supported.
    specs()
        .any(|spec| spec.module == module && !matches!(spec.state, Support::Accepted(_) | Support::Idle(_)))
}

/// Features that nginx's `configure` omits by default, each with a directive that exists only with the feature.
const OPTIONAL_PARTS: &[(&str, &str)] = &[
    ("aio", "--with-file-aio"),
    ("thread_pool", "--with-threads"),
    ("location", "--with-pcre"),
    ("pcre_jit", "--with-pcre-jit"),
];

/// Modules that nginx's `configure` omits by default.
const OPTIONAL_MODULES: &[(&str, &str)] = &[
    ("http_addition", "http_addition_module"),
    ("http_auth_request", "http_auth_request_module"),
    ("http_dav", "http_dav_module"),
    ("http_degradation", "http_degradation_module"),
    ("http_flv", "http_flv_module"),
    ("http_geoip", "http_geoip_module"),
    ("http_gunzip", "http_gunzip_module"),
    ("http_gzip_static", "http_gzip_static_module"),
    ("http_image", "http_image_filter_module"),
    ("http_mp4", "http_mp4_module"),
    ("http_perl", "http_perl_module"),
    ("http_random_index", "http_random_index_module"),
    ("http_realip", "http_realip_module"),
    ("http_secure_link", "http_secure_link_module"),
    ("http_slice", "http_slice_module"),
    ("http_ssl", "http_ssl_module"),
    ("http_stub_status", "http_stub_status_module"),
    ("http_sub", "http_sub_module"),
    ("http_v2", "http_v2_module"),
    ("http_v3", "http_v3_module"),
    ("http_xslt", "http_xslt_module"),
    ("mail", "mail"),
    ("mail_ssl", "mail_ssl_module"),
    ("stream", "stream"),
    ("stream_geoip", "stream_geoip_module"),
    ("stream_realip", "stream_realip_module"),
    ("stream_ssl", "stream_ssl_module"),
    ("stream_ssl_preread", "stream_ssl_preread_module"),
];

/// Modules that nginx's `configure` includes by default.
const STANDARD_MODULES: &[(&str, &str)] = &[
    ("http_access", "http_access_module"),
    ("http_auth_basic", "http_auth_basic_module"),
    ("http_autoindex", "http_autoindex_module"),
    ("http_browser", "http_browser_module"),
    ("http_charset", "http_charset_module"),
    ("http_empty_gif", "http_empty_gif_module"),
    ("http_fastcgi", "http_fastcgi_module"),
    ("http_geo", "http_geo_module"),
    ("http_grpc", "http_grpc_module"),
    ("http_gzip", "http_gzip_module"),
    ("http_limit_conn", "http_limit_conn_module"),
    ("http_limit_req", "http_limit_req_module"),
    ("http_map", "http_map_module"),
    ("http_memcached", "http_memcached_module"),
    ("http_mirror", "http_mirror_module"),
    ("http_proxy", "http_proxy_module"),
    ("http_referer", "http_referer_module"),
    ("http_rewrite", "http_rewrite_module"),
    ("http_scgi", "http_scgi_module"),
    ("http_split_clients", "http_split_clients_module"),
    ("http_ssi", "http_ssi_module"),
    ("http_upstream_hash", "http_upstream_hash_module"),
    ("http_upstream_ip_hash", "http_upstream_ip_hash_module"),
    ("http_upstream_keepalive", "http_upstream_keepalive_module"),
    ("http_upstream_least_conn", "http_upstream_least_conn_module"),
    ("http_upstream_random", "http_upstream_random_module"),
    ("http_upstream_zone", "http_upstream_zone_module"),
    ("http_userid", "http_userid_module"),
    ("http_uwsgi", "http_uwsgi_module"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Minimum percentage of nginx's directives in `http` that are supported.
    const SHARE_MIN: usize = 89;

    #[test]
    fn the_reference_has_every_directive_and_variable() {
        let page = reference();
        for spec in specs() {
            assert!(page.contains(&format!("| `{}", spec.name)), "{}", spec.name);
            assert!(spec.help.ends_with('.') && !spec.help.contains('\n'), "{}: {}", spec.name, spec.help);
        }
        assert!(page.contains("| `$arg_*name*` |") && page.contains("| `$uri` |"));
        assert!(page.contains("| `ring_entries NUMBER;` | events | `1024` |"));
        assert!(page.lines().filter(|line| line.starts_with('|')).all(|line| line.ends_with('|')));
    }

    /// The percentage must not fall.
    #[test]
    fn nearly_all_directives_of_http_are_supported() {
        let counts = counts();
        assert_eq!(
            counts.rows,
            counts.honoured + counts.idle.len() + counts.accepted.len() + counts.refused.len()
        );
        assert!(counts.rows > 500, "{}", counts.rows);
        let without_reason = counts.refused.iter().find(|(module, _)| why_refused(module).is_empty());
        assert_eq!(without_reason, None);
        assert!(counts.honoured * 100 >= counts.rows * SHARE_MIN, "{} of {}", counts.honoured, counts.rows);
    }

    #[test]
    fn defaults_are_accepted_by_their_directives() {
        for spec in specs() {
            let Some(default) = spec.default else { continue };
            let text = format!("{} {default};", spec.name);
            let source = conf::Source::new("/x").with_globals(text.clone());
            let loader: conf::MapLoader = [("/x", "")].into_iter().collect();
            let tree = conf::parse(&source, &loader).expect("the main file is there");
            let statement = &tree.statements[0];
            assert!(statement.fault().is_none(), "{text}");
            assert!(spec.args.allows(statement.args.len()), "{text}");
        }
    }

    #[test]
    fn configure_arguments_list_the_supported_modules() {
        let arguments = configure_arguments();
        for present in ["--with-threads", "--with-file-aio", "--with-pcre-jit"] {
            assert!(arguments.iter().any(|argument| argument == present), "{present}");
        }
        for argument in ["--without-http_access_module", "--without-http_rewrite_module"] {
            assert!(!arguments.iter().any(|other| other == argument), "{argument}");
        }
        assert!(arguments.iter().all(|argument| argument.starts_with("--with")));
    }
}
