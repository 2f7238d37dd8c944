//! Checks that the tests exist that the threat model of SECURITY.md names.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn each_row_of_the_threat_model_names_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("SECURITY.md")).expect("the page");
    let (_, table) =
        page.split_once("| attacker | action | result | test |\n|---|---|---|---|\n").expect("the table");
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 15, "{}", rows.len());
    let mut attackers = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [attacker, _, _, test] = cells[..] else { panic!("four cells: {row}") };
        attackers.insert(attacker);
        let quoted: Vec<&str> = test.split('`').skip(1).step_by(2).collect();
        let [file, function] = quoted[..] else { panic!("a file and a function: {row}") };
        let source =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let declaration = format!("fn {function}()");
        let (before, _) =
            source.split_once(&declaration).unwrap_or_else(|| panic!("{file} has no {function}"));
        let attributes = before.rsplit("\n\n").next().unwrap_or_default();
        assert!(attributes.contains("#[test]"), "{function} is a test");
    }
    for attacker in
        ["client", "upstream", "other user of the machine", "taken-over worker", "taken-over agent"]
    {
        assert!(attackers.contains(attacker), "{attacker}");
    }
}
