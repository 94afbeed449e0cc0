//! Events, decoded from the words of a ring (`wire::word`).
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word;

use crate::model::{Event, Step};
use crate::program::Program;

/// An event as it was recorded, with fields that only decoding needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// `None` for explicit accesses, see [`ExplicitAccess`].
    pub event: Option<Event>,
    /// Of a signal: first path of the interrupted fragment (0: none) and how many of its blocks
    /// were completed.
    pub interrupted: (u32, u32),
}

impl RawEvent {
    pub(crate) fn tsc(&self) -> Option<u64> {
        self.event?.tsc()
    }

    /// Returns the time at which the event and all behind it begin; `None` if the event interrupted
    /// something, whose time is not known.
    pub(crate) fn begins(&self) -> Option<u64> {
        self.tsc().filter(|_| self.interrupted.0 == 0)
    }

    /// Returns the time at which what follows an interruption begins.
    pub(crate) fn ends(&self) -> Option<u64> {
        self.tsc().filter(|_| self.interrupted.0 != 0)
    }
}

/// Where an event finds its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The event carries no execution: the thread continues as if it had not come.
    Unchanged,
    /// The thread was at this address.
    At(u64),
    /// The thread does not continue where it was.
    Elsewhere,
}

impl Location {
    /// Returns the address if the event decides it, 0 if the event leaves it unknown; `None` for an
    /// event that carries no execution.
    pub(crate) fn known_pc(self) -> Option<u64> {
        match self {
            Self::Unchanged => None,
            Self::At(pc) => Some(pc),
            Self::Elsewhere => Some(0),
        }
    }
}

impl RawEvent {
    /// Returns where the event finds the thread: the target of an indirect transfer before it. All
    /// readers take the events that carry no execution from here.
    pub(crate) fn location(&self, program: &Program) -> Location {
        match self.event {
            None | Some(Event::Time { .. } | Event::Child { .. } | Event::Syscall { .. } | Event::FsBase { .. }) => {
                Location::Unchanged
            }
            Some(Event::Signal { pc, .. }) => Location::At(program.head(self.interrupted.0).unwrap_or(pc)),
            Some(Event::Gap { pc }) => Location::At(pc),
            Some(_) => Location::Elsewhere,
        }
    }

    /// Returns the steps that the event interrupted: whole ones, and a part of one more. `None` if
    /// its fields are impossible.
    pub(crate) fn interrupted_steps<'p>(&self, program: &'p Program) -> Option<(&'p [Step], Option<Step>)> {
        match self.event {
            Some(Event::Signal { pc, .. }) if self.interrupted.0 != 0 => {
                program.interrupted(self.interrupted.0, self.interrupted.1, pc)
            }
            _ => Some((&[], None)),
        }
    }
}

/// Memory accesses that an event of their own records, because no access descriptor covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExplicitAccess {
    /// Iterations of a string instruction, see `wire::word::STRING`.
    String { pc: u64, source: u64, destination: u64, count: u32, shape: u32 },
    /// A single access, see `wire::word::ACCESS`.
    Access { pc: u64, address: u64, size: u32 },
}

impl ExplicitAccess {
    /// Returns the number of reads and writes.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match *self {
            Self::Access { size, .. } => {
                if size & word::ACCESS_WRITES == 0 {
                    (1, 0)
                } else {
                    (0, 1)
                }
            }
            Self::String { count, shape, .. } => {
                let has = |flag: u32| u64::from(shape & flag != 0) * u64::from(count);
                let (source, destination) = (has(word::STRING_READS_SOURCE), has(word::STRING_READS_DESTINATION));
                // An instruction that reads at its destination does not write there.
                let writes = if destination == 0 { has(word::STRING_WRITES_DESTINATION) } else { 0 };
                (source + destination, writes)
            }
        }
    }
}

/// Whether the event that begins with `first` holds accesses that belong to the next path or
/// signal.
#[inline]
pub(crate) fn is_explicit_access(first: u32) -> bool {
    first & word::EVENT != 0 && matches!(word::kind(first), word::STRING | word::ACCESS)
}

/// Reads the explicit accesses at the start of `words`.
pub(crate) fn read_explicit_access(words: &[u32]) -> Option<ExplicitAccess> {
    let (&first, rest) = words.split_first()?;
    let rest = rest.get(..word::length(first)?.checked_sub(1)?)?;
    let mut rest = rest.iter().copied();
    let mut next = || rest.next().unwrap_or(0);
    let mut wide = || u64::from(next()) | u64::from(next()) << 32;
    match word::kind(first) {
        word::STRING if first & word::EVENT != 0 => {
            let (pc, source, destination) = (wide(), wide(), wide());
            Some(ExplicitAccess::String { pc, source, destination, count: next(), shape: next() })
        }
        word::ACCESS if first & word::EVENT != 0 => {
            let (pc, address) = (wide(), wide());
            Some(ExplicitAccess::Access { pc, address, size: next() })
        }
        _ => None,
    }
}

