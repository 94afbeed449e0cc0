//! Events as words of a ring (`wire::word`) and as compact bytes.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word;

use crate::bytes::{Bytes, put_signed, put_varint};
use crate::model::Event;

/// An event with what only matters on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub event: Event,
    /// Of a signal: first path of the interrupted fragment (0: none) and how many of its blocks were completed.
    pub interrupted: (u32, u32),
}

/// Reads the event at the start of `words`; `None` if there is no whole one.
pub(crate) fn read(words: &[u32]) -> Option<Recorded> {
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
        word::LEAVE => Event::Leave { tsc: wide() },
        _ => return None,
    };
    Some(Recorded { event, interrupted })
}

/// Where the thread stands after the event, if the event says so.
pub(crate) fn position(event: &Event) -> Option<u64> {
    match *event {
        Event::Start { pc, .. } | Event::Resume { pc, .. } => Some(pc),
        Event::Signal { handler, .. } => Some(handler),
        Event::End { .. } | Event::Leave { .. } => Some(0),
        _ => None,
    }
}

/// What follows the first words of events, packed: times relative to the one before, addresses to the address before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packer {
    tsc: u64,
    pc: u64,
}

/// The parts that the words after the first one of each kind are made of.
#[derive(Clone, Copy)]
enum Part {
    Small,
    Address,
    Time,
}

fn parts(first: u32) -> &'static [Part] {
    use Part::{Address, Small, Time};
    match word::kind(first) {
        word::START | word::RESUME => &[Address, Time],
        word::TIME | word::END | word::LEAVE => &[Time],
        word::SYSCALL => &[Small, Time],
        word::SIGNAL => &[Small, Small, Address, Address, Time],
        word::CHILD => &[Small, Small],
        _ => &[],
    }
}

impl Packer {
    /// Packs the words behind `first`.
    pub(crate) fn pack(&mut self, first: u32, words: &[u32], out: &mut Vec<u8>) {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or(0);
        for part in parts(first) {
            let low = next();
            match part {
                Part::Small => put_varint(out, u64::from(low)),
                Part::Address => put_relative(out, &mut self.pc, low, next()),
                Part::Time => put_relative(out, &mut self.tsc, low, next()),
            }
        }
    }

    /// Appends the words behind `first` to `words`.
    pub(crate) fn unpack(&mut self, first: u32, bytes: &mut Bytes<'_>, words: &mut Vec<u32>) -> Option<()> {
        for part in parts(first) {
            match part {
                Part::Small => words.push(bytes.varint_u32()?),
                Part::Address => take_relative(bytes, &mut self.pc, words)?,
                Part::Time => take_relative(bytes, &mut self.tsc, words)?,
            }
        }
        Some(())
    }
}

fn put_relative(out: &mut Vec<u8>, before: &mut u64, low: u32, high: u32) {
    let value = u64::from(low) | u64::from(high) << 32;
    put_signed(out, value.wrapping_sub(*before));
    *before = value;
}

fn take_relative(bytes: &mut Bytes<'_>, before: &mut u64, words: &mut Vec<u32>) -> Option<()> {
    *before = before.wrapping_add(bytes.signed()?);
    let [a, b, c, d, e, f, g, h] = before.to_le_bytes();
    words.extend([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]);
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn words(kind: u8, low: u32, rest: &[u32]) -> Vec<u32> {
        [&[word::event(kind, low)], rest].concat()
    }

    #[test]
    fn events_are_read_and_packed() {
        let signal = Event::Signal { signal: 11, pc: 3 | 4 << 32, handler: 5 | 6 << 32, tsc: 7 | 8 << 32 };
        let cases = [
            (words(word::START, 0, &[1, 2, 3, 4]), Event::Start { pc: 1 | 2 << 32, tsc: 3 | 4 << 32 }, (0, 0)),
            (words(word::TIME, 0, &[1, 2]), Event::Time { tsc: 1 | 2 << 32 }, (0, 0)),
            (words(word::SYSCALL, 0, &[1, 2, 3]), Event::Syscall { number: 1, tsc: 2 | 3 << 32 }, (0, 0)),
            (words(word::SIGNAL, 11, &[1, 2, 3, 4, 5, 6, 7, 8]), signal, (1, 2)),
            (words(word::RESUME, 0, &[1, 2, 3, 4]), Event::Resume { pc: 1 | 2 << 32, tsc: 3 | 4 << 32 }, (0, 0)),
            (words(word::END, 0, &[9, 0]), Event::End { tsc: 9 }, (0, 0)),
            (words(word::CHILD, 0, &[1, 2]), Event::Child { thread: 1, os_tid: 2 }, (0, 0)),
            (words(word::LEAVE, 0, &[1, 0]), Event::Leave { tsc: 1 }, (0, 0)),
        ];
        let (mut packer, mut unpacker) = (Packer::default(), Packer::default());
        for (words, event, interrupted) in cases {
            assert_eq!(read(&words), Some(Recorded { event, interrupted }));
            assert_eq!(read(&words[..words.len() - 1]), None);
            let mut bytes = Vec::new();
            packer.pack(words[0], &words[1..], &mut bytes);
            let mut back = vec![words[0]];
            unpacker.unpack(words[0], &mut Bytes::new(&bytes), &mut back).unwrap();
            assert_eq!(back, words);
        }
        assert_eq!(read(&[word::event(99, 0), 0, 0]), None);
        assert_eq!(read(&[7]), None);
    }
}
