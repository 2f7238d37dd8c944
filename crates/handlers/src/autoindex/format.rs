//! Directory listings as text. All formats except `page` are identical to nginx's.

use std::io::Write;

use http::date::{self, Civil};
use http::uri::{Escape, escape, escape_html};

use crate::autoindex::listing::{Entry, EntryKind};

/// `autoindex_format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Html,
    Json,
    /// JSON as the argument of a function call.
    Jsonp,
    Xml,
    /// Ringroad's own HTML page.
    Page,
}

impl Form {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Form::Html => "text/html",
            Form::Page => "text/html; charset=utf-8",
            Form::Json => "application/json",
            Form::Jsonp => "application/javascript",
            // Even if names are not UTF-8: their bytes are sent unchanged, as in nginx.
            Form::Xml => "text/xml; charset=utf-8",
        }
    }
}

/// A listing that is being written.
pub(super) struct Writer {
    pub(super) form: Form,
    /// `autoindex_exact_size`
    pub(super) exact_size: bool,
    /// Offset from UTC in seconds of the times in HTML.
    pub(super) offset_s: i64,
    /// Whether names are UTF-8, which decides how columns are counted.
    pub(super) utf8: bool,
    pub(super) out: Vec<u8>,
}

/// Number of columns for a name in HTML.
const NAME_COLUMNS: usize = 50;

