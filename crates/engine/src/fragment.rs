//! Fragments: translated superblocks of blocks, their exits, and how they are found by application address and by cache address.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use wire::{CODE_RING_BYTES, Control, code};

use crate::cache::Cache;
use crate::change::{PAGE, Pages};
use crate::emit::{Emitter, Table};
use crate::failure::Failure;
use crate::lock::Mutex;
use crate::lookup::Lookup;
use crate::paths::PathTable;
use crate::reclaim::Reclaimer;
use crate::rseq::Sections;
use crate::select::{Selection, TRANSLATION_MODE_COUNT, TranslationMode};
use crate::translate::{
    self, ExitKind, Order, RegisterState, STUB_STRIDE, SourceBlock, TranslatedBlock, TranslatedExit, Translation,
    TranslationOptions, Unreadable,
};
use crate::{failure, memory, ring, select, skip, sys};

mod superblock;

pub use superblock::PATH_INSTRUCTIONS_MAX;

/// Everything that threads share. Translation and linking happen under this lock.
pub static ENGINE: Mutex<Engine> = Mutex::new(Engine::new());

/// Where a fragment is: the unit, and its number there. Valid until the unit is reclaimed; whatever lasts longer keeps the
/// number of a path, which is never used again, and asks [`PathTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentRef(pub u32);

impl FragmentRef {
    /// No unit has room for more fragments.
    const UNIT_BITS: u32 = 17;

    fn new(unit: usize, index: usize) -> Self {
        Self((unit << Self::UNIT_BITS | index) as u32)
    }

    pub fn unit(self) -> usize {
        (self.0 >> Self::UNIT_BITS) as usize
    }

    fn index(self) -> usize {
        (self.0 & ((1 << Self::UNIT_BITS) - 1)) as usize
    }
}

pub struct Fragment {
    /// Application address of its first block.
    pub address: u64,
    /// First byte in the cache; an indirect entry stands between it and `body`, if there is one.
    pub start: u64,
    pub body: u64,
    pub end: u64,
    /// Where indirect jumps arrive; 0 if they have not yet.
    pub indirect_entry: u64,
    /// Number of its first exit's path.
    pub first_path: u32,
    /// How often the profile met it, and how often it was left early, since it was made.
    samples: u16,
    early: u16,
    /// How often a longer or better superblock has replaced it.
    generation: u8,
    /// Whether threads can still come to it.
    pub status: FragmentStatus,
    /// It compares the code at its entry.
    checked: bool,
    /// It is nothing but the indirect entry of the fragment with the same first path.
    is_indirect_entry: bool,
    /// The threads that use it, and whether its paths are left out of the recording.
    mode: TranslationMode,
    uninstrumented: bool,
    /// Its exits lead to the dispatcher for good.
    unlinkable: bool,
    /// Its marks, blocks and exits in the unit's tables.
    first_map_entry: u32,
    map_entry_count: u16,
    block_count: u16,
    first_block: u32,
    first_exit: u32,
    exit_count: u16,
    /// The stub of its first exit ends here; those of the others lie before it.
    stubs_end: u64,
    /// The exits that are linked to it, by path. Those whose fragments have been reclaimed are no longer found.
    incoming: Vec<u32>,
}

/// How a fragment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentStatus {
    Live,
    /// A superblock has taken its place; what it was made from still holds.
    Replaced,
    /// Its code has changed since, or its unit is given up.
    Dropped,
}

/// A block of a fragment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockSpan {
    address: u64,
    length: u32,
}

#[derive(Clone, Copy)]
pub struct Exit {
    pub kind: ExitKind,
    pub target: u64,
    pub site: u64,
    /// It may be linked.
    is_linkable: bool,
    /// Number of blocks executed when this exit is taken.
    blocks: u16,
    /// First path of the fragment it is linked to; 0 for none.
    linked_to: u32,
}

/// Why there is no fragment for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFragment {
    Unreadable,
    Failed(Failure),
}

impl From<Unreadable> for NoFragment {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

impl From<Failure> for NoFragment {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What a place in the cache means for the application.
pub struct AppPosition {
    /// The next instruction.
    pub pc: u64,
    pub state: RegisterState,
    /// What has been executed since the last word: the fragment's first path, and how many of its blocks.
    pub progress: Progress,
}

/// A fragment (by its first path; 0: none), how many of its blocks are complete, and how many bytes of data are stored.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    pub fragment: u32,
    pub blocks: u32,
    pub data: u32,
}

pub struct Engine {
    control: u64,
    table: Table,
    /// Where the table leads for unknown targets.
    missing: u64,
    pub selection: Selection,
    pub sections: Sections,
    pub(crate) cache: Cache,
    pub(crate) reclaimer: Reclaimer,
    pub(crate) paths: PathTable,
    /// Fragment by application address, in each mode.
    by_address: [Lookup; TRANSLATION_MODE_COUNT],
    /// Block number by application address, and the length of that block.
    blocks: Lookup,
    block_lengths: Lookup,
    pub pages: Pages,
    /// There is more than one thread, so locked instructions are followed by the time; before that, the fragments that have
    /// such instructions are remembered, by their first path.
    ordered: bool,
    unordered: Vec<u32>,
    /// What becomes of locked instructions then.
    pub order: Order,
    has_avx512: bool,
}

/// Whether processor and operating system have vectors of 64 bytes.
fn has_avx512() -> bool {
    let (basic, more) = (core::arch::x86_64::__cpuid(1), core::arch::x86_64::__cpuid_count(7, 0));
    has_wide_vectors(basic.ecx, more.ebx, crate::emulate::enabled_components)
}

/// The same, from what CPUID says (leaf 1, ecx; leaf 7, ebx) and what the operating system has enabled (XCR0), which can be
/// asked only if CPUID says so.
fn has_wide_vectors(basic: u32, more: u32, enabled: impl FnOnce() -> u64) -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AVX512F: u32 = 1 << 16;
    /// SSE, AVX, mask registers, upper halves of the low registers, high registers.
    const STATE: u64 = 0b1110_0110;
    basic & OSXSAVE != 0 && more & AVX512F != 0 && enabled() & STATE == STATE
}

