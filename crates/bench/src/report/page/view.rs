//! The model of the templates: the parts of a report in the order of the page, with all figures formatted.

use std::collections::BTreeSet;

use minijinja::{Value, context};

use crate::report::model::{Cell, Column, Fact, Finding, Plot, Ranking, Report, Section, Table};
use crate::report::ranking::{self, Advice, Standing, sentence};
use crate::report::write_ups::{self, WriteUp};
use crate::report::{plot, plot_path, text, timelines};

/// Maximum numbers of columns and rows of a table of published figures (`write_ups`) that is shown open. Larger tables are
/// collapsed, because few readers need them.
const SEED_COLUMNS_MAX: usize = 8;
const SEED_ROWS_MAX: usize = 12;

/// Returns the model of the report.
pub(super) fn report(report: &Report) -> Value {
    let sections = report.sections.iter().enumerate().map(|(at, one)| {
        // A write-up is shown in full at the first scenario that repeats it, independent of which scenarios were run.
        let is_repeated = report.sections[..at].iter().any(|other| other.write_up == one.write_up);
        let name: String = one.scenario.chars().filter(char::is_ascii_alphanumeric).collect();
        section(one, &format!("s{at}-{name}"), is_repeated)
    });
    let brief = ["processor", "kernel"].into_iter().filter_map(|name| {
        let fact = report.machine.iter().find(|fact| fact.name == name);
        fact.map(|fact| fact.value.as_str())
    });
    let (better, as_it_is) = ranking::advice(report);
    let Standing { ahead, equal, behind } = ranking::standing(report);
    let standing: Vec<Value> = [("ahead", ahead), ("equal within the spread", equal), ("behind", behind)]
        .into_iter()
        .map(|(place, cases)| context! { place, count => cases.len(), cases })
        .collect();
    let advice_row = |Advice { about, setting, because }: Advice<'_>| context! { about, setting, because };
    context! {
        started => text::moment(&report.started),
        duration => text::duration(report.seconds),
        command => report.command.join(" "),
        warning => scale_warning(&report.scale),
        incomplete => report.incomplete.as_deref(),
        unmeasured => unmeasured(report),
        has_results => report.sections.iter().any(|section| !section.rankings.is_empty()),
        standing,
        better => better.into_iter().map(advice_row).collect::<Vec<Value>>(),
        as_it_is => as_it_is.join("; "),
        brief => brief.collect::<Vec<_>>().join(" · "),
        machine => facts(&report.machine),
        peers => facts(&report.peers),
        sections => sections.collect::<Vec<Value>>(),
    }
}

/// Whether a comparison has a figure or a failure to show.
fn has_result(ranking: &Ranking) -> bool {
    ranking.results.iter().any(|one| matches!(one.cell, Cell::Figure { .. } | Cell::Broken(_)))
}

/// Returns the titles of the comparisons without results, for one line instead of one for each.
fn unmeasured(report: &Report) -> String {
    let rankings = report.sections.iter().flat_map(|section| &section.rankings);
    let titles = rankings.filter(|one| !has_result(one)).map(|one| one.title.as_str());
    titles.collect::<Vec<_>>().join("; ")
}

fn facts(facts: &[Fact]) -> Vec<Value> {
    facts.iter().map(|Fact { name, value }| context! { name, value }).collect()
}

/// Returns the warning about a reduced run, which precedes the first figure: its figures must not be quoted as results.
fn scale_warning(scale: &str) -> Option<&'static str> {
    match scale {
        "instant" => Some(
            "Each figure was measured for a fraction of a second: this shows that everything runs; the figures are meaningless.",
        ),
        "quick" => {
            Some("A quick run: each figure was measured briefly and mostly once. The figures are rough.")
        }
        _ => None,
    }
}

/// Returns the model of one scenario; `anchor` is its id in the page.
fn section(section: &Section, anchor: &str, is_repeated: bool) -> Value {
    let disturbed: Vec<&String> = section.runs.iter().filter_map(|run| run.disturbed.as_ref()).collect();
    let recorded = timelines::shown(section, anchor).into_iter().map(
        |one| context! { title => &one.title, plots => figures(&one.plots), table => table(&one.table, "") },
    );
    let runs = section.runs.len();
    context! {
        anchor => anchor,
        is_repeated => is_repeated,
        scenario => &section.scenario,
        title => &section.title,
        question => &section.question,
        failed => section.failed.as_deref(),
        write_up => section.write_up.as_deref().and_then(write_ups::find).map(write_up),
        charts => section.rankings.iter().filter(|one| has_result(one)).map(chart).collect::<Vec<Value>>(),
        tables => tables(&section.tables),
        plots => figures(&section.plots),
        findings => section.findings.iter().map(finding).collect::<Vec<Value>>(),
        skipped => facts(&section.skipped),
        configurations => facts(&section.configurations),
        configuration_count => text::count(section.configurations.len(), "configuration"),
        // Disturbed measurements are included in the medians: to omit them would bias the figures.
        disturbed => disturbed.len(),
        first_disturbance => disturbed.first().copied(),
        measurements => text::count(runs, "measurement"),
        timelines => recorded.collect::<Vec<Value>>(),
        runs => lines_of_runs(section),
        run_count => text::count(runs, "single measurement"),
    }
}

