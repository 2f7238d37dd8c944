//! Tables of the page: figures with their spread below them, reasons where there is no figure.

use std::fmt::Write;

use super::escape;
use crate::report::model::{Cell, Table};
use crate::report::text;

/// What stands above a table.
pub(crate) struct Caption<'a> {
    pub(crate) title: &'a str,
    /// "" for nothing.
    pub(crate) remark: &'a str,
}

/// A table that scrolls by itself where the page is too narrow for it.
pub(crate) fn table(table: &Table, caption: &Caption<'_>) -> String {
    let title = escape(caption.title);
    // Not a caption element: that one is as narrow as the table.
    let mut html = format!("<div class=\"titled\">\n<p class=\"caption\">{title}</p>\n");
    if !caption.remark.is_empty() {
        let _ = writeln!(html, "<p class=\"remark\">{}</p>", escape(caption.remark));
    }
    // The region can be reached and scrolled by keyboard, and is named for who does not see what scrolls.
    let _ = write!(
        html,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n\
         <table aria-label=\"{title}\">\n<thead><tr><td></td>"
    );
    // A column is aligned as a whole: figures under figures, words under words.
    let numeric: Vec<bool> = (0..table.columns.len())
        .map(|at| table.rows.iter().filter_map(|row| row.cells.get(at)).all(may_be_numeric))
        .collect();
    for (column, numeric) in table.columns.iter().zip(&numeric) {
        let class = if *numeric { " class=\"n\"" } else { "" };
        let unit = if column.unit.is_empty() {
            String::new()
        } else {
            format!("<small>{}</small>", escape(&column.unit))
        };
        let _ = write!(html, "<th scope=\"col\"{class}>{}{unit}</th>", escape(&column.name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        // Said once where the row begins, in a word and not by colour alone.
        let is_broken = row.cells.iter().any(|cell| matches!(cell, Cell::Broken(_)));
        let broken = if is_broken { " <span class=\"verdict fails\">broken</span>" } else { "" };
        let _ = write!(html, "<tr><th scope=\"row\"><span>{}{broken}</span></th>", escape(&row.name));
        for (at, one) in row.cells.iter().enumerate() {
            html.push_str(&cell(one, numeric.get(at).copied().unwrap_or(false)));
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody>\n</table>\n</div>\n</div>\n"
}

fn cell(cell: &Cell, numeric: bool) -> String {
    let class = if numeric { " class=\"n\"" } else { "" };
    match cell {
        Cell::Figure { summary, decimals } => {
            let (median, spread) = text::with_spread(summary, *decimals);
            let spread = spread.map(|spread| format!("<small>{spread}</small>")).unwrap_or_default();
            format!("<td{class}>{median}{spread}</td>")
        }
        Cell::Text(words) => format!("<td{class}>{}</td>", escape(words)),
        // The reason is text among figures: it wraps, and is set apart by its colour and a dash.
        Cell::Missing(reason) => format!("<td class=\"missing\">{}</td>", escape(reason)),
        Cell::Broken(reason) => format!("<td class=\"missing broken\">{}</td>", escape(reason)),
    }
}

/// Figures, texts such as "60M" and "1344", and what stands in their place: all that a column of figures has.
fn may_be_numeric(cell: &Cell) -> bool {
    match cell {
        Cell::Figure { .. } | Cell::Missing(_) | Cell::Broken(_) => true,
        Cell::Text(words) if words.is_empty() || words == "–" => true,
        Cell::Text(words) => {
            words.trim_start_matches('−').starts_with(|first: char| first.is_ascii_digit())
                && words.chars().filter(|letter| letter.is_alphabetic()).count() <= 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::stats::Summary;
    use crate::report::model::{Column, Row};

    #[test]
    fn every_kind_of_cell_has_its_form() {
        let column = |name: &str, unit: &str| Column { name: name.to_owned(), unit: unit.to_owned() };
        let figure =
            Cell::Figure { summary: Summary { median: 1234.5, low: 1200.0, high: 1300.0 }, decimals: 1 };
        let cells = vec![figure, Cell::Text("60M".to_owned()), Cell::Text("up to 8".to_owned())];
        let missing = vec![Cell::Missing("needs <root>".to_owned()); 3];
        let one = Table {
            title: "A & B".to_owned(),
            columns: vec![column("4k", "MB/s"), column("read", ""), column("workers", "")],
            rows: vec![
                Row { name: "ring".to_owned(), cells },
                Row { name: "\"libaio\"".to_owned(), cells: missing },
            ],
        };
        let html = table(&one, &Caption { title: &one.title, remark: "Twice." });
        let expected = "\
<div class=\"titled\">
<p class=\"caption\">A &amp; B</p>
<p class=\"remark\">Twice.</p>
<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"A &amp; B\">
<table aria-label=\"A &amp; B\">
<thead><tr><td></td><th scope=\"col\" class=\"n\">4k<small>MB/s</small></th><th scope=\"col\" class=\"n\">read</th>\
<th scope=\"col\">workers</th></tr></thead>
<tbody>
<tr><th scope=\"row\"><span>ring</span></th><td class=\"n\">1\u{202f}234.5<small>1\u{202f}200.0–1\u{202f}300.0</small></td>\
<td class=\"n\">60M</td><td>up to 8</td></tr>
<tr><th scope=\"row\"><span>&quot;libaio&quot;</span></th><td class=\"missing\">needs &lt;root&gt;</td>\
<td class=\"missing\">needs &lt;root&gt;</td><td class=\"missing\">needs &lt;root&gt;</td></tr>
</tbody>
</table>
</div>
</div>
";
        assert_eq!(html, expected);
    }
}
