//! The engine's shared state: one [`Engine`] for all threads of the target, behind one lock.
//!
//! The methods of [`Engine`] live in the module of the noun that they work on: fragments in
//! [`crate::fragment`], links in [`crate::link`], the indirect-branch tables in
//! [`crate::indirect`], the code ring in [`crate::code_ring`], the code cache's units in
//! [`crate::reclaim`], changes of code in [`crate::change`], and critical sections in
//! [`crate::rseq`].

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use entity::{FragmentId, PathId};
use wire::Control;

use crate::address_table::AddressTable;
use crate::cache::Cache;
use crate::change::Pages;
use crate::emit::IndirectTable;
use crate::lock::Mutex;
use crate::paths::PathTable;
use crate::reclaim::Reclaimer;
use crate::rseq::Sections;
use crate::select::{self, SelectionTable, TRANSLATION_MODE_COUNT, TranslationMode};
use crate::translate::Order;

/// The engine of this process. Translation, linking and dropping of fragments happen under this
/// lock.
pub static ENGINE: Mutex<Engine> = Mutex::new(Engine::new());

pub struct Engine {
    /// The control page; `None` before [`Self::set_up`].
    control: Option<&'static Control>,
    pub(crate) table: IndirectTable,
    /// The address in every empty slot of the indirect-branch tables.
    pub(crate) missing: u64,
    pub selection: SelectionTable,
    pub sections: Sections,
    pub(crate) cache: Cache,
    pub(crate) reclaimer: Reclaimer,
    pub(crate) paths: PathTable,
    /// Fragments by application address, for each translation mode.
    pub(crate) by_address: [AddressTable; TRANSLATION_MODE_COUNT],
    /// Numbers and lengths of announced blocks, by application address.
    pub(crate) blocks: AddressTable,
    pub(crate) block_lengths: AddressTable,
    pub pages: Pages,
    /// Set once there is more than one thread: locked instructions are then followed by a
    /// timestamp. Before that, `unordered` lists the fragments with locked instructions.
    pub(crate) ordered: bool,
    pub(crate) unordered: Vec<FragmentId>,
    /// How locked instructions are ordered then.
    pub order: Order,
    pub(crate) has_avx512: bool,
}

impl Engine {
    pub(crate) const fn new() -> Self {
        Self {
            control: None,
            table: IndirectTable { address: 0, by_pext: false },
            missing: 0,
            selection: SelectionTable::new(),
            sections: Sections::new(),
            cache: Cache::new(),
            reclaimer: Reclaimer::new(),
            paths: PathTable::new(),
            by_address: [const { AddressTable::new() }; TRANSLATION_MODE_COUNT],
            blocks: AddressTable::new(),
            block_lengths: AddressTable::new(),
            pages: Pages::new(),
            ordered: false,
            unordered: Vec::new(),
            order: Order::EveryTime,
            has_avx512: false,
        }
    }

    /// Sets the control page, at the start of the shared memory, and the indirect-branch tables.
    /// `missing` is the entry of the dispatcher for targets that the tables do not have.
    ///
    /// # Safety
    /// At the address of `table` there are [`wire::TABLE_COUNT`] tables of [`wire::TABLE_BYTES`]
    /// bytes, for this engine only, that stay mapped.
    pub unsafe fn set_up(&mut self, control: &'static Control, table: IndirectTable, missing: u64) {
        self.control = Some(control);
        self.table = table;
        self.missing = missing;
        self.has_avx512 = has_avx512();
        self.paths.set_base(PathId::new(control.next_path.load(Ordering::Relaxed) + 1));
        self.reclaimer.set_up(control);
        self.selection.set_up(control);
        let modes = match select::has_uninstrumented_mode(control) {
            false => [TranslationMode::Instrumented].as_slice(),
            true => &[TranslationMode::Instrumented, TranslationMode::Uninstrumented],
        };
        for slot in modes.iter().flat_map(|&mode| self.table_slots(mode)) {
            slot.store(missing, Ordering::Relaxed);
        }
    }

    pub(crate) fn control(&self) -> &'static Control {
        let Some(control) = self.control else { panic!("the engine is not set up") };
        control
    }

    /// Notes that there is more than one thread. Fragments with locked instructions are dropped, to
    /// be translated again with timestamps.
    pub fn order_threads(&mut self) {
        self.ordered = true;
        for fragment in core::mem::take(&mut self.unordered) {
            self.drop_by_id(fragment);
        }
    }
}

/// Whether the processor has AVX-512 and the operating system has enabled it.
fn has_avx512() -> bool {
    let (basic, more) = (core::arch::x86_64::__cpuid(1), core::arch::x86_64::__cpuid_count(7, 0));
    has_wide_vectors(basic.ecx, more.ebx, crate::emulate::enabled_components)
}

/// The same, from CPUID (`basic`: leaf 1, ecx; `more`: leaf 7, ebx) and from XCR0 (`enabled`),
/// which can be read only if CPUID has OSXSAVE.
fn has_wide_vectors(basic: u32, more: u32, enabled: impl FnOnce() -> u64) -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AVX512F: u32 = 1 << 16;
    /// SSE, AVX, mask registers, upper halves of the low registers, high registers.
    const STATE: u64 = 0b1110_0110;
    basic & OSXSAVE != 0 && more & AVX512F != 0 && enabled() & STATE == STATE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_vectors_are_those_that_the_operating_system_has_enabled() {
        let (basic, more) = (1 << 27, 1 << 16);
        assert!(has_wide_vectors(basic, more, || 0xe7));
        assert!(has_wide_vectors(basic, more, || 0x2_02e7));
        for enabled in [0x7, 0x27, 0x67, 0xc7, 0xe1] {
            assert!(!has_wide_vectors(basic, more, || enabled), "{enabled:#x}");
        }
        assert!(!has_wide_vectors(basic, 0, || 0xe7));
        assert!(!has_wide_vectors(0, more, || panic!("asked where that faults")));
    }
}
