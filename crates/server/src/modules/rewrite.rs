//! `return` and `set`: a list of instructions that runs at server level and in the location.

use conf::{Args, Contexts, Error, Spec, value};
use io::op::Source;

use crate::config::{Cx, Scope};
use crate::modules::{Directive, Module};
use crate::phases::{Handler, Phase, Run, Step};
use crate::request::Request;
use crate::response::ContentType;
use crate::template::Template;
use crate::variables::VarRef;

/// The module.
pub static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    handlers: &[
        Handler {
            phase: Phase::ServerRewrite,
            active: |scope| scope.rewrite.server_has_script,
            run: Run::Now(run_in_server),
        },
        Handler {
            phase: Phase::Rewrite,
            active: |scope| !scope.rewrite.script.is_empty(),
            run: Run::Now(run_in_location),
        },
    ],
    ..Module::named("http_rewrite")
};

/// `if` blocks take both as soon as they are built; the contexts are nginx's.
const EVERYWHERE: Contexts =
    Contexts::SERVER.or(Contexts::SERVER_IF).or(Contexts::LOCATION).or(Contexts::LOCATION_IF);

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_rewrite",
            "return",
            EVERYWHERE,
            Args::Between(1, 2),
            "Ends a request with a status, a text or a redirect.",
        )
        .many(),
        add_return,
    ),
    Directive::scope(
        Spec::new("http_rewrite", "set", EVERYWHERE, Args::Exactly(2), "Gives a variable a value.").many(),
        add_set,
    ),
    Directive::scope(
        Spec::new(
            "http_rewrite",
            "uninitialized_variable_warn",
            EVERYWHERE.or(Contexts::HTTP),
            Args::Flag,
            "Warns in the error log of variables that are used before `set` has given them a value.",
        )
        .default("on"),
        |scope, cx| {
            let mut warn = true;
            cx.flag(&mut warn)?;
            scope.rewrite.silent = !warn;
            Ok(())
        },
    ),
];

/// What the directives of one block make.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    script: Script,
    /// Whether this is a server's own scope and the server has a script.
    server_has_script: bool,
    /// `uninitialized_variable_warn off`
    silent: bool,
}

impl Conf {
    /// For a block inside: without the script.
    pub(crate) fn inherit(&self) -> Conf {
        Conf { silent: self.silent, ..Conf::default() }
    }

    /// `uninitialized_variable_warn`
    pub(crate) fn warns_uninitialized(&self) -> bool {
        !self.silent
    }

    /// The script of a server, which runs before a location is searched, and not again without one.
    pub(crate) fn take_for_server(&mut self) -> Script {
        self.server_has_script = !self.script.is_empty();
        std::mem::take(&mut self.script)
    }
}

/// Instructions in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<Instruction>);

#[derive(Clone, Debug)]
enum Instruction {
    /// Ends the request.
    Return { status: u16, text: Option<Template> },
    /// Assigns.
    Set { variable: VarRef, value: Template },
}

/// nginx's own code: close the connection and say nothing.
const CLOSE: u16 = 444;

/// nginx takes any number that has room in a status line, registered or not.
const STATUS_MAX: u64 = 999;

/// A code, a code with a text or a URL, or a URL alone, which is told from a code by how it begins.
fn add_return(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let behind = cx.statement.args.get(1).map(|word| word.text.as_str());
    let is_url = ["http://", "https://", "$scheme"].iter().any(|start| text.starts_with(start));
    let instruction = match (value::number(text), behind) {
        // The text of a redirect is a URL, of others a body; which one is known by the status when it runs.
        (Ok(status), _) if status <= STATUS_MAX => {
            let text = behind.map(|text| cx.template(text)).transpose()?;
            Instruction::Return { status: status as u16, text }
        }
        (Err(_), None) if is_url => Instruction::Return { status: 302, text: Some(cx.template(text)?) },
        _ => return Err(cx.error(format_args!("invalid return code \"{text}\""))),
    };
    scope.rewrite.script.0.push(instruction);
    Ok(())
}

