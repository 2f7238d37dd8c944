//! The crates that the program is linked with: a page of licences for readers, and a software bill of materials (SBOM) for
//! scanners (CycloneDX 1.5, <https://cyclonedx.org/docs/1.5/json/>).
//!
//! C libraries are listed by the crates that contain them: `aws-lc-sys`, `pcre2-sys`, `zstd-sys`.

use serde_json::{Value, json};

use super::tool;
use crate::{Failure, workspace};

/// A linked crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Linked {
    name: String,
    version: String,
    /// The licence as an SPDX expression.
    licence: String,
}

/// Returns the crates that the program is linked with, sorted by name.
pub(super) fn linked() -> Result<Vec<Linked>, Failure> {
    let mut tree =
        workspace::cargo(&["tree", "--package", "ringroad", "--edges", "normal", "--prefix", "none"]);
    Ok(parse(&workspace::output(tree.args(["--format", "{p}|{l}"]))?))
}

/// Parses the output of `cargo tree`. Crates of the workspace, which have a path after the version, are omitted.
fn parse(tree: &str) -> Vec<Linked> {
    let foreign = tree.lines().filter(|line| !line.contains(" (/"));
    let mut found: Vec<Linked> = foreign
        .filter_map(|line| {
            let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
            let (name, version) = package.split_once(" v")?;
            let version = version.trim_end_matches(" (proc-macro)");
            // Older crates write `/` instead of `OR`.
            let licence = licence.replace('/', " OR ");
            Some(Linked { name: name.to_owned(), version: version.to_owned(), licence })
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns the page for readers.
pub(super) fn page(linked: &[Linked]) -> String {
    let rows = linked
        .iter()
        .map(|Linked { name, version, licence }| format!("| {name} | {version} | {licence} |\n"));
    format!(
        "# Crates in this program\n\n| crate | version | licence |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

/// Returns the SBOM of a version that was made at this time, in seconds since 1970. It has no serial number, so that the result
/// is reproducible.
pub(super) fn sbom(linked: &[Linked], version: &str, time: u64) -> Result<String, Failure> {
    let mut date = tool("date", "coreutils")?;
    let timestamp = workspace::output(date.args(["-u", "-d"]).arg(format!("@{time}")).arg("+%FT%TZ"))?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp.trim(),
            "component": component("application", "ringroad", version, "Apache-2.0 OR MIT"),
        },
        "components": linked.iter().map(|one| component("library", &one.name, &one.version, &one.licence)).collect::<Vec<_>>(),
        "dependencies": [{
            "ref": purl("ringroad", version),
            "dependsOn": linked.iter().map(|one| purl(&one.name, &one.version)).collect::<Vec<_>>(),
        }],
    });
    Ok(format!("{bill:#}\n"))
}

fn component(kind: &str, name: &str, version: &str, licence: &str) -> Value {
    let purl = purl(name, version);
    json!({
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [{ "expression": licence }],
        "purl": purl,
    })
}

/// Returns the package URL (purl) of a crate.
fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sboms_list_every_crate_once() {
        let tree = "ringroad v0.1.0 (/a/b)|MIT\nb v2.0.0+x|MIT/Apache-2.0\na v1.0.0 (proc-macro)|Zlib\nb v2.0.0+x|MIT/Apache-2.0 (*)\n";
        let linked = parse(tree);
        assert_eq!(linked.len(), 2, "{linked:?}");
        assert!(page(&linked).ends_with("| a | 1.0.0 | Zlib |\n| b | 2.0.0+x | MIT OR Apache-2.0 |\n"));
        let text = sbom(&linked, "0.1.0", 0).expect("date is there");
        let bill: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(bill["components"][1]["purl"], "pkg:cargo/b@2.0.0%2Bx");
        assert_eq!(bill["dependencies"][0]["dependsOn"].as_array().map(Vec::len), Some(2));
    }
}
