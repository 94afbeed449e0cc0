//! `trackway verify --filter`: checks that the messages of a filter are enough to decode the trace.

use cache::{FlagCoverage, Geometry, Replacement};
use filter::cfiat::{CfiatConfig, KnownCriterion};
use mtrace::{flow, loads};
use replay::loads::{Invalidation, LoadSettings};
use replay::{CheckError, CheckReport, Sharing};
use serde::Serialize;
use trace::Trace;

use crate::arguments::{Filter, Verify};
use crate::digits::grouped;
use crate::failure::Failure;
use crate::select;

/// The cache of Myers 2014, Table 4.6.
const CACHE_BYTES: u64 = 32 << 10;
const LINE_BYTES: u64 = 32;
const WAYS: usize = 4;
const GRANULARITY: u64 = 4;

#[derive(Serialize)]
pub struct FilterReport {
    file: String,
    filter: &'static str,
    shared: bool,
    pub sound: bool,
    instructions: u64,
    /// Branches or loads that the filter has seen.
    events: u64,
    messages: u64,
    /// Steps or loads that were compared.
    right: u64,
    wrong: u64,
    problems: Vec<String>,
    /// The kinds of events that are encoded, and that are compared.
    #[serde(skip)]
    encoded: &'static str,
    #[serde(skip)]
    compared: &'static str,
}

pub fn check(trace: &Trace, filter: Filter, arguments: &Verify) -> Result<FilterReport, Failure> {
    let sharing = if arguments.shared { Sharing::shared(arguments.interleave) } else { Sharing::Private };
    let mut report = match filter {
        Filter::McfTRaptor => check_flow(trace, sharing).map_err(failure)?,
        Filter::MlvCFiat => {
            select::require_values(trace)?;
            check_loads(trace, sharing).map_err(failure)?
        }
    };
    report.file = arguments.input.file.display().to_string();
    report.shared = arguments.shared;
    if select::warn_if_unfinished(trace, &arguments.input.file) > 0 {
        report.sound = false;
    }
    Ok(report)
}

fn failure(error: CheckError) -> Failure {
    match error {
        CheckError::Read(error) => error.into(),
        other => Failure::new(other.to_string()),
    }
}

fn check_flow(trace: &Trace, sharing: Sharing) -> Result<FilterReport, CheckError> {
    let checked = flow::check(trace, &flow::FlowSettings { sharing, ..flow::FlowSettings::default() })?;
    let (instructions, events) = (checked.statistics.instructions, checked.statistics.branches());
    let events = events + checked.statistics.exceptions + checked.statistics.gaps;
    let found = report_of("mcfTRaptor", checked);
    Ok(FilterReport { instructions, events, encoded: "branches", compared: "steps", ..found })
}

fn check_loads(trace: &Trace, sharing: Sharing) -> Result<FilterReport, CheckError> {
    let cfiat = CfiatConfig {
        geometry: Geometry::new(CACHE_BYTES, LINE_BYTES, WAYS)?,
        replacement: Replacement::default(),
        granularity: GRANULARITY,
        cover: FlagCoverage::default(),
        known_by: KnownCriterion::default(),
    };
    let invalidation = Invalidation::default();
    let checked = loads::check(trace, &LoadSettings { cfiat, sharing, invalidation, coherent: false })?;
    let (instructions, events) = (checked.statistics.instructions, checked.statistics.all_loads().references());
    let found = report_of("mlvCFiat", checked);
    Ok(FilterReport { instructions, events, encoded: "loads", compared: "loads", ..found })
}

fn report_of<S>(filter: &'static str, checked: CheckReport<S>) -> FilterReport {
    FilterReport {
        file: String::new(),
        filter,
        shared: false,
        sound: checked.mismatches == 0,
        instructions: 0,
        events: 0,
        messages: checked.messages,
        right: checked.matches,
        wrong: checked.mismatches,
        problems: checked.problems,
        encoded: "",
        compared: "",
    }
}

pub fn text(report: &FilterReport) -> String {
    let mut text: String = report.problems.iter().map(|problem| format!("{problem}\n")).collect();
    let &FilterReport { filter, events, messages, right, wrong, instructions, .. } = report;
    let whose = if report.shared { "shared" } else { "private" };
    let (things, shown) = (report.encoded, report.compared);
    let verdict = if wrong == 0 { format!("all {shown} decoded") } else { format!("{} wrong", grouped(wrong)) };
    text.push_str(&format!(
        "{}: {filter}, {whose}: {verdict}; {} {shown} compared, {} messages for {} {things} in {} instructions\n",
        report.file,
        grouped(right + wrong),
        grouped(messages),
        grouped(events),
        grouped(instructions),
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrong: u64) -> FilterReport {
        let problems = if wrong == 0 { Vec::new() } else { vec!["thread 0: lost".to_owned()] };
        FilterReport {
            file: "t.trk".into(),
            filter: "mcfTRaptor",
            shared: false,
            sound: wrong == 0,
            instructions: 5000,
            events: 1000,
            messages: 10,
            right: 1200 - wrong,
            wrong,
            problems,
            encoded: "branches",
            compared: "steps",
        }
    }

    #[test]
    fn wrong_steps_are_named_in_the_verdict() {
        let sound = "t.trk: mcfTRaptor, private: all steps decoded; 1 200 steps compared, \
                     10 messages for 1 000 branches in 5 000 instructions\n";
        assert_eq!(text(&report(0)), sound);
        assert!(text(&report(3)).starts_with("thread 0: lost\nt.trk: mcfTRaptor, private: 3 wrong; 1 200 steps"));
    }
}
