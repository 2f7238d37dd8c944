//! Limits the size of import cycles: files that import each other must be read together, so a cycle may have only a few
//! files, all in one directory.

use crate::imports::{self, Imports};

/// Maximum number of files in an import cycle.
pub(crate) const FILES_MAX: usize = 9;

/// Crates with a smaller maximum, which everything else is based on.
const CORE: [&str; 3] = ["io", "rt", "cache"];

/// Their maximum.
const CORE_FILES_MAX: usize = 6;

/// Crates with cycles that span several directories, and the largest number of files of such a cycle. It may only get smaller.
const SPANNING: [(&str, usize); 1] = [("exchange", 9)];

/// Returns one line for each import cycle of a crate that is too large or spans several directories. `tolerated` is the number of
/// files that `ratchet` tolerates, in any directories.
pub(crate) fn check(name: &str, imports: &Imports, tolerated: Option<usize>) -> Vec<String> {
    let files_max = if CORE.contains(&name) { CORE_FILES_MAX } else { FILES_MAX };
    let is_right = |circle: &Vec<&str>| match tolerated {
        Some(tolerated) => circle.len() <= tolerated,
        None if SPANNING.iter().any(|(krate, files)| *krate == name && circle.len() <= *files) => true,
        None => circle.len() <= files_max && is_in_one_folder(circle),
    };
    let line = |circle: Vec<&str>| {
        let (count, files) = (circle.len(), circle.join(", "));
        format!(
            "crate {name}: import cycle of {count} files; at most {files_max} files of one directory may form one: {files}"
        )
    };
    imports::circles(imports).into_iter().filter(|circle| !is_right(circle)).map(line).collect()
}

/// Whether all files are below one directory of the crate, or all of them at its root.
fn is_in_one_folder(circle: &[&str]) -> bool {
    let mut folders = circle.iter().map(|file| file.split_once('/').map_or("", |(folder, _)| folder));
    let first = folders.next();
    folders.all(|folder| Some(folder) == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[String]) -> Imports {
        let next = files.iter().cycle().skip(1);
        files.iter().cloned().zip(next.map(|file| [file.clone()].into_iter().collect())).collect()
    }

    #[test]
    fn cycles_of_the_core_are_smaller() {
        let files: Vec<String> = (0..=CORE_FILES_MAX).map(|number| format!("a/{number}.rs")).collect();
        assert_eq!(
            ["io", "rt", "cache", "a"].map(|name| check(name, &circle(&files), None).len()),
            [1, 1, 1, 0]
        );
    }

    fn problems(files: &[&str]) -> usize {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        check("a", &circle(&files), None).len()
    }

    #[test]
    fn a_cycle_is_confined_to_its_directory() {
        assert_eq!(problems(&["a/mod.rs", "a/b.rs", "a/c/d.rs"]), 0);
        assert_eq!(problems(&["a.rs", "b.rs"]), 0);
        assert_eq!(problems(&["a/mod.rs", "b/mod.rs"]), 1);
        assert_eq!(problems(&["a/mod.rs", "b.rs"]), 1);
    }

    #[test]
    fn cycles_are_small() {
        let files: Vec<String> = (0..=FILES_MAX).map(|number| format!("a/{number}.rs")).collect();
        assert_eq!(check("a", &circle(&files), None).len(), 1);
        assert_eq!(check("a", &circle(&files[1..]), None).len(), 0);
    }

    #[test]
    fn a_tolerated_cycle_does_not_grow() {
        let files: Vec<String> = (0..=FILES_MAX).map(|number| format!("{number}/a.rs")).collect();
        assert_eq!(check("a", &circle(&files), Some(FILES_MAX + 1)).len(), 0);
        assert_eq!(check("a", &circle(&files), Some(FILES_MAX)).len(), 1);
    }
}