/// Readable application code for a block.
struct CodeBytes {
    bytes: [u8; code::BLOCK_BYTES_MAX],
    length: usize,
}

impl CodeBytes {
    fn read(address: u64) -> Self {
        let mut code = Self { bytes: [0; code::BLOCK_BYTES_MAX], length: 0 };
        code.length = memory::read_bytes(address, &mut code.bytes);
        code
    }
}

impl Engine {
    const fn new() -> Self {
        Self {
            control: 0,
            table: Table { address: 0, by_pext: false },
            missing: 0,
            selection: Selection::new(),
            sections: Sections::new(),
            cache: Cache::new(),
            reclaimer: Reclaimer::new(),
            paths: PathTable::new(),
            by_address: [const { Lookup::new() }; TRANSLATION_MODE_COUNT],
            blocks: Lookup::new(),
            block_lengths: Lookup::new(),
            pages: Pages::new(),
            ordered: false,
            unordered: Vec::new(),
            order: Order::EveryTime,
            has_avx512: false,
        }
    }

    /// Tells the engine where its surroundings are. `missing` is where unknown indirect targets go.
    pub fn set_up(&mut self, control: u64, table: Table, missing: u64) {
        self.control = control;
        self.table = table;
        self.missing = missing;
        self.has_avx512 = has_avx512();
        let control = self.control();
        self.paths.set_base(control.next_path.load(Ordering::Relaxed) + 1);
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

    /// The table of indirect targets of a mode.
    fn table_of(&self, mode: TranslationMode) -> Table {
        let address = match mode {
            TranslationMode::Instrumented => self.table.address,
            TranslationMode::Uninstrumented => self.table.address + wire::TABLE_BYTES as u64,
            TranslationMode::SingleBlocks => 0,
        };
        Table { address, ..self.table }
    }

    fn table_slots(&self, mode: TranslationMode) -> &'static [AtomicU64] {
        let address = self.table_of(mode).address as usize;
        if address == 0 {
            return &[];
        }
        // SAFETY: the injector made tables of this size, for this use only, and they stay.
        unsafe { core::slice::from_raw_parts(address as *const AtomicU64, wire::TABLE_BYTES / 8) }
    }

