//! The human-readable forms of the report: one self-contained HTML page (no external scripts, fonts or images, enforced
//! by its content security policy), and Markdown.
//!
//! Both are templates ([`TEMPLATES`]) over one model ([`view`]), with these rules:
//!
//! * All text is escaped by the rule of the file type, independent of its origin.
//! * Colour alone never carries meaning: verdicts are words, series differ by dashes and markers, a missing figure has
//!   its reason.
//! * Tables have headers with a scope, and a name; each plot has a title, a description and a table of its figures.
//! * Content fits the width of a phone: tables scroll within the page, and plots shrink while their text grows.
//! * Details are collapsed. The page alone suffices to judge a figure.
//! * Colours are CSS variables with one set of values per colour scheme; nothing else depends on the scheme.
//! * In print, the page is black on white, and collapsed sections stay collapsed.

mod view;

use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Output, State, Value, context};

use crate::report::model::{Plot, Report};
use crate::report::{plot, text};

/// The templates; the extension of the file name selects the escaping.
const TEMPLATES: [(&str, &str); 6] = [
    ("drawing.svg", include_str!("../templates/drawing.svg")),
    ("plot.svg", include_str!("../templates/plot.svg")),
    ("parts.html", include_str!("../templates/parts.html")),
    ("section.html", include_str!("../templates/section.html")),
    ("page.html", include_str!("../templates/page.html")),
    ("report.md", include_str!("../templates/report.md.j2")),
];

/// Style sheet of the pages: light and dark colour schemes, wide and narrow layouts.
const STYLE: &str = include_str!("../templates/page.css");

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
    environment.set_syntax(syntax.build().expect("the delimiters are those of every template language"));
    environment.set_auto_escape_callback(|name| match name.ends_with(".md") {
        true => AutoEscape::Custom("markdown".into()),
        false => AutoEscape::Html,
    });
    environment.set_formatter(write_escaped);
    // The style of the plots is first, so that the page can override it, for example for phones.
    environment.add_global("plot_style", plot::STYLE);
    environment.add_global("style", STYLE);
    for (name, source) in TEMPLATES {
        environment.add_template(name, source).expect("a test renders each of these templates");
    }
    environment
});

/// Writes an escaped template value. A missing value writes nothing.
fn write_escaped(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_undefined() || value.is_none() {
        return Ok(());
    }
    let words = value.to_string();
    let written = match state.auto_escape() {
        _ if value.is_safe() => out.write_str(&words),
        AutoEscape::Html => out.write_str(&text::escape_html(&words)),
        _ => out.write_str(&text::escape_markdown(&words)),
    };
    written.map_err(Error::from)
}

fn render(name: &str, model: Value) -> String {
    let rendered = ENVIRONMENT.get_template(name).and_then(|template| template.render(model));
    rendered.expect("a template needs nothing but its model, which always has the same names")
}

pub(crate) fn page(report: &Report) -> String {
    render("page.html", view::report(report))
}

/// Renders the plots of a section as separate files, in the same colours as on the page; a plot without points has none.
pub(crate) fn plots(plots: &[Plot]) -> impl Iterator<Item = (&Plot, String)> {
    let styles = plot::styles(plots);
    let drawn = plots.iter().filter(|one| !plot::is_empty(one));
    drawn.map(move |one| (one, render("plot.svg", context! { plot => plot::model(one, &styles) })))
}

