//! `trackway port decode`: decodes bits and compares the result with the trace.

use filter::cfiat::KnownCriterion;
use port::bits::BitReader;
use port::cores::Cores;
use port::file::{self, DamagedFile};
use port::message::{DecodedMessage, MessageKind};
use port::packet::PacketItem;
use port::{PortDecoder, Subject};
use serde::Serialize;
use trace::{ThreadId, Trace};

use crate::arguments::Input;
use crate::arguments::port::PortDecode;
use crate::digits::grouped;
use crate::failure::{FAILED, Failure};
use crate::output::{LineBuffer, Output, Stopped};
use crate::progress::Progress;
use crate::select;

#[derive(Serialize)]
struct DecodeReport {
    technique: String,
    config: Option<&'static str>,
    /// Whether the decoded execution equals the trace.
    equal: bool,
    instructions: u64,
    bits: u64,
    messages: u64,
    /// Steps or loads that were compared.
    right: u64,
    wrong: u64,
    /// Loads that were known by their flags although the cache had another value.
    stale: u64,
    /// Damaged places of the trace.
    damaged: u64,
    problems: Vec<String>,
    #[serde(skip)]
    compared: &'static str,
    /// Whether loads are known by flags alone.
    #[serde(skip)]
    by_flags: bool,
}

fn damaged(error: DamagedFile) -> Failure {
    Failure::new(error.to_string()).hint("trackway port -o writes them")
}

pub fn run(arguments: &PortDecode) -> Result<u8, Stopped> {
    let read = std::fs::read(&arguments.bits);
    let bytes = read.map_err(|error| Failure::new(format!("cannot read {}: {error}", arguments.bits.display())))?;
    let (description, bits) = file::parse(&bytes).map_err(damaged)?;
    let unknown = || Failure::new(format!("these bits are of {}, which is unknown here", description.technique));
    let technique = description.technique().ok_or_else(unknown)?;
    let (config, settings) = description.config().zip(description.settings()).ok_or(DamagedFile).map_err(damaged)?;
    let &file::Description { thread, skip, length, .. } = &description;
    let input = Input { file: arguments.program.clone(), thread: thread.map(ThreadId::new), skip, length };
    let trace = select::open(&input)?;
    check_threads(&trace, &input, &description)?;
    let is_of_loads = technique.subject() == Subject::Loads;
    if is_of_loads {
        select::require_values(&trace)?;
    }
    let illegal = |error: String| Failure::new(error);
    let cores = Cores::new(description.threads.iter().copied().map(ThreadId::new), Some(description.cores));
    let cores = cores.map_err(|error| illegal(error.to_string()))?;
    let reader = BitReader::new(bits, description.bits);
    let mut decoder =
        PortDecoder::new(technique, &config, &settings, &cores, reader).map_err(|error| illegal(error.to_string()))?;
    let mut lines = match &arguments.messages {
        Some(path) => {
            decoder.log_messages();
            Some(LineBuffer::new(Output::open_apart_from(&input.file, Some(path))?))
        }
        None => None,
    };
    let mut listed = Ok(());
    let (mut instructions, mut progress) = (0, Progress::new());
    let damage = input.excerpt().for_each_batch(&trace, is_of_loads, |batch| {
        decoder.batch(trace.blocks(), batch);
        if let Some(lines) = lines.as_mut().filter(|_| listed.is_ok()) {
            decoder.take_messages().iter().for_each(|message| lines.bytes.extend(line(message).as_bytes()));
            listed = lines.flush_if_long();
        }
        instructions += batch.instructions();
        let available = description.instructions;
        progress.tick(|| format!("{} of {} instructions", grouped(instructions), grouped(available)));
    })?;
    drop(progress);
    listed?;
    if let Some(lines) = lines {
        lines.finish()?;
    }
    damage.iter().for_each(|problem| eprintln!("trackway: left out: {problem}"));
    let mut checked = decoder.finish();
    if instructions != description.instructions {
        let (own, other) = (grouped(instructions), grouped(description.instructions));
        checked.add_problem(|| format!("the bits are of {other} instructions, and the trace has {own}"));
    }
    let report = DecodeReport {
        technique: description.technique.clone(),
        config: technique.filter().is_configured().then_some(config.name),
        equal: checked.mismatches == 0 && checked.stale == 0,
        instructions,
        bits: description.bits,
        messages: checked.messages,
        right: checked.matches,
        wrong: checked.mismatches,
        stale: checked.stale,
        damaged: damage.len() as u64 + select::warn_if_unfinished(&trace, &input.file),
        problems: checked.problems,
        compared: if is_of_loads { "loads" } else { "steps" },
        by_flags: technique.has_cache() && settings.known_by == KnownCriterion::Flags,
    };
    print(arguments, &report)
}

