//! How fast a trace is read and written again, for the benchmark tables: one thread, everything in
//! memory.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use codec::path::PathCoder;
use entity::ThreadId;

use crate::container::{CODEC_PREDICT, CODEC_ZSTD};
use crate::decode::{DecodeBuffers, decode};
use crate::error::{Problem, ReadError};
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::trace::Trace;

/// Times and sizes of one run over all path chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurement {
    pub instructions: u64,
    pub words: u64,
    /// Decoding payloads into words.
    pub decode: Duration,
    /// Counting instructions and branches of words.
    pub count: Duration,
    /// Counting and compressing words.
    pub encode: Duration,
    /// Bytes of compressed words, and by zstd alone.
    pub encoded_bytes: u64,
    pub zstd_bytes: u64,
    /// Bytes of the code and facts chunks.
    pub definition_bytes: u64,
    /// Decoding and iterating steps, in batches.
    pub steps: Duration,
    /// Decoding and expanding to single instructions.
    pub expand: Duration,
}

impl Measurement {
    /// Measures `trace`.
    pub fn of(trace: &Trace) -> Result<Self, ReadError> {
        let mut measured = Self { instructions: trace.totals().instructions, ..Self::default() };
        let _ = trace.blocks();
        measured.words(trace)?;
        measured.iterate(trace)?;
        Ok(measured)
    }

    fn words(&mut self, trace: &Trace) -> Result<(), ReadError> {
        let (mut buffers, mut coder, mut words) = (DecodeBuffers::default(), PathCoder::default(), Vec::new());
        for chunk in trace.chunks() {
            let Some(path) = chunk.path() else {
                self.definition_bytes += chunk.header.length();
                continue;
            };
            let timed = timed(|| decode(trace, chunk, &mut buffers, &mut words));
            timed.0.map_err(|problem| chunk.error(problem))?;
            self.decode += timed.1;
            self.words += words.len() as u64;
            let program = trace.program();
            let unknown = |_| chunk.error(Problem::RawChecksum);
            let timed = self::timed(|| Tally::new(program).words(&words));
            timed.0.map_err(unknown)?;
            self.count += timed.1;
            let mut encode = |codec| coder.encode(codec, program, path.image, &words, Tally::new(program));
            let timed = self::timed(|| encode(CODEC_PREDICT));
            self.encoded_bytes += timed.0.map_err(unknown)?.payload.map_or(0, |payload| payload.len() as u64);
            self.encode += timed.1;
            let zstd = encode(CODEC_ZSTD).map_err(unknown)?;
            self.zstd_bytes += zstd.payload.map_or(0, |payload| payload.len() as u64);
        }
        Ok(())
    }

    fn iterate(&mut self, trace: &Trace) -> Result<(), ReadError> {
        let threads = || trace.threads().iter().map(|thread| thread.info.thread);
        let (result, time) = timed(|| threads().try_fold(0, |sum, thread| Ok(sum + sum_steps(trace, thread)?)));
        let instructions: u64 = result?;
        assert_eq!(instructions, self.instructions, "steps and headers agree");
        self.steps = time;
        let (result, time) = timed(|| threads().try_fold(0, |sum, thread| Ok(sum ^ sum_instructions(trace, thread)?)));
        let _: u64 = std::hint::black_box(result?);
        self.expand = time;
        Ok(())
    }
}

fn sum_steps(trace: &Trace, thread: ThreadId) -> Result<u64, ReadError> {
    let (mut sum, mut steps) = (0, trace.steps(thread)?);
    while let Some(batch) = steps.next_batch()? {
        sum += batch.steps().iter().map(|step| u64::from(step.instructions())).sum::<u64>();
    }
    Ok(sum)
}

fn sum_instructions(trace: &Trace, thread: ThreadId) -> Result<u64, ReadError> {
    let (mut sum, mut steps) = (0, trace.steps(thread)?);
    let blocks = trace.blocks();
    while let Some(batch) = steps.next_batch()? {
        for step in batch.steps() {
            for instruction in blocks.instructions(step) {
                sum ^= (instruction.address + instruction.bytes.len() as u64).get();
            }
        }
    }
    Ok(sum)
}

fn timed<R>(act: impl FnOnce() -> R) -> (R, Duration) {
    let start = now();
    let result = act();
    (result, now().saturating_sub(start))
}

/// Returns the time that this thread has been running on a processor, so that other processes do
/// not count; wall-clock time if the kernel does not say.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    Schedule::of_this_thread().map_or_else(|| START.get_or_init(Instant::now).elapsed(), |schedule| schedule.ran)
}
