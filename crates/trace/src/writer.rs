//! Writing a recording.
//!
//! [`Writer`] is the front: it collects definitions, facts and words and cuts each thread's words
//! into chunks. A worker thread behind a bounded queue counts and compresses the chunks and appends
//! them to the file (see [`worker`]). The file grows chunk by chunk under a temporary name; a
//! recorder that is killed leaves everything it had appended.

mod contention;

mod output;
mod pending;
mod worker;

pub use output::create_private;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codec::words::{Word, Words};
use entity::{AppPc, BlockId, FragmentId, ThreadId, Tsc};
use hashbrown::{HashMap, HashSet};

use crate::code_chunk::CodeContent;
use crate::container::{CODEC_FAST, CODEC_PREDICT, CODEC_RAW, CODEC_ZSTD, RAW_BYTES_MAX};
use crate::definition::Definition;
use crate::error::WriteError;
use crate::model::{
    AccessDescriptors, CallStackNode, DataMode, Exit, Fragment, Module, ProcessInfo, Recording, Summary, ThreadInfo,
};
use crate::record::Fact;
use crate::span::Spans;

use output::Output;
use pending::{PendingData, PendingWords};
use worker::{Job, PathJob, Worker};
pub(crate) use worker::{count_data, count_path, count_thread_data};

/// How path chunks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    Raw,
    /// As bytes, by zstd.
    Zstd,
    /// By prediction of every word from those before it.
    Predict,
    /// By simpler prediction, several times as fast.
    Fast,
    /// `Predict` where there is time for it; `Fast` while many words wait, or come quickly while no
    /// processor is idle.
    Adaptive,
}

impl Codec {
    /// The codec for a chunk; `hurry` if speed is more important than size.
    fn number(self, hurry: bool) -> u8 {
        match self {
            Self::Raw => CODEC_RAW,
            Self::Zstd => CODEC_ZSTD,
            Self::Adaptive if hurry => CODEC_FAST,
            Self::Predict | Self::Adaptive => CODEC_PREDICT,
            Self::Fast => CODEC_FAST,
        }
    }
}

/// What may be tuned.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    pub codec: Codec,
    /// A thread's chunk is cut when it would hold more words than this.
    pub chunk_words: usize,
    /// The longest open chunk is cut when all of them together hold more than this.
    pub open_words: usize,
    /// The same in bytes of data.
    pub chunk_data: usize,
    pub open_data: usize,
    /// Words that may wait to be compressed before speed is more important than size; see
    /// [`Codec::Adaptive`].
    pub waiting_words: usize,
    /// Words are in the file at latest after this time, as long as [`Writer::path`] or
    /// [`Writer::tick`] is called.
    pub latency: Duration,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            codec: Codec::Adaptive,
            chunk_words: 1 << 20,
            open_words: 12 << 20,
            chunk_data: 16 << 20,
            open_data: 96 << 20,
            waiting_words: 1 << 16,
            latency: Duration::from_secs(1),
        }
    }
}

/// Bytes of code after which a code chunk is written.
const CODE_BYTES: usize = 1 << 20;
/// Threads whose data may be open at once; what is remembered of each takes memory.
const OPEN_MAX: usize = 256;
/// Jobs that may wait for the worker.
const QUEUE: usize = 4;

/// Words in a chunk at most.
const WORDS_MAX: usize = RAW_BYTES_MAX as usize / size_of::<u32>();

/// How often the producer of the data had to wait for the writer, from 0 to twice [`PRESSED`].
#[derive(Debug, Default)]
struct Pressure(AtomicUsize);

/// Above this, speed is more important than size.
const PRESSED: usize = 32;

impl Pressure {
    fn note(&self, waits: bool) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(if waits { (before + 1).min(2 * PRESSED) } else { before.saturating_sub(1) }, Ordering::Relaxed);
    }

    fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed) > PRESSED
    }
}

/// Memory that can be used again.
type Spare = (Vec<u32>, Option<Box<PendingData>>);

