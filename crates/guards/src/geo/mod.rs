//! `geo`: a variable whose value depends on the client's address or on another address.
//!
//! `table` has the lookup table.

mod table;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use conf::{Args, Contexts, Error, Spec, Statement};

use crate::realip::behind_proxies;
use crate::{Declaration, Directive, Module};
use exchange::module::compute;
use exchange::request::{Address, OnConnection};
use site::config::{Cx, Section};
use site::network::Network;
use site::template::Template;
use site::var_ref::VarRef;
use site::variables::Compute;
use table::{Added, Networks, Ranges, Stretches, ValueIndex};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_geo") });

/// The same directive in `stream`, without `proxy` and `proxy_recursive`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_geo")
});

/// The value is computed at its first use, so an unused `geo` costs a request nothing.
const DIRECTIVES: &[Directive] = &[Directive::http(
    Spec::new(
        "http_geo",
        "geo",
        Contexts::HTTP,
        Args::Between(1, 2),
        "Defines a variable by the networks or address ranges that contain the client's address or another address.",
    )
    .raw()
    .many(),
    add_geo,
)];

/// One `geo` block.
#[derive(Debug)]
struct Geo {
    /// The variable with the address; without it, the client's address is used.
    source: Option<VarRef>,
    table: Table,
    /// The values as written: as in nginx they have no variables.
    values: Vec<Box<str>>,
    /// Trusted proxies, whose `X-Forwarded-For` is used.
    proxies: Vec<Network>,
    /// Whether the search for the client continues over further trusted proxies.
    recursive: bool,
    /// Whether the value is computed at each use.
    volatile: bool,
}

/// The two forms of rows, which cannot be mixed.
#[derive(Debug)]
enum Table {
    /// Networks: the table of IPv4 addresses, and that of IPv6 addresses.
    Networks(Stretches<u32>, Stretches<u128>),
    /// Ranges of IPv4 addresses only.
    Ranges(Stretches<u32>),
}

/// The address that is looked up, as in nginx, if the client or the variable has no usable address. A row for
/// 255.255.255.255 therefore also matches clients of UNIX-domain sockets.
const NO_ADDRESS: u32 = u32::MAX;

/// The index of the empty value, used for addresses in no row.
const EMPTY: ValueIndex = 0;

/// Parses a `geo` block: an optional variable with the address, then the name of the variable to define.
fn add_geo(cx: &mut Cx<'_>) -> Result<(), Error> {
    let statement = cx.statement;
    let (source, name) = match statement.args.as_slice() {
        [source, name] => {
            let source = cx.variable_name(&source.text)?;
            (Some(cx.http.registry.reference_named(source, statement)), name.text.as_str())
        }
        _ => (None, cx.arg(0)),
    };
    let name = cx.variable_name(name)?;
    // Before the rows, so that an invalid name is reported with the line of the block.
    let slot = cx.http.registry.define_computed(name, statement)?;
    let mut reader = Reader::new();
    for row in statement.rows() {
        let row = row?;
        reader.row(row, &mut cx.at(row))?;
    }
    let geo = reader.finish(source);
    let values = geo.values.iter().map(|value| Template::text(value));
    cx.http.registry.add_values(&VarRef::Slot(slot), values);
    compute(cx.http, slot, geo);
    Ok(())
}

/// A `geo` block while its rows are parsed.
#[derive(Default)]
struct Reader<'a> {
    /// The values: the empty one, then in the order of first use.
    values: Vec<Box<str>>,
    /// Indices of values by their text: tables are long, but have few different values.
    known: HashMap<&'a str, ValueIndex>,
    /// IPv4 networks, with addresses in the low bits.
    v4: Networks,
    /// IPv6 networks.
    v6: Networks,
    /// Whether a row of networks was parsed, which excludes `ranges`.
    has_networks: bool,
    /// Set by `ranges`, which selects the form of the rows after it.
    ranges: Option<Ranges>,
    /// `default` of ranges; the default of networks is stored as a network.
    default: Option<ValueIndex>,
    proxies: Vec<Network>,
    recursive: bool,
    volatile: bool,
}

