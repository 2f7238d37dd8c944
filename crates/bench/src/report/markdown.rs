//! The report as Markdown: tables and findings, with plots as files beside it. For a repository or an issue; the page has
//! more.

use std::fmt::Write;

use crate::report::model::{Fact, Report, Section, Table};
use crate::report::page::{scale_warning, verdict_words};
use crate::report::seeds::{self, Seed};
use crate::report::standing::{self, sentence};
use crate::report::{plot, text};

/// The whole document.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = format!(
        "# Ringroad benchmark report\n\n{} · {} · `ringroad bench {}`\n\n",
        text::moment(&report.started),
        text::duration(report.seconds),
        report.command.join(" ")
    );
    // The same warnings as on the page: this file is the one that gets pasted elsewhere.
    if let Some(warning) = scale_warning(&report.scale) {
        let _ = writeln!(out, "> {warning}\n");
    }
    if let Some(reason) = &report.incomplete {
        let _ = writeln!(out, "> Incomplete: {}.\n", escape(reason));
    }
    out.push_str(
        "`report.html` beside this file has the same with charts, configurations and every single measurement; \
         `report.json` is the data.\n\n",
    );
    results(&mut out, report);
    out.push_str("## The machine\n\n");
    facts(&mut out, &report.machine);
    if !report.peers.is_empty() {
        out.push_str("## Servers and tools\n\n");
        facts(&mut out, &report.peers);
    }
    for (at, section) in report.sections.iter().enumerate() {
        let seen_before = report.sections[..at].iter().any(|other| other.seed == section.seed);
        write_section(&mut out, section, seen_before);
    }
    // One line break at the end, as text files have it.
    while out.ends_with("\n\n") {
        out.pop();
    }
    out
}

/// Who leads in each comparison and by how much, and what to set on this machine.
fn results(out: &mut String, report: &Report) {
    let standings: Vec<_> = report.sections.iter().flat_map(|section| &section.standings).collect();
    if standings.is_empty() {
        return;
    }
    out.push_str("## Results\n\n");
    for one in standings {
        let _ = writeln!(out, "* {}: {}", escape(&one.title), escape(&sentence(one)));
        for (entrant, reason) in standing::broken(one) {
            let _ = writeln!(out, "  * broken: {}: {}", escape(&standing::name(entrant)), escape(reason));
        }
    }
    let (better, _) = standing::advice(report);
    if !better.is_empty() {
        out.push_str("\n### Settings for this machine\n\n");
        for one in better {
            let _ = writeln!(out, "* {}: `{}` ({})", escape(one.about), one.setting, escape(&one.because));
        }
    }
    out.push('\n');
}

/// One scenario, in the order of the page. What the page folds is left out: Markdown has no place to fold it.
fn write_section(out: &mut String, section: &Section, seen_before: bool) {
    let _ = writeln!(out, "## {}\n\n`ringroad bench {}`\n", escape(&section.title), section.scenario);
    if !section.question.is_empty() {
        let _ = writeln!(out, "{}\n", escape(&section.question));
    }
    if let Some(reason) = &section.failed {
        let _ = writeln!(out, "**No result:** {}\n", escape(reason));
    }
    match section.seed.as_deref().and_then(seeds::find) {
        Some(seed) if seen_before => {
            let _ = writeln!(out, "The write-up is the one above: {}.\n", escape(&seed.title));
        }
        Some(seed) => writeup(out, seed),
        None => {}
    }
    if !section.tables.is_empty() {
        out.push_str("### On this machine\n\n");
    }
    section.tables.iter().for_each(|one| table(out, one, &one.title, ""));
    // Beside this file, with a relative path, so that the folder can be moved as a whole.
    for one in section.plots.iter().filter(|one| !plot::is_empty(one)) {
        let _ = writeln!(out, "![{}]({})\n", escape(&one.title), super::plot_path(one).display());
    }
    if !section.findings.is_empty() {
        out.push_str("### Does it hold here?\n\n| the claim | verdict | what was found |\n|---|---|---|\n");
        for finding in &section.findings {
            let (_, verdict) = verdict_words(finding.verdict);
            let _ =
                writeln!(out, "| {} | {verdict} | {} |", escape(&finding.claim), escape(&finding.sentence));
        }
        out.push('\n');
    }
    if !section.skipped.is_empty() {
        out.push_str("### Left out\n\n");
        facts(out, &section.skipped);
    }
    // One reason stands for all: the list is in the JSON file.
    let disturbed: Vec<_> = section.runs.iter().filter_map(|run| run.disturbed.as_deref()).collect();
    if let Some(first) = disturbed.first() {
        let all = text::count(section.runs.len(), "measurement");
        let _ = writeln!(
            out,
            "{} of {all} were disturbed, the first by this: {}.\n",
            disturbed.len(),
            escape(first)
        );
    }
}

