//! Takes the content of a segment apart: words on one side, the data behind them on the other.
//!
//! Runs over everything that the target writes, hence has to be quick: behind a path's word, most often, there are a few
//! registers, which are copied in one go without asking how many they are. Nothing is trusted: a path that nobody announced, or
//! data that reaches beyond the segment, ends it.

use wire::word::{self, EVENT};

/// Longest number of words behind a path.
const DATA_WORDS_MAX: u32 = (wire::RECORD_BYTES_MAX / size_of::<u32>()) as u32;
/// Paths of a recording at most; a number beyond is nonsense.
const PATHS_MAX: usize = 1 << 27;
/// Words that are copied in one go.
const GO: usize = 32;

/// Why the words of a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With the segment.
    Whole,
    /// With a word that was not written.
    Unwritten,
    /// With something that reaches beyond the segment.
    CutOff,
    /// With a path that was not announced or an event that does not exist.
    Unknown,
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
        if first == 0 || end > PATHS_MAX {
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

    /// Takes `raw` apart; [`Self::content`] has the result.
    pub fn split(&mut self, raw: &[u32]) -> Ending {
        if self.words.len() < raw.len() + GO {
            self.words.resize(raw.len() + GO, 0);
            self.data.resize(raw.len() + GO, 0);
        }
        let (mut at, mut filled) = (0, Filled::default());
        let ending = loop {
            let Some(&word) = raw.get(at) else { break Ending::Whole };
            let (length, data_words) = if word & EVENT == 0 {
                let span = self.spans.get(word as usize).copied().unwrap_or(0);
                if span == 0 {
                    break if word == 0 { Ending::Unwritten } else { Ending::Unknown };
                }
                self.words[filled.words] = word;
                (1, usize::from(span) - 1)
            } else {
                let Some(length) = word::length(word) else { break Ending::Unknown };
                let Some(event) = raw.get(at..at + length) else { break Ending::CutOff };
                self.words[filled.words..filled.words + length].copy_from_slice(event);
                (length, word::data_words(word))
            };
            let from = at + length;
            if data_words <= GO
                && let Some(source) = raw.get(from..).and_then(|source| source.first_chunk::<GO>())
                && let Some(room) = self.data.get_mut(filled.data..).and_then(|room| room.first_chunk_mut::<GO>())
            {
                *room = *source;
            } else {
                let Some(source) = raw.get(from..from + data_words) else { break Ending::CutOff };
                self.data[filled.data..filled.data + data_words].copy_from_slice(source);
            }
            at = from + data_words;
            filled = Filled { words: filled.words + length, data: filled.data + data_words };
        };
        self.filled = filled;
        ending
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
        assert_eq!(splitter.split(raw), ending);
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
}