impl<'a> Reader<'a> {
    /// Returns a reader before the first row.
    fn new() -> Reader<'a> {
        Reader { values: vec!["".into()], known: HashMap::from([("", EMPTY)]), ..Reader::default() }
    }

    /// Parses a row. Keywords without a value are switches. Of the rows with a value only `proxy` does not change the table.
    fn row(&mut self, row: &'a Statement, cx: &mut Cx<'_>) -> Result<(), Error> {
        let key = row.name.text.as_str();
        // Sessions of `stream` have no fields with addresses.
        let is_http = cx.http.section == Section::Http;
        match (key, row.args.as_slice()) {
            ("ranges", []) if self.has_networks => {
                return Err(
                    cx.error("the \"ranges\" directive must be the first directive inside \"geo\" block")
                );
            }
            ("ranges", []) => drop(self.ranges.get_or_insert_default()),
            ("proxy_recursive", []) if is_http => self.recursive = true,
            ("volatile", []) => self.volatile = true,
            // The value of `proxy` is a network even with `ranges`, because `proxy` does not change the table.
            ("proxy", [network]) if is_http => self.proxies.push(network_of(&network.text, cx)?),
            // As in nginx, the preceding rows determine the form of a row.
            (_, [value]) if self.ranges.is_some() => return self.range_row(key, &value.text, cx),
            (_, [value]) => return self.network_row(key, &value.text, cx),
            _ => return Err(cx.error("invalid number of the geo parameters")),
        }
        Ok(())
    }

    /// Parses `default`, `delete` or a network, with its argument.
    fn network_row(&mut self, key: &str, value: &'a str, cx: &mut Cx<'_>) -> Result<(), Error> {
        self.has_networks = true;
        if key == "default" {
            let value = self.value(value);
            // Stored as the networks of all addresses, which can also be written, and deleted, explicitly.
            self.insert((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), key, value, cx);
            self.insert((IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0), key, value, cx);
            return Ok(());
        }
        if key == "delete" {
            let removed = match network_of(value, cx)? {
                Network::V4(start, bits) => self.v4.remove(start.to_bits().into(), bits),
                Network::V6(start, bits) => self.v6.remove(start.to_bits(), bits),
                Network::Unix => false,
            };
            // A typo in the network would leave the intended row in place.
            if !removed {
                cx.warn(format_args!("no network \"{value}\" to delete"));
            }
            return Ok(());
        }
        let network = match network_of(key, cx)? {
            Network::V4(start, bits) => (IpAddr::V4(start), bits),
            Network::V6(start, bits) => (IpAddr::V6(start), bits),
            Network::Unix => return Err(invalid_network(key, cx)),
        };
        let value = self.value(value);
        self.insert(network, key, value, cx);
        Ok(())
    }

    /// Adds a network; of several rows for one network the last one counts.
    fn insert(&mut self, (start, bits): (IpAddr, u32), key: &str, value: ValueIndex, cx: &mut Cx<'_>) {
        let before = match start {
            IpAddr::V4(start) => self.v4.insert(start.to_bits().into(), bits, value),
            IpAddr::V6(start) => self.v6.insert(start.to_bits(), bits, value),
        };
        // Large files are merged from several sources, so this is no error.
        if let Some(before) = before {
            let (value, before) = (&self.values[value as usize], &self.values[before as usize]);
            cx.warn(format_args!("duplicate network \"{key}\", value: \"{value}\", old value: \"{before}\""));
        }
    }

    /// Parses `default`, `delete` or a range, with its argument.
    fn range_row(&mut self, key: &str, value: &'a str, cx: &mut Cx<'_>) -> Result<(), Error> {
        if key == "default" {
            let index = self.value(value);
            if let Some(before) = self.default.replace(index) {
                let before = &self.values[before as usize];
                cx.warn(format_args!(
                    "duplicate default geo range value: \"{value}\", old value: \"{before}\""
                ));
            }
            return Ok(());
        }
        let text = if key == "delete" { value } else { key };
        let range = range_of(text).ok_or_else(|| cx.error(format_args!("invalid range \"{text}\"")));
        let (first, last) = range?;
        if key == "delete" {
            if !self.ranges.get_or_insert_default().remove(first, last) {
                cx.warn(format_args!("no address range \"{text}\" to delete"));
            }
            return Ok(());
        }
        let index = self.value(value);
        match self.ranges.get_or_insert_default().insert(first, last, index) {
            Added::Done(None) => Ok(()),
            Added::Done(Some(before)) => {
                let before = &self.values[before as usize];
                cx.warn(format_args!(
                    "duplicate range \"{text}\", value: \"{value}\", old value: \"{before}\""
                ));
                Ok(())
            }
            // The value of an address in both ranges would be undefined.
            Added::Overlaps(first, last) => {
                Err(cx.error(format_args!("range \"{text}\" overlaps \"{first}-{last}\"")))
            }
        }
    }

    /// Returns the index of a value.
    fn value(&mut self, text: &'a str) -> ValueIndex {
        let next = self.values.len() as ValueIndex;
        let index = *self.known.entry(text).or_insert(next);
        if index == next {
            self.values.push(text.into());
        }
        index
    }

    /// Converts the rows to the lookup table.
    fn finish(self, source: Option<VarRef>) -> Geo {
        let table = match self.ranges {
            Some(ranges) => Table::Ranges(ranges.flatten(self.default.unwrap_or(EMPTY))),
            None => Table::Networks(self.v4.flatten(32, EMPTY).into(), self.v6.flatten(128, EMPTY)),
        };
        let Reader { values, proxies, recursive, volatile, .. } = self;
        Geo { source, table, values, proxies, recursive, volatile }
    }
}

