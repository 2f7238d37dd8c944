//! nginx's rewrite module: `rewrite`, `if`, `return`, `set`, `break`.
//!
//! The directives of a block are compiled to a script (`script`), which runs at server level and in the location. An
//! `if` in a location is a nested location: if its condition is true, the request continues with its settings, and with
//! the remaining instructions of its script.

mod condition;
mod replace;
mod script;

use std::fmt;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, value};
use io::segments::Source;

use crate::{Declaration, Directive, Module, Walk};
use condition::Condition;
use exchange::module::Plan;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use replace::Rewrite;
use script::{Draft, Instruction, Placed, Script};
use site::config::{BlockKind, Cx, Inner, Scope, Settings, SettingsType};
use site::declaration::{BlockHooks, ConditionHooks};
use site::template::Template;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        let conf = scope.of::<Conf>();
        add_script(plan, Phase::ServerRewrite, &conf.server_script);
        add_script(plan, Phase::Rewrite, &conf.script);
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        blocks: BlockHooks {
            complete: |scope, end| scope.make_mut::<Conf>().complete(end.kind),
            conditions: Some(ConditionHooks {
                read: |scope, cx| scope.make_mut::<Conf>().add_condition(cx),
                join: |scope, from, inside, location| {
                    let block = std::mem::take(&mut inside.make_mut::<Conf>().draft);
                    scope.make_mut::<Conf>().draft.fill(from, block, location)
                },
            }),
            ..BlockHooks::NONE
        },
        ..Declaration::named("http_rewrite")
    })
};

/// Adds a script to the plan. At server level it runs again after each internal redirect, as in nginx.
fn add_script(plan: &mut Plan, phase: Phase, script: &Option<Arc<Script>>) {
    match script {
        None => {}
        Some(script) if script.waits() => {
            plan.later(phase, Arc::clone(script), |script, request| Box::pin(script.run_waiting(request)));
        }
        Some(script) => plan.now(phase, Arc::clone(script), Script::run),
    }
}

/// Scripts belong to a server or a location, and to the `if` blocks in them; `http` has none.
const EVERYWHERE: Contexts =
    Contexts::SERVER.or(Contexts::SERVER_IF).or(Contexts::LOCATION).or(Contexts::LOCATION_IF);

/// Returns the row of an instruction of a script.
const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_rewrite", name, EVERYWHERE, args, help).many()
}

/// Returns the row of a setting, which unlike the scripts is inherited.
const fn flag(name: &'static str, help: &'static str) -> Spec {
    Spec::new("http_rewrite", name, EVERYWHERE.or(Contexts::HTTP), Args::Flag, help)
}

/// Returns a directive `if`. In a server it contains only rewrites, in a location also settings, so it is two
/// directives.
const fn condition(context: Contexts, inside: Contexts) -> Directive {
    let help = "Directives for requests that match a condition on a variable or a file.";
    let spec = Spec::new("http_rewrite", "if", context, Args::AtLeast(1), help).block(inside).many();
    Directive::walk(spec, Walk::If)
}

const DIRECTIVES: &[Directive] = &[
    // The location for a URI changed by an earlier rewrite is not searched.
    Directive::scope(
        spec("break", Args::None, "Ends rewriting in a block, without a new location."),
        |scope, cx| {
            scope.make_mut::<Conf>().push(cx, Instruction::Break);
            Ok(())
        },
    ),
    // The block of an `if` is read after the enclosing block (`site::config::resolve`).
    condition(Contexts::SERVER, Contexts::SERVER_IF),
    condition(Contexts::LOCATION, Contexts::LOCATION_IF),
    // The status determines whether its text is a body or a URL.
    Directive::scope(
        spec("return", Args::Between(1, 2), "Ends a request with a status, a text or a redirect."),
        add_return,
    ),
    // Matches the decoded path without the query, as locations do.
    Directive::scope(
        spec("rewrite", Args::Between(2, 3), "Changes or redirects URIs that match a regular expression."),
        |scope, cx| {
            let rewrite = Arc::new(Rewrite::read(cx)?);
            scope.make_mut::<Conf>().push(cx, Instruction::Rewrite(rewrite));
            Ok(())
        },
    ),
    // Logged only if `error_log` has level `notice` or a lower level.
    Directive::scope(
        flag("rewrite_log", "Logs results of rewrites and conditions at level notice.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().log),
    ),
    // Variables of `map` can be set too, and some of nginx's, such as the query.
    Directive::scope(spec("set", Args::Exactly(2), "Assigns a value to a variable."), add_set),
    Directive::scope(
        flag(
            "uninitialized_variable_warn",
            "Warns in the error log of variables that are used before `set` has given them a value.",
        )
        .default("on"),
        |scope, cx| cx.flag(&mut scope.core.uninitialized_variable_warn),
    ),
];

/// The script of the directives of one block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// The instructions while the block is read.
    draft: Draft,
    /// The script that runs in the location.
    script: Option<Arc<Script>>,
    /// The script that runs before the search for a location, in a server's own scope.
    server_script: Option<Arc<Script>>,
    /// `rewrite_log`
    log: bool,
}

