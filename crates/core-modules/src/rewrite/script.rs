//! The script of the directives of one block: a list of instructions, which run for a request.
//!
//! A condition that checks a file has to wait for the disk. The interpreter stops there and is called again, so that
//! nearly all scripts, which have no such condition, run without a future.

use std::sync::Arc;

use conf::Span;
use io::Errno;

use crate::rewrite::condition::{Condition, ConditionResult};
use crate::rewrite::replace::{After, Rewrite, RewriteResult};
use crate::rewrite::respond;
use exchange::files;
use exchange::phases::Step;
use exchange::rehearsal::Event;
use exchange::request::Request;
use site::config::LocationId;
use site::template::Template;
use site::var_ref::VarRef;
use telemetry::{ForLog, Level, Reason};

/// Instructions in the order of the configuration, while blocks are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft(pub(super) Vec<Placed>);

/// An instruction with the position of its directive.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(super) instruction: Instruction,
    pub(super) at: Span,
}

/// Instructions in the order of the configuration, including those of `if` blocks.
#[derive(Debug, Default)]
pub(crate) struct Script {
    instructions: Vec<Placed>,
    /// Whether an instruction may have to wait for the disk.
    waits: bool,
    /// `rewrite_log`
    log: bool,
}

/// An instruction, from one directive.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    /// Ends the request.
    Return { status: u16, text: Option<Template> },
    /// Assigns a variable.
    Set { variable: VarRef, value: Template },
    /// Ends the script.
    Break,
    /// Replaces the URI.
    Rewrite(Arc<Rewrite>),
    /// If the condition is true, continues with the next instruction, in another location; otherwise skips N
    /// instructions.
    If { condition: Condition, location: Option<LocationId>, skip: usize },
}

impl Draft {
    /// Inserts the instructions of a block after its condition, which is the first one from index `from` on. Returns
    /// the index after the block: conditions are not nested, so the next one follows it.
    pub(super) fn fill(&mut self, from: usize, block: Draft, inside: Option<LocationId>) -> usize {
        let mut indices = from..self.0.len();
        let at = indices.find(|&index| matches!(self.0[index].instruction, Instruction::If { .. }));
        let Some(at) = at else { return from };
        let end = at + 1 + block.0.len();
        if let Instruction::If { location, skip, .. } = &mut self.0[at].instruction {
            (*location, *skip) = (inside, block.0.len());
        }
        assert!(at < self.0.len(), "a block follows its instruction");
        self.0.splice(at + 1..at + 1, block.0);
        end
    }

    /// Returns the script, unless it is empty.
    pub(super) fn finish(self, log: bool) -> Option<Arc<Script>> {
        let instructions = self.0;
        let waits = |placed: &Placed| match &placed.instruction {
            Instruction::If { condition, .. } => condition.waits(),
            _ => false,
        };
        let waits = instructions.iter().any(waits);
        (!instructions.is_empty()).then(|| Arc::new(Script { instructions, waits, log }))
    }
}

/// The position of a request in a script.
struct State {
    /// The next instruction.
    at: usize,
    /// Whether groups of the decoded URI are encoded in texts of `set` and `if`: as in nginx, up to the first rewrite
    /// that matches.
    escaped: bool,
    /// The result of the file check that the script waits for.
    file_check: Option<bool>,
}

/// The reason why the interpreter stopped.
enum Stop {
    /// The script has ended.
    End(Step),
    /// A condition needs a check of the file at this path.
    CheckFile(Vec<u8>),
}

impl Script {
    /// Whether the script may have to wait.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Runs a script that never waits.
    pub(super) fn run(&self, request: &mut Request) -> Step {
        match self.advance(&mut State::new(), request) {
            Stop::End(step) => step,
            // Unreachable: a script with such a condition runs in [`Script::run_waiting`].
            Stop::CheckFile(_) => Step::Status(500),
        }
    }