fn write_up(write_up: &WriteUp) -> Value {
    let published = write_up.tables.iter().map(|one| {
        let is_large = one.columns.len() > SEED_COLUMNS_MAX || one.rows.len() > SEED_ROWS_MAX;
        context! { is_large => is_large, ..table(&one.table(), &one.remark) }
    });
    let WriteUp { title, author, date, source, url, claims, setting, .. } = write_up;
    let tables: Vec<Value> = published.collect();
    let claims: Vec<String> = claims.iter().map(|claim| claim.sentence.clone()).collect();
    context! { title, author, date, source, url, claims, setting, tables }
}

/// Returns a bar for the best entry of each maker, and the failed results.
fn chart(one: &Ranking) -> Value {
    let longest = ranking::longest(one);
    let percent = |value: f64| (value / longest * 100.0).clamp(0.0, 100.0);
    let tenths = |value: f64| format!("{value:.1}");
    let bar = |best: ranking::Ranked<'_>| {
        let (median, spread) = text::with_spread(&best.summary, best.decimals);
        let (low, high) = (percent(best.summary.low), percent(best.summary.high));
        context! {
            name => ranking::name(best.ranked_result),
            is_ours => best.ranked_result.maker == "Ringroad",
            median => median,
            spread => spread,
            width => tenths(percent(best.summary.median)),
            low => tenths(low),
            span => tenths(high - low),
        }
    };
    let broken = ranking::broken(one)
        .map(|(ranked_result, reason)| context! { name => ranking::name(ranked_result), reason });
    context! {
        title => &one.title,
        unit => &one.unit,
        is_less_better => one.is_less_better,
        bars => ranking::leaders(one).into_iter().map(bar).collect::<Vec<Value>>(),
        broken => broken.collect::<Vec<Value>>(),
        sentence => sentence(one),
    }
}

/// Returns plots with their legends and figures. Plots of one section share their styles: an engine has one colour in
/// all of them.
fn figures(plots: &[Plot]) -> Vec<Value> {
    let styles = plot::styles(plots);
    let figure = |one: &Plot| {
        context! {
            path => plot_path(one).display().to_string(),
            is_empty => plot::is_empty(one),
            data => table(&plot::data(one), ""),
            ..plot::model(one, &styles)
        }
    };
    plots.iter().map(figure).collect()
}

/// Returns the model of a finding. The templates have the words of each verdict.
fn finding(one: &Finding) -> Value {
    let verdict = format!("{:?}", one.verdict).to_lowercase();
    context! { verdict => verdict, claim => &one.claim, sentence => &one.sentence }
}

/// Formats every repetition with its labels as tab-separated lines for a spreadsheet: as an HTML table they would be
/// most of the page. The columns are the sorted names of all runs, so that reports have them in the same order.
fn lines_of_runs(section: &Section) -> String {
    if section.runs.is_empty() {
        return String::new();
    }
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
    lines.join("\n")
}

fn tables(tables: &[Table]) -> Vec<Value> {
    tables.iter().map(|one| table(one, "")).collect()
}

/// Returns the model of a table with a remark; "" is none. All cells of a column have the same alignment: right for
/// figures, left for words.
pub(super) fn table(table: &Table, remark: &str) -> Value {
    let is_numeric: Vec<bool> = (0..table.columns.len())
        .map(|at| table.rows.iter().filter_map(|row| row.cells.get(at)).all(may_be_numeric))
        .collect();
    let column = |(Column { name, unit }, is_numeric): (&Column, &bool)| context! { name, unit, is_numeric };
    let columns: Vec<Value> = table.columns.iter().zip(&is_numeric).map(column).collect();
    let rows = table.rows.iter().map(|row| {
        let cells: Vec<Value> = row.cells.iter().zip(&is_numeric).map(cell).collect();
        let is_broken = row.cells.iter().any(|cell| matches!(cell, Cell::Broken(_)));
        context! { name => &row.name, is_broken, cells }
    });
    context! {
        title => &table.title,
        remark => remark,
        columns => columns,
        rows => rows.collect::<Vec<Value>>(),
    }
}

fn cell((cell, is_numeric): (&Cell, &bool)) -> Value {
    match cell {
        Cell::Figure { summary, decimals } => {
            let (text, spread) = text::with_spread(summary, *decimals);
            context! { text, spread, is_numeric }
        }
        Cell::Text(text) => context! { text, is_numeric },
        Cell::Missing(reason) => context! { reason },
        Cell::Broken(reason) => context! { reason, is_broken => true },
    }
}

/// Whether a cell fits a column of figures: figures, texts such as "60M" and "1344", and reasons for missing figures.
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
