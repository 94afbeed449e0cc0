//! Fragments: translated code in the code cache, and how it is found by application address, by
//! path and by cache address.
//!
//! A [`Fragment`] is made of one block ([`Engine::find`]) or, along a hot path, of several
//! (`superblock`). Its exits are in [`crate::link`], its indirect entry is in
//! [`crate::indirect`]. A fragment is dropped when its code changes, or with its unit of the code
//! cache ([`crate::reclaim`]).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use entity::{AppPc, FragmentId, PathId};
use wire::code;

use crate::cache_pc::CachePc;
use crate::change::PAGE;
use crate::emit::{Emitter, IndirectTable};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::link::ExitLink;
use crate::select::TranslationMode;
use crate::translate::{
    self, Order, STUB_STRIDE, SourceBlock, TranslatedBlock, Translation, TranslationOptions, Unreadable,
};
use crate::{failure, memory, skip};

mod position;
mod superblock;

pub use position::{AppPosition, Progress};
pub use superblock::PATH_INSTRUCTIONS_MAX;

/// A reference to a fragment: its unit of the code cache, and its index there. It is valid until
/// the unit is reclaimed. Longer-lived references are the numbers of fragments and paths, which are
/// never reused: see `paths::PathTable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentRef(pub u32);

impl FragmentRef {
    /// More bits than any unit has room for fragments.
    const UNIT_BITS: u32 = 17;

    pub(crate) fn new(unit: usize, index: usize) -> Self {
        Self((unit << Self::UNIT_BITS | index) as u32)
    }

    pub fn unit(self) -> usize {
        (self.0 >> Self::UNIT_BITS) as usize
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & ((1 << Self::UNIT_BITS) - 1)) as usize
    }
}

/// Instead of a fragment's number: none. Zero is no path.
pub(crate) const NO_FRAGMENT: FragmentId = FragmentId::new(PathId::new(0));

pub struct Fragment {
    /// The address of the first block.
    pub address: AppPc,
    /// First byte in the code cache. The indirect entry, if the fragment was translated with one,
    /// lies between `start` and `body`.
    pub start: CachePc,
    pub body: CachePc,
    pub end: CachePc,
    /// Address of the indirect entry, if there is one yet.
    pub indirect_entry: CachePc,
    /// Its number, and so the path to its first exit.
    pub id: FragmentId,
    /// Samples of the profile that met it, and those of them in which it was left early.
    pub(crate) samples: u16,
    pub(crate) early: u16,
    /// How often a superblock has replaced the fragment for this address.
    pub(crate) generation: u8,
    /// Whether threads can still enter it.
    pub status: FragmentStatus,
    /// It compares its first block's code with memory at every entry.
    pub(crate) checked: bool,
    /// It is not a fragment, but the separate indirect entry of the fragment with the same number.
    pub(crate) is_indirect_entry: bool,
    /// The mode of the threads that use it, and whether the recorder leaves its paths out.
    pub(crate) mode: TranslationMode,
    pub(crate) uninstrumented: bool,
    /// Its exits always go to the dispatcher.
    pub(crate) unlinkable: bool,
    /// Its entries of the translation map, its blocks and its exits in the unit's tables.
    pub(crate) first_map_entry: u32,
    pub(crate) map_entry_count: u16,
    pub(crate) block_count: u16,
    pub(crate) first_block: u32,
    pub(crate) first_exit: u32,
    pub(crate) exit_count: u16,
    /// The end of its first exit's stub. The stubs of the other exits lie below.
    pub(crate) stubs_end: CachePc,
    /// The paths of the exits that are linked to it. Some of them may have been reclaimed.
    pub(crate) incoming: Vec<PathId>,
}

/// Whether a fragment can be entered, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentStatus {
    Live,
    /// A superblock has replaced it. Its code has not changed.
    Replaced,
    /// Its code has changed, or its unit is given up.
    Dropped,
}

/// A block of a fragment: its application address and length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockSpan {
    pub(crate) address: AppPc,
    pub(crate) length: u32,
}

