//! Decodes the export requests of OTLP, independently of the server's encoder. Panics if a message is not valid.

use std::collections::BTreeMap;

/// A decoded span.
#[derive(Clone, Debug, Default)]
pub(super) struct Span {
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) state: String,
    pub(super) name: String,
    pub(super) kind: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Texts, numbers in decimal, arrays in brackets.
    pub(super) attributes: BTreeMap<String, String>,
    /// Code and message of the status.
    pub(super) status: (u64, String),
    /// Attributes of the process.
    pub(super) resource: BTreeMap<String, String>,
}

impl Span {
    pub(super) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// The value of a field.
enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

impl<'m> Value<'m> {
    fn bytes(&self) -> &'m [u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            Value::Number(number) => panic!("the number {number} is no message"),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Value::Number(number) => *number,
            Value::Bytes(bytes) => u64::from_le_bytes((*bytes).try_into().expect("eight bytes")),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("a string is UTF-8")
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().expect("the number continues");
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
    }
    panic!("a number has more than 64 bits");
}

fn fields(message: &[u8]) -> Vec<(u64, Value<'_>)> {
    let (mut rest, mut fields) = (message, Vec::new());
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, Value::Number(varint(&mut rest))));
                continue;
            }
            1 => 8,
            2 => varint(&mut rest) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (bytes, after) = rest.split_at(length);
        rest = after;
        fields.push((key >> 3, Value::Bytes(bytes)));
    }
    fields
}

/// Returns the spans of a request.
pub(super) fn spans(request: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (_, resource_spans) in fields(request) {
        let mut resource = BTreeMap::new();
        for (number, value) in fields(resource_spans.bytes()) {
            match number {
                1 => resource.extend(fields(value.bytes()).iter().map(|(_, value)| attribute(value.bytes()))),
                2 => {
                    let in_scope = fields(value.bytes()).into_iter().filter(|(number, _)| *number == 2);
                    spans.extend(in_scope.map(|(_, value)| span(value.bytes(), &resource)));
                }
                _ => {}
            }
        }
    }
    spans
}

fn span(message: &[u8], resource: &BTreeMap<String, String>) -> Span {
    let mut span = Span { resource: resource.clone(), ..Span::default() };
    for (number, value) in fields(message) {
        match number {
            1 => span.trace = value.hex(),
            2 => span.id = value.hex(),
            3 => span.state = value.text(),
            4 => span.parent = value.hex(),
            5 => span.name = value.text(),
            6 => span.kind = value.number(),
            7 => span.start = value.number(),
            8 => span.end = value.number(),
            9 => span.attributes.extend([attribute(value.bytes())]),
            15 => {
                for (number, value) in fields(value.bytes()) {
                    match number {
                        2 => span.status.1 = value.text(),
                        3 => span.status.0 = value.number(),
                        other => panic!("field {other} of a status"),
                    }
                }
            }
            other => panic!("field {other} of a span"),
        }
    }
    assert!(span.trace.len() == 32 && span.id.len() == 16 && span.start <= span.end, "{span:?}");
    span
}

fn attribute(message: &[u8]) -> (String, String) {
    let (mut name, mut text) = (String::new(), String::new());
    for (number, value) in fields(message) {
        match number {
            1 => name = value.text(),
            2 => text = any(value.bytes()),
            other => panic!("field {other} of an attribute"),
        }
    }
    (name, text)
}

fn any(message: &[u8]) -> String {
    match fields(message).as_slice() {
        [(1, text)] => text.text(),
        [(3, number)] => number.number().to_string(),
        [(5, array)] => {
            let values: Vec<_> = fields(array.bytes()).iter().map(|(_, value)| any(value.bytes())).collect();
            format!("[{}]", values.join(","))
        }
        _ => panic!("the type of a value"),
    }
}
