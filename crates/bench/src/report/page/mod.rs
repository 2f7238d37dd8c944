//! The report as one HTML page that opens without a network: no script, no font, no image from elsewhere, which its
//! content security policy makes sure of.
//!
//! First who leads and which settings are best here ([`results`]), then the claims at a glance and, folded, the machine;
//! then each scenario ([`section`]): the question, its charts, the write-up's table, ours, plots, findings, what was left
//! out, and folded below it configurations and single measurements.
//! `page.html` and `page.css` are its frame and its looks.
//!
//! What every part keeps to, so that the page is of use to everybody and everywhere:
//!
//! * All text goes through [`escape`], whether a program, a file name or a person wrote it.
//! * No meaning by colour alone: verdicts are words, series differ by dashes and markers, a missing figure has its reason.
//! * Tables have heads with a scope and a name; each plot has a title, a description and a table of its figures.
//! * Nothing is wider than a phone: tables scroll by themselves within the page, plots shrink and their letters grow.
//! * What few will ask for is folded. It is all there: the page alone is enough to judge a figure.
//! * Colours are variables with two sets of values, one for each scheme; nothing else depends on the scheme.
//! * Printed, the page is black on white, and what is folded stays so.

mod results;
mod section;
mod table;

use std::fmt::Write;

use crate::report::model::{Fact, Finding, Report, Verdict};
use crate::report::{plot, text};
pub(super) use table::{Caption, table};

/// The page without its contents.
const FRAME: &str = include_str!("page.html");
/// Its colours and measures, for light and dark, wide and narrow.
const STYLE: &str = include_str!("page.css");

/// All verdicts, from best to worst, for counts.
const VERDICTS: [Verdict; 4] = [Verdict::Holds, Verdict::Partly, Verdict::Fails, Verdict::Open];

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    // The order is that of a reader's questions: what came out, where was it measured, and then why.
    let mut body = header(report);
    body.push_str("<main>\n");
    body.push_str(&results::results(report));
    body.push_str(&overview(report));
    body.push_str(&machine(report));
    for (at, section) in report.sections.iter().enumerate() {
        // A write-up is shown in full at the first scenario that repeats it, whichever scenarios were run.
        let seen_before = report.sections[..at].iter().any(|other| other.seed == section.seed);
        body.push_str(&section::section(section, at, seen_before));
    }
    body.push_str("</main>\n");
    body.push_str(
        "<footer><p>Made by <code>ringroad bench</code>. Figures are medians of the repetitions, with the lowest and \
         highest of them in small letters; ratios are formed pair by pair. Everything on this page, and every single \
         measurement, is in <code>report.json</code> beside it.</p></footer>\n",
    );
    frame("Ringroad benchmark report", &body)
}

/// A page of this report's looks around something else.
pub(crate) fn frame(title: &str, body: &str) -> String {
    // The style of the plots comes first: the page may adapt it, as it does for phones.
    FRAME
        .replace("{{style}}", &format!("{}{STYLE}", plot::STYLE))
        .replace("{{title}}", &escape(title))
        .replace("{{body}}", body)
}

/// Text that is safe between tags and within quotes of attributes.
pub(crate) fn escape(text: &str) -> String {
    // All five, so that one function serves text and attributes, and nobody has to choose.
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The title, and whether the run was a quick one or is incomplete.
fn header(report: &Report) -> String {
    let mut html = format!(
        "<header>\n<h1>Ringroad benchmark report</h1>\n<p class=\"muted\">{} · {} · <code>ringroad bench {}</code></p>\n",
        escape(&text::moment(&report.started)),
        escape(&text::duration(report.seconds)),
        escape(&report.command.join(" ")),
    );
    // Before the first figure: an impression must not be quoted as a result.
    if let Some(warning) = scale_warning(&report.scale) {
        let _ = writeln!(html, "<p class=\"notice mild\">{warning}</p>");
    }
    if let Some(reason) = &report.incomplete {
        let _ = writeln!(html, "<p class=\"notice\">Incomplete: {}.</p>", escape(reason));
    }
    html + "</header>\n"
}

/// What the reader has to know about a short run.
pub(super) fn scale_warning(scale: &str) -> Option<&'static str> {
    match scale {
        "instant" => Some(
            "A fraction of a second for each figure: this shows that everything runs, and measures nothing.",
        ),
        "quick" => Some(
            "A quick run: an impression of each figure, measured briefly and mostly once. No result to keep.",
        ),
        _ => None,
    }
}

