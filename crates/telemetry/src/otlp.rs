//! The messages of OTLP, the protocol of OpenTelemetry, for traces: encodes spans, and decodes the responses of collectors.
//!
//! Spans are appended to a batch as protobuf bytes when they end, so that no structures are retained. The few messages that are needed
//! have only strings, integers and nested messages. Text from clients may have bytes that are no UTF-8; protobuf refuses these in a
//! string, so they are replaced. A batch, an attribute and the number of attributes are limited.

use std::borrow::Cow;

/// Maximum length in bytes of the value of an attribute. Longer texts are cut. URIs within nginx's default
/// `large_client_header_buffers` fit.
const ATTRIBUTE_BYTES_MAX: usize = 8 << 10;

/// Maximum size in bytes of the spans of a batch; a larger batch is sent before it has the configured number of spans. gRPC
/// libraries refuse messages above 4 MiB by default, and the last span of a batch may exceed the limit.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// Maximum length in bytes of a message of a collector that is written to the log.
const MESSAGE_BYTES_MAX: usize = 256;

/// Role of a span (`Span.SpanKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside this server.
    Internal = 1,
    /// A request of a client.
    Server = 2,
    /// A request to an upstream.
    Client = 3,
}

/// Identifiers and times of a span.
#[derive(Clone, Copy, Debug)]
pub struct SpanHead<'a> {
    /// Identifier of the trace.
    pub trace_id: [u8; 16],
    /// Identifier of the span.
    pub span_id: [u8; 8],
    /// Identifier of the parent span.
    pub parent_id: Option<[u8; 8]>,
    /// The value of `tracestate`.
    pub state: &'a [u8],
    /// The name of the span.
    pub name: &'a [u8],
    /// Its role.
    pub kind: SpanKind,
    /// Start, in nanoseconds since 1970.
    pub start_ns: u64,
    /// End, in nanoseconds since 1970.
    pub end_ns: u64,
}

/// The attributes of one span, while it is appended to a batch.
pub struct SpanWriter<'b>(&'b mut Vec<u8>);

impl SpanWriter<'_> {
    /// Adds a text.
    pub fn text(&mut self, key: &str, value: &[u8]) {
        attribute(self.0, 9, key, |out| push_text(out, 1, cut(value)));
    }

    /// Adds a text as the only element of an array, as nginx does for header fields.
    pub fn texts(&mut self, key: &str, value: &[u8]) {
        attribute(self.0, 9, key, |out| {
            nested(out, 5, |out| nested(out, 1, |out| push_text(out, 1, cut(value))));
        });
    }

    /// Adds a number.
    pub fn number(&mut self, key: &str, value: u64) {
        attribute(self.0, 9, key, |out| push_number(out, 3, value));
    }

    /// Marks the span as failed, with a reason unless it is empty.
    pub fn error(&mut self, reason: &str) {
        nested(self.0, 15, |out| {
            if !reason.is_empty() {
                push_text(out, 2, cut(reason.as_bytes()));
            }
            push_number(out, 3, 2);
        });
    }
}

/// Spans that are sent together, encoded.
#[derive(Debug, Default)]
pub struct Batch {
    /// The field `spans` of `ScopeSpans`, repeated.
    bytes: Vec<u8>,
    count: usize,
    /// Memory for the next span. A span is appended when it is complete, so that a panic of `fill` leaves a valid batch.
    spare: Vec<u8>,
}

impl Batch {
    /// Appends a span; `fill` adds its attributes.
    pub fn add(&mut self, head: &SpanHead<'_>, fill: impl FnOnce(&mut SpanWriter<'_>)) {
        let mut span = std::mem::take(&mut self.spare);
        span.clear();
        push_bytes(&mut span, 1, &head.trace_id);
        push_bytes(&mut span, 2, &head.span_id);
        if !head.state.is_empty() {
            push_text(&mut span, 3, head.state);
        }
        if let Some(parent) = &head.parent_id {
            push_bytes(&mut span, 4, parent);
        }
        push_text(&mut span, 5, cut(head.name));
        push_number(&mut span, 6, head.kind as u64);
        push_fixed(&mut span, 7, head.start_ns);
        push_fixed(&mut span, 8, head.end_ns);
        fill(&mut SpanWriter(&mut span));
        push_bytes(&mut self.bytes, 2, &span);
        self.spare = span;
        self.count += 1;
    }

    /// Returns the number of spans.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the batch is to be sent: it has the number of spans, or its maximum size.
    pub fn is_full(&self, spans_max: usize) -> bool {
        self.count >= spans_max || self.bytes.len() >= BATCH_BYTES_MAX
    }
}

