//! A full check of a trace: that every byte is accounted for, every chunk decodes, and what it decodes to agrees with the
//! headers and with itself.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use rayon::prelude::*;
use wire::word::{self, EVENT};

use crate::access::Gathered;
use crate::container::{ChunkHeader, PathHeader};
use crate::data::{self, DataTotal};
use crate::error::Problem;
use crate::event;
use crate::model::{Counts, DataMode, Event};
use crate::parallel::Pool;
use crate::program::Program;
use crate::steps::{Workshop, decode};
use crate::tally::{ELSEWHERE, Tally, Total};
use crate::trace::{Chunk, Trace};

/// Problems listed of one chunk at most.
const PROBLEMS_PER_CHUNK: usize = 8;

/// What a full check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One sentence each, in the order of the file.
    pub problems: Vec<String>,
    pub chunks: u64,
    /// Path chunks that decode.
    pub intact_path_chunks: u64,
    /// Data chunks that decode, with the paths they belong to.
    pub intact_data_chunks: u64,
    /// What those executed, counted anew.
    pub counts: Counts,
}

impl Report {
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Trace {
    /// Checks everything. Decodes the whole trace, on all cores.
    #[must_use]
    pub fn verify(&self) -> Report {
        let mut problems: Vec<(u64, String)> = self
            .opening_damage()
            .iter()
            .chain(self.code_damage())
            .map(|damage| (damage.bytes.start, damage.to_string()))
            .collect();
        let pool = Pool::<Scratch>::default();
        let check = |(place, chunk): (usize, &Chunk)| {
            let mut scratch = pool.take();
            let checked = scratch.check(self, place, chunk);
            pool.give_back(scratch);
            checked
        };
        let checked: Vec<Checked> = self.chunks().par_iter().enumerate().map(check).collect();
        let mut report = Report { chunks: self.chunks().len() as u64, ..Report::default() };
        for (chunk, checked) in self.chunks().iter().zip(checked) {
            if let Some(total) = checked.total {
                report.counts.add(&total.counts);
                report.intact_path_chunks += 1;
            }
            if let Some(total) = checked.data {
                report.counts.add(&Counts { reads: total.reads, writes: total.writes, ..Counts::default() });
                report.intact_data_chunks += 1;
            }
            let sentence = |problem| format!("{} chunk at byte {}: {problem}", chunk.header.kind, chunk.offset);
            problems.extend(checked.problems.into_iter().map(|problem| (chunk.offset, sentence(problem))));
        }
        problems.extend(self.check_joints());
        problems.sort_by_key(|(offset, _)| *offset);
        report.problems = problems.into_iter().map(|(_, problem)| problem).collect();
        report
    }

    /// Compares where each chunk's end leads with where the thread's next chunk begins.
    fn check_joints(&self) -> Vec<(u64, String)> {
        let mut last: BTreeMap<u32, PathHeader> = BTreeMap::new();
        let mut problems = Vec::new();
        for chunk in self.chunks() {
            let Some(path) = chunk.path() else { continue };
            if let Some(before) = last.insert(path.thread, *path)
                && before.image == path.image
                && !may_follow(before.end_pc, path.start_pc)
                && before.first_instruction.checked_add(before.counts.instructions) == Some(path.first_instruction)
            {
                let (thread, end, start) = (path.thread, before.end_pc, path.start_pc);
                let text = format!(
                    "path chunk at byte {}: thread {thread} was about to execute {end:#x} but goes on at {start:#x}",
                    chunk.offset
                );
                problems.push((chunk.offset, text));
            }
        }
        problems
    }
}

/// Whether a thread that was about to execute `end` can be at `start`. A system call that was interrupted may be started
/// again: its instruction is two bytes long.
fn may_follow(end: u64, start: u64) -> bool {
    end == 0 || start == 0 || start == ELSEWHERE || start == end || start.wrapping_add(2) == end
}

#[derive(Default)]
struct Scratch {
    workshop: Workshop,
    words: Vec<u32>,
    data: Vec<u8>,
    gathered: Gathered,
}

#[derive(Default)]
struct Checked {
    problems: Vec<String>,
    total: Option<Total>,
    data: Option<DataTotal>,
}

impl Scratch {
    fn check(&mut self, trace: &Trace, place: usize, chunk: &Chunk) -> Checked {
        let mut checked = Checked::default();
        let start = usize::try_from(chunk.offset).unwrap_or(usize::MAX);
        if trace.bytes().get(start..).and_then(ChunkHeader::parse) != Some(chunk.header) {
            checked.problems.push(Problem::Header.to_string());
        }
        let Some(header) = chunk.path() else {
            // Data is checked together with its path, unless that is gone.
            if let Err(problem) = trace.payload(chunk) {
                checked.problems.push(problem.to_string());
            }
            return checked;
        };
        if let Err(problem) = decode(trace, chunk, &mut self.workshop, &mut self.words) {
            checked.problems.push(problem.to_string());
            return checked;
        }
        let program = trace.program();
        match Tally::new(program).words(&self.words) {
            Err(at) => {
                let word = self.words.get(at).copied().unwrap_or(0);
                checked.problems.push(format!("word {at} is {word:#x}, which is neither a defined path nor an event"));
            }
            Ok(total) => {
                checked.problems.extend(compare(header, &total));
                check_way(program, &self.words, &mut checked.problems);
                checked.total = Some(total);
                if trace.data() != DataMode::None {
                    let result = self.check_data(trace, place);
                    checked.data = result.map_err(|problem| checked.problems.push(problem)).ok();
                }
            }
        }
        checked
    }

