//! Reading a trace: what is in the file, and where.
//!
//! Opening reads headers only. Definitions are decoded when they are first needed, paths when they
//! are iterated (see [`crate::Steps`]). The reader checks everything that a file says;
//! [`Trace::damage`] reports what cannot be used, and readers skip it.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod find;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::OnceLock;

use codec::streams::decompress;
use entity::{AppPc, ThreadId, Tsc};
use hashbrown::HashMap;
use memmap2::Mmap;
use rayon::prelude::*;

use crate::InstructionIndex;
use crate::block::Blocks;
use crate::code_chunk::read_code;
use crate::container::{
    CODEC_RAW, CODEC_ZSTD, ChunkHeader, ChunkKind, DataHeader, Extra, PathHeader, VERSION, crc, file_version,
};
use crate::definition::Definition;
use crate::error::{Problem, ReadError};
use crate::model::{
    CallStackId, CallStackNode, Counts, DataMode, Exit, Module, ProcessInfo, Recording, Summary, ThreadInfo,
    ThreadSummary,
};
use crate::program::Program;
use crate::record::{Fact, read_exit, read_facts, read_recording};
use crate::writer::{count_data, count_path, count_thread_data};

/// A chunk and its offset in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub offset: u64,
    pub header: ChunkHeader,
}

impl Chunk {
    pub(crate) fn path(&self) -> Option<&PathHeader> {
        match &self.header.extra {
            Extra::Path(path) => Some(path),
            _ => None,
        }
    }

    pub(crate) fn data(&self) -> Option<&DataHeader> {
        match &self.header.extra {
            Extra::Data(data) => Some(data),
            _ => None,
        }
    }

    fn payload_range(&self) -> Option<Range<usize>> {
        let start = self.offset.checked_add(self.header.header_length())?;
        let end = start.checked_add(u64::from(self.header.stored_length))?;
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    pub(crate) fn error(&self, problem: Problem) -> ReadError {
        ReadError::Chunk { kind: self.header.kind, offset: self.offset, problem }
    }
}

/// A file mapped executable, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedModule {
    pub image: u32,
    pub module: Module,
    /// When a part of it was unmapped, if it was.
    pub unmapped: Option<Tsc>,
}

/// Something that is missing from a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged bytes of the file.
    pub bytes: Range<u64>,
    /// The thread that lost something, if that is known.
    pub thread: Option<ThreadId>,
    /// The instructions of the thread that are missing, if that is known.
    pub instructions: Option<Range<InstructionIndex>>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes.is_empty() {
            write!(f, "at byte {}", self.bytes.start)?;
        } else {
            write!(f, "bytes {} to {}", self.bytes.start, self.bytes.end - 1)?;
        }
        write!(f, ": {}", self.reason)?;
        match (self.thread, &self.instructions) {
            (Some(thread), Some(range)) if !range.is_empty() => {
                let last = range.end.get() - 1;
                write!(f, "; instructions {} to {last} of thread {thread} are missing", range.start)
            }
            (Some(thread), _) => write!(f, "; a part of thread {thread} is missing"),
            _ => Ok(()),
        }
    }
}

/// The bytes of a file.
enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A trace that can be read.
///
/// ```
/// # use trackway_trace::example;
/// # let directory = tempfile::tempdir()?;
/// # let path = example::write(&directory.path().join("example.trk"));
/// use trackway_trace::{Item, Trace};
///
/// let trace = Trace::open(&path)?;
/// for thread in trace.threads() {
///     let mut instructions = 0;
///     for item in trace.steps(thread.info.thread)? {
///         if let Item::Step(step) = item? {
///             instructions += u64::from(step.instructions());
///         }
///     }
///     assert_eq!(instructions, thread.counts.instructions);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trace {
    data: FileBytes,
    chunks: Vec<Chunk>,
    recording: Recording,
    finished: bool,
    summary: Summary,
    modules: Vec<MappedModule>,
    family: BTreeMap<u32, ProcessInfo>,
    call_stacks: HashMap<CallStackId, CallStackNode>,
    /// Of each thread, in order, the indexes of its path chunks in `chunks`.
    paths: BTreeMap<ThreadId, Vec<usize>>,
    /// Of each path chunk that has data, by index, the index of its data chunk.
    data_of: HashMap<usize, usize>,
    /// Found when the file was opened.
    damage: Vec<Damage>,
    program: OnceLock<(Program, Vec<Damage>)>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("recording", &self.recording).field("chunks", &self.chunks.len()).finish()
    }
}

