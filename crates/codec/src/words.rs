//! The words of a thread, one path or event at a time: the one iterator under all codecs and
//! readers.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::PathId;
use wire::word;

use crate::event::event_bytes;

/// What stands at one position of a thread's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'w> {
    /// The path with this number was executed.
    Path(PathId),
    Event(EventWords<'w>),
}

/// An event, which has not been decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWords<'w> {
    first: u32,
    rest: &'w [u32],
}

impl<'w> EventWords<'w> {
    /// Returns the first word, which says what kind of event it is.
    #[inline]
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Returns the words from the event's first one on, with all that follow the event.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &'w [u32] {
        self.rest
    }

    /// Returns the bytes of data behind the event.
    #[inline]
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        event_bytes(self.first)
    }

    /// Returns the number of words that the event takes of those that are there. An unknown event
    /// takes all of them, because nothing says where it ends.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        word::length(self.first).unwrap_or(usize::MAX).min(self.rest.len())
    }
}

/// Iterates words. Copies are independent positions in the same words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words<'w> {
    rest: &'w [u32],
}

impl<'w> Words<'w> {
    #[inline]
    #[must_use]
    pub fn new(words: &'w [u32]) -> Self {
        Self { rest: words }
    }

    /// Returns all words that are left.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'w [u32] {
        self.rest
    }

    /// Returns what comes next, and stays where it is.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<Word<'w>> {
        let &first = self.rest.first()?;
        Some(match word::path(first) {
            Some(path) => Word::Path(path),
            None => Word::Event(EventWords { first, rest: self.rest }),
        })
    }

    /// Passes over `count` words.
    #[inline]
    pub fn skip_words(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or(&[]);
    }
}

impl<'w> Iterator for Words<'w> {
    type Item = Word<'w>;

    #[inline]
    fn next(&mut self) -> Option<Word<'w>> {
        let word = self.peek()?;
        self.skip_words(match &word {
            Word::Path(_) => 1,
            Word::Event(event) => event.length(),
        });
        Some(word)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_events_come_in_order() {
        let path = |number| Word::Path(PathId::new(number));
        let time = word::event(word::TIME, 0);
        let words = [7, time, 1, 2, 8, 8];
        let all: Vec<Word> = Words::new(&words).collect();
        let event = Word::Event(EventWords { first: time, rest: &words[1..] });
        assert_eq!(all, [path(7), event, path(8), path(8)]);
    }

    #[test]
    fn an_unknown_or_truncated_event_takes_the_rest() {
        for words in [&[7, word::event(99, 0), 1, 2, 3, 4][..], &[7, word::event(word::START, 0), 1]] {
            let mut iterator = Words::new(words);
            assert_eq!(iterator.next(), Some(Word::Path(PathId::new(7))));
            assert!(matches!(iterator.next(), Some(Word::Event(event)) if event.length() == words.len() - 1));
            assert_eq!(iterator.next(), None);
        }
    }
}
