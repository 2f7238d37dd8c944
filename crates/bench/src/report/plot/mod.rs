//! Plots as SVG: axes, lines with markers, and the legend.
//!
//! Colours are CSS variables (`plot.css`), so that a plot follows the reader's dark or light colour scheme. Series
//! differ by colour, by dashes and by the shape of their markers: each alone distinguishes them.
//!
//! ```text
//!   requests, 1/s          <- what y is, above it: upright text is easier to read
//!   100k |---------*       <- grid lines at labels of y
//!    50k |----*            <- a marker for each point, unless there are too many
//!      0 +----+----+       <- an axis that begins at 0, unless it is logarithmic
//!        1   10   100      <- labels at values that were measured, if these are few
//!        connections (logarithmic)
//! ```
//!
//! In a page the legend is HTML beside the plot, which wraps by itself; a separate file contains its legend.

mod scale;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::model::{AxisScale, Cell, Column, Plot, Row, Series, Table};
use crate::report::text::{self, escape_html as escape};
use scale::PlotScale;

pub(crate) const STYLE: &str = include_str!("plot.css");

/// Width of the drawing, in units that are pixels on a wide page and somewhat less on a phone.
const WIDTH: f64 = 480.0;
/// Height of the drawing, including heading and axes.
const HEIGHT: f64 = 300.0;
/// Left margin for labels, in the larger text size of a phone.
const LEFT: f64 = 54.0;
/// Right margin for half of the last label of x.
const RIGHT: f64 = 22.0;
/// Top margin for the name of y.
const TOP: f64 = 30.0;
/// Bottom margin for the labels and the name of x.
const BOTTOM: f64 = 52.0;

/// Maximum width of a letter: a label at the end of an axis must stay inside the drawing.
const LETTER_WIDTH: f64 = 10.0;

/// Distance of the x labels below their axis: they must not touch the lowest label of y, even in the larger text size
/// of a phone.
const X_LABEL_BELOW: f64 = 25.0;

/// Maximum number of labels on the x axis.
const X_LABELS: usize = 7;
/// Maximum number of labels on the y axis.
const Y_LABELS: usize = 5;

/// Number of colours; further series reuse them with other dashes.
const COLOURS: usize = 8;
/// Number of dash patterns; with the colours they distinguish 32 series.
const DASHES: usize = 4;

/// Maximum number of points of a line with markers: more of them would hide the line.
const MARKED_POINTS_MAX: usize = 24;

/// Style of a series: the same everywhere in one section, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Style(usize);

impl Style {
    /// Returns the CSS classes for the colour and the dashes.
    fn classes(self) -> String {
        // The second cycle through the colours has other dashes, so that 32 series differ.
        let dash = (self.0 + self.0 / COLOURS) % DASHES;
        format!("c{} d{dash}", self.0 % COLOURS)
    }

    /// Draws the marker at a point; filled and open markers of the same shape are far apart in the order.
    fn marker(self, x: f64, y: f64) -> String {
        let path = |steps: &str| format!("<path class=\"mark\" d=\"M{x:.1} {y:.1}{steps}\"/>");
        match self.0 % COLOURS {
            0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
            1 => path("m-4-4h8v8h-8z"),
            2 => path("m0-5l5 9h-10z"),
            3 => path("m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z"),
            4 => path("m0 5l5-9h-10z"),
            5 => format!("<circle class=\"mark open\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"),
            6 => path("m-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"),
            _ => path("m-4-4h8v8h-8z").replace("\"mark\"", "\"mark open\""),
        }
    }

    /// Draws a line segment for the legend.
    pub(crate) fn key(self) -> String {
        format!(
            "<svg class=\"key plotted\" viewBox=\"0 0 36 14\" width=\"36\" height=\"14\" aria-hidden=\"true\">\
             <g class=\"{}\"><path class=\"line\" d=\"M0 7H36\"/>{}</g></svg>",
            self.classes(),
            self.marker(18.0, 7.0)
        )
    }
}