impl Trace {
    /// Opens a `.trk` file, or the `.part` that a recorder left or is still writing.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let failed = |error: std::io::Error| ReadError::Open { path: path.to_owned(), reason: error.to_string() };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(ReadError::Open { path: path.to_owned(), reason: "it is not a regular file".into() });
        }
        if metadata.len() == 0 {
            return Err(ReadError::NotATrace { path: path.to_owned() });
        }
        // SAFETY: the mapping is only ever read as bytes, every use of which is checked; recorders
        // append to a file or replace it as a whole and never shorten it, which is the one thing
        // that would make reading it fault.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Self::read(FileBytes::Mapped(map), path)
    }

    /// Reads a trace from memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ReadError> {
        Self::read(FileBytes::Owned(bytes), Path::new("(memory)"))
    }

    fn read(data: FileBytes, path: &Path) -> Result<Self, ReadError> {
        let mut damage = Vec::new();
        match file_version(&data) {
            Some(1..=VERSION) => {}
            Some(version) => {
                return Err(ReadError::Version { path: path.to_owned(), version, supported: VERSION });
            }
            None if find::looks_like_a_trace(&data) => {
                damage.push(Damage::of(0..16, "the file header is damaged".into()));
            }
            None => return Err(ReadError::NotATrace { path: path.to_owned() }),
        }
        let found = find::chunks(&data);
        damage.extend(found.damage);
        let mut trace = Self {
            data,
            chunks: found.chunks,
            recording: Recording::default(),
            finished: false,
            summary: Summary::default(),
            modules: Vec::new(),
            family: BTreeMap::new(),
            call_stacks: HashMap::new(),
            paths: BTreeMap::new(),
            data_of: HashMap::new(),
            damage,
            program: OnceLock::new(),
        };
        trace.collect();
        Ok(trace)
    }

    /// What was known before the first instruction.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// How the target ended.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.summary.exit
    }

    /// Whether the recorder completed the file.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Totals, from the headers of intact chunks.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    #[must_use]
    pub fn totals(&self) -> &Counts {
        &self.summary.totals
    }

    /// All threads in order of their numbers.
    #[must_use]
    pub fn threads(&self) -> &[ThreadSummary] {
        &self.summary.threads
    }

    /// Files that were mapped executable, in the order of mapping.
    #[must_use]
    pub fn modules(&self) -> &[MappedModule] {
        &self.modules
    }

    /// Iterates the processes that were recorded together with this one, itself included, as far as
    /// they were known when this trace was finished; none if it was recorded alone.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessInfo> {
        self.family.values()
    }

    /// Iterates the return addresses of a call stack, from the innermost on. Those of a stack that
    /// the trace does not have, because it is damaged, are missing.
    pub fn call_stack(&self, id: CallStackId) -> impl Iterator<Item = AppPc> + '_ {
        let node = |id: CallStackId| self.call_stacks.get(&id);
        let nodes = std::iter::successors(node(id), move |above| node(above.below).filter(|below| below.id < above.id));
        nodes.map(|node| node.address)
    }

    /// The headers of all path chunks in the order of the file.
    pub fn path_chunks(&self) -> impl Iterator<Item = &PathHeader> {
        self.chunks.iter().filter_map(Chunk::path)
    }

    /// The static blocks. Decoded when first asked for.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.program().blocks
    }

    /// Returns everything that is missing from the file, as far as it can be known without decoding
    /// it. Reads the whole file once.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        let payloads: Vec<Damage> = self
            .chunks
            .par_iter()
            .filter(|chunk| {
                !matches!(chunk.header.kind, ChunkKind::Code | ChunkKind::Facts | ChunkKind::Recording | ChunkKind::End)
            })
            .filter_map(|chunk| self.payload(chunk).err().map(|problem| Damage::of_chunk(chunk, &problem)))
            .collect();
        let mut damage = [&self.damage[..], self.code_damage(), &payloads].concat();
        damage.sort_by_key(|damage| damage.bytes.start);
        damage
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn opening_damage(&self) -> &[Damage] {
        &self.damage
    }

    pub(crate) fn code_damage(&self) -> &[Damage] {
        &self.definitions().1
    }

    /// Whether all definitions of code are there and intact. A chunk that is missing between others
    /// may have held some.
    pub(crate) fn has_all_code(&self) -> bool {
        let none_is_missing = self.chunks.iter().zip(0..).all(|(chunk, number)| chunk.header.sequence == number);
        none_is_missing && self.code_damage().is_empty()
    }

    pub(crate) fn program(&self) -> &Program {
        &self.definitions().0
    }

    /// What was recorded beside control flow.
    #[must_use]
    pub fn data(&self) -> DataMode {
        self.recording.data
    }

    /// The chunk with the data of the path chunk at `place`.
    pub(crate) fn data_chunk(&self, place: usize) -> Option<&Chunk> {
        self.chunks.get(self.data_chunk_index(place)?)
    }

    /// Returns the index of that chunk.
    pub(crate) fn data_chunk_index(&self, place: usize) -> Option<usize> {
        self.data_of.get(&place).copied()
    }

    /// Returns the indexes in [`Self::chunks`] of a thread's path chunks.
    pub(crate) fn paths_of(&self, thread: ThreadId) -> Result<&[usize], ReadError> {
        match self.paths.get(&thread) {
            Some(paths) => Ok(paths),
            None if self.threads().iter().any(|summary| summary.info.thread == thread) => Ok(&[]),
            None => Err(ReadError::NoThread { thread }),
        }
    }

    /// The stored bytes of a chunk, if their checksum is right.
    pub(crate) fn payload(&self, chunk: &Chunk) -> Result<&[u8], Problem> {
        let length = u64::from(chunk.header.stored_length);
        let stored = chunk.payload_range().and_then(|range| self.data.get(range)).ok_or(Problem::Truncated {
            length,
            available: (self.data.len() as u64).saturating_sub(chunk.offset + chunk.header.header_length()),
        })?;
        if crc(&[stored]) == chunk.header.stored_crc { Ok(stored) } else { Err(Problem::Checksum { length }) }
    }

    /// The content of a chunk that is not a path.
    pub(crate) fn content(&self, chunk: &Chunk) -> Result<Vec<u8>, Problem> {
        content(self.payload(chunk)?, &chunk.header)
    }

    /// Reads everything but code, paths and data: the headers, the recording, the facts, the end.
    fn collect(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let mut threads: BTreeMap<ThreadId, ThreadSummary> = BTreeMap::new();
        let mut recorded = false;
        self.summary.chunks = chunks.len() as u64;
        self.summary.file_bytes = self.data.len() as u64;
        // Of each sequence number, the path chunk that has it.
        let mut by_sequence = HashMap::new();
        for (place, chunk) in chunks.iter().enumerate() {
            match chunk.header.extra {
                Extra::Path(path) => {
                    by_sequence.insert(chunk.header.sequence, (place, path.thread));
                    self.paths.entry(path.thread).or_default().push(place);
                    let info = ThreadInfo { thread: path.thread, image: path.image, ..ThreadInfo::default() };
                    let new = ThreadSummary { info, ..ThreadSummary::default() };
                    let raw_length = u64::from(chunk.header.raw_length);
                    count_path(threads.entry(path.thread).or_insert(new), &path, raw_length);
                    self.summary.totals.add(&path.counts);
                    self.summary.word_bytes += raw_length;
                }
                Extra::Data(data) => match by_sequence.remove(&data.path) {
                    Some((path, thread)) if thread == data.thread => {
                        self.data_of.insert(path, place);
                        let bytes = u64::from(chunk.header.raw_length);
                        count_data(&mut self.summary, &data, bytes, u64::from(chunk.header.stored_length));
                        if let Some(summary) = threads.get_mut(&thread) {
                            count_thread_data(summary, &data, bytes);
                        }
                    }
                    _ => {
                        let problem = Problem::PathMissing { path: data.path };
                        self.damage.push(Damage::of_chunk(chunk, &problem));
                    }
                },
                Extra::Code(code) => {
                    self.summary.blocks += u64::from(code.blocks);
                    self.summary.fragments += u64::from(code.fragments);
                    self.summary.code_bytes = self.summary.code_bytes.saturating_add(code.code_bytes);
                }
                Extra::None => match self.collect_content(chunk, &mut threads) {
                    Ok(()) => recorded |= chunk.header.kind == ChunkKind::Recording,
                    Err(problem) => self.damage.push(Damage::of_chunk(chunk, &problem)),
                },
            }
        }
        if !recorded && !self.data_of.is_empty() {
            // The recording chunk is missing. Values are where access descriptors say.
            self.recording.data = DataMode::Values;
        }
        if !recorded && self.damage.is_empty() {
            self.damage.push(Damage::of(16..16, "the description of the recording is missing".into()));
        }
        self.summary.modules = self.modules.len() as u64;
        self.summary.threads = threads.into_values().collect();
        self.chunks = chunks;
        self.find_gaps();
    }

    fn collect_content(
        &mut self,
        chunk: &Chunk,
        threads: &mut BTreeMap<ThreadId, ThreadSummary>,
    ) -> Result<(), Problem> {
        const MALFORMED: Problem = Problem::Record { at: 0 };
        match chunk.header.kind {
            ChunkKind::Recording => self.recording = read_recording(&self.content(chunk)?).ok_or(MALFORMED)?,
            ChunkKind::End => {
                self.summary.exit = read_exit(&self.content(chunk)?).ok_or(MALFORMED)?;
                self.finished = true;
            }
            ChunkKind::Facts => {
                let content = self.content(chunk)?;
                let mut facts = CollectedFacts {
                    modules: &mut self.modules,
                    family: &mut self.family,
                    call_stacks: &mut self.call_stacks,
                    threads,
                };
                read_facts(&content, |fact| facts.add(fact))?;
            }
            ChunkKind::Code | ChunkKind::Path | ChunkKind::Index | ChunkKind::Data => {}
        }
        Ok(())
    }

    /// Notes gaps in a thread's instruction numbers: a chunk between is missing.
    fn find_gaps(&mut self) {
        let mut gaps = Vec::new();
        for (&thread, places) in &self.paths {
            let mut next = InstructionIndex::FIRST;
            let mut end = 0;
            for chunk in places.iter().filter_map(|&place| self.chunks.get(place)) {
                let Some(path) = chunk.path() else { continue };
                if path.first_instruction != next {
                    let instructions = Some(next..path.first_instruction);
                    let reason = "a chunk is missing".into();
                    gaps.push(Damage { bytes: end..chunk.offset, thread: Some(thread), instructions, reason });
                }
                next = path.instructions().end;
                end = chunk.offset.saturating_add(chunk.header.length());
            }
        }
        self.damage.extend(gaps);
    }

    fn definitions(&self) -> &(Program, Vec<Damage>) {
        self.program.get_or_init(|| {
            let mut program = Program::default();
            let mut damage = Vec::new();
            for chunk in self.chunks.iter().filter(|chunk| chunk.header.kind == ChunkKind::Code) {
                if let Err(problem) = self.define(chunk, &mut program) {
                    damage.push(Damage::of_chunk(chunk, &problem));
                }
            }
            (program, damage)
        })
    }

    fn define(&self, chunk: &Chunk, program: &mut Program) -> Result<(), Problem> {
        let content = self.content(chunk)?;
        let mut unusable = 0;
        let mut first = None;
        read_code(&content, |definition| {
            if program.add(&definition, chunk.header.sequence).is_err() {
                unusable += 1;
                first.get_or_insert_with(|| name(&definition));
            }
        })?;
        first.map_or(Ok(()), |first| Err(Problem::Definitions { count: unusable, first }))
    }
}