/// Number of columns of a truncated name; the remaining ones mark the truncation.
const CUT_COLUMNS: usize = NAME_COLUMNS - 3;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Writer {
    /// Writes the text before the first entry. `callback` is the function of JSONP.
    pub(super) fn begin(&mut self, uri: &[u8], callback: &[u8]) {
        match self.form {
            Form::Html => {
                self.text("<html>\r\n<head><title>Index of ");
                escape_html(uri, &mut self.out);
                self.text("</title></head>\r\n<body>\r\n<h1>Index of ");
                escape_html(uri, &mut self.out);
                self.text("</h1><hr><pre><a href=\"../\">../</a>\r\n");
            }
            Form::Json => self.text("["),
            Form::Jsonp => {
                // As in nginx a comment precedes the call: the function name alone could look like the beginning of
                // another file type.
                self.text("/* callback */\r\n");
                self.out.extend_from_slice(callback);
                self.text("([");
            }
            Form::Page => {}
            Form::Xml => self.text("<?xml version=\"1.0\"?>\r\n<list>\r\n"),
        }
    }

    /// Writes an entry. Times before 1970 are shown as 1970, as in nginx.
    pub(super) fn entry(&mut self, entry: &Entry) {
        match self.form {
            Form::Html | Form::Page => self.html(entry),
            Form::Json | Form::Jsonp => self.json(entry),
            Form::Xml => self.xml(entry),
        }
    }

    /// Writes the text after the last entry.
    pub(super) fn end(&mut self) {
        match self.form {
            Form::Html => self.text("</pre><hr></body>\r\n</html>\r\n"),
            Form::Json | Form::Jsonp => {
                if self.out.last() == Some(&b',') {
                    self.out.pop();
                }
                self.text(if self.form == Form::Json { "\r\n]" } else { "\r\n]);" });
            }
            Form::Page => {}
            Form::Xml => self.text("</list>\r\n"),
        }
    }

    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Writes a line of the page: a link, blanks up to the column of the time, the time and the size.
    fn html(&mut self, entry: &Entry) {
        let is_folder = entry.kind == EntryKind::Directory;
        self.text("<a href=\"");
        // All reserved characters of a URI are escaped, including colons, because "a:" would be a scheme.
        escape(Escape::UriComponent, &entry.name, &mut self.out);
        self.text(if is_folder { "/\">" } else { "\">" });
        let mut columns = self.name(&entry.name);
        if columns > NAME_COLUMNS {
            self.text("..&gt;</a>");
        } else {
            // The slash is part of the name's columns, and is omitted if no column remains.
            if is_folder && columns < NAME_COLUMNS {
                self.text("/");
                columns += 1;
            }
            self.text("</a>");
            self.out.extend(std::iter::repeat_n(b' ', NAME_COLUMNS - columns));
        }
        let Civil { year, month, day, hour, minute, .. } =
            Civil::from_unix((entry.modified + self.offset_s).max(0));
        debug_assert!((1..=12).contains(&month), "months are 1-based");
        let month = MONTHS[usize::from(month) - 1];
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.out, " {day:02}-{month}-{year} {hour:02}:{minute:02} ");
        let _ = match (is_folder, self.exact_size) {
            (true, true) => write!(self.out, "{:>19}", "-"),
            (true, false) => write!(self.out, "{:>7}", "-"),
            (false, true) => write!(self.out, "{:>19}", entry.size),
            (false, false) => match rounded(entry.size) {
                (size, None) => write!(self.out, " {size:>6}"),
                (size, Some(unit)) => write!(self.out, "{size:>6}{unit}"),
            },
        };
        self.text("\r\n");
    }

    /// Writes the name as text of the page, truncated if it has too many columns; returns its number of columns.
    fn name(&mut self, name: &[u8]) -> usize {
        // Unless names are UTF-8, each byte is a column.
        let text = if self.utf8 { std::str::from_utf8(name).ok() } else { None };
        let columns = text.map_or(name.len(), |text| text.chars().count());
        let shown = match text {
            _ if columns <= NAME_COLUMNS => name,
            None => &name[..CUT_COLUMNS],
            Some(text) => {
                let end = text.char_indices().nth(CUT_COLUMNS).map_or(text.len(), |(index, _)| index);
                &name[..end]
            }
        };
        escape_html(shown, &mut self.out);
        columns
    }

    /// Writes an object with a comma; [`Writer::end`] removes the last comma.
    fn json(&mut self, entry: &Entry) {
        self.text("\r\n{ \"name\":\"");
        escape_json(&entry.name, &mut self.out);
        self.text("\", \"type\":\"");
        self.text(kind_name(entry.kind));
        self.text("\", \"mtime\":\"");
        self.out.extend_from_slice(&date::http(entry.modified.max(0)));
        self.text("\"");
        if entry.kind == EntryKind::File {
            let _ = write!(self.out, ", \"size\":{}", entry.size);
        }
        self.text(" },");
    }

    /// Writes an element named after the kind.
    fn xml(&mut self, entry: &Entry) {
        let kind = kind_name(entry.kind);
        let Civil { year, month, day, hour, minute, second, .. } = Civil::from_unix(entry.modified.max(0));
        let time = format_args!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
        let _ = write!(self.out, "<{kind} mtime=\"{time}\"");
        if entry.kind == EntryKind::File {
            let _ = write!(self.out, " size=\"{}\"", entry.size);
        }
        self.text(">");
        escape_html(&entry.name, &mut self.out);
        let _ = write!(self.out, "</{kind}>\r\n");
    }
}

/// Returns the name of a kind, which is the same in JSON and XML.
fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Directory => "directory",
        EntryKind::File => "file",
        EntryKind::Other => "other",
    }
}

/// Returns a size with its unit: small sizes exactly, others rounded to the nearest.
fn rounded(size: u64) -> (u64, Option<char>) {
    let round = |unit: u64| size / unit + u64::from(size % unit > unit / 2 - 1);
    match size {
        0x4000_0000.. => (round(1 << 30), Some('G')),
        0x10_0000.. => (round(1 << 20), Some('M')),
        10_000.. => (round(1 << 10), Some('K')),
        _ => (size, None),
    }
}

