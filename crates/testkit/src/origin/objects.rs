//! A correct origin: named objects with validators, conditional requests and ranges, changeable at run time.
//!
//! [`Objects`] is a table of [`Object`]s by target. The content of a body derives from the target and the object's
//! version ([`Content::named`]), and the entity tag contains version and size. So [`check`] can determine for any
//! response, without knowing the cached version, whether it is complete and consistent.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::date;
use crate::files::{Content, Mismatch, check_body};
use crate::gate::lock;
use crate::origin::ranges::{self, RequestedRanges, Validators, Verdict};
use crate::origin::reply::{Framing, Reply};
use crate::origin::request::OriginRequest;
use crate::response::Response;

/// Modification time of version 0 of an object: 1 January 2020. Each version is one second newer than the previous one.
const FIRST_MODIFIED: u64 = 1_577_836_800;

/// Separator of the parts of a multipart/byteranges response.
const BOUNDARY: &str = "testkit-boundary";

/// How an object's entity tag is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Etag {
    /// From version, size and variant.
    Strong,
    /// The same, marked as weak.
    Weak,
    /// As given by the test, with its quotes.
    Text(String),
    /// No entity tag.
    None,
}

/// A change that the test makes to a response before it is sent.
type Tune = Arc<dyn Fn(&OriginRequest, Reply) -> Reply + Send + Sync>;

/// An object of the origin, stored under a target.
#[derive(Clone)]
pub struct Object {
    size: u64,
    version: u64,
    etag: Etag,
    has_modified: bool,
    has_date: bool,
    takes_ranges: bool,
    takes_conditions: bool,
    status: u16,
    fields: Vec<(String, String)>,
    vary: Vec<String>,
    framing: Framing,
    tune: Option<Tune>,
}

impl Object {
    /// Creates an object of this size in version 1: with a strong entity tag, a date and ranges, without
    /// `Cache-Control`.
    pub fn new(size: u64) -> Object {
        Object {
            size,
            version: 1,
            etag: Etag::Strong,
            has_modified: true,
            has_date: true,
            takes_ranges: true,
            takes_conditions: true,
            status: 200,
            fields: Vec::new(),
            vary: Vec::new(),
            framing: Framing::Length,
            tune: None,
        }
    }

    /// Sets the version, on which content and validators depend.
    pub fn version(mut self, version: u64) -> Object {
        self.version = version;
        self
    }

    /// Sets the size.
    pub fn size(mut self, size: u64) -> Object {
        self.size = size;
        self
    }

    /// Sets the kind of the entity tag.
    pub fn etag(mut self, etag: Etag) -> Object {
        self.etag = etag;
        self
    }

    /// Omits `Last-Modified`.
    pub fn without_last_modified(mut self) -> Object {
        self.has_modified = false;
        self
    }

    /// Omits `Date`.
    pub fn without_date(mut self) -> Object {
        self.has_date = false;
        self
    }

    /// Responds to range requests with the complete object.
    pub fn without_ranges(mut self) -> Object {
        self.takes_ranges = false;
        self
    }

    /// Ignores the conditions of conditional requests.
    pub fn without_conditions(mut self) -> Object {
        self.takes_conditions = false;
        self
    }

    /// Responds with a status other than 200; conditions and ranges do not apply then.
    pub fn status(mut self, status: u16) -> Object {
        self.status = status;
        self
    }

