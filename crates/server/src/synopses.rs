//! The arguments of directives and examples of them, for the reference page and for `ringroad help`: `synopses.txt`, `examples.txt`.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use conf::{Args, Block, Contexts, Spec, Support};

/// The arguments by directive.
static ARGUMENTS: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| rows(include_str!("synopses.txt")).collect());

/// Prefixes of the directives of upstream modules, which share a row `*_NAME`.
const FAMILIES: [&str; 7] = ["proxy", "fastcgi", "uwsgi", "scgi", "grpc", "memcached", "tunnel"];

/// Modules whose directives nginx's documentation has on the page of another module.
const ELSEWHERE: &[(&str, &str)] = &[
    ("epoll", "core"),
    ("event", "core"),
    ("event_quic_bpf", "http_v3"),
    ("http", "http_core"),
    ("http_copy", "http_core"),
    ("http_try_files", "http_core"),
    ("stream", "stream_core"),
    ("thread_pool", "core"),
    ("errlog", "core"),
];

/// Modules that nginx's documentation does not have.
const UNDOCUMENTED: &[&str] = &[
    "google_perftools",
    "http_brotli_filter",
    "http_brotli_static",
    "http_dav_ext",
    "http_degradation",
    "http_geoip2",
    "http_headers_more_filter",
    "http_zstd_filter",
    "http_zstd_static",
    "ringroad",
    "stream_api",
    "stream_geoip2",
];

/// Returns the pairs of a table: the text before and after the first tab of each line.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'))
}

/// Returns the arguments of a directive as a text. `None` if it has none, or if a flag describes them.
fn arguments(spec: &Spec) -> Option<&'static str> {
    let find = |name: &str| ARGUMENTS.get(name).copied();
    let stream = || spec.module.starts_with("stream").then(|| find(&format!("stream/{}", spec.name)))?;
    let upstream = || {
        let is_inside = [Contexts::UPSTREAM, Contexts::STREAM_UPSTREAM].contains(&spec.contexts);
        is_inside.then(|| find(&format!("upstream/{}", spec.name)))?
    };
    let family = || {
        let (prefix, rest) = spec.name.split_once('_')?;
        FAMILIES.contains(&prefix).then(|| find(&format!("*_{rest}")))?
    };
    upstream().or_else(stream).or_else(|| find(spec.name)).or_else(family)
}

/// Returns a directive with its arguments, as it is written in a configuration.
pub(crate) fn synopsis(spec: &Spec) -> String {
    let arguments = match (spec.args, arguments(spec)) {
        (Args::None, _) | (_, Some("")) => String::new(),
        (_, Some(arguments)) => format!(" {arguments}"),
        (Args::Flag, None) => " on | off".to_owned(),
        (_, None) => " …".to_owned(),
    };
    format!("{}{arguments}{}", spec.name, if spec.block == Block::No { ";" } else { " { … }" })
}

/// Returns the page of nginx's documentation about a module, if there is one.
pub(crate) fn nginx_page(module: &str) -> Option<String> {
    if UNDOCUMENTED.contains(&module) {
        return None;
    }
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == module).map(|(_, page)| *page);
    let page = elsewhere.unwrap_or(match module.strip_suffix("_filter").unwrap_or(module) {
        name if name.starts_with("http_upstream_") => "http_upstream",
        name if name.starts_with("stream_upstream_") => "stream_upstream",
        name => name,
    });
    let folder = match page.split_once('_') {
        Some((folder @ ("http" | "stream"), _)) => format!("{folder}/"),
        _ => String::new(),
    };
    Some(format!("https://nginx.org/en/docs/{folder}ngx_{page}_module.html"))
}

/// Returns the examples of a directive.
pub(crate) fn examples(name: &str) -> impl Iterator<Item = &'static str> {
    rows(include_str!("examples.txt")).filter(move |(of, _)| *of == name).map(|(_, example)| example)
}

/// Returns the names of all directives.
pub fn directive_names() -> impl Iterator<Item = &'static str> {
    specs().map(|spec| spec.name)
}

/// Returns the directives of all modules, in the order of the tables.
pub(crate) fn specs() -> impl Iterator<Item = &'static Spec> {
    modules::all().declarations().directives().iter().map(|directive| &directive.spec)
}

/// A directive of one module, for editors.
pub struct DirectiveEntry {
    /// The directive.
    pub name: &'static str,
    /// nginx's module, or `ringroad`.
    pub module: &'static str,
    /// The blocks that may contain it.
    pub contexts: String,
    /// The directive with its arguments.
    pub syntax: String,
    /// Its default, as arguments.
    pub default: Option<&'static str>,
    /// One sentence about its effect.
    pub effect: &'static str,
    /// Whether it has an effect.
    pub has_effect: bool,
    /// Statements with it.
    pub examples: Vec<&'static str>,
    /// Its place in nginx's documentation.
    pub nginx: Option<String>,
}

/// Returns every directive of every module.
pub fn directive_entries() -> impl Iterator<Item = DirectiveEntry> {
    specs().map(|spec| DirectiveEntry {
        name: spec.name,
        module: spec.module,
        contexts: spec.contexts.to_string(),
        syntax: synopsis(spec),
        default: spec.default,
        effect: spec.help,
        has_effect: matches!(spec.state, Support::Honoured | Support::Differs(_)),
        examples: examples(spec.name).collect(),
        nginx: nginx_page(spec.module).map(|page| format!("{page}#{}", spec.name)),
    })
}