    /// The place in the table for indirect jumps to `address`.
    fn table_slot(&self, mode: TranslationMode, address: u64) -> Option<&'static AtomicU64> {
        self.table_slots(mode).get(self.table.index(address))
    }

    pub fn table(&self) -> Table {
        self.table
    }

    pub(crate) fn control(&self) -> &'static Control {
        // SAFETY: the shared mapping stays as long as the process.
        unsafe { &*(self.control as *const Control) }
    }

    /// The exit that writes a path; `None` if it has been reclaimed.
    pub fn exit(&self, path: u32) -> Option<Exit> {
        let at = self.exit_index(path)?;
        self.cache.units.get(at.0)?.exits.get(at.1).copied()
    }

    fn exit_mut(&mut self, path: u32) -> Option<&mut Exit> {
        let at = self.exit_index(path)?;
        self.cache.units.get_mut(at.0)?.exits.get_mut(at.1)
    }

    /// The unit of a path's exit, and where it is in the unit's table.
    fn exit_index(&self, path: u32) -> Option<(usize, usize)> {
        let at = self.paths.fragment(path)?;
        let fragment = self.fragment(at);
        Some((at.unit(), (fragment.first_exit + (path - fragment.first_path)) as usize))
    }

    /// Where the stub of a fragment's exit is.
    fn stub(fragment: &Fragment, path: u32) -> u64 {
        fragment.stubs_end - (u64::from(path - fragment.first_path) + 1) * STUB_STRIDE as u64
    }

    pub fn fragment(&self, at: FragmentRef) -> &Fragment {
        &self.cache.units[at.unit()].fragments[at.index()]
    }

    pub(crate) fn fragment_mut(&mut self, at: FragmentRef) -> &mut Fragment {
        &mut self.cache.units[at.unit()].fragments[at.index()]
    }

    /// The blocks of a fragment.
    fn blocks_of(&self, at: FragmentRef) -> &[BlockSpan] {
        let fragment = self.fragment(at);
        &self.cache.units[at.unit()].blocks[fragment.first_block as usize..][..usize::from(fragment.block_count)]
    }

    /// The fragment for the code at `address`, translated now if need be.
    pub fn find(&mut self, address: u64, with_indirect_entry: bool) -> Result<FragmentRef, NoFragment> {
        self.find_in(TranslationMode::Instrumented, address, with_indirect_entry)
    }

    /// The fragment for the code at `address` in a mode, translated now if need be.
    pub fn find_in(
        &mut self,
        mode: TranslationMode,
        address: u64,
        with_indirect_entry: bool,
    ) -> Result<FragmentRef, NoFragment> {
        match self.by_address[mode as usize].get(address) {
            Some(index) => Ok(FragmentRef(index)),
            None => self.translate(mode, address, with_indirect_entry),
        }
    }

    fn translate(
        &mut self,
        mode: TranslationMode,
        address: u64,
        with_indirect_entry: bool,
    ) -> Result<FragmentRef, NoFragment> {
        self.selection.refresh(self.control());
        self.pages.guard(address);
        let code = CodeBytes::read(address);
        if code.length == 0 || failure::is_injected(self.control(), Failure::Unreadable) {
            return Err(NoFragment::Unreadable);
        }
        let room = self.selection.room(address).min(self.sections.room(address)).min(code.length as u64) as usize;
        let check = self.pages.is_checked_block(address, &code.bytes[..code.length]);
        let source_of = |length: usize| [SourceBlock { address, code: &code.bytes[..length], next: None, check }];
        // If its first instruction reaches beyond, all of the block is what its beginning is.
        let (source, emitted) = match self.emit(mode, &source_of(room), with_indirect_entry, false) {
            Err(NoFragment::Unreadable) if room < code.length => {
                (source_of(code.length), self.emit(mode, &source_of(code.length), with_indirect_entry, false)?)
            }
            emitted => (source_of(room), emitted?),
        };
        let (fragment, translation) = &emitted;
        if self.discover_sections(address, &translation.descriptors) {
            return self.translate(mode, address, with_indirect_entry);
        }
        let last = address + u64::from(translation.blocks[0].length) - 1;
        if last / PAGE != address / PAGE && self.pages.is_writable(last) {
            self.pages.guard(last);
            let length = translation.blocks[0].length as usize;
            if CodeBytes::read(address).bytes[..length] != code.bytes[..length] {
                // Written to before it was protected.
                return self.translate(mode, address, with_indirect_entry);
            }
        }
        self.reserve(fragment, translation)?;
        let (fragment, translation) = emitted;
        let at = self.register(fragment, &translation, &source);
        self.by_address[mode as usize].insert(address, at.0);
        Ok(at)
    }

    /// Makes sure that there is memory for what is noted about a new fragment.
    fn reserve(&mut self, fragment: &Fragment, translation: &Translation) -> Result<(), Failure> {
        let unit = self.cache.unit_of(fragment.start).ok_or(Failure::NoRoom)?;
        let unit = &mut self.cache.units[unit];
        let has_memory = unit.fragments.try_reserve(2).is_ok()
            && unit.exits.try_reserve(translation.exits.len()).is_ok()
            && unit.map.try_reserve(translation.map.len()).is_ok()
            && unit.blocks.try_reserve(translation.blocks.len()).is_ok()
            && self.paths.reserve(fragment.first_path, translation.exits.len())
            && self.by_address[fragment.mode as usize].reserve()
            && self.blocks.reserve_many(translation.blocks.len())
            && self.block_lengths.reserve_many(translation.blocks.len())
            && self.unordered.try_reserve(1).is_ok();
        if has_memory && !failure::is_injected(self.control(), Failure::NoMemory) {
            Ok(())
        } else {
            Err(Failure::NoMemory)
        }
    }

    /// Number of a block: the one it has, or a new one, which is announced.
    fn block_number(&mut self, block: &SourceBlock, length: usize) -> u32 {
        // A block that is checked may not be what had the number before.
        if let Some(number) = self.blocks.get(block.address)
            && !block.check
            && self.block_lengths.get(block.address) == Some(length as u32)
        {
            return number;
        }
        self.block_lengths.insert(block.address, length as u32);
        let number = self.control().next_block.fetch_add(1, Ordering::Relaxed);
        self.announce_block(block.address, number, &block.code[..length]);
        self.blocks.insert(block.address, number);
        number
    }

    /// Writes the code and the stubs of a superblock into the cache.
    fn emit(
        &mut self,
        mode: TranslationMode,
        source: &[SourceBlock],
        with_indirect_entry: bool,
        guess: bool,
    ) -> Result<(Fragment, Translation), NoFragment> {
        let address = source[0].address;
        let is_unlinkable = |block: &SourceBlock| {
            self.selection.is_unlinkable(mode, block.address, block.code) || self.sections.contains(block.address)
        };
        let unlinkable = source.iter().any(is_unlinkable);
        let table = if unlinkable { Table { address: 0, ..self.table } } else { self.table_of(mode) };
        let first_path = self.control().next_path.load(Ordering::Relaxed) + 1;
        let uninstrumented = self.selection.is_uninstrumented(mode, address);
        let data = if uninstrumented { wire::DATA_NONE } else { self.control().data.load(Ordering::Relaxed) };
        let index = self.unit_near(address).ok_or(Failure::NoRoom)?;
        let unit = &self.cache.units[index];
        // SAFETY: under the lock, and the new code is executed only after this function.
        let room = unsafe { unit.room() };
        let (room, stubs) = room.split_at_mut(room.len() / 2);
        let (start, stubs_end) = (unit.code_next, unit.stubs_next);
        let mut out = Emitter::new(room, start);
        if with_indirect_entry {
            out.indirect_entry(address);
        }
        out.align(8);
        let body = out.here();
        let options = TranslationOptions {
            table,
            guess,
            order: if self.ordered && mode == TranslationMode::Instrumented { self.order } else { Order::None },
            data,
            has_avx512: self.has_avx512,
            first_path,
            stubs_end,
        };
        let translation = translate::translate(source, &mut out, &options)?;
        out.align(8);
        let stub_bytes = translation.exits.len() * STUB_STRIDE;
        if out.overflowed() || stub_bytes > stubs.len() {
            return Err(Failure::NoRoom.into());
        }
        let end = out.here();
        let stubs_length = stubs.len();
        let mut out = Emitter::new(&mut stubs[stubs_length - stub_bytes..], stubs_end - stub_bytes as u64);
        for index in (0..translation.exits.len()).rev() {
            let stub = out.position();
            out.exit_stub(first_path + index as u32);
            while out.position() < stub + STUB_STRIDE {
                out.bytes(&[0x90]);
            }
        }
        let fragment = Fragment {
            address,
            start,
            body,
            end,
            indirect_entry: if with_indirect_entry { start } else { 0 },
            first_path,
            samples: 0,
            early: 0,
            generation: 0,
            status: FragmentStatus::Live,
            checked: source[0].check,
            is_indirect_entry: false,
            mode,
            uninstrumented,
            unlinkable,
            first_map_entry: 0,
            map_entry_count: 0,
            block_count: 0,
            first_block: 0,
            first_exit: 0,
            exit_count: translation.exits.len() as u16,
            stubs_end,
            incoming: Vec::new(),
        };
        Ok((fragment, translation))
    }

    /// Announces a fragment and notes it, for which there is memory (see [`Self::reserve`]).
    fn register(&mut self, mut fragment: Fragment, translation: &Translation, source: &[SourceBlock]) -> FragmentRef {
        self.announce_fragment(&fragment, translation, source);
        if self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE && !fragment.uninstrumented {
            self.announce_descriptors(fragment.first_path, translation);
        }
        self.control().next_path.fetch_add(translation.exits.len() as u32, Ordering::Relaxed);
        if fragment.mode != TranslationMode::Instrumented {
            note_instructions(fragment.first_path, translation, source);
        }
        if translation.has_locked && !self.ordered && fragment.mode == TranslationMode::Instrumented {
            self.note_unordered(fragment.first_path);
        }
        // It is in the unit that `emit` has chosen.
        let index = self.cache.unit_of(fragment.start).unwrap_or(0);
        let unit = &mut self.cache.units[index];
        let at = FragmentRef::new(index, unit.fragments.len());
        unit.code_next = fragment.end;
        unit.stubs_next = fragment.stubs_end - (translation.exits.len() * STUB_STRIDE) as u64;
        unit.live += 1;
        fragment.first_map_entry = unit.map.len() as u32;
        fragment.map_entry_count = translation.map.len() as u16;
        fragment.first_block = unit.blocks.len() as u32;
        fragment.block_count = translation.blocks.len() as u16;
        fragment.first_exit = unit.exits.len() as u32;
        unit.map.extend_from_slice(&translation.map);
        let paths = fragment.first_path..;
        unit.exits.extend(translation.exits.iter().map(|exit| Exit {
            kind: exit.kind,
            target: exit.target,
            site: exit.site,
            is_linkable: !fragment.unlinkable,
            blocks: exit.blocks,
            linked_to: 0,
        }));
        for (block, TranslatedBlock { length, .. }) in source.iter().zip(&translation.blocks) {
            unit.blocks.push(BlockSpan { address: block.address, length: *length });
            self.pages.add(fragment.first_path, block.address, block.address + u64::from(*length));
        }
        unit.fragments.push(fragment);
        for (path, exit) in paths.zip(&translation.exits) {
            self.paths.insert(path, at, (exit.data / 4) as u16);
        }
        at
    }

    /// Remembers a fragment with locked instructions. Those that are gone make room.
    fn note_unordered(&mut self, first_path: u32) {
        if self.unordered.len() == self.unordered.capacity() {
            let paths = &self.paths;
            self.unordered.retain(|path| paths.fragment(*path).is_some());
        }
        self.unordered.push(first_path);
    }

    /// Where indirect jumps to this fragment arrive; made now if they never did before. `None` if there is no room.
    pub fn indirect_entry(&mut self, at: FragmentRef) -> Option<u64> {
        let fragment = self.fragment(at);
        if fragment.indirect_entry != 0 {
            return Some(fragment.indirect_entry);
        }
        let (address, body, first_path, mode) = (fragment.address, fragment.body, fragment.first_path, fragment.mode);
        let index = self.unit_near(body)?;
        let unit = &mut self.cache.units[index];
        unit.fragments.try_reserve(1).ok()?;
        let start = unit.code_next;
        // SAFETY: under the lock, and nobody jumps there before this function returns.
        let mut out = Emitter::new(unsafe { unit.room() }, start);
        out.indirect_entry(address);
        out.jump(body);
        out.align(8);
        let end = out.here();
        unit.code_next = end;
        unit.live += 1;
        // All of it lies before the body: a thread in it has not arrived yet.
        unit.fragments.push(Fragment {
            address,
            start,
            body: end,
            end,
            indirect_entry: start,
            first_path,
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
            stubs_end: 0,
            incoming: Vec::new(),
        });
        self.fragment_mut(at).indirect_entry = start;
        Some(start)
    }

    /// Makes indirect jumps to this fragment find it at once.
    pub fn add_to_table(&mut self, at: FragmentRef) {
        let Some(indirect_entry) = self.indirect_entry(at) else { return };
        let fragment = self.fragment(at);
        if let Some(slot) = self.table_slot(fragment.mode, fragment.address) {
            slot.store(indirect_entry, Ordering::Release);
        }
    }

    /// Indirect jumps no longer find `indirect entry`, for this address.
    fn remove_from_table(&self, mode: TranslationMode, address: u64, indirect_entry: u64) {
        if let Some(slot) = self.table_slot(mode, address) {
            let _ = slot.compare_exchange(indirect_entry, self.missing, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Leads a direct exit to its target without us from now on, if a jump reaches that far.
    pub fn link(&mut self, path: u32, target: FragmentRef) {
        let fragment = self.fragment(target);
        let (body, first_path) = (fragment.body, fragment.first_path);
        let Some(exit) = self.exit_mut(path) else { return };
        if !exit.is_linkable || exit.site == 0 || exit.linked_to == first_path {
            return; // perhaps another thread was faster
        }
        let site = exit.site;
        let Ok(displacement) = i32::try_from(body.wrapping_sub(site + 4) as i64) else { return };
        exit.linked_to = first_path;
        self.add_incoming(target, path);
        patch_displacement(site, displacement);
    }

    /// Notes that an exit is linked to a fragment. Without memory for that, it is not linked again and again.
    fn add_incoming(&mut self, target: FragmentRef, path: u32) {
        let incoming = &self.fragment(target).incoming;
        if incoming.len() == incoming.capacity() {
            // Most exits of a list that has grown long may be gone.
            let mut list = core::mem::take(&mut self.fragment_mut(target).incoming);
            let first_path = self.fragment(target).first_path;
            list.retain(|path| self.exit(*path).is_some_and(|exit| exit.linked_to == first_path));
            self.fragment_mut(target).incoming = list;
        }
        self.fragment_mut(target).incoming.push(path);
    }

    /// Makes an exit that is linked to the fragment with this first path lead to its stub again. False if it is not.
    fn unlink(&mut self, path: u32, linked_to: u32) -> bool {
        let Some(at) = self.paths.fragment(path) else { return false };
        let stub = Self::stub(self.fragment(at), path);
        let Some(exit) = self.exit_mut(path) else { return false };
        if exit.linked_to != linked_to {
            return false;
        }
        exit.linked_to = 0;
        let site = exit.site;
        // The jump reached its stub when it was made.
        patch_displacement(site, stub.wrapping_sub(site + 4) as i32);
        true
    }

    /// Whether `address` is in the memory for translated code.
    pub fn is_cache(&self, address: u64) -> bool {
        self.cache.unit_of(address).is_some()
    }

    /// What a place in the cache means; `None` if `address` is not in translated code.
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
        // The entry is a safe point, whatever begins there. A loop of engine code alone has no other.
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

    /// Appends a record to the code ring, waiting for room.
    fn append_code(&mut self, kind: u32, parts: &[&[u8]]) {
        let control = self.control();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let total = (size_of::<code::Header>() + length + 7) & !7;
        loop {
            let tail = control.code_tail.load(Ordering::SeqCst);
            let used = control.code_head.load(Ordering::Relaxed) - tail;
            if used as usize + total <= CODE_RING_BYTES {
                break;
            }
            if !ring::is_wanted(control) {
                return;
            }
            ring::ring_doorbell(control);
            control.code_waiting.store(1, Ordering::SeqCst);
            // SAFETY: the low half of the tail, as an atomic of its own; x86 is little-endian.
            let word = unsafe { &*control.code_tail.as_ptr().cast::<core::sync::atomic::AtomicU32>() };
            sys::futex_wait(word, tail as u32, 100);
            control.code_waiting.store(0, Ordering::SeqCst);
        }
        let mut head = control.code_head.load(Ordering::Relaxed);
        let end = head + total as u64;
        self.put_code(&mut head, &kind.to_le_bytes());
        self.put_code(&mut head, &(length as u32).to_le_bytes());
        for part in parts {
            self.put_code(&mut head, part);
        }
        control.code_head.store(end, Ordering::SeqCst);
    }

    fn put_code(&self, head: &mut u64, bytes: &[u8]) {
        let ring = (self.control as usize + wire::CODE_RING_OFFSET) as *mut u8;
        let position = *head as usize % CODE_RING_BYTES;
        let (first, second) = bytes.split_at(bytes.len().min(CODE_RING_BYTES - position));
        // SAFETY: both parts lie inside the ring, in room that the recorder has given back.
        unsafe {
            core::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(position), first.len());
            core::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
        *head += bytes.len() as u64;
    }

    fn announce_block(&mut self, address: u64, block: u32, bytes: &[u8]) {
        self.append_code(code::BLOCK, &[&address.to_le_bytes(), &block.to_le_bytes(), &[0; 4], bytes]);
    }

    fn announce_fragment(&mut self, fragment: &Fragment, translation: &Translation, source: &[SourceBlock]) {
        let flags = if fragment.uninstrumented { code::UNINSTRUMENTED } else { 0 };
        let counts = [fragment.first_path, translation.blocks.len() as u32, translation.exits.len() as u32, flags];
        let mut words: Vec<u32> = Vec::with_capacity(4 + source.len() + translation.exits.len());
        words.extend_from_slice(&counts);
        for (block, TranslatedBlock { length, taken }) in source.iter().zip(&translation.blocks) {
            let number = self.block_number(block, *length as usize);
            words.push(if *taken { number | code::TAKEN } else { number });
        }
        words.extend(
            translation
                .exits
                .iter()
                .map(|TranslatedExit { blocks, terminator, .. }| u32::from(*blocks) | terminator << 16),
        );
        // SAFETY: any u32 is four bytes, in the order of this machine, which is the ring's.
        let bytes = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
        self.append_code(code::FRAGMENT, &[bytes]);
    }

    fn announce_descriptors(&mut self, first_path: u32, translation: &Translation) {
        let counts = [first_path, translation.exits.len() as u32, translation.accesses.len() as u32, 0];
        let words: Vec<u32> = counts.into_iter().chain(translation.exits.iter().map(|exit| exit.data)).collect();
        // SAFETY: any u32 is four bytes, in the order of this machine, which is the ring's; accesses have no padding.
        let (words, accesses) = unsafe {
            let accesses = &translation.accesses;
            (
                core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4),
                core::slice::from_raw_parts(
                    accesses.as_ptr().cast::<u8>(),
                    accesses.len() * code::ACCESS_DESCRIPTOR_BYTES,
                ),
            )
        };
        self.append_code(code::ACCESS_DESCRIPTORS, &[words, accesses]);
    }

    pub fn announce_unmap(&mut self, address: u64, length: u64) {
        let fixed = [address.to_le_bytes(), length.to_le_bytes(), sys::tsc().to_le_bytes()];
        self.append_code(code::UNMAP, &[fixed.as_flattened()]);
    }

    pub fn announce_module(&mut self, address: u64, length: u64, file_offset: u64, path: &[u8]) {
        let tsc = sys::tsc().to_le_bytes();
        let fixed = [address.to_le_bytes(), length.to_le_bytes(), file_offset.to_le_bytes(), tsc];
        self.append_code(code::MODULE, &[fixed.as_flattened(), path]);
    }
}

/// Fragments that are no longer valid.
impl Engine {
    /// Nobody finds this fragment any more: what led to it leads to the dispatcher.
    pub fn drop_fragment(&mut self, at: FragmentRef) {
        if self.fragment(at).status != FragmentStatus::Live {
            // A thread may still go round in what has been replaced.
            self.unlink_all(at);
            self.fragment_mut(at).status = FragmentStatus::Dropped;
            return;
        }
        self.unregister(at, FragmentStatus::Dropped);
        let fragment = self.fragment(at);
        let (mode, address) = (fragment.mode, fragment.address);
        let by_address = &mut self.by_address[mode as usize];
        if by_address.get(address) == Some(at.0) {
            by_address.remove(address);
        }
        for index in 0..self.blocks_of(at).len() {
            let address = self.blocks_of(at)[index].address;
            self.blocks.remove(address);
        }
        self.unlink_all(at);
    }

    /// Drops the fragment with this first path, unless it is gone.
    pub fn drop_path(&mut self, first_path: u32) {
        if let Some(at) = self.paths.fragment(first_path) {
            self.drop_fragment(at);
        }
    }

    /// Takes a live fragment out of the table of indirect targets and of the lists of pages, and counts it as dead.
    fn unregister(&mut self, at: FragmentRef, status: FragmentStatus) {
        let fragment = self.fragment_mut(at);
        fragment.status = status;
        let (mode, address, first_path) = (fragment.mode, fragment.address, fragment.first_path);
        let indirect_entry = core::mem::take(&mut fragment.indirect_entry);
        let has_own_entry = (fragment.start..fragment.body).contains(&indirect_entry);
        self.cache.units[at.unit()].live -= 1;
        if indirect_entry != 0 {
            self.remove_from_table(mode, address, indirect_entry);
        }
        if indirect_entry != 0 && !has_own_entry {
            self.drop_indirect_entry(indirect_entry);
        }
        for index in 0..self.blocks_of(at).len() {
            let block = self.blocks_of(at)[index];
            self.pages.remove(first_path, block.address, block.address + u64::from(block.length));
        }
    }

    /// An indirect entry that stands alone is dead, as its fragment is.
    fn drop_indirect_entry(&mut self, start: u64) {
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

    fn unlink_all(&mut self, at: FragmentRef) {
        let fragment = self.fragment_mut(at);
        let (incoming, first_path) = (core::mem::take(&mut fragment.incoming), fragment.first_path);
        for path in incoming {
            self.unlink(path, first_path);
        }
    }

    /// Gives up everything in a unit: see `reclaim`.
    pub(crate) fn drop_unit(&mut self, unit: usize) {
        for index in 0..self.cache.units[unit].fragments.len() {
            let at = FragmentRef::new(unit, index);
            let fragment = self.fragment(at);
            if fragment.is_indirect_entry && fragment.status == FragmentStatus::Live {
                let (mode, address, start) = (fragment.mode, fragment.address, fragment.start);
                self.remove_from_table(mode, address, start);
                self.drop_indirect_entry(start);
                let owner = self.paths.fragment(self.fragment(at).first_path);
                if let Some(owner) = owner.filter(|owner| self.fragment(*owner).indirect_entry == start) {
                    self.fragment_mut(owner).indirect_entry = 0;
                }
            } else if !fragment.is_indirect_entry {
                self.drop_fragment(at);
            }
        }
    }

    /// Makes a unit that no thread is in any more free.
    pub(crate) fn clear_unit(&mut self, unit: usize) {
        for index in 0..self.cache.units[unit].fragments.len() {
            let fragment = &self.cache.units[unit].fragments[index];
            let paths = fragment.first_path..fragment.first_path + u32::from(fragment.exit_count);
            for path in paths {
                self.paths.remove(path);
            }
        }
        self.cache.units[unit].clear();
    }

    /// From now on there is more than one thread: locked instructions are followed by the time.
    pub fn order_threads(&mut self) {
        self.ordered = true;
        for path in core::mem::take(&mut self.unordered) {
            self.drop_path(path);
        }
    }

    /// The fragments of the instrumented mode that have a block that begins at `address`, by their first paths.
    pub fn fragments_through(&self, address: u64) -> Vec<u32> {
        let is_through = |path: &u32| {
            self.paths.fragment(*path).is_some_and(|at| {
                let is_recorded = self.fragment(at).mode == TranslationMode::Instrumented;
                is_recorded && self.blocks_of(at).iter().any(|block| block.address == address)
            })
        };
        self.pages.made_from(address).iter().copied().filter(is_through).collect()
    }

    /// Instructions of the first `blocks` blocks of the fragment with this first path, and of the next one up to `pc`.
    pub fn instructions_before(&self, fragment: u32, blocks: u32, pc: u64) -> u64 {
        let Some(at) = self.paths.fragment(fragment) else { return 0 };
        let spans = self.blocks_of(at).iter().take(blocks as usize + 1).enumerate();
        let lengths = spans.map(|(at, block)| match at == blocks as usize {
            true => (block.address, pc.wrapping_sub(block.address).min(u64::from(block.length)) as usize),
            false => (block.address, block.length as usize),
        });
        let count = |(address, length): (u64, usize)| {
            let code = CodeBytes::read(address);
            skip::instructions(address, &code.bytes[..length.min(code.length)])
        };
        lengths.map(count).sum()
    }

    /// Whether the code of the fragment that `place` lies in is still what it was made from.
    pub fn is_current(&self, position: &AppPosition) -> bool {
        let at = self.paths.fragment(position.progress.fragment);
        at.is_some_and(|at| self.fragment(at).status != FragmentStatus::Dropped)
    }
}

/// Notes for every path of a new fragment how many instructions it has.
fn note_instructions(first_path: u32, translation: &Translation, source: &[SourceBlock]) {
    let mut sums = Vec::with_capacity(source.len() + 1);
    let mut sum = 0;
    for (block, TranslatedBlock { length, .. }) in source.iter().zip(&translation.blocks) {
        sum += skip::instructions(block.address, &block.code[..*length as usize]);
        sums.push(sum);
    }
    for (path, exit) in (first_path..).zip(&translation.exits) {
        skip::note_instructions(path, sums.get(usize::from(exit.blocks) - 1).copied().unwrap_or(sum));
    }
}

/// Changes the displacement of a jump that other threads may be executing.
fn patch_displacement(site: u64, displacement: i32) {
    // SAFETY: the four bytes lie within these eight of our code (see `Emitter::jump_patchable`), which are only ever changed
    // under the lock; other threads see the old or the new jump.
    let word = unsafe { &*((site & !7) as *const AtomicU64) };
    let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
    let at = (site & 7) as usize;
    bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    word.store(u64::from_le_bytes(bytes), Ordering::Release);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use isa::Transfer;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn lookup_is_a_map(steps in prop::collection::vec((0u64..300, any::<u32>(), any::<bool>()), 0..2000)) {
            let mut lookup = Lookup::new();
            let mut model = HashMap::new();
            for (key, number, insert) in steps {
                // Few addresses, far apart and close together, so that they collide and are removed again.
                let address = key % 100 + (key / 100) * (1 << 40);
                if insert {
                    lookup.insert(address, number & 0x7fff_ffff);
                    model.insert(address, number & 0x7fff_ffff);
                } else {
                    lookup.remove(address);
                    model.remove(&address);
                }
                prop_assert_eq!(lookup.get(address), model.get(&address).copied());
            }
            for address in (0..300).map(|key| key % 100 + (key / 100) * (1 << 40)) {
                prop_assert_eq!(lookup.get(address), model.get(&address).copied());
            }
        }
    }

    #[test]
    fn lookup_grows_and_shrinks() {
        let mut lookup = Lookup::new();
        assert_eq!(lookup.get(1), None);
        lookup.remove(1);
        (0..10_000u32).for_each(|number| lookup.insert(u64::from(number) * 16, number));
        (0..10_000u32).filter(|number| number % 3 != 0).for_each(|number| lookup.remove(u64::from(number) * 16));
        for number in 0..10_000 {
            assert_eq!(lookup.get(u64::from(number) * 16), (number % 3 == 0).then_some(number));
        }
    }

    const MISSING: u64 = 0x1234;

    /// An engine of its own, with memory as the injector would make it.
    pub(crate) fn engine() -> Engine {
        static TABLES: AtomicU64 = AtomicU64::new(0x7000_0000);
        let protection = sys::PROT_READ | sys::PROT_WRITE;
        let shared = memory::tests::shared();
        let length = (wire::TABLE_COUNT * wire::TABLE_BYTES) as u64;
        let address = TABLES.fetch_add(length, Ordering::Relaxed);
        let table = sys::map(address, length, protection, sys::MAP_FIXED_NOREPLACE).unwrap();
        let mut engine = Engine::new();
        engine.set_up(shared, Table { address: table, by_pext: true }, MISSING);
        engine
    }

    /// A page of application code; what is not given is `nop`.
    pub(crate) fn page(pieces: &[(usize, &[u8])]) -> u64 {
        let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
        let address = sys::map(0, PAGE, protection, 0).unwrap();
        write(address, &[0x90; PAGE as usize]);
        for (offset, code) in pieces {
            write(address + *offset as u64, code);
        }
        address
    }

    fn write(address: u64, bytes: &[u8]) {
        // SAFETY: the tests only pass pages of their own.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    /// The transfer that stands at an address of the cache.
    fn transfer_at(address: u64) -> Transfer {
        // SAFETY: the tests only pass addresses inside of a region of the cache.
        let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, 16) };
        isa::transfer(&isa::decoder(address, bytes).decode())
    }

    fn jumps_to(target: u64) -> Transfer {
        Transfer::Jump { target }
    }

    /// The records of the code ring so far.
    fn records(engine: &Engine) -> Vec<(u32, Vec<u8>)> {
        let ring = engine.control as usize + wire::CODE_RING_OFFSET;
        let head = engine.control().code_head.load(Ordering::SeqCst) as usize;
        // SAFETY: part of the mapping that `engine` made.
        let bytes = unsafe { core::slice::from_raw_parts(ring as *const u8, head) };
        let mut list = Vec::new();
        let mut at = 0;
        while at < head {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let length = word(at + 4) as usize;
            list.push((word(at), bytes[at + 8..at + 8 + length].to_vec()));
            at += (8 + length + 7) & !7;
        }
        assert_eq!(at, head);
        list
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
    }

    /// test rax, rax; je +0x40
    const BRANCH: [u8; 5] = [0x48, 0x85, 0xc0, 0x74, 0x3b];
    const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];

    #[test]
    fn a_block_and_its_paths_are_announced() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, false).unwrap();
        assert_eq!(engine.find(code, true), Ok(index));
        let records = records(&engine);
        assert_eq!(records.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [code::BLOCK, code::FRAGMENT]);
        let (_, block) = &records[0];
        assert_eq!(block[..8], code.to_le_bytes());
        assert_eq!(block[16..], BRANCH);
        let number = words(&block[8..12])[0];
        let first_path = engine.fragment(index).first_path;
        let exits = [1 | code::TERMINATOR_NOT_TAKEN << 16, 1 | code::TERMINATOR_TAKEN << 16];
        assert_eq!(words(&records[1].1), [first_path, 1, 2, 0, number, exits[0], exits[1]]);
        assert_eq!(engine.control().next_path.load(Ordering::Relaxed), first_path + 1);
    }

    #[test]
    fn code_that_cannot_be_read() {
        memory::tests::catch_faults();
        let mut engine = engine();
        let nothing = sys::map(0, PAGE, 0, 0).unwrap();
        assert_eq!(engine.find(nothing, false), Err(NoFragment::Unreadable));
        assert!(records(&engine).is_empty());
    }

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

    /// A jump to itself consists of the engine's own code: only at its entry a signal can be delivered.
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

    #[test]
    fn an_exit_is_linked() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let from = engine.find(code, false).unwrap();
        let taken = engine.fragment(from).first_path + 1;
        let Exit { target, site, .. } = engine.exit(taken).unwrap();
        assert_eq!(target, code + 0x40);
        let to = engine.find(target, false).unwrap();
        let body = engine.fragment(to).body;
        assert_ne!(transfer_at(site - 1), jumps_to(body));
        engine.link(taken, to);
        engine.link(taken, to);
        assert_eq!(transfer_at(site - 1), jumps_to(body));
        assert_eq!(engine.fragment(to).incoming, [taken]);
        let stub = Engine::stub(engine.fragment(from), taken);
        engine.drop_fragment(to);
        assert_eq!(transfer_at(site - 1), jumps_to(stub), "what led to it leads to the dispatcher");
    }

    #[test]
    fn indirect_jumps_arrive_through_the_table() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, false).unwrap();
        let slot = engine.table_slot(TranslationMode::Instrumented, code).unwrap();
        assert_eq!(slot.load(Ordering::Relaxed), MISSING);
        engine.add_to_table(index);
        let indirect_entry = engine.fragment(index).indirect_entry;
        assert_eq!(slot.load(Ordering::Relaxed), indirect_entry);
        assert_eq!(engine.indirect_entry(index), Some(indirect_entry));
        let end = (indirect_entry..indirect_entry + 64)
            .find(|address| transfer_at(*address) == jumps_to(engine.fragment(index).body));
        assert!(end.is_some());
        assert_eq!(engine.app_position(indirect_entry).unwrap().state, RegisterState::BetweenSafePoints);
        let live = |engine: &Engine| engine.cache.units.iter().map(|unit| unit.live).sum::<u32>();
        let before = live(&engine);
        engine.drop_fragment(index);
        assert_eq!(slot.load(Ordering::Relaxed), MISSING);
        assert_eq!(live(&engine), before - 2, "the fragment and its indirect entry");
    }

    #[test]
    fn a_dropped_fragment_is_found_by_its_paths_only() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let old = engine.find(code, false).unwrap();
        let (body, path) = (engine.fragment(old).body, engine.fragment(old).first_path);
        let position = engine.app_position(body).unwrap();
        assert!(engine.is_current(&position));
        engine.drop_fragment(old);
        engine.drop_fragment(old);
        assert!(!engine.is_current(&position));
        assert!(engine.exit(path).is_some(), "a thread may still be in it");
        let new = engine.find(code, false).unwrap();
        assert_ne!(new, old);
        let blocks = records(&engine).iter().filter(|(kind, _)| *kind == code::BLOCK).count();
        assert_eq!(blocks, 2, "changed code is another block");
    }

    #[test]
    fn hot_blocks_become_a_superblock() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, true).unwrap();
        let second = engine.find(code + 0x40, false).unwrap();
        engine.add_to_table(first);
        let taken = engine.fragment(first).first_path + 1;
        let history = [taken, engine.fragment(second).first_path, wire::word::event(wire::word::TIME, 0), 1];
        let samples = usize::from(superblock::TIERS[0].samples);
        let made: Vec<bool> = (0..samples).map(|_| engine.sample(&history)).collect();
        assert_eq!(made.iter().position(|made| *made), Some(samples - 1));
        let superblock = engine.find(code, false).unwrap();
        assert_eq!(engine.fragment(first).status, FragmentStatus::Replaced);
        let new = engine.fragment(superblock);
        assert_eq!(
            engine.table_slot(TranslationMode::Instrumented, code).unwrap().load(Ordering::Relaxed),
            new.indirect_entry
        );
        let records = records(&engine);
        let (kind, last) = records.last().unwrap();
        let last = words(last);
        assert_eq!((*kind, last[1]), (code::FRAGMENT, 2));
        assert_ne!(last[4] & code::TAKEN, 0, "the branch is taken inside of the superblock");
        assert!(!engine.sample(&history), "the old fragment is not looked at any more");
        assert!(!engine.sample(&[wire::word::event(wire::word::TIME, 0), 1]));
    }

    #[test]
    fn a_superblock_goes_where_most_executions_went() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (BRANCH.len(), &JUMP_TO_ITSELF), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, true).unwrap();
        let not_taken = engine.fragment(first).first_path;
        let taken = not_taken + 1;
        let mut path_at = |address| {
            let at = engine.find(address, false).unwrap();
            engine.fragment(at).first_path
        };
        let (fall, target) = (path_at(code + BRANCH.len() as u64), path_at(code + 0x40));
        // What was sampled is the exception.
        let words = [not_taken, fall, taken, target, taken, target, not_taken, fall, taken, target];
        let second_block = |tier| engine.choose_blocks(first, &words, tier)[1].address;
        assert_eq!(second_block(&superblock::TIERS[0]), code + BRANCH.len() as u64, "cold code follows the sample");
        assert_eq!(second_block(&superblock::TIERS[1]), code + 0x40, "hot code follows the majority");
    }

    #[test]
    fn stale_history_makes_no_superblock() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, false).unwrap();
        let second = engine.find(code + 0x40, false).unwrap();
        let history = [engine.fragment(first).first_path + 1, engine.fragment(second).first_path];
        engine.drop_fragment(second);
        assert!((0..100).all(|_| !engine.sample(&history)));
    }

    #[test]
    fn locked_instructions_are_translated_anew_when_there_are_threads() {
        let mut engine = engine();
        // lock inc dword ptr [rax]; jmp to itself
        let code = page(&[(0, &BRANCH), (0x40, &[0xf0, 0xff, 0x00, 0xeb, 0xfe])]);
        let plain = engine.find(code, false).unwrap();
        let locked = engine.find(code + 0x40, false).unwrap();
        engine.order_threads();
        assert_eq!(engine.find(code, false), Ok(plain));
        let again = engine.find(code + 0x40, false).unwrap();
        assert_ne!(again, locked);
        let length = |at: FragmentRef| engine.blocks_of(at)[0].length;
        assert_eq!((length(locked), length(again)), (5, 3));
    }

    #[test]
    fn code_that_is_written_to_is_dropped() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        assert!(!engine.written(code), "it is not protected");
        engine.remapped(code, PAGE, sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC);
        let old = engine.find(code, false).unwrap();
        assert!(engine.written(code + 100));
        write(code, &[0xc3]); // faults if the page is still protected
        let new = engine.find(code, false).unwrap();
        assert_ne!(old, new);
        assert_eq!(engine.exit(engine.fragment(new).first_path).unwrap().kind, ExitKind::Indirect);
        assert!(engine.release_guarded());
        assert!(!engine.release_guarded());
        write(code, &BRANCH);
        assert_ne!(engine.find(code, false), Ok(new));
    }
}
