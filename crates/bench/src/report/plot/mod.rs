//! Plots: the positions of axes, lines and markers in the drawing. The templates `drawing.svg` and `plot.svg` draw them.
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

use minijinja::{Value, context};

use crate::report::model::{Cell, Column, Plot, Row, Series, Table};
use crate::report::text;
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

/// Maximum number of labels on the x axis.
const X_LABELS: usize = 7;
/// Maximum number of labels on the y axis.
const Y_LABELS: usize = 5;

/// Maximum number of points of a line with markers: more of them would hide the line.
const MARKED_POINTS_MAX: usize = 24;

/// Numbers of the series of a section, by their names. The number selects colour, dashes and marker in the template.
pub(crate) type Styles<'a> = BTreeMap<&'a str, usize>;

/// Assigns a style to each series name of a section, in the order of first appearance.
pub(crate) fn styles(plots: &[Plot]) -> Styles<'_> {
    let mut styles = Styles::new();
    // In the order of the plots, so that the first plot of a section has the most distinct colours.
    for series in plots.iter().flat_map(|plot| &plot.series) {
        let next = styles.len();
        styles.entry(&series.name).or_insert(next);
    }
    styles
}

/// Returns the model of a drawing for the templates. The x axis ends at the last point, the y axis at a label; a y axis
/// that is not logarithmic begins at 0, so that twice the height is twice the value.
pub(crate) fn model(plot: &Plot, styles: &Styles<'_>) -> Value {
    // Both axes cover all series together, so that the lines are comparable.
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x = PlotScale::of(plot.x.scale, points().map(|point| point[0]), X_LABELS, true);
    let y = PlotScale::of(plot.y.scale, points().map(|point| point[1]), Y_LABELS, false);
    let x_ticks = x.ticks.iter().filter_map(|(value, label)| {
        let at = across(x.place(*value)?);
        let label_at = at.min(WIDTH - label.len() as f64 * LETTER_WIDTH / 2.0);
        Some(context! { at, label_at, label })
    });
    let y_ticks = y.ticks.iter().filter_map(|(value, label)| {
        let at = down(y.place(*value)?);
        Some(context! { at, label })
    });
    let series = plot.series.iter().map(|series| {
        context! {
            name => &series.name,
            style => styles.get(series.name.as_str()),
            points => line(plot, series, &x, &y),
            is_marked => series.points.len() <= MARKED_POINTS_MAX,
            is_empty => series.points.is_empty(),
        }
    });
    let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
    let (x_name, y_name) = (text::axis(&plot.x), text::axis(&plot.y));
    context! {
        id => &plot.id,
        title => &plot.title,
        // The alternative text; the table below has the figures.
        description => format!("{y_name} by {x_name}: {}", names.join("; ")),
        width => WIDTH,
        height => HEIGHT,
        left => LEFT,
        right => WIDTH - RIGHT,
        bottom => HEIGHT - BOTTOM,
        x_name => x_name,
        y_name => y_name,
        x_ticks => x_ticks.collect::<Vec<Value>>(),
        y_ticks => y_ticks.collect::<Vec<Value>>(),
        series => series.collect::<Vec<Value>>(),
        legend_columns => legend_columns(&names),
    }
}

/// Returns the points of a line with their positions. A value without a position (0 on a logarithmic axis, 100 %) does
/// not interrupt the line.
fn line(plot: &Plot, series: &Series, x: &PlotScale, y: &PlotScale) -> Vec<Value> {
    let point = |point: &[f64; 2]| {
        let (at_x, at_y) = (across(x.place(point[0])?), down(y.place(point[1])?));
        let (x, y) = (scale::datum(plot.x.scale, point[0]), text::rounded(point[1]));
        Some(
            context! { x => at_x, y => at_y, title => format!("{x}, {}", text::with_unit(&y, &plot.y.unit)) },
        )
    };
    series.points.iter().filter_map(point).collect()
}

/// Returns the number of legend columns that the longest name permits; letters are about 6.5 units wide.
fn legend_columns(names: &[&str]) -> usize {
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = 54.0 + longest as f64 * 6.5;
    ((WIDTH / width) as usize).clamp(1, 4)
}

/// Converts a position along the x axis to a coordinate of the drawing.
fn across(x: f64) -> f64 {
    tenths(LEFT + x * (WIDTH - LEFT - RIGHT))
}

/// Converts a position along the y axis to a coordinate of the drawing, whose y grows downwards.
fn down(y: f64) -> f64 {
    tenths(HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM))
}

/// Rounds a coordinate, so that it has few digits in the file.
fn tenths(coordinate: f64) -> f64 {
    (coordinate * 10.0).round() / 10.0
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
    let has_place = |point: &[f64; 2]| {
        scale::straight(plot.x.scale, point[0]).and(scale::straight(plot.y.scale, point[1])).is_some()
    };
    !plot.series.iter().flat_map(|series| &series.points).any(has_place)
}
