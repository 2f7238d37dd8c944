//! Remedies for typical mistakes: what to write instead, by the words of the statement that an error is about.
//!
//! The messages have nginx's texts, so that tools can compare them. A remedy is shown behind the mark below the line.
//!
//! A remedy must be right whenever it is shown: a mistake that cannot be recognised by its words has none. The functions are tried in
//! the order of [`remedy`]; the first result counts. The tests run `-t` on a configuration for each mistake (`program/mistakes.rs` of
//! crate `ringroad`).

use std::borrow::Cow;

use crate::error::{Error, ErrorKind, Object};
use crate::tree::Word;

/// The index of a word of the statement, and what to write instead.
pub(crate) type Remedy = (usize, Cow<'static, str>);

/// Forms of directives that are often written with a wrong number of arguments.
const FORMS: [(&str, &str); 22] = [
    ("add_header", "add_header NAME VALUE;"),
    ("proxy_set_header", "proxy_set_header NAME VALUE;"),
    ("fastcgi_param", "fastcgi_param NAME VALUE;"),
    ("error_page", "error_page STATUS… URI;"),
    ("try_files", "try_files FILE… FALLBACK;, such as try_files $uri =404;"),
    ("rewrite", "rewrite PATTERN URI [last|break|redirect|permanent];"),
    ("return", "return STATUS [TEXT|URL];"),
    ("auth_basic", "auth_basic TEXT|off;"),
    ("map", "map $SOURCE $VARIABLE { … }"),
    ("set", "set $VARIABLE VALUE;"),
    ("limit_req_zone", "limit_req_zone KEY zone=NAME:SIZE rate=RATE;"),
    ("limit_conn_zone", "limit_conn_zone KEY zone=NAME:SIZE;"),
    ("limit_conn", "limit_conn ZONE NUMBER;"),
    ("limit_req", "limit_req zone=NAME [burst=NUMBER] [nodelay];"),
    ("proxy_cache_path", "proxy_cache_path DIRECTORY keys_zone=NAME:SIZE;"),
    ("proxy_pass", "proxy_pass http://HOST[:PORT][URI];"),
    ("location", "location [=|^~|~|~*] PATH { … }"),
    ("upstream", "upstream NAME { … }"),
    ("ip_hash", "ip_hash;"),
    ("least_conn", "least_conn;"),
    ("internal", "internal;"),
    ("log_format", "log_format NAME 'TEXT';"),
];

/// Parameters of `listen`.
const LISTEN_PARAMETERS: [&str; 10] = [
    "default_server",
    "ssl",
    "http2",
    "quic",
    "proxy_protocol",
    "reuseport",
    "deferred",
    "backlog",
    "ipv6only",
    "so_keepalive",
];

/// Words of other configuration languages, with their name and what to do.
const LANGUAGES: [(&str, &[&str], &str); 5] = [
    (
        "a Caddyfile",
        &["reverse_proxy", "file_server", "encode", "handle", "handle_path", "php_fastcgi", "import"],
        "write server { … } with proxy_pass (docs/guides)",
    ),
    (
        "a configuration of HAProxy",
        &["frontend", "default_backend", "bind", "maxconn", "balance", "use_backend", "option"],
        "write server { listen …; } with upstream (docs/guides)",
    ),
    (
        "a configuration of Apache",
        &[
            "<VirtualHost",
            "</VirtualHost>",
            "RewriteEngine",
            "RewriteRule",
            "RewriteCond",
            "<Directory",
            "ServerName",
            "DocumentRoot",
            "<IfModule",
        ],
        "write server { server_name …; root …; } (docs/guides/from-nginx.md)",
    ),
    (
        "a configuration of lighttpd",
        &["server.document-root", "server.port", "server.modules"],
        "write server { … }",
    ),
    (
        "a configuration of Traefik or another one in YAML",
        &["http:", "routers:", "services:", "entryPoints:", "apiVersion:", "version:"],
        "write http { server { … } }",
    ),
];

/// Returns the remedy for text of another language, which has precedence over a missing semicolon.
pub(crate) fn foreign(error: &Error, words: &[&Word]) -> Option<Remedy> {
    language(error, words).or_else(|| comment(words))
}

/// Returns the remedy for an error about these words.
pub(crate) fn remedy(error: &Error, words: &[&Word]) -> Option<Remedy> {
    let (name, args) = words.split_first()?;
    condition(error, &name.text, args)
        .or_else(|| braces(error, words))
        .or_else(|| separators(error, words))
        .or_else(|| by_kind(error, &name.text, args))
        .or_else(|| by_directive(error, &name.text, args))
}

/// Recognises the languages of other servers. Only unknown words are proofs: some of these words are directives of nginx too, and
/// then the error is another one.
fn language(error: &Error, words: &[&Word]) -> Option<Remedy> {
    let may_be = matches!(
        error.kind(),
        ErrorKind::Unknown { .. }
            | ErrorKind::UnexpectedEnd { .. }
            | ErrorKind::UnexpectedEndOfBlock { .. }
            | ErrorKind::Unexpected(_)
    );
    if !may_be {
        return None;
    }
    for (what, known, instead) in LANGUAGES {
        if let Some(at) = words.iter().position(|word| !word.quoted && known.contains(&word.text.as_str())) {
            return Some((at, format!("this is {what}: {instead}").into()));
        }
    }
    let first = words.first()?;
    let is_site = matches!(error.kind(), ErrorKind::Unknown { similar: None, .. })
        && first.text.contains('.')
        && words.len() == 1;
    is_site.then(|| {
        (0, "a block with the name of a site is a Caddyfile: write server { server_name …; }".into())
    })
}

/// Recognises comments of other languages.
fn comment(words: &[&Word]) -> Option<Remedy> {
    let is_comment = |word: &&Word| {
        !word.quoted
            && (word.text == "//"
                || word.text == "--"
                || word.text.starts_with("/*")
                || word.text.starts_with("<!--")
                || word.text.starts_with("//") && words.len() > 1)
    };
    let at = words.iter().position(is_comment)?;
    // The path of a location may begin so.
    (at == 0 || words[0].text != "location").then_some((at, "comments begin with #".into()))
}

/// Mistakes in `if`, whose condition has one comparison: operators of other languages, several comparisons, a missing blank, `else`,
/// and nested blocks.
fn condition(error: &Error, name: &str, args: &[&Word]) -> Option<Remedy> {
    if name.starts_with("if(") {
        return Some((0, "a blank is missing: write if (…)".into()));
    }
    if matches!(name.trim_end_matches('{'), "else" | "elseif" | "elif" | "elsif") {
        return Some((0, "there is no else: use map, or a second if".into()));
    }
    if name != "if" {
        return None;
    }
    let find = |texts: &[&str]| {
        args.iter().position(|word| !word.quoted && texts.contains(&word.text.trim_matches(['(', ')'])))
    };
    if matches!(error.kind(), ErrorKind::NotAllowedHere { .. }) {
        return Some((0, "if cannot be nested: combine the conditions by map".into()));
    }
    if matches!(error.kind(), ErrorKind::NoOpening(_)) {
        return Some((0, "write the directives in a block: if (…) { … }".into()));
    }
    if let Some(at) = find(&["&&", "||", "and", "or"]) {
        return Some((at + 1, "if has one condition: combine several by map or by set".into()));
    }
    if let Some(at) = find(&["==", "===", "eq", "-eq"]) {
        return Some((at + 1, "write one =".into()));
    }
    if let Some(at) = find(&["<>", "ne", "-ne", "!=="]) {
        return Some((at + 1, "write !=".into()));
    }
    if let Some(at) = find(&["<", ">", "<=", ">="]) {
        return Some((at + 1, "if compares no numbers: use map with a regular expression".into()));
    }
    None
}

/// An unquoted `{4}` of a regular expression begins or ends a block.
fn braces(error: &Error, words: &[&Word]) -> Option<Remedy> {
    const REMEDY: &str = "{ begins a block: write a regular expression with { in quotes";
    let name = &words[0].text;
    match error.kind() {
        ErrorKind::Unknown { .. } => {
            let digits =
                name.find(|letter: char| !letter.is_ascii_digit() && letter != ',').unwrap_or(name.len());
            let is_count = digits > 0 && name[digits..].starts_with('}');
            (is_count && name.as_bytes()[0].is_ascii_digit()).then_some((0, REMEDY.into()))
        }
        ErrorKind::NotTerminated(_)
            if matches!(name.as_str(), "rewrite" | "server_name" | "valid_referers") =>
        {
            Some((words.len() - 1, REMEDY.into()))
        }
        _ => None,
    }
}

/// `=`, `,` and `:` between words, which other languages have there. In patterns and texts with variables these characters are usual,
/// so such words are no mistakes.
fn separators(error: &Error, words: &[&Word]) -> Option<Remedy> {
    let name = words[0].text.as_str();
    if let (ErrorKind::Unknown { similar: Some(similar), .. }, Some(bare)) =
        (error.kind(), name.strip_suffix([':', '=']))
        && bare == *similar
    {
        return Some((0, format!("write \"{similar}\" without \"{}\"", &name[bare.len()..]).into()));
    }
    if matches!(name, "if" | "location") {
        return None;
    }
    let is_error_of_words = matches!(
        error.kind(),
        ErrorKind::ArgumentCount { .. } | ErrorKind::Value { .. } | ErrorKind::Message(_)
    );
    let at = words.iter().skip(1).position(|word| !word.quoted && (word.text == "=" || word.text == ":"));
    if let (Some(at), true) = (at, is_error_of_words) {
        return Some((
            at + 1,
            format!("write no \"{}\": words are separated by blanks", words[at + 1].text).into(),
        ));
    }
    let at = words.iter().skip(1).position(|word| {
        !word.quoted && word.text.contains(',') && !word.text.contains(['(', '$', '{', '='])
    });
    if let (Some(at), true) = (at, is_error_of_words && !matches!(name, "rewrite" | "expires")) {
        let remedy = if matches!(name, "allow" | "deny") {
            "write a directive for each address"
        } else {
            "write blanks instead of commas"
        };
        return Some((at + 1, remedy.into()));
    }
    None
}

/// Mistakes that the kind of the error determines: a missing block, a wrong number of arguments, a name that is not defined, or a
/// flag that is neither `on` nor `off`.
fn by_kind(error: &Error, name: &str, args: &[&Word]) -> Option<Remedy> {
    let position = |text: &str| args.iter().position(|word| word.text.contains(text)).map_or(0, |at| at + 1);
    match error.kind() {
        ErrorKind::NoOpening(block) => Some((0, format!("write {block} … {{ before its directives").into())),
        ErrorKind::ArgumentCount { .. } => {
            let form = FORMS.iter().find(|(known, _)| *known == name).map(|(_, form)| *form)?;
            Some((0, format!("write {form}").into()))
        }
        ErrorKind::Undefined { object: Object::Zone, name: zone } => {
            let define = match name {
                "limit_conn" => format!("limit_conn_zone $binary_remote_addr zone={zone}:10m;"),
                "limit_req" => format!("limit_req_zone $binary_remote_addr zone={zone}:10m rate=10r/s;"),
                _ => format!("a directive with zone={zone}:SIZE"),
            };
            Some((position(zone), format!("define the zone in http: {define}").into()))
        }
        ErrorKind::Undefined { object: Object::Cache { directive }, name: zone } => Some((
            position(zone),
            format!("define it in http: {directive}_path DIRECTORY keys_zone={zone}:10m;").into(),
        )),
        ErrorKind::Undefined { object: Object::LogFormat, name: format } => {
            Some((position(format), format!("define it in http: log_format {format} '…';").into()))
        }
        ErrorKind::Undefined { object: Object::Variable, name: variable } => Some((
            position(variable),
            format!("no module has ${variable}, and no set, map or geo defines it").into(),
        )),
        ErrorKind::NoServers(_) => Some((0, "add server ADDRESS:PORT; to the block".into())),
        ErrorKind::Unreadable { .. } if name == "include" => {
            Some((1, "correct the path: relative paths start from the directory of the main file".into()))
        }
        ErrorKind::Value { value, .. }
            if matches!(value.as_str(), "true" | "yes" | "1" | "enable" | "enabled") =>
        {
            Some((position(value), "write on".into()))
        }
        ErrorKind::Value { value, .. }
            if matches!(value.as_str(), "false" | "no" | "0" | "disable" | "disabled" | "none") =>
        {
            Some((position(value), "write off".into()))
        }
        _ => None,
    }
}

/// Mistakes of single directives, by the text of the message: it tells which of several checks of the directive has failed.
///
/// Directives of other subjects are in the functions below.
fn by_directive(error: &Error, name: &str, args: &[&Word]) -> Option<Remedy> {
    let (ErrorKind::Message(_) | ErrorKind::Value { .. }) = error.kind() else { return None };
    let message = error.kind().to_string();
    let find = |is_it: &dyn Fn(&str) -> bool| args.iter().position(|word| is_it(&word.text)).map(|at| at + 1);
    let first = args.first().map_or("", |word| word.text.as_str());
    if message.contains("cannot have URI part") {
        return Some((1, "omit the path after the host; change paths by rewrite".into()));
    }
    if message.contains("pcre") {
        let bad = args.iter().position(|word| word.text.starts_with(['*', '+', '?'])).map(|at| at + 1);
        return Some(match bad {
            Some(at) => {
                (at, "a regular expression cannot begin with a repetition: write .*, or \\. for a dot".into())
            }
            None => (
                args.len(),
                "write a regular expression of PCRE; \\ before ( ) [ ] { } + * ? . is the character".into(),
            ),
        });
    }
    match name {
        "rewrite" => match args.get(2).map(|word| word.text.as_str()) {
            Some(flag) if flag.starts_with('[') => Some((
                3,
                "flags of Apache: [L] is last, [R=301] permanent, [R] redirect; [F] is return 403".into(),
            )),
            Some("301") => Some((3, "write permanent".into())),
            Some("302" | "307") => Some((3, "write redirect".into())),
            Some(_) => Some((3, "the flags are last, break, redirect and permanent".into())),
            None => None,
        },
        "allow" | "deny" if message.contains("invalid parameter") => Some((
            1,
            if first.contains('-') || first.contains('*') {
                "write a network, such as 10.0.0.0/8"
            } else {
                "write an address, a network such as 10.0.0.0/8, or all"
            }
            .into(),
        )),
        "return" if message.contains("invalid return code") => match first.parse::<u32>() {
            Ok(_) => Some((1, "statuses have three digits".into())),
            Err(_) => Some((1, "write the status first: return 200 TEXT;".into())),
        },
        "set" if message.contains("variable name") => Some((1, format!("write ${first}").into())),
        "expires" => find(&|word| word.starts_with(|letter: char| letter.is_ascii_alphabetic()))
            .map(|at| (at, "write number and unit as one word, such as 1d".into())),
        "listen" if first.contains("://") => Some((1, "write the address alone, without http://".into())),
        "listen" if message.contains("invalid port") => Some((1, "ports are 1 to 65535".into())),
        "listen" if message.contains("invalid parameter") => {
            let at = find(&|word| message.contains(&format!("\"{word}\"")))?;
            let meant = crate::similar(&args[at - 1].text, LISTEN_PARAMETERS);
            Some((
                at,
                meant.map_or("the parameters are in docs/directives.md".into(), |meant| {
                    format!("did you mean {meant}?").into()
                }),
            ))
        }
        "listen" if message.contains("duplicate default server") => find(&|word| word == "default_server")
            .map(|at| (at, "only one server of an address can be the default one".into())),
        _ => of_upstream(name, &message, args)
            .or_else(|| of_zone(name, &message, args))
            .or_else(|| of_response(name, &message, args)),
    }
}

/// Mistakes in addresses of upstreams, and the parameters of their servers.
fn of_upstream(name: &str, message: &str, args: &[&Word]) -> Option<Remedy> {
    // Returns the index of the first word with a property; the name of the directive is word 0.
    let find = |is_it: &dyn Fn(&str) -> bool| args.iter().position(|word| is_it(&word.text)).map(|at| at + 1);
    let first = args.first().map_or("", |word| word.text.as_str());
    match name {
        "server" if first.contains("://") => Some((1, "write the address alone, without http://".into())),
        "server" if message.contains("invalid parameter") => {
            let at = find(&|word| message.contains(&format!("\"{word}\"")))?;
            let word = &args[at - 1].text;
            let number = args.get(at).map_or("NUMBER", |next| next.text.as_str());
            let with_value = ["weight", "max_fails", "fail_timeout", "max_conns", "slow_start"];
            let remedy = if with_value.contains(&word.as_str()) {
                format!("write {word}={number}")
            } else {
                "the parameters are weight=, max_fails=, fail_timeout=, max_conns=, backup and down"
                    .to_owned()
            };
            Some((at, remedy.into()))
        }
        "proxy_pass" | "grpc_pass" if message.contains("URL prefix") => {
            let remedy = if let Some(rest) = first.strip_prefix("ws") {
                format!("write http{rest}: WebSocket begins as HTTP")
            } else {
                format!("write http://{}", first.rsplit("://").next().unwrap_or(first))
            };
            Some((1, remedy.into()))
        }
        "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" if first.contains("://") => {
            Some((1, "write the address alone".into()))
        }
        _ => None,
    }
}

/// Mistakes in definitions of zones: their sizes and rates.
fn of_zone(name: &str, message: &str, args: &[&Word]) -> Option<Remedy> {
    // Returns the index of the first word with a property; the name of the directive is word 0.
    let find = |is_it: &dyn Fn(&str) -> bool| args.iter().position(|word| is_it(&word.text)).map(|at| at + 1);
    match name {
        "limit_req_zone" if message.contains("rate") => {
            find(&|word| word.starts_with("rate=")).map(|at| (at, "write rate=10r/s or rate=10r/m".into()))
        }
        "limit_req_zone" | "limit_conn_zone" | "proxy_cache_path" if message.contains("zone size") => {
            find(&|word| word.contains("zone="))
                .map(|at| (at, format!("write {}:10m", args[at - 1].text.trim_end_matches(':')).into()))
        }
        _ => None,
    }
}

/// Mistakes in versions of TLS, logs, error pages and networks.
fn of_response(name: &str, message: &str, args: &[&Word]) -> Option<Remedy> {
    // Returns the index of the first word with a property; the name of the directive is word 0.
    let find = |is_it: &dyn Fn(&str) -> bool| args.iter().position(|word| is_it(&word.text)).map(|at| at + 1);
    let first = args.first().map_or("", |word| word.text.as_str());
    match name {
        "ssl_protocols" => find(&|word| message.contains(&format!("\"{word}\"")))
            .map(|at| (at, "the versions are TLSv1.2 and TLSv1.3".into())),
        "access_log" if first == "off" => Some((2, "off has no format: write access_log off;".into())),
        "error_page" if message.contains("between 300 and 599") => {
            Some((1, "only errors and redirects have a page; the new status is written =200".into()))
        }
        "error_page" => Some((1, "name the statuses first, such as error_page 500 502 /50x.html;".into())),
        _ if message.contains("network") => find(&|word| word.contains('/'))
            .or(Some(0))
            .map(|at| (at, "the length of a prefix is 0 to 32 for IPv4, 0 to 128 for IPv6".into())),
        _ => None,
    }
}