    /// Adds a field.
    pub fn header(mut self, name: &str, value: &str) -> Object {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds `Cache-Control`.
    pub fn cache_control(self, value: &str) -> Object {
        self.header("Cache-Control", value)
    }

    /// Adds `Vary` with these names; the content depends on the values of these request fields.
    pub fn vary(mut self, names: &[&str]) -> Object {
        self.vary = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets the framing of a body that is not a range.
    pub fn framing(mut self, framing: Framing) -> Object {
        self.framing = framing;
        self
    }

    /// Changes each response before it is sent: a gate, a pace, a different cookie for each request.
    pub fn tune(mut self, tune: impl Fn(&OriginRequest, Reply) -> Reply + Send + Sync + 'static) -> Object {
        self.tune = Some(Arc::new(tune));
        self
    }

    fn validators(&self, name: &str) -> Validators {
        // The name distinguishes variants, and objects that a cache has mixed up.
        let own = format!("\"{}.{}.{:08x}\"", self.version, self.size, tag_of(name));
        let etag = match &self.etag {
            Etag::Strong => Some(own),
            Etag::Weak => Some(format!("W/{own}")),
            Etag::Text(text) => Some(text.clone()),
            Etag::None => None,
        };
        Validators { etag, modified: self.has_modified.then_some(FIRST_MODIFIED + self.version) }
    }

    /// Adds the fields of every status to a reply (also to a 304, by RFC 9110 section 15.4.5).
    fn with_fields(&self, mut reply: Reply, own: &Validators) -> Reply {
        if self.has_date {
            reply = reply.header("Date", date::format(date::now()));
        }
        if let Some(modified) = own.modified {
            reply = reply.header("Last-Modified", date::format(modified));
        }
        if let Some(etag) = &own.etag {
            reply = reply.header("ETag", etag);
        }
        if !self.vary.is_empty() {
            reply = reply.header("Vary", self.vary.join(", "));
        }
        self.fields.iter().fold(reply, |reply, (name, value)| reply.header(name, value))
    }

    fn answer(&self, target: &str, request: &OriginRequest) -> Reply {
        let name = variant(target, &self.vary, |name| request.header(name));
        let content = Content::named(&name, self.version, self.size);
        let own = self.validators(&name);
        let verdict = match self.takes_conditions && self.status == 200 {
            true => ranges::precondition(request, &own),
            false => Verdict::Answer,
        };
        match verdict {
            Verdict::NotModified => return self.with_fields(Reply::new(304), &own),
            Verdict::Failed => return Reply::new(412),
            Verdict::Answer => {}
        }
        let wanted = match self.takes_ranges && self.status == 200 {
            true => ranges::wanted(request, &own, self.size),
            false => RequestedRanges::Whole,
        };
        let size = self.size;
        match wanted {
            RequestedRanges::Unsatisfiable => {
                Reply::new(416).header("Content-Range", format!("bytes */{size}"))
            }
            RequestedRanges::Whole => {
                let reply = self.with_fields(Reply::new(self.status), &own).content(content);
                let reply = reply.header("Content-Type", "application/octet-stream").framing(self.framing);
                if self.takes_ranges { reply.header("Accept-Ranges", "bytes") } else { reply }
            }
            RequestedRanges::Parts(parts) => self.with_parts(content, &parts, &own),
        }
    }

    fn with_parts(&self, content: Content, parts: &[Range<u64>], own: &Validators) -> Reply {
        let size = self.size;
        let content_range = |part: &Range<u64>| format!("bytes {}-{}/{size}", part.start, part.end - 1);
        let mut reply = self.with_fields(Reply::new(206), own);
        if let [part] = parts {
            let reply = reply.header("Content-Type", "application/octet-stream");
            return reply.header("Content-Range", content_range(part)).content_range(content, part.clone());
        }
        reply = reply.header("Content-Type", format!("multipart/byteranges; boundary={BOUNDARY}"));
        for part in parts {
            let head = format!("\r\n--{BOUNDARY}\r\nContent-Range: {}\r\n\r\n", content_range(part));
            reply = reply.body(head).content_range(content, part.clone());
        }
        reply.body(format!("\r\n--{BOUNDARY}--\r\n"))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object(version {}, {} bytes, {:?})", self.version, self.size, self.fields)
    }
}

/// A function that creates objects for targets that are not in the table.
type Rule = Arc<dyn Fn(&str) -> Option<Object> + Send + Sync>;

/// The objects of an origin. Clones share the table, so a test can change the origin's objects at run time.
#[derive(Clone, Default)]
pub struct Objects(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    objects: BTreeMap<String, Object>,
    rule: Option<Rule>,
}

impl Objects {
    /// Creates an empty table.
    pub fn new() -> Objects {
        Objects::default()
    }

    /// Adds an object under a target, replacing an earlier one. A target without a query matches any query.
    pub fn put(&self, target: &str, object: Object) -> &Objects {
        lock(&self.0).objects.insert(target.to_owned(), object);
        self
    }

    /// Removes an object: its response is then 404.
    pub fn remove(&self, target: &str) {
        lock(&self.0).objects.remove(target);
    }

    /// Changes an object. Panics if it does not exist.
    #[track_caller]
    pub fn change(&self, target: &str, change: impl FnOnce(Object) -> Object) {
        let mut table = lock(&self.0);
        let Some(object) = table.objects.get_mut(target) else { panic!("no object at {target}") };
        *object = change(object.clone());
    }

    /// Creates the next version of an object, of the same size but with other bytes and validators.
    #[track_caller]
    pub fn renew(&self, target: &str) {
        self.change(target, |object| Object { version: object.version + 1, ..object });
    }

    /// Sets a rule that creates the objects for all other targets, for tests with too many objects to add individually.
    pub fn rule(&self, rule: impl Fn(&str) -> Option<Object> + Send + Sync + 'static) -> &Objects {
        lock(&self.0).rule = Some(Arc::new(rule));
        self
    }

    /// Returns the current content of an object's body. Panics if the object does not exist.
    #[track_caller]
    pub fn content(&self, target: &str) -> Content {
        let Some((name, object)) = self.find(target) else { panic!("no object at {target}") };
        Content::named(&name, object.version, object.size)
    }

    /// Returns the reply to a request.
    pub fn reply(&self, request: &OriginRequest) -> Reply {
        let Some((name, object)) = self.find(&request.target) else { return Reply::new(404).body("none\n") };
        let reply = object.answer(&name, request);
        match &object.tune {
            Some(tune) => tune(request, reply),
            None => reply,
        }
    }

    /// Returns a handler for an origin with these objects.
    pub fn handler(&self) -> impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static {
        let objects = self.clone();
        move |request| objects.reply(request)
    }

    /// Returns the object for a target, and the name under which it is stored.
    fn find(&self, target: &str) -> Option<(String, Object)> {
        let path = target.split('?').next().unwrap_or("");
        let table = lock(&self.0);
        for name in [target, path] {
            if let Some(object) = table.objects.get(name) {
                return Some((name.to_owned(), object.clone()));
            }
        }
        let rule = table.rule.clone()?;
        drop(table);
        rule(target).map(|object| (target.to_owned(), object))
    }
}

/// Returns the content name of an object with `Vary`, for a request with these values.
pub fn variant(target: &str, vary: &[String], value_of: impl Fn(&str) -> Option<String>) -> String {
    let values = vary.iter().map(|name| format!("|{name}={}", value_of(name).unwrap_or_default()));
    std::iter::once(target.to_owned()).chain(values).collect()
}

/// The facts of a correct response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Version of the object.
    pub version: u64,
    /// Size of the complete object.
    pub size: u64,
    /// The contained ranges, in order.
    pub parts: Vec<Range<u64>>,
}

/// Error of a response.
#[derive(Debug)]
pub enum Wrong {
    /// A field or the status is missing or differs from those of an [`Object`].
    Field(String),
    /// The entity tag is that of another object.
    OtherObject(String),
    /// The body does not match the fields.
    Body(Mismatch),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Field(text) => write!(f, "no usable {text}"),
            Wrong::OtherObject(etag) => write!(f, "the entity tag {etag} is another object's"),
            Wrong::Body(mismatch) => write!(f, "{mismatch}"),
        }
    }
}