    /// Checks the data of the path chunk at `place`, whose words were just decoded.
    fn check_data(&mut self, trace: &Trace, place: usize) -> Result<DataTotal, String> {
        let chunk = trace.data_chunk(place).ok_or_else(|| Problem::DataMissing.to_string())?;
        let header = chunk.data().ok_or_else(|| Problem::Header.to_string())?;
        let program = trace.program();
        let payload = trace.payload(chunk);
        let Self { workshop, words, data, .. } = self;
        let read = payload.and_then(|payload| workshop.data.read(program, words, &chunk.header, payload, data));
        read.map_err(|problem| format!("its data at byte {}: {problem}", chunk.offset))?;
        let source = data::Source { program, data: &self.data };
        let total = data::count(source, &self.words, header.fs_base, &mut self.gathered);
        if (total.reads, total.writes) != (header.reads, header.writes) {
            return Err(format!(
                "the header of its data tells {} reads and {} writes, the data {} and {}",
                header.reads, header.writes, total.reads, total.writes
            ));
        }
        if total.lost != 0 {
            return Err(format!("{} accesses cannot be made of its data", total.lost));
        }
        Ok(total)
    }
}

fn compare(header: &PathHeader, total: &Total) -> Vec<String> {
    let told = Total {
        counts: header.counts,
        first_tsc: header.first_tsc,
        last_tsc: header.last_tsc,
        start_pc: header.start_pc,
        end_pc: header.end_pc,
    };
    let mut problems = Vec::new();
    if told != *total {
        problems.push(format!(
            "the header tells {} instructions in {} steps, the words {} in {}, or other things differ",
            told.counts.instructions, told.counts.steps, total.counts.instructions, total.counts.steps
        ));
    }
    if total.counts.lost != 0 {
        problems.push(format!("{} signals interrupted something that cannot be", total.counts.lost));
    }
    problems
}

/// Checks that each path begins where the one before it, or the event between, leads.
fn check_way(program: &Program, words: &[u32], problems: &mut Vec<String>) {
    let mut expected = 0;
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        if problems.len() >= PROBLEMS_PER_CHUNK {
            return;
        }
        let rest = words.get(at..).unwrap_or(&[]);
        let (start, next) = if word & EVENT == 0 {
            (program.head(word).unwrap_or(0), program.target(word).unwrap_or(0))
        } else {
            event_way(program, rest, expected)
        };
        if expected != 0 && start != 0 && start != expected {
            problems
                .push(format!("word {at}: the thread was about to execute {expected:#x} but goes on at {start:#x}"));
        }
        expected = next;
        at += word::length(word).unwrap_or(1);
    }
}

/// Where the thread is at the event at the start of `words`, and where behind it. 0 if the event does not tell.
fn event_way(program: &Program, words: &[u32], expected: u64) -> (u64, u64) {
    let Some(recorded) = event::read(words) else { return (0, 0) };
    match recorded.event {
        Some(Event::Signal { pc, handler, .. }) => {
            // `syscall` is two bytes long: one that was interrupted may be started again.
            let restarted = recorded.interrupted.0 == 0 && pc.wrapping_add(2) == expected;
            let start = program.head(recorded.interrupted.0).unwrap_or(if restarted { expected } else { pc });
            (start, handler)
        }
        // These are what makes a thread go on elsewhere.
        Some(Event::Start { pc, .. } | Event::Resume { pc, .. }) => (0, pc),
        Some(Event::End { .. } | Event::Leave { .. } | Event::Lost) => (0, 0),
        Some(Event::Gap { pc }) => (pc, 0),
        Some(Event::Time { .. } | Event::Syscall { .. } | Event::Child { .. } | Event::FsBase { .. })
        | Some(Event::Unfinished { .. })
        | None => (0, expected),
    }
}
