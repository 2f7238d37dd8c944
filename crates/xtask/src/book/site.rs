//! Checks the links of the generated site: each must lead to an existing file and heading, and nothing may be loaded
//! from other servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Failure;

/// The pages of a site, by path.
pub(super) struct Site {
    root: PathBuf,
    pages: BTreeMap<PathBuf, Page>,
}

struct Page {
    /// Link targets.
    links: Vec<String>,
    /// URLs that the browser loads for the page.
    loads: Vec<String>,
    /// Ids that links can refer to.
    ids: BTreeSet<String>,
}

/// A page that mdBook generates for servers, which no link refers to.
const NOT_FOUND: &str = "404.html";

/// Reads all pages below a directory.
pub(super) fn read(root: &Path) -> Result<Site, Failure> {
    let (mut pages, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let failed = |error| Failure::File { path: folder.clone(), error };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "html") && !path.ends_with(NOT_FOUND) {
                let text = std::fs::read_to_string(&path).map_err(failed)?;
                pages.insert(path, Page::of(&text));
            }
        }
    }
    Ok(Site { root: root.to_owned(), pages })
}

impl Page {
    fn of(html: &str) -> Page {
        let mut page = Page { links: Vec::new(), loads: Vec::new(), ids: BTreeSet::new() };
        for tag in html.split('<').skip(1) {
            let Some(tag) = tag.split('>').next() else { continue };
            let name = tag.split_ascii_whitespace().next().unwrap_or_default();
            page.ids.extend(attribute(tag, "id"));
            match name {
                "a" => page.links.extend(attribute(tag, "href")),
                "link" => page.loads.extend(attribute(tag, "href")),
                _ => page.loads.extend(attribute(tag, "src")),
            }
        }
        page
    }
}

impl Site {
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn links(&self) -> usize {
        self.pages.values().map(|page| page.links.len()).sum()
    }

    /// Returns the problems, one line each.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (path, page) in &self.pages {
            let name = path.strip_prefix(&self.root).unwrap_or(path).display();
            for target in &page.links {
                if !target.contains(':') && !self.has_target(path, target) {
                    problems.push(format!("{name}: link to {target}, which does not exist"));
                }
            }
            for target in page.loads.iter().filter(|target| !target.starts_with("data:")) {
                if target.contains(':') || !self.has_target(path, target) {
                    problems.push(format!("{name}: loads {target}, which is not in the site"));
                }
            }
        }
        problems
    }

    fn has_target(&self, page: &Path, target: &str) -> bool {
        let (path, part) = target.split_once('#').map_or((target, None), |(path, part)| (path, Some(part)));
        let mut found = page.parent().unwrap_or(page).to_owned();
        for step in path.split('/') {
            match step {
                "" | "." => {}
                ".." => drop(found.pop()),
                step => found.push(step),
            }
        }
        let found = if path.is_empty() { page.to_owned() } else { found };
        match (self.pages.get(&found), part) {
            (Some(page), Some(part)) => page.ids.contains(part),
            (Some(_), None) => true,
            (None, _) => found.is_file(),
        }
    }
}

/// Returns the value of a quoted attribute.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    Some(value.replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_and_external_resources_are_found() {
        let html = "<a href=\"b.html#x\">1</a><a class=\"c\" href=\"b.html#y\">2</a><a href=\"none.html\">3</a><a href=\"#here\">4</a>\
                    <a href=\"https://example.org\">5</a><h1 id=\"here\"></h1><img src=\"https://example.org/a.svg\">";
        let root = PathBuf::from("/site");
        let pages = [(root.join("a.html"), Page::of(html)), (root.join("b.html"), Page::of("<h2 id=\"x\">"))];
        let site = Site { root, pages: pages.into() };
        assert_eq!(
            site.problems(),
            [
                "a.html: link to b.html#y, which does not exist",
                "a.html: link to none.html, which does not exist",
                "a.html: loads https://example.org/a.svg, which is not in the site"
            ]
        );
    }
}
