//! A full check of a trace: every byte is accounted for, every chunk decodes, and its content
//! agrees with the headers and with itself.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod continuity;
mod follow;
mod fragments;

use std::collections::{BTreeMap, HashMap};

use entity::ThreadId;
use rayon::prelude::*;

use crate::InstructionIndex;
use crate::access::AccessBuffer;
use crate::container::{ChunkHeader, PathHeader};
use crate::data::{self, DataTotal};
use crate::decode::{DecodeBuffers, decode};
use crate::error::Problem;
use crate::model::{Counts, DataMode};
use crate::parallel::Pool;
use crate::tally::{PathTotal, Tally};
use crate::trace::{Chunk, Trace};

pub use continuity::ContinuityCheck;
use follow::{ChunkBoundary, Continuation, FlowChecker};

/// What a full check found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// One sentence each, in the order of the file.
    pub problems: Vec<String>,
    pub chunks: u64,
    /// Path chunks that decode.
    pub intact_path_chunks: u64,
    /// Data chunks that decode, with the paths they belong to.
    pub intact_data_chunks: u64,
    /// What those executed, counted anew.
    pub counts: Counts,
    /// Indirect jumps, calls and returns whose targets cannot be checked, because they were not
    /// recorded.
    pub unchecked_transfers: u64,
}

impl VerifyReport {
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Trace {
    /// Checks everything. Decodes the whole trace, on all cores.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let mut problems: Vec<(u64, String)> = self
            .opening_damage()
            .iter()
            .chain(self.code_damage())
            .map(|damage| (damage.bytes.start, damage.to_string()))
            .collect();
        let pool = Pool::<CheckBuffers>::default();
        let check = |(place, chunk): (usize, &Chunk)| {
            let mut buffers = pool.take();
            let checked = buffers.check(self, place, chunk);
            pool.give_back(buffers);
            checked
        };
        let checked: Vec<CheckedChunk> = self.chunks().par_iter().enumerate().map(check).collect();
        let mut report = VerifyReport { chunks: self.chunks().len() as u64, ..VerifyReport::default() };
        for (chunk, checked) in self.chunks().iter().zip(&checked) {
            if let Some(total) = &checked.total {
                report.counts.add(&total.counts);
                report.intact_path_chunks += 1;
            }
            if let Some(total) = &checked.data {
                report.counts.add(&Counts { reads: total.reads, writes: total.writes, ..Counts::default() });
                report.intact_data_chunks += 1;
            }
            let sentence = |problem| format!("{} chunk at byte {}: {problem}", chunk.header.kind, chunk.offset);
            problems.extend(checked.problems.iter().map(|problem| (chunk.offset, sentence(problem))));
            report.unchecked_transfers += checked.boundary.as_ref().map_or(0, |boundary| boundary.unchecked);
        }
        problems.extend(self.check_boundaries(&checked));
        problems.extend(self.check_fragments());
        problems.sort_by_key(|(offset, _)| *offset);
        report.problems = problems.into_iter().map(|(_, problem)| problem).collect();
        report
    }

    /// Checks of each fragment that it agrees with its code.
    fn check_fragments(&self) -> Vec<(u64, String)> {
        let program = self.program();
        let offsets: HashMap<u32, u64> =
            self.chunks().iter().map(|chunk| (chunk.header.sequence, chunk.offset)).collect();
        let problems = program.fragments().par_iter().filter_map(|fragment| {
            let offset = offsets.get(&fragment.sequence).copied().unwrap_or(0);
            let problem = fragments::problem(program, fragment)?;
            Some((offset, format!("code chunk at byte {offset}: {problem}")))
        });
        problems.collect()
    }