impl BlockSpan {
    /// The memory that its code is in.
    pub(crate) fn memory(self) -> Range<u64> {
        self.address.get()..self.address.get() + u64::from(self.length)
    }
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

/// Application code from an address on, as far as it is readable.
struct CodeBytes {
    bytes: [u8; code::BLOCK_BYTES_MAX],
    length: usize,
}

impl CodeBytes {
    fn read(address: AppPc) -> Self {
        let mut code = Self { bytes: [0; code::BLOCK_BYTES_MAX], length: 0 };
        code.length = memory::read_bytes(address.get(), &mut code.bytes);
        code
    }
}

/// Lookup.
impl Engine {
    pub fn fragment(&self, at: FragmentRef) -> &Fragment {
        &self.cache.units[at.unit()].fragments[at.index()]
    }

    pub(crate) fn fragment_mut(&mut self, at: FragmentRef) -> &mut Fragment {
        &mut self.cache.units[at.unit()].fragments[at.index()]
    }

    /// The blocks of a fragment.
    pub(crate) fn blocks_of(&self, at: FragmentRef) -> &[BlockSpan] {
        let fragment = self.fragment(at);
        &self.cache.units[at.unit()].blocks[fragment.first_block as usize..][..usize::from(fragment.block_count)]
    }

    /// The fragment with this number, unless it is gone.
    pub(crate) fn reference(&self, id: FragmentId) -> Option<FragmentRef> {
        self.paths.fragment(id.first_path())
    }

    /// The fragment and exit of a path.
    fn path(&self, path: PathId) -> Option<(FragmentRef, ExitLink)> {
        Some((self.paths.fragment(path)?, self.exit(path)?))
    }

    /// Words of data behind the word of a path.
    pub fn data_words(&self, path: PathId) -> Option<u16> {
        self.paths.data_words(path)
    }

    /// Whether the accesses on a path are recorded.
    pub fn records_data(&self, path: PathId) -> bool {
        let is_uninstrumented = self.paths.fragment(path).is_some_and(|at| self.fragment(at).uninstrumented);
        self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE && !is_uninstrumented
    }

    /// Returns the instrumented fragment for `address`, and translates it if there is none.
    pub fn find(&mut self, address: AppPc, with_indirect_entry: bool) -> Result<FragmentRef, NoFragment> {
        self.find_in(TranslationMode::Instrumented, address, with_indirect_entry)
    }

    /// Returns the fragment for `address` in `mode`, and translates it if there is none.
    pub fn find_in(
        &mut self,
        mode: TranslationMode,
        address: AppPc,
        with_indirect_entry: bool,
    ) -> Result<FragmentRef, NoFragment> {
        match self.by_address[mode as usize].get(address) {
            Some(index) => Ok(FragmentRef(index)),
            None => self.translate(mode, address, with_indirect_entry),
        }
    }

    /// The fragments of a mode, or of all modes, that have a block at `address`.
    pub fn fragments_through(&self, address: AppPc, mode: Option<TranslationMode>) -> Vec<FragmentId> {
        let is_through = |id: &FragmentId| {
            self.reference(*id).is_some_and(|at| {
                let is_wanted = mode.is_none_or(|mode| self.fragment(at).mode == mode);
                is_wanted && self.blocks_of(at).iter().any(|block| block.address == address)
            })
        };
        self.pages.made_from(address).iter().copied().filter(is_through).collect()
    }

