//! Code that changes under us: unmapped, mapped anew, or written to.
//!
//! Fragments of a range whose mapping changes are dropped: nobody finds them any more, and whoever still jumps to one lands
//! in the dispatcher. Pages that are writable and executable at once are write-protected while fragments were made from them; a
//! write faults, drops the page's fragments and goes on. Writes through another mapping of the same memory are not seen.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::fragment::Engine;
use crate::{maps, sys};

pub const PAGE: u64 = 4096;

/// What is known about the pages that fragments were made from.
#[derive(Default)]
pub struct Pages {
    /// The fragments made from each page.
    fragments: BTreeMap<u64, Vec<u32>>,
    /// Ranges that the application may write to and execute.
    writable: Vec<(u64, u64)>,
    /// Pages of those that we have write-protected.
    guarded: BTreeSet<u64>,
}

impl Pages {
    pub const fn new() -> Self {
        Self { fragments: BTreeMap::new(), writable: Vec::new(), guarded: BTreeSet::new() }
    }

    /// Notes that a fragment was made from `[start, end)`.
    pub fn add(&mut self, fragment: u32, start: u64, end: u64) {
        for page in start / PAGE..=(end - 1) / PAGE {
            let list = self.fragments.entry(page).or_default();
            if list.last() != Some(&fragment) {
                list.push(fragment);
            }
        }
    }

    /// The fragments made from the page of `address`.
    pub fn made_from(&self, address: u64) -> &[u32] {
        self.fragments.get(&(address / PAGE)).map_or(&[], Vec::as_slice)
    }

    fn take(&mut self, start: u64, end: u64) -> Vec<u32> {
        let pages: Vec<u64> = self.fragments.range(start / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page).collect();
        pages.into_iter().filter_map(|page| self.fragments.remove(&page)).flatten().collect()
    }

    pub fn is_writable(&self, address: u64) -> bool {
        self.writable.iter().any(|(start, end)| (*start..*end).contains(&address))
    }

    /// Write-protects the page of `address`, if the application can write to it.
    pub fn guard(&mut self, address: u64) {
        if self.is_writable(address) && self.guarded.insert(address / PAGE) {
            // SAFETY: a write faults and finds its way to `Engine::written`.
            unsafe { sys::protect(address & !(PAGE - 1), PAGE, sys::PROT_READ | sys::PROT_EXEC) };
        }
    }

    fn unguard(&mut self, page: u64) {
        if self.guarded.remove(&page) {
            // SAFETY: what the application had asked for.
            unsafe { sys::protect(page * PAGE, PAGE, sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC) };
        }
    }

    fn forget(&mut self, start: u64, end: u64) {
        self.guarded.retain(|page| !(start / PAGE..end.div_ceil(PAGE)).contains(page));
        let mut kept = Vec::new();
        for (from, to) in self.writable.drain(..) {
            // What lies before and after the range stays.
            kept.extend([(from, to.min(start)), (from.max(end), to)].into_iter().filter(|(from, to)| from < to));
        }
        self.writable = kept;
    }
}

impl Engine {
    /// The mapping of a range has changed; it is now writable and executable, or not.
    pub fn remapped(&mut self, start: u64, length: u64, protection: u64) {
        let end = start.saturating_add(length);
        self.drop_range(start, end);
        self.pages.forget(start, end);
        if protection & (sys::PROT_WRITE | sys::PROT_EXEC) == sys::PROT_WRITE | sys::PROT_EXEC {
            self.pages.writable.push((start, end));
        }
    }

    /// Finds what is writable and executable already: an executable stack, or a program linked that way.
    pub fn find_writable_code(&mut self) {
        for (start, end) in maps::writable_code() {
            if !self.is_cache(start) && !self.pages.is_writable(start) {
                self.remapped(start, end - start, sys::PROT_WRITE | sys::PROT_EXEC);
            }
        }
    }

    fn drop_range(&mut self, start: u64, end: u64) -> bool {
        let fragments = self.pages.take(start, end);
        for &fragment in &fragments {
            self.drop_fragment(fragment);
        }
        !fragments.is_empty()
    }

    /// A write has faulted. True if it can be made again: the page was write-protected by us, or has just been released by
    /// another thread.
    pub fn written(&mut self, address: u64) -> bool {
        if !self.pages.is_writable(address) {
            return false;
        }
        let page = address / PAGE;
        self.drop_range(page * PAGE, (page + 1) * PAGE);
        self.pages.unguard(page);
        true
    }

    /// Lets the kernel write everywhere, for a system call that may have found a page write-protected. False if there are none.
    pub fn release_guarded(&mut self) -> bool {
        let any = !self.pages.guarded.is_empty();
        for page in core::mem::take(&mut self.pages.guarded) {
            self.pages.guarded.insert(page);
            self.drop_range(page * PAGE, (page + 1) * PAGE);
            self.pages.unguard(page);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(writable: &[(u64, u64)]) -> Pages {
        Pages { writable: writable.to_vec(), ..Pages::new() }
    }

    #[test]
    fn fragments_are_found_by_every_page_they_touch() {
        let mut pages = Pages::new();
        pages.add(1, PAGE - 1, PAGE);
        pages.add(2, PAGE - 1, PAGE + 1);
        pages.add(3, 2 * PAGE, 3 * PAGE);
        pages.add(3, 2 * PAGE + 8, 2 * PAGE + 16);
        assert_eq!(pages.take(3 * PAGE, 9 * PAGE), [0; 0]);
        assert_eq!(pages.take(PAGE, PAGE + 1), [2]);
        assert_eq!(pages.take(0, 10 * PAGE), [1, 2, 3]);
        assert_eq!(pages.take(0, 10 * PAGE), [0; 0]);
    }

    proptest! {
        /// Against a set of all addresses, on a small scale.
        #[test]
        fn forgetting_leaves_the_rest(ranges in prop::collection::vec((0u64..40, 1u64..20), 0..5), start in 0u64..40, length in 0u64..30) {
            let ranges: Vec<_> = ranges.iter().map(|(start, length)| (start * PAGE, (start + length) * PAGE)).collect();
            let mut pages = pages(&ranges);
            let guarded: BTreeSet<u64> = (0..64).filter(|page| pages.is_writable(page * PAGE)).collect();
            pages.guarded = guarded.clone();
            let end = start + length;
            pages.forget(start * PAGE, end * PAGE);
            for page in 0..64 {
                let expected = guarded.contains(&page) && !(start..end).contains(&page);
                prop_assert_eq!(pages.is_writable(page * PAGE), expected);
                prop_assert_eq!(pages.guarded.contains(&page), expected);
            }
        }
    }

    /// What the kernel says about a page, as in `rwxp`.
    fn permissions(address: u64) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address)
        });
        line.unwrap().split(' ').nth(1).unwrap().into()
    }

    #[test]
    fn guarding_protects_one_page_until_it_is_written_to() {
        let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
        let start = sys::map(0, 3 * PAGE, protection, 0).unwrap();
        let mut pages = pages(&[(start, start + 2 * PAGE)]);
        let all = |start: u64| [0, 1, 2].map(|page| permissions(start + page * PAGE));
        pages.guard(start + PAGE + 5);
        pages.guard(start + PAGE + 500);
        pages.guard(start + 2 * PAGE);
        assert_eq!(all(start), ["rwxp", "r-xp", "rwxp"], "only what is known as writable is guarded");
        assert_eq!(pages.guarded.len(), 1);
        pages.unguard(start / PAGE);
        pages.unguard(start / PAGE + 1);
        assert_eq!(all(start), ["rwxp"; 3]);
        assert!(pages.guarded.is_empty());
    }
}
