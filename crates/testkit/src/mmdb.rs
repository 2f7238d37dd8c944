//! Writes MaxMind databases (MaxMind DB file format 2.0), for tests of their reader.

use std::net::IpAddr;

/// A value of a record.
#[derive(Clone, Debug)]
pub enum Value {
    /// UTF-8 text.
    Text(String),
    /// A byte string.
    Bytes(Vec<u8>),
    /// IEEE 754, 64 bits.
    Double(f64),
    /// IEEE 754, 32 bits.
    Float(f32),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 32 bits.
    I32(i32),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// An unsigned integer of 128 bits.
    U128(u128),
    /// A boolean.
    Bool(bool),
    /// Values in order.
    Array(Vec<Value>),
    /// Values by name.
    Map(Vec<(String, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// Returns a map of these values.
pub fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(pairs.map(|(name, value)| (name.to_owned(), value)).into())
}

impl Value {
    fn encode(&self, out: &mut Vec<u8>) {
        // Leading zero bytes of numbers are omitted, as MaxMind does.
        let number = |out: &mut Vec<u8>, kind: u8, bytes: &[u8]| {
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            control(out, kind, bytes.len() - zeros);
            out.extend_from_slice(&bytes[zeros..]);
        };
        let bytes = |out: &mut Vec<u8>, kind: u8, bytes: &[u8]| {
            control(out, kind, bytes.len());
            out.extend_from_slice(bytes);
        };
        match self {
            Value::Text(text) => bytes(out, 2, text.as_bytes()),
            Value::Double(value) => bytes(out, 3, &value.to_be_bytes()),
            Value::Bytes(value) => bytes(out, 4, value),
            Value::U16(value) => number(out, 5, &value.to_be_bytes()),
            Value::U32(value) => number(out, 6, &value.to_be_bytes()),
            Value::Map(pairs) => {
                control(out, 7, pairs.len());
                for (name, value) in pairs {
                    bytes(out, 2, name.as_bytes());
                    value.encode(out);
                }
            }
            Value::I32(value) => bytes(out, 8, &value.to_be_bytes()),
            Value::U64(value) => number(out, 9, &value.to_be_bytes()),
            Value::U128(value) => number(out, 10, &value.to_be_bytes()),
            Value::Array(values) => {
                control(out, 11, values.len());
                values.iter().for_each(|value| value.encode(out));
            }
            Value::Bool(value) => control(out, 14, (*value).into()),
            Value::Float(value) => bytes(out, 15, &value.to_be_bytes()),
        }
    }
}

/// Appends the control byte of a value: its type and size, with extension bytes.
fn control(out: &mut Vec<u8>, kind: u8, size: usize) {
    let (bits, rest): (u8, Vec<u8>) = match size {
        0..29 => (size as u8, Vec::new()),
        29..285 => (29, vec![(size - 29) as u8]),
        285..65_821 => (30, ((size - 285) as u16).to_be_bytes().into()),
        _ => (31, ((size - 65_821) as u32).to_be_bytes()[1..].into()),
    };
    match kind {
        1..=7 => out.push(kind << 5 | bits),
        _ => out.extend([bits, kind - 7]),
    }
    out.extend(rest);
}

/// The child of a node for one bit of an address.
#[derive(Clone, Copy, Debug)]
enum Next {
    Nothing,
    Node(usize),
    Data(usize),
}

/// An IPv6 database, in which IPv4 addresses have 96 leading zero bits.
#[derive(Clone, Debug)]
pub struct Mmdb {
    nodes: Vec<[Next; 2]>,
    data: Vec<u8>,
    build_epoch: u64,
}

impl Mmdb {
    /// Creates a database without records, with this build time (seconds since 1970).
    pub fn new(build_epoch: u64) -> Mmdb {
        Mmdb { nodes: vec![[Next::Nothing; 2]], data: Vec::new(), build_epoch }
    }

    /// Adds the record of a network; a wider network must be added before a narrower one within it.
    #[must_use]
    pub fn with(mut self, network: &str, value: &Value) -> Mmdb {
        let parts = network.split_once('/');
        let parts = parts.and_then(|(ip, bits)| Some((ip.parse().ok()?, bits.parse::<u32>().ok()?)));
        let Some((ip, bits)) = parts else { panic!("{network} is an address with a number of bits") };
        let (address, bits) = match ip {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()), bits + 96),
            IpAddr::V6(ip) => (ip.to_bits(), bits),
        };
        let data = self.data.len();
        value.encode(&mut self.data);
        let mut node = 0;
        for depth in 0..bits {
            let side = (address >> (127 - depth) & 1) as usize;
            if depth + 1 == bits {
                self.nodes[node][side] = Next::Data(data);
                break;
            }
            node = match self.nodes[node][side] {
                Next::Node(next) => next,
                // The wider network's record applies to both halves until this network replaces its part.
                outer => {
                    self.nodes.push([outer; 2]);
                    self.nodes[node][side] = Next::Node(self.nodes.len() - 1);
                    self.nodes.len() - 1
                }
            };
        }
        self
    }

    /// Returns the content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let count = self.nodes.len();
        let mut out = Vec::new();
        for next in self.nodes.iter().flatten() {
            let record = match next {
                Next::Nothing => count,
                Next::Node(node) => *node,
                Next::Data(offset) => count + 16 + offset,
            };
            out.extend_from_slice(&(record as u32).to_be_bytes()[1..]);
        }
        out.extend([0; 16]);
        out.extend_from_slice(&self.data);
        out.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
        let metadata = map([
            ("binary_format_major_version", Value::U16(2)),
            ("binary_format_minor_version", Value::U16(0)),
            ("build_epoch", Value::U64(self.build_epoch)),
            ("database_type", "Test".into()),
            ("description", map([("en", "A test".into())])),
            ("ip_version", Value::U16(6)),
            ("languages", Value::Array(vec!["en".into()])),
            ("node_count", Value::U32(count as u32)),
            ("record_size", Value::U16(24)),
        ]);
        metadata.encode(&mut out);
        out
    }
}
