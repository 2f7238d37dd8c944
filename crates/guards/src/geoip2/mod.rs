//! `geoip2` (module ngx_http_geoip2): variables with values from a MaxMind database, looked up by address.
//!
//! `database` keeps a file in memory and finds values in it; `reload` loads a file again after a change.

mod database;
mod reload;

use std::net::IpAddr;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, Statement, value};

use crate::realip::behind_proxies;
use crate::{Declaration, Directive, Module};
use database::{BYTES_MAX, Bytes, Database, Step};
use exchange::module::{ThreadHooks, compute};
use exchange::request::{Address, OnConnection};
use site::config::{Cx, HttpType};
use site::network::Network;
use site::template::Template;
use site::uses::FileUse;
use site::variables::Compute;

/// The module.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks { configured: reload::tend, ..ThreadHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        http: &[HttpType::of::<Conf>()],
        ..Declaration::named("http_geoip2")
    })
};

/// The same directive in `stream`, without `geoip2_proxy` and `geoip2_proxy_recursive`.
pub(crate) static STREAM: Module = Module {
    thread: ThreadHooks { configured: reload::tend, ..ThreadHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        twin: Some(&["geoip2_proxy", "geoip2_proxy_recursive"]),
        http: &[HttpType::of::<Conf>()],
        ..Declaration::named("stream_geoip2")
    })
};

/// Returns the row of a directive, which is allowed in `http`.
const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_geoip2", name, Contexts::HTTP, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::http(
        spec("geoip2", Args::Exactly(1), "Defines variables from a MaxMind database (`.mmdb`).").raw().many(),
        add_database,
    ),
    // No proxy is trusted by default, because clients can send any field.
    Directive::http(
        spec(
            "geoip2_proxy",
            Args::Exactly(1),
            "Uses the address in `X-Forwarded-For` if the connection is from this address or network.",
        )
        .many(),
        |cx| {
            let text = cx.arg(0);
            let network = Network::read(text, cx);
            let network = network.ok_or_else(|| cx.error(format_args!("invalid network \"{text}\"")))?;
            cx.http.make_mut::<Conf>().proxies.push(network);
            Ok(())
        },
    ),
    Directive::http(
        spec(
            "geoip2_proxy_recursive",
            Args::Flag,
            "Uses the last address of `X-Forwarded-For` that no `geoip2_proxy` contains.",
        )
        .default("off"),
        |cx| {
            let mut recursive = false;
            cx.flag(&mut recursive)?;
            cx.http.make_mut::<Conf>().recursive = recursive;
            Ok(())
        },
    ),
];

/// The databases of a configuration, and the proxies trusted to report a client's address.
#[derive(Debug, Default)]
struct Conf {
    databases: Vec<Arc<Database>>,
    proxies: Vec<Network>,
    recursive: bool,
}

/// Parses a `geoip2` block: loads the file, then parses the rows.
fn add_database(cx: &mut Cx<'_>) -> Result<(), Error> {
    let path = cx.path(cx.arg(0), FileUse::Start);
    let shown = path.display();
    let databases = &cx.http.make_mut::<Conf>().databases;
    if databases.iter().any(|known| known.path == path) {
        return Err(cx.error(format_args!("Duplicate GeoIP2 mmdb - {shown}")));
    }
    let others: usize = databases.iter().map(|known| known.len()).sum();
    let bytes = cx.read_data(&path)?;
    if bytes.len().saturating_add(others) > BYTES_MAX {
        let mib = BYTES_MAX >> 20;
        return Err(cx.error(format_args!(
            "with \"{shown}\" the geoip2 databases exceed the limit of {mib} MiB in all"
        )));
    }
    let reader = database::read(Bytes::of(bytes))
        .map_err(|error| cx.error(format_args!("\"{shown}\" is not a MaxMind database: {error}")))?;
    let (mut interval, mut variables) = (0, Vec::new());
    for row in cx.statement.rows() {
        let row = row?;
        match read_row(row, &mut cx.at(row))? {
            Row::Reload(seconds) => interval = seconds,
            Row::Variable(slot, variable) => variables.push((slot, variable)),
        }
    }
    if interval > 0 {
        cx.path(cx.arg(0), FileUse::Read);
    }
    let database = Arc::new(Database::new(path, reader, interval));
    for (slot, source) in variables {
        compute(cx.http, slot, Variable { database: Arc::clone(&database), source });
    }
    cx.http.make_mut::<Conf>().databases.push(database);
    Ok(())
}

/// One row of a block.
enum Row {
    /// `auto_reload`: seconds between two checks of the file; 0 means never.
    Reload(u64),
    /// A variable's slot, and the source of its value.
    Variable(u32, ValueSource),
}

/// The source of a variable's value.
#[derive(Debug)]
enum ValueSource {
    /// From the record of an address.
    Record(Record),
    /// `metadata`, about the database itself.
    Metadata(Metadata),
}

