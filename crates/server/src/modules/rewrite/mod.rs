//! nginx's rewrite module: `rewrite`, `if`, `return`, `set`, `break`.
//!
//! The directives of a block make a script (`script`), which runs at server level and in the location. An
//! `if` in a location is a location of its own: where its condition holds, the request goes on with its
//! settings, and with the rest of the script that it stands in.

mod condition;
mod replace;
mod script;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, value};
use io::op::Source;

use crate::config::{Cx, LocationId, Scope};
use crate::log::Level;
use crate::modules::{Directive, Module, Walk};
use crate::phases::{Handler, Phase, Run, Step};
use crate::request::Request;
use crate::response::ContentType;
use crate::template::Template;
use condition::Condition;
use replace::Rewrite;
use script::{Draft, Instruction, Script};

/// The module.
pub static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    handlers: &[
        handler(Phase::ServerRewrite, |scope| has(&scope.rewrite.server_script, false), Run::Now(in_server)),
        handler(
            Phase::ServerRewrite,
            |scope| has(&scope.rewrite.server_script, true),
            Run::Later(in_server_waiting),
        ),
        handler(Phase::Rewrite, |scope| has(&scope.rewrite.script, false), Run::Now(in_location)),
        handler(Phase::Rewrite, |scope| has(&scope.rewrite.script, true), Run::Later(in_location_waiting)),
    ],
    ..Module::named("http_rewrite")
};

const fn handler(phase: Phase, active: fn(&Scope) -> bool, run: Run) -> Handler {
    Handler { phase, active, run }
}

/// Whether there is a script, one that waits or one that does not.
fn has(script: &Option<Arc<Script>>, waiting: bool) -> bool {
    script.as_ref().is_some_and(|script| script.waits() == waiting)
}

const EVERYWHERE: Contexts =
    Contexts::SERVER.or(Contexts::SERVER_IF).or(Contexts::LOCATION).or(Contexts::LOCATION_IF);

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_rewrite", name, EVERYWHERE, args, help).many()
}

const fn flag(name: &'static str, help: &'static str) -> Spec {
    Spec::new("http_rewrite", name, EVERYWHERE.or(Contexts::HTTP), Args::Flag, help)
}