/// Returns a line for a message, in the manner of mcfTRaptor and mlvCFiat.
fn line(message: &DecodedMessage) -> String {
    let core = message.core;
    match &message.kind {
        MessageKind::Branch { count, target: None } => format!("{core}, {count}\n"),
        MessageKind::Branch { count, target: Some(target) } => format!("{core}, {count}, T, {target:#018x}\n"),
        MessageKind::Exception { instructions, target }
        | MessageKind::Item(PacketItem::Exception { instructions, target }) => {
            format!("{core}, 0, {instructions}, {target:#018x}\n")
        }
        MessageKind::Load { hits, value } => {
            let value: String = value.iter().rev().map(|byte| format!("{byte:02x}")).collect();
            format!("{core}, {hits}, 0x{value}\n")
        }
        MessageKind::Item(PacketItem::Outcome(taken)) => format!("{core}, {}\n", if *taken { "T" } else { "NT" }),
        MessageKind::Item(PacketItem::Target(target)) => format!("{core}, T, {target:#018x}\n"),
    }
}

/// Fails if the bits cannot be those of the trace.
fn check_threads(trace: &Trace, input: &Input, description: &file::Description) -> Result<(), Failure> {
    if input.excerpt().threads(trace).into_iter().map(ThreadId::get).eq(description.threads.iter().copied()) {
        return Ok(());
    }
    Err(Failure::new(format!("the bits are of a trace with other threads than {}", input.file.display()))
        .hint("--program takes the trace that they were made of"))
}

fn print(arguments: &PortDecode, report: &DecodeReport) -> Result<u8, Stopped> {
    let mut output = Output::open(None)?;
    if arguments.json {
        output.json(report)?;
    } else {
        output.write(text(arguments, report).as_bytes())?;
    }
    output.finish()?;
    Ok(if report.equal && report.damaged == 0 { 0 } else { FAILED })
}

fn text(arguments: &PortDecode, report: &DecodeReport) -> String {
    let mut text: String = report.problems.iter().map(|problem| format!("{problem}\n")).collect();
    let of = report.config.map_or(String::new(), |config| {
        let known = if report.by_flags { ", known by flags" } else { "" };
        format!(" ({config}{known})")
    });
    let verdict = verdict(report);
    text.push_str(&format!(
        "{}: {}{of}, {verdict} by {} messages in {} bits, {} instructions\n",
        arguments.bits.display(),
        report.technique,
        grouped(report.messages),
        grouped(report.bits),
        grouped(report.instructions),
    ));
    text
}

fn verdict(report: &DecodeReport) -> String {
    let &DecodeReport { right, wrong, stale, compared, .. } = report;
    if report.equal {
        return format!("equal to the trace: {} {compared}", grouped(right));
    }
    let all = grouped(right + wrong + stale);
    match (wrong, stale) {
        (_, 0) => format!("not equal to the trace: {} wrong of {all} {compared}", grouped(wrong)),
        (0, _) => format!("not equal to the trace: {} of {all} {compared} are not what flags promise", grouped(stale)),
        _ => format!(
            "not equal to the trace: {} wrong of {all} {compared}, and {} are not what flags promise",
            grouped(wrong),
            grouped(stale)
        ),
    }
}
