//! The pages of the site in order: the start page, the documentation as listed in `docs/README.md`, examples,
//! development.

use std::fmt::Write;

use crate::Failure;
use crate::workspace::SourceFile;

/// All pages, in the order of the list.
pub(super) struct Pages<'f> {
    entries: Vec<Entry<'f>>,
}

/// An entry of the list.
struct Entry<'f> {
    file: &'f SourceFile,
    /// The heading of the part that begins with this page.
    part: Option<&'static str>,
    /// 1 for a page that is a subpage of the previous one.
    depth: usize,
}

/// The page that lists the documentation.
const LIST: &str = "docs/README.md";

/// Raw measurements, which are not pages.
const RAW: &str = "docs/experiments/raw/";

/// The pages after the documentation.
const DEVELOPMENT: [&str; 6] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/README.md",
    "fuzz/README.md",
];

impl<'f> Pages<'f> {
    /// Selects the pages from the files of the repository.
    pub(super) fn of(files: &'f [SourceFile]) -> Result<Pages<'f>, Failure> {
        let find = |path: &str| files.iter().find(|file| file.path == path);
        let mut missing = Vec::new();
        let mut entries = Vec::new();
        let mut add = |path: &str, part, depth| match find(path) {
            Some(file) => entries.push(Entry { file, part, depth }),
            None => missing.push(format!("{path}: the page is listed but does not exist")),
        };
        add("README.md", None, 0);
        add(LIST, Some("Documentation"), 0);
        let list = find(LIST).map_or("", |file| file.text.as_str());
        let listed: Vec<String> = targets(list).map(|target| format!("docs/{target}")).collect();
        for path in listed.iter().filter(|path| !path.contains("..")) {
            add(path, None, 0);
            if let Some(folder) = path.strip_suffix("README.md") {
                let below = files.iter().filter(|file| is_page(&file.path) && file.path.starts_with(folder));
                below.filter(|file| file.path != *path).for_each(|file| add(&file.path, None, 1));
            }
        }
        add("examples/README.md", Some("Examples"), 0);
        let examples = files.iter().filter(|file| {
            file.path.starts_with("examples/")
                && file.path.ends_with("/README.md")
                && file.path != "examples/README.md"
        });
        examples.for_each(|file| add(&file.path, None, 1));
        for (index, path) in DEVELOPMENT.into_iter().enumerate() {
            add(path, (index == 0).then_some("Development"), 0);
        }
        let is_listed = |file: &SourceFile| entries.iter().any(|entry| entry.file.path == file.path);
        let unlisted = files.iter().filter(|file| file.path.starts_with("docs/") && is_page(&file.path));
        missing.extend(
            unlisted
                .filter(|file| !is_listed(file))
                .map(|file| format!("{}: {LIST} does not list it", file.path)),
        );
        Failure::unless_empty("the list of pages", missing)?;
        Ok(Pages { entries })
    }

    /// Returns the files in order.
    pub(super) fn files(&self) -> impl Iterator<Item = &'f SourceFile> {
        self.entries.iter().map(|entry| entry.file)
    }

    /// Whether this path is a page.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.files().any(|file| file.path == path)
    }

    /// Returns the list in mdBook's format.
    pub(super) fn summary(&self) -> String {
        let mut text = String::from("# Summary\n\n");
        for Entry { file, part, depth } in &self.entries {
            if let Some(part) = part {
                let _ = writeln!(text, "\n# {part}\n");
            }
            // A line without a bullet is a page before the numbered ones.
            let bullet = if file.path == "README.md" { "" } else { "- " };
            let _ = writeln!(text, "{}{bullet}[{}]({})", "  ".repeat(*depth), title(file), file.path);
        }
        text
    }
}

fn is_page(path: &str) -> bool {
    path.ends_with(".md") && !path.starts_with(RAW)
}

/// Returns the targets of a list of links, one per line.
fn targets(list: &str) -> impl Iterator<Item = &str> {
    let lines = list.lines().filter(|line| line.starts_with("* ["));
    lines.filter_map(|line| line.split_once("](")?.1.split_once(')').map(|(target, _)| target))
}

/// Returns the first heading of a page.
fn title(file: &SourceFile) -> &str {
    let heading = file.text.lines().find_map(|line| line.strip_prefix("# "));
    heading.unwrap_or(&file.path).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    fn tree() -> Vec<SourceFile> {
        let list =
            "# Documentation\n\n* [b](b.md): b\n* [a/](a/README.md): a\n* [x](../ARCHITECTURE.md): x\n";
        let mut files = vec![
            file("README.md", "# Ringroad\n"),
            file(LIST, list),
            file("docs/b.md", "# The second\n"),
            file("docs/a/README.md", "# The first\n"),
            file("docs/a/one.md", "# One\n"),
            file("docs/experiments/raw/x.md", "raw\n"),
            file("examples/README.md", "# Examples\n"),
        ];
        files.extend(DEVELOPMENT.map(|path| file(path, "# Page\n")));
        files
    }

    #[test]
    fn the_page_list_has_the_order_of_the_documentation() {
        let files = tree();
        let pages = Pages::of(&files).expect("nothing is missing");
        let expected = "# Summary\n\n[Ringroad](README.md)\n\n# Documentation\n\n- [Documentation](docs/README.md)\n\
                        - [The second](docs/b.md)\n- [The first](docs/a/README.md)\n  - [One](docs/a/one.md)\n";
        let summary = pages.summary();
        assert!(summary.starts_with(expected), "{summary}");
        assert!(pages.contains("SECURITY.md") && !pages.contains("docs/experiments/raw/x.md"));
    }

    #[test]
    fn an_unlisted_page_is_a_problem() {
        let mut files = tree();
        files.push(file("docs/lost.md", "# Lost\n"));
        let failure = Pages::of(&files).err().expect("a problem").to_string();
        assert!(failure.contains("docs/lost.md: docs/README.md does not list it"), "{failure}");
        files.retain(|file| !file.path.ends_with("b.md") && !file.path.ends_with("lost.md"));
        let failure = Pages::of(&files).err().expect("a problem").to_string();
        assert!(failure.contains("docs/b.md: the page is listed but does not exist"), "{failure}");
    }
}
