//! Going through one thread of a memory trace.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::VecDeque;
use std::rc::Rc;

use entity::ThreadId;

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
    points: Vec<PointCursor>,
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

/// Chunks of pieces that are kept unpacked.
const UNPACKED_MAX: usize = 16;

impl<'t> ThreadWalk<'t> {
    pub(super) fn new(trace: &'t MemoryTrace, thread: ThreadId, index: &'t ThreadIndex) -> Self {
        let mut points = Vec::new();
        points.resize_with(index.pieces.len(), PointCursor::default);
        Self {
            trace,
            thread,
            index,
            next_order: 0,
            runs: None,
            row: &[],
            repeats: 0,
            next_action: 0,
            points,
            unpacked: UnpackedChunks::default(),
            has_failed: false,
        }
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
        let rules = self.trace.rules(chunk).map_err(|problem| chunk.error(problem))?;
        self.runs = Some(rules.into_terminal_runs());
        Ok(true)
    }

    #[inline]
    fn address(&mut self, PointId(point): PointId) -> Result<u64, MemoryTraceError> {
        loop {
            let cursor = self.points.get_mut(point as usize).ok_or(MemoryTraceError::Addresses(self.thread))?;
            match cursor.addresses.as_mut().and_then(Iterator::next) {
                Some(Ok(address)) => return Ok(address),
                Some(Err(_)) => return Err(MemoryTraceError::Addresses(self.thread)),
                None => self.refill(point)?,
            }
        }
    }

    /// Unpacks the next pieces of a point.
    #[cold]
    fn refill(&mut self, point: u32) -> Result<(), MemoryTraceError> {
        let missing = MemoryTraceError::Addresses(self.thread);
        let Some(cursor) = self.points.get_mut(point as usize) else { return Err(missing) };
        let pieces = self.index.pieces.get(point as usize).and_then(|places| places.get(cursor.next));
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
        if self.0.len() == UNPACKED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((pieces.chunk, Rc::clone(&bytes)));
        Ok(bytes)
    }
}