impl std::error::Error for Wrong {}

/// Checks that a response with status 200 or 206 is a version of the object with this name (a target, or a
/// [`variant`]). The version is taken from the response's entity tag, which must be [`Etag::Strong`] or [`Etag::Weak`].
pub fn check(name: &str, response: &Response) -> Result<Checked, Wrong> {
    let etag = response.field("etag").ok_or_else(|| Wrong::Field("ETag".to_owned()))?;
    let unusable = || Wrong::Field(format!("ETag: {etag}"));
    let parts: Vec<&str> = etag.trim_start_matches("W/").trim_matches('"').split('.').collect();
    let [version, size, tag] = parts[..] else { return Err(unusable()) };
    let (Ok(version), Ok(size)) = (version.parse(), size.parse()) else { return Err(unusable()) };
    if tag != format!("{:08x}", tag_of(name)) {
        return Err(Wrong::OtherObject(etag.to_owned()));
    }
    let parts: Vec<Part<'_>> = match (response.status, response.field("content-range")) {
        (200, _) => vec![(0..size, &response.body)],
        (206, Some(range)) => vec![(content_range(range, size)?, &response.body)],
        (206, None) => multipart(response, size)?,
        (status, _) => return Err(Wrong::Field(format!("status: {status}"))),
    };
    for (range, bytes) in &parts {
        check_body(name, version, range.clone(), bytes).map_err(Wrong::Body)?;
    }
    Ok(Checked { version, size, parts: parts.into_iter().map(|(range, _)| range).collect() })
}

