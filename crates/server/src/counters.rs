//! Generates docs/counters.md from the rows of all metrics.

use modules::status;
use telemetry::metric;

/// The prose of the page in Markdown, with a section for each group of metrics.
const PROSE: &str = include_str!("counters.txt");

/// Returns the page in Markdown: after the prose of each section, the rows of its group.
pub fn counters() -> String {
    let parts = status::metrics();
    let mut sections = PROSE.split("\n## ");
    let mut page = sections.next().unwrap_or_default().to_owned();
    for section in sections {
        let rows = parts.iter().find(|(heading, _)| section.lines().next() == Some(heading));
        let rows = rows.map(|(_, rows)| metric::document(rows)).unwrap_or_default();
        page.push_str(&format!("\n## {section}\n{rows}"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use telemetry::metric::Metric;

    fn metrics() -> impl Iterator<Item = &'static Metric> {
        status::metrics().into_iter().flat_map(|(_, rows)| rows)
    }

    fn is_snake_case(text: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !text.is_empty() && text.bytes().all(is_allowed)
    }

    #[test]
    fn rows_are_complete_and_in_snake_case() {
        let mut names = HashSet::new();
        for Metric { name, kind, unit, help, labels, .. } in metrics() {
            assert!(names.insert(name), "{name} is there twice");
            assert!(!unit.is_empty() && help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == metric::MetricType::Counter, "{name}");
            let values = labels.iter().flat_map(|label| label.values).map(|(value, _)| *value);
            let values = values.filter(|value| !value.starts_with(|first: char| first.is_ascii_digit()));
            let mut words = labels.iter().map(|label| label.name).chain(values).chain([*name]);
            assert!(words.all(is_snake_case), "{name}");
        }
    }

    #[test]
    fn the_document_is_generated_from_the_rows() {
        const DOCUMENT: &str = include_str!("../../../docs/counters.md");
        assert!(DOCUMENT == counters(), "run `cargo xtask reference`");
        for metric in metrics() {
            let row = format!("| `{}{}` |", metric.prefix, metric.name);
            assert!(DOCUMENT.contains(&row), "{}", metric.name);
        }
    }
}