impl Conf {
    /// Whether a script runs in the location before its content handler.
    pub(crate) fn is_active(&self) -> bool {
        self.script.is_some()
    }
}

impl Settings for Conf {
    fn inherit(&self, _: Inner) -> Option<Conf> {
        Some(Conf { log: self.log, ..Conf::default() })
    }
}

impl Conf {
    /// Adds the instruction of a directive.
    fn push(&mut self, cx: &Cx<'_>, instruction: Instruction) {
        self.draft.0.push(Placed { instruction, at: cx.statement.span().clone() });
    }

    /// Adds the condition of an `if`, whose block is parsed after the enclosing block.
    fn add_condition(&mut self, cx: &mut Cx<'_>) -> Result<(), Error> {
        let condition = Condition::read(cx)?;
        self.push(cx, Instruction::If { condition, location: None, skip: 0 });
        Ok(())
    }

    /// Compiles the directives into the script of the server or of the location.
    fn complete(&mut self, kind: BlockKind) {
        let script = std::mem::take(&mut self.draft).finish(self.log);
        match kind {
            BlockKind::Server => self.server_script = script,
            _ => self.script = script,
        }
    }
}

/// nginx's own code: close the connection without a response.
const CLOSE: u16 = 444;

/// nginx accepts any number that fits in a status line, registered or not.
const STATUS_MAX: u64 = 999;

/// Whether nginx treats a text as a URL, by its beginning.
fn is_url(text: &str) -> bool {
    ["http://", "https://", "$scheme"].iter().any(|start| text.starts_with(start))
}

/// Parses a status, a status with a text or a URL, or a URL alone, which is recognised by its beginning.
fn add_return(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let behind = cx.statement.args.get(1).map(|word| word.text.as_str());
    let instruction = match (value::number(text), behind) {
        // The text of a redirect is a URL, of other statuses a body; the status decides at run time.
        (Ok(status), _) if status <= STATUS_MAX => {
            let text = behind.map(|text| cx.template(text)).transpose()?;
            Instruction::Return { status: status as u16, text }
        }
        (Err(_), None) if is_url(text) => Instruction::Return { status: 302, text: Some(cx.template(text)?) },
        _ => return Err(cx.error(format_args!("invalid return code \"{text}\""))),
    };
    scope.make_mut::<Conf>().push(cx, instruction);
    Ok(())
}

/// Parses `set`. A name that no module has becomes a slot of the request; a variable of a module must allow it.
fn add_set(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let variable = cx.http.registry.define(cx.variable_name(text)?, cx.statement)?;
    // The name is defined first, because a value may use the variable that it is assigned to.
    let value = cx.template(cx.arg(1))?;
    cx.http.registry.add_values(&variable, [value.clone()]);
    scope.make_mut::<Conf>().push(cx, Instruction::Set { variable, value });
    Ok(())
}

/// Logs a line of `rewrite_log`.
fn note(request: &Request, log: bool, message: fmt::Arguments<'_>) {
    if log {
        request.log(Level::Notice, message);
    }
}

