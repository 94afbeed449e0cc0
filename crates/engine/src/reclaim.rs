//! Reclaiming units of the code cache.
//!
//! Fragments are dropped when their code changes or when a superblock replaces them. Their memory
//! is reclaimed by whole units of the code cache: units with few live fragments, and the oldest
//! unit when the cache has reached its limit. Code of that unit that is still needed is translated
//! again.
//!
//! A unit is *retired* first: all of its fragments are dropped, but threads may still execute them.
//! Retiring a unit ends an *epoch*. Each thread notes the epoch in which it enters the cache. A
//! unit is free again when no thread in the cache has entered it in the unit's epoch or earlier. A
//! signal brings threads that stay in the cache for long to the dispatcher.

use core::sync::atomic::{AtomicU64, Ordering};

use wire::{Control, SLOT_COUNT};

use crate::cache::{UNIT_BYTES, UnitState};
use crate::engine::Engine;
use crate::failure::{self, Failure};
use crate::pending;
use crate::signal::SIGTRAP;
use crate::tcb::Tcb;

/// Instead of an epoch: the thread is not in the cache, and its state is saved.
const OUTSIDE: u64 = u64::MAX;

/// By slot: the epoch in which the thread has entered the cache.
static EPOCHS: [AtomicU64; SLOT_COUNT] = [const { AtomicU64::new(OUTSIDE) }; SLOT_COUNT];

/// A unit is retired if less than one in this many of its fragments is live.
const SPARSE: usize = 8;
/// Retired units that wait for threads before the threads are interrupted.
const WAITING_MAX: usize = 2;

fn epoch(tcb: &Tcb) -> Option<&'static AtomicU64> {
    EPOCHS.get(tcb.slot_index as usize)
}

/// Notes that the thread has exited the cache and that its state is saved.
pub fn exit_cache(tcb: &Tcb) {
    if let Some(epoch) = epoch(tcb) {
        epoch.store(OUTSIDE, Ordering::Release);
    }
}

/// Whether the thread is in the engine with its state saved.
pub fn has_saved_state(tcb: &Tcb) -> bool {
    epoch(tcb).is_some_and(|epoch| epoch.load(Ordering::SeqCst) == OUTSIDE)
}

pub(crate) struct Reclaimer {
    /// Changes whenever a unit is retired.
    epoch: u64,
    /// Bytes that the cache and its tables may take.
    limit: u64,
    /// The epoch in which threads were last interrupted.
    interrupted_in: u64,
}

impl Reclaimer {
    pub const fn new() -> Self {
        Self { epoch: 0, limit: u64::MAX, interrupted_in: 0 }
    }

    pub fn set_up(&mut self, control: &Control) {
        match control.code_cache.load(Ordering::Relaxed) {
            0 => {}
            limit => self.limit = limit.max(wire::CODE_CACHE_MIN),
        }
    }
}

impl Engine {
    /// Notes that the thread is about to enter a fragment that it has just looked up. Epochs are
    /// read and written under the engine's lock.
    pub fn enter_cache(&self, tcb: &Tcb) {
        if let Some(epoch) = epoch(tcb) {
            epoch.store(self.reclaimer.epoch, Ordering::Relaxed);
        }
    }

    /// Returns a unit near `address` with room for a fragment. `None` if there is none.
    pub(crate) fn unit_near(&mut self, address: u64) -> Option<usize> {
        if failure::is_injected(self.control(), Failure::NoRoom) {
            return None;
        }
        self.cache.filling(address).or_else(|| {
            self.make_room();
            self.cache.open(address)
        })
    }

    /// Retires units with few live fragments, and old ones beyond the limit.
    fn make_room(&mut self) {
        self.reclaim();
        for unit in 0..self.cache.units.len() {
            let is_sparse = |unit: &crate::cache::Unit| {
                unit.state == UnitState::Full && unit.live as usize * SPARSE < unit.fragments.len()
            };
            if is_sparse(&self.cache.units[unit]) {
                self.retire(unit);
            }
        }
        while self.bytes_in_use() + UNIT_BYTES > self.reclaimer.limit {
            let units = self.cache.units.iter().enumerate();
            let Some((oldest, _)) =
                units.filter(|(_, unit)| unit.state == UnitState::Full).min_by_key(|(_, unit)| unit.opened)
            else {
                break;
            };
            self.retire(oldest);
        }
        self.reclaim();
        self.interrupt_threads();
    }

    /// Bytes of the cache and its tables, without retired units.
    fn bytes_in_use(&self) -> u64 {
        let is_used = |state: UnitState| matches!(state, UnitState::Filling | UnitState::Full);
        self.cache.units.iter().filter(|unit| is_used(unit.state)).map(crate::cache::Unit::bytes).sum()
    }

    fn retire(&mut self, unit: usize) {
        self.drop_unit(unit);
        self.cache.units[unit].state = UnitState::Retired(self.reclaimer.epoch);
        self.reclaimer.epoch += 1;
    }

