//! Code that changes: it is unmapped, mapped again, or written to.
//!
//! Fragments of a range whose mapping changes are dropped. For memory that stays mapped, it depends
//! on how it can be written to:
//!
//! * Pages that are executable but not writable cannot change. While a page is writable and not
//!   executable, its fragments are suspended: they stay valid if the page has the same content when
//!   it is executable again.
//! * Pages that are both are write-protected (*guarded*) while there are fragments of them. A write
//!   faults, drops the page's fragments and continues.
//! * Pages with several such faults stay writable, and their fragments compare the code at every
//!   entry (see `translate::check`). So do fragments of shared mappings, which may be written to at
//!   another address or by another process. If such code is hot, its page is guarded again, a few
//!   times.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

use entity::{AppPc, FragmentId};

use crate::engine::Engine;
use crate::maps::{self, Mapping};
use crate::{memory, sys, translate};

pub const PAGE: u64 = 4096;

/// A page is no longer guarded after this many faults.
const FAULTS_MAX: u8 = 8;
/// How often a page is guarded again.
const RETRIES_MAX: u8 = 3;

/// Disjoint ranges of addresses.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn insert(&mut self, start: u64, end: u64) {
        self.remove(start, end);
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// Removes a range. Parts of ranges before and after it stay.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&from, &to)) = self.0.range(..end).next_back().filter(|&(_, &to)| to > start) {
            self.0.remove(&from);
            let rest = [(from, start.min(to)), (from.max(end), to)];
            for (from, to) in rest.into_iter().filter(|(from, to)| from < to) {
                self.0.insert(from, to);
            }
            if from < start {
                break;
            }
        }
    }

    /// The range that `address` is in.
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.0.range(..=address).next_back()?;
        (address < end).then_some((start, end))
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, &to)| to > start)
    }
}

/// The pages that fragments were made from.
#[derive(Default)]
pub struct Pages {
    /// The fragments made from each page.
    fragments: BTreeMap<u64, Vec<FragmentId>>,
    /// Ranges that the application may write to and execute.
    writable: Ranges,
    /// Mappings that are shared, with another mapping or another process.
    shared: Ranges,
    /// Writable pages that the engine has write-protected.
    guarded: BTreeSet<u64>,
    /// Writable pages that were written to while they were guarded.
    written: BTreeMap<u64, WriteHistory>,
    /// Pages whose fragments are suspended, and digests of their contents.
    suspended: BTreeMap<u64, u64>,
    /// Whether a page was ever guarded.
    pub any_guarded: bool,
}

#[derive(Clone, Copy, Default)]
struct WriteHistory {
    faults: u8,
    retries: u8,
    /// The page is not guarded; its code is compared.
    checked: bool,
}

impl Pages {
    pub const fn new() -> Self {
        Self {
            fragments: BTreeMap::new(),
            writable: Ranges::new(),
            shared: Ranges::new(),
            guarded: BTreeSet::new(),
            written: BTreeMap::new(),
            suspended: BTreeMap::new(),
            any_guarded: false,
        }
    }

    /// Notes that a fragment was made from this memory.
    pub fn add(&mut self, fragment: FragmentId, memory: Range<u64>) {
        for page in memory.start / PAGE..=(memory.end - 1) / PAGE {
            let list = self.fragments.entry(page).or_default();
            if list.last() != Some(&fragment) {
                list.push(fragment);
            }
        }
    }

    /// Forgets that a fragment was made from this memory.
    pub fn remove(&mut self, fragment: FragmentId, memory: Range<u64>) {
        for page in memory.start / PAGE..=(memory.end - 1) / PAGE {
            let Some(list) = self.fragments.get_mut(&page) else { continue };
            if let Some(at) = list.iter().position(|entry| *entry == fragment) {
                list.swap_remove(at);
            }
            if list.is_empty() {
                self.fragments.remove(&page);
            }
        }
    }