/// Appends text escaped as a JSON string.
fn escape_json(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            0..0x20 => {
                let _ = write!(out, "\\u{byte:04X}");
                continue;
            }
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, utf8: bool, exact_size: bool, entries: &[(&str, EntryKind, u64)]) -> String {
        let mut writer = Writer { form, exact_size, offset_s: 3600, utf8, out: Vec::new() };
        for &(name, kind, size) in entries {
            let name = name.as_bytes().into();
            writer.entry(&Entry { name, kind, size, modified: 951_782_400 });
        }
        String::from_utf8(writer.out).expect("the names are")
    }

    #[test]
    fn names_are_truncated_to_fifty_columns() {
        for (name, utf8, shown) in [
            ("x".repeat(50), false, "x".repeat(50) + "</a>"),
            ("x".repeat(51), false, "x".repeat(47) + "..&gt;</a>"),
            ("\u{e9}".repeat(50), true, "\u{e9}".repeat(50) + "</a>"),
            ("\u{e9}".repeat(51), true, "\u{e9}".repeat(47) + "..&gt;</a>"),
            ("\u{e9}".repeat(25), false, "\u{e9}".repeat(25) + "</a>"),
            ("&".repeat(51), false, "&amp;".repeat(47) + "..&gt;</a>"),
        ] {
            let text = written(Form::Html, utf8, true, &[(&name, EntryKind::File, 7)]);
            let (_, text) = text.split_once("\">").expect("a link");
            assert_eq!(text, format!("{shown} 29-Feb-2000 01:00                   7\r\n"));
        }
        let text = written(Form::Html, false, false, &[("a b", EntryKind::Directory, 0)]);
        let columns = " ".repeat(46);
        assert_eq!(text, format!("<a href=\"a%20b/\">a b/</a>{columns} 29-Feb-2000 01:00       -\r\n"));
        // No column remains for the slash.
        let text = written(Form::Html, false, true, &[(&"d".repeat(50), EntryKind::Directory, 0)]);
        assert!(text.contains(&("d".repeat(50) + "</a> 29-Feb")), "{text}");
    }

    #[test]
    fn sizes_are_rounded() {
        const G: u64 = 1 << 30;
        const M: u64 = 1 << 20;
        for (size, shown) in [
            (0, (0, None)),
            (9999, (9999, None)),
            (10_000, (10, Some('K'))),
            (10 * 1024 + 511, (10, Some('K'))),
            (10 * 1024 + 512, (11, Some('K'))),
            (M - 1, (1024, Some('K'))),
            (M, (1, Some('M'))),
            (M + M / 2, (2, Some('M'))),
            (G - 1, (1024, Some('M'))),
            (5 * G / 2 - 1, (2, Some('G'))),
            (5 * G / 2, (3, Some('G'))),
        ] {
            assert_eq!(rounded(size), shown, "{size}");
        }
    }

    #[test]
    fn machine_formats_have_utc_times_and_only_sizes_of_files() {
        let entries = [
            ("<d>", EntryKind::Directory, 9),
            ("\"\\\n\u{1f}", EntryKind::File, 7),
            ("&", EntryKind::Other, 9),
        ];
        assert_eq!(
            written(Form::Json, true, true, &entries),
            "\r\n{ \"name\":\"<d>\", \"type\":\"directory\", \"mtime\":\"Tue, 29 Feb 2000 00:00:00 GMT\" },\
             \r\n{ \"name\":\"\\\"\\\\\\n\\u001F\", \"type\":\"file\", \"mtime\":\"Tue, 29 Feb 2000 00:00:00 GMT\", \"size\":7 },\
             \r\n{ \"name\":\"&\", \"type\":\"other\", \"mtime\":\"Tue, 29 Feb 2000 00:00:00 GMT\" },"
        );
        assert_eq!(
            written(Form::Xml, true, true, &entries[..2]),
            "<directory mtime=\"2000-02-29T00:00:00Z\">&lt;d&gt;</directory>\r\n\
             <file mtime=\"2000-02-29T00:00:00Z\" size=\"7\">&quot;\\\n\u{1f}</file>\r\n"
        );
    }
}
