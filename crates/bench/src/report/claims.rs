//! The claims of the write-ups and where the suite measures each: the page docs/benchmark-claims.md, which
//! `ringroad bench claims` prints.
//!
//! A claim names rows of a report: a scenario, the start of a table's title and the start of a verdict's claim. The tests of
//! the scenarios fail if a run has no such table or verdict.

use super::write_ups::{self, Claim, WriteUp};

/// Text before the table.
const HEAD: &str = "# Claims of the write-ups\n\n\
    The benchmarks repeat five published measurements ([benchmarks.md](benchmarks.md)). This table has each claim of the write-ups, the\n\
    scenario that measures it, the table of the report with the figures, and the verdict. `cargo xtask reference` generates the page.\n";

/// Returns the page. The verdicts are those of `report`, the Markdown of a report with its name.
pub(crate) fn page(report: Option<(&str, &str)>) -> String {
    let source = report
        .map_or_else(String::new, |(name, _)| format!("The verdicts are those of\n[{name}]({name}).\n"));
    let mut text =
        format!("{HEAD}{source}\n| write-up | claim | scenario | table | verdict |\n|---|---|---|---|---|\n");
    for write_up in write_ups::all() {
        for claim in &write_up.claims {
            rows(write_up, claim, report.map(|(_, text)| text)).for_each(|row| text.push_str(&row));
        }
    }
    text
}

fn rows(write_up: &WriteUp, claim: &Claim, report: Option<&str>) -> impl Iterator<Item = String> {
    claim.rows.iter().map(move |(scenario, table, finding)| {
        let verdict = match report {
            Some(report) => verdict(report, finding).unwrap_or_else(|| "not in this report".to_owned()),
            None => "–".to_owned(),
        };
        let table = table.trim_end_matches(':');
        format!("| {} | {} | `bench {scenario}` | {table} … | {verdict} |\n", write_up.number, claim.sentence)
    })
}

/// Finds the verdict on a claim in a report, which has a row `| claim | verdict | result |` for each.
fn verdict(report: &str, claim: &str) -> Option<String> {
    report.lines().find_map(|line| {
        // The report escapes characters of Markdown.
        let line = line.replace('\\', "");
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        cells.next().filter(|found| found.starts_with(claim))?;
        cells.next().map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_has_a_scenario_and_its_verdict() {
        let report = "| claim | verdict | result |\n|---|---|---|\n\
                      | io\\_uring has less overhead than libaio, and more. | holds | 639 ns |\n";
        let page = page(Some(("x/report.md", report)));
        let count: usize =
            write_ups::all().flat_map(|write_up| &write_up.claims).map(|claim| claim.rows.len()).sum();
        assert_eq!(page.lines().filter(|line| line.starts_with("| 00")).count(), count);
        let row = page.lines().find(|line| line.contains("libaio compared with io_uring")).unwrap();
        assert!(row.starts_with("| 003 | ") && row.ends_with(" | holds |"), "{row}");
        assert!(page.contains("| not in this report |"));
    }

    #[test]
    fn scenarios_of_claims_exist() {
        for row in write_ups::all().flat_map(|write_up| &write_up.claims).flat_map(|claim| &claim.rows) {
            assert!(crate::scenario::SCENARIOS.iter().any(|entry| entry.name == row.0), "{row:?}");
        }
    }
}
