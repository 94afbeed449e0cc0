//! The worker behind a writer: it counts and compresses chunks in the order they come and appends
//! them to the file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use codec::path::{self, EncodedWords, PathCoder};
use codec::streams::Compressor;
use entity::ThreadId;

use super::contention::Contention;
use super::output::Output;
use super::pending::PendingData;
use super::{Codec, Pressure, Spare, WriterOptions};
use crate::InstructionIndex;
use crate::access::AccessBuffer;
use crate::code_chunk::CodeContent;
use crate::container::{
    CODEC_RAW, CODEC_ZSTD, ChunkHeader, ChunkKind, DataHeader, Extra, FILE_HEADER_BYTES, PathHeader, RAW_BYTES_MAX,
    TRAILER_BYTES, crc, file_header, trailer,
};
use crate::error::WriteError;
use crate::model::{Counts, Exit, Recording, Summary, ThreadSummary};
use crate::program::Program;
use crate::record::{Fact, write_exit, write_recording};
use crate::tally::{PathTotal, Tally};

pub(super) enum Job {
    Code(CodeContent),
    Facts(Vec<Fact>),
    Path(PathJob),
    Finish(Exit),
}

/// A path chunk, and the data chunk behind it.
pub(super) struct PathJob {
    pub image: u32,
    pub thread: ThreadId,
    pub words: Vec<u32>,
    pub data: Option<Box<PendingData>>,
}

impl Job {
    /// Number of words in it.
    pub(super) fn words(&self) -> usize {
        match self {
            Self::Path(path) => path.words.len(),
            _ => 0,
        }
    }
}

/// Chunks up to this size are appended in one piece.
const WHOLE_MAX: usize = 1 << 20;

pub(super) struct Worker {
    output: Output,
    part: PathBuf,
    options: WriterOptions,
    sequence: u32,
    /// Content of the index chunk so far.
    index: Vec<u8>,
    program: Program,
    coder: PathCoder,
    /// For a chunk that is encoded at the same time.
    second_coder: PathCoder,
    /// A job that was taken from the queue too early.
    next: Option<Job>,
    accesses: AccessBuffer,
    compressor: Compressor,
    threads: BTreeMap<ThreadId, ThreadSummary>,
    summary: Summary,
    give_back: SyncSender<Spare>,
    failure: Arc<Mutex<Option<WriteError>>>,
    waiting: Arc<AtomicUsize>,
    pressure: Arc<Pressure>,
    contention: Contention,
}

const ZSTD_LEVEL: i32 = 3;
/// After so long without a job, everything is to be in the file.
const QUIET: Duration = Duration::from_millis(100);

impl Worker {
    pub(super) fn new(
        output: Output,
        part: PathBuf,
        options: WriterOptions,
        give_back: SyncSender<Spare>,
        failure: Arc<Mutex<Option<WriteError>>>,
        waiting: Arc<AtomicUsize>,
        pressure: Arc<Pressure>,
    ) -> Self {
        Self {
            output,
            part,
            options,
            sequence: 0,
            index: Vec::new(),
            program: Program::without_code(),
            coder: PathCoder::default(),
            second_coder: PathCoder::default(),
            next: None,
            accesses: AccessBuffer::default(),
            compressor: Compressor::default(),
            threads: BTreeMap::new(),
            summary: Summary::default(),
            give_back,
            failure,
            waiting,
            pressure,
            contention: Contention::default(),
        }
    }

    /// Writes what stands before the first job.
    pub(super) fn start(&mut self, recording: &Recording) -> Result<(), WriteError> {
        self.append(&file_header())?;
        debug_assert_eq!(self.output.length(), FILE_HEADER_BYTES as u64);
        self.chunk(ChunkKind::Recording, &write_recording(recording), Extra::None)
    }