fn name(definition: &Definition<'_>) -> String {
    match definition {
        Definition::Block { id, .. } => format!("block {id}"),
        Definition::Fragment { fragment, .. } => format!("path {}", fragment.fragment),
        Definition::AccessDescriptors(descriptors) => format!("the data of path {}", descriptors.fragment),
    }
}

/// Where the facts of all facts chunks go.
struct CollectedFacts<'t> {
    modules: &'t mut Vec<MappedModule>,
    family: &'t mut BTreeMap<u32, ProcessInfo>,
    call_stacks: &'t mut HashMap<CallStackId, CallStackNode>,
    threads: &'t mut BTreeMap<ThreadId, ThreadSummary>,
}

impl CollectedFacts<'_> {
    fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Process(process) => drop(self.family.insert(process.pid, process)),
            Fact::CallStack(node) => drop(self.call_stacks.insert(node.id, node)),
            Fact::Thread(info) => {
                let new = ThreadSummary { info, ..ThreadSummary::default() };
                self.threads.entry(new.info.thread).or_insert(new);
            }
            Fact::Module { image, module } => self.modules.push(MappedModule { image, module, unmapped: None }),
            Fact::Unmapped { image, address, length, tsc } => self.unmap(image, address, length, tsc),
        }
    }

    fn unmap(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) {
        let end = address.saturating_add(length);
        let concerned = self.modules.iter_mut().filter(|mapped| {
            let module = &mapped.module;
            mapped.image == image && module.address < end && address < module.address.saturating_add(module.length)
        });
        for mapped in concerned {
            mapped.unmapped.get_or_insert(tsc);
        }
    }
}

