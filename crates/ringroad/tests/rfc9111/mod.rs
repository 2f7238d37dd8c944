//! Test cases as data, and their execution against a server: `cases.txt` documents the syntax and contains the cases.
//!
//! Main types: [`Case`], parsed by [`cases`], and [`Site`], a server under test with its origin. All cases run
//! concurrently, step by step, so that all share each wait for staleness.

pub(crate) mod peers;

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::response::{self, Fault, Response};
use testkit::{Deadline, ListenAddr, date, wait};

/// Text of the cases.
const TEXT: &str = include_str!("cases.txt");

/// A sequence of requests for separate targets.
pub(crate) struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    /// RFC section with the requirement.
    pub(crate) section: &'static str,
    /// The row of docs/caching.md that documents this server's different behaviour.
    pub(crate) policy: Option<&'static str>,
    /// Steps between waits.
    phases: Vec<Vec<Step>>,
}

#[derive(Clone)]
struct Step {
    method: &'static str,
    /// Last segment of the target.
    place: &'static str,
    fields: Vec<(&'static str, &'static str)>,
    /// The origin's response, as [`answer`] reads it.
    say: &'static str,
    wants: Vec<&'static str>,
}

/// Parses all cases.
pub(crate) fn cases() -> Vec<Case> {
    let (mut found, mut group) = (Vec::<Case>::new(), "");
    for line in TEXT.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("## ") {
            group = name;
        } else if let Some(title) = line.strip_prefix("= ") {
            let mut parts = title.split(" | ");
            let (name, section) = (parts.next().expect("a name"), parts.next().expect("a section"));
            let policy = parts.next().map(|text| text.strip_prefix("policy ").expect("policy and a row"));
            found.push(Case { group, name, section, policy, phases: vec![Vec::new()] });
        } else if line == "~" {
            found.last_mut().expect("a case").phases.push(Vec::new());
        } else if !line.is_empty() && !line.starts_with('#') {
            let case = found.last_mut().expect("a case");
            let before = case.phases.iter().flatten().last().map_or("", |step| step.say);
            case.phases.last_mut().expect("a phase").push(step(line, before));
        }
    }
    found
}

/// `METHOD@place [Field: value & Field: value] {Field: value|:order} -> want ; want`
fn step(line: &'static str, before: &'static str) -> Step {
    let (request, wants) = line.rsplit_once(" -> ").unwrap_or_else(|| panic!("no wants: {line}"));
    let within = |open: char, close: char| {
        let start = request.find(open)?;
        let end = request.rfind(close).unwrap_or_else(|| panic!("{open} is not closed: {line}"));
        Some(&request[start + 1..end])
    };
    let say = within('{', '}');
    let head = &request[..request.find('{').unwrap_or(request.len())];
    let fields = head.find('[').map_or("", |start| &head[start + 1..head.rfind(']').expect("]")]);
    let fields = fields.split(" & ").filter_map(|field| field.split_once(": ")).collect();
    let method = head.split([' ', '[']).next().expect("a method");
    let (method, place) = method.split_once('@').unwrap_or((method, "a"));
    Step { method, place, fields, say: say.unwrap_or(before), wants: wants.split(" ; ").collect() }
}

/// Requests received by the origin, by target.
type Asked = Arc<Mutex<HashMap<String, Vec<OriginRequest>>>>;

/// A server under test.
pub(crate) struct Site {
    _origin: Origin,
    asked: Asked,
    address: ListenAddr,
    /// The time to which dates are relative.
    base: u64,
    /// Timeout for a response.
    patience: Duration,
    /// The running server, stopped when dropped.
    _server: Box<dyn std::any::Any>,
}