    /// Runs the script, and checks files for its conditions.
    pub(super) async fn run_waiting(&self, request: &mut Request) -> Step {
        let mut state = State::new();
        loop {
            let path = match self.advance(&mut state, request) {
                Stop::End(step) => return step,
                Stop::CheckFile(path) => path,
            };
            let stat = match files::stat_anywhere(request, &path).await {
                Ok(stat) => Some(stat),
                Err(errno) => {
                    if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) {
                        let (path, reason) = (files::display(&path), Reason(errno));
                        request.log(Level::Crit, format_args!("stat() \"{path}\" failed ({reason})"));
                    }
                    None
                }
            };
            let Some(Placed { instruction: Instruction::If { condition, .. }, .. }) =
                self.instructions.get(state.at)
            else {
                return Step::Next;
            };
            state.file_check = Some(condition.holds_for(stat.as_ref()));
        }
    }

    /// Executes the instructions up to one that ends the script, or that has to wait.
    fn advance(&self, state: &mut State, request: &mut Request) -> Stop {
        while let Some(Placed { instruction, at }) = self.instructions.get(state.at) {
            match instruction {
                Instruction::Set { variable, value } => {
                    // Rendered at the assignment and not at use, so later changes of its variables have no effect, as
                    // in nginx.
                    let mut text = Vec::new();
                    value.render_groups(request, state.escaped && request.was_encoded(), &mut text);
                    variable.assign(request, &text);
                    note(request, at, || format!("set to \"{}\"", text.for_log()));
                }
                Instruction::Return { status, text } => {
                    let step = respond(request, *status, text.as_ref());
                    note(request, at, || match &request.response.location {
                        Some(url) => format!("{status} {}", url.for_log()),
                        None => status.to_string(),
                    });
                    return Stop::End(step);
                }
                Instruction::Break => {
                    note(request, at, || "ends the rewriting".to_owned());
                    if std::mem::take(&mut request.uri_changed) {
                        request.left_location = true;
                    }
                    return Stop::End(Step::Next);
                }
                Instruction::Rewrite(rewrite) => match self.rewrite(rewrite, at, request) {
                    RewriteResult::None => {}
                    RewriteResult::Replaced(After::Next) => state.escaped = false,
                    RewriteResult::Replaced(After::Search | After::Continue) => return Stop::End(Step::Next),
                    RewriteResult::End(step) => return Stop::End(step),
                },
                Instruction::If { condition, location, skip } => {
                    let escaped = state.escaped && request.was_encoded();
                    let verdict = match state.file_check.take() {
                        Some(holds) => ConditionResult::Holds(holds),
                        None => condition.evaluate(request, escaped, self.log),
                    };
                    match verdict {
                        ConditionResult::NeedsFileCheck(path) => return Stop::CheckFile(path),
                        ConditionResult::Fails => return Stop::End(Step::Status(500)),
                        ConditionResult::Holds(false) => {
                            note(request, at, || "the condition is false".to_owned());
                            state.at += skip;
                        }
                        ConditionResult::Holds(true) => {
                            note(request, at, || "the condition is true".to_owned());
                            if let Some(location) = location {
                                request.location = *location;
                            }
                        }
                    }
                }
            }
            state.at += 1;
        }
        Stop::End(Step::Next)
    }

    /// Runs a rewrite, and notes its effect in a rehearsal.
    fn rewrite(&self, rewrite: &Rewrite, at: &Span, request: &mut Request) -> RewriteResult {
        let before = request.is_rehearsed().then(|| request.uri.clone());
        let result = rewrite.run(request, self.log);
        match &result {
            RewriteResult::Replaced(_) => note(request, at, || {
                let (old, new) = (before.unwrap_or_default(), &request.uri);
                format!("{} becomes {}", old.for_log(), new.for_log())
            }),
            RewriteResult::End(Step::Status(status)) => note(request, at, || {
                let url = request.response.location.clone().unwrap_or_default();
                format!("{status} to {}", url.for_log())
            }),
            RewriteResult::None | RewriteResult::End(_) => {}
        }
        result
    }
}

/// Notes the effect of an instruction in a rehearsal.
fn note(request: &Request, at: &Span, effect: impl FnOnce() -> String) {
    request.note(|| Event::Instruction { at: at.clone(), effect: effect() });
}

impl State {
    fn new() -> State {
        State { at: 0, escaped: true, file_check: None }
    }
}