    /// Works until the writer is finished or gone.
    pub(super) fn run(mut self, queue: &Receiver<Job>) -> Option<Summary> {
        loop {
            let job = match self.next.take().map_or_else(|| queue.recv_timeout(QUIET), Ok) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            self.waiting.fetch_sub(job.as_ref().map_or(0, Job::words), Ordering::Relaxed);
            let result = match job {
                None => self.written(|output| output.flush()),
                Some(Job::Code(content)) => self.code(&content),
                Some(Job::Facts(facts)) => self.facts(facts),
                Some(Job::Path(path)) => self.paths(path, queue),
                Some(Job::Finish(exit)) => match self.finish(exit) {
                    Ok(()) => return Some(self.summary),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                let fatal = is_fatal(&error);
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                if fatal {
                    return None;
                }
            }
        }
    }

    fn code(&mut self, content: &CodeContent) -> Result<(), WriteError> {
        let mut refusal = None;
        for definition in content.definitions() {
            if let Err(error) = self.program.define(&definition, self.sequence) {
                refusal.get_or_insert(error);
            }
        }
        let header = content.header();
        self.summary.blocks += u64::from(header.blocks);
        self.summary.fragments += u64::from(header.fragments);
        self.summary.code_bytes += header.code_bytes;
        self.chunk(ChunkKind::Code, &content.encoded(), Extra::Code(header))?;
        refusal.map_or(Ok(()), Err)
    }

    fn facts(&mut self, facts: Vec<Fact>) -> Result<(), WriteError> {
        let mut content = Vec::new();
        for fact in facts {
            fact.write(&mut content);
            match fact {
                Fact::Thread(info) => {
                    let new = ThreadSummary { info, ..ThreadSummary::default() };
                    self.threads.entry(new.info.thread).or_insert(new);
                }
                Fact::Module { .. } => self.summary.modules += 1,
                Fact::Unmapped { .. } | Fact::Process(_) | Fact::CallStack(_) => {}
            }
        }
        self.chunk(ChunkKind::Facts, &content, Extra::None)
    }

    /// Appends a path chunk. If many words wait, it encodes the next path chunk at the same time:
    /// that takes a second processor, but otherwise the program would have to wait.
    fn paths(&mut self, path: PathJob, queue: &Receiver<Job>) -> Result<(), WriteError> {
        let codec = self.choose_codec(&path);
        let Some(second) = self.second(queue) else {
            let encoded = encode(&mut self.coder, codec, &self.program, path);
            return self.path(encoded);
        };
        let second_codec = self.choose_codec(&second);
        let (coder, second_coder, program) = (&mut self.coder, &mut self.second_coder, &self.program);
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| encode(second_coder, second_codec, program, second));
            (encode(coder, codec, program, path), second.join())
        });
        let appended = self.path(first);
        if appended.as_ref().is_err_and(is_fatal) {
            return appended;
        }
        let second = second.map_err(|_| WriteError::WorkerGone)?;
        match self.path(second) {
            Err(error) if is_fatal(&error) => Err(error),
            result => appended.and(result),
        }
    }

    /// Returns the next job if it is a path chunk and either many words wait behind it or no
    /// processor is idle. It is encoded quickly then.
    fn second(&mut self, queue: &Receiver<Job>) -> Option<PathJob> {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if self.options.codec != Codec::Adaptive || waiting < self.options.waiting_words {
            return None;
        }
        match queue.try_recv().ok()? {
            Job::Path(path)
                if self.contention.is_high() || waiting >= path.words.len() + self.options.waiting_words =>
            {
                self.waiting.fetch_sub(path.words.len(), Ordering::Relaxed);
                Some(path)
            }
            job => {
                self.next = Some(job);
                None
            }
        }
    }

    fn choose_codec(&mut self, path: &PathJob) -> u8 {
        self.contention.note(path.words.len());
        // Words are the smaller part if there is data.
        let hurry = path.data.is_some() && self.pressure.is_high()
            || self.waiting.load(Ordering::Relaxed) >= self.options.waiting_words
            || self.contention.is_high();
        self.options.codec.number(hurry)
    }

    fn path(&mut self, path: EncodedPath) -> Result<(), WriteError> {
        let EncodedPath { job: PathJob { image, thread, mut words, mut data }, encoded, mut wrong } = path;
        let Some(summary) = self.threads.get_mut(&thread) else { return Err(WriteError::UnknownThread { thread }) };
        if !words.is_empty() {
            let total = encoded.total;
            let header = PathHeader {
                thread,
                image,
                first_instruction: InstructionIndex::new(summary.counts.instructions),
                counts: total.counts,
                first_tsc: total.first_tsc,
                last_tsc: total.last_tsc,
                start_pc: total.start_pc,
                end_pc: total.end_pc,
            };
            let raw = path::bytes(&words);
            count_path(summary, &header, raw.len() as u64);
            self.summary.totals.add(&total.counts);
            self.summary.word_bytes += raw.len() as u64;
            self.put(
                ChunkKind::Path,
                encoded.codec,
                raw,
                encoded.payload.as_deref().unwrap_or(raw),
                Extra::Path(header),
            )?;
            // Nothing says where the data of unknown words ends.
            if let Some(data) = data.as_mut().filter(|_| wrong.is_none()) {
                wrong = data.wrong.take();
                if wrong.is_none() {
                    self.data(thread, &words, data)?;
                }
            }
        }
        words.clear();
        let _ = self.give_back.try_send((words, data));
        wrong.map_or(Ok(()), Err)
    }

    /// Appends the data of the path chunk just written.
    fn data(&mut self, thread: ThreadId, words: &[u32], data: &mut PendingData) -> Result<(), WriteError> {
        let mut total = data.total;
        for (at, own) in &data.signals {
            total.event(&self.program, words.get(*at..).unwrap_or(&[]), own, &mut self.accesses);
        }
        let path = self.sequence.wrapping_sub(1);
        let header = DataHeader { thread, path, fs_base: data.fs_base, reads: total.reads, writes: total.writes };
        let (bytes, raw_crc) = (data.bytes as u64, data.checksum());
        let in_a_hurry = self.options.codec == Codec::Adaptive && self.pressure.is_high();
        let (codec, stored, rest) = data.finish(self.options.codec, &mut self.compressor, in_a_hurry);
        count_data(&mut self.summary, &header, bytes, (stored.len() + rest.len()) as u64);
        if let Some(summary) = self.threads.get_mut(&thread) {
            count_thread_data(summary, &header, bytes);
        }
        let raw_length = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.put_parts(ChunkKind::Data, codec, (raw_length, raw_crc), &[&stored, rest], Extra::Data(header))
    }

    fn finish(&mut self, exit: Exit) -> Result<(), WriteError> {
        self.chunk(ChunkKind::End, &write_exit(exit), Extra::None)?;
        self.summary.exit = exit;
        self.summary.threads = self.threads.values().cloned().collect();
        let index = std::mem::take(&mut self.index);
        let index_offset = self.output.length();
        // An index that could not be read back is left out: readers rebuild it by scanning.
        if index.len() <= RAW_BYTES_MAX as usize {
            self.chunk(ChunkKind::Index, &index, Extra::None)?;
            let length = self.output.length() + TRAILER_BYTES as u64;
            self.append(&trailer(index_offset, length))?;
        }
        self.written(Output::finish)?;
        self.summary.chunks = u64::from(self.sequence);
        self.summary.file_bytes = self.output.length();
        Ok(())
    }

    /// Appends a chunk that is not a path.
    fn chunk(&mut self, kind: ChunkKind, content: &[u8], extra: Extra) -> Result<(), WriteError> {
        match zstd::bulk::compress(content, ZSTD_LEVEL) {
            Ok(stored) if stored.len() < content.len() => self.put(kind, CODEC_ZSTD, content, &stored, extra),
            _ => self.put(kind, CODEC_RAW, content, content, extra),
        }
    }

    fn put(&mut self, kind: ChunkKind, codec: u8, raw: &[u8], stored: &[u8], extra: Extra) -> Result<(), WriteError> {
        let raw_length = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        self.put_parts(kind, codec, (raw_length, crc(&[raw])), &[stored], extra)
    }

    /// Appends a chunk whose content has this length and checksum, and whose payload has these
    /// parts.
    fn put_parts(
        &mut self,
        kind: ChunkKind,
        codec: u8,
        (raw_length, raw_crc): (u32, u32),
        stored: &[&[u8]],
        extra: Extra,
    ) -> Result<(), WriteError> {
        let stored_length: usize = stored.iter().map(|part| part.len()).sum();
        let header = ChunkHeader {
            kind,
            codec,
            stored_length: u32::try_from(stored_length).unwrap_or(u32::MAX),
            raw_length,
            stored_crc: crc(stored),
            raw_crc,
            sequence: self.sequence,
            extra,
        };
        self.index.extend_from_slice(&self.output.length().to_le_bytes());
        let start = self.index.len();
        header.write(&mut self.index);
        let mut bytes = self.index[start..].to_vec();
        // In one piece, so that a recorder that is killed leaves no header without its payload.
        // Long payloads are not copied for that.
        if stored_length <= WHOLE_MAX {
            stored.iter().for_each(|part| bytes.extend_from_slice(part));
            self.append(&bytes)?;
        } else {
            self.append(&bytes)?;
            stored.iter().try_for_each(|part| self.append(part))?;
        }
        self.sequence += 1;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.written(|output| output.append(bytes))
    }

    fn written(&mut self, write: impl FnOnce(&mut Output) -> std::io::Result<()>) -> Result<(), WriteError> {
        write(&mut self.output).map_err(|source| WriteError::Write { path: self.part.clone(), source })
    }
}