    /// Frees the retired units that no thread can be in.
    fn reclaim(&mut self) {
        let retired = |state: UnitState| if let UnitState::Retired(epoch) = state { Some(epoch) } else { None };
        if !self.cache.units.iter().any(|unit| retired(unit.state).is_some()) {
            return;
        }
        let oldest = EPOCHS.iter().map(|epoch| epoch.load(Ordering::SeqCst)).min().unwrap_or(OUTSIDE);
        for unit in 0..self.cache.units.len() {
            if retired(self.cache.units[unit].state).is_some_and(|epoch| epoch < oldest) {
                self.clear_unit(unit);
            }
        }
    }

    /// Interrupts the threads that stay in the cache while retired units wait for them. Each goes
    /// to the dispatcher as for a detach.
    fn interrupt_threads(&mut self) {
        let waiting = self.cache.units.iter().filter(|unit| matches!(unit.state, UnitState::Retired(_))).count();
        if waiting < WAITING_MAX || self.reclaimer.interrupted_in == self.reclaimer.epoch {
            return;
        }
        self.reclaimer.interrupted_in = self.reclaimer.epoch;
        let control = self.control();
        for (epoch, slot) in EPOCHS.iter().zip(&control.slots) {
            let tid = slot.os_tid.load(Ordering::Relaxed);
            if epoch.load(Ordering::Relaxed) < self.reclaimer.epoch && tid != 0 {
                // The thread may have ended meanwhile.
                pending::queue(tid, SIGTRAP, wire::DETACH_REQUEST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use entity::AppPc;

    use super::*;
    use crate::testing::{engine, page};

    /// EPOCHS belongs to the whole process: tests that use it take turns.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    /// No other test uses this slot.
    const SLOT: usize = 4000;

    /// Jumps to themselves, one every 16 bytes.
    fn code() -> AppPc {
        let pieces: Vec<(usize, &[u8])> = (0..256).map(|index| (index * 16, [0xeb, 0xfe].as_slice())).collect();
        page(&pieces)
    }

    /// Translates and drops until `units` units have been filled.
    fn churn(engine: &mut Engine, code: AppPc, units: u64) {
        let opened = |engine: &Engine| engine.cache.units.iter().map(|unit| unit.opened).max().unwrap_or(0);
        let end = opened(engine) + units;
        let mut index = 0;
        while opened(engine) < end {
            let at = engine.find(code + index % 256 * 16, true).unwrap();
            let id = engine.fragment(at).id;
            // The recorder would take these.
            let head = engine.control().code_head.load(Ordering::SeqCst);
            engine.control().code_tail.store(head, Ordering::SeqCst);
            engine.drop_by_id(id);
            index += 1;
        }
    }

    fn in_use(engine: &Engine) -> usize {
        engine.cache.units.iter().filter(|unit| unit.state != UnitState::Free).count()
    }

    #[test]
    fn memory_of_dropped_fragments_is_used_again() {
        let _turn = TURN.lock().unwrap();
        let (mut engine, code) = (engine(), code());
        churn(&mut engine, code, 20);
        assert!(in_use(&engine) <= 2, "{} units", in_use(&engine));
        let paths = engine.paths.bytes();
        churn(&mut engine, code, 20);
        assert!(engine.paths.bytes() < paths + (64 << 10), "tables of paths do not grow");
    }

    #[test]
    fn a_unit_waits_for_the_threads_that_may_be_in_it() {
        let _turn = TURN.lock().unwrap();
        let (mut engine, code) = (engine(), code());
        EPOCHS[SLOT].store(engine.reclaimer.epoch, Ordering::SeqCst);
        churn(&mut engine, code, 6);
        assert!(in_use(&engine) >= 6, "a thread that entered at the beginning may be in any of them");
        EPOCHS[SLOT].store(engine.reclaimer.epoch, Ordering::SeqCst);
        churn(&mut engine, code, 1);
        assert!(in_use(&engine) <= 3, "{} units", in_use(&engine));
        EPOCHS[SLOT].store(OUTSIDE, Ordering::SeqCst);
    }

    #[test]
    fn the_limit_is_kept() {
        let _turn = TURN.lock().unwrap();
        let mut engine = engine();
        engine.reclaimer.limit = wire::CODE_CACHE_MIN;
        let pages: Vec<AppPc> = (0..1500).map(|_| code()).collect();
        let addresses = pages.iter().flat_map(|page| (0..256).map(move |index| *page + index * 16));
        let mut most = 0;
        for address in addresses.clone() {
            engine.find(address, true).unwrap();
            let head = engine.control().code_head.load(Ordering::SeqCst);
            engine.control().code_tail.store(head, Ordering::SeqCst);
            most = most.max(engine.bytes_in_use());
        }
        assert!(most <= wire::CODE_CACHE_MIN + UNIT_BYTES, "{most} bytes");
        assert!(engine.reclaimer.epoch > 0, "something had to go");
        let first = addresses.clone().next().unwrap();
        let paths = engine.control().next_path.load(Ordering::Relaxed);
        engine.find(first, true).unwrap();
        assert!(engine.control().next_path.load(Ordering::Relaxed) > paths, "it is translated again");
    }
}