/// The process that sends spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource(Vec<u8>);

impl Resource {
    /// Encodes the attributes of the process.
    pub fn new<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Resource {
        let mut bytes = Vec::new();
        nested(&mut bytes, 1, |out| {
            for (key, value) in attributes {
                attribute(out, 1, key, |out| push_text(out, 1, value.as_bytes()));
            }
        });
        Resource(bytes)
    }

    /// Encodes the request of a batch (`ExportTraceServiceRequest`), after `prefix` bytes that the caller fills in.
    pub fn request(&self, prefix: usize, batch: &Batch) -> Vec<u8> {
        let mut scope = Vec::new();
        nested(&mut scope, 1, |out| {
            push_text(out, 1, b"ringroad");
            push_text(out, 2, env!("CARGO_PKG_VERSION").as_bytes());
        });
        let scope_spans = scope.len() + batch.bytes.len();
        let mut before = self.0.clone();
        push_length(&mut before, 2, scope_spans);
        let resource_spans = before.len() + scope_spans;
        // The key and the length of the outermost field have at most 11 bytes.
        let mut out = Vec::with_capacity(prefix + 11 + resource_spans);
        out.resize(prefix, 0);
        push_length(&mut out, 1, resource_spans);
        [before, scope].iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(&batch.bytes);
        out
    }
}

/// The part of a batch that a collector has not accepted (`ExportTracePartialSuccess`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Number of rejected spans.
    pub spans: u64,
    /// The reason, or advice if no span was rejected.
    pub message: String,
}

/// Decodes a collector's response. Returns `None` if it is not a valid message.
pub fn rejected(response: &[u8]) -> Option<Rejected> {
    let mut rejected = Rejected::default();
    for field in fields(response) {
        let (1, FieldValue::Bytes(partial)) = field? else { continue };
        for field in fields(partial) {
            match field? {
                (1, FieldValue::Number(spans)) => rejected.spans = spans,
                (2, FieldValue::Bytes(message)) => rejected.message = message_of(message),
                _ => {}
            }
        }
    }
    Some(rejected)
}

/// Decodes the time in milliseconds after which a collector permits a retry: `RetryInfo` in `google.rpc.Status`, the value of
/// `grpc-status-details-bin`.
pub fn retry_delay_ms(status: &[u8]) -> Option<u64> {
    let details = fields(status).map_while(|field| field);
    let details = details.filter_map(|(number, value)| if number == 3 { value.bytes() } else { None });
    details.filter_map(delay_of).next()
}

/// Returns the delay of a detail that is a `RetryInfo`.
fn delay_of(detail: &[u8]) -> Option<u64> {
    let (mut kind, mut info) = (&b""[..], &b""[..]);
    for field in fields(detail) {
        match field? {
            (1, FieldValue::Bytes(text)) => kind = text,
            (2, FieldValue::Bytes(bytes)) => info = bytes,
            _ => {}
        }
    }
    if !kind.ends_with(b"/google.rpc.RetryInfo") {
        return None;
    }
    let (1, FieldValue::Bytes(duration)) = fields(info).next()?? else { return None };
    let (mut seconds, mut nanoseconds) = (0, 0);
    for field in fields(duration) {
        match field? {
            (1, FieldValue::Number(number)) => seconds = number,
            (2, FieldValue::Number(number)) => nanoseconds = number,
            _ => {}
        }
    }
    // Negative numbers are the largest ones here.
    let seconds = i64::try_from(seconds).ok()?.cast_unsigned();
    let nanoseconds = i64::try_from(nanoseconds).ok()?.cast_unsigned();
    seconds.checked_mul(1000)?.checked_add(nanoseconds / 1_000_000)
}

/// Returns a message of a collector for the log: valid text of limited length.
pub fn message_of(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldValue<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

impl<'m> FieldValue<'m> {
    fn bytes(self) -> Option<&'m [u8]> {
        match self {
            FieldValue::Bytes(bytes) => Some(bytes),
            FieldValue::Number(_) => None,
        }
    }
}