impl Site {
    /// Starts an origin, and a server in front of it.
    pub(crate) fn start<S: 'static>(
        patience: Duration,
        start: impl FnOnce(&Origin) -> Option<(S, ListenAddr)>,
    ) -> Option<Site> {
        let asked = Asked::default();
        let heard = Arc::clone(&asked);
        let origin = Origin::start(move |request| {
            let mut asked = heard.lock().expect("no test panics with it");
            let requests = asked.entry(request.target.clone()).or_default();
            requests.push(request.clone());
            answer(request, requests.len())
        });
        let (server, address) = start(&origin)?;
        Some(Site { _origin: origin, asked, address, base: date::now(), patience, _server: Box::new(server) })
    }

    /// Runs all cases; returns the first failure of each.
    pub(crate) fn run(&self, cases: &[Case]) -> Vec<Option<String>> {
        let mut failed: Vec<Option<String>> = cases.iter().map(|_| None).collect();
        let mut seen: Vec<HashMap<&str, Vec<String>>> = cases.iter().map(|_| HashMap::new()).collect();
        let phases = cases.iter().map(|case| case.phases.len()).max().unwrap_or(0);
        for phase in 0..phases {
            if phase > 0 {
                until_stale();
            }
            let steps = |case: &Case| case.phases.get(phase).map_or(0, Vec::len);
            for index in 0..cases.iter().map(steps).max().unwrap_or(0) {
                for (number, case) in cases.iter().enumerate() {
                    let Some(step) = case.phases.get(phase).and_then(|steps| steps.get(index)) else {
                        continue;
                    };
                    if failed[number].is_none() {
                        let bodies = seen[number].entry(step.place).or_default();
                        failed[number] = self.step(number, step, bodies).err();
                    }
                }
            }
        }
        failed
    }

    fn step(&self, number: usize, step: &Step, bodies: &mut Vec<String>) -> Result<(), String> {
        let target = format!("/{number}/{}", step.place);
        let count = |asked: &Asked| asked.lock().expect("no panic").get(&target).map_or(0, Vec::len);
        let before = count(&self.asked);
        let exchanged = self.exchange(&target, number, step);
        if step.wants.contains(&"broken") {
            return match exchanged {
                Ok((_, response)) if response.status == 200 => Err("a whole response".to_owned()),
                _ => Ok(()),
            };
        }
        let (interim, response) = exchanged?;
        if step.wants.contains(&"beside") {
            let is_asked = || (count(&self.asked) > before).then_some(());
            wait::until("a request beside", Deadline::after(self.patience), is_asked)
                .map_err(|late| late.to_string())?;
        }
        let asked = count(&self.asked) - before;
        let last = self.asked.lock().expect("no panic").get(&target).and_then(|all| all.last().cloned());
        let last = last.filter(|_| asked > 0);
        let outcome = Outcome { interim, response, asked, last, bodies };
        let checked = step.wants.iter().try_for_each(|want| outcome.check(&self.expanded(want, number)));
        checked?;
        let text = outcome.response.text();
        if !bodies.contains(&text) {
            bodies.push(text);
        }
        Ok(())
    }

    /// Replaces dates (`@-60@` is a minute before the start) and the case's targets (`%/b`).
    fn expanded(&self, text: &str, number: usize) -> String {
        let mut out = String::new();
        for (index, part) in text.split('@').enumerate() {
            match part.parse::<i64>() {
                Ok(seconds) if index % 2 == 1 => {
                    out.push_str(&date::format(self.base.wrapping_add_signed(seconds)));
                }
                _ => out.push_str(part),
            }
        }
        out.replace("%/", &format!("/{number}/"))
    }

    fn exchange(&self, target: &str, number: usize, step: &Step) -> Result<(Vec<u16>, Response), String> {
        let mut fields: Vec<(&str, String)> =
            step.fields.iter().map(|(name, value)| (*name, self.expanded(value, number))).collect();
        fields.push(("X-Say", self.expanded(step.say, number)));
        if step.method == "POST" || step.method == "PUT" {
            fields.push(("Content-Length", "0".to_owned()));
        }
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let bytes = testkit::client::request_bytes(step.method, target, &fields);
        let mut socket = TcpStream::connect(self.address.tcp()).map_err(|error| error.to_string())?;
        let _ = socket.set_read_timeout(Some(self.patience));
        socket.write_all(&bytes).map_err(|error| error.to_string())?;
        let mut from = BufReader::new(socket);
        let mut interim = Vec::new();
        loop {
            let response = response::read_response(&mut from, step.method == "HEAD");
            let response = response.map_err(|fault| match fault {
                Fault::Io(_) => "no response".to_owned(),
                fault => format!("{fault:?}"),
            })?;
            if response.status >= 200 {
                return Ok((interim, response));
            }
            interim.push(response.status);
        }
    }
}

/// Result of a step.
struct Outcome<'a> {
    interim: Vec<u16>,
    response: Response,
    /// Number of requests to the origin during the step.
    asked: usize,
    last: Option<OriginRequest>,
    /// Bodies of this target so far.
    bodies: &'a [String],
}