    /// Counts the instructions of the first `blocks` blocks of a fragment, and those of the next
    /// block up to `pc`.
    pub fn instructions_before(&self, fragment: FragmentId, blocks: u32, pc: AppPc) -> u64 {
        let Some(at) = self.reference(fragment) else { return 0 };
        let spans = self.blocks_of(at).iter().take(blocks as usize + 1).enumerate();
        let lengths = spans.map(|(at, block)| match at == blocks as usize {
            true => (block.address, (pc - block.address).min(u64::from(block.length)) as usize),
            false => (block.address, block.length as usize),
        });
        let count = |(address, length): (AppPc, usize)| {
            let code = CodeBytes::read(address);
            skip::instructions(address, &code.bytes[..length.min(code.length)])
        };
        lengths.map(count).sum()
    }
}

/// Translation into the code cache.
impl Engine {
    fn translate(
        &mut self,
        mode: TranslationMode,
        address: AppPc,
        with_indirect_entry: bool,
    ) -> Result<FragmentRef, NoFragment> {
        self.selection.refresh(self.control());
        self.pages.guard(address.get());
        let code = CodeBytes::read(address);
        if code.length == 0 || failure::is_injected(self.control(), Failure::Unreadable) {
            return Err(NoFragment::Unreadable);
        }
        let room = self.selection.room(address).min(self.sections.room(address)).min(code.length as u64) as usize;
        let check = self.pages.is_checked_block(address, &code.bytes[..code.length]);
        let is_entry = self.selection.records_stack_pointer(address);
        let source_of =
            |length: usize| [SourceBlock { address, code: &code.bytes[..length], next: None, check, is_entry }];
        // A first instruction that crosses the boundary belongs to the side that it begins on.
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
        let last = address.get() + u64::from(translation.blocks[0].length) - 1;
        if last / PAGE != address.get() / PAGE && self.pages.is_writable(last) {
            self.pages.guard(last);
            let length = translation.blocks[0].length as usize;
            if CodeBytes::read(address).bytes[..length] != code.bytes[..length] {
                // Another thread has changed the code before its second page was protected.
                return self.translate(mode, address, with_indirect_entry);
            }
        }
        self.reserve(fragment, translation)?;
        let (fragment, translation) = emitted;
        let at = self.register(fragment, &translation, &source);
        self.by_address[mode as usize].insert(address, at.0);
        Ok(at)
    }

