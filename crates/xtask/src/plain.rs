//! Checks that a server without the feature `bench` contains no crate that only measurements need.
//!
//! The feature `bench` of crate `ringroad` adds crate `bench` (docs/decisions/0045-bench-is-a-feature.md). Neither that
//! crate nor crates that only it depends on may be part of a build without the feature. [`crate::toolchains`]
//! compiles such a build.

use std::collections::BTreeSet;

use crate::metadata::Metadata;
use crate::{Failure, workspace};

/// Name of the crate, and of the feature of `ringroad` that adds it.
const FEATURE: &str = "bench";

/// Returns a line for each crate of the server without the feature that only measurements need.
pub(crate) fn check(metadata: &Metadata) -> Result<Vec<String>, Failure> {
    let (plain, whole) = (dependencies(&[])?, dependencies(&["--features", FEATURE])?);
    println!("the server without the feature {FEATURE}: {} crates; with it: {}", plain.len(), whole.len());
    Ok(problems(metadata, &plain, &whole))
}

/// Returns the names of the crates in a build of the program with these flags.
fn dependencies(flags: &[&str]) -> Result<BTreeSet<String>, Failure> {
    let tree = ["tree", "--package", "ringroad", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let text = workspace::output(workspace::cargo(&tree).args(flags))?;
    Ok(text.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect())
}

fn problems(metadata: &Metadata, plain: &BTreeSet<String>, whole: &BTreeSet<String>) -> Vec<String> {
    let asked_for_by = |is_wanted: &dyn Fn(&str) -> bool| -> BTreeSet<&str> {
        let members = metadata.packages.iter().filter(|package| package.member && is_wanted(&package.name));
        let dependencies = members.flat_map(|package| &package.dependencies).filter(|one| !one.dev);
        dependencies.map(|one| one.name.as_str()).collect()
    };
    let measuring = asked_for_by(&|name| name == FEATURE);
    let serving = asked_for_by(&|name| name != FEATURE && plain.contains(name));
    let alone = measuring.difference(&serving).copied().chain([FEATURE]);
    let mut problems: Vec<String> = alone
        .filter(|name| plain.contains(*name))
        .map(|name| {
            format!(
                "the server without the feature {FEATURE} contains {name}, which only crate {FEATURE} needs"
            )
        })
        .collect();
    // If the feature added nothing, the check above would find nothing.
    if !whole.contains(FEATURE) {
        problems.push(format!("the feature {FEATURE} of ringroad does not add crate {FEATURE}"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Package};

    #[test]
    fn measurement_code_in_the_plain_server_is_found() {
        let package = |name: &str, names: &[&str]| Package {
            name: name.to_owned(),
            member: true,
            dependencies: names
                .iter()
                .map(|name| Dependency { name: (*name).to_owned(), dev: false })
                .collect(),
            ..Package::default()
        };
        let packages = vec![package("bench", &["clap", "io"]), package("ringroad", &["bench", "io"])];
        let metadata = Metadata { packages };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let whole = set(&["ringroad", "io", "bench", "clap"]);
        assert_eq!(problems(&metadata, &set(&["ringroad", "io"]), &whole), Vec::<String>::new());
        assert!(problems(&metadata, &set(&["ringroad", "io", "clap"]), &whole)[0].contains("contains clap"));
        assert!(problems(&metadata, &whole, &whole).iter().any(|line| line.contains("contains bench")));
        assert_eq!(problems(&metadata, &set(&["ringroad"]), &set(&["ringroad"])).len(), 1);
    }
}