    /// The fragments made from the page of `address`.
    pub fn made_from(&self, address: AppPc) -> &[FragmentId] {
        self.fragments.get(&(address.get() / PAGE)).map_or(&[], Vec::as_slice)
    }

    fn take(&mut self, start: u64, end: u64) -> Vec<FragmentId> {
        let pages = self.pages_in(start, end);
        pages.into_iter().filter_map(|page| self.fragments.remove(&page)).flatten().collect()
    }

    /// The pages of a range that have fragments.
    fn pages_in(&self, start: u64, end: u64) -> Vec<u64> {
        self.fragments.range(start / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page).collect()
    }

    pub fn is_writable(&self, address: u64) -> bool {
        self.writable.find(address).is_some()
    }

    pub fn is_shared(&self, address: u64) -> bool {
        self.shared.find(address).is_some()
    }

    /// Whether code in `[start, end)` may change unnoticed.
    pub fn is_checked(&self, start: u64, end: u64) -> bool {
        let mut written = self.written.range(start / PAGE..end.div_ceil(PAGE));
        self.shared.overlaps(start, end) || written.any(|(_, written)| written.checked)
    }

    /// The same for the block that begins at `address`.
    pub fn is_checked_block(&self, address: AppPc, code: &[u8]) -> bool {
        let is_checked = |length: usize| self.is_checked(address.get(), address.get() + length as u64);
        // The first test is cheap, and nearly always false.
        is_checked(code.len()) && is_checked(translate::check::length(address, code))
    }

    /// Write-protects the page of `address`, if the application can write to it.
    pub fn guard(&mut self, address: u64) {
        let start = address & !(PAGE - 1);
        if self.is_writable(address) && !self.is_checked(start, start + PAGE) && self.guarded.insert(address / PAGE) {
            self.any_guarded = true;
            // SAFETY: the application's writes fault, and `Engine::on_write_fault` makes them
            // possible again.
            unsafe { sys::protect(start, PAGE, sys::PROT_READ | sys::PROT_EXEC) };
        }
    }

    fn unguard(&mut self, page: u64) {
        if self.guarded.remove(&page) {
            // SAFETY: what the application had asked for.
            unsafe { sys::protect(page * PAGE, PAGE, sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC) };
        }
    }

    /// Counts a fault of a guarded page.
    fn count_fault(&mut self, page: u64) {
        let written = self.written.entry(page).or_default();
        written.faults += 1;
        if written.faults >= FAULTS_MAX {
            written.checked = true;
        }
    }

    /// Removes what depends on the protection of a range.
    fn forget_protection(&mut self, start: u64, end: u64) {
        let pages = start / PAGE..end.div_ceil(PAGE);
        remove_range(&mut self.written, &pages);
        let guarded: Vec<u64> = self.guarded.range(pages).copied().collect();
        for page in guarded {
            self.guarded.remove(&page);
        }
        self.writable.remove(start, end);
    }

    /// Removes everything that is known of a range.
    fn forget(&mut self, start: u64, end: u64) {
        self.forget_protection(start, end);
        self.shared.remove(start, end);
        remove_range(&mut self.suspended, &(start / PAGE..end.div_ceil(PAGE)));
    }
}

fn remove_range<T>(map: &mut BTreeMap<u64, T>, range: &Range<u64>) {
    let keys: Vec<u64> = map.range(range.clone()).map(|(key, _)| *key).collect();
    for key in keys {
        map.remove(&key);
    }
}

