//! The code cache: memory for fragments.
//!
//! RIP-relative operands and direct jumps reach 2 GiB, so each neighbourhood of application code
//! has *regions* of its own within that distance. A region is divided into *units*. In a unit,
//! fragments grow upwards and exit stubs downwards. A unit also has the tables of its fragments, so
//! that all of it is reclaimed at once: see [`crate::reclaim`].

use alloc::vec::Vec;

use crate::cache_pc::CachePc;
use crate::fragment::{BlockSpan, Fragment};
use crate::link::ExitLink;
use crate::translate::MapEntry;
use crate::{engine_memory, sys};

const REGION_BYTES: u64 = 64 << 20;
/// One huge page, for the sake of the instruction TLB.
pub const UNIT_BYTES: u64 = 2 << 20;
const REGION_UNITS: usize = (REGION_BYTES / UNIT_BYTES) as usize;
/// How far application code may be from a region: 2 GiB less room for the region and for a module's
/// data.
const REACH: u64 = (2 << 30) - (256 << 20);
/// A unit with less room than this is full: half of it for the code of a fragment, half for its
/// stubs.
const ROOM_MIN: u64 = 256 << 10;

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitState {
    /// There is nothing in it.
    Free,
    /// New fragments go there.
    Filling,
    Full,
    /// All of its fragments are dropped. Threads that have entered the cache up to this epoch may
    /// still execute them.
    Retired(u64),
}

pub struct Unit {
    pub start: CachePc,
    pub end: CachePc,
    pub code_next: CachePc,
    pub stubs_next: CachePc,
    pub state: UnitState,
    /// Number of the opening: units opened later have higher ones.
    pub opened: u64,
    /// Its fragments in order of address, and how many of them are live.
    pub fragments: Vec<Fragment>,
    pub live: u32,
    /// Exits, translation map and blocks of these fragments.
    pub exits: Vec<ExitLink>,
    pub map: Vec<MapEntry>,
    pub blocks: Vec<BlockSpan>,
}

impl Unit {
    const fn new(start: u64) -> Self {
        let (start, end) = (CachePc::new(start), CachePc::new(start + UNIT_BYTES));
        Self {
            start,
            end,
            code_next: start,
            stubs_next: end,
            state: UnitState::Free,
            opened: 0,
            fragments: Vec::new(),
            live: 0,
            exits: Vec::new(),
            map: Vec::new(),
            blocks: Vec::new(),
        }
    }

    fn reaches(&self, address: u64) -> bool {
        self.start.get().abs_diff(address) < REACH && self.end.get().abs_diff(address) < REACH
    }

    pub fn has_room(&self) -> bool {
        self.stubs_next - self.code_next >= ROOM_MIN
    }

    /// The free memory between code and stubs.
    ///
    /// # Safety
    /// One user at a time; nothing in it is executed before it has been written.
    pub unsafe fn room(&mut self) -> &mut [u8] {
        let length = (self.stubs_next - self.code_next) as usize;
        // SAFETY: the unit is mapped for good, and no other code uses its free room (the caller's
        // promise).
        unsafe { core::slice::from_raw_parts_mut(self.code_next.get() as *mut u8, length) }
    }

    /// Bytes that it takes, with its tables.
    pub fn bytes(&self) -> u64 {
        let tables = self.fragments.capacity() * size_of::<Fragment>()
            + self.exits.capacity() * size_of::<ExitLink>()
            + self.map.capacity() * size_of::<MapEntry>()
            + self.blocks.capacity() * size_of::<BlockSpan>();
        (self.code_next - self.start) + (self.end - self.stubs_next) + tables as u64
    }

    /// Frees the unit. Its tables keep their memory.
    pub fn clear(&mut self) {
        self.fragments.clear();
        self.exits.clear();
        self.map.clear();
        self.blocks.clear();
        (self.code_next, self.stubs_next) = (self.start, self.end);
        (self.state, self.live) = (UnitState::Free, 0);
    }
}

#[derive(Default)]
pub struct Cache {
    /// The units of all regions, region by region.
    pub units: Vec<Unit>,
    /// The units that are being filled: one for each neighbourhood.
    filling: Vec<usize>,
    opened: u64,
}

impl Cache {
    pub const fn new() -> Self {
        Self { units: Vec::new(), filling: Vec::new(), opened: 0 }
    }

    /// Index of a unit with room, near `address`, that is being filled.
    pub fn filling(&self, address: u64) -> Option<usize> {
        let fits = |index: &&usize| self.units[**index].reaches(address) && self.units[**index].has_room();
        self.filling.iter().rfind(fits).copied()
    }

    /// Opens a free unit near `address`, in a new region if there is none. `None` if there is no
    /// room.
    pub fn open(&mut self, address: u64) -> Option<usize> {
        let free =
            |units: &[Unit]| units.iter().position(|unit| unit.state == UnitState::Free && unit.reaches(address));
        let index = match free(&self.units) {
            Some(index) => index,
            None => self.add_region(address).then(|| free(&self.units))??,
        };
        self.filling.try_reserve(1).ok()?;
        let units = &mut self.units;
        self.filling.retain(|&full| {
            let has_room = units[full].has_room();
            if !has_room {
                units[full].state = UnitState::Full;
            }
            has_room
        });
        self.filling.push(index);
        self.opened += 1;
        (self.units[index].state, self.units[index].opened) = (UnitState::Filling, self.opened);
        Some(index)
    }

    fn add_region(&mut self, near: u64) -> bool {
        const STEP: i64 = 256 << 20;
        if self.units.try_reserve(REGION_UNITS).is_err() {
            return false;
        }
        // Below first: the heap of an executable grows upwards, libraries are mapped downwards, far
        // from either.
        let distances = [-2, -3, -4, -5, -1, 6, 5, 4, 3, 2, 1, -6, 0];
        let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
        let page = near & !(UNIT_BYTES - 1);
        let coarse = distances.into_iter().map(|steps| steps * STEP);
        let most = (REACH / REGION_BYTES) as i64;
        let fine = (-most..most).map(|steps| steps * REGION_BYTES as i64);
        for distance in coarse.chain(fine) {
            let Some(start) = page.checked_add_signed(distance).filter(|start| *start >= 1 << 16) else { continue };
            let flags = sys::MAP_FIXED_NOREPLACE | sys::MAP_NORESERVE;
            let Some(address) = sys::map(start, REGION_BYTES, protection, flags) else { continue };
            sys::keep_private(address, REGION_BYTES);
            if !Unit::new(address).reaches(near) || !Unit::new(address + REGION_BYTES - UNIT_BYTES).reaches(near) {
                // An old kernel takes the address for a hint only.
                // SAFETY: mapped just now.
                unsafe { sys::unmap(address, REGION_BYTES) };
                continue;
            }
            sys::prefer_huge_pages(address, REGION_BYTES);
            engine_memory::register(address, REGION_BYTES);
            self.units.extend((0..REGION_UNITS as u64).map(|index| Unit::new(address + index * UNIT_BYTES)));
            return true;
        }
        false
    }

    /// The index of the unit that `pc` is in; `None` if that is not in the code cache.
    pub fn unit_of(&self, pc: CachePc) -> Option<usize> {
        let offset = |region: &[Unit]| Some(pc - region.first()?.start).filter(|offset| *offset < REGION_BYTES);
        let mut regions = self.units.chunks(REGION_UNITS).enumerate();
        regions.find_map(|(index, region)| Some(index * REGION_UNITS + (offset(region)? / UNIT_BYTES) as usize))
    }
}
