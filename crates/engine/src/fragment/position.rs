//! The translation map: from an address in the code cache to the application's address and
//! registers.
//!
//! The translator makes the entries ([`crate::translate::MapEntry`]); signal handlers ask here what
//! a fragment was doing when it was interrupted.

use entity::{AppPc, FragmentId};

use super::{FragmentStatus, NO_FRAGMENT};
use crate::cache_pc::CachePc;
use crate::engine::Engine;
use crate::translate::RegisterState;

/// The application's position and registers at an address of the code cache.
pub struct AppPosition {
    /// The next instruction.
    pub pc: AppPc,
    pub state: RegisterState,
    /// What has been executed since the last recorded word.
    pub progress: Progress,
}

/// How far a thread has come in a fragment: the fragment (or `NO_FRAGMENT`), its completed blocks,
/// and the bytes of data that are stored.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    pub fragment: FragmentId,
    pub blocks: u32,
    pub data: u32,
}

impl Progress {
    /// Whether it is in a fragment.
    pub fn has_fragment(&self) -> bool {
        self.fragment != NO_FRAGMENT
    }
}

impl Engine {
    /// Whether memory is the code cache's.
    pub fn is_cache(&self, address: u64) -> bool {
        self.cache.unit_of(CachePc::new(address)).is_some()
    }

    /// Looks an address up in the translation map. `None` if it is not in the code cache.
    pub fn app_position(&self, pc: CachePc) -> Option<AppPosition> {
        let unit = &self.cache.units[self.cache.unit_of(pc)?];
        let after = unit.fragments.partition_point(|fragment| fragment.start <= pc);
        let between =
            AppPosition { pc: AppPc::NONE, state: RegisterState::BetweenSafePoints, progress: Progress::default() };
        let Some(fragment) = after.checked_sub(1).and_then(|at| unit.fragments.get(at)) else { return Some(between) };
        if pc < fragment.body || pc >= fragment.end {
            return Some(between);
        }
        let offset = (pc - fragment.body) as u16;
        let entries = &unit.map[fragment.first_map_entry as usize..][..usize::from(fragment.map_entry_count)];
        // The entry of a fragment is always a safe point. A loop of engine code alone has no other.
        let after = if offset == 0 { 1 } else { entries.partition_point(|entry| entry.cache <= offset) };
        let Some(entry) = after.checked_sub(1).and_then(|at| entries.get(at)) else { return Some(between) };
        let block = unit.blocks[fragment.first_block as usize + usize::from(entry.block)];
        Some(AppPosition {
            pc: block.address + u64::from(entry.offset),
            state: entry.state,
            progress: Progress { fragment: fragment.id, blocks: u32::from(entry.block), data: u32::from(entry.data) },
        })
    }

    /// Whether the fragment at this position has not been dropped since.
    pub fn is_current(&self, position: &AppPosition) -> bool {
        let at = self.reference(position.progress.fragment);
        at.is_some_and(|at| self.fragment(at).status != FragmentStatus::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{BRANCH, JUMP_TO_ITSELF, engine, page};

    #[test]
    fn every_address_of_a_fragment_is_known() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, true).unwrap();
        let fragment = engine.fragment(index);
        assert!(engine.app_position(CachePc::new(code.get())).is_none());
        let pcs = |from: CachePc, to: CachePc| (0..to - from).map(move |offset| from + offset);
        for pc in pcs(fragment.start, fragment.body) {
            assert_eq!(engine.app_position(pc).unwrap().state, RegisterState::BetweenSafePoints);
        }
        let position = engine.app_position(fragment.body).unwrap();
        assert_eq!((position.pc, position.state), (code, RegisterState::Cursor));
        assert_eq!(position.progress.fragment, fragment.id);
        assert!(engine.is_current(&position));
        let seen: Vec<AppPc> = pcs(fragment.body, fragment.end)
            .filter_map(|pc| {
                engine.app_position(pc).filter(|position| position.state != RegisterState::BetweenSafePoints)
            })
            .map(|position| position.pc)
            .collect();
        assert!(seen.is_sorted() && seen.contains(&code) && seen.contains(&(code + 3)));
        let unit = engine.cache.unit_of(fragment.body).unwrap();
        assert_eq!(
            engine.app_position(engine.cache.units[unit].stubs_next).unwrap().state,
            RegisterState::BetweenSafePoints
        );
    }

    /// A jump to itself is translated to engine code alone: its entry is the only safe point.
    #[test]
    fn the_entry_of_a_fragment_is_a_safe_point() {
        let mut engine = engine();
        for data in [wire::DATA_NONE, wire::DATA_ADDRESSES, wire::DATA_VALUES] {
            engine.control().data.store(data, Ordering::Relaxed);
            let code = page(&[(0, &JUMP_TO_ITSELF)]);
            let at = engine.find(code, false).unwrap();
            let position = engine.app_position(engine.fragment(at).body).unwrap();
            assert_eq!((position.pc, position.state), (code, RegisterState::Cursor));
        }
    }
}
