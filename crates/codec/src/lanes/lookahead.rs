//! Looks up the histories of many rows in advance, so that the processor fetches them side by side.

use wire::word;

use super::{DataLayout, DataLayouts, GROUP_BYTES, LaneTable};

/// Rows that are looked up in one go.
const LOOKAHEAD: usize = 64;

/// The layouts of the next paths, and the positions of their groups.
#[derive(Debug)]
pub(super) struct RowLookahead<L> {
    count: usize,
    layouts: [L; LOOKAHEAD],
    places: [usize; LOOKAHEAD],
}

impl<L: DataLayout> Default for RowLookahead<L> {
    fn default() -> Self {
        Self { count: 0, layouts: [L::EMPTY; LOOKAHEAD], places: [0; LOOKAHEAD] }
    }
}

impl<L: DataLayout> RowLookahead<L> {
    /// Looks up the paths at the start of `words`, up to an event; returns the number of their
    /// groups.
    pub(super) fn look(
        &mut self,
        layouts: &impl DataLayouts<Layout = L>,
        words: &[u32],
        memory: &mut LaneTable,
    ) -> usize {
        self.count = 0;
        for (&word, layout) in words.iter().zip(&mut self.layouts) {
            let Some(path) = word::path(word) else { break };
            *layout = layouts.layout(path).unwrap_or(L::EMPTY);
            self.count += 1;
        }
        let (mut groups, mut touched) = (0, 0);
        for (layout, place) in self.layouts.iter().zip(&mut self.places).take(self.count) {
            *place = 0;
            if layout.bytes() == 0 {
                continue;
            }
            *place = memory.place(layout);
            groups += usize::from(layout.bytes()).div_ceil(GROUP_BYTES);
            touched ^= memory.groups.get(*place).map_or(0, |group| group.last[0]);
        }
        std::hint::black_box(touched);
        groups
    }

    /// Returns the number of paths.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Iterates the layout of each path and the position of its groups.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (&L, usize)> {
        self.layouts.iter().zip(self.places.iter().copied()).take(self.count)
    }
}
