//! Results: as data ([`model`]), and as the files made of them.

pub(crate) mod model;

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use model::Report;

/// Writes the files of a report into a folder, which is made if it is not there.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<(), Failure> {
    let file = |doing, path: &Path, error| Failure::File { path: path.to_owned(), doing, error };
    fs::create_dir_all(folder).map_err(|error| file("create the folder", folder, error))?;
    let path = folder.join("report.json");
    let text = serde_json::to_string_pretty(report).map_err(|error| Failure::Other(error.to_string()))?;
    fs::write(&path, text + "\n").map_err(|error| file("write", &path, error))?;
    println!("{}", path.display());
    Ok(())
}