/// What was published, with all its tables: whoever reads the file in a repository has no other place to look.
fn writeup(out: &mut String, seed: &Seed) {
    let _ = writeln!(
        out,
        "### The write-up: {}\n\n{}, {}. {}: <{}>\n",
        escape(&seed.title),
        seed.author,
        seed.date,
        seed.source,
        seed.url
    );
    for published in &seed.tables {
        table(out, &published.table(), &published.title, &published.remark);
    }
}

/// A list, since values are sentences at times and would make a table too wide.
fn facts(out: &mut String, facts: &[Fact]) {
    for fact in facts {
        let _ = writeln!(out, "* {}: {}", escape(&fact.name), escape(&fact.value));
    }
    out.push('\n');
}

/// A table with figures to the right. Spreads stand in the same cell: Markdown has no second line in one.
fn table(out: &mut String, table: &Table, title: &str, remark: &str) {
    let _ = writeln!(out, "**{}**\n", escape(title));
    if !remark.is_empty() {
        let _ = writeln!(out, "{}\n", escape(remark));
    }
    let names = table.columns.iter().map(|column| escape(&text::with_unit(&column.name, &column.unit)));
    // Units belong to the names here; there is no second line for them.
    let names: Vec<String> = names.collect();
    let _ = writeln!(out, "| | {} |", names.join(" | "));
    let _ = writeln!(out, "|---|{}", "---:|".repeat(names.len()));
    for row in &table.rows {
        // Every cell is on one line: a line break would end the table.
        let cells: Vec<String> = row.cells.iter().map(|cell| escape(&text::cell(cell))).collect();
        let _ = writeln!(out, "| {} | {} |", escape(&row.name), cells.join(" | "));
    }
    out.push('\n');
}

/// Text that Markdown leaves as it is, on one line, also within a table.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => escaped.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '<' | '\\' => escaped.extend(['\\', character]),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::stats::Summary;
    use crate::report::model::{Axis, AxisScale, Cell, Column, Finding, Plot, Row, Run, Series, Verdict};

    fn small() -> Report {
        let fact = |name: &str, value: &str| Fact { name: name.to_owned(), value: value.to_owned() };
        let axis = |name: &str| Axis { name: name.to_owned(), unit: String::new(), scale: AxisScale::Linear };
        let figure =
            Cell::Figure { summary: Summary { median: 150_300.0, low: 1.0, high: 2e5 }, decimals: 0 };
        let section = Section {
            scenario: "http".to_owned(),
            title: "Answers".to_owned(),
            question: "What does a request cost?".to_owned(),
            tables: vec![Table {
                title: "return 200".to_owned(),
                columns: vec![Column { name: "requests".to_owned(), unit: "1/s".to_owned() }],
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
            skipped: vec![fact("nginx", "not installed")],
            runs: vec![Run { disturbed: Some("steal".to_owned()), ..Run::default() }, Run::default()],
            ..Section::default()
        };
        Report {
            started: "2026-11-22T06:14:43Z".to_owned(),
            seconds: 61.0,
            command: vec!["http".to_owned()],
            scale: "quick".to_owned(),
            machine: vec![fact("kernel", "6.18")],
            sections: vec![section],
            ..Report::default()
        }
    }

    #[test]
    fn the_whole_document() {
        let expected = "\
# Ringroad benchmark report

2026-11-22, 06:14 UTC · 61 s · `ringroad bench http`

> A quick run: an impression of each figure, measured briefly and mostly once. No result to keep.

`report.html` beside this file has the same with charts, configurations and every single measurement; `report.json` is \
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

### Does it hold here?

| the claim | verdict | what was found |
|---|---|---|
| A fifth more. | holds in part | 12 %. |

### Left out

* nginx: not installed

1 of 2 measurements were disturbed, the first by this: steal.
";
        assert_eq!(markdown(&small()), expected);
    }

    #[test]
    fn a_write_up_is_there_with_its_figures_once() {
        let mut report = small();
        report.sections[0].seed = Some("004".to_owned());
        report.sections.push(report.sections[0].clone());
        let text = markdown(&report);
        assert_eq!(
            text.matches("| long connections, one worker | 500 and more | 1 | more than 20 % more |").count(),
            1
        );
        assert_eq!(text.matches("The write-up is the one above").count(), 1);
    }
}