/// Returns the part of the entity tag that depends on the name, displayed as eight hexadecimal digits.
fn tag_of(name: &str) -> u32 {
    crate::files::Checksum::of(name.as_bytes()) as u32
}

/// Parses `bytes 0-99/1000`.
fn content_range(text: &str, size: u64) -> Result<Range<u64>, Wrong> {
    let read = || {
        let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        (whole.parse() == Ok(size) && first <= last && last < size).then_some(first..last + 1)
    };
    read().ok_or_else(|| Wrong::Field(format!("Content-Range: {text} of {size}")))
}

/// A range of an object, and the bytes received for it.
type Part<'a> = (Range<u64>, &'a [u8]);

/// Parses a multipart/byteranges body (RFC 9110 section 14.6). The lengths are taken from the parts' header sections,
/// since a boundary could occur in their bytes.
fn multipart(response: &Response, size: u64) -> Result<Vec<Part<'_>>, Wrong> {
    let wrong = |what: &str| Wrong::Field(what.to_owned());
    let kind = response.field("content-type").unwrap_or("");
    let boundary = kind.split_once("boundary=").ok_or_else(|| wrong("boundary"))?.1.trim_matches('"');
    let (next, last) = (format!("\r\n--{boundary}\r\n"), format!("\r\n--{boundary}--\r\n"));
    // The first delimiter may omit its leading line break.
    let mut rest = &response.body[..];
    let mut delimiter = if rest.starts_with(b"--") { &next.as_bytes()[2..] } else { next.as_bytes() };
    let mut parts = Vec::new();
    while let Some(part) = rest.strip_prefix(delimiter) {
        let end = part.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.ok_or_else(|| wrong("head of a part"))?;
        let head = String::from_utf8_lossy(&part[..end]).into_owned();
        let range = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-range").then(|| value.trim().to_owned())
        });
        let range = content_range(&range.ok_or_else(|| wrong("Content-Range of a part"))?, size)?;
        let length = (range.end - range.start) as usize;
        let (body, after) = part[end + 4..].split_at_checked(length).ok_or_else(|| wrong("whole part"))?;
        parts.push((range, body));
        rest = after;
        delimiter = next.as_bytes();
    }
    if rest == last.as_bytes() { Ok(parts) } else { Err(wrong("end of the parts")) }
}
