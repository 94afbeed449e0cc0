//! Results for people: a [`Table`] as text, Markdown or CSV, a [`Chart`] as SVG.
//!
//! The same data always gives the same text, so that reports can be compared and kept under version control. Values that no
//! picture can show (not a number, infinite) are left out; nothing panics.
//!
//! Knows nothing of traces, and does no I/O: whoever asks gets a string.

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