/// Assigns a style to each series name of a section, in the order of first appearance.
pub(crate) fn styles<'a>(plots: impl Iterator<Item = &'a Plot>) -> BTreeMap<String, Style> {
    let mut styles = BTreeMap::new();
    // In the order of the plots, so that the first plot of a section has the most distinct colours.
    for series in plots.flat_map(|plot| &plot.series) {
        let next = Style(styles.len());
        styles.entry(series.name.clone()).or_insert(next);
    }
    styles
}

/// Returns the drawing for a page that contains [`STYLE`] and displays the legend.
pub(crate) fn drawing(plot: &Plot, styles: &BTreeMap<String, Style>) -> String {
    let id = escape(&plot.id);
    let mut svg = format!(
        "<svg class=\"plotted drawing\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\">\n<title id=\"{id}-t\">{}</title>\n<desc id=\"{id}-d\">{}</desc>\n",
        escape(&plot.title),
        escape(&description(plot)),
    );
    svg.push_str(&inside(plot, styles));
    svg.push_str("</svg>\n");
    svg
}

/// Returns the drawing as a separate file, with its style, title and legend.
pub(crate) fn file(plot: &Plot, styles: &BTreeMap<String, Style>) -> String {
    /// Height of the title line of a separate file.
    const HEADING: f64 = 26.0;
    /// Height of a line of the legend.
    const KEY_ROW: f64 = 20.0;
    // The legend extends the drawing at the bottom; the plot keeps its size.
    let columns = key_columns(plot);
    let rows = plot.series.len().div_ceil(columns);
    let height = HEADING + HEIGHT + rows as f64 * KEY_ROW + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plotted\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n<title>{}</title>\n<desc>{}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"heading\" x=\"10\" y=\"20\">{}</text>\n<g transform=\"translate(0 {HEADING})\">\n{}</g>\n",
        escape(&plot.title),
        escape(&description(plot)),
        escape(&plot.title),
        inside(plot, styles),
    );
    for (at, series) in plot.series.iter().enumerate() {
        let x = 12.0 + (at % columns) as f64 * (WIDTH - 12.0) / columns as f64;
        let y = HEADING + HEIGHT + (at / columns) as f64 * KEY_ROW + 6.0;
        let style = style_of(series, styles);
        let _ = writeln!(
            svg,
            "<g class=\"{}\"><path class=\"line\" d=\"M{x:.1} {y:.1}h34\"/>{}</g>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            style.classes(),
            style.marker(x + 17.0, y),
            x + 42.0,
            y + 4.0,
            escape(&series.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the number of legend columns that the longest name permits; letters are about 6.5 units wide.
fn key_columns(plot: &Plot) -> usize {
    let longest = plot.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
    let width = 54.0 + longest as f64 * 6.5;
    ((WIDTH / width) as usize).clamp(1, 4)
}

/// Returns the style of a series; a series without an assigned style gets the first one.
fn style_of(series: &Series, styles: &BTreeMap<String, Style>) -> Style {
    styles.get(&series.name).copied().unwrap_or(Style(0))
}

/// Returns the alternative text of the plot; the table below has the figures.
fn description(plot: &Plot) -> String {
    let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
    format!("{} by {}: {}", text::axis(&plot.y), text::axis(&plot.x), names.join("; "))
}

/// Draws axes and lines. The x axis ends at the last point, the y axis at a label; a y axis that is not logarithmic
/// begins at 0, so that twice the height is twice the value.
fn inside(plot: &Plot, styles: &BTreeMap<String, Style>) -> String {
    // Both axes cover all series together, so that the lines are comparable.
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x = PlotScale::of(plot.x.scale, points().map(|point| point[0]), X_LABELS, true);
    let y = PlotScale::of(plot.y.scale, points().map(|point| point[1]), Y_LABELS, false);
    let mut svg = axes(plot, &x, &y);
    for series in &plot.series {
        svg.push_str(&line(plot, series, style_of(series, styles), &x, &y));
    }
    svg
}

/// Converts a position along the x axis to a coordinate of the drawing.
fn across(x: f64) -> f64 {
    LEFT + x * (WIDTH - LEFT - RIGHT)
}

/// Converts a position along the y axis to a coordinate of the drawing, whose y grows downwards.
fn down(y: f64) -> f64 {
    HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)
}

/// Draws the axes. Only y has grid lines: a value of x is a labelled setting, a value of y must be read off.
fn axes(plot: &Plot, x: &PlotScale, y: &PlotScale) -> String {
    let mut svg = String::from("<g class=\"axes\">\n");
    let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
    // A tick outside the scale would be a bug of the scale; it is drawn at the end of the axis, where it is visible.
    for (value, label) in &y.ticks {
        let at = down(y.place(*value).unwrap_or(0.0));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    for (value, label) in &x.ticks {
        let at = across(x.place(*value).unwrap_or(0.0));
        let _ = writeln!(
            svg,
            "<path class=\"base\" d=\"M{at:.1} {bottom}v4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            at.min(WIDTH - label.len() as f64 * LETTER_WIDTH / 2.0),
            bottom + X_LABEL_BELOW
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"base\" d=\"M{left} {bottom}H{right}\"/>\
         <text class=\"name\" x=\"4\" y=\"14\">{}</text>\
         <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n</g>",
        escape(&text::axis(&plot.y)),
        (left + right) / 2.0,
        HEIGHT - 8.0,
        escape(&text::axis(&plot.x))
    );
    svg
}

/// Draws one series. Each marker has its values as a title, which browsers display as a tooltip without scripts.
fn line(plot: &Plot, series: &Series, style: Style, x: &PlotScale, y: &PlotScale) -> String {
    let name = escape(&series.name);
    let mut path = String::new();
    let mut marks = String::new();
    let marked = series.points.len() <= MARKED_POINTS_MAX;
    for point in &series.points {
        // A value without a position (0 on a logarithmic axis, 100 %) does not interrupt the line.
        let (Some(at_x), Some(at_y)) = (x.place(point[0]), y.place(point[1])) else { continue };
        let (at_x, at_y) = (across(at_x), down(at_y));
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{at_x:.1} {at_y:.1}");
        if marked {
            let _ = writeln!(
                marks,
                "<g><title>{name}: {}, {}</title>{}</g>",
                escape(&scale::datum(plot.x.scale, point[0])),
                escape(&text::with_unit(&text::rounded(point[1]), &plot.y.unit)),
                style.marker(at_x, at_y)
            );
        }
    }
    format!(
        "<g class=\"series {}\" data-name=\"{name}\"><path class=\"line\" d=\"{path}\"><title>{name}</title></path>\n\
         {marks}</g>\n",
        style.classes()
    )
}

/// Returns the figures of a plot as a table, for readers who cannot see the plot or need exact values.
pub(crate) fn data(plot: &Plot) -> Table {
    let mut places: Vec<f64> =
        plot.series.iter().flat_map(|series| &series.points).map(|point| point[0]).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let cell = |series: &Series, x: f64| match series.points.iter().find(|point| point[0] == x) {
        Some(point) => Cell::Text(text::rounded(point[1])),
        None => Cell::Missing("not measured".to_owned()),
    };
    let row = |x: f64| Row {
        name: scale::datum(plot.x.scale, x),
        cells: plot.series.iter().map(|series| cell(series, x)).collect(),
    };
    Table {
        title: format!("{} by {}", plot.y.name, text::axis(&plot.x)),
        columns: plot.series.iter().map(|series| Column::new(&series.name, &plot.y.unit)).collect(),
        rows: places.into_iter().map(row).collect(),
    }
}

/// Whether a plot has nothing to draw: it may have only points without a position on its axes.
pub(crate) fn is_empty(plot: &Plot) -> bool {
    // The same rule as in the scale, which omits such points.
    let has_place = |point: &[f64; 2]| {
        let fits = |kind, value: f64| kind != AxisScale::Logarithmic || value > 0.0;
        fits(plot.x.scale, point[0]) && fits(plot.y.scale, point[1])
    };
    !plot.series.iter().flat_map(|series| &series.points).any(has_place)
}
