//! All directives of nginx, from a data file. They distinguish unsupported directives from unknown ones, and the tables of
//! this server are checked against them.
//!
//! The kinds of blocks are included too, so that a walk can continue inside an unsupported block.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::spec::{Args, Block, Contexts, Table};

/// The nginx version from which `data/nginx-directives.tsv` was generated.
pub(crate) const VERSION: &str = "1.31.5";

/// Replacements for modules that will not be supported.
const INSTEAD: [(&str, &str); 6] = [
    (
        "http_geoip",
        "MaxMind no longer publishes its files: use geoip2 with an .mmdb file, or geo with networks",
    ),
    ("stream_geoip", "MaxMind no longer publishes its files: use geo with networks"),
    (
        "http_degradation",
        "the heap size of this server does not show its load: use limit_conn, limit_req, or MemoryHigh of systemd",
    ),
    (
        "http_perl",
        "Perl code cannot run in this server: use map and rewrite, or an application behind proxy_pass or fastcgi_pass",
    ),
    ("http_xslt", "transform documents in an application, whose responses proxy_cache can store"),
    ("http_image", "scale images in an application, whose responses proxy_cache can store"),
];

/// Returns the advice for a directive of a module that will not be supported.
pub fn instead_of(module: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(name, _)| *name == module).map(|(_, text)| *text)
}

const DATA: &str = include_str!("../data/nginx-directives.tsv");

/// Kinds of nginx's blocks, which the data file does not contain. The kind depends on the context of the block: `if` and
/// `server` have different contents in different contexts.
const BLOCKS: [(&str, &str, Contexts, Block); 21] = [
    ("event", "events", Contexts::MAIN, Block::Statements(Contexts::EVENTS)),
    ("http", "http", Contexts::MAIN, Block::Statements(Contexts::HTTP)),
    ("http_core", "server", Contexts::HTTP, Block::Statements(Contexts::SERVER)),
    ("http_core", "location", Contexts::SERVER.or(Contexts::LOCATION), Block::Statements(Contexts::LOCATION)),
    ("http_core", "limit_except", Contexts::LOCATION, Block::Statements(Contexts::LIMIT_EXCEPT)),
    ("http_core", "types", Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION), Block::Raw),
    ("http_rewrite", "if", Contexts::SERVER, Block::Statements(Contexts::SERVER_IF)),
    ("http_rewrite", "if", Contexts::LOCATION, Block::Statements(Contexts::LOCATION_IF)),
    ("http_upstream", "upstream", Contexts::HTTP, Block::Statements(Contexts::UPSTREAM)),
    ("http_charset", "charset_map", Contexts::HTTP, Block::Raw),
    ("http_geo", "geo", Contexts::HTTP, Block::Raw),
    ("http_map", "map", Contexts::HTTP, Block::Raw),
    ("http_split_clients", "split_clients", Contexts::HTTP, Block::Raw),
    ("mail", "mail", Contexts::MAIN, Block::Statements(Contexts::MAIL)),
    ("mail_core", "server", Contexts::MAIL, Block::Statements(Contexts::MAIL_SERVER)),
    ("stream", "stream", Contexts::MAIN, Block::Statements(Contexts::STREAM)),
    ("stream_core", "server", Contexts::STREAM, Block::Statements(Contexts::STREAM_SERVER)),
    ("stream_upstream", "upstream", Contexts::STREAM, Block::Statements(Contexts::STREAM_UPSTREAM)),
    ("stream_geo", "geo", Contexts::STREAM, Block::Raw),
    ("stream_map", "map", Contexts::STREAM, Block::Raw),
    ("stream_split_clients", "split_clients", Contexts::STREAM, Block::Raw),
];

/// One directive of nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NginxDirective {
    /// nginx's module, without `ngx_` and `_module`.
    pub module: &'static str,
    /// The directive.
    pub name: &'static str,
    /// Contexts in which it is allowed.
    pub contexts: Contexts,
    /// Its arguments.
    pub args: Args,
    /// Whether it has a block.
    pub has_block: bool,
}

