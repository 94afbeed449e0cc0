//! Rows: short sequences of accesses and scope changes that a thread makes again and again, such as
//! one iteration of a loop. The grammar of the order has rows as its terminals, which makes it
//! smaller and faster than one of single accesses.
//!
//! A loop with many branches may have more different rows than memory has room for. So a table
//! takes new rows up to a limit. Behind it, the actions of a new row are rows of their own, of
//! which there are only as many as there are access points and scopes.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use codec::bytes::{ByteReader, put_varint};
use hashbrown::HashTable;

use crate::point::PointId;

/// A function of a file, by its position in [`crate::Origin::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionIndex(pub u32);

/// A loop of a file, by its position in [`crate::Origin::loops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopIndex(pub u32);

/// Something that a thread does: an access, whose address is stored apart, or a change of scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Access(PointId),
    EnterFunction(FunctionIndex),
    ExitFunction(FunctionIndex),
    EnterLoop(LoopIndex),
    /// A further iteration of a loop begins.
    Iterate(LoopIndex),
    ExitLoop(LoopIndex),
}

const KIND_BITS: u32 = 3;

impl Action {
    /// Returns the action as a number.
    #[inline]
    pub(crate) fn code(self) -> u64 {
        let (kind, number) = match self {
            Self::Access(PointId(number)) => (0, number),
            Self::EnterFunction(FunctionIndex(number)) => (1, number),
            Self::ExitFunction(FunctionIndex(number)) => (2, number),
            Self::EnterLoop(LoopIndex(number)) => (3, number),
            Self::Iterate(LoopIndex(number)) => (4, number),
            Self::ExitLoop(LoopIndex(number)) => (5, number),
        };
        u64::from(number) << KIND_BITS | kind
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let number = u32::try_from(code >> KIND_BITS).ok()?;
        Some(match code & ((1 << KIND_BITS) - 1) {
            0 => Self::Access(PointId(number)),
            1 => Self::EnterFunction(FunctionIndex(number)),
            2 => Self::ExitFunction(FunctionIndex(number)),
            3 => Self::EnterLoop(LoopIndex(number)),
            4 => Self::Iterate(LoopIndex(number)),
            5 => Self::ExitLoop(LoopIndex(number)),
            _ => return None,
        })
    }
}

/// Actions in a row at most.
pub(crate) const ROW_MAX: usize = 64;

/// All rows of a file. No row is empty, so that each repetition of one is progress.
#[derive(Debug, Default)]
pub(crate) struct RowTable {
    actions: Vec<Action>,
    /// Where each row ends.
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    /// Rows that are in the file already.
    written: usize,
}

/// Actions of all rows in a table at which it is full: 32 MiB.
const ACTIONS_MAX: usize = 1 << 22;

/// Hashes rows two actions at a time, which is faster than a hasher that is fed with one after the
/// other. Hashes are only used within one process.
struct RowHasher;

const HASHER: RowHasher = RowHasher;

impl RowHasher {
    /// Odd constants without structure (digits of pi).
    const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];

    #[inline]
    fn hash_one(&self, row: &[Action]) -> u64 {
        let (pairs, rest) = row.as_chunks::<2>();
        let hash = pairs.iter().fold(row.len() as u64, |hash, [one, other]| Self::add(hash, one.code(), other.code()));
        rest.iter().fold(hash, |hash, last| Self::add(hash, last.code(), 0))
    }

    #[inline]
    fn add(hash: u64, one: u64, other: u64) -> u64 {
        let [first, second] = Self::KEYS;
        let (low, high) = (hash ^ one ^ first).carrying_mul(other ^ second, 0);
        low ^ high
    }
}