impl Outcome<'_> {
    fn check(&self, want: &str) -> Result<(), String> {
        let status = self.response.status;
        let has_body = matches!(status, 200 | 203 | 404 | 410 | 301 | 308) && !self.response.body.is_empty();
        let is_old = self.bodies.contains(&self.response.text());
        let conditions = ["if-none-match", "if-modified-since"];
        let is_conditional =
            self.last.as_ref().is_some_and(|last| conditions.iter().any(|name| last.header(name).is_some()));
        let age = || self.response.field("Age").and_then(|age| age.parse::<u64>().ok());
        let number = |text: &str| text.trim().parse::<u64>().unwrap_or_else(|_| panic!("no number: {want}"));
        let has = |name: &str| self.last.as_ref().is_some_and(|last| last.header(name).is_some());
        let is_right = match want {
            "any" | "beside" => true,
            "new" => self.asked > 0 && !(has_body && is_old),
            "hit" => self.asked == 0 && (!has_body || is_old) && status < 500,
            "old" => has_body && is_old,
            "valid" => self.asked > 0 && is_conditional && (!has_body || is_old),
            "asked" => self.asked > 0,
            "unasked" => self.asked == 0,
            _ => match want.split_once(' ').unwrap_or((want, "")) {
                ("Age>=", least) => age().is_some_and(|age| age >= number(least)),
                ("Age<=", most) => age().is_none_or(|age| age <= number(most)),
                ("up", name) => has(name),
                ("up!", name) => !has(name),
                ("interim", code) => self.interim.iter().any(|status| u64::from(*status) == number(code)),
                ("has", rest) => {
                    let (name, text) = rest.split_once(' ').expect("a field and a text");
                    self.response.head.all(name).any(|value| value.contains(text))
                }
                ("body", text) => self.response.text() == text,
                ("status", codes) => codes.split('/').any(|code| number(code) == u64::from(status)),
                ("no", name) => self.response.field(name).is_none(),
                ("one", name) => self.response.head.all(name).count() == 1,
                (_, _) => match want.split_once(": ") {
                    Some((name, value)) => self.response.field(name) == Some(value),
                    None => panic!("unknown want {want:?}"),
                },
            },
        };
        if is_right { Ok(()) } else { Err(format!("not \"{want}\" ({})", self.shown())) }
    }

    fn shown(&self) -> String {
        let age = self.response.field("Age").map(|age| format!(", Age {age}")).unwrap_or_default();
        let body = match self.bodies.contains(&self.response.text()) {
            _ if self.response.body.is_empty() => "no body",
            true => "old body",
            false => "new body",
        };
        let origin = if self.asked > 0 { "origin contacted" } else { "origin not contacted" };
        format!("{}, {body}, {origin}{age}", self.response.status)
    }
}

/// Waits until responses with a lifetime of one second have been stale for more than one.
fn until_stale() {
    let end = date::now() + 3;
    let over = || (date::now() >= end).then_some(());
    wait::until("the clock", Deadline::default(), over).unwrap_or_else(|late| panic!("{late}"));
}

/// Returns the origin's response to a request, composed of fields, and of commands that begin with a colon.
fn answer(request: &OriginRequest, count: usize) -> Reply {
    let say = request.header("x-say").unwrap_or_default();
    let parts: Vec<&str> = say.split('|').filter(|part| !part.is_empty()).collect();
    let order =
        |name: &str| parts.iter().find_map(|part| part.strip_prefix(':')?.strip_prefix(name)).map(str::trim);
    let fields: Vec<(&str, &str)> = parts.iter().filter_map(|part| part.split_once(": ")).collect();
    let field = |name: &str| {
        fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    };
    if order("close").is_some() {
        return Reply::close();
    }
    let is_conditional =
        ["if-none-match", "if-modified-since"].iter().any(|name| request.header(name).is_some());
    let is_same = order("same").is_some() && is_conditional;
    let status = order("status").and_then(|status| status.parse().ok()).unwrap_or(200);
    let mut reply = Reply::new(if is_same { 304 } else { status });
    if order("parts").is_some() && !is_same {
        reply = parted(request, field("ETag"));
    } else if !is_same && status != 204 && status != 304 {
        reply = reply.body(format!("{count} of {}", request.target));
    }
    if order("short").is_some() {
        reply = reply.declared_length(500).closing();
    }
    if order("chunked").is_some() {
        reply = reply.chunked(&[7]);
    }
    for code in ["102", "103"] {
        if order("interim").is_some_and(|codes| codes.contains(code)) {
            reply = reply.interim(code.parse().expect("a status"), &[("Link", "</a>; rel=preload")]);
        }
    }
    if field("Date").is_none() && order("nodate").is_none() {
        reply = reply.header("Date", date::format(date::now()));
    }
    fields.iter().fold(reply, |reply, (name, value)| reply.header(name, value))
}

/// Returns the alphabet, or a range of it.
fn parted(request: &OriginRequest, etag: Option<&str>) -> Reply {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    let is_same = request.header("if-range").is_none_or(|tag| Some(tag.as_str()) == etag);
    let range = request.header("range").filter(|_| is_same && request.method == "GET");
    let bounds = range.as_deref().and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let len = LETTERS.len();
        Some(match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => (first, (last + 1).min(len)),
            (Ok(first), Err(_)) => (first, len),
            (Err(_), Ok(count)) => (len.saturating_sub(count), len),
            (Err(_), Err(_)) => return None,
        })
    });
    match bounds {
        Some((first, end)) if first < end => Reply::new(206)
            .header("Content-Range", format!("bytes {first}-{}/{}", end - 1, LETTERS.len()))
            .body(&LETTERS[first..end]),
        Some(_) => Reply::new(416).header("Content-Range", format!("bytes */{}", LETTERS.len())),
        None => Reply::new(200).header("Accept-Ranges", "bytes").body(LETTERS),
    }
}
