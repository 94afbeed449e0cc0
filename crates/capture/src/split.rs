//! Separates the content of a segment into words and the data behind them.
//!
//! Runs over everything that the target writes, so speed matters. Behind most paths there are a few
//! registers; a copy of fixed length takes them, whatever their number. Nothing is trusted: an
//! undefined path, or data that reaches beyond the segment, ends the segment.

use entity::{FragmentId, PathId};
use wire::word;

/// The most words of data behind a path.
const DATA_WORDS_MAX: u32 = (wire::RECORD_BYTES_MAX / size_of::<u32>()) as u32;
/// The engine numbers paths one after the other. A number that is further than this beyond all
/// others is nonsense.
const PATH_GAP_MAX: usize = 1 << 20;
/// Words of the copy of fixed length.
const COPY_WORDS: usize = 32;

/// Words, and words of data, that are separated in one call, so that they stay in the processor's
/// cache. The last path or event is completed.
const PIECE_WORDS: usize = 16 << 10;
const BUFFER_WORDS: usize = PIECE_WORDS + word::DATA_WORDS_MAX + word::EVENT_WORDS_MAX + COPY_WORDS;

/// Why the separation of a segment, or of a piece of it, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitEnd {
    /// The piece is long enough.
    PieceFull,
    /// At the end of the segment.
    SegmentEnd,
    /// At a word that was not written.
    Unwritten,
    /// At something that reaches beyond the segment.
    Truncated,
    /// At an undefined path or an unknown event.
    Unknown,
}

/// The content of a segment. If the segment is shared with the target, words may change while they
/// are read.
pub trait SegmentWords {
    fn word(&self, at: usize) -> Option<u32>;
    /// Fills `into` with the words from `at` on. Returns false if there are fewer words.
    fn copy(&self, at: usize, into: &mut [u32]) -> bool;
}

impl SegmentWords for [u32] {
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
    /// By path number: words of data behind it, plus one; 0 for an undefined path.
    spans: Vec<u16>,
    words: Vec<u32>,
    data: Vec<u32>,
    /// How much of `words` and `data` is valid.
    filled: FillLevel,
}

#[derive(Clone, Copy, Debug, Default)]
struct FillLevel {
    words: usize,
    data: usize,
}