/// Returns the text of `ringroad help DIRECTIVE`: a paragraph for each module that has the directive. `None` if there is no such
/// directive.
pub fn directive_help(name: &str) -> Option<String> {
    let mut text = String::new();
    for spec in specs().filter(|spec| spec.name == name) {
        if !text.is_empty() {
            text.push('\n');
        }
        describe(&mut text, spec);
    }
    let mut examples = examples(name).peekable();
    if examples.peek().is_some() {
        text.push_str("\nExamples:\n");
    }
    for example in examples {
        let _infallible = writeln!(text, "  {example}");
    }
    (!text.is_empty()).then_some(text)
}

/// Appends the description of a directive.
fn describe(text: &mut String, spec: &Spec) {
    let mut line = |title: &str, value: &str| {
        let _infallible = writeln!(text, "{title:10}{value}");
    };
    line("Syntax:", &synopsis(spec));
    if let Some(default) = spec.default {
        line("Default:", &format!("{} {default};", spec.name));
    }
    line("Context:", &spec.contexts.to_string());
    line("Module:", spec.module);
    line("Effect:", spec.help);
    match spec.state {
        Support::Honoured => {}
        Support::Differs(how) => line("Differs:", &format!("from nginx: {how}")),
        Support::Accepted(why) => line("Accepted:", &format!("without effect: {why}")),
        Support::Idle(why) => line("Accepted:", &format!("without effect, as in nginx on Linux: {why}")),
    }
    if let Some(page) = nginx_page(spec.module) {
        line("nginx:", &format!("{page}#{}", spec.name));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns the parts of a text between separators that are outside brackets.
    fn split(text: &str, separator: char) -> Vec<&str> {
        let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
        for (at, letter) in text.char_indices() {
            depth += i32::from(letter == '[') - i32::from(letter == ']');
            if letter == separator && depth == 0 {
                parts.push(text[start..at].trim());
                start = at + letter.len_utf8();
            }
        }
        parts.push(text[start..].trim());
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Returns the least and the greatest number of arguments that a text describes; `None` is no limit.
    fn range(arguments: &str) -> (u8, Option<u8>) {
        let quoted = arguments
            .replace("'FIELD: VALUE'", "FIELD")
            .replace("-s STATUSES", "-s")
            .replace("-t TYPES", "-t");
        let counts = split(&quoted, '|').into_iter().map(|form| {
            let words = split(form, ' ');
            let is_optional = |word: &str| word.starts_with('[') && word.ends_with(']');
            // `[A B]` is two arguments.
            let most: usize = words
                .iter()
                .map(|word| {
                    let inner = split(word.trim_start_matches('['), '|');
                    let parts = |form: &&str| {
                        if is_optional(word) { form.trim_end_matches(']').split(' ').count() } else { 1 }
                    };
                    inner.iter().map(parts).max().unwrap_or(1)
                })
                .sum();
            let least = words.iter().filter(|word| !is_optional(word) && **word != "…").count();
            (least as u8, most as u8)
        });
        let counts: Vec<(u8, u8)> = counts.collect();
        let least = counts.iter().map(|(least, _)| *least).min().unwrap_or(0);
        let most = counts.iter().map(|(_, most)| *most).max().unwrap_or(0);
        (least, (!arguments.contains('…')).then_some(most))
    }

    #[test]
    fn each_directive_with_arguments_has_a_synopsis_that_fits_their_number() {
        let mut wrong = Vec::new();
        for spec in specs() {
            let described = arguments(spec);
            let fits = match (spec.args, described) {
                (Args::Flag | Args::None, None) => true,
                // The condition is several words for the parser.
                (_, Some(_)) if spec.name == "if" => true,
                (_, Some(text)) => range(text) == spec.args.range(),
                (_, None) => false,
            };
            if !fits {
                wrong.push(format!("{} {}: {:?}, {described:?}", spec.module, spec.name, spec.args));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_synopsis_is_of_a_directive() {
        let used: HashSet<&str> = specs().filter_map(arguments).map(|text| text as &str).collect();
        let mut names = HashSet::new();
        for (name, text) in rows(include_str!("synopses.txt")) {
            assert!(names.insert(name), "{name} has two rows");
            assert!(used.contains(text), "no directive has the row {name}");
        }
    }

    #[test]
    fn examples_are_statements_that_their_directives_accept() {
        for (name, example) in rows(include_str!("examples.txt")) {
            let loader: conf::MapLoader = [("/x", example)].into_iter().collect();
            let tree = conf::parse(&conf::Source::new("/x"), &loader).expect("the main file is there");
            let statement = &tree.statements[0];
            assert!(statement.fault().is_none(), "{example}: {:?}", statement.fault());
            assert_eq!(statement.name.text, name, "{example}");
            let is_allowed = |spec: &Spec| spec.name == name && spec.args.allows(statement.args.len());
            assert!(specs().any(is_allowed), "{example}");
        }
    }

    #[test]
    fn help_has_the_syntax_the_default_and_examples() {
        let help = directive_help("ring_entries").expect("it is a directive");
        assert!(
            help.contains("Syntax:   ring_entries NUMBER;\nDefault:  ring_entries 1024;\nContext:  events\n"),
            "{help}"
        );
        let help = directive_help("proxy_pass").expect("it is a directive");
        assert!(
            help.contains("Syntax:   proxy_pass URL;") && help.contains("Syntax:   proxy_pass ADDRESS;"),
            "{help}"
        );
        assert!(
            help.contains("https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_pass\n"),
            "{help}"
        );
        assert!(help.contains("\nExamples:\n  proxy_pass http://"), "{help}");
        assert_eq!(directive_help("proxy_past"), None);
    }
}