/// Responds as nginx does: the text of a redirect becomes `Location`, an error without a text gets its page, and any
/// other text is the body.
fn respond(request: &mut Request, status: u16, text: Option<&Template>) -> Step {
    if status == CLOSE {
        return Step::Drop;
    }
    // Set before the text is rendered, which may use it.
    request.response.status = status;
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        request.response.location = text.map(|text| text.rendered(request));
        return Step::Status(status);
    }
    if status >= 400 && text.is_none_or(|text| text.constant() == Some("")) {
        return Step::Status(status);
    }
    // Without a text the body is empty with a length of 0, which keeps the connection usable.
    let body = text.map_or(Source::Static(b""), |text| text.source(request));
    let response = &mut request.response;
    response.status = status;
    // An upstream may have set the content type (`X-Accel-Redirect`).
    if matches!(response.content_type, ContentType::None) {
        response.content_type = ContentType::OfUri;
    }
    response.set_bytes(body);
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, load, loaded};
    use exchange::phases::Phase;
    use site::config::{Config, Location, ServerId};

    /// Returns the script of the server and that of the location that was read last.
    fn scripts(server: &str) -> (String, String) {
        let config = loaded(&format!("server {{ {server} }}"));
        let root = config.server(ServerId(0)).root;
        let inner = config.http.locations.last().expect("the server has a scope");
        let outer = &config.location(root).scope.of::<Conf>().server_script;
        (format!("{outer:?}"), format!("{:?}", inner.scope.of::<Conf>().script))
    }

    /// Returns the number of handlers in each location.
    fn counts(config: &Config, phase: Phase) -> Vec<usize> {
        let plan = |location: &Location| crate::all().plan(&config.http, &location.scope);
        config.http.locations.iter().map(|location| plan(location).count(phase)).collect()
    }

    #[test]
    fn locations_do_not_inherit_the_script_of_their_server() {
        let (server, location) = scripts("set $a b; return 204; location / { return 301 /x$uri; }");
        assert!(server.contains("Set") && server.contains("status: 204, text: None"), "{server}");
        assert!(!location.contains("Set") && location.contains("status: 301"), "{location}");
        let config = loaded("server { return 200; location / { } }");
        assert_eq!(counts(&config, Phase::ServerRewrite), [1, 0]);
        assert_eq!(counts(&config, Phase::Rewrite), [0, 0]);
        let config = loaded("server { location / { break; location /x { } } }");
        assert_eq!(counts(&config, Phase::ServerRewrite), [0, 0, 0]);
        assert_eq!(counts(&config, Phase::Rewrite), [0, 1, 0]);
    }

    #[test]
    fn if_blocks_run_in_their_order() {
        let (_, location) = scripts(
            "location / { set $a 1; if ($a) { set $a 2; return 200; } set $a 3; if ($a = x) { } if (-f x) { break; } }",
        );
        let places: Vec<usize> = ["Set", "If", "Set", "Return", "Set", "If", "If", "Break"]
            .iter()
            .scan(0, |from, word| {
                *from = location[*from..].find(word).map(|place| *from + place + word.len())?;
                Some(*from)
            })
            .collect();
        assert_eq!(places.len(), 8, "{location}");
        assert!(location.contains("skip: 2") && location.contains("skip: 0") && location.contains("skip: 1"));
        assert!(location.contains("waits: true"), "{location}");
        let config = loaded("server { if (-d x) { set $a 1; } location / { if ($a) { } } }");
        // The server, the `if` in the location, the location.
        assert_eq!(counts(&config, Phase::ServerRewrite), [1, 0, 0]);
        assert_eq!(counts(&config, Phase::Rewrite), [0, 0, 1]);
        assert_eq!(config.http.locations[1].name, config.http.locations[2].name);
    }

    #[test]
    fn if_blocks_inherit_from_their_complete_location() {
        let config = loaded(
            "etag off; server { location / { if ($uri) { sendfile on; } default_type a/b; try_files a =404; } }",
        );
        let [_, inside, location] = config.http.locations.as_slice() else { panic!("there are three") };
        assert_eq!(&*inside.scope.core.files.default_type, "a/b");
        assert!(
            inside.scope.core.sending.sendfile == Some(true)
                && location.scope.core.sending.sendfile.is_none()
                && !inside.scope.core.responding.etag
        );
        assert_eq!(crate::all().plan(&config.http, &inside.scope).count(Phase::Precontent), 0);
    }

    #[test]
    fn flags_are_inherited() {
        let config = loaded(
            "rewrite_log on; uninitialized_variable_warn off; server { location / { } location /x {
               rewrite_log off; uninitialized_variable_warn on; } }",
        );
        let [server, inherited, own] = config.http.locations.as_slice() else { panic!("there are three") };
        for (location, expected) in [(server, true), (inherited, true), (own, false)] {
            assert_eq!(location.scope.of::<Conf>().log, expected);
            assert_eq!(location.scope.core.uninitialized_variable_warn, !expected);
        }
    }

    #[test]
    fn return_with_only_a_url_is_a_redirect() {
        for url in ["http://a/", "https://a/", "$scheme://$host/"] {
            let (server, _) = scripts(&format!("return {url};"));
            assert!(server.contains("status: 302"), "{server}");
            for (flag, expected) in [("", 302), ("last", 302), ("break", 302), ("permanent", 301)] {
                let (server, _) = scripts(&format!("rewrite . {url} {flag};"));
                assert!(server.contains(&format!("Redirect({expected}, false)")), "{server}");
            }
        }
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("return x;", "invalid return code \"x\""),
            ("return 1000;", "invalid return code \"1000\""),
            ("return /x;", "invalid return code \"/x\""),
            ("return http://x y;", "invalid return code \"http://x\""),
            ("set x y;", "invalid variable name \"x\""),
            ("set $ y;", "invalid variable name \"$\""),
            ("set $uri y;", "the duplicate \"uri\" variable"),
            ("return 200 $nonexist;", "unknown \"nonexist\" variable"),
            ("return 200 '${a';", "the closing bracket in \"a\" variable is missing"),
            ("return 200 'a$';", "invalid variable name"),
            ("rewrite a '';", "empty replacement"),
            ("rewrite ( a;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
            ("rewrite a b c;", "invalid parameter \"c\""),
            ("rewrite a $nonexist;", "unknown \"nonexist\" variable"),
            ("rewrite a 'b?$';", "invalid variable name"),
            ("rewrite (?<host>.) b;", "the duplicate \"host\" variable"),
            ("break x;", "invalid number of arguments in \"break\" directive"),
            (
                "rewrite_log x;",
                "invalid value \"x\" in \"rewrite_log\" directive, it must be \"on\" or \"off\"",
            ),
            (
                "uninitialized_variable_warn x;",
                "invalid value \"x\" in \"uninitialized_variable_warn\" directive, it must be \"on\" or \"off\"",
            ),
            ("if ($uri) { if ($uri) { } }", "\"if\" directive is not allowed here"),
        ] {
            for (before, behind) in [("", ""), ("location / {", "}")] {
                let found = error(&format!("http {{ server {{ {before}\n{text} }} {behind} }}"));
                let expected = format!("{expected} in /conf/nginx.conf:2");
                assert!(found.starts_with(&expected), "{text}: {found}");
            }
        }
        loaded("server { set $args y; set $limit_rate 1k; set $mine $args; return 200 $mine; }");
    }

    #[test]
    fn wrong_conditions_are_refused() {
        for (words, expected) in [
            ("$uri", "invalid condition \"$uri\""),
            ("($uri", "invalid condition \"$uri\""),
            ("()", "invalid condition \")\""),
            ("( )", "invalid condition \")\""),
            ("(uri)", "invalid condition \"uri\""),
            ("($)", "invalid condition \"$\""),
            ("($uri =)", "invalid condition \"$uri\""),
            ("($uri = a b)", "invalid condition \"$uri\""),
            ("($uri == a)", "unexpected \"==\" in condition"),
            ("($uri ~ \"(\")", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
            ("(-f)", "invalid condition \"-f\""),
            ("(-f a b)", "invalid condition \"-f\""),
            ("(-z a)", "invalid condition \"-z\""),
            ("(!-z a)", "invalid condition \"!-z\""),
            ("($nonexist)", "unknown \"nonexist\" variable"),
            ("($1)", "unknown \"1\" variable"),
            ("($uri = $nonexist)", "unknown \"nonexist\" variable"),
            ("(-f $nonexist)", "unknown \"nonexist\" variable"),
        ] {
            let found = error(&format!("http {{ server {{\nif {words} {{ }} }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{words}");
        }
        for words in
            ["( $uri )", "($uri)", "( $uri != \"\" )", "($uri ~* a)", "( !-x /a$uri)", "($uri = \"b\")"]
        {
            load(&format!("http {{ server {{ location / {{ if {words} {{ }} }} }} }}")).expect(words);
        }
    }

    #[test]
    fn errors_in_an_if_block_are_reported_before_later_errors() {
        let found = error("http { server { location / { if ($uri) {\nset x y; } aio x; } } }");
        assert_eq!(found, "invalid variable name \"x\" in /conf/nginx.conf:2");
        let found = error("http { server { if ($uri) {\nroot x; } etag x; } }");
        assert!(found.starts_with("\"root\" directive is not allowed here in /conf/nginx.conf:2"), "{found}");
    }
}
