//! Where each row is remembered is found out for many rows in advance, so that the processor can fetch them side by side.

use wire::word::EVENT;

use super::{GROUP_BYTES, LaneTable};
use crate::span::{Span, Spans};

/// Rows that are looked for in one go.
const LOOKAHEAD: usize = 64;

/// Some paths and where their rows are.
#[derive(Debug)]
pub(super) struct RowLookahead {
    count: usize,
    spans: [Span; LOOKAHEAD],
    places: [usize; LOOKAHEAD],
}

impl Default for RowLookahead {
    fn default() -> Self {
        Self { count: 0, spans: [Span::NOTHING; LOOKAHEAD], places: [0; LOOKAHEAD] }
    }
}

impl RowLookahead {
    /// Looks at the paths at the start of `words`, up to an event; gives the groups that they have together.
    pub(super) fn look(&mut self, spans: &Spans, words: &[u32], memory: &mut LaneTable) -> usize {
        self.count = 0;
        for (&word, span) in words.iter().zip(&mut self.spans) {
            if word & EVENT != 0 {
                break;
            }
            *span = spans.get(word).unwrap_or(Span::NOTHING);
            self.count += 1;
        }
        let (mut groups, mut touched) = (0, 0);
        for (span, place) in self.spans.iter().zip(&mut self.places).take(self.count) {
            *place = 0;
            if span.bytes == 0 {
                continue;
            }
            *place = memory.place(span);
            groups += usize::from(span.bytes).div_ceil(GROUP_BYTES);
            touched ^= memory.groups.get(*place).map_or(0, |group| group.last[0]);
        }
        std::hint::black_box(touched);
        groups
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Each of them, and where its groups are.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.spans.iter().zip(self.places.iter().copied()).take(self.count)
    }
}
