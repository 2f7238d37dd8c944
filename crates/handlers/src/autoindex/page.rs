//! `autoindex_format page`: an HTML page, a format that nginx does not have. Its table has links for sorting. Sizes
//! have units, the colours are those of the reader's system, and the page has no script.

use std::cmp::Ordering;
use std::io::Write;

use http::date::Civil;
use http::uri::{Escape, escape, escape_html};

use crate::autoindex::listing::{Entry, EntryKind};

/// Maximum number of entries that are sorted in another order; longer listings are sorted by name. Sorting is one step
/// of the thread, a few milliseconds for this number.
pub(super) const SORTED_MAX: usize = 20_000;

/// The sort key of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Size,
    Date,
}

/// The order that the query requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    key: Key,
    descending: bool,
}

impl Order {
    /// Parses `sort=name`, `sort=size` or `sort=date`, and `order=desc`; anything else means by name.
    pub(super) fn of(args: &[u8]) -> Order {
        let key = match http::uri::arg(args, b"sort") {
            Some(b"size") => Key::Size,
            Some(b"date") => Key::Date,
            _ => Key::Name,
        };
        Order { key, descending: http::uri::arg(args, b"order") == Some(b"desc") }
    }

    /// Sorts a listing that is sorted by name; directories remain first.
    pub(super) fn sort(self, entries: &mut [Entry]) {
        let is_file = |entry: &Entry| entry.kind != EntryKind::Directory;
        let by = |a: &Entry, b: &Entry| match self.key {
            Key::Name => Ordering::Equal,
            Key::Size if is_file(a) => a.size.cmp(&b.size),
            Key::Size => Ordering::Equal,
            Key::Date => a.modified.cmp(&b.modified),
        };
        if self.descending && self.key == Key::Name {
            entries.reverse();
        }
        entries.sort_by(|a, b| {
            let in_order = if self.descending { by(b, a) } else { by(a, b) };
            is_file(a).cmp(&is_file(b)).then(in_order)
        });
    }
}