impl NginxDirective {
    /// Returns the kind of its block in this context.
    pub fn block(&self, context: Contexts) -> Block {
        let is_this = |(module, name, contexts, _): &&(&str, &str, Contexts, Block)| {
            *module == self.module && *name == self.name && contexts.intersects(context)
        };
        BLOCKS.iter().find(is_this).map_or(Block::No, |(_, _, _, block)| *block)
    }
}

/// All directives of nginx by name.
#[derive(Debug)]
pub struct NginxDirectives {
    rows: Vec<NginxDirective>,
    by_name: HashMap<&'static str, Vec<usize>>,
}

impl NginxDirectives {
    /// Returns all directives, sorted by module.
    pub fn iter(&self) -> impl Iterator<Item = &NginxDirective> {
        self.rows.iter()
    }

    /// Returns the directives with this name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &NginxDirective> {
        let indexes = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        indexes.iter().map(|&index| &self.rows[index])
    }
}

/// Returns the directives of nginx 1.31.5.
pub fn nginx_directives() -> &'static NginxDirectives {
    static DIRECTIVES: OnceLock<NginxDirectives> = OnceLock::new();
    DIRECTIVES.get_or_init(|| {
        let rows: Vec<NginxDirective> = DATA.lines().skip(1).map(read_row).collect();
        let mut by_name: HashMap<&'static str, Vec<usize>> = HashMap::new();
        for (index, row) in rows.iter().enumerate() {
            by_name.entry(row.name).or_default().push(index);
        }
        NginxDirectives { rows, by_name }
    })
}

/// Returns the differences between a table of this server and nginx, for tests of the table: contexts, numbers of arguments, and
/// blocks. Only directives with a module of nginx are compared.
pub fn differences(table: &Table) -> Vec<String> {
    let known = nginx_directives();
    let mut differences = Vec::new();
    for spec in table.specs() {
        if !known.iter().any(|row| row.module == spec.module) {
            continue;
        }
        let Some(row) = known.named(spec.name).find(|row| row.module == spec.module) else {
            differences.push(format!("{} {}: nginx has no such directive", spec.module, spec.name));
            continue;
        };
        let parts = table.named(spec.name).iter().filter(|other| other.module == spec.module);
        let contexts = parts.fold(Contexts::NONE, |all, other| all | other.contexts);
        if contexts != row.contexts {
            let (name, theirs) = (spec.name, row.contexts);
            differences.push(format!("{} {name}: allowed in {contexts}, in nginx in {theirs}", spec.module));
        }
        if spec.args.range() != row.args.range() || (spec.args == Args::Flag) != (row.args == Args::Flag) {
            let (name, ours, theirs) = (spec.name, spec.args, row.args);
            differences.push(format!(
                "{} {name}: takes {ours} ({ours:?}), in nginx {theirs} ({theirs:?})",
                spec.module
            ));
        }
        if spec.block != row.block(spec.contexts) {
            let (name, ours, theirs) = (spec.name, spec.block, row.block(spec.contexts));
            differences.push(format!("{} {name}: the block is {ours:?}, in nginx {theirs:?}", spec.module));
        }
    }
    differences.dedup();
    differences
}

fn read_row(line: &'static str) -> NginxDirective {
    let mut columns = line.split('\t');
    let mut column = || columns.next().unwrap_or_default();
    let (module, name, contexts, args) = (column(), column(), column(), column());
    let contexts = match contexts {
        "" => Contexts::ANY,
        names => names.split(',').map(read_context).fold(Contexts::NONE, Contexts::or),
    };
    let has_block = args.starts_with("block");
    let counts = args.split(',').filter(|word| *word != "block").map(read_args);
    let args = counts.reduce(joined).unwrap_or(Args::Any);
    NginxDirective { module, name, contexts, args, has_block }
}

fn read_context(name: &str) -> Contexts {
    let row = Contexts::NAMES.iter().find(|(_, in_data, _)| *in_data == name);
    row.expect("a test reads every row of the data file").0
}