/// Whether nothing more can be appended to the file.
fn is_fatal(error: &WriteError) -> bool {
    matches!(error, WriteError::Write { .. })
}

/// A path chunk that can be appended: its words up to the first unknown one.
struct EncodedPath {
    job: PathJob,
    encoded: EncodedWords<PathTotal>,
    wrong: Option<WriteError>,
}

fn encode(coder: &mut PathCoder, codec: u8, program: &Program, mut job: PathJob) -> EncodedPath {
    let mut wrong = None;
    loop {
        match coder.encode(codec, program, job.image, &job.words, Tally::new(program)) {
            Ok(encoded) => return EncodedPath { job, encoded, wrong },
            Err(known) => {
                let thread = job.thread;
                wrong = job.words.get(known).map(|&word| WriteError::UnknownWord { thread, word });
                job.words.truncate(known);
            }
        }
    }
}

/// Adds a data chunk to the totals. Reader and writer count alike.
pub(crate) fn count_data(summary: &mut Summary, header: &DataHeader, bytes: u64, stored: u64) {
    summary.totals.add(&accesses(header));
    summary.data_bytes = summary.data_bytes.saturating_add(bytes);
    summary.stored_data_bytes = summary.stored_data_bytes.saturating_add(stored);
}

/// Adds a data chunk to what is known of its thread.
pub(crate) fn count_thread_data(summary: &mut ThreadSummary, header: &DataHeader, bytes: u64) {
    summary.counts.add(&accesses(header));
    summary.data_bytes = summary.data_bytes.saturating_add(bytes);
}

fn accesses(header: &DataHeader) -> Counts {
    Counts { reads: header.reads, writes: header.writes, ..Counts::default() }
}

/// Adds a path chunk to what is known of its thread. Reader and writer count alike.
pub(crate) fn count_path(summary: &mut ThreadSummary, header: &PathHeader, word_bytes: u64) {
    if !header.first_tsc.is_none() || !header.last_tsc.is_none() {
        let first = summary.first_tsc.is_none() && summary.last_tsc.is_none();
        summary.first_tsc = if first { header.first_tsc } else { summary.first_tsc.min(header.first_tsc) };
        summary.last_tsc = summary.last_tsc.max(header.last_tsc);
    }
    summary.counts.add(&header.counts);
    summary.chunks += 1;
    summary.word_bytes = summary.word_bytes.saturating_add(word_bytes);
}
