//! One scenario's part of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Caption, escape, facts, results, table, verdict_words};
use crate::report::model::{Plot, Section};
use crate::report::seeds::{self, Published, Seed};
use crate::report::{plot, text, timelines};

/// Tables of a write-up with more columns or rows than this are folded: they are read by who asks for them.
const SEED_COLUMNS_MAX: usize = 8;
const SEED_ROWS_MAX: usize = 12;

/// What a link to this section names.
pub(super) fn anchor(section: &Section, at: usize) -> String {
    let name: String = section.scenario.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("s{at}-{name}")
}

/// The whole part. `seen_before`: its write-up stands above, so it is folded here.
pub(super) fn section(section: &Section, at: usize, seen_before: bool) -> String {
    let anchor = anchor(section, at);
    let mut html = format!(
        "<section class=\"card\" id=\"{anchor}\" aria-labelledby=\"{anchor}-h\">\n\
         <p class=\"command\"><code>ringroad bench {}</code></p>\n<h2 id=\"{anchor}-h\">{}</h2>\n",
        escape(&section.scenario),
        escape(&section.title),
    );
    // A scenario that failed before it began has no question to show.
    if !section.question.is_empty() {
        let _ = writeln!(html, "<p class=\"question\">{}</p>", escape(&section.question));
    }
    // Above the write-up: whoever looks for our figures learns at once that there are none.
    if let Some(reason) = &section.failed {
        let _ = writeln!(html, "<p class=\"notice\">No result: {}</p>", escape(reason));
    }
    html.push_str(&results::charts(section));
    if let Some(seed) = section.seed.as_deref().and_then(seeds::find) {
        html.push_str(&writeup(seed, seen_before));
    }
    html.push_str(&ours(section));
    html.push_str(&plots(section));
    html.push_str(&findings(section));
    html.push_str(&skipped(section));
    html.push_str(&configurations(section));
    html.push_str(&once_a_second(section, &anchor));
    html.push_str(&runs(section));
    html + "</section>\n"
}

/// What was published: who, when and where, its claims and its tables. The reader needs it before our figures, to know
/// what is repeated; what it was measured on is folded, since no figure here depends on it.
fn writeup(seed: &Seed, seen_before: bool) -> String {
    let heading = format!("The write-up: {}", escape(&seed.title));
    let mut html = format!(
        "<p class=\"muted\">{}, {}. {}: <a href=\"{url}\">{url}</a></p>\n",
        escape(&seed.author),
        escape(&seed.date),
        escape(&seed.source),
        url = escape(&seed.url),
    );
    html.push_str("<ul>\n");
    for claim in &seed.claims {
        let _ = writeln!(html, "<li>{}</li>", escape(claim));
    }
    html.push_str("</ul>\n");
    // Small tables stand side by side where there is room; large ones are opened one at a time.
    let (folded, open): (Vec<&Published>, Vec<&Published>) =
        seed.tables.iter().partition(|one| is_large(one));
    html.push_str("<div class=\"tables\">\n");
    open.iter().for_each(|published| html.push_str(&published_table(published)));
    html.push_str("</div>\n");
    for published in folded {
        let summary = escape(&published.title);
        let _ =
            writeln!(html, "<details><summary>{summary}</summary>\n{}</details>", published_table(published));
    }
    // Another machine of another time: of interest for who doubts the comparison, in the way of all others.
    html.push_str("<details class=\"fold\"><summary>Measured on</summary>\n<dl class=\"facts\">\n");
    for (name, value) in &seed.setting {
        let _ = writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    html.push_str("</dl>\n</details>\n");
    // Two scenarios may repeat the same write-up. The second time its tables are one click away instead of a screen.
    if seen_before {
        format!("<details class=\"writeup\"><summary>{heading} (as above)</summary>\n{html}</details>\n")
    } else {
        format!("<aside class=\"writeup\">\n<h3>{heading}</h3>\n{html}</aside>\n")
    }
}

/// One of its tables, drawn like ours so that the eye finds the same rows and columns.
fn published_table(published: &Published) -> String {
    table(&published.table(), &Caption { title: &published.title, remark: &published.remark })
}

/// Tables of dozens of lines would push our figures out of sight.
fn is_large(published: &Published) -> bool {
    published.columns.len() > SEED_COLUMNS_MAX || published.rows.len() > SEED_ROWS_MAX
}

/// Our tables. Disturbed measurements are part of the medians: to leave them out would be to choose figures, so their
/// number is said where the figures are.
fn ours(section: &Section) -> String {
    if section.tables.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h3>On this machine</h3>\n");
    for one in &section.tables {
        html.push_str(&table(one, &Caption { title: &one.title, remark: "" }));
    }
    // Said below the tables rather than at each cell: a median of three does not show which of them was disturbed.
    let disturbed = section.runs.iter().filter(|run| run.disturbed.is_some()).count();
    if disturbed > 0 {
        let _ = writeln!(
            html,
            "<p class=\"notice mild\">{} of {} were disturbed by something else on the machine; they are marked \
             below, with the reason.</p>",
            disturbed,
            text::count(section.runs.len(), "measurement"),
        );
    }
    html
}

/// All plots of the section with one set of styles: an engine has the same colour in each of them.
fn plots(section: &Section) -> String {
    if section.plots.is_empty() {
        return String::new();
    }
    let styles = plot::styles(section.plots.iter());
    let mut html = String::from("<div class=\"plots\">\n");
    for one in &section.plots {
        html.push_str(&figure(one, &styles));
    }
    html + "</div>\n"
}

/// A plot with its keys and its figures.
fn figure(one: &Plot, styles: &BTreeMap<String, plot::Style>) -> String {
    let id = escape(&one.id);
    let mut html =
        format!("<figure class=\"plot\" id=\"{id}\">\n<figcaption>{}</figcaption>\n", escape(&one.title));
    // An empty frame with axes would look like a measurement of nothing.
    if plot::is_empty(one) {
        return html + "<p class=\"muted\">Nothing was measured that could be drawn.</p>\n</figure>\n";
    }
    html.push_str(&plot::drawing(one, styles));
    html.push_str("<ul class=\"keys\">\n");
    for series in &one.series {
        let key = styles.get(&series.name).map(|style| style.key()).unwrap_or_default();
        // A series without points keeps its key, so that it is seen to be missing rather than overlooked.
        let none = if series.points.is_empty() { " (no figure)" } else { "" };
        let _ = writeln!(html, "<li>{key}{}{none}</li>", escape(&series.name));
    }
    let data = plot::data(one);
    let _ = write!(
        html,
        "</ul>\n<details class=\"fold\"><summary>Figures</summary>\n{}</details>\n</figure>\n",
        table(&data, &Caption { title: &data.title, remark: "" })
    );
    html
}

/// Claims with their verdicts. The verdict is a word, not a colour alone.
fn findings(section: &Section) -> String {
    if section.findings.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h3>Does it hold here?</h3>\n<ul class=\"findings\">\n");
    for finding in &section.findings {
        let (class, words) = verdict_words(finding.verdict);
        let _ = writeln!(
            html,
            "<li><span class=\"verdict {class}\">{words}</span><div><p>{}</p><p>{}</p></div></li>",
            escape(&finding.claim),
            escape(&finding.sentence),
        );
    }
    html + "</ul>\n"
}