/// The machine, on which every figure depends: its processor and kernel, and the rest folded.
fn machine(report: &Report) -> String {
    let mut html = String::from("<details class=\"card\" id=\"machine\">\n<summary><h2>The machine</h2> ");
    let brief = ["processor", "kernel"].into_iter().filter_map(|name| {
        let fact = report.machine.iter().find(|fact| fact.name == name);
        fact.map(|fact| escape(&fact.value))
    });
    let brief: Vec<String> = brief.collect();
    let _ = writeln!(html, "<span class=\"muted\">{}</span></summary>", brief.join(" · "));
    html.push_str(&facts(&report.machine));
    // A run of engines alone has no peers, and a heading without a list would be a question.
    if !report.peers.is_empty() {
        html.push_str("<h3>Servers and tools</h3>\n");
        html.push_str(&facts(&report.peers));
    }
    html + "</details>\n"
}

/// Names with their values.
pub(super) fn facts(facts: &[Fact]) -> String {
    // Said, since a reader takes an empty place for a fault of the page.
    if facts.is_empty() {
        return "<p class=\"muted\">Nothing was recorded.</p>\n".to_owned();
    }
    let mut html = String::from("<dl class=\"facts\">\n");
    for fact in facts {
        let _ = writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(&fact.name), escape(&fact.value));
    }
    html + "</dl>\n"
}

/// The scenarios with their write-ups and how many claims hold.
fn overview(report: &Report) -> String {
    let mut html = String::from(
        "<nav class=\"card\" aria-label=\"Scenarios\">\n<h2>Scenarios and claims</h2>\n<ul class=\"contents\">\n",
    );
    for (at, section) in report.sections.iter().enumerate() {
        let seed = section.seed.as_deref().and_then(super::seeds::find);
        // The year alone is what a reader weighs: hardware of 2006 or of 2021.
        let year = |date: &'static str| date.get(..4).unwrap_or_default();
        let writeup = seed.map_or_else(
            || "repeats no write-up".to_owned(),
            |seed| format!("repeats \"{}\" ({})", seed.title, year(&seed.date)),
        );
        let found = match &section.failed {
            Some(_) => "<span class=\"verdict fails\">no result</span>".to_owned(),
            None => counts(&section.findings),
        };
        let _ = writeln!(
            html,
            "<li><a href=\"#{}\">{}</a><span class=\"muted\">{}</span><span>{found}</span></li>",
            section::anchor(section, at),
            escape(&section.title),
            escape(&writeup),
        );
    }
    html + "</ul>\n</nav>\n"
}

/// How many claims hold, hold in part and so on.
fn counts(findings: &[Finding]) -> String {
    let mut html = String::new();
    // Counted, not listed: the sentences stand in the section that the link leads to.
    for verdict in VERDICTS {
        let count = findings.iter().filter(|finding| finding.verdict == verdict).count();
        if count > 0 {
            let (class, words) = verdict_words(verdict);
            let times = if count > 1 { format!(" × {count}") } else { String::new() };
            let _ = write!(html, "<span class=\"verdict {class}\">{words}{times}</span>");
        }
    }
    if html.is_empty() { "<span class=\"muted\">no claim to check</span>".to_owned() } else { html }
}

/// A verdict's class in the style sheet, and how it is said.
pub(super) fn verdict_words(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Holds => ("holds", "holds"),
        Verdict::Partly => ("partly", "holds in part"),
        Verdict::Fails => ("fails", "does not hold"),
        Verdict::Open => ("open", "open here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Section;

    /// A made-up report with everything that a report can have.
    fn sample() -> Report {
        serde_json::from_str(include_str!("../../../fixtures/made-up.json")).unwrap()
    }

    fn part<'a>(html: &'a str, from: &str, to: &str) -> &'a str {
        let start = html.find(from).unwrap_or_else(|| panic!("no {from}"));
        let length = html[start..].find(to).unwrap_or_else(|| panic!("no {to} behind {from}"));
        &html[start..start + length]
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_nothing_is_taken_for_markup() {
        let html = page(&sample());
        for foreign in ["<script", "src=", "@import", "url(", "<iframe", "<b>"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(!html.contains("{{"), "a place of the frame was left empty");
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
            at("Does it hold here?"),
            at("Left out</h3>"),
            at("2 configurations</summary>"),
            at("The machine once a second</summary>"),
            at("12 single measurements</summary>"),
        ];
        assert!(order.is_sorted(), "{order:?}");
    }

    #[test]
    fn what_went_wrong_is_said() {
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
    fn a_write_up_is_shown_in_full_once_and_folded_afterwards() {
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
}