/// The content of a chunk that is not a path, given its stored bytes.
pub(crate) fn content(stored: &[u8], header: &ChunkHeader) -> Result<Vec<u8>, Problem> {
    let raw = content_of(stored, header)?;
    if crc(&[&raw]) == header.raw_crc { Ok(raw) } else { Err(Problem::RawChecksum) }
}

/// Returns the same and ignores its checksum.
pub(crate) fn content_of(stored: &[u8], header: &ChunkHeader) -> Result<Vec<u8>, Problem> {
    let length = header.raw_length as usize;
    let mut raw = Vec::new();
    match header.codec {
        CODEC_RAW if stored.len() == length => raw.extend_from_slice(stored),
        CODEC_RAW => return Err(Problem::Decompress("its length is wrong")),
        CODEC_ZSTD => decompress(stored, length, &mut raw)?,
        unknown => return Err(Problem::Codec(unknown)),
    }
    Ok(raw)
}

impl Damage {
    pub(crate) fn of(bytes: Range<u64>, reason: String) -> Self {
        Self { bytes, thread: None, instructions: None, reason }
    }

    pub(crate) fn of_chunk(chunk: &Chunk, problem: &Problem) -> Self {
        let end = chunk.offset.saturating_add(chunk.header.length());
        let path = chunk.path();
        Self {
            bytes: chunk.offset..end,
            thread: path.map(|path| path.thread).or(chunk.data().map(|data| data.thread)),
            instructions: path.map(PathHeader::instructions),
            reason: format!("{} chunk: {problem}", chunk.header.kind),
        }
    }
}