/// Writes a `.trk` file.
pub struct Writer {
    path: PathBuf,
    part: PathBuf,
    options: WriterOptions,
    mode: DataMode,
    code: CodeContent,
    facts: Vec<Fact>,
    open: HashMap<ThreadId, PendingWords>,
    open_words: usize,
    open_data: usize,
    /// To split and compare data as it comes. The worker has the spans in its program, with what
    /// else it counts by: the two threads share nothing but jobs.
    spans: Spans,
    /// Of fragments without access descriptors so far: how many blocks each exit has executed.
    without_descriptors: HashMap<FragmentId, Vec<u16>>,
    /// Of each thread, the base of its fs segment behind all words that have come.
    fs_bases: HashMap<ThreadId, u64>,
    threads: HashSet<ThreadId>,
    next_look: Instant,
    jobs: Option<SyncSender<Job>>,
    spare: Receiver<Spare>,
    worker: Option<JoinHandle<Option<Summary>>>,
    failure: Arc<Mutex<Option<WriteError>>>,
    /// Words that wait for the worker.
    waiting: Arc<AtomicUsize>,
    pressure: Arc<Pressure>,
}

impl Writer {
    /// Starts a recording that will be `path` when it is finished, and is `path` with `.part`
    /// appended until then.
    pub fn create(path: &Path, recording: &Recording) -> Result<Self, WriteError> {
        Self::create_with(path, recording, WriterOptions::default())
    }

    pub fn create_with(path: &Path, recording: &Recording, options: WriterOptions) -> Result<Self, WriteError> {
        if path.symlink_metadata().is_ok_and(|existing| !existing.is_file() && !existing.is_symlink()) {
            // Renaming onto it would put a file in place of a device or a pipe.
            let source = std::io::Error::other("it exists and is not a regular file");
            return Err(WriteError::Create { path: path.to_owned(), source });
        }
        let part = partial_path(path);
        let output = Output::create(&part).map_err(|source| WriteError::Create { path: part.clone(), source })?;
        let failure = Arc::new(Mutex::new(None));
        let (jobs, queue) = sync_channel(QUEUE);
        let (give_back, spare) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let pressure = Arc::new(Pressure::default());
        let mut worker = Worker::new(
            output,
            part.clone(),
            options,
            give_back,
            Arc::clone(&failure),
            Arc::clone(&waiting),
            Arc::clone(&pressure),
        );
        worker.start(recording)?;
        let worker = std::thread::Builder::new()
            .name("trace-writer".into())
            .spawn(move || worker.run(&queue))
            .map_err(|source| WriteError::Create { path: part.clone(), source })?;
        Ok(Self {
            path: path.to_owned(),
            part,
            options,
            mode: recording.data,
            code: CodeContent::default(),
            facts: Vec::new(),
            open: HashMap::new(),
            open_words: 0,
            open_data: 0,
            spans: Spans::default(),
            without_descriptors: HashMap::new(),
            fs_bases: HashMap::new(),
            threads: HashSet::new(),
            next_look: Instant::now() + options.latency,
            jobs: Some(jobs),
            spare,
            worker: Some(worker),
            failure,
            waiting,
            pressure,
        })
    }

    /// Defines a block, before any fragment that it is part of.
    pub fn block(&mut self, image: u32, id: BlockId, address: AppPc, code: &[u8]) -> Result<(), WriteError> {
        self.code.add(&Definition::Block { image, id, address, code });
        self.send_long_code()
    }

    /// Defines a fragment, before any of its paths is executed.
    pub fn fragment(&mut self, image: u32, fragment: &Fragment<'_>) -> Result<(), WriteError> {
        self.code.add(&Definition::Fragment { image, fragment: *fragment });
        if self.mode != DataMode::None {
            let executed = fragment.exits.iter().map(|exit| exit.block_count()).collect();
            self.without_descriptors.insert(fragment.fragment, executed);
        }
        self.send_long_code()
    }

    /// Defines the access descriptors of a fragment, before any of its paths is executed.
    pub fn access_descriptors(&mut self, descriptors: &AccessDescriptors<'_>) -> Result<(), WriteError> {
        self.code.add(&Definition::AccessDescriptors(*descriptors));
        if let Some(executed) = self.without_descriptors.remove(&descriptors.fragment) {
            // The worker checks the descriptors more closely and reports what is wrong.
            let _ = self.spans.add(descriptors, &executed);
        }
        self.send_long_code()
    }

