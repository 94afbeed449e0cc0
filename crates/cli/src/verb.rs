//! The verbs, one file each. Arguments come from [`crate::arguments`]; every verb returns an exit
//! status or a [`Stopped`].

use crate::arguments::Verb;
use crate::output::Stopped;

mod completions;
mod demo;
mod dump;
mod experiment;
mod info;
mod memory;
mod mtrace;
mod port;
mod record;
mod segment;
mod stat;
mod verify;

/// Runs the verb and returns the exit status.
pub fn run(verb: &Verb) -> Result<u8, Stopped> {
    match verb {
        Verb::Record(arguments) => record::run(arguments),
        Verb::Info(arguments) => info::run(arguments),
        Verb::Stat(arguments) => stat::run(arguments),
        Verb::Verify(arguments) => verify::run(arguments),
        Verb::Dump(arguments) => dump::run(arguments),
        Verb::McfTrace(arguments) => mtrace::run_mcftrace(arguments),
        Verb::MlsTrace(arguments) => mtrace::run_mlstrace(arguments),
        Verb::McfTRaptor(arguments) => mtrace::run_mcftraptor(arguments),
        Verb::MlvCFiat(arguments) => mtrace::run_mlvcfiat(arguments),
        Verb::Port(arguments) => port::run(arguments),
        Verb::Segment(arguments) => segment::run(arguments),
        Verb::Memory(arguments) => memory::run(arguments),
        Verb::Experiment(arguments) => experiment::run(arguments),
        Verb::Demo(arguments) => demo::run(arguments),
        Verb::Completions(arguments) => completions::run(arguments),
    }
}
