//! Takes the content of a segment apart: words on one side, the data behind them on the other.
//!
//! Runs over everything that the target writes, hence has to be quick: behind a path's word, most often, there are a few
//! registers, which are copied in one go without asking how many they are. Nothing is trusted: a path that nobody announced, or
//! data that reaches beyond the segment, ends it.

use wire::word::{self, EVENT};

/// Longest number of words behind a path.
const DATA_WORDS_MAX: u32 = (wire::RECORD_BYTES_MAX / size_of::<u32>()) as u32;
/// Numbers of paths come one after the other; one that is so much further on is nonsense.
const LEAP_MAX: usize = 1 << 20;
/// Words that are copied in one go.
const GO: usize = 32;

/// Words, and words of data, that are taken apart in one go, so that they stay in the processor's cache; what begins before that
/// is completed.
const PIECE: usize = 16 << 10;
const ROOM: usize = PIECE + word::DATA_WORDS_MAX + word::EVENT_WORDS_MAX + GO;

/// Why the words of a segment, or of a piece of it, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The piece is long enough.
    Piece,
    /// With the segment.
    Whole,
    /// With a word that was not written.
    Unwritten,
    /// With something that reaches beyond the segment.
    CutOff,
    /// With a path that was not announced or an event that does not exist.
    Unknown,
}

/// The content of a segment. Words of one that is shared with the target may change while they are read.
pub trait Raw {
    fn word(&self, at: usize) -> Option<u32>;
    /// Fills `into` with the words from `at` on; false if there are not so many.
    fn copy(&self, at: usize, into: &mut [u32]) -> bool;
}

impl Raw for [u32] {
    #[inline(always)]
    fn word(&self, at: usize) -> Option<u32> {
        self.get(at).copied()
    }

    #[inline(always)]
    fn copy(&self, at: usize, into: &mut [u32]) -> bool {
        let Some(words) = self.get(at..).and_then(|words| words.get(..into.len())) else { return false };
        into.copy_from_slice(words);
        true
    }
}

#[derive(Debug, Default)]
pub struct Splitter {
    /// By path number: words of data behind it, plus one; 0 for none announced.
    spans: Vec<u16>,
    words: Vec<u32>,
    data: Vec<u32>,
    /// How much of `words` and `data` is valid; behind that is room.
    filled: Filled,
}

#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    words: usize,
    data: usize,
}

impl Splitter {
    /// Says how many bytes of data are behind paths from `first_path` on. `None` if that cannot be.
    pub fn set_lengths(&mut self, first_path: u32, lengths: impl ExactSizeIterator<Item = u32>) -> Option<()> {
        let first = first_path as usize;
        let end = first + lengths.len();
        if first == 0 || end > self.spans.len() + LEAP_MAX {
            return None;
        }
        if end > self.spans.len() {
            self.spans.resize(end.next_multiple_of(1 << 16), 0);
        }
        for (span, bytes) in self.spans[first..end].iter_mut().zip(lengths) {
            let words = bytes / 4;
            if words > DATA_WORDS_MAX || !bytes.is_multiple_of(4) {
                return None;
            }
            *span = words as u16 + 1;
        }
        Some(())
    }

    /// Takes `raw` apart from the word at `from` on, which moves; [`Self::content`] has the result. If that is
    /// [`Ending::Piece`], there is more.
    pub fn split(&mut self, raw: &(impl Raw + ?Sized), from: &mut usize) -> Ending {
        if self.words.is_empty() {
            self.words.resize(ROOM, 0);
            self.data.resize(ROOM, 0);
        }
        let (mut at, mut filled) = (*from, Filled::default());
        let ending = loop {
            if filled.words + filled.data >= PIECE {
                break Ending::Piece;
            }
            let Some(word) = raw.word(at) else { break Ending::Whole };
            let (length, data_words) = if word & EVENT == 0 {
                let span = self.spans.get(word as usize).copied().unwrap_or(0);
                if span == 0 {
                    break if word == 0 { Ending::Unwritten } else { Ending::Unknown };
                }
                self.words[filled.words] = word;
                (1, usize::from(span) - 1)
            } else {
                let Some(length) = word::length(word) else { break Ending::Unknown };
                let event = &mut self.words[filled.words..filled.words + length];
                if !raw.copy(at, event) {
                    break Ending::CutOff;
                }
                // What was looked at counts, whatever stands there now.
                event[0] = word;
                (length, word::data_words(word))
            };
            let behind = at + length;
            let room = &mut self.data[filled.data..];
            let in_one_go = match room.first_chunk_mut::<GO>() {
                Some(room) if data_words <= GO => raw.copy(behind, room),
                _ => false,
            };
            if !in_one_go && !raw.copy(behind, &mut room[..data_words]) {
                break Ending::CutOff;
            }
            at = behind + data_words;
            filled = Filled { words: filled.words + length, data: filled.data + data_words };
        };
        self.filled = filled;
        *from = at;
        ending
    }