const fn condition(context: Contexts, inside: Contexts) -> Directive {
    let help = "Directives for requests of which a condition holds: of a variable or of a file.";
    let spec = Spec::new("http_rewrite", "if", context, Args::AtLeast(1), help).block(inside).many();
    Directive::walk(spec, Walk::If)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec("break", Args::None, "Ends the rewrite directives of a block; the request stays where it is."),
        |scope, _| {
            scope.rewrite.draft.0.push(Instruction::Break);
            Ok(())
        },
    ),
    condition(Contexts::SERVER, Contexts::SERVER_IF),
    condition(Contexts::LOCATION, Contexts::LOCATION_IF),
    Directive::scope(
        spec("return", Args::Between(1, 2), "Ends a request with a status, a text or a redirect."),
        add_return,
    ),
    Directive::scope(
        spec("rewrite", Args::Between(2, 3), "Another URI, or a redirect, for URIs that match a pattern."),
        |scope, cx| {
            let rewrite = Arc::new(Rewrite::read(cx)?);
            scope.rewrite.draft.0.push(Instruction::Rewrite(rewrite));
            Ok(())
        },
    ),
    Directive::scope(
        flag("rewrite_log", "Tells in the error log, as notices, what rewrites and conditions matched.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.rewrite.log),
    ),
    Directive::scope(spec("set", Args::Exactly(2), "Gives a variable a value."), add_set),
    Directive::scope(
        flag(
            "uninitialized_variable_warn",
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
    /// While the block is read.
    draft: Draft,
    /// What runs in the location.
    script: Option<Arc<Script>>,
    /// What runs before a location is searched, in a server's own scope.
    server_script: Option<Arc<Script>>,
    /// `rewrite_log`
    log: bool,
    /// `uninitialized_variable_warn off`
    silent: bool,
}

impl Conf {
    /// For a block inside: without the scripts.
    pub(crate) fn inherit(&self) -> Conf {
        Conf { log: self.log, silent: self.silent, ..Conf::default() }
    }

    /// `uninitialized_variable_warn`
    pub(crate) fn warns_uninitialized(&self) -> bool {
        !self.silent
    }

    /// Adds the condition of an `if`, whose block is read when the one around it is complete.
    pub(crate) fn add_condition(&mut self, cx: &mut Cx<'_>) -> Result<(), Error> {
        let condition = Condition::read(cx)?;
        self.draft.0.push(Instruction::If { condition, location: None, skip: 0 });
        Ok(())
    }

    /// The directives of the block of an `if`, for the script around it.
    pub(crate) fn take_draft(&mut self) -> Draft {
        std::mem::take(&mut self.draft)
    }

    /// Puts the directives of the block of an `if` behind its condition, the first from this place on. Answers
    /// where to look for the next.
    pub(crate) fn fill_condition(&mut self, from: usize, block: Draft, inside: Option<LocationId>) -> usize {
        self.draft.fill(from, block, inside)
    }

    /// What was read becomes the script of the location.
    pub(crate) fn finish_location(&mut self) {
        self.script = std::mem::take(&mut self.draft).finish();
    }

    /// What was read becomes the script of the server.
    pub(crate) fn finish_server(&mut self) {
        self.server_script = std::mem::take(&mut self.draft).finish();
    }
}

/// nginx's own code: close the connection and say nothing.
const CLOSE: u16 = 444;

/// nginx takes any number that has room in a status line, registered or not.
const STATUS_MAX: u64 = 999;

/// What nginx takes for a URL of another place by how it begins.
fn is_url(text: &str) -> bool {
    ["http://", "https://", "$scheme"].iter().any(|start| text.starts_with(start))
}

/// A code, a code with a text or a URL, or a URL alone, which is told from a code by how it begins.
fn add_return(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let behind = cx.statement.args.get(1).map(|word| word.text.as_str());
    let instruction = match (value::number(text), behind) {
        // The text of a redirect is a URL, of others a body; which one is known by the status when it runs.
        (Ok(status), _) if status <= STATUS_MAX => {
            let text = behind.map(|text| cx.template(text)).transpose()?;
            Instruction::Return { status: status as u16, text }
        }
        (Err(_), None) if is_url(text) => Instruction::Return { status: 302, text: Some(cx.template(text)?) },
        _ => return Err(cx.error(format_args!("invalid return code \"{text}\""))),
    };
    scope.rewrite.draft.0.push(instruction);
    Ok(())
}

/// A name that no module has becomes a slot of the request; one that a module has must allow it.
fn add_set(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let variable = cx.http.registry.define(cx.variable_name(text)?, cx.statement)?;
    // The name first: a value may use the variable that it is assigned to.
    let value = cx.template(cx.arg(1))?;
    scope.rewrite.draft.0.push(Instruction::Set { variable, value });
    Ok(())
}

/// Runs again after each internal redirect, as in nginx.
fn in_server(request: &mut Request) -> Step {
    let generation = Rc::clone(&request.generation);
    let script = &generation.config.location(request.location).scope.rewrite.server_script;
    script.as_ref().map_or(Step::Next, |script| script.run(request))
}

/// Runs once the location is known.
fn in_location(request: &mut Request) -> Step {
    let generation = Rc::clone(&request.generation);
    let script = &generation.config.location(request.location).scope.rewrite.script;
    script.as_ref().map_or(Step::Next, |script| script.run(request))
}

/// As [`in_server`], with files to look at.
fn in_server_waiting(request: &mut Request) -> Pin<Box<dyn Future<Output = Step> + '_>> {
    Box::pin(async {
        let generation = Rc::clone(&request.generation);
        match &generation.config.location(request.location).scope.rewrite.server_script {
            Some(script) => script.run_waiting(request).await,
            None => Step::Next,
        }
    })
}

/// As [`in_location`], with files to look at.
fn in_location_waiting(request: &mut Request) -> Pin<Box<dyn Future<Output = Step> + '_>> {
    Box::pin(async {
        let generation = Rc::clone(&request.generation);
        match &generation.config.location(request.location).scope.rewrite.script {
            Some(script) => script.run_waiting(request).await,
            None => Step::Next,
        }
    })
}

/// A line of `rewrite_log`.
fn note(request: &Request, log: bool, message: fmt::Arguments<'_>) {
    if log {
        request.log(Level::Notice, message);
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