/// What was left out, so that nobody takes a missing row for a row that was forgotten.
fn skipped(section: &Section) -> String {
    if section.skipped.is_empty() {
        return String::new();
    }
    format!("<h3>Left out</h3>\n{}", facts(&section.skipped))
}

/// The text that each server and tool was run with: who doubts a figure begins here.
fn configurations(section: &Section) -> String {
    if section.configurations.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<details class=\"block fold\"><summary>{}</summary>\n",
        text::count(section.configurations.len(), "configuration")
    );
    for configuration in &section.configurations {
        let _ = writeln!(
            html,
            "<h4>{}</h4>\n<pre tabindex=\"0\">{}</pre>",
            escape(&configuration.name),
            escape(&configuration.value)
        );
    }
    html + "</details>\n"
}

/// The machine during measurements, as tables and plots.
fn once_a_second(section: &Section, anchor: &str) -> String {
    // Recordings are long: a choice of them is shown, and folded. The JSON file has all.
    let shown = timelines::shown(section, anchor);
    if shown.is_empty() {
        return String::new();
    }
    let mut html =
        String::from("<details class=\"block fold\"><summary>The machine once a second</summary>\n");
    for one in &shown {
        let _ = writeln!(html, "<h4>{}</h4>", escape(&one.title));
        let styles = plot::styles(one.plots.iter());
        html.push_str("<div class=\"plots\">\n");
        one.plots.iter().for_each(|plot| html.push_str(&figure(plot, &styles)));
        html.push_str("</div>\n");
        html.push_str(&table(&one.table, &Caption { title: &one.table.title, remark: "" }));
    }
    html + "</details>\n"
}

/// Every repetition with its labels, as lines with tabs that a spreadsheet takes: thousands of cells of a table are most of
/// a page. Columns are all names that any run has; a run without one has nothing there.
fn runs(section: &Section) -> String {
    if section.runs.is_empty() {
        return String::new();
    }
    // Sorted by name, so that the same columns stand at the same place in every report.
    let labels: BTreeSet<&String> = section.runs.iter().flat_map(|run| run.labels.keys()).collect();
    let figures: BTreeSet<&String> = section.runs.iter().flat_map(|run| run.figures.keys()).collect();
    let names = labels.iter().chain(&figures).map(|name| name.as_str());
    let mut lines =
        vec![["run"].into_iter().chain(names).chain(["disturbed by"]).collect::<Vec<_>>().join("\t")];
    lines.extend(section.runs.iter().enumerate().map(|(at, run)| {
        let label = |name: &&String| run.labels.get(*name).cloned().unwrap_or_default();
        let figure = |name: &&String| run.figures.get(*name).map_or(String::new(), |one| text::rounded(*one));
        let cells = labels.iter().map(label).chain(figures.iter().map(figure));
        let disturbed = run.disturbed.clone().unwrap_or_default();
        [(at + 1).to_string()].into_iter().chain(cells).chain([disturbed]).collect::<Vec<_>>().join("\t")
    }));
    format!(
        "<details class=\"block fold\"><summary>{}</summary>\n<pre tabindex=\"0\">{}</pre>\n</details>\n",
        text::count(section.runs.len(), "single measurement"),
        escape(&lines.join("\n"))
    )
}
