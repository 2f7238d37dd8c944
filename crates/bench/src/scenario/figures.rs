//! Figures of repetitions as cells of a table: shared by the scenarios that measure engines.

use crate::method::stats::Summary;
use crate::report::model::{Cell, Column, Row, Verdict};

/// What was measured in each round, or why the machine does not allow it.
pub(crate) type Rounds<M> = Vec<Result<M, String>>;

/// One figure out of each round; the first reason where there is none.
pub(crate) fn series<M>(
    rounds: &[Result<M, String>],
    figure: impl Fn(&M) -> f64,
) -> Result<Vec<f64>, String> {
    // One round without a figure makes the others an answer to another question: the reason stands for all of them.
    rounds.iter().map(|round| round.as_ref().map(&figure).map_err(String::clone)).collect()
}

/// A cell with the middle of some figures.
pub(crate) fn cell(figures: &Result<Vec<f64>, String>, decimals: u8) -> Cell {
    match figures {
        // No figure without its spread: a reader sees from it whether two cells differ at all.
        Ok(figures) => match Summary::of(figures) {
            Some(summary) => Cell::Figure { summary, decimals },
            None => Cell::Missing("nothing was measured".to_owned()),
        },
        Err(reason) => Cell::Missing(reason.clone()),
    }
}

/// A cell with the middle of the ratios of each round.
pub(crate) fn ratio_cell(
    ours: &Result<Vec<f64>, String>,
    theirs: &Result<Vec<f64>, String>,
    decimals: u8,
) -> Cell {
    match (ours, theirs) {
        // Both were measured in the same round, one after the other, and what disturbed one has most likely disturbed
        // the other too: their ratio is steadier than either.
        (Ok(ours), Ok(theirs)) => match Summary::of_ratios(ours, theirs) {
            Some(summary) => Cell::Figure { summary, decimals },
            None => Cell::Missing("one of the two was too quick to be measured".to_owned()),
        },
        (Err(reason), _) | (_, Err(reason)) => Cell::Missing(reason.clone()),
    }
}

/// The middle of some figures, for plots and sentences.
pub(crate) fn middle(figures: &Result<Vec<f64>, String>) -> Option<f64> {
    // A plot leaves out what there is no figure for; the table beside it has the reason.
    figures.as_ref().ok().and_then(|figures| Summary::of(figures)).map(|summary| summary.median)
}

/// The head of a column; a number of things has no unit.
pub(crate) fn column(name: &str, unit: &str) -> Column {
    Column { name: name.to_owned(), unit: unit.to_owned() }
}

/// A line of a table, which has a cell for each column.
pub(crate) fn row(name: impl Into<String>, cells: Vec<Cell>) -> Row {
    Row { name: name.into(), cells }
}

/// How far a figure is what was claimed: all of it, a part, or nothing.
pub(crate) fn at_least(figure: f64, holds: f64, partly: f64) -> Verdict {
    if figure >= holds {
        Verdict::Holds
    } else if figure >= partly {
        Verdict::Partly
    } else {
        Verdict::Fails
    }
}