/// Returns the fields of a message with their numbers; `None` at the first byte that is not valid, which ends the iteration.
fn fields(message: &[u8]) -> impl Iterator<Item = Option<(u64, FieldValue<'_>)>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = take_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

fn take_field<'m>(rest: &mut &'m [u8]) -> Option<(u64, FieldValue<'m>)> {
    let key = take_varint(rest)?;
    let value = match key & 7 {
        0 => FieldValue::Number(take_varint(rest)?),
        1 => FieldValue::Bytes(take(rest, 8)?),
        2 => {
            let length = usize::try_from(take_varint(rest)?).ok()?;
            FieldValue::Bytes(take(rest, length)?)
        }
        5 => FieldValue::Bytes(take(rest, 4)?),
        _ => return None,
    };
    Some((key >> 3, value))
}

fn take<'m>(rest: &mut &'m [u8], length: usize) -> Option<&'m [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

/// Takes an integer of at most ten bytes, each with seven bits.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..70).step_by(7) {
        let [byte] = *take(rest, 1)? else { return None };
        // The tenth byte has the last bit.
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Cuts a text to its maximum length.
fn cut(text: &[u8]) -> &[u8] {
    if text.len() <= ATTRIBUTE_BYTES_MAX {
        return text;
    }
    // Not within a character: continuation bytes begin with the bits 10.
    let mut end = ATTRIBUTE_BYTES_MAX;
    while end > ATTRIBUTE_BYTES_MAX - 4 && text[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &text[..end]
}

/// Appends an attribute (`KeyValue`) as the field `number`; `value` appends the field of its `AnyValue`.
fn attribute(out: &mut Vec<u8>, number: u8, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
    nested(out, number, |out| {
        push_bytes(out, 1, key.as_bytes());
        nested(out, 2, value);
    });
}

/// Appends a nested message, whose length is known after `fill` has appended it.
fn nested(out: &mut Vec<u8>, number: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(number << 3 | 2);
    let start = out.len();
    // Most messages are shorter than 128 bytes, so that their length has one byte.
    out.push(0);
    fill(out);
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
        return;
    }
    let mut varint = Vec::with_capacity(10);
    push_varint(&mut varint, length as u64);
    out.splice(start..=start, varint);
}

/// Appends a string; bytes that are no UTF-8 are replaced.
fn push_text(out: &mut Vec<u8>, number: u8, text: &[u8]) {
    match String::from_utf8_lossy(text) {
        Cow::Borrowed(text) => push_bytes(out, number, text.as_bytes()),
        Cow::Owned(text) => push_bytes(out, number, text.as_bytes()),
    }
}

