//! Fuzz target of the admin socket's commands over real configurations: the examples, the packages' files, Debian's nginx, and
//! a configuration for each directive, each with random changes.
//!
//! It is a test of this crate, because the commands need the complete server. It runs for a fixed number of rounds;
//! `RINGROAD_FUZZ_SECONDS` sets a time instead and `RINGROAD_FUZZ_SEED` another seed. The panic boundary is not used here, so
//! that a fault is found.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conf::{Args, Block, Contexts};

use super::{Call, pack, unpack};
use crate::adapter::{self, Files, Filter};
use crate::explain::{Query, explain};
use crate::loader::DiskLoader;
use crate::paths::{Paths, Request};

/// Rounds without `RINGROAD_FUZZ_SECONDS`.
const ROUNDS: usize = 400;

/// Words of URLs, filters and configurations.
const WORDS: [&str; 40] = [
    "http://",
    "https://",
    "localhost",
    "a",
    "www.example.com",
    "[::1]",
    "127.0.0.1",
    ":80",
    ":8080",
    ":443",
    ":0",
    "/",
    "//",
    "/..",
    "%2e",
    "%",
    "%00",
    "?",
    "?a=b",
    "&",
    "#",
    "@",
    "*",
    "\u{e9}",
    " ",
    "$uri",
    "${",
    "$1",
    "code=5xx",
    "time>1s",
    "uri~",
    "(",
    ")",
    "!",
    "and",
    "\"",
    "\\",
    "{\"command\":\"explain\"",
    "}",
    "[",
];

/// A small generator of random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from.get(self.below(from.len())).copied().unwrap_or_default()
    }

    /// Returns up to `most` words, half of them from the configuration.
    fn text(&mut self, own: &[&str], most: usize) -> String {
        let count = self.below(most + 1);
        (0..count).map(|_| if self.below(2) == 0 { self.pick(own) } else { self.pick(&WORDS) }).collect()
    }
}

/// A configuration with the directory that its paths are relative to.
type Configuration = (PathBuf, String);

/// Adds the configurations below a directory.
fn collect(folder: &Path, found: &mut Vec<Configuration>) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the directory exists")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|end| end == "conf") {
            let text = std::fs::read_to_string(&path).expect("it was listed");
            let text = match text.contains("events") {
                true => text,
                false => format!("events {{}} http {{ server {{ location / {{ {text} }} }} }}"),
            };
            found.push((folder.to_owned(), text));
        }
    }
}

/// Returns a configuration for each directive of a location, with the fewest arguments that are accepted.
fn of_each_directive() -> Vec<Configuration> {
    let rows = adapter::table().specs().filter(|spec| spec.contexts.intersects(Contexts::LOCATION));
    let mut all = Vec::new();
    for spec in rows {
        let least = match spec.args {
            Args::Any | Args::None => 0,
            Args::Flag => 1,
            Args::Exactly(count) | Args::Between(count, _) | Args::AtLeast(count) => usize::from(count),
        };
        let end = if spec.block == Block::No { ";" } else { " { }" };
        for word in ["on", "1", "/x", "127.0.0.1", "http://127.0.0.1/x", "off"] {
            let statement = format!("{}{}{end}", spec.name, format!(" {word}").repeat(least));
            let text = format!("events {{}} http {{ server {{ listen 80; location / {{ {statement} }} }} }}");
            all.push((PathBuf::from("/"), text));
        }
    }
    all
}

/// Removes, repeats or replaces random words of a text.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut words: Vec<&str> = text.split_inclusive([' ', ';', '{', '}', '\n']).collect();
    for _ in 0..random.below(4) {
        let at = random.below(words.len());
        match random.below(4) {
            0 | 1 if !words.is_empty() => drop(words.remove(at)),
            2 if !words.is_empty() => words.insert(at, words[at]),
            _ => words.insert(at.min(words.len()), random.pick(&WORDS)),
        }
    }
    words.concat()
}

/// Reads a configuration and, if it is valid, explains random requests by it.
fn ask(folder: &Path, text: &str, random: &mut Random) -> bool {
    let main = folder.join("fuzzed-nginx.conf");
    let request =
        Request { main, globals: String::new(), places: Paths::below(folder), text: Some(text.to_owned()) };
    let site = match adapter::load(&request, Files::Disk) {
        Ok(site) => site,
        Err(refused) => {
            assert!(!refused.message.contains("a fault of this program"), "{}\n{text}", refused.message);
            return false;
        }
    };
    let tree =
        conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(&request)).expect("it was read");
    let own: Vec<&str> = text.split([' ', ';', '{', '}', '\n']).filter(|word| !word.is_empty()).collect();
    let mut urls = vec!["http://localhost/".to_owned(), "http://localhost:8080/".to_owned()];
    urls.extend((0..12).map(|_| {
        let (host, port, path) =
            (random.pick(&own), random.pick(&["", ":80", ":8080"]), random.text(&own, 3));
        format!("http://{}{port}/{path}", host.trim_matches('/'))
    }));
    urls.extend((0..4).map(|_| random.text(&own, 5)));
    // Each explanation loads the configuration again and starts a thread.
    for (number, url) in urls.into_iter().enumerate() {
        let query = Query {
            url,
            from: random.pick(&["127.0.0.1", "::1", "10.0.0.1", "x"]).to_owned(),
            method: random.pick(&["GET", "POST", "CONNECT", "PURGE", ""]).to_owned(),
            fields: vec![
                ("host".to_owned(), random.text(&own, 2)),
                ("cookie".to_owned(), random.text(&own, 2)),
            ],
            http3: number % 4 == 0,
        };
        let Ok(Call::Explain(received)) = Call::parse(query.to_json().to_string().as_bytes()) else {
            panic!("{query:?} is not received");
        };
        assert_eq!(received, query);
        if number % 8 > 0 {
            continue;
        }
        let files = adapter::Reread { request: &request, memory: None };
        if let Ok(explained) = explain(&site, files, &tree, &query, |_| Ok(()))
            && let Some(entry_query) = explained.entry_query
        {
            let packed = pack(&explained.text, &entry_query);
            assert_eq!(unpack(&packed), Some((explained.text, entry_query)));
        }
    }
    assert_eq!(adapter::changes(&site, &site, &request), Vec::<String>::new(), "{text}");
    true
}

#[test]
fn commands_over_real_configurations_never_panic() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = number("RINGROAD_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut random = Random(number("RINGROAD_FUZZ_SEED").unwrap_or(0x2545_f491_4f6c_dd1d).max(1));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = of_each_directive();
    let each = all.len();
    for folder in ["examples", "packaging", "crates/ringroad/tests/debian"] {
        collect(&root.join(folder), &mut all);
    }
    // Without changes first: every configuration that can be served is asked.
    let valid = all.iter().filter(|(folder, text)| ask(folder, text, &mut random)).count();
    assert!(
        valid > 100,
        "{valid} of {} configurations are valid, {each} are of single directives",
        all.len()
    );
    let mut rounds = 0;
    while end.map_or(rounds < ROUNDS, |end| Instant::now() < end) {
        rounds += 1;
        let (folder, text) = &all[random.below(all.len())];
        let text = mutated(text, &mut random);
        ask(folder, &text, &mut random);
        let packet = random.text(&[], 6);
        let _ = (Call::parse(packet.as_bytes()), unpack(packet.as_bytes()), Filter::parse(&packet).is_ok());
    }
}