/// Parses a network of IP addresses; `unix:` is invalid here.
fn network_of(text: &str, cx: &mut Cx<'_>) -> Result<Network, Error> {
    // nginx uses the last address as "none", and accepts it only without a mask.
    if text == "unix:" || text.starts_with("255.255.255.255/") {
        return Err(invalid_network(text, cx));
    }
    Network::read(text, cx).ok_or_else(|| invalid_network(text, cx))
}

/// Returns nginx's error for text that is no network.
fn invalid_network(text: &str, cx: &Cx<'_>) -> Error {
    cx.error(format_args!("invalid network \"{text}\""))
}

/// Parses `10.0.0.1-10.0.0.9`; the last IPv4 address is invalid here too.
fn range_of(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-')?;
    // nginx accepts only dotted decimals here.
    let address = |text: &str| Some(text.parse::<Ipv4Addr>().ok()?.to_bits());
    let (first, last) = (address(first)?, address(last)?);
    (first <= last && last != NO_ADDRESS).then_some((first, last))
}

impl Geo {
    /// Returns the effective address: the value of the variable, or the client's address, or the address that a trusted
    /// proxy reports.
    fn address<R: OnConnection>(&self, request: &R) -> Option<Address> {
        let start = match &self.source {
            None => request.client_address().clone(),
            Some(variable) => {
                let mut text = Vec::new();
                let found = variable.value(request, &mut text);
                let ip: IpAddr = std::str::from_utf8(&text).ok().filter(|_| found)?.parse().ok()?;
                Address::Inet(SocketAddr::new(ip, 0))
            }
        };
        Some(behind_proxies(request, start, &self.proxies, self.recursive))
    }
}

impl<R: OnConnection> Compute<R> for Geo {
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool {
        let ip = match self.address(request) {
            // An IPv4-mapped client address is looked up as IPv4.
            Some(Address::Inet(address)) => address.ip().to_canonical(),
            Some(Address::Unix(_)) | None => IpAddr::V4(NO_ADDRESS.into()),
        };
        // Ranges contain only IPv4 addresses.
        let index = match (&self.table, ip) {
            (Table::Networks(v4, _), IpAddr::V4(ip)) => v4.find(ip.to_bits()),
            (Table::Networks(_, v6), IpAddr::V6(ip)) => v6.find(ip.to_bits()),
            (Table::Ranges(v4), IpAddr::V4(ip)) => v4.find(ip.to_bits()),
            (Table::Ranges(v4), IpAddr::V6(_)) => v4.find(NO_ADDRESS),
        };
        debug_assert!((index as usize) < self.values.len(), "tables have only indices of values");
        out.extend_from_slice(self.values[index as usize].as_bytes());
        true
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, load_with, loaded, warnings};

    fn geo(rows: &str) -> String {
        format!("http {{ geo $g {{\n{rows}\n}} }}")
    }

