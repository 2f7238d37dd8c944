//! Tells the course of a rehearsed request, in the order of its events.

use conf::{Span, Statement};

use super::{Blocks, Report, enter, handler, location_lines, readable};
use crate::adapter::{self, Config, Course, Event, Note, Phase, Question, Site};

/// A course, with the configuration that it refers to.
pub(super) struct Story<'t> {
    pub(super) site: &'t Site,
    /// The configuration of the rehearsal, whose locations the notes name.
    pub(super) config: &'t Config,
    pub(super) course: &'t Course,
    pub(super) question: &'t Question,
    pub(super) reader: Option<readable::FileReader>,
    pub(super) http: &'t Statement,
    pub(super) server: &'t Statement,
}

impl<'t> Story<'t> {
    /// Reports all events and the response.
    pub(super) fn tell(&mut self, report: &mut Report) {
        // The blocks of the request, then those of its subrequests by depth.
        let mut blocks = vec![self.blocks()];
        let (mut is_told, mut is_passed) = (false, false);
        for note in &self.course.notes {
            while blocks.len() <= usize::from(note.depth) {
                blocks.push(self.blocks());
            }
            let here = &mut blocks[usize::from(note.depth)];
            report.is_subrequest = note.depth > 0;
            let told = self.event(note, here, report);
            if note.depth == 0 {
                // A handler decides on a passed request, and others may log something about it, before another location can be entered.
                let remains = is_passed
                    && matches!(note.event, Event::Decided { .. } | Event::Said { .. } | Event::Logged(..));
                is_passed = matches!(note.event, Event::Passed(_)) || remains;
                is_told = told || remains;
            }
        }
        report.is_subrequest = false;
        if !is_told {
            self.response(&blocks[0], report);
        }
    }

