//! Reports for people: a [`Table`] as text, Markdown or CSV, and a [`Chart`] as SVG.
//!
//! Equal data gives equal text, so that reports can be compared and kept under version control.
//! Values that a chart cannot show (NaN, infinite) are skipped; nothing panics.
//!
//! This crate knows nothing of traces and does no I/O: callers get strings.

mod axis;
mod chart;
mod labels;
mod marks;
mod number;
mod svg;
mod table;

pub use chart::Chart;
pub use marks::{Bars, Lines};
pub use number::{grouped, percent, size};
pub use table::Table;