/// A digest of a page's contents; `None` if it cannot be read.
fn digest(page: u64) -> Option<u64> {
    let mut bytes = [0; PAGE as usize];
    if memory::read_bytes(page * PAGE, &mut bytes) < bytes.len() {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    Some(words.iter().fold(0, |digest, word| mix(digest, u64::from_le_bytes(*word))))
}

fn mix(digest: u64, word: u64) -> u64 {
    let mixed = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

const WRITABLE_CODE: u64 = sys::PROT_WRITE | sys::PROT_EXEC;

impl Engine {
    /// Notes that a range has been mapped or unmapped, with this protection.
    pub fn on_remap(&mut self, start: u64, length: u64, protection: u64) {
        let end = start.saturating_add(length);
        self.drop_range(start, end);
        self.pages.forget(start, end);
        if protection & WRITABLE_CODE == WRITABLE_CODE {
            self.pages.writable.insert(start, end);
        }
    }

    /// Notes a shared mapping, which others may write to.
    pub fn add_shared(&mut self, start: u64, length: u64) {
        self.pages.shared.insert(start, start.saturating_add(length));
    }

    /// The length of the shared mapping at `start`, as it was mapped.
    pub fn shared_length(&self, start: u64) -> Option<u64> {
        self.pages.shared.find(start).map(|(_, end)| end - start)
    }

    /// Suspends the fragments of a range whose protection is about to change.
    pub fn suspend_fragments(&mut self, start: u64, length: u64) {
        for page in self.pages.pages_in(start, start.saturating_add(length)) {
            if self.pages.suspended.contains_key(&page) {
                continue;
            }
            match digest(page) {
                Some(digest) => drop(self.pages.suspended.insert(page, digest)),
                None => drop(self.drop_page(page)),
            }
        }
    }

    /// Notes that the protection of a range has changed.
    pub fn on_protect(&mut self, start: u64, length: u64, protection: u64) {
        let end = start.saturating_add(length);
        self.pages.forget_protection(start, end);
        if protection & WRITABLE_CODE == WRITABLE_CODE {
            self.remember_writable(start, end);
        } else if protection & sys::PROT_EXEC != 0 {
            self.revalidate_fragments(start, end);
        }
    }

    /// Notes that the protection of a range could not be changed.
    pub fn on_protect_failed(&mut self, start: u64, length: u64) {
        self.revalidate_fragments(start, start.saturating_add(length));
    }

    fn remember_writable(&mut self, start: u64, end: u64) {
        self.drop_range(start, end);
        remove_range(&mut self.pages.suspended, &(start / PAGE..end.div_ceil(PAGE)));
        self.pages.writable.insert(start, end);
    }

    /// Ends the suspension of a range: drops fragments of pages whose contents have changed.
    fn revalidate_fragments(&mut self, start: u64, end: u64) {
        let pages = start / PAGE..end.div_ceil(PAGE);
        let suspended: Vec<(u64, u64)> =
            self.pages.suspended.range(pages.clone()).map(|(page, digest)| (*page, *digest)).collect();
        remove_range(&mut self.pages.suspended, &pages);
        for (page, before) in suspended {
            if digest(page) != Some(before) {
                self.drop_page(page);
            }
        }
    }

    /// Reads from the kernel which mappings are executable and writable or shared.
    pub fn find_writable_code(&mut self) {
        self.add_writable_code(maps::executable().into_iter());
    }

    /// Adds mappings that are executable and writable or shared, as an executable stack is.
    pub fn add_writable_code(&mut self, mappings: impl Iterator<Item = Mapping>) {
        for mapping in mappings {
            if self.is_cache(mapping.start) {
                continue;
            }
            if mapping.is_shared && !self.pages.is_shared(mapping.start) {
                self.add_shared(mapping.start, mapping.end - mapping.start);
            }
            if mapping.is_writable && !self.pages.is_writable(mapping.start) {
                self.remember_writable(mapping.start, mapping.end);
            }
        }
    }

    fn drop_page(&mut self, page: u64) -> bool {
        self.drop_range(page * PAGE, (page + 1) * PAGE)
    }

    pub fn drop_range(&mut self, start: u64, end: u64) -> bool {
        let fragments = self.pages.take(start, end);
        for &fragment in &fragments {
            self.drop_by_id(fragment);
        }
        !fragments.is_empty()
    }

    /// Handles the fault of a write. True if the write can be repeated: the page was guarded.
    pub fn on_write_fault(&mut self, address: u64) -> bool {
        let page = address / PAGE;
        if !self.pages.guarded.contains(&page) {
            return false;
        }
        self.drop_page(page);
        self.pages.count_fault(page);
        self.pages.unguard(page);
        true
    }

    /// Guards the page of hot code that is compared at every entry again, unless that has been
    /// tried too often.
    pub fn retry_guard(&mut self, address: AppPc) -> bool {
        let page = address.get() / PAGE;
        let Some(written) = self.pages.written.get_mut(&page) else { return false };
        if !written.checked || written.retries == RETRIES_MAX {
            return false;
        }
        *written = WriteHistory { faults: 0, retries: written.retries + 1, checked: false };
        self.drop_page(page)
    }

    /// Unguards all pages, for a system call that may have met one. False if there are none.
    pub fn release_guarded(&mut self) -> bool {
        let any = !self.pages.guarded.is_empty();
        for page in core::mem::take(&mut self.pages.guarded) {
            self.pages.guarded.insert(page);
            self.drop_page(page);
            self.pages.unguard(page);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use entity::PathId;
    use proptest::prelude::*;

    use super::*;

    fn pages(writable: &[(u64, u64)]) -> Pages {
        let mut pages = Pages::new();
        for &(start, end) in writable {
            pages.writable.insert(start, end);
        }
        pages
    }

    #[test]
    fn fragments_are_found_by_every_page_they_touch() {
        let mut pages = Pages::new();
        let [first, second, third] = [1, 2, 3].map(|first_path| FragmentId::new(PathId::new(first_path)));
        pages.add(first, PAGE - 1..PAGE);
        pages.add(second, PAGE - 1..PAGE + 1);
        pages.add(third, 2 * PAGE..3 * PAGE);
        pages.add(third, 2 * PAGE + 8..2 * PAGE + 16);
        assert_eq!(pages.take(3 * PAGE, 9 * PAGE), []);
        assert_eq!(pages.take(PAGE, PAGE + 1), [second]);
        assert_eq!(pages.take(0, 10 * PAGE), [first, second, third]);
        assert_eq!(pages.take(0, 10 * PAGE), []);
    }

    /// One that is executed while the code is not there any more.
    fn fault(pages: &mut Pages, page: u64) {
        pages.guarded.insert(page);
        pages.count_fault(page);
        pages.guarded.remove(&page);
    }

    #[test]
    fn pages_that_are_written_to_again_and_again_are_checked() {
        let mut pages = pages(&[(0, 4 * PAGE)]);
        for _ in 1..FAULTS_MAX {
            fault(&mut pages, 1);
            assert!(!pages.is_checked(0, 4 * PAGE));
        }
        fault(&mut pages, 1);
        assert!(pages.is_checked(0, PAGE + 1) && !pages.is_checked(0, PAGE) && !pages.is_checked(2 * PAGE, 4 * PAGE));
        pages.forget(PAGE, PAGE + 1);
        assert!(!pages.is_checked(0, 4 * PAGE), "another mapping begins anew");
    }

    #[test]
    fn shared_memory_is_checked() {
        let mut pages = pages(&[(0, 4 * PAGE)]);
        pages.shared.insert(PAGE, 2 * PAGE);
        assert!(pages.is_checked(PAGE + 5, PAGE + 6) && !pages.is_checked(0, PAGE));
        let code = [0x90, 0xc3, 0x90, 0x90];
        let is_checked = |address| pages.is_checked_block(AppPc::new(address), &code);
        assert!(is_checked(PAGE - 1) && !is_checked(PAGE - 2));
        pages.guard(PAGE);
        assert!(pages.guarded.is_empty(), "protecting one mapping of several is of no use");
    }

    proptest! {
        /// Against a set of all addresses, on a small scale.
        #[test]
        fn forgetting_a_range_keeps_the_rest(
            ranges in prop::collection::vec((0u64..40, 1u64..20), 0..5),
            start in 0u64..40,
            length in 0u64..30,
        ) {
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