fn read_args(name: &str) -> Args {
    match name {
        "noargs" => Args::None,
        "flag" => Args::Flag,
        "1more" => Args::AtLeast(1),
        "2more" => Args::AtLeast(2),
        "any" => Args::Any,
        "take12" => Args::Between(1, 2),
        "take123" => Args::Between(1, 3),
        "take1234" => Args::Between(1, 4),
        "take23" => Args::Between(2, 3),
        "take1" => Args::Exactly(1),
        "take2" => Args::Exactly(2),
        "take3" => Args::Exactly(3),
        other => panic!("the data file has a new kind of arguments: {other}"),
    }
}

/// Combines two elements of a list such as `noargs,take12`. In the data file every such list is a range without gaps.
fn joined(a: Args, b: Args) -> Args {
    match (a.range(), b.range()) {
        ((min_a, Some(max_a)), (min_b, Some(max_b))) => Args::Between(min_a.min(min_b), max_a.max(max_b)),
        ((min_a, _), (min_b, _)) => Args::AtLeast(min_a.min(min_b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn every_row_of_the_data_file_is_parsed() {
        let all = nginx_directives();
        assert_eq!(all.iter().count(), DATA.lines().count() - 1);
        assert!(all.iter().all(|row| !row.name.is_empty() && row.contexts != Contexts::NONE));
        let aio = all.named("aio").next().expect("aio is in the data file");
        assert_eq!((aio.module, aio.args, aio.has_block), ("http_core", Args::Exactly(1), false));
        assert_eq!(aio.contexts, Contexts::HTTP | Contexts::SERVER | Contexts::LOCATION);
        assert_eq!(all.named("include").next().map(|row| row.contexts), Some(Contexts::ANY));
        assert_eq!(all.named("keepalive").next().map(|row| row.args), Some(Args::Between(1, 2)));
    }

    #[test]
    fn every_block_has_a_context_for_its_content() {
        for row in nginx_directives().iter() {
            for (context, _, name) in Contexts::NAMES {
                if row.contexts.intersects(context) {
                    let has_inside = row.block(context) != Block::No;
                    assert_eq!(has_inside, row.has_block, "{} {} in {name}", row.module, row.name);
                }
            }
        }
    }

    const HTTP_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
    static RIGHT: [Spec; 4] = [
        Spec::new("http_core", "sendfile", HTTP_LEVELS.or(Contexts::LOCATION_IF), Args::Flag, "One."),
        Spec::new("http_rewrite", "if", Contexts::SERVER, Args::AtLeast(1), "One.")
            .block(Contexts::SERVER_IF),
        Spec::new("http_rewrite", "if", Contexts::LOCATION, Args::AtLeast(1), "Two.")
            .block(Contexts::LOCATION_IF),
        Spec::new("ringroad", "http_strict", HTTP_LEVELS, Args::Flag, "Own directives are not compared."),
    ];
    static WRONG: [Spec; 4] = [
        Spec::new("http_core", "sendfile", HTTP_LEVELS, Args::Exactly(1), "Two faults."),
        Spec::new("http_core", "types", HTTP_LEVELS, Args::None, "No braces."),
        Spec::new("http_core", "nonsense", HTTP_LEVELS, Args::None, "Not in nginx."),
        Spec::new("http_core", "root", Contexts::ANY, Args::Exactly(1), "Too many contexts."),
    ];

    #[test]
    fn tables_are_compared_with_nginx() {
        assert_eq!(differences(&Table::new(&[&RIGHT])), Vec::<String>::new());
        let found = differences(&Table::new(&[&WRONG]));
        let words =
            ["sendfile: allowed", "sendfile: takes", "types: the block", "nonsense: nginx", "root: allowed"];
        assert_eq!(found.len(), words.len(), "{found:#?}");
        assert!(found.iter().zip(words).all(|(line, word)| line.contains(word)), "{found:#?}");
    }
}