    fn send_long_code(&mut self) -> Result<(), WriteError> {
        if self.code.len() >= CODE_BYTES { self.send_definitions() } else { Ok(()) }
    }

    /// A file was mapped executable.
    pub fn module(&mut self, image: u32, module: &Module) -> Result<(), WriteError> {
        self.facts.push(Fact::Module { image, module: module.clone() });
        Ok(())
    }

    /// Code in this range is no longer there.
    pub fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) -> Result<(), WriteError> {
        self.facts.push(Fact::Unmapped { image, address, length, tsc });
        Ok(())
    }

    /// Adds a node to the tree of call stacks, before any event that names it.
    pub fn call_stack(&mut self, node: &CallStackNode) -> Result<(), WriteError> {
        self.facts.push(Fact::CallStack(*node));
        Ok(())
    }

    /// Records a process of the family. The last record of a process counts.
    pub fn process(&mut self, process: &ProcessInfo) -> Result<(), WriteError> {
        self.facts.push(Fact::Process(process.clone()));
        Ok(())
    }

    /// Announces a thread, before its first path.
    pub fn thread(&mut self, info: &ThreadInfo) -> Result<(), WriteError> {
        self.threads.insert(info.thread);
        self.facts.push(Fact::Thread(info.clone()));
        Ok(())
    }

    /// Appends to what a thread has executed: whole events and path numbers, see `wire::word`. A
    /// word that is neither an event nor a path that was defined is an error, of a later call; the
    /// words before it are kept.
    pub fn path(&mut self, image: u32, thread: ThreadId, words: &[u32]) -> Result<(), WriteError> {
        self.path_with_data(image, thread, words, &[])
    }

    /// As [`Self::path`], with the data behind these words. Access descriptors and events say how
    /// much that is. Without [`Recording::data`] the data is not kept.
    pub fn path_with_data(
        &mut self,
        image: u32,
        thread: ThreadId,
        words: &[u32],
        data: &[u8],
    ) -> Result<(), WriteError> {
        if !self.threads.contains(&thread) {
            return Err(WriteError::UnknownThread { thread });
        }
        if self.mode == DataMode::None {
            pieces(words).try_for_each(|words| self.append(image, thread, words, &[]))?;
        } else if words.len() > WORDS_MAX || data.len() > RAW_BYTES_MAX as usize {
            return Err(WriteError::Data { thread, bytes: data.len() as u64, needed: u64::from(RAW_BYTES_MAX) });
        } else {
            self.append(image, thread, words, data)?;
        }
        self.tick()
    }

    fn append(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), WriteError> {
        let limit = self.options.chunk_words.min(WORDS_MAX);
        let data_limit = self.options.chunk_data.min(RAW_BYTES_MAX as usize);
        let full = |open: &PendingWords| {
            open.image != image || open.words.len() + words.len() > limit || open.data_bytes() + data.len() > data_limit
        };
        if self.open.get(&thread).is_some_and(full) {
            self.cut(thread)?;
        }
        let mut open = match self.open.remove(&thread) {
            Some(open) => open,
            None => self.start(image, thread),
        };
        if let Some(open_data) = &mut open.data
            && !open_data.append(&self.spans, open.words.len(), words, data)
        {
            let (bytes, needed) = (data.len() as u64, self.needed(words));
            open_data.wrong.get_or_insert(WriteError::Data { thread, bytes, needed });
        }
        open.words.extend_from_slice(words);
        self.open.insert(thread, open);
        self.open_words += words.len();
        self.open_data += data.len();
        let many = self.open.len() > OPEN_MAX && self.mode != DataMode::None;
        if many || self.open_words > self.options.open_words || self.open_data > self.options.open_data {
            self.cut_longest()
        } else {
            Ok(())
        }
    }

    fn start(&self, image: u32, thread: ThreadId) -> PendingWords {
        let (words, data) = self.spare.try_recv().unwrap_or_default();
        let data = (self.mode != DataMode::None).then(|| {
            let mut data = data.unwrap_or_default();
            data.start(self.options.codec, self.fs_bases.get(&thread).copied().unwrap_or(0));
            data
        });
        PendingWords { image, words, data, since: Instant::now() }
    }

    /// Bytes of data that belong to `words`, as far as is known.
    fn needed(&self, words: &[u32]) -> u64 {
        let bytes = |word: Word<'_>| match word {
            Word::Path(path) => self.spans.get(path).map_or(0, |span| u64::from(span.bytes)),
            Word::Event(event) => event.data_bytes() as u64,
        };
        Words::new(words).map(bytes).sum()
    }

    /// Sends words that have waited long enough to the file. [`Self::path`] does so too; call this
    /// while no thread delivers anything.
    pub fn tick(&mut self) -> Result<(), WriteError> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + self.options.latency / 4;
        let latency = self.options.latency;
        let due = |open: &PendingWords| now.duration_since(open.since) >= latency;
        let mut threads: Vec<ThreadId> =
            self.open.iter().filter(|(_, open)| due(open)).map(|(&thread, _)| thread).collect();
        threads.sort_unstable();
        threads.into_iter().try_for_each(|thread| self.cut(thread))?;
        self.check()
    }

    /// Bytes in the file so far.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.part.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Records whether a thread of the target had to wait for its data to be taken. If many have
    /// to, data is compressed less.
    pub fn waited(&mut self, waits: bool) {
        self.pressure.note(waits);
    }

    /// Completes the file and gives it its name.
    pub fn finish(mut self, exit: Exit) -> Result<Summary, WriteError> {
        let mut threads: Vec<ThreadId> = self.open.keys().copied().collect();
        threads.sort_unstable();
        threads.into_iter().try_for_each(|thread| self.cut(thread))?;
        self.send_definitions()?;
        self.send(Job::Finish(exit))?;
        self.jobs = None;
        let summary = self.worker.take().and_then(|worker| worker.join().ok()).flatten();
        self.check()?;
        let summary = summary.ok_or(WriteError::WorkerGone)?;
        std::fs::rename(&self.part, &self.path).map_err(|source| WriteError::Rename {
            from: self.part.clone(),
            to: self.path.clone(),
            source,
        })?;
        Ok(summary)
    }

    fn cut_longest(&mut self) -> Result<(), WriteError> {
        let longest = self
            .open
            .iter()
            .max_by_key(|(_, open)| open.words.len() * 4 + open.data_bytes())
            .map(|(&thread, _)| thread);
        longest.map_or(Ok(()), |thread| self.cut(thread))
    }

    fn cut(&mut self, thread: ThreadId) -> Result<(), WriteError> {
        let Some(open) = self.open.remove(&thread) else { return Ok(()) };
        self.open_words -= open.words.len();
        self.open_data -= open.data_bytes();
        let PendingWords { image, words, data, .. } = open;
        if let Some(data) = &data {
            self.fs_bases.insert(thread, data.total.fs_base);
        }
        self.send_definitions()?;
        self.send(Job::Path(PathJob { image, thread, words, data }))
    }

    fn send_definitions(&mut self) -> Result<(), WriteError> {
        if !self.facts.is_empty() {
            let facts = std::mem::take(&mut self.facts);
            self.send(Job::Facts(facts))?;
        }
        if !self.code.is_empty() {
            let code = std::mem::take(&mut self.code);
            self.send(Job::Code(code))?;
        }
        Ok(())
    }

    fn send(&mut self, job: Job) -> Result<(), WriteError> {
        self.check()?;
        self.waiting.fetch_add(job.words(), Ordering::Relaxed);
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if sent {
            return Ok(());
        }
        self.check()?;
        Err(WriteError::WorkerGone)
    }

    fn check(&self) -> Result<(), WriteError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Writer {
    /// Without [`Writer::finish`], what was handed over is still appended to the unfinished file.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// The name of a recording that is not finished.
#[must_use]
pub fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Pieces that fit into a chunk and hold whole events.
fn pieces(words: &[u32]) -> impl Iterator<Item = &[u32]> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let mut length = rest.len();
        if length > WORDS_MAX / 2 {
            length = 0;
            while length < WORDS_MAX / 2 {
                length += rest.get(length).and_then(|&first| wire::word::length(first)).unwrap_or(1);
            }
        }
        let (piece, left) = rest.split_at(length.min(rest.len()));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}
