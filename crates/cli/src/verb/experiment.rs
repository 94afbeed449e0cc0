//! `trackway experiment`: the measurements of the source documents, repeated with programs of our own.

mod mtrace;
mod port;
mod programs;
mod real;
mod segment;

use crate::arguments::Experiment;
use crate::output::Stopped;

pub fn run(arguments: &Experiment) -> Result<u8, Stopped> {
    match arguments {
        Experiment::Mtrace(arguments) => mtrace::run(arguments),
        Experiment::Port(arguments) => port::run(arguments),
        Experiment::Segment(arguments) => segment::run(arguments),
    }
}