/// A value in the record of an address.
#[derive(Debug)]
struct Record {
    /// `source=`; without it, the client's address is used.
    source: Option<Template>,
    /// `default=`: the value if the record has none.
    default: Option<Box<str>>,
    path: Box<[Step]>,
}

/// Metadata of a database.
#[derive(Clone, Copy, Debug)]
enum Metadata {
    /// Time at which it was built, in seconds since 1970.
    BuildEpoch,
    /// Time at which its file was last checked.
    LastCheck,
    /// Time at which it was last replaced.
    LastChange,
    /// An unknown name, which has no value, as in the nginx module.
    Nothing,
}

const METADATA: [(&str, Metadata); 3] = [
    ("build_epoch", Metadata::BuildEpoch),
    ("last_check", Metadata::LastCheck),
    ("last_change", Metadata::LastChange),
];

/// Parses a row of the block: `auto_reload`, a variable from a record, or a variable from the metadata.
fn read_row(row: &Statement, cx: &mut Cx<'_>) -> Result<Row, Error> {
    let (key, args): (&str, Vec<&str>) = (&row.name.text, row.texts().collect());
    match (key, args.as_slice()) {
        ("auto_reload", [interval]) => {
            let seconds = value::seconds(interval);
            let invalid = |_| cx.error(format_args!("invalid interval for auto_reload \"{interval}\""));
            return seconds.map(Row::Reload).map_err(invalid);
        }
        ("auto_reload", _) => return Err(cx.error("invalid number of arguments for auto_reload")),
        _ if !key.starts_with('$') => return Err(cx.error(format_args!("invalid setting \"{key}\""))),
        _ => {}
    }
    let source = match args.as_slice() {
        ["metadata", name] => {
            let known = METADATA.iter().find(|(known, _)| known == name).map(|(_, metadata)| *metadata);
            if known.is_none() {
                cx.warn(format_args!(
                    "\"{key}\" has no value: metadata is \"build_epoch\", \"last_check\" or \"last_change\", not \"{name}\""
                ));
            }
            ValueSource::Metadata(known.unwrap_or(Metadata::Nothing))
        }
        ["metadata", ..] => return Err(cx.error("invalid number of arguments for metadata")),
        args => ValueSource::Record(read_record(key, args, cx)?),
    };
    let slot = cx.http.registry.define_computed(cx.variable_name(key)?, row)?;
    Ok(Row::Variable(slot, source))
}

/// Parses a record's row. As in the nginx module, settings with an equals sign come first; the path follows.
fn read_record(key: &str, args: &[&str], cx: &mut Cx<'_>) -> Result<Record, Error> {
    let settings = args.iter().take_while(|arg| arg.contains('=')).count();
    let (settings, path) = args.split_at(settings);
    let (mut source, mut default) = (None, None);
    for setting in settings {
        let (name, text) = setting.split_once('=').unwrap_or_default();
        match name {
            "default" if !text.is_empty() => {
                if default.replace(text.into()).is_some() {
                    return Err(cx.error(format_args!("default has already been declared for  \"{key}\"")));
                }
            }
            "source" if !text.is_empty() => {
                if !text.starts_with('$') {
                    return Err(cx.error(format_args!("invalid source variable name \"{text}\"")));
                }
                if source.replace(cx.template(text)?).is_some() {
                    return Err(cx.error(format_args!("source has already been declared for  \"{key}\"")));
                }
            }
            _ => return Err(cx.error(format_args!("invalid setting \"{setting}\" for \"{key}\""))),
        }
    }
    let path = path.iter().map(|name| Step::new(name)).collect();
    Ok(Record { source, default, path })
}

/// A variable of a database.
#[derive(Debug)]
struct Variable {
    database: Arc<Database>,
    source: ValueSource,
}

impl<R: OnConnection> Compute<R> for Variable {
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool {
        match &self.source {
            ValueSource::Record(record) => {
                let found =
                    record.address(request).is_some_and(|ip| self.database.find(ip, &record.path, out));
                if !found && let Some(default) = &record.default {
                    out.extend_from_slice(default.as_bytes());
                }
                found || record.default.is_some()
            }
            ValueSource::Metadata(metadata) => {
                let number = match metadata {
                    Metadata::BuildEpoch => self.database.build_epoch(),
                    Metadata::LastCheck => self.database.checked(),
                    Metadata::LastChange => self.database.changed(),
                    Metadata::Nothing => return false,
                };
                out.extend_from_slice(number.to_string().as_bytes());
                true
            }
        }
    }
}

impl Record {
    /// Returns the address whose record is searched.
    fn address<R: OnConnection>(&self, request: &R) -> Option<IpAddr> {
        if let Some(source) = &self.source {
            let text = source.rendered(request);
            return std::str::from_utf8(&text).ok()?.parse().ok();
        }
        let conf = request.block().of::<Conf>();
        match behind_proxies(request, request.client_address().clone(), &conf.proxies, conf.recursive) {
            // An IPv4-mapped client address is searched as IPv4.
            Address::Inet(address) => Some(address.ip().to_canonical()),
            Address::Unix(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
