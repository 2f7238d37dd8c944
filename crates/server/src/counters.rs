//! docs/counters.md, made from the rows of all metrics.

use telemetry::metric;
use telemetry::tally;
use upstream::caching::metrics;

/// The page, in Markdown.
pub fn counters() -> String {
    let caches = metric::document(&metrics::metrics());
    let connections = metric::document(tally::METRICS);
    format!("{HEAD}{caches}{CONNECTIONS}{connections}")
}

const HEAD: &str = "\
# Counters

Made from the rows in the code by `cargo xtask reference`; do not edit.

## Caches

`cache_counters;` in a location answers with the numbers of every cache, in the
[text format of Prometheus](https://prometheus.io/docs/instrumenting/exposition_formats/) (version 0.0.4). Only GET and
HEAD are allowed. All clients that reach the location can read it, so put `allow` and `deny` beside it.

```nginx
location = /metrics {
    cache_counters;
    allow 127.0.0.1;
    deny  all;
}
```

Counters start at zero with the worker. A reload in place keeps them, as long as the cache keeps its settings; a
replacement of the worker does not. `zone` is the name in `keys_zone`. A cache that could not be opened has no numbers of
its store. Each thread counts its own requests, and the page adds them up: two numbers of one page may be a moment apart.

";

const CONNECTIONS: &str = "
## Connections and requests

`stub_status` shows the sums over all threads, and so do `$connections_active`, `$connections_reading`,
`$connections_writing` and `$connections_waiting`. Active connections are those accepted less those closed.
The page of `cache_counters` has `ringroad_http2_limits_total`; [http2.md](http2.md#limits) describes the limits.

";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use telemetry::metric::Metric;

    fn metrics() -> impl Iterator<Item = &'static Metric> {
        metrics::metrics().into_iter().chain(tally::METRICS.iter().copied())
    }

    fn is_snake_case(text: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !text.is_empty() && text.bytes().all(is_allowed)
    }

    #[test]
    fn rows_are_complete_and_their_words_are_snake_case() {
        let mut names = HashSet::new();
        for Metric { name, kind, unit, help, labels } in metrics() {
            assert!(names.insert(name), "{name} is there twice");
            assert!(!unit.is_empty() && help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == metric::Kind::Counter, "{name}");
            let values = labels.iter().flat_map(|label| label.values).map(|(value, _)| *value);
            let mut words = labels.iter().map(|label| label.name).chain(values).chain([*name]);
            assert!(words.all(is_snake_case), "{name}");
        }
    }

    #[test]
    fn the_document_is_made_of_the_rows() {
        const DOCUMENT: &str = include_str!("../../../docs/counters.md");
        assert!(DOCUMENT == counters(), "run `cargo xtask reference`");
        for metric in metrics() {
            assert!(DOCUMENT.contains(&format!("| `ringroad_{}` |", metric.name)), "{}", metric.name);
        }
    }
}