/// A name that no module has becomes a slot of the request; one that a module has must allow it.
fn add_set(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let variable = cx.http.registry.define(cx.variable_name(text)?, cx.statement)?;
    // The name first: a value may use the variable that it is assigned to.
    let value = cx.template(cx.arg(1))?;
    scope.rewrite.script.0.push(Instruction::Set { variable, value });
    Ok(())
}

/// Runs again after each internal redirect, as in nginx.
fn run_in_server(request: &mut Request) -> Step {
    let generation = std::rc::Rc::clone(&request.generation);
    generation.config.server(request.server).script.run(request)
}

/// Runs once the location is known.
fn run_in_location(request: &mut Request) -> Step {
    let generation = std::rc::Rc::clone(&request.generation);
    generation.config.location(request.location).scope.rewrite.script.run(request)
}

impl Script {
    /// Whether there is nothing to run, so that the phase can leave the module out.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Carries out the instructions up to one that ends the request.
    fn run(&self, request: &mut Request) -> Step {
        for instruction in &self.0 {
            match instruction {
                Instruction::Set { variable, value } => {
                    // Rendered now and not when it is used: a later change of its parts does not reach it, as in
                    // nginx.
                    let value = value.rendered(request);
                    variable.assign(request, &value);
                }
                Instruction::Return { status, text } => return answer(request, *status, text.as_ref()),
            }
        }
        Step::Next
    }
}

/// nginx: a redirect takes its text as `Location`; an error without a text gets its page; everything else
/// is a response with the text as its body.
fn answer(request: &mut Request, status: u16, text: Option<&Template>) -> Step {
    if status == CLOSE {
        return Step::Drop;
    }
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        request.response.location = text.map(|text| text.rendered(request));
        return Step::Status(status);
    }
    if status >= 400 && text.is_none_or(|text| text.constant() == Some("")) {
        return Step::Status(status);
    }
    // Without a text the body is empty and says so, which keeps the connection usable.
    let body = text.map_or(Source::Static(b""), |text| Source::Vec(text.rendered(request)));
    let response = &mut request.response;
    response.status = status;
    response.content_type = ContentType::OfUri;
    response.set_bytes(body);
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerId;
    use crate::config::testing::{error, loaded};

    fn scripts(server: &str) -> (String, String) {
        let config = loaded(&format!("server {{ {server} }}"));
        let server = config.server(ServerId(0));
        let inner = config.http.locations.last().expect("the server has a scope");
        (format!("{:?}", server.script.0), format!("{:?}", inner.scope.rewrite.script.0))
    }

    #[test]
    fn a_server_keeps_its_script_and_locations_do_not_inherit_it() {
        let (server, location) = scripts("set $a b; return 204; location / { return 301 /x$uri; }");
        assert!(server.contains("Set") && server.contains("status: 204, text: None"), "{server}");
        assert!(!location.contains("Set") && location.contains("status: 301"), "{location}");
        let config = loaded("server { return 200; location / { } }");
        let root = config.server(ServerId(0)).root;
        let active = |id| config.location(id).handlers.of_phase(Phase::ServerRewrite).len();
        assert_eq!(active(root), 1);
        let inner = config.http.locations.iter().filter(|location| location.name == "/");
        assert!(inner.clone().all(|location| location.handlers.of_phase(Phase::ServerRewrite).is_empty()));
        assert!(inner.clone().all(|location| location.handlers.of_phase(Phase::Rewrite).is_empty()));
        let config = loaded("server { location / { return 200 a; } }");
        assert_eq!(config.http.locations[1].handlers.of_phase(Phase::Rewrite).len(), 1);
    }

    #[test]
    fn a_lone_url_is_a_redirect() {
        for url in ["http://a/", "https://a/", "$scheme://$host/"] {
            let (server, _) = scripts(&format!("return {url};"));
            assert!(server.contains("status: 302"), "{server}");
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
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        loaded("server { set $args y; set $limit_rate 1k; set $mine $args; return 200 $mine; }");
    }
}
