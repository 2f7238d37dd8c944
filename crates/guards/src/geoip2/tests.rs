//! Tests values, damaged files, and rejected blocks.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use conf::{Error, MapLoader, Source};
use testkit::mmdb::{Mmdb, Value, map};

use super::database::{self, Bytes, Content, Database, Step};
use site::config::Loaded;

/// Returns a database with every kind of value.
fn mmdb() -> Vec<u8> {
    let names = map([("en", "Germany".into()), ("de", "Deutschland".into())]);
    let all = map([
        ("country", map([("iso_code", "DE".into()), ("names", names)])),
        ("subdivisions", Value::Array(vec![map([("n", Value::U16(1))]), map([("n", Value::U16(2))])])),
        ("location", map([("latitude", Value::Double(-51.5)), ("radius", Value::Float(0.25))])),
        ("7", "by a number".into()),
        ("bytes", Value::Bytes(b"\x00\xff".to_vec())),
        ("yes", Value::Bool(true)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-7)),
        ("u64", Value::U64(u64::MAX)),
        ("u128", Value::U128(1 << 100 | 0xab)),
        ("long", Value::Text("x".repeat(70_000))),
        ("empty", "".into()),
    ]);
    let mmdb = Mmdb::new(1_700_000_000).with("1.2.0.0/16", &all);
    let mmdb = mmdb.with("1.2.3.0/24", &map([("country", map([("iso_code", "FR".into())]))]));
    mmdb.with("2001:db8::/32", &map([("country", map([("iso_code", "IT".into())]))])).bytes()
}

fn content(bytes: Vec<u8>) -> Option<Content> {
    database::read(Bytes::of(Arc::new(bytes))).ok()
}

fn database(bytes: Vec<u8>) -> Database {
    Database::new("/x.mmdb".into(), content(bytes).expect("a database"), 0)
}

/// Returns the value at a path, whose steps are separated by spaces.
fn find(database: &Database, ip: &str, path: &str) -> Option<Vec<u8>> {
    let steps: Vec<Step> = path.split_whitespace().map(Step::new).collect();
    let (ip, mut out) = (ip.parse::<IpAddr>().expect("an address"), Vec::new());
    database.find(ip, &steps, &mut out).then_some(out)
}

#[test]
fn database_values_are_found_by_their_paths() {
    let database = database(mmdb());
    for (ip, path, expected) in [
        ("1.2.9.9", "country iso_code", Some("DE")),
        ("1.2.3.9", "country iso_code", Some("FR")),
        ("2001:db8::1", "country iso_code", Some("IT")),
        ("1.2.9.9", "country names de", Some("Deutschland")),
        ("1.2.9.9", "subdivisions 0 n", Some("1")),
        ("1.2.9.9", "subdivisions -1 n", Some("2")),
        ("1.2.9.9", "subdivisions 2 n", None),
        ("1.2.9.9", "subdivisions n", None),
        ("1.2.9.9", "location latitude", Some("-51.50000")),
        ("1.2.9.9", "location radius", Some("0.25000")),
        ("1.2.9.9", "7", Some("by a number")),
        ("1.2.9.9", "yes", Some("1")),
        ("1.2.9.9", "u32", Some("4000000000")),
        ("1.2.9.9", "i32", Some("-7")),
        ("1.2.9.9", "u64", Some("18446744073709551615")),
        ("1.2.9.9", "u128", Some("0x000000100000000000000000000000ab")),
        ("1.2.9.9", "empty", Some("")),
        ("1.2.9.9", "country", None),
        ("1.2.9.9", "", None),
        ("1.2.9.9", "country iso_code further", None),
        ("1.2.9.9", "none", None),
        ("1.3.0.0", "country iso_code", None),
        ("2001:db9::1", "country iso_code", None),
    ] {
        let found = find(&database, ip, path);
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{ip} {path}");
    }
    assert_eq!(find(&database, "1.2.9.9", "bytes").as_deref(), Some(&b"\x00\xff"[..]));
    assert_eq!(find(&database, "1.2.9.9", "long").map(|text| text.len()), Some(70_000));
    assert_eq!(database.build_epoch(), 1_700_000_000);
}

#[test]
fn changed_content_replaces_the_database() {
    let database = database(mmdb());
    assert!(database.ends_with(mmdb().len() as u64, &mmdb()[100..]) && !database.ends_with(5, b""));
    let other = Mmdb::new(7).with("1.2.0.0/16", &map([("country", map([("iso_code", "PL".into())]))]));
    database.replace(content(other.bytes()).expect("a database"));
    assert_eq!(find(&database, "1.2.3.9", "country iso_code").as_deref(), Some(&b"PL"[..]));
    assert_eq!((database.build_epoch(), database.len()), (7, other.bytes().len()));
}