impl Splitter {
    /// Defines how many bytes of data are behind the paths of a fragment. Returns `None` for
    /// impossible values.
    pub fn set_lengths(&mut self, fragment: FragmentId, lengths: impl ExactSizeIterator<Item = u32>) -> Option<()> {
        let first = fragment.first_path().get() as usize;
        let end = first + lengths.len();
        if first == 0 || end > self.spans.len() + PATH_GAP_MAX {
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

    /// Returns the words of data behind a path.
    pub fn data_words(&self, path: PathId) -> usize {
        self.spans.get(path.get() as usize).map_or(0, |&span| usize::from(span.saturating_sub(1)))
    }

    /// Separates `segment` from the word at `from` on, which moves; [`Self::content`] has the
    /// result. After [`SplitEnd::PieceFull`], there is more.
    pub fn split(&mut self, segment: &(impl SegmentWords + ?Sized), from: &mut usize) -> SplitEnd {
        if self.words.is_empty() {
            self.words.resize(BUFFER_WORDS, 0);
            self.data.resize(BUFFER_WORDS, 0);
        }
        let (mut at, mut filled) = (*from, FillLevel::default());
        let end = loop {
            if filled.words + filled.data >= PIECE_WORDS {
                break SplitEnd::PieceFull;
            }
            let Some(word) = segment.word(at) else { break SplitEnd::SegmentEnd };
            let (length, data_words) = if let Some(path) = word::path(word) {
                let span = self.spans.get(path.get() as usize).copied().unwrap_or(0);
                if span == 0 {
                    break if word == 0 { SplitEnd::Unwritten } else { SplitEnd::Unknown };
                }
                self.words[filled.words] = word;
                (1, usize::from(span) - 1)
            } else {
                let Some(length) = word::length(word) else { break SplitEnd::Unknown };
                let event = &mut self.words[filled.words..filled.words + length];
                if !segment.copy(at, event) {
                    break SplitEnd::Truncated;
                }
                // The word that was checked counts, whatever is there now.
                event[0] = word;
                (length, word::data_words(word))
            };
            let behind = at + length;
            let room = &mut self.data[filled.data..];
            let is_copied = match room.first_chunk_mut::<COPY_WORDS>() {
                Some(room) if data_words <= COPY_WORDS => segment.copy(behind, room),
                _ => false,
            };
            if !is_copied && !segment.copy(behind, &mut room[..data_words]) {
                break SplitEnd::Truncated;
            }
            at = behind + data_words;
            filled = FillLevel { words: filled.words + length, data: filled.data + data_words };
        };
        self.filled = filled;
        *from = at;
        end
    }

    /// Returns the words of [`Self::content`].
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words[..self.filled.words]
    }

    /// Returns words and data of the piece that was separated last.
    pub fn content(&self) -> (&[u32], &[u8]) {
        (&self.words[..self.filled.words], bytemuck::cast_slice(&self.data[..self.filled.data]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u8, data_words: u32) -> Vec<u32> {
        let length = word::length(word::event(kind, 0)).unwrap();
        let mut words = vec![word::event(kind, data_words << 8)];
        words.resize(length, 77);
        words
    }

    fn fragment(first_path: u32) -> FragmentId {
        FragmentId::new(PathId::new(first_path))
    }

    fn splitter() -> Splitter {
        let mut splitter = Splitter::default();
        splitter.set_lengths(fragment(1), [0, 8, 400].into_iter()).unwrap();
        splitter
    }

    fn check(splitter: &mut Splitter, segment: &[u32], end: SplitEnd, words: &[u32], data: &[u32]) {
        let mut from = 0;
        assert_eq!(splitter.split(segment, &mut from), end);
        let expected: &[u8] = bytemuck::cast_slice(data);
        assert_eq!(splitter.content(), (words, expected));
    }

    #[test]
    fn words_and_data_are_separated() {
        let long: Vec<u32> = (100..200).collect();
        let time = [word::event(word::TIME, 0), 5, 6];
        let segment = [&[1, 2, 10, 11][..], &time, &[3], &long, &[2, 12, 13, 1]].concat();
        let data = [&[10, 11][..], &long, &[12, 13]].concat();
        let mut splitter = splitter();
        for _ in 0..2 {
            check(&mut splitter, &segment, SplitEnd::SegmentEnd, &[&[1, 2][..], &time, &[3, 2, 1]].concat(), &data);
        }
        check(&mut splitter, &[], SplitEnd::SegmentEnd, &[], &[]);
    }

    #[test]
    fn an_undefined_path_or_event_ends_a_segment() {
        let mut splitter = splitter();
        check(&mut splitter, &[2, 10, 11, 4, 1], SplitEnd::Unknown, &[2], &[10, 11]);
        check(&mut splitter, &[1, u32::MAX >> 1, 1], SplitEnd::Unknown, &[1], &[]);
        check(&mut splitter, &[1, word::event(99, 0), 1], SplitEnd::Unknown, &[1], &[]);
        check(&mut splitter, &[1, 0, 1], SplitEnd::Unwritten, &[1], &[]);
        check(&mut splitter, &[1, 2, 10], SplitEnd::Truncated, &[1], &[]);
        check(&mut splitter, &[1, word::event(word::TIME, 0), 1], SplitEnd::Truncated, &[1], &[]);
        assert_eq!(splitter.set_lengths(fragment(0), [4].into_iter()), None);
        assert_eq!(splitter.set_lengths(fragment(5), [5].into_iter()), None);
        assert_eq!(splitter.set_lengths(fragment(5), [(12 << 10) + 4].into_iter()), None);
        assert_eq!(splitter.set_lengths(fragment(u32::MAX), [4].into_iter()), None);
    }

    #[test]
    fn events_say_how_much_data_they_have() {
        let (string, access, signal) = (event(word::STRING, 2), event(word::ACCESS, 1), event(word::SIGNAL, 20));
        let long: Vec<u32> = (30..50).collect();
        let segment = [&string[..], &[9, 8], &access, &[7], &signal, &long, &[1]].concat();
        let data = [&[9, 8, 7][..], &long].concat();
        check(&mut splitter(), &segment, SplitEnd::SegmentEnd, &[&string[..], &access, &signal, &[1]].concat(), &data);
    }

    #[test]
    fn long_segments_come_in_pieces() {
        let segment: Vec<u32> = (0..100_000).flat_map(|turn| [2, turn, turn + 1]).collect();
        let mut splitter = splitter();
        let (mut from, mut words, mut data) = (0, Vec::new(), Vec::<u8>::new());
        loop {
            let end = splitter.split(&segment[..], &mut from);
            words.extend_from_slice(splitter.content().0);
            data.extend_from_slice(splitter.content().1);
            if end != SplitEnd::PieceFull {
                assert_eq!(end, SplitEnd::SegmentEnd);
                break;
            }
            assert!(splitter.content().0.len() < PIECE_WORDS);
        }
        assert_eq!(words, [2; 100_000]);
        let expected: Vec<u32> = (0..100_000).flat_map(|turn| [turn, turn + 1]).collect();
        assert!(data == bytemuck::cast_slice::<u32, u8>(&expected));
    }
}