    /// The words of [`Self::content`].
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words[..self.filled.words]
    }

    /// Words and data of the segment taken apart last.
    pub fn content(&self) -> (&[u32], &[u8]) {
        (&self.words[..self.filled.words], bytemuck::cast_slice(&self.data[..self.filled.data]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: u8, data_words: u32) -> Vec<u32> {
        let length = word::length(word::event(kind, 0)).unwrap();
        let mut words = vec![word::event(kind, data_words << 8)];
        words.resize(length, 77);
        words
    }

    fn splitter() -> Splitter {
        let mut splitter = Splitter::default();
        splitter.set_lengths(1, [0, 8, 400].into_iter()).unwrap();
        splitter
    }

    fn check(splitter: &mut Splitter, raw: &[u32], ending: Ending, words: &[u32], data: &[u32]) {
        let mut from = 0;
        assert_eq!(splitter.split(raw, &mut from), ending);
        let expected: &[u8] = bytemuck::cast_slice(data);
        assert_eq!(splitter.content(), (words, expected));
    }

    #[test]
    fn words_and_data_are_taken_apart() {
        let long: Vec<u32> = (100..200).collect();
        let time = [word::event(word::TIME, 0), 5, 6];
        let raw = [&[1, 2, 10, 11][..], &time, &[3], &long, &[2, 12, 13, 1]].concat();
        let data = [&[10, 11][..], &long, &[12, 13]].concat();
        let mut splitter = splitter();
        for _ in 0..2 {
            check(&mut splitter, &raw, Ending::Whole, &[&[1, 2][..], &time, &[3, 2, 1]].concat(), &data);
        }
        check(&mut splitter, &[], Ending::Whole, &[], &[]);
    }

    #[test]
    fn what_makes_no_sense_ends_a_segment() {
        let mut splitter = splitter();
        check(&mut splitter, &[2, 10, 11, 4, 1], Ending::Unknown, &[2], &[10, 11]);
        check(&mut splitter, &[1, u32::MAX >> 1, 1], Ending::Unknown, &[1], &[]);
        check(&mut splitter, &[1, word::event(99, 0), 1], Ending::Unknown, &[1], &[]);
        check(&mut splitter, &[1, 0, 1], Ending::Unwritten, &[1], &[]);
        check(&mut splitter, &[1, 2, 10], Ending::CutOff, &[1], &[]);
        check(&mut splitter, &[1, word::event(word::TIME, 0), 1], Ending::CutOff, &[1], &[]);
        assert_eq!(splitter.set_lengths(0, [4].into_iter()), None);
        assert_eq!(splitter.set_lengths(5, [5].into_iter()), None);
        assert_eq!(splitter.set_lengths(5, [(12 << 10) + 4].into_iter()), None);
        assert_eq!(splitter.set_lengths(u32::MAX, [4].into_iter()), None);
    }

    #[test]
    fn events_say_how_much_data_they_have() {
        let (string, access, signal) = (told(word::STRING, 2), told(word::ACCESS, 1), told(word::SIGNAL, 20));
        let long: Vec<u32> = (30..50).collect();
        let raw = [&string[..], &[9, 8], &access, &[7], &signal, &long, &[1]].concat();
        let data = [&[9, 8, 7][..], &long].concat();
        check(&mut splitter(), &raw, Ending::Whole, &[&string[..], &access, &signal, &[1]].concat(), &data);
    }

    #[test]
    fn long_segments_come_in_pieces() {
        let raw: Vec<u32> = (0..100_000).flat_map(|turn| [2, turn, turn + 1]).collect();
        let mut splitter = splitter();
        let (mut from, mut words, mut data) = (0, Vec::new(), Vec::<u8>::new());
        loop {
            let ending = splitter.split(&raw[..], &mut from);
            words.extend_from_slice(splitter.content().0);
            data.extend_from_slice(splitter.content().1);
            if ending != Ending::Piece {
                assert_eq!(ending, Ending::Whole);
                break;
            }
            assert!(splitter.content().0.len() < PIECE);
        }
        assert_eq!(words, [2; 100_000]);
        let expected: Vec<u32> = (0..100_000).flat_map(|turn| [turn, turn + 1]).collect();
        assert!(data == bytemuck::cast_slice::<u32, u8>(&expected));
    }
}
