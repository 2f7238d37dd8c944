//! Typed data of `cargo metadata` about packages: the parts that the checks need.

use serde_json::Value;

use crate::{Failure, workspace};

/// All packages of the dependency graph, those of the workspace and external ones.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// The packages in cargo's order.
    pub(crate) packages: Vec<Package>,
}

/// A package.
#[derive(Debug, Default)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// The SPDX expression, if the manifest has one.
    pub(crate) license: Option<String>,
    /// Whether it belongs to the workspace.
    pub(crate) member: bool,
    /// The dependencies of a package.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// Name of the package, not its local name in the manifest.
    pub(crate) name: String,
    /// Whether it is a dev-dependency, for tests, examples and benches only.
    pub(crate) dev: bool,
}

/// Loads the output of cargo.
pub(crate) fn load() -> Result<Metadata, Failure> {
    let text = workspace::output(&mut workspace::cargo(&["metadata", "--format-version", "1"]))?;
    parse(&text).map_err(|detail| Failure::Format { what: "cargo metadata", detail })
}

fn parse(text: &str) -> Result<Metadata, String> {
    let root: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let list = |value: &Value| value.as_array().cloned().ok_or_else(|| format!("no array: {value}"));
    let members = list(&root["workspace_members"])?;
    let mut packages = Vec::new();
    for package in list(&root["packages"])? {
        let mut dependencies = Vec::new();
        for dependency in list(&package["dependencies"])? {
            let dev = dependency["kind"] == "dev";
            dependencies.push(Dependency { name: string(&dependency["name"])?, dev });
        }
        packages.push(Package {
            name: string(&package["name"])?,
            version: string(&package["version"])?,
            license: package["license"].as_str().map(str::to_owned),
            member: members.contains(&package["id"]),
            dependencies,
        });
    }
    Ok(Metadata { packages })
}

fn string(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("no string: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_fields_are_parsed() {
        let text = r#"{"workspace_members":["a 1"],"packages":[
            {"id":"a 1","name":"a","version":"1.0.0","license":null,
             "dependencies":[{"name":"b","kind":null},{"name":"c","kind":"dev"}]},
            {"id":"b 2","name":"b","version":"2.0.0","license":"MIT","dependencies":[]}]}"#;
        let metadata = parse(text).expect("it has every field");
        let [a, b] = metadata.packages.as_slice() else { panic!("two packages") };
        assert!(a.member && !b.member);
        assert_eq!(a.dependencies[1], Dependency { name: "c".to_owned(), dev: true });
        assert_eq!((a.license.as_deref(), b.license.as_deref()), (None, Some("MIT")));
        assert!(parse("{}").is_err());
    }
}