    #[test]
    fn wrong_rows_are_refused_with_their_line() {
        for (rows, expected) in [
            ("a b c;", "invalid number of the geo parameters"),
            ("a;", "invalid number of the geo parameters"),
            ("x a;", "invalid network \"x\""),
            ("1.2.3.4/33 a;", "invalid network \"1.2.3.4/33\""),
            ("1.2.3/8 a;", "invalid network \"1.2.3/8\""),
            ("255.255.255.255 a; 255.255.255.255/32 b;", "invalid network \"255.255.255.255/32\""),
            ("unix: a;", "invalid network \"unix:\""),
            ("::1/129 a;", "invalid network \"::1/129\""),
            ("delete x;", "invalid network \"x\""),
            ("proxy x;", "invalid network \"x\""),
            ("proxy unix:;", "invalid network \"unix:\""),
            (
                "default a; ranges;",
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            ),
            ("ranges; x a;", "invalid range \"x\""),
            ("ranges; 1.0.0.5 a;", "invalid range \"1.0.0.5\""),
            ("ranges; 1.0.0.5-1.0.0.1 a;", "invalid range \"1.0.0.5-1.0.0.1\""),
            ("ranges; 1.0.0.0-255.255.255.255 a;", "invalid range \"1.0.0.0-255.255.255.255\""),
            ("ranges; ::1-::2 a;", "invalid range \"::1-::2\""),
            ("ranges; delete x;", "invalid range \"x\""),
            (
                "ranges; 1.0.0.0-1.0.0.5 a; 1.0.0.3-1.0.0.9 b;",
                "range \"1.0.0.3-1.0.0.9\" overlaps \"1.0.0.0-1.0.0.5\"",
            ),
            (
                "ranges; 1.0.0.3-1.0.0.5 a; 1.0.0.0-1.0.0.9 b;",
                "range \"1.0.0.0-1.0.0.9\" overlaps \"1.0.0.3-1.0.0.5\"",
            ),
            ("a { }", "unexpected \"{\""),
        ] {
            assert_eq!(error(&geo(rows)), format!("{expected} in /conf/nginx.conf:2"), "{rows}");
        }
        for (head, expected) in [
            ("g", "invalid variable name \"g\""),
            ("g $g", "invalid variable name \"g\""),
            ("$uri g", "invalid variable name \"g\""),
            ("$uri $uri", "the duplicate \"uri\" variable"),
            ("$nonexist $g", "unknown \"nonexist\" variable"),
        ] {
            let found = error(&format!("http {{\ngeo {head} {{ }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{head}");
        }
    }

    #[test]
    fn conflicts_are_reported() {
        for (rows, expected) in [
            ("1.0.0.1/8 a;", "low address bits of 1.0.0.1/8 are meaningless"),
            ("1.0.0.0/8 a; 1.0.0.0/8 b;", "duplicate network \"1.0.0.0/8\", value: \"b\", old value: \"a\""),
            ("::1 a; ::1/128 a;", "duplicate network \"::1/128\", value: \"a\", old value: \"a\""),
            ("default a; 0.0.0.0/0 b;", "duplicate network \"0.0.0.0/0\", value: \"b\", old value: \"a\""),
            ("1.0.0.0/8 a; delete 1.0.0.0/9;", "no network \"1.0.0.0/9\" to delete"),
            (
                "ranges; 1.0.0.0-1.1.255.255 a; 1.0.0.0-1.1.255.255 b;",
                "duplicate range \"1.0.0.0-1.1.255.255\", value: \"b\", old value: \"a\"",
            ),
            ("ranges; default a; default b;", "duplicate default geo range value: \"b\", old value: \"a\""),
            ("ranges; delete 1.0.0.0-1.0.0.5;", "no address range \"1.0.0.0-1.0.0.5\" to delete"),
        ] {
            assert_eq!(warnings(&geo(rows)), [format!("{expected} in /conf/nginx.conf:2")], "{rows}");
        }
        assert_eq!(warnings(&geo("proxy 10.0.0.0/8; ranges; proxy_recursive; volatile;")), [""; 0]);
        assert_eq!(warnings(&geo("1.0.0.0/8 a; delete 1.0.0.0/8; 1.0.0.0/8 b;")), [""; 0]);
    }

    #[test]
    fn large_tables_are_read_from_files() {
        let rows: String = (0..100_000_u32)
            .map(|row| format!("{}/24 value{};\n", std::net::Ipv4Addr::from_bits(row << 8), row % 7))
            .collect();
        load_with("http { geo $g { include rows; } }", &[("/conf/rows", &rows)]).expect("it is right");
        let rows = format!("{rows}x y;\n");
        let found = load_with("http { geo $g { include rows; } }", &[("/conf/rows", &rows)]).map(|_| ());
        let found = found.expect_err("it is wrong").to_string();
        assert_eq!(found, "invalid network \"x\" in /conf/rows:100001");
        loaded("geo $arg_a $a { } geo $b { default $notread; }");
    }
}