/// Renders tables and findings, with plots as separate files, for a repository or an issue; the page has more details.
pub(crate) fn markdown(report: &Report) -> String {
    let text = render("report.md", view::report(report));
    // Exactly one line break at the end.
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::view::table;
    use super::*;
    use crate::method::stats::Summary;
    use crate::report::model::{
        Axis, AxisScale, Cell, Column, Fact, Finding, Row, Run, Section, Series, Table, Verdict,
    };
    use crate::report::text::escape_html as escape;

    /// Returns a sample report that contains every element of a report.
    fn sample() -> Report {
        serde_json::from_str(include_str!("../../../fixtures/made-up.json")).unwrap()
    }

    fn part<'a>(html: &'a str, from: &str, to: &str) -> &'a str {
        let start = html.find(from).unwrap_or_else(|| panic!("no {from}"));
        let length = html[start..].find(to).unwrap_or_else(|| panic!("no {to} behind {from}"));
        &html[start..start + length]
    }

    #[test]
    fn the_page_loads_nothing_external_and_escapes_markup() {
        let html = page(&sample());
        for foreign in ["<script", "src=", "@import", "url(", "<iframe", "<b>"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }

    #[test]
    fn every_plot_has_all_its_series_keys_and_a_table() {
        let report = sample();
        let html = page(&report);
        let plots: Vec<_> = report.sections.iter().flat_map(|section| &section.plots).collect();
        assert!(plots.len() >= 7);
        for plot in plots {
            let figure = part(&html, &format!("<figure class=\"plot\" id=\"{}\"", plot.id), "</figure>");
            let series = plot.series.len();
            assert_eq!(figure.matches("<g class=\"series").count(), series, "{}", plot.id);
            assert_eq!(figure.matches("<li>").count(), series, "{}", plot.id);
            let drawn = plot.series.iter().filter(|series| !series.points.is_empty()).count();
            assert_eq!(figure.matches("class=\"line\" d=\"M").count(), drawn + series, "{}", plot.id);
            assert!(figure.contains("<desc") && figure.contains("<summary>Figures</summary>"));
            for series in &plot.series {
                assert_eq!(figure.matches(&format!("data-name=\"{}\"", escape(&series.name))).count(), 1);
            }
        }
    }

    #[test]
    fn results_are_first_and_the_write_up_before_our_table() {
        let html = page(&sample());
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
        let order = [
            "<h2>Results</h2>",
            "Settings for this machine</h3>",
            "Scenarios and claims</h2>",
            "The machine</h2>",
        ];
        assert!(order.map(at).is_sorted(), "{order:?}");
        let cold = &html[at("id=\"s4-cold\"")..];
        let at = |text: &str| cold.find(text).unwrap_or_else(|| panic!("no {text}"));
        let order = [
            at("How much of files"),
            at("<figure class=\"standing\">"),
            at("The write-up: [PATCH]"),
            at("600 (1\u{202f}000 with 200 connections)"),
            at("On this machine</h3>"),
            at("<figure class=\"plot\""),
            at("Verdicts on the claims"),
            at("Not measured</h3>"),
            at("2 configurations</summary>"),
            at("The machine, second by second</summary>"),
            at("12 single measurements</summary>"),
        ];
        assert!(order.is_sorted(), "{order:?}");
    }

    #[test]
    fn failures_are_shown() {
        let mut report = sample();
        report.incomplete = Some("interrupted <at> cold".to_owned());
        report.scale = "quick".to_owned();
        let html = page(&report);
        for text in [
            "Incomplete: interrupted &lt;at&gt; cold.",
            "A quick run",
            "1 of 12 measurements were disturbed",
            "steal 4 % of the time",
            "No result: /var/tmp has 310 MiB free",
            "this nginx is built without --with-file-aio</td>",
            "<span class=\"verdict fails\">broken</span>",
            "<td class=\"missing broken\">it ended with signal 9</td>",
        ] {
            assert!(html.contains(text), "{text}");
        }
    }

    #[test]
    fn a_write_up_is_expanded_once_and_collapsed_afterwards() {
        let html = page(&sample());
        assert_eq!(
            html.matches("<aside class=\"writeup\">\n<h3>The write-up: io_uring optimises nginx").count(),
            1
        );
        assert_eq!(html.matches("io_uring optimises nginx: a practice report (as above)").count(), 1);
    }

    #[test]
    fn a_failed_scenario_shows_the_write_up_that_it_would_have_repeated() {
        let failure = crate::failure::Failure::Interrupted;
        let report = Report { sections: vec![Section::failed("disk", &failure)], ..Report::default() };
        let html = page(&report);
        assert!(
            html.contains("fio&#39;s figures for one process") && html.contains("No result: interrupted")
        );
    }

    #[test]
    fn every_kind_of_cell_is_formatted() {
        let figure =
            Cell::Figure { summary: Summary { median: 1234.5, low: 1200.0, high: 1300.0 }, decimals: 1 };
        let cells = vec![figure, Cell::Text("60M".to_owned()), Cell::Text("up to 8".to_owned())];
        let missing = vec![Cell::Missing("needs <root>".to_owned()); 3];
        let one = Table {
            title: "A & B".to_owned(),
            columns: vec![Column::new("4k", "MB/s"), Column::new("read", ""), Column::new("workers", "")],
            rows: vec![
                Row { name: "ring".to_owned(), cells },
                Row { name: "\"libaio\"".to_owned(), cells: missing },
            ],
        };
        let model = table(&one, "Twice.");
        let template = "{% from 'parts.html' import table %}{{ table(one) }}";
        let html = ENVIRONMENT.render_named_str("t.html", template, context! { one => model }).unwrap();
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

    fn small() -> Report {
        let axis = |name: &str| Axis { name: name.to_owned(), unit: String::new(), scale: AxisScale::Linear };
        let figure =
            Cell::Figure { summary: Summary { median: 150_300.0, low: 1.0, high: 2e5 }, decimals: 0 };
        let section = Section {
            scenario: "http".to_owned(),
            title: "Answers".to_owned(),
            question: "What does a request cost?".to_owned(),
            tables: vec![Table {
                title: "return 200".to_owned(),
                columns: vec![Column::new("requests", "1/s")],
                rows: vec![
                    Row { name: "io_uring".to_owned(), cells: vec![figure] },
                    Row {
                        name: "nginx".to_owned(),
                        cells: vec![Cell::Missing("not | installed".to_owned())],
                    },
                ],
            }],
            plots: vec![Plot {
                id: "http/../long".to_owned(),
                title: "Requests".to_owned(),
                x: axis("connections"),
                y: axis("requests"),
                series: vec![Series { name: "ring".to_owned(), points: vec![[1.0, 2.0]] }],
            }],
            findings: vec![Finding {
                claim: "A fifth more.".to_owned(),
                verdict: Verdict::Partly,
                sentence: "12 %.".to_owned(),
            }],
            skipped: vec![Fact::new("nginx", "not installed")],
            runs: vec![Run { disturbed: Some("steal".to_owned()), ..Run::default() }, Run::default()],
            ..Section::default()
        };
        Report {
            started: "2026-11-22T06:14:43Z".to_owned(),
            seconds: 61.0,
            command: vec!["http".to_owned()],
            scale: "quick".to_owned(),
            machine: vec![Fact::new("kernel", "6.18")],
            sections: vec![section],
            ..Report::default()
        }
    }

    #[test]
    fn the_complete_document_is_written() {
        let expected = "\
# Ringroad benchmark report

2026-11-22, 06:14 UTC · 61 s · `ringroad bench http`

> A quick run: each figure was measured briefly and mostly once. The figures are rough.

`report.html` beside this file also has charts, configurations and every single measurement; `report.json` is \
the data.

## The machine

* kernel: 6.18

## Answers

`ringroad bench http`

What does a request cost?

### On this machine

**return 200**

| | requests, 1/s |
|---|---:|
| io\\_uring | 150\u{202f}300 (1–200\u{202f}000) |
| nginx | no figure: not \\| installed |

![Requests](plots/http----long.svg)

### Verdicts on the claims

| claim | verdict | result |
|---|---|---|
| A fifth more. | holds in part | 12 %. |

### Not measured

* nginx: not installed

1 of 2 measurements were disturbed; the first disturbance: steal.
";
        assert_eq!(markdown(&small()), expected);
    }

    #[test]
    fn a_write_up_appears_once_with_its_figures() {
        let mut report = small();
        report.sections[0].write_up = Some("004".to_owned());
        report.sections.push(report.sections[0].clone());
        let text = markdown(&report);
        assert_eq!(
            text.matches("| long connections, one worker | 500 and more | 1 | more than 20 % more |").count(),
            1
        );
        assert_eq!(text.matches("See the write-up above").count(), 1);
    }
}
