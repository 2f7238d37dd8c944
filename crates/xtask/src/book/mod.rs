//! `cargo xtask book`: builds the documentation as a site with a search, by mdBook. The pages have the same paths in
//! the site as in the repository, so that the same links work in both.
//!
//! [`pages`] lists the pages in order, [`links`] rewrites their links, and [`site`] finds dead links in the result. The
//! site is `target/book/html`; it loads nothing from other servers. A machine without mdBook reports this and passes
//! the gate.

mod links;
mod pages;
mod site;

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, workspace};
use pages::Pages;

/// The command that installs mdBook. Only its feature `search` is needed; its other features serve the site and watch
/// for changes.
const INSTALL: &str = "cargo install mdbook --version 0.5.4 --locked --no-default-features --features search";

/// The mdBook settings of the site.
const SETTINGS: &str = r#"[book]
title = "Ringroad"
language = "en"

[build]
build-dir = "html"
create-missing = false

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true

[output.html.print]
enable = false

[output.html.fold]
enable = true
level = 0
"#;

/// The check of the gate.
pub(crate) fn check() -> Result<(), Failure> {
    let is_there =
        Command::new("mdbook").arg("--version").output().is_ok_and(|output| output.status.success());
    if is_there {
        return build();
    }
    println!("mdBook is not installed, so the site was not built: {INSTALL}");
    // Without the tool, only the list of pages is checked.
    Pages::of(&workspace::files()?).map(drop)
}

/// Builds the site and checks its links.
pub(crate) fn build() -> Result<(), Failure> {
    let book = folder();
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |error| Failure::File { path, error }
    };
    if book.exists() {
        std::fs::remove_dir_all(&book).map_err(failed(&book))?;
    }
    let files = workspace::files()?;
    let pages = Pages::of(&files)?;
    let mut written = vec![
        ("book.toml".to_owned(), SETTINGS.to_owned().into_bytes()),
        ("src/SUMMARY.md".to_owned(), pages.summary().into_bytes()),
    ];
    for page in pages.files() {
        let (text, linked) = links::prepare(page, &pages);
        written.push((format!("src/{}", page.path), text.into_bytes()));
        for file in linked {
            let from = workspace::root().join(&file.from);
            let bytes = std::fs::read(&from).map_err(failed(&from))?;
            written.push((format!("src/{}", file.to), bytes));
        }
    }
    for (name, bytes) in written {
        let path = book.join(name);
        let parent = path.parent().unwrap_or(&book).to_owned();
        std::fs::create_dir_all(&parent).map_err(failed(&parent))?;
        std::fs::write(&path, bytes).map_err(failed(&path))?;
    }
    workspace::run(Command::new("mdbook").arg("build").current_dir(&book))?;
    let site = site::read(&book.join("html"))?;
    println!("{} pages, {} links: {}", site.pages(), site.links(), book.join("html/index.html").display());
    Failure::unless_empty("the check of the site", site.problems())
}

/// Returns the output directory.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    workspace::root().join(target).join("book")
}
