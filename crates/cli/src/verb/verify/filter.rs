//! `trackway verify --filter`: is what a filter leaves enough to know the rest?

use cache::{Cover, Geometry, Replacement};
use filter::cfiat::{Shape, Trust};
use filter::traptor::{Counting, Sizes, WithoutGshare};
use mtrace::{CheckError, Checked, Sharing, flow, loads};
use predict::Tagging;
use serde::Serialize;
use trace::{DataMode, ReadError, Trace};

use crate::arguments::{Filter, Verify};
use crate::digits::grouped;
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};

/// The sizes of Myers 2014, Figure 4.23 and Table 4.6.
const SIZES: Sizes =
    Sizes { gshare: 4096, ras: 32, ibtb: 64, tagging: Tagging::Tagged, without_gshare: WithoutGshare::NotTaken };
const CACHE_BYTES: u64 = 32 << 10;
const LINE_BYTES: u64 = 32;
const WAYS: usize = 4;
const GRANULARITY: u64 = 4;

#[derive(Serialize)]
struct Findings {
    file: String,
    filter: &'static str,
    shared: bool,
    sound: bool,
    instructions: u64,
    /// Branches or loads that could have been told.
    events: u64,
    messages: u64,
    /// Steps or loads that were compared.
    right: u64,
    wrong: u64,
    problems: Vec<String>,
}

pub fn run(trace: &Trace, filter: Filter, arguments: &Verify, mut output: Output) -> Result<u8, Stopped> {
    let sharing = if arguments.shared { Sharing::Shared } else { Sharing::Private };
    let findings = match filter {
        Filter::McfTRaptor => check_flow(trace, sharing),
        Filter::MlvCFiat => check_loads(trace, sharing),
    };
    let file = arguments.input.file.display().to_string();
    let findings = Findings { file, shared: arguments.shared, ..findings.map_err(failure)? };
    if arguments.json {
        output.json(&findings)?;
    } else {
        output.write(text(&findings).as_bytes())?;
    }
    output.finish()?;
    Ok(if findings.sound { 0 } else { FAILED })
}

fn failure(error: CheckError) -> Failure {
    match error {
        CheckError::Read(error) => error.into(),
        other => Failure::new(other.to_string()),
    }
}

fn check_flow(trace: &Trace, sharing: Sharing) -> Result<Findings, CheckError> {
    let settings = flow::Settings { sizes: SIZES, counting: Counting::default(), sharing };
    let checked = flow::check(trace, &settings)?;
    let (instructions, events) = (checked.statistics.instructions, checked.statistics.branches());
    Ok(Findings { instructions, events: events + checked.statistics.exceptions, ..found("mcfTRaptor", checked) })
}

fn check_loads(trace: &Trace, sharing: Sharing) -> Result<Findings, CheckError> {
    if trace.data() != DataMode::Values {
        return Err(ReadError::NoData.into());
    }
    let shape = Shape {
        geometry: Geometry::new(CACHE_BYTES, LINE_BYTES, WAYS)?,
        replacement: Replacement::default(),
        granularity: GRANULARITY,
        cover: Cover::default(),
        trust: Trust::default(),
    };
    let checked = loads::check(trace, &loads::Settings { shape, sharing, invalidation: false })?;
    let total = checked.statistics.total();
    let instructions = checked.statistics.instructions;
    Ok(Findings { instructions, events: total.cache_hits + total.cache_misses, ..found("mlvCFiat", checked) })
}

fn found<S>(filter: &'static str, checked: Checked<S>) -> Findings {
    Findings {
        file: String::new(),
        filter,
        shared: false,
        sound: checked.wrong == 0,
        instructions: 0,
        events: 0,
        messages: checked.messages,
        right: checked.right,
        wrong: checked.wrong,
        problems: checked.problems,
    }
}

fn text(findings: &Findings) -> String {
    let mut text: String = findings.problems.iter().map(|problem| format!("{problem}\n")).collect();
    let &Findings { filter, events, messages, right, wrong, instructions, .. } = findings;
    let whose = if findings.shared { "shared" } else { "private" };
    let (things, shown) = if filter == "mlvCFiat" { ("loads", "loads") } else { ("branches", "steps") };
    let verdict = if wrong == 0 { format!("all {shown} come back") } else { format!("{} wrong", grouped(wrong)) };
    text.push_str(&format!(
        "{}: {filter}, {whose}: {verdict}; {} {shown} compared, {} messages for {} {things} in {} instructions\n",
        findings.file,
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

    fn findings(wrong: u64) -> Findings {
        let problems = if wrong == 0 { Vec::new() } else { vec!["thread 0: lost".to_owned()] };
        Findings {
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
        }
    }

    #[test]
    fn the_verdict() {
        let sound = "t.trk: mcfTRaptor, private: all steps come back; 1 200 steps compared, 10 messages for 1 000 branches in 5 000 instructions\n";
        assert_eq!(text(&findings(0)), sound);
        assert!(text(&findings(3)).starts_with("thread 0: lost\nt.trk: mcfTRaptor, private: 3 wrong; 1 200 steps"));
    }
}
