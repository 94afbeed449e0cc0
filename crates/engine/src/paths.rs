//! The path table: fragment and data length of each path, by number.
//!
//! Path numbers only grow, and a long recording uses hundreds of millions of them, so the table
//! consists of pages. A page is freed when all of its paths have been reclaimed.

use alloc::vec::Vec;

use entity::PathId;

use crate::fragment::FragmentRef;

const PAGE_PATHS: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Entry {
    /// The fragment's reference plus one; 0 for none.
    fragment: u32,
    /// Words of data behind the path's word.
    data_words: u16,
}

struct Page {
    entries: Vec<Entry>,
    used: u32,
}

/// Fragments by the numbers of their paths.
pub(crate) struct PathTable {
    /// The first number.
    base: PathId,
    pages: Vec<Option<Page>>,
}

impl PathTable {
    pub const fn new() -> Self {
        Self { base: PathId::new(0), pages: Vec::new() }
    }

    /// Sets the number of the first path.
    pub fn set_base(&mut self, base: PathId) {
        self.base = base;
    }

    fn page_index(&self, path: PathId) -> Option<(usize, usize)> {
        let index = path.get().checked_sub(self.base.get())? as usize;
        Some((index / PAGE_PATHS, index % PAGE_PATHS))
    }

    fn entry(&self, path: PathId) -> Option<Entry> {
        let (page, at) = self.page_index(path)?;
        let entry = *self.pages.get(page)?.as_ref()?.entries.get(at)?;
        (entry.fragment != 0).then_some(entry)
    }

    /// The fragment that a path belongs to, if it has not been reclaimed.
    pub fn fragment(&self, path: PathId) -> Option<FragmentRef> {
        Some(FragmentRef(self.entry(path)?.fragment - 1))
    }

    /// Words of data behind the word of a path.
    pub fn data_words(&self, path: PathId) -> Option<u16> {
        Some(self.entry(path)?.data_words)
    }

    /// Makes room for `count` paths from `first` on. False if there is no memory.
    pub fn reserve(&mut self, first: PathId, count: usize) -> bool {
        let Some((page, at)) = self.page_index(first) else { return false };
        let end = page + (at + count).div_ceil(PAGE_PATHS);
        let missing = end.saturating_sub(self.pages.len());
        if self.pages.try_reserve(missing).is_err() {
            return false;
        }
        self.pages.extend((0..missing).map(|_| None));
        self.pages[page..end]
            .iter_mut()
            .all(|page| page.is_some() || new_page().is_some_and(|new| page.replace(new).is_none()))
    }

    /// Notes a path, for which there is room.
    pub fn insert(&mut self, path: PathId, fragment: FragmentRef, data_words: u16) {
        let Some((page, at)) = self.page_index(path) else { return };
        let Some(Some(page)) = self.pages.get_mut(page) else { return };
        page.used += u32::from(page.entries[at].fragment == 0);
        page.entries[at] = Entry { fragment: fragment.0 + 1, data_words };
    }

    /// Forgets a path. Newer paths may still come into its page only if the page is the last one.
    pub fn remove(&mut self, path: PathId) {
        let Some((index, at)) = self.page_index(path) else { return };
        let is_last = index + 1 == self.pages.len();
        let Some(slot) = self.pages.get_mut(index) else { return };
        let Some(page) = slot else { return };
        page.used -= u32::from(core::mem::take(&mut page.entries[at]).fragment != 0);
        if page.used == 0 && !is_last {
            *slot = None;
        }
    }

    /// Bytes that the table takes.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        let pages = self.pages.iter().flatten().count() * PAGE_PATHS * size_of::<Entry>();
        (pages + self.pages.capacity() * size_of::<Option<Page>>()) as u64
    }
}

fn new_page() -> Option<Page> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(PAGE_PATHS).ok()?;
    entries.resize(PAGE_PATHS, Entry::default());
    Some(Page { entries, used: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_until_they_are_removed() {
        let mut table = PathTable::new();
        let [before, first, second, third] = [6, 7, 8, 9].map(PathId::new);
        table.set_base(first);
        assert!(table.fragment(before).is_none() && table.fragment(first).is_none() && !table.reserve(before, 1));
        assert!(table.reserve(first, 3));
        table.insert(first, FragmentRef(0), 5);
        table.insert(second, FragmentRef(1), 0);
        assert_eq!((table.fragment(first), table.data_words(first)), (Some(FragmentRef(0)), Some(5)));
        assert_eq!((table.fragment(second), table.fragment(third)), (Some(FragmentRef(1)), None));
        table.remove(first);
        assert_eq!((table.fragment(first), table.data_words(first)), (None, None));
    }

    #[test]
    fn memory_does_not_grow_with_the_numbers() {
        let mut table = PathTable::new();
        table.set_base(PathId::new(1));
        let mut most = 0;
        for path in 1..2_000_000u32 {
            assert!(table.reserve(PathId::new(path), 1));
            table.insert(PathId::new(path), FragmentRef(path), 1);
            if let Some(old) = path.checked_sub(10_000).filter(|old| *old > 0) {
                table.remove(PathId::new(old));
            }
            most = most.max(table.pages.iter().flatten().count());
        }
        assert!(most <= 5, "{most} pages");
        assert_eq!(table.fragment(PathId::new(1_999_999)), Some(FragmentRef(1_999_999)));
    }
}