const STYLE: &str = "
:root{color-scheme:light dark;--text:#1c1e21;--soft:#646a73;--line:#e3e5e8;--back:#fff;--link:#0b57d0;--hover:#f3f5f8}
@media(prefers-color-scheme:dark){:root{--text:#e4e6ea;--soft:#9aa1ab;--line:#30343a;--back:#17191c;--link:#8ab4f8;--hover:#212429}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem;max-width:64rem;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}
h1{margin:0 0 1rem;font-size:1.25rem;font-weight:600;overflow-wrap:anywhere}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
table{width:100%;border-collapse:collapse}
th,td{padding:.4rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-size:.85rem;font-weight:600;white-space:nowrap}th a{color:var(--soft)}
tbody tr:hover{background:var(--hover)}
.n{width:100%;overflow-wrap:anywhere}
.s,.d{white-space:nowrap;color:var(--soft);font-variant-numeric:tabular-nums}.s{text-align:right}
p{margin:1rem .5rem 0;color:var(--soft);font-size:.85rem}
@media(max-width:36rem){body{padding:.75rem}th,td{padding:.5rem .3rem}.d span{display:none}}
";

/// A page being written.
pub(super) struct Page {
    order: Order,
    /// Whether it has links for sorting.
    is_sorted: bool,
    /// Offset of times from UTC in seconds.
    offset_s: i64,
    directories: u64,
    files: u64,
    bytes: u64,
}

impl Page {
    /// Returns a page in this order.
    pub(super) fn new(order: Order, is_sorted: bool, offset_s: i64) -> Page {
        Page { order, is_sorted, offset_s, directories: 0, files: 0, bytes: 0 }
    }

    /// Writes the text before the first entry: the path as links, and the column headers.
    pub(super) fn begin(&self, uri: &[u8], out: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(uri);
        out.extend_from_slice(b"<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
        out.extend_from_slice(
            b"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
        );
        escape_html(text.as_bytes(), out);
        out.extend_from_slice(b"</title>\n<style>");
        out.extend_from_slice(STYLE.as_bytes());
        out.extend_from_slice(b"</style>\n<h1>Index of ");
        path_links(uri, out);
        out.extend_from_slice(b"</h1>\n<table>\n<thead><tr>");
        for (key, class, title, name) in [
            (Key::Name, "n", "Name", "name"),
            (Key::Size, "s", "Size", "size"),
            (Key::Date, "d", "Modified", "date"),
        ] {
            self.head(key, class, title, name, out);
        }
        out.extend_from_slice(b"</thead>\n<tbody>\n");
        if uri.len() > 1 {
            out.extend_from_slice(
                b"<tr><td class=\"n\"><a href=\"../\">../</a><td class=\"s\"><td class=\"d\">\n",
            );
        }
    }

    /// Writes a column header. A link for the current sort key reverses the order; sizes and dates begin with the
    /// largest and latest.
    fn head(&self, key: Key, class: &str, title: &str, name: &str, out: &mut Vec<u8>) {
        let is_current = self.order.key == key;
        let descending = if is_current { !self.order.descending } else { key != Key::Name };
        let order = if descending { "&amp;order=desc" } else { "" };
        let (arrow, sort) = match (is_current, self.order.descending) {
            (false, _) => ("", ""),
            (true, false) => (" \u{2191}", " aria-sort=\"ascending\""),
            (true, true) => (" \u{2193}", " aria-sort=\"descending\""),
        };
        // Writing to a `Vec` cannot fail.
        let _ = match self.is_sorted {
            true => {
                write!(out, "<th class=\"{class}\"{sort}><a href=\"?sort={name}{order}\">{title}{arrow}</a>")
            }
            false => write!(out, "<th class=\"{class}\">{title}"),
        };
    }

    /// Writes a row.
    pub(super) fn entry(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        let is_folder = entry.kind == EntryKind::Directory;
        let slash = if is_folder { "/" } else { "" };
        out.extend_from_slice(b"<tr><td class=\"n\"><a href=\"");
        escape(Escape::UriComponent, &entry.name, out);
        let _ = write!(out, "{slash}\">");
        escape_html(String::from_utf8_lossy(&entry.name).as_bytes(), out);
        let _ = write!(out, "{slash}</a>");
        match entry.kind {
            EntryKind::File => {
                let _ = write!(out, "<td class=\"s\" title=\"{} bytes\">{}", entry.size, human(entry.size));
                self.files += 1;
                self.bytes += entry.size;
            }
            EntryKind::Directory => {
                out.extend_from_slice(b"<td class=\"s\">");
                self.directories += 1;
            }
            EntryKind::Other => out.extend_from_slice(b"<td class=\"s\">"),
        }
        let Civil { year, month, day, hour, minute, .. } =
            Civil::from_unix((entry.modified + self.offset_s).max(0));
        let _ =
            writeln!(out, "<td class=\"d\">{year:04}-{month:02}-{day:02}<span> {hour:02}:{minute:02}</span>");
    }

    /// Writes the text after the last entry, with the numbers of directories and files and their total size.
    pub(super) fn end(&self, out: &mut Vec<u8>) {
        let counted =
            |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        let _ = writeln!(
            out,
            "</table>\n<p>{}, {}, {}</p>",
            counted(self.directories, "directory", "directories"),
            counted(self.files, "file", "files"),
            human(self.bytes)
        );
    }
}

/// Writes the directories of a path as links, which are relative so that they work behind proxies too.
fn path_links(uri: &[u8], out: &mut Vec<u8>) {
    let names: Vec<&[u8]> = uri.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    let up = |count: usize| if count == 0 { "./".to_owned() } else { "../".repeat(count) };
    let _ = write!(out, "<a href=\"{}\">/</a>", up(names.len()));
    for (index, name) in names.iter().enumerate() {
        let _ = write!(out, "<a href=\"{}\">", up(names.len() - 1 - index));
        escape_html(String::from_utf8_lossy(name).as_bytes(), out);
        out.extend_from_slice(b"</a>/");
    }
}

/// Returns a size with three digits: `999 B`, `1.5 KiB`, `23 MiB`.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    for unit in UNITS {
        value /= 1024.0;
        if value < 9.95 {
            return format!("{value:.1} {unit}");
        }
        if value < 999.5 {
            return format!("{value:.0} {unit}");
        }
    }
    format!("{value:.0} EiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: EntryKind, size: u64, modified: i64) -> Entry {
        Entry { name: name.as_bytes().into(), kind, size, modified }
    }

    #[test]
    fn directories_are_listed_first_in_every_order() {
        let list = [
            entry("d", EntryKind::Directory, 9, 5),
            entry("e", EntryKind::Directory, 1, 9),
            entry("a", EntryKind::File, 7, 3),
            entry("b", EntryKind::File, 7, 1),
            entry("c", EntryKind::File, 2, 8),
        ];
        for (args, expected) in [
            ("", "d e a b c"),
            ("sort=x&order=x", "d e a b c"),
            ("sort=name&order=desc", "e d c b a"),
            ("sort=size", "d e c a b"),
            ("sort=size&order=desc", "d e a b c"),
            ("sort=date", "d e b a c"),
            ("order=desc&sort=date", "e d c a b"),
        ] {
            let mut list = list.to_vec();
            Order::of(args.as_bytes()).sort(&mut list);
            let names: Vec<_> = list.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
            assert_eq!(names.join(" "), expected, "{args}");
        }
    }

    #[test]
    fn sizes_have_three_digits() {
        const M: u64 = 1 << 20;
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 * 1024, "10 KiB"),
            (999 * 1024, "999 KiB"),
            (1000 * 1024, "1.0 MiB"),
            (23 * M, "23 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn file_names_are_escaped_in_the_page() {
        let mut out = Vec::new();
        let mut page = Page::new(Order::of(b""), true, 0);
        page.begin(b"/<a>/\xff/", &mut out);
        page.entry(&entry("\"><script>", EntryKind::File, 1, 0), &mut out);
        page.entry(
            &Entry { name: b"\xff".as_slice().into(), kind: EntryKind::Other, size: 0, modified: -1 },
            &mut out,
        );
        page.end(&mut out);
        let text = String::from_utf8(out).expect("the page is UTF-8 whatever the names are");
        assert!(!text.contains("<script") && !text.contains("<a>"), "{text}");
        assert!(text.contains("<a href=\"%22%3E%3Cscript%3E\">"), "{text}");
        assert!(text.contains("<a href=\"%FF\">\u{fffd}</a>"), "{text}");
        assert!(text.contains("<p>0 directories, 1 file, 1 B</p>"), "{text}");
    }
}
