//! Going through one thread of a memory trace.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::VecDeque;
use std::rc::Rc;

use entity::ThreadId;
use hashbrown::HashMap;

use super::{MemoryTrace, MemoryTraceError, PieceBytes, ThreadIndex};
use crate::point::PointId;
use crate::prsd::AddressReader;
use crate::row::Action;
use crate::sequitur::TerminalRuns;

/// Something that a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkItem {
    Access {
        point: PointId,
        address: u64,
    },
    /// An [`Action`] other than an access.
    Scope(Action),
}

/// Goes through what a thread did, in order. Ends behind an error.
pub struct ThreadWalk<'t> {
    trace: &'t MemoryTrace,
    thread: ThreadId,
    index: &'t ThreadIndex,
    /// The next grammar, by its position in the index.
    next_order: usize,
    runs: Option<TerminalRuns>,
    /// The present row, how often it comes again, and the next of its actions.
    row: &'t [Action],
    repeats: u64,
    next_action: usize,
    /// Rows without accesses are passed over.
    has_accesses_only: bool,
    points: HashMap<PointId, PointCursor>,
    unpacked: UnpackedChunks,
    has_failed: bool,
}

/// Where the walk is in the addresses of a point.
#[derive(Default)]
struct PointCursor {
    addresses: Option<AddressReader<Vec<u8>>>,
    /// The next of its pieces, by their position in the index.
    next: usize,
}

/// Unpacked chunks that are kept, the latest last.
#[derive(Default)]
struct UnpackedChunks(VecDeque<(u32, Rc<Vec<u8>>)>);

/// Chunks of pieces that are kept unpacked at most, and their bytes.
const UNPACKED_MAX: usize = 16;
const UNPACKED_BYTES_MAX: usize = 64 << 20;

impl<'t> ThreadWalk<'t> {
    pub(super) fn new(trace: &'t MemoryTrace, thread: ThreadId, index: &'t ThreadIndex) -> Self {
        Self {
            trace,
            thread,
            index,
            next_order: 0,
            runs: None,
            row: &[],
            repeats: 0,
            next_action: 0,
            has_accesses_only: false,
            points: HashMap::default(),
            unpacked: UnpackedChunks::default(),
            has_failed: false,
        }
    }

    /// Returns a walk that passes over rows without accesses, however often they are repeated.
    pub(super) fn of_accesses(trace: &'t MemoryTrace, thread: ThreadId, index: &'t ThreadIndex) -> Self {
        Self { has_accesses_only: true, ..Self::new(trace, thread, index) }
    }

    /// Returns the next action of the thread, or `None` at the end.
    #[inline]
    fn next_action(&mut self) -> Result<Option<Action>, MemoryTraceError> {
        loop {
            if let Some(&action) = self.row.get(self.next_action) {
                self.next_action += 1;
                return Ok(Some(action));
            }
            if !self.next_row()? {
                return Ok(None);
            }
        }
    }

    /// Goes to the next row, which may be the same again.
    #[inline]
    fn next_row(&mut self) -> Result<bool, MemoryTraceError> {
        self.next_action = 0;
        if self.repeats > 0 {
            self.repeats -= 1;
            return Ok(true);
        }
        loop {
            match self.runs.as_mut().and_then(Iterator::next) {
                Some((row, count)) => {
                    self.row = self.trace.actions(row).ok_or(MemoryTraceError::Addresses(self.thread))?;
                    self.repeats = count.saturating_sub(1);
                    return Ok(true);
                }
                None if !self.next_grammar()? => {
                    self.row = &[];
                    return Ok(false);
                }
                None => {}
            }
        }
    }

    fn next_grammar(&mut self) -> Result<bool, MemoryTraceError> {
        let Some(chunk) = self.index.orders.get(self.next_order) else { return Ok(false) };
        self.next_order += 1;
        let mut rules = self.trace.rules(chunk).map_err(|problem| chunk.error(problem))?;
        if self.has_accesses_only {
            rules = rules.filtered(|row| self.trace.has_access(row));
        }
        self.runs = Some(rules.into_terminal_runs());
        Ok(true)
    }

    #[inline]
    fn address(&mut self, point: PointId) -> Result<u64, MemoryTraceError> {
        loop {
            match self.points.get_mut(&point).and_then(|cursor| cursor.addresses.as_mut()?.next()) {
                Some(Ok(address)) => return Ok(address),
                Some(Err(_)) => return Err(MemoryTraceError::Addresses(self.thread)),
                None => self.refill(point)?,
            }
        }
    }

    /// Unpacks the next pieces of a point.
    #[cold]
    fn refill(&mut self, point: PointId) -> Result<(), MemoryTraceError> {
        let missing = MemoryTraceError::Addresses(self.thread);
        let cursor = self.points.entry(point).or_default();
        let pieces = self.index.pieces.get(&point).and_then(|pieces| pieces.get(cursor.next));
        let Some(pieces) = pieces else { return Err(missing) };
        cursor.next += 1;
        let bytes = self.unpacked.get(self.trace, self.index, pieces)?;
        cursor.addresses = Some(AddressReader::new(pieces.of(&bytes).to_vec()));
        Ok(())
    }

    fn next_item(&mut self) -> Result<Option<WalkItem>, MemoryTraceError> {
        Ok(match self.next_action()? {
            None => None,
            Some(Action::Access(point)) => Some(WalkItem::Access { point, address: self.address(point)? }),
            Some(scope) => Some(WalkItem::Scope(scope)),
        })
    }
}

impl Iterator for ThreadWalk<'_> {
    type Item = Result<WalkItem, MemoryTraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let item = self.next_item().transpose();
        self.has_failed = matches!(item, Some(Err(_)));
        item
    }
}

impl UnpackedChunks {
    /// Returns the unpacked pieces of the chunk that has `pieces`.
    fn get(
        &mut self,
        trace: &MemoryTrace,
        index: &ThreadIndex,
        pieces: &PieceBytes,
    ) -> Result<Rc<Vec<u8>>, MemoryTraceError> {
        if let Some((_, bytes)) = self.0.iter().find(|(chunk, _)| *chunk == pieces.chunk) {
            return Ok(Rc::clone(bytes));
        }
        let Some(chunk) = index.addresses.get(pieces.chunk as usize) else { return Ok(Rc::default()) };
        let bytes = Rc::new(trace.unpacked_pieces(chunk).map_err(|problem| chunk.error(problem))?);
        self.0.push_back((pieces.chunk, Rc::clone(&bytes)));
        while self.0.len() > UNPACKED_MAX || self.0.len() > 1 && self.bytes() > UNPACKED_BYTES_MAX {
            self.0.pop_front();
        }
        Ok(bytes)
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}