    /// Reserves memory in all tables that [`Self::register`] adds to.
    fn reserve(&mut self, fragment: &Fragment, translation: &Translation) -> Result<(), Failure> {
        let unit = self.cache.unit_of(fragment.start).ok_or(Failure::NoRoom)?;
        let unit = &mut self.cache.units[unit];
        let has_memory = unit.fragments.try_reserve(2).is_ok()
            && unit.exits.try_reserve(translation.exits.len()).is_ok()
            && unit.map.try_reserve(translation.map.len()).is_ok()
            && unit.blocks.try_reserve(translation.blocks.len()).is_ok()
            && self.paths.reserve(fragment.id.first_path(), translation.exits.len())
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

    /// Translates blocks and writes code and exit stubs into the code cache.
    fn emit(
        &mut self,
        mode: TranslationMode,
        source: &[SourceBlock],
        with_indirect_entry: bool,
        inline_indirect: bool,
    ) -> Result<(Fragment, Translation), NoFragment> {
        let address = source[0].address;
        let is_unlinkable = |block: &SourceBlock| {
            self.selection.is_unlinkable(mode, block.address, block.code) || self.sections.contains(block.address)
        };
        let unlinkable = source.iter().any(is_unlinkable);
        let table = if unlinkable { IndirectTable { address: 0, ..self.table } } else { self.table_of(mode) };
        let id = FragmentId::new(PathId::new(self.control().next_path.load(Ordering::Relaxed) + 1));
        let uninstrumented = self.selection.is_uninstrumented(mode, address);
        let data = if uninstrumented { wire::DATA_NONE } else { self.control().data.load(Ordering::Relaxed) };
        let index = self.unit_near(address.get()).ok_or(Failure::NoRoom)?;
        let unit = &mut self.cache.units[index];
        let (start, stubs_end) = (unit.code_next, unit.stubs_next);
        // SAFETY: under the lock, and the new code is executed only after this function.
        let room = unsafe { unit.room() };
        let (room, stubs) = room.split_at_mut(room.len() / 2);
        let mut out = Emitter::new(room, start);
        if with_indirect_entry {
            out.indirect_entry(address);
        }
        out.align(8);
        let body = out.here();
        let options = TranslationOptions {
            table,
            inline_indirect,
            order: if self.ordered && mode == TranslationMode::Instrumented { self.order } else { Order::None },
            data,
            has_avx512: self.has_avx512,
            fragment: id,
            stubs_end,
        };
        let translation = translate::translate(source, &mut out, &options)?;
        out.align(8);
        let stub_bytes = translation.exits.len() * STUB_STRIDE;
        if out.overflowed() || stub_bytes > stubs.len() {
            return Err(Failure::NoRoom.into());
        }
        let end = out.here();
        let stubs_start = stubs.len() - stub_bytes;
        write_stubs(&mut stubs[stubs_start..], stubs_end - stub_bytes as u64, id, translation.exits.len());
        let fragment = Fragment {
            address,
            start,
            body,
            end,
            indirect_entry: if with_indirect_entry { start } else { CachePc::NONE },
            id,
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

    /// Announces a fragment and adds it to the tables. [`Self::reserve`] has made room for it.
    fn register(&mut self, mut fragment: Fragment, translation: &Translation, source: &[SourceBlock]) -> FragmentRef {
        self.announce_fragment(&fragment, translation, source);
        if self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE && !fragment.uninstrumented {
            self.announce_descriptors(fragment.id, translation);
        }
        self.control().next_path.fetch_add(translation.exits.len() as u32, Ordering::Relaxed);
        if fragment.mode != TranslationMode::Instrumented {
            note_instructions(fragment.id, translation, source);
        }
        if translation.has_locked && !self.ordered && fragment.mode == TranslationMode::Instrumented {
            self.note_unordered(fragment.id);
        }
        // `emit` has chosen the unit.
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
        let id = fragment.id;
        unit.exits.extend(translation.exits.iter().map(|exit| ExitLink {
            kind: exit.kind,
            target: exit.target,
            site: exit.site,
            is_linkable: !fragment.unlinkable,
            blocks: exit.blocks,
            linked_to: NO_FRAGMENT,
        }));
        for (block, TranslatedBlock { length, .. }) in source.iter().zip(&translation.blocks) {
            let span = BlockSpan { address: block.address, length: *length };
            unit.blocks.push(span);
            self.pages.add(id, span.memory());
        }
        unit.fragments.push(fragment);
        for (index, exit) in (0..).zip(&translation.exits) {
            self.paths.insert(id.path(index), at, (exit.data / 4) as u16);
        }
        at
    }

    /// Notes a fragment with locked instructions. Reclaimed ones are removed when the list is full.
    fn note_unordered(&mut self, id: FragmentId) {
        if self.unordered.len() == self.unordered.capacity() {
            let paths = &self.paths;
            self.unordered.retain(|id| paths.fragment(id.first_path()).is_some());
        }
        self.unordered.push(id);
    }
}

/// Fragments that are no longer valid.
impl Engine {
    /// Drops a fragment: links and table slots that led to it lead to the dispatcher again.
    pub fn drop_fragment(&mut self, at: FragmentRef) {
        if self.fragment(at).status != FragmentStatus::Live {
            // A thread may still loop in a fragment that has been replaced.
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

    /// Drops the fragment with this number, unless it is gone.
    pub fn drop_by_id(&mut self, id: FragmentId) {
        if let Some(at) = self.reference(id) {
            self.drop_fragment(at);
        }
    }

    /// Removes a live fragment from the indirect-branch table and from the lists of pages, and sets
    /// its status.
    fn unregister(&mut self, at: FragmentRef, status: FragmentStatus) {
        let fragment = self.fragment_mut(at);
        fragment.status = status;
        let (mode, address, id) = (fragment.mode, fragment.address, fragment.id);
        let indirect_entry = core::mem::take(&mut fragment.indirect_entry);
        let has_own_entry = (fragment.start..fragment.body).contains(&indirect_entry);
        self.cache.units[at.unit()].live -= 1;
        if !indirect_entry.is_none() {
            self.remove_from_table(mode, address, indirect_entry);
        }
        if !indirect_entry.is_none() && !has_own_entry {
            self.drop_indirect_entry(indirect_entry);
        }
        for index in 0..self.blocks_of(at).len() {
            let block = self.blocks_of(at)[index];
            self.pages.remove(id, block.memory());
        }
    }

    /// Drops all fragments of a unit: see [`crate::reclaim`].
    pub(crate) fn drop_unit(&mut self, unit: usize) {
        for index in 0..self.cache.units[unit].fragments.len() {
            let at = FragmentRef::new(unit, index);
            let fragment = self.fragment(at);
            if fragment.is_indirect_entry && fragment.status == FragmentStatus::Live {
                let (mode, address, start) = (fragment.mode, fragment.address, fragment.start);
                self.remove_from_table(mode, address, start);
                self.drop_indirect_entry(start);
                let owner = self.reference(self.fragment(at).id);
                if let Some(owner) = owner.filter(|owner| self.fragment(*owner).indirect_entry == start) {
                    self.fragment_mut(owner).indirect_entry = CachePc::NONE;
                }
            } else if !fragment.is_indirect_entry {
                self.drop_fragment(at);
            }
        }
    }

    /// Frees a unit that no thread executes any more.
    pub(crate) fn clear_unit(&mut self, unit: usize) {
        for index in 0..self.cache.units[unit].fragments.len() {
            let fragment = &self.cache.units[unit].fragments[index];
            let (id, exit_count) = (fragment.id, u32::from(fragment.exit_count));
            for exit in 0..exit_count {
                self.paths.remove(id.path(exit));
            }
        }
        self.cache.units[unit].clear();
    }
}

/// Writes the exit stubs of a fragment. That of the last exit comes first.
fn write_stubs(room: &mut [u8], address: CachePc, fragment: FragmentId, exit_count: usize) {
    let mut out = Emitter::new(room, address);
    for index in (0..exit_count).rev() {
        let stub = out.position();
        out.exit_stub(fragment.path(index as u32).get());
        while out.position() < stub + STUB_STRIDE {
            out.bytes(&[0x90]);
        }
    }
}

/// Notes the instruction count of every path of a new fragment.
fn note_instructions(id: FragmentId, translation: &Translation, source: &[SourceBlock]) {
    let mut sums = Vec::with_capacity(source.len() + 1);
    let mut sum = 0;
    for (block, TranslatedBlock { length, .. }) in source.iter().zip(&translation.blocks) {
        sum += skip::instructions(block.address, &block.code[..*length as usize]);
        sums.push(sum);
    }
    for (index, exit) in (0..).zip(&translation.exits) {
        skip::note_instructions(id.path(index), sums.get(usize::from(exit.blocks) - 1).copied().unwrap_or(sum));
    }
}

#[cfg(test)]
mod tests {
    use wire::code::Definition;

    use super::*;
    use crate::sys;
    use crate::testing::{BRANCH, engine, page, records, write};
    use crate::translate::ExitKind;

    #[test]
    fn code_that_cannot_be_read() {
        memory::tests::catch_faults();
        let mut engine = engine();
        let nothing = sys::map(0, PAGE, 0, 0).unwrap();
        assert_eq!(engine.find(AppPc::new(nothing), false), Err(NoFragment::Unreadable));
        assert!(records(&engine).is_empty());
    }

    #[test]
    fn a_dropped_fragment_is_found_by_its_paths_only() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let old = engine.find(code, false).unwrap();
        let (body, path) = (engine.fragment(old).body, engine.fragment(old).id.first_path());
        let position = engine.app_position(body).unwrap();
        assert!(engine.is_current(&position));
        engine.drop_fragment(old);
        engine.drop_fragment(old);
        assert!(!engine.is_current(&position));
        assert!(engine.exit(path).is_some(), "a thread may still be in it");
        let new = engine.find(code, false).unwrap();
        assert_ne!(new, old);
        let blocks = records(&engine).iter().filter(|record| matches!(record, Definition::Block(_))).count();
        assert_eq!(blocks, 2, "changed code is another block");
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
        assert!(!engine.on_write_fault(code.get()), "it is not protected");
        engine.on_remap(code.get(), PAGE, sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC);
        let old = engine.find(code, false).unwrap();
        assert!(engine.on_write_fault(code.get() + 100));
        write(code, &[0xc3]); // faults if the page is still protected
        let new = engine.find(code, false).unwrap();
        assert_ne!(old, new);
        assert_eq!(engine.exit(engine.fragment(new).id.first_path()).unwrap().kind, ExitKind::Indirect);
        assert!(engine.release_guarded());
        assert!(!engine.release_guarded());
        write(code, &BRANCH);
        assert_ne!(engine.find(code, false), Ok(new));
    }
}