/// Bytes of a damaged or hostile file: rejected at load, or searched without a panic and with bounded work.
#[test]
fn hostile_databases_are_searched_without_a_panic() {
    let good = mmdb();
    // xorshift64: the same files in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    // Bytes after the long text are damaged as often as those before it.
    let long = good.windows(100).position(|window| window == [b'x'; 100]).expect("it is there");
    let mut accepted = 0;
    for round in 0..4_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random(8) {
            let at = match random(3) {
                0 => random(long.min(bytes.len())),
                1 => bytes.len() - 1 - random(400.min(bytes.len() - 1)),
                _ => random(bytes.len()),
            };
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes[at] = [0xff, 0x00, 0x20, 0x3f, 0xe1, 0x5f][random(6)],
                _ if random(10) == 0 => bytes.truncate(at.max(1)),
                _ => drop(bytes.remove(at)),
            }
            if bytes.len() < 2 {
                break;
            }
        }
        let Some(content) = content(bytes) else { continue };
        accepted += 1;
        let database = Database::new("/x.mmdb".into(), content, 0);
        for ip in ["1.2.9.9", "1.2.3.9", "2001:db8::1", "255.255.255.255", "::", "ffff::"] {
            for path in ["country iso_code", "subdivisions 1 n", "subdivisions -1 n", "u128", "long", "7", ""]
            {
                let found = find(&database, ip, path);
                let len = found.map_or(0, |text| text.len());
                assert!(len <= 1 << 24, "{len} bytes in round {round}");
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
}

/// Loads an `http` block with the database `/prefix/a.mmdb`.
fn load(http: &str) -> Result<Loaded, Error> {
    let files = [
        ("/conf/nginx.conf", format!("http {{\n{http}\n}} events {{ }}").into_bytes()),
        ("/prefix/a.mmdb", mmdb()),
        ("/prefix/bad.mmdb", b"no database".to_vec()),
    ];
    let loader: MapLoader = files.into_iter().collect();
    site::config::load(
        crate::all().declarations(),
        &Source::new("/conf/nginx.conf"),
        Path::new("/prefix"),
        &loader,
    )
}

#[test]
fn wrong_blocks_are_refused_with_their_line() {
    for (http, expected) in [
        ("geoip2 bad.mmdb { }", "\"/prefix/bad.mmdb\" is not a MaxMind database: "),
        ("geoip2 none.mmdb { }", "open() \"/prefix/none.mmdb\" failed (2: No such file or directory)"),
        ("geoip2 a.mmdb { }\ngeoip2 /prefix/a.mmdb { }", "Duplicate GeoIP2 mmdb - /prefix/a.mmdb"),
        ("geoip2 a.mmdb {\nauto_reload; }", "invalid number of arguments for auto_reload"),
        ("geoip2 a.mmdb {\nauto_reload x; }", "invalid interval for auto_reload \"x\""),
        ("geoip2 a.mmdb {\ncountry; }", "invalid setting \"country\""),
        ("geoip2 a.mmdb {\n$ country; }", "invalid variable name \"$\""),
        ("geoip2 a.mmdb {\n$c metadata; }", "invalid number of arguments for metadata"),
        ("geoip2 a.mmdb {\n$c source=1.2.3.4 a; }", "invalid source variable name \"1.2.3.4\""),
        ("geoip2 a.mmdb {\n$c other=1 a; }", "invalid setting \"other=1\" for \"$c\""),
        ("geoip2 a.mmdb {\n$c default=1 default=2 a; }", "default has already been declared for  \"$c\""),
        ("geoip2 a.mmdb {\n$uri a; }", "the duplicate \"uri\" variable"),
        ("geoip2_proxy\nx;", "invalid network \"x\""),
    ] {
        let error = load(http).expect_err(http).to_string();
        assert!(error.starts_with(expected), "{http}: {error}");
        let line = 1 + http.lines().count();
        assert!(error.contains(&format!(" in /conf/nginx.conf:{line}")), "{http}: {error}");
    }
    let found = load("geoip2 a.mmdb {\n$c metadata build_date; }").expect("it is only a warning");
    assert!(found.warnings[0].to_string().starts_with("\"$c\" has no value: metadata is "));
    let good = "geoip2_proxy 10.0.0.0/8; geoip2_proxy_recursive on;
        geoip2 a.mmdb { auto_reload 5m; $a default=x source=$http_x country iso_code; $b metadata build_epoch; }";
    assert!(load(good).is_ok_and(|loaded| loaded.warnings.is_empty()));
}

#[test]
fn the_obsolete_geoip_module_is_reported_with_its_replacement() {
    let error =
        load("geoip_country /usr/share/GeoIP/GeoIP.dat;").expect_err("it is not supported").to_string();
    assert!(error.contains("use geoip2 with an .mmdb file"), "{error}");
}