    fn blocks(&self) -> Blocks<'t> {
        Blocks { chain: vec![self.http, self.server], http: self.http }
    }

    /// Reports an event. Returns whether the line is also the response.
    fn event(&self, note: &Note, blocks: &mut Blocks<'t>, report: &mut Report) -> bool {
        match &note.event {
            Event::Entered { uri } => self.entered(note, uri, blocks, report),
            Event::Instruction { at, effect } => return instruction(at, effect, blocks, report),
            Event::Decided { phase, module, status, allows } => {
                self.decided(note, (*phase, module), (*status, *allows), blocks, report);
            }
            Event::Said { label, text } => report.line(label, text),
            Event::Logged(level, text) => report.line("log", format_args!("[{level}] {text}")),
            Event::Passed(passed) => {
                handler::limits(blocks, report);
                handler::passed(blocks, passed, self.question, report);
                match note.depth {
                    0 => report.line("response", "that of the upstream"),
                    _ => report.line("", "its response is unknown here: 200 is assumed"),
                }
                return true;
            }
        }
        false
    }

    fn entered(&self, note: &Note, uri: &[u8], blocks: &mut Blocks<'t>, report: &mut Report) {
        let server = self.course.server.0 as usize;
        blocks.chain.truncate(2);
        let names = adapter::chain_of(self.config, server, note.location).unwrap_or_default();
        enter(blocks, &names);
        let named = names.last().filter(|name| name.starts_with('@'));
        match (named, adapter::find_location(self.config, server, uri)) {
            (None, Ok(found)) if found.chain == names => location_lines(blocks, &found, report),
            (named, _) => {
                let (name, at) = (names.last().map_or("none", String::as_str), blocks.span());
                let why = if named.is_some() { "a named location" } else { "selected by a variable" };
                report.line("location", format_args!("{name} at {at}: {why}"));
            }
        }
    }

    /// Reports the decision of a module.
    fn decided(
        &self,
        note: &Note,
        (phase, module): (Phase, &str),
        (status, allows): (Option<u16>, bool),
        blocks: &mut Blocks<'t>,
        report: &mut Report,
    ) {
        let server = self.course.server.0 as usize;
        // The access rules of `limit_except` are those of a block in the location.
        if adapter::chain_of(self.config, server, note.location).is_none()
            && let Some(limit) = blocks.own(&["limit_except"])
        {
            blocks.chain.push(limit);
        }
        let outcome = match (status, allows) {
            (Some(status), _) => status.to_string(),
            (_, true) => "allows the request".to_owned(),
            _ => return,
        };
        let name = module.strip_prefix("http_").unwrap_or(module);
        match phase {
            Phase::Access => {
                let statement = match name {
                    "access" => handler::access_rule(blocks, self.question.from),
                    name => blocks.one(name),
                };
                match statement {
                    Some(statement) => {
                        let (text, at) = (handler::written(statement), statement.span());
                        report.line("access", format_args!("{text} at {at}: {outcome}"));
                    }
                    None => report.line("access", format_args!("module {module}: {outcome}")),
                }
            }
            Phase::Content => handler::content(blocks, name, report),
            // The instructions and files were reported.
            Phase::ServerRewrite | Phase::Rewrite | Phase::Precontent => {}
            Phase::PostRead | Phase::Preaccess => {
                report.line("handler", format_args!("module {module}: {outcome}"));
            }
        }
    }

    /// Reports the response.
    fn response(&self, blocks: &Blocks<'_>, report: &mut Report) {
        let Course { status, redirect, length, is_file, path, location, .. } = self.course;
        let Some(mut status) = *status else {
            return report.line("response", "none: the connection is closed");
        };
        if *is_file {
            handler::limits(blocks, report);
        }
        if let (true, Some(bytes)) = (*is_file, length) {
            let mover = adapter::mover(&self.site.config, *location, *bytes);
            report.line("file", format_args!("{}, {bytes} bytes, sent by {mover}", path.display()));
            match adapter::sandbox_of(&self.site.config, path) {
                None => {}
                Some(Ok(allowed)) => report.line("sandbox", allowed),
                // The rehearsal has no sandbox.
                Some(Err(refused)) => {
                    report.line("sandbox", refused);
                    status = 403;
                }
            }
        }
        if *is_file || status == 403 {
            let obstacle = self.reader.as_ref().and_then(|reader| reader.obstacle(path));
            obstacle.iter().for_each(|text| report.line("", text));
        }
        let redirect = redirect.as_ref().filter(|_| (300..400).contains(&status));
        let redirect = redirect.map(|url| format!(" to {}", String::from_utf8_lossy(url)));
        report.line("response", format_args!("{status}{}", redirect.unwrap_or_default()));
    }
}

/// Reports an instruction of the rewrite module. Returns whether it is the response.
fn instruction<'t>(at: &Span, effect: &str, blocks: &mut Blocks<'t>, report: &mut Report) -> bool {
    let found = blocks.chain.get(1..).into_iter().flatten().find_map(|block| statement_at(block, at));
    let Some(statement) = found else { return false };
    let name = statement.name.text.as_str();
    match name {
        "if" if effect.ends_with("true") => {
            report.line(
                "if",
                format_args!("{} at {at} is true", statement.texts().collect::<Vec<_>>().join(" ")),
            );
            blocks.chain.push(statement);
        }
        "if" => {}
        "set" => {
            report.line("set", format_args!("{} {effect} at {at}", statement.arg(0).unwrap_or_default()));
        }
        // Beginning with a status: the response. An error may have a page.
        _ if effect.starts_with(|first: char| first.is_ascii_digit()) => {
            report.line("response", format_args!("{effect} by \"{name}\" at {at}"));
            return true;
        }
        _ => report.line(name, format_args!("{effect} at {at}")),
    }
    false
}

/// Finds the statement at a position in a block.
fn statement_at<'t>(block: &'t Statement, at: &Span) -> Option<&'t Statement> {
    block
        .children()
        .iter()
        .find_map(|child| if child.span() == at { Some(child) } else { statement_at(child, at) })
}
