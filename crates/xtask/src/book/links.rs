//! Rewrites link targets for the site: links to pages stay unchanged, other files are copied, and a link to a directory
//! becomes one to its page, or plain text.

use super::pages::Pages;
use crate::workspace::{self, SourceFile};

/// A file that a page links to and that is not a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CopiedFile {
    /// Path in the repository.
    pub(super) from: String,
    /// Path in the site.
    pub(super) to: String,
}

/// The replacement of a link.
enum Replacement {
    Same,
    /// A new target.
    Target(String),
    /// Only the text of the link.
    Text,
}

/// Returns the text of a page for the site, and the files to be copied.
pub(super) fn prepare(page: &SourceFile, pages: &Pages<'_>) -> (String, Vec<CopiedFile>) {
    let (mut out, mut linked, mut is_code) = (String::with_capacity(page.text.len()), Vec::new(), false);
    for line in page.text.split_inclusive('\n') {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            out.push_str(line);
        } else {
            rewrite(line, &mut out, &mut |target| replacement(target, page, pages, &mut linked));
        }
    }
    (out, linked)
}

/// Copies a line with its links rewritten. A link may begin in the previous line.
fn rewrite(line: &str, out: &mut String, replacement: &mut dyn FnMut(&str) -> Replacement) {
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let Some(len) = rest[at + 2..].find(')') else { break };
        let (before, target) = (&rest[..at], &rest[at + 2..at + 2 + len]);
        out.push_str(before);
        let start = out.rfind('[');
        match (replacement(target), start) {
            (Replacement::Target(target), _) => out.push_str(&format!("]({target})")),
            (Replacement::Text, Some(start)) => {
                out.remove(start);
            }
            (Replacement::Same | Replacement::Text, _) => out.push_str(&rest[at..at + 3 + len]),
        }
        rest = &rest[at + 3 + len..];
    }
    out.push_str(rest);
}

fn replacement(
    target: &str,
    page: &SourceFile,
    pages: &Pages<'_>,
    linked: &mut Vec<CopiedFile>,
) -> Replacement {
    if target.starts_with('#') || target.contains("://") || target.starts_with("mailto:") {
        return Replacement::Same;
    }
    let (target_path, part) = target.split_at(target.find('#').unwrap_or(target.len()));
    let path = resolved(&page.path, target_path);
    // mdBook names the page of a directory `index`, but does not rewrite links to it.
    if let Some(folder) = target_path.strip_suffix("README.md").filter(|_| pages.contains(&path)) {
        return Replacement::Target(format!("{folder}index.md{part}"));
    }
    if pages.contains(&path) {
        return Replacement::Same;
    }
    if pages.contains(&format!("{path}/README.md")) {
        return Replacement::Target(format!("{}/index.md{part}", target_path.trim_end_matches('/')));
    }
    if !workspace::root().join(&path).is_file() {
        return Replacement::Text;
    }
    // mdBook copies all files except Markdown files.
    let copied =
        |path: &str| path.strip_suffix(".md").map_or(path.to_owned(), |start| format!("{start}.txt"));
    linked.push(CopiedFile { to: copied(&path), from: path });
    Replacement::Target(copied(target_path))
}

/// Resolves a link target relative to a page; returns the path from the root.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_do_not_work_in_the_site_are_rewritten() {
        let files = workspace::files().expect("the repository is readable");
        let pages = Pages::of(&files).expect("the list is whole");
        let text = "[a](logging.md#x) ![b](../bench/aims.json) [`c`](../crates) [d](decisions) [h](guides/README.md#x)\n\
                    [e](https://example.org) [f](experiments/raw/http2-priorities/README.md)\n```text\n[g](../crates)\n```\n";
        let page = SourceFile { path: "docs/page.md".to_owned(), text: text.to_owned() };
        let (out, linked) = prepare(&page, &pages);
        let expected = "[a](logging.md#x) ![b](../bench/aims.json) `c` [d](decisions/index.md) [h](guides/index.md#x)\n\
                        [e](https://example.org) [f](experiments/raw/http2-priorities/README.txt)\n```text\n[g](../crates)\n```\n";
        assert_eq!(out, expected);
        let file = |from: &str, to: &str| CopiedFile { from: from.to_owned(), to: to.to_owned() };
        let raw = "docs/experiments/raw/http2-priorities/README";
        assert_eq!(
            linked,
            [file("bench/aims.json", "bench/aims.json"), file(&format!("{raw}.md"), &format!("{raw}.txt"))]
        );
    }
}
