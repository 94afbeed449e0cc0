//! The indirect-branch tables: where indirect jumps, calls and returns find their targets in the
//! code cache.
//!
//! Each translation mode has one table, hashed by the low bits of the application address. Its
//! slots hold the address of an *indirect entry*: code that compares the target with its fragment's
//! address and then continues in the fragment. Empty slots lead to the dispatcher, which translates
//! the target and adds it to the table.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use entity::AppPc;

use crate::cache_pc::CachePc;
use crate::emit::{Emitter, IndirectTable};
use crate::engine::Engine;
use crate::fragment::{Fragment, FragmentRef, FragmentStatus};
use crate::select::TranslationMode;

impl Engine {
    /// The indirect-branch table of a mode. Single blocks have none.
    pub(crate) fn table_of(&self, mode: TranslationMode) -> IndirectTable {
        let address = match mode {
            TranslationMode::Instrumented => self.table.address,
            TranslationMode::Uninstrumented => self.table.address + wire::TABLE_BYTES as u64,
            TranslationMode::SingleBlocks => 0,
        };
        IndirectTable { address, ..self.table }
    }

    pub(crate) fn table_slots(&self, mode: TranslationMode) -> &'static [AtomicU64] {
        let address = self.table_of(mode).address as usize;
        if self.table.address == 0 || address == 0 {
            return &[];
        }
        // SAFETY: the caller of `set_up` has promised tables of this size, for this use only, that
        // stay mapped.
        unsafe { core::slice::from_raw_parts(address as *const AtomicU64, wire::TABLE_BYTES / 8) }
    }

    /// The slot for indirect branches to `address`.
    pub(crate) fn table_slot(&self, mode: TranslationMode, address: AppPc) -> Option<&'static AtomicU64> {
        self.table_slots(mode).get(self.table.index(address))
    }

    pub fn table(&self) -> IndirectTable {
        self.table
    }

    /// Returns the address of a fragment's indirect entry, and makes one if there is none. `None`
    /// if there is no room for it.
    pub fn indirect_entry(&mut self, at: FragmentRef) -> Option<CachePc> {
        let fragment = self.fragment(at);
        if !fragment.indirect_entry.is_none() {
            return Some(fragment.indirect_entry);
        }
        let (address, body, id, mode) = (fragment.address, fragment.body, fragment.id, fragment.mode);
        let index = self.unit_near(body.get())?;
        let unit = &mut self.cache.units[index];
        unit.fragments.try_reserve(1).ok()?;
        let start = unit.code_next;
        // SAFETY: under the lock, and no thread jumps there before this function returns.
        let mut out = Emitter::new(unsafe { unit.room() }, start);
        out.indirect_entry(address);
        out.jump(body);
        out.align(8);
        let end = out.here();
        unit.code_next = end;
        unit.live += 1;
        // All of it lies before the body: a thread in it is between safe points.
        unit.fragments.push(Fragment {
            address,
            start,
            body: end,
            end,
            indirect_entry: start,
            id,
            samples: 0,
            early: 0,
            generation: 0,
            status: FragmentStatus::Live,
            checked: false,
            is_indirect_entry: true,
            mode,
            uninstrumented: false,
            unlinkable: false,
            first_map_entry: 0,
            map_entry_count: 0,
            block_count: 0,
            first_block: 0,
            first_exit: 0,
            exit_count: 0,
            stubs_end: CachePc::NONE,
            incoming: Vec::new(),
        });
        self.fragment_mut(at).indirect_entry = start;
        Some(start)
    }

    /// Makes indirect branches find this fragment in the table.
    pub fn add_to_table(&mut self, at: FragmentRef) {
        let Some(indirect_entry) = self.indirect_entry(at) else { return };
        let fragment = self.fragment(at);
        if let Some(slot) = self.table_slot(fragment.mode, fragment.address) {
            slot.store(indirect_entry.get(), Ordering::Release);
        }
    }

    /// Empties the slot for `address`, if it holds this indirect entry.
    pub(crate) fn remove_from_table(&self, mode: TranslationMode, address: AppPc, indirect_entry: CachePc) {
        if let Some(slot) = self.table_slot(mode, address) {
            let _ = slot.compare_exchange(indirect_entry.get(), self.missing, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Notes that a separate indirect entry is dropped, because its fragment is.
    pub(crate) fn drop_indirect_entry(&mut self, start: CachePc) {
        let Some(index) = self.cache.unit_of(start) else { return };
        let unit = &mut self.cache.units[index];
        let found = unit.fragments.binary_search_by_key(&start, |fragment| fragment.start);
        if let Ok(at) = found
            && unit.fragments[at].is_indirect_entry
            && core::mem::replace(&mut unit.fragments[at].status, FragmentStatus::Dropped) == FragmentStatus::Live
        {
            unit.live -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCH, MISSING, engine, jumps_to, page, transfer_at};
    use crate::translate::RegisterState;

    #[test]
    fn indirect_jumps_go_through_the_table() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, false).unwrap();
        let slot = engine.table_slot(TranslationMode::Instrumented, code).unwrap();
        assert_eq!(slot.load(Ordering::Relaxed), MISSING);
        engine.add_to_table(index);
        let indirect_entry = engine.fragment(index).indirect_entry;
        assert_eq!(slot.load(Ordering::Relaxed), indirect_entry.get());
        assert_eq!(engine.indirect_entry(index), Some(indirect_entry));
        let body = engine.fragment(index).body;
        let end = (0..64).map(|offset| indirect_entry + offset).find(|pc| transfer_at(*pc) == jumps_to(body));
        assert!(end.is_some());
        assert_eq!(engine.app_position(indirect_entry).unwrap().state, RegisterState::BetweenSafePoints);
        let live = |engine: &Engine| engine.cache.units.iter().map(|unit| unit.live).sum::<u32>();
        let before = live(&engine);
        engine.drop_fragment(index);
        assert_eq!(slot.load(Ordering::Relaxed), MISSING);
        assert_eq!(live(&engine), before - 2, "the fragment and its indirect entry");
    }
}