/// Reads the timestamp at the start of `words`, and returns it with the words behind it.
#[inline]
pub(crate) fn time(words: &[u32]) -> Option<(u64, &[u32])> {
    let (&[first, low, high], behind) = words.split_first_chunk()?;
    let is_time = first & word::EVENT != 0 && word::kind(first) == word::TIME;
    is_time.then_some((u64::from(low) | u64::from(high) << 32, behind))
}

/// Reads the event at the start of `words`; `None` if there is no whole one.
pub(crate) fn read(words: &[u32]) -> Option<RawEvent> {
    let (&first, rest) = words.split_first()?;
    if first & word::EVENT == 0 || rest.len() + 1 < word::length(first)? {
        return None;
    }
    let mut rest = rest.iter().copied();
    let mut next = || rest.next().unwrap_or(0);
    let mut wide = || u64::from(next()) | u64::from(next()) << 32;
    let mut interrupted = (0, 0);
    let event = match word::kind(first) {
        word::START => Event::Start { pc: wide(), tsc: wide() },
        word::TIME => Event::Time { tsc: wide() },
        word::SYSCALL => Event::Syscall { number: next(), tsc: u64::from(next()) | u64::from(next()) << 32 },
        word::SIGNAL => {
            interrupted = (next(), next());
            let mut wide = || u64::from(next()) | u64::from(next()) << 32;
            Event::Signal { signal: first.to_le_bytes()[0], pc: wide(), handler: wide(), tsc: wide() }
        }
        word::RESUME => Event::Resume { pc: wide(), tsc: wide() },
        word::END => Event::End { tsc: wide() },
        word::CHILD => Event::Child { thread: next(), os_tid: next() },
        word::DETACH => Event::Detach { tsc: wide() },
        word::FS_BASE => Event::FsBase { base: wide() },
        word::GAP => Event::Gap { pc: wide() },
        word::STRING | word::ACCESS => return Some(RawEvent { event: None, interrupted }),
        _ => return None,
    };
    Some(RawEvent { event: Some(event), interrupted })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn words(kind: u8, low: u32, rest: &[u32]) -> Vec<u32> {
        [&[word::event(kind, low)], rest].concat()
    }

    #[test]
    fn events_are_read() {
        let signal = Event::Signal { signal: 11, pc: 3 | 4 << 32, handler: 5 | 6 << 32, tsc: 7 | 8 << 32 };
        let cases = [
            (words(word::START, 0, &[1, 2, 3, 4]), Event::Start { pc: 1 | 2 << 32, tsc: 3 | 4 << 32 }, (0, 0)),
            (words(word::TIME, 0, &[1, 2]), Event::Time { tsc: 1 | 2 << 32 }, (0, 0)),
            (words(word::SYSCALL, 0, &[1, 2, 3]), Event::Syscall { number: 1, tsc: 2 | 3 << 32 }, (0, 0)),
            (words(word::SIGNAL, 11, &[1, 2, 3, 4, 5, 6, 7, 8]), signal, (1, 2)),
            (words(word::RESUME, 0, &[1, 2, 3, 4]), Event::Resume { pc: 1 | 2 << 32, tsc: 3 | 4 << 32 }, (0, 0)),
            (words(word::END, 0, &[9, 0]), Event::End { tsc: 9 }, (0, 0)),
            (words(word::CHILD, 0, &[1, 2]), Event::Child { thread: 1, os_tid: 2 }, (0, 0)),
            (words(word::DETACH, 0, &[1, 0]), Event::Detach { tsc: 1 }, (0, 0)),
            (words(word::FS_BASE, 0, &[1, 2]), Event::FsBase { base: 1 | 2 << 32 }, (0, 0)),
            (words(word::GAP, 0, &[1, 2]), Event::Gap { pc: 1 | 2 << 32 }, (0, 0)),
        ];
        for (words, event, interrupted) in cases {
            assert_eq!(read(&words), Some(RawEvent { event: Some(event), interrupted }));
            assert_eq!(read(&words[..words.len() - 1]), None);
            assert_eq!((is_explicit_access(words[0]), read_explicit_access(&words)), (false, None));
        }
        assert_eq!(read(&[word::event(99, 0), 0, 0]), None);
        assert_eq!(read(&[7]), None);
    }

    #[test]
    fn explicit_accesses_are_read() {
        let string = ExplicitAccess::String { pc: 1 | 2 << 32, source: 3, destination: 4, count: 5, shape: 6 };
        let access = ExplicitAccess::Access { pc: 1, address: 2 | 3 << 32, size: u32::MAX };
        let cases = [
            (words(word::STRING, 7 << 8, &[1, 2, 3, 0, 4, 0, 5, 6]), string),
            (words(word::ACCESS, 7 << 8, &[1, 0, 2, 3, u32::MAX]), access),
        ];
        for (words, expected) in cases {
            assert!(is_explicit_access(words[0]));
            assert_eq!(read_explicit_access(&words), Some(expected));
            assert_eq!(read_explicit_access(&words[..words.len() - 1]), None);
            assert_eq!(read(&words), Some(RawEvent { event: None, interrupted: (0, 0) }));
        }
    }
}