fn push_bytes(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    push_length(out, number, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends the key and the length of a field of bytes.
fn push_length(out: &mut Vec<u8>, number: u8, length: usize) {
    out.push(number << 3 | 2);
    push_varint(out, length as u64);
}

fn push_number(out: &mut Vec<u8>, number: u8, value: u64) {
    out.push(number << 3);
    push_varint(out, value);
}

fn push_fixed(out: &mut Vec<u8>, number: u8, value: u64) {
    out.push(number << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &[u8]) -> SpanHead<'_> {
        SpanHead {
            trace_id: [1; 16],
            span_id: [2; 8],
            parent_id: None,
            state: b"",
            name,
            kind: SpanKind::Server,
            start_ns: 1,
            end_ns: 2,
        }
    }

    /// Returns the nested message at this path of field numbers: the first of each.
    fn at<'m>(message: &'m [u8], path: &[u64]) -> &'m [u8] {
        path.iter().fold(message, |message, wanted| {
            let mut found = fields(message).map(|field| field.expect("it is valid"));
            let value = found.find(|(number, _)| number == wanted).expect("the field exists").1;
            value.bytes().expect("it is a message")
        })
    }

    #[test]
    fn a_request_has_the_bytes_of_protobuf() {
        let mut batch = Batch::default();
        batch.add(&head(b"/a"), |span| span.number("n", 300));
        let resource = Resource::new([("service.name", "s")].into_iter());
        let request = resource.request(0, &batch);
        let span = at(&request, &[1, 2, 2]);
        let mut expected = vec![0x0a, 16];
        expected.extend([1; 16]);
        expected.extend([0x12, 8, 2, 2, 2, 2, 2, 2, 2, 2, 0x2a, 2, b'/', b'a', 0x30, 2]);
        expected.extend([0x39, 1, 0, 0, 0, 0, 0, 0, 0, 0x41, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0x4a, 8, 0x0a, 1, b'n', 0x12, 3, 0x18, 0xac, 2]);
        assert_eq!(span, expected);
        assert_eq!(at(&request, &[1, 1, 1, 1]), b"service.name");
        assert_eq!(at(&request, &[1, 1, 1, 2, 1]), b"s");
        assert_eq!(at(&request, &[1, 2, 1, 1]), b"ringroad");
        let framed = resource.request(5, &batch);
        assert_eq!((&framed[..5], &framed[5..]), (&[0; 5][..], &request[..]));
    }

    #[test]
    fn lengths_above_127_have_several_bytes() {
        let mut batch = Batch::default();
        let text = "x".repeat(20_000);
        batch.add(&head(b""), |span| {
            span.text("long", text.as_bytes());
            span.texts("array", b"one");
            span.error("why");
        });
        let request = Resource::default().request(0, &batch);
        let span = at(&request, &[1, 2, 2]);
        assert_eq!(at(span, &[9, 2, 1]).len(), ATTRIBUTE_BYTES_MAX);
        assert_eq!(at(span, &[15, 2]), b"why");
        let array = fields(span).map_while(|field| field).filter(|(number, _)| *number == 9).nth(1);
        assert_eq!(at(array.and_then(|(_, value)| value.bytes()).expect("it exists"), &[2, 5, 1, 1]), b"one");
        assert!(batch.is_full(1) && !batch.is_full(2));
    }

    #[test]
    fn text_that_is_no_utf8_is_replaced() {
        let mut batch = Batch::default();
        let long = "é".repeat(ATTRIBUTE_BYTES_MAX);
        batch.add(&head(b"a\xff"), |span| span.text("k", &long.as_bytes()[1..]));
        let request = Resource::default().request(0, &batch);
        let span = at(&request, &[1, 2, 2]);
        assert_eq!(at(span, &[5]), "a\u{fffd}".as_bytes());
        let value = std::str::from_utf8(at(span, &[9, 2, 1])).expect("it is text");
        assert!(value.starts_with('\u{fffd}') && value.ends_with('é'), "not cut within a character");
    }

    #[test]
    fn a_batch_has_a_maximum_size() {
        let mut batch = Batch::default();
        let text = "x".repeat(ATTRIBUTE_BYTES_MAX);
        while !batch.is_full(usize::MAX) {
            batch.add(&head(b""), |span| span.text("k", text.as_bytes()));
        }
        assert!((250..=256).contains(&batch.count()), "{}", batch.count());
    }

    #[test]
    fn responses_have_the_number_of_rejected_spans() {
        let partial = |spans: u64, message: &str| Some(Rejected { spans, message: message.to_owned() });
        assert_eq!(rejected(b""), partial(0, ""));
        assert_eq!(rejected(&[0x0a, 0]), partial(0, ""));
        assert_eq!(rejected(&[0x0a, 7, 0x08, 0xac, 2, 0x12, 2, b'n', b'o']), partial(300, "no"));
        // Unknown fields of every type are skipped.
        let unknown = [&[0x10, 1, 0x19][..], &[0; 8], &[0x25], &[0; 4], &[0x0a, 2, 0x08, 1]].concat();
        assert_eq!(rejected(&unknown), partial(1, ""));
        for invalid in [&[0x0a][..], &[0x0a, 1], &[0x08, 0x80], &[0x0b], &[0x0a, 2, 0x12, 9], &[0xff; 11]] {
            assert_eq!(rejected(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn a_status_may_have_a_retry_delay() {
        let kind = b"type.googleapis.com/google.rpc.RetryInfo";
        let status = |kind: &[u8], duration: &[u8]| {
            let mut out = Vec::new();
            push_number(&mut out, 1, 8);
            nested(&mut out, 3, |out| {
                push_bytes(out, 1, kind);
                nested(out, 2, |out| push_bytes(out, 1, duration));
            });
            out
        };
        assert_eq!(retry_delay_ms(&status(kind, &[8, 2, 0x10, 0x80, 0x89, 0x7a])), Some(2002));
        assert_eq!(retry_delay_ms(&status(kind, &[])), Some(0));
        assert_eq!(retry_delay_ms(&status(b"x/google.rpc.DebugInfo", &[8, 2])), None);
        assert_eq!(retry_delay_ms(b""), None);
        let negative = [&[8][..], &[0xff; 9], &[1]].concat();
        assert_eq!(retry_delay_ms(&status(kind, &negative)), None);
        for cut in 0..60 {
            let whole = status(kind, &[8, 2]);
            let _ = retry_delay_ms(&whole[..cut.min(whole.len())]);
        }
    }
}