impl RowTable {
    fn range(ends: &[usize], row: u32) -> Option<Range<usize>> {
        let row = row as usize;
        let start = row.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied())?;
        Some(start..*ends.get(row)?)
    }

    /// Returns the actions of a row.
    #[inline]
    pub(crate) fn get(&self, row: u32) -> Option<&[Action]> {
        self.actions.get(Self::range(&self.ends, row)?)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of actions in rows that are not in the file yet.
    pub(crate) fn unwritten_actions(&self) -> usize {
        let written = self.written.checked_sub(1).and_then(|last| self.ends.get(last));
        self.actions.len() - written.copied().unwrap_or(0)
    }

    /// Calls `each` with the numbers of the rows that a row consists of: its own number, which is a
    /// new one if the row is new, or one for each action if the table is full.
    #[inline]
    pub(crate) fn numbers_of(&mut self, row: &[Action], mut each: impl FnMut(u32)) {
        let hash = HASHER.hash_one(row);
        match self.find(row, hash) {
            Some(number) => each(number),
            None if self.actions.len() < ACTIONS_MAX || row.len() <= 1 => each(self.add(row, hash)),
            None => row.iter().for_each(|action| {
                let single = std::slice::from_ref(action);
                let hash = HASHER.hash_one(single);
                each(self.find(single, hash).unwrap_or_else(|| self.add(single, hash)));
            }),
        }
    }

    #[inline]
    fn find(&self, row: &[Action], hash: u64) -> Option<u32> {
        let is_equal = |&number: &u32| self.get(number).is_some_and(|other| other == row);
        self.numbers.find(hash, is_equal).copied()
    }

    #[cold]
    fn add(&mut self, row: &[Action], hash: u64) -> u32 {
        let number = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        self.actions.extend_from_slice(row);
        self.ends.push(self.actions.len());
        let Self { actions, ends, numbers, .. } = self;
        let hash_of = |&number: &u32| {
            HASHER.hash_one(Self::range(ends, number).and_then(|range| actions.get(range)).unwrap_or(&[]))
        };
        numbers.insert_unique(hash, number, hash_of);
        number
    }

    /// Writes the rows that were not written yet.
    pub(crate) fn write_new(&mut self, out: &mut Vec<u8>) {
        for row in self.written..self.ends.len() {
            let row = u32::try_from(row).unwrap_or(u32::MAX);
            let actions = self.get(row).unwrap_or(&[]);
            put_varint(out, actions.len() as u64);
            actions.iter().for_each(|action| put_varint(out, action.code()));
        }
        self.written = self.ends.len();
    }

    /// Reads rows behind those that are known. Returns `None` if they are malformed.
    pub(crate) fn read(&mut self, content: &[u8]) -> Option<()> {
        let mut fields = ByteReader::new(content);
        while !fields.is_empty() {
            let length = fields.varint().filter(|&length| (1..=ROW_MAX as u64).contains(&length))?;
            for _ in 0..length {
                self.actions.push(Action::from_code(fields.varint()?)?);
            }
            self.ends.push(self.actions.len());
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Returns the number of a row that is in the table or for which there is room.
    fn number(table: &mut RowTable, row: &[Action]) -> u32 {
        let mut numbers = Vec::new();
        table.numbers_of(row, |number| numbers.push(number));
        assert_eq!(numbers.len(), 1);
        numbers[0]
    }

    #[test]
    fn a_full_table_takes_single_actions_only() {
        // Each row has 64 actions, which depend on the bits of its number.
        let row = |number: u32| -> Vec<Action> {
            (0..64).map(|at| Action::Access(PointId(2 * at + (number >> (at % 32) & 1)))).collect()
        };
        let mut table = RowTable::default();
        let count = u32::try_from(ACTIONS_MAX / 64).unwrap();
        (0..count).for_each(|at| assert_eq!(number(&mut table, &row(at)), at));
        for at in count..2 * count {
            let mut actions = Vec::new();
            let mut numbers = Vec::new();
            table.numbers_of(&row(at), |number| numbers.push(number));
            numbers.iter().for_each(|&number| actions.extend_from_slice(table.get(number).unwrap()));
            assert_eq!((numbers.len(), &actions), (64, &row(at)));
        }
        assert_eq!(number(&mut table, &row(7)), 7);
        assert!(table.len() <= count as usize + 128 && table.actions.len() <= ACTIONS_MAX + 128);
    }

    #[test]
    fn rows_come_back() {
        let actions = [
            Action::Access(PointId(u32::MAX)),
            Action::EnterFunction(FunctionIndex(1)),
            Action::ExitFunction(FunctionIndex(2)),
            Action::EnterLoop(LoopIndex(3)),
            Action::Iterate(LoopIndex(4)),
            Action::ExitLoop(LoopIndex(5)),
        ];
        let (mut table, mut read) = (RowTable::default(), RowTable::default());
        let rows = [&actions[..], &actions[..1], &actions[..1], &actions[1..]];
        assert_eq!(rows.map(|row| number(&mut table, row)), [0, 1, 1, 2]);
        let mut bytes = Vec::new();
        table.write_new(&mut bytes);
        read.read(&bytes).unwrap();
        assert_eq!((read.get(0), read.get(1), read.get(3)), (Some(&actions[..]), Some(&actions[..1]), None));
        assert_eq!(read.len(), 3);
        for damaged in [vec![1, 6], vec![1], vec![2, 0], [vec![1], vec![0xff; 9], vec![1]].concat()] {
            assert_eq!(RowTable::default().read(&damaged), None);
        }
    }

    /// A grammar could repeat an empty row for ever, and a walk would never come to an action.
    #[test]
    fn empty_rows_and_endless_ones_are_refused() {
        assert_eq!(RowTable::default().read(&[0]), None);
        let row = |length: u8| [vec![length], vec![0; length.into()]].concat();
        assert!(RowTable::default().read(&row(64)).is_some() && RowTable::default().read(&row(65)).is_none());
    }
}
