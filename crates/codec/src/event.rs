//! Events among the words of a thread: where the thread goes on behind them, and their words packed
//! into fewer bytes.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;
use wire::word;

use crate::bytes::{ByteReader, put_signed, put_varint};

/// Returns the bytes of data behind the event that begins with `first`.
#[inline]
#[must_use]
pub fn event_bytes(first: u32) -> usize {
    word::data_words(first) * size_of::<u32>()
}

/// Where a thread goes on behind an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPc {
    /// Where it would go on without the event.
    Unchanged,
    /// At this address; [`AppPc::NONE`] if the thread ends, or if nothing says where.
    At(AppPc),
}

/// Reads where the thread goes on behind the event at the start of `words`. Returns `None` if there
/// is no whole event.
#[inline]
#[must_use]
pub fn next_pc(words: &[u32]) -> Option<NextPc> {
    let &first = words.first()?;
    if first & word::EVENT == 0 {
        return None;
    }
    let words = words.get(..word::length(first)?)?;
    let wide = |at: usize| {
        let half = |at: usize| words.get(at).map_or(0, |&half| u64::from(half));
        half(at) | half(at + 1) << 32
    };
    let address = |at: usize| NextPc::At(AppPc::new(wide(at)));
    Some(match word::kind(first) {
        word::START | word::RESUME => address(1),
        // Behind the interrupted fragment, the number of its blocks and the address: the handler.
        word::SIGNAL => address(5),
        word::END | word::DETACH | word::GAP => NextPc::At(AppPc::NONE),
        _ => NextPc::Unchanged,
    })
}

/// Packs the words behind the first word of events: times relative to the time before, addresses to
/// the address before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packer {
    tsc: u64,
    pc: u64,
    data: u64,
}

/// A field of an event, in one word or two.
#[derive(Clone, Copy)]
enum Field {
    Small,
    Address,
    Time,
    /// An address of data.
    Data,
}

fn fields(first: u32) -> &'static [Field] {
    use Field::{Address, Data, Small, Time};
    match word::kind(first) {
        word::START | word::RESUME => &[Address, Time],
        word::TIME | word::END | word::DETACH => &[Time],
        word::SYSCALL => &[Small, Time],
        word::SIGNAL => &[Small, Small, Address, Address, Time],
        word::CHILD => &[Small, Small],
        word::FS_BASE => &[Data],
        word::STRING => &[Address, Data, Data, Small, Small],
        word::ACCESS => &[Address, Data, Small],
        word::GAP => &[Address],
        word::ENTER => &[Address, Data, Data, Data, Data, Address, Small, Time],
        word::RETURN => &[Data, Time],
        word::MAPPING => &[Small, Data, Data, Data, Data, Small, Time],
        word::STACK_POINTER => &[Data],
        _ => &[],
    }
}

impl Packer {
    /// Packs the words behind `first`.
    pub(crate) fn pack(&mut self, first: u32, words: &[u32], out: &mut Vec<u8>) {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or(0);
        for field in fields(first) {
            let low = next();
            match field {
                Field::Small => put_varint(out, u64::from(low)),
                Field::Address => put_relative(out, &mut self.pc, low, next()),
                Field::Time => put_relative(out, &mut self.tsc, low, next()),
                Field::Data => put_relative(out, &mut self.data, low, next()),
            }
        }
    }

    /// Appends the words behind `first` to `words`.
    pub(crate) fn unpack(&mut self, first: u32, bytes: &mut ByteReader<'_>, words: &mut Vec<u32>) -> Option<()> {
        for field in fields(first) {
            match field {
                Field::Small => words.push(bytes.varint_u32()?),
                Field::Address => take_relative(bytes, &mut self.pc, words)?,
                Field::Time => take_relative(bytes, &mut self.tsc, words)?,
                Field::Data => take_relative(bytes, &mut self.data, words)?,
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

fn take_relative(bytes: &mut ByteReader<'_>, before: &mut u64, words: &mut Vec<u32>) -> Option<()> {
    *before = before.wrapping_add(bytes.signed()?);
    let [a, b, c, d, e, f, g, h] = before.to_le_bytes();
    words.extend([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]);
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// One event of every kind, with all fields different.
    fn events() -> Vec<Vec<u32>> {
        let kinds = [
            word::START,
            word::TIME,
            word::SYSCALL,
            word::SIGNAL,
            word::RESUME,
            word::END,
            word::CHILD,
            word::DETACH,
            word::FS_BASE,
            word::GAP,
            word::STRING,
            word::ACCESS,
            word::ENTER,
            word::RETURN,
            word::MAPPING,
            word::STACK_POINTER,
        ];
        let event = |&kind: &u8| {
            let first = word::event(kind, 7 << 8);
            let rest = (1..).take(word::length(first).unwrap() - 1);
            std::iter::once(first).chain(rest).collect()
        };
        kinds.iter().map(event).collect()
    }

    #[test]
    fn packed_events_come_back() {
        let (mut packer, mut unpacker) = (Packer::default(), Packer::default());
        for words in events().iter().chain(&events()) {
            let mut bytes = Vec::new();
            packer.pack(words[0], &words[1..], &mut bytes);
            let mut back = vec![words[0]];
            unpacker.unpack(words[0], &mut ByteReader::new(&bytes), &mut back).unwrap();
            assert_eq!(back, *words);
        }
    }

    #[test]
    fn events_say_where_the_thread_goes_on() {
        for words in events() {
            let expected = match word::kind(words[0]) {
                word::START | word::RESUME => NextPc::At(AppPc::new(1 | 2 << 32)),
                word::SIGNAL => NextPc::At(AppPc::new(5 | 6 << 32)),
                word::END | word::DETACH | word::GAP => NextPc::At(AppPc::NONE),
                _ => NextPc::Unchanged,
            };
            assert_eq!(next_pc(&words), Some(expected));
            assert_eq!(next_pc(&words[..words.len() - 1]), None);
        }
        assert_eq!([next_pc(&[]), next_pc(&[7]), next_pc(&[word::event(99, 0), 0, 0])], [None; 3]);
    }
}
