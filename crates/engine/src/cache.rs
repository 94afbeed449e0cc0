//! Memory for translated code.
//!
//! RIP-relative operands and direct jumps reach two gigabytes, so each neighbourhood of application code has regions of its
//! own, mapped where both reach each other. In a region, code grows upwards and the stubs of exits downwards.

use alloc::vec::Vec;

use crate::{own, sys};

const REGION_BYTES: u64 = 64 << 20;
/// How far application code may be from a region: two gigabytes less room for the region and for a module's data.
const REACH: u64 = (2 << 30) - (256 << 20);
/// Translated code is large and jumps about: huge pages spare the instruction TLB.
const HUGE_PAGE: u64 = 2 << 20;
/// A region with less room than this is full.
const ROOM_MIN: u64 = 256 << 10;

pub struct Region {
    pub start: u64,
    pub end: u64,
    pub code_next: u64,
    pub stubs_next: u64,
    /// The fragments in it, in order of address.
    pub fragments: Vec<u32>,
}

impl Region {
    fn reaches(&self, pc: u64) -> bool {
        self.start.abs_diff(pc) < REACH && self.end.abs_diff(pc) < REACH
    }

    fn has_room(&self) -> bool {
        self.stubs_next - self.code_next >= ROOM_MIN
    }

    /// The free room between code and stubs.
    ///
    /// # Safety
    /// One user at a time; nothing in it is executed before it has been written.
    pub unsafe fn room(&self) -> &'static mut [u8] {
        let length = (self.stubs_next - self.code_next) as usize;
        // SAFETY: the region is mapped for good, and nobody else uses its free room (the caller's promise).
        unsafe { core::slice::from_raw_parts_mut(self.code_next as *mut u8, length) }
    }
}

#[derive(Default)]
pub struct Cache {
    pub regions: Vec<Region>,
}

impl Cache {
    pub const fn new() -> Self {
        Self { regions: Vec::new() }
    }

    /// Index of a region with room, near `pc`.
    pub fn region_near(&mut self, pc: u64) -> Option<usize> {
        let found = self.regions.iter().rposition(|region| region.reaches(pc) && region.has_room());
        found.or_else(|| self.add_region(pc))
    }

    fn add_region(&mut self, pc: u64) -> Option<usize> {
        const STEP: i64 = 256 << 20;
        // Below first: the heap of an executable grows upwards, libraries are mapped downwards, far from either.
        let distances = [-2, -3, -4, -5, -1, 6, 5, 4, 3, 2, 1, -6, 0];
        let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
        let page = pc & !(HUGE_PAGE - 1);
        for distance in distances.map(|steps| steps * STEP) {
            let Some(start) = page.checked_add_signed(distance).filter(|start| *start >= 1 << 16) else { continue };
            let flags = sys::MAP_FIXED_NOREPLACE | sys::MAP_NORESERVE;
            let Some(address) = sys::map(start, REGION_BYTES, protection, flags) else { continue };
            let end = address + REGION_BYTES;
            sys::keep_private(address, REGION_BYTES);
            let region = Region { start: address, end, code_next: address, stubs_next: end, fragments: Vec::new() };
            if !region.reaches(pc) {
                // An old kernel takes the address for a hint only.
                // SAFETY: mapped just now.
                unsafe { sys::unmap(address, REGION_BYTES) };
                continue;
            }
            sys::prefer_huge_pages(address, REGION_BYTES);
            own::add(address, REGION_BYTES);
            self.regions.push(region);
            return Some(self.regions.len() - 1);
        }
        None
    }

    pub fn region_of_mut(&mut self, address: u64) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| (region.start..region.end).contains(&address))
    }

    /// The region that `address` is in.
    pub fn region_of(&self, address: u64) -> Option<&Region> {
        self.regions.iter().find(|region| (region.start..region.end).contains(&address))
    }
}
