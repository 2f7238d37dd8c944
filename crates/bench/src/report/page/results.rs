//! The beginning of the page: charts and sentences of who leads, and settings for this machine.

use std::fmt::Write;

use super::{escape, section};
use crate::report::model::{Report, Section, Standing};
use crate::report::standing::{self, advice, sentence};
use crate::report::text;

/// A chart for each scenario, and a sentence for each comparison.
pub(super) fn results(report: &Report) -> String {
    let compared = || report.sections.iter().enumerate().filter(|(_, section)| !section.standings.is_empty());
    if compared().next().is_none() {
        return String::new();
    }
    let mut html =
        String::from("<section class=\"card\" id=\"results\">\n<h2>Results</h2>\n<div class=\"results\">\n");
    for (at, section) in compared() {
        let (anchor, title) = (section::anchor(section, at), escape(&section.title));
        let _ = writeln!(html, "<div class=\"result\">\n<h3><a href=\"#{anchor}\">{title}</a></h3>");
        if let [first, rest @ ..] = &section.standings[..] {
            html.push_str(&chart(first));
            html.push_str(&sentences(rest));
        }
        html.push_str("</div>\n");
    }
    html + "</div>\n" + &settings(report) + "</section>\n"
}

/// All charts of one scenario, in its own section.
pub(super) fn charts(section: &Section) -> String {
    if section.standings.is_empty() {
        return String::new();
    }
    let charts: String = section.standings.iter().map(chart).collect();
    format!("<div class=\"results\">\n{charts}</div>\n")
}

/// Comparisons that have their chart below.
fn sentences(standings: &[Standing]) -> String {
    if standings.is_empty() {
        return String::new();
    }
    let mut html = String::from("<ul class=\"sentences\">\n");
    for one in standings {
        let _ = writeln!(html, "<li>{}: {}</li>", escape(&one.title), escape(&sentence(one)));
    }
    html + "</ul>\n"
}

/// A bar for the best of each maker, with its spread; and what failed.
fn chart(one: &Standing) -> String {
    let direction = if one.is_less_better { "less is better" } else { "more is better" };
    let unit = if one.unit.is_empty() { String::new() } else { format!("{}, ", escape(&one.unit)) };
    let mut html = format!(
        "<figure class=\"standing\">\n<figcaption>{}<small>{unit}{direction}</small></figcaption>\n<table>\n<tbody>\n",
        escape(&one.title)
    );
    let longest = standing::longest(one);
    let percent = |value: f64| (value / longest * 100.0).clamp(0.0, 100.0);
    for best in standing::leaders(one) {
        let class = if best.entrant.maker == "Ringroad" { " class=\"ours\"" } else { "" };
        let (median, spread) = text::with_spread(&best.summary, best.decimals);
        let spread = spread.map(|spread| format!("<small>{spread}</small>")).unwrap_or_default();
        let (low, high) = (percent(best.summary.low), percent(best.summary.high));
        let _ = writeln!(
            html,
            "<tr{class}><th scope=\"row\">{}</th><td class=\"bar\"><div><span style=\"width:{:.1}%\"></span>\
             <i style=\"left:{low:.1}%;width:{:.1}%\"></i></div></td><td class=\"n\">{median}{spread}</td></tr>",
            escape(&standing::name(best.entrant)),
            percent(best.summary.median),
            high - low
        );
    }
    for (entrant, reason) in standing::broken(one) {
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{} <span class=\"verdict fails\">broken</span></th>\
             <td class=\"missing\" colspan=\"2\">{}</td></tr>",
            escape(&standing::name(entrant)),
            escape(reason)
        );
    }
    let _ = write!(html, "</tbody>\n</table>\n<p>{}</p>\n</figure>\n", escape(&sentence(one)));
    html
}

/// What to write into the configuration on this machine.
fn settings(report: &Report) -> String {
    let (better, as_it_is) = advice(report);
    if better.is_empty() && as_it_is.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h3 id=\"settings\">Settings for this machine</h3>\n");
    if better.is_empty() {
        html.push_str("<p>The defaults: no other setting was better by more than repetitions differ.</p>\n");
        return html;
    }
    html.push_str("<ul class=\"sentences\">\n");
    for one in better {
        let (about, setting, because) = (escape(one.about), escape(one.setting), escape(&one.because));
        let _ = writeln!(html, "<li>{about}: <code>{setting}</code> ({because}).</li>");
    }
    if !as_it_is.is_empty() {
        let _ =
            writeln!(html, "<li>The defaults for everything else: {}.</li>", escape(&as_it_is.join("; ")));
    }
    html + "</ul>\n"
}
