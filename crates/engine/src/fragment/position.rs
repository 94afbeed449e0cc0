//! The translation map: from an address in the code cache to the application's address and
//! registers.
//!
//! The translator makes the entries ([`crate::translate::MapEntry`]); signal handlers ask here what
//! a fragment was doing when it was interrupted.

use super::FragmentStatus;
use crate::engine::Engine;
use crate::translate::RegisterState;

/// The application's position and registers at an address of the code cache.
pub struct AppPosition {
    /// The next instruction.
    pub pc: u64,
    pub state: RegisterState,
    /// What has been executed since the last recorded word.
    pub progress: Progress,
}

/// How far a thread has come in a fragment: the fragment's first path (0: none), its completed
/// blocks, and the bytes of data that are stored.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    pub fragment: u32,
    pub blocks: u32,
    pub data: u32,
}

impl Engine {
    /// Whether `address` is in the code cache.
    pub fn is_cache(&self, address: u64) -> bool {
        self.cache.unit_of(address).is_some()
    }

    /// Looks an address up in the translation map. `None` if it is not in the code cache.
    pub fn app_position(&self, address: u64) -> Option<AppPosition> {
        let unit = &self.cache.units[self.cache.unit_of(address)?];
        let after = unit.fragments.partition_point(|fragment| fragment.start <= address);
        let between = AppPosition { pc: 0, state: RegisterState::BetweenSafePoints, progress: Progress::default() };
        let Some(fragment) = after.checked_sub(1).and_then(|at| unit.fragments.get(at)) else { return Some(between) };
        if address < fragment.body || address >= fragment.end {
            return Some(between);
        }
        let offset = (address - fragment.body) as u16;
        let entries = &unit.map[fragment.first_map_entry as usize..][..usize::from(fragment.map_entry_count)];
        // The entry of a fragment is always a safe point. A loop of engine code alone has no other.
        let after = if offset == 0 { 1 } else { entries.partition_point(|entry| entry.cache <= offset) };
        let Some(entry) = after.checked_sub(1).and_then(|at| entries.get(at)) else { return Some(between) };
        let block = unit.blocks[fragment.first_block as usize + usize::from(entry.block)];
        Some(AppPosition {
            pc: block.address + u64::from(entry.offset),
            state: entry.state,
            progress: Progress {
                fragment: fragment.first_path,
                blocks: u32::from(entry.block),
                data: u32::from(entry.data),
            },
        })
    }

    /// Whether the fragment at this position has not been dropped since.
    pub fn is_current(&self, position: &AppPosition) -> bool {
        let at = self.paths.fragment(position.progress.fragment);
        at.is_some_and(|at| self.fragment(at).status != FragmentStatus::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{BRANCH, JUMP_TO_ITSELF, engine, page};

    #[test]
    fn every_place_of_a_fragment_is_known() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, true).unwrap();
        let fragment = engine.fragment(index);
        assert!(engine.app_position(code).is_none());
        for address in fragment.start..fragment.body {
            assert_eq!(engine.app_position(address).unwrap().state, RegisterState::BetweenSafePoints);
        }
        let position = engine.app_position(fragment.body).unwrap();
        assert_eq!((position.pc, position.state), (code, RegisterState::Cursor));
        assert_eq!(position.progress.fragment, fragment.first_path);
        assert!(engine.is_current(&position));
        let seen: Vec<u64> = (fragment.body..fragment.end)
            .filter_map(|address| {
                engine.app_position(address).filter(|position| position.state != RegisterState::BetweenSafePoints)
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