    /// Checks that each thread continues in its next chunk where the chunk before it leads.
    fn check_boundaries(&self, checked: &[CheckedChunk]) -> Vec<(u64, String)> {
        let mut threads: BTreeMap<ThreadId, ThreadEnd> = BTreeMap::new();
        let mut problems = Vec::new();
        for (chunk, checked) in self.chunks().iter().zip(checked) {
            let Some(path) = chunk.path() else { continue };
            let before = ThreadEnd::before(threads.get(&path.thread), path);
            let continuation = match checked.boundary.as_ref().map(|boundary| (boundary.follow(before), boundary)) {
                None => Continuation::Unknown,
                Some((Ok(continuation), _)) => continuation,
                Some((Err(problem), boundary)) => {
                    let (offset, thread) = (chunk.offset, path.thread);
                    problems
                        .push((offset, format!("path chunk at byte {offset}: start of thread {thread}: {problem}")));
                    boundary.end()
                }
            };
            threads.insert(path.thread, ThreadEnd { header: *path, continuation });
        }
        problems
    }
}

/// The state of a thread behind one of its chunks.
struct ThreadEnd {
    header: PathHeader,
    continuation: Continuation,
}

impl ThreadEnd {
    /// Returns where the thread continues before the chunk with this header.
    fn before(thread: Option<&Self>, next: &PathHeader) -> Continuation {
        let Some(Self { header, continuation }) = thread else {
            return if next.first_instruction == InstructionIndex::FIRST {
                Continuation::NotRunning
            } else {
                Continuation::Unknown
            };
        };
        if header.instructions().end != next.first_instruction {
            Continuation::Unknown
        } else if header.image != next.image {
            // A process that replaces itself ends all its threads.
            Continuation::NotRunning
        } else {
            *continuation
        }
    }
}

#[derive(Default)]
struct CheckBuffers {
    buffers: DecodeBuffers,
    words: Vec<u32>,
    data: Vec<u8>,
    accesses: AccessBuffer,
}

#[derive(Default)]
struct CheckedChunk {
    problems: Vec<String>,
    total: Option<PathTotal>,
    data: Option<DataTotal>,
    /// Of a path chunk that decodes.
    boundary: Option<ChunkBoundary>,
}

impl CheckBuffers {
    fn check(&mut self, trace: &Trace, place: usize, chunk: &Chunk) -> CheckedChunk {
        let mut checked = CheckedChunk::default();
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
        if let Err(problem) = decode(trace, chunk, &mut self.buffers, &mut self.words) {
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
                checked.total = Some(total);
                self.data.clear();
                if trace.data() != DataMode::None {
                    let result = self.check_data(trace, place);
                    checked.data = result.map_err(|problem| checked.problems.push(problem)).ok();
                }
                let data = if checked.data.is_some() { &self.data[..] } else { &[] };
                let checker = FlowChecker { program, image: header.image, sequence: chunk.header.sequence, data };
                checked.boundary = Some(checker.follow(&self.words, &mut checked.problems));
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
        let Self { buffers, words, data, .. } = self;
        let read = payload.and_then(|payload| buffers.data.read(program, words, &chunk.header, payload, data));
        read.map_err(|problem| format!("its data at byte {}: {problem}", chunk.offset))?;
        let source = data::DataSource { program, data: &self.data };
        let total = data::count(source, &self.words, header.fs_base, &mut self.accesses);
        if (total.reads, total.writes) != (header.reads, header.writes) {
            return Err(format!(
                "the header of its data says {} reads and {} writes, the data {} and {}",
                header.reads, header.writes, total.reads, total.writes
            ));
        }
        if total.lost != 0 {
            return Err(format!("{} accesses cannot be made of its data", total.lost));
        }
        Ok(total)
    }
}

fn compare(header: &PathHeader, total: &PathTotal) -> Vec<String> {
    let stored = PathTotal {
        counts: header.counts,
        first_tsc: header.first_tsc,
        last_tsc: header.last_tsc,
        start_pc: header.start_pc,
        end_pc: header.end_pc,
    };
    let mut problems = Vec::new();
    if stored != *total {
        problems.push(format!(
            "the header says {} instructions in {} steps, the words {} in {}, or other things differ",
            stored.counts.instructions, stored.counts.steps, total.counts.instructions, total.counts.steps
        ));
    }
    if total.counts.lost != 0 {
        problems.push(format!("{} signals interrupted something that cannot be", total.counts.lost));
    }
    problems
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]
mod tests;
