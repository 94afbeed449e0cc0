//! Fragments: translated paths, their exits, and how they are found by application address and by cache address.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use wire::{CODE_RING_BYTES, Control, code, symbol};

use crate::cache::Cache;
use crate::emit::Emitter;
use crate::lock::Mutex;
use crate::translate::{
    self, BlockResult, Error, ExitKind, Mark, Outcomes, PathBlock, STUB_STRIDE, State, Surroundings, Translation,
};
use crate::{memory, ring, sys};

/// Everything that threads share. Translation and linking happen under this lock.
pub static ENGINE: Mutex<Engine> = Mutex::new(Engine::new());

#[derive(Clone, Copy)]
pub struct Fragment {
    /// Application address of its first block.
    pub address: u64,
    /// First byte in the cache; an arrival stands between it and `body`, if there is one.
    pub start: u64,
    pub body: u64,
    pub end: u64,
    /// Where indirect jumps arrive; 0 if they have not yet.
    pub arrival: u64,
    /// Number of its first block.
    pub block: u32,
    marks: u32,
    mark_count: u16,
    block_count: u16,
    blocks: u32,
}

/// A block of a fragment's path.
#[derive(Clone, Copy)]
pub struct PathPart {
    pub address: u64,
    pub before: Outcomes,
}

#[derive(Clone, Copy)]
pub struct Exit {
    pub kind: ExitKind,
    pub target: u64,
    pub site: u64,
    pub fragment: u32,
}

/// What a place in the cache means for the application.
pub struct Place {
    /// The next instruction.
    pub pc: u64,
    pub state: State,
    /// The block the path started with, and the outcomes since then, which are not recorded yet.
    pub path_start: u64,
    pub outcomes: Outcomes,
}

pub struct Engine {
    control: u64,
    table: u64,
    cache: Cache,
    fragments: Vec<Fragment>,
    exits: Vec<Exit>,
    marks: Vec<Mark>,
    parts: Vec<PathPart>,
    /// Fragment by application address.
    by_address: Lookup,
    /// Block number by application address.
    blocks: Lookup,
    /// Extent of all translated application code, to dismiss changes elsewhere quickly.
    lowest: u64,
    highest: u64,
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
            table: 0,
            cache: Cache::new(),
            fragments: Vec::new(),
            exits: Vec::new(),
            marks: Vec::new(),
            parts: Vec::new(),
            by_address: Lookup::new(),
            blocks: Lookup::new(),
            lowest: u64::MAX,
            highest: 0,
        }
    }

    /// Tells the engine where its surroundings are. `missing` is where unknown indirect targets go.
    pub fn set_up(&mut self, control: u64, table: u64, missing: u64) {
        self.control = control;
        self.table = table;
        for slot in self.table_slots() {
            slot.store(missing, Ordering::Relaxed);
        }
    }

    fn table_slots(&self) -> &'static [AtomicU64] {
        // SAFETY: the injector made the table of this size, for this use only, and it stays.
        unsafe { core::slice::from_raw_parts(self.table as *const AtomicU64, wire::TABLE_BYTES / 8) }
    }

    fn control(&self) -> &'static Control {
        // SAFETY: the shared mapping stays as long as the process.
        unsafe { &*(self.control as *const Control) }
    }

    pub fn exit(&self, number: u32) -> Exit {
        self.exits[number as usize]
    }

    pub fn fragment(&self, index: u32) -> &Fragment {
        &self.fragments[index as usize]
    }

    /// The fragment for the code at `address`, translated now if need be.
    pub fn find(&mut self, address: u64, by_arrival: bool) -> Result<u32, Error> {
        match self.by_address.get(address) {
            Some(index) => Ok(index),
            None => self.translate(address, by_arrival),
        }
    }

    fn translate(&mut self, address: u64, by_arrival: bool) -> Result<u32, Error> {
        let code = CodeBytes::read(address);
        let path = [PathBlock { address, code: &code.bytes[..code.length], next: None }];
        let (fragment, translation) = self.emit(&path, by_arrival)?;
        let length = translation.blocks[0].length as usize;
        self.announce(address, fragment.block, &code.bytes[..length]);
        self.blocks.insert(address, fragment.block);
        let index = self.register(fragment, &translation, &path);
        self.by_address.insert(address, index);
        Ok(index)
    }

    /// Number of the block at `address`: the one it has, or a new one.
    fn block_number(&self, address: u64) -> u32 {
        self.blocks.get(address).unwrap_or_else(|| self.control().next_block.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes the code and the stubs of a path into the cache.
    fn emit(&mut self, path: &[PathBlock], by_arrival: bool) -> Result<(Fragment, Translation), Error> {
        let address = path[0].address;
        let block = self.block_number(address);
        let Some(index) = self.cache.region_near(address) else {
            panic!("no room for translated code near {address:#x}");
        };
        let region = &mut self.cache.regions[index];
        // SAFETY: under the lock, and the new code is executed only after this function.
        let room = unsafe { region.room() };
        let (room, stubs) = room.split_at_mut(room.len() / 2);
        let start = region.code_next;
        let mut out = Emitter::new(room, start);
        if by_arrival {
            out.arrival(address, symbol::arrive(block));
        }
        out.align(8);
        let body = out.here();
        let surroundings = Surroundings {
            table: self.table as u32,
            first_exit: self.exits.len() as u32,
            stubs_end: region.stubs_next,
        };
        let translation = translate::translate(path, &mut out, &surroundings)?;
        out.align(8);
        assert!(!out.overflowed(), "a fragment is larger than the room in a region");
        let end = out.here();
        let stub_bytes = translation.exits.len() * STUB_STRIDE;
        let stubs_length = stubs.len();
        let mut out = Emitter::new(&mut stubs[stubs_length - stub_bytes..], region.stubs_next - stub_bytes as u64);
        for index in (0..translation.exits.len()).rev() {
            let stub = out.position();
            out.leave(surroundings.first_exit + index as u32);
            while out.position() < stub + STUB_STRIDE {
                out.bytes(&[0x90]);
            }
        }
        region.code_next = end;
        region.stubs_next -= stub_bytes as u64;
        let arrival = if by_arrival { start } else { 0 };
        let fragment =
            Fragment { address, start, body, end, arrival, block, marks: 0, mark_count: 0, block_count: 0, blocks: 0 };
        region.fragments.push(self.fragments.len() as u32);
        Ok((fragment, translation))
    }

    fn register(&mut self, mut fragment: Fragment, translation: &Translation, path: &[PathBlock]) -> u32 {
        let index = self.fragments.len() as u32;
        fragment.marks = self.marks.len() as u32;
        fragment.mark_count = translation.marks.len() as u16;
        fragment.blocks = self.parts.len() as u32;
        fragment.block_count = translation.blocks.len() as u16;
        self.marks.extend_from_slice(&translation.marks);
        for (block, BlockResult { before, length }) in path.iter().zip(&translation.blocks) {
            self.parts.push(PathPart { address: block.address, before: *before });
            self.lowest = self.lowest.min(block.address);
            self.highest = self.highest.max(block.address + u64::from(*length));
        }
        self.exits.extend(translation.exits.iter().map(|exit| Exit {
            kind: exit.kind,
            target: exit.target,
            site: exit.site,
            fragment: index,
        }));
        self.fragments.push(fragment);
        index
    }

    /// Where indirect jumps to this fragment arrive; made now if they never did before.
    pub fn arrival(&mut self, index: u32) -> u64 {
        let fragment = self.fragments[index as usize];
        if fragment.arrival != 0 {
            return fragment.arrival;
        }
        let Some(region) = self.cache.region_near(fragment.body) else {
            panic!("no room for translated code near {:#x}", fragment.body);
        };
        let region = &mut self.cache.regions[region];
        let start = region.code_next;
        // SAFETY: under the lock, and nobody jumps there before this function returns.
        let mut out = Emitter::new(unsafe { region.room() }, start);
        out.arrival(fragment.address, symbol::arrive(fragment.block));
        out.jump(fragment.body);
        out.align(8);
        let end = out.here();
        region.code_next = end;
        region.fragments.push(self.fragments.len() as u32);
        // All of it lies before the body: a thread in it has not arrived yet.
        self.fragments.push(Fragment { start, body: end, end, mark_count: 0, block_count: 0, ..fragment });
        self.fragments[index as usize].arrival = start;
        start
    }

    /// Makes indirect jumps to this fragment find it at once.
    pub fn enter_in_table(&mut self, index: u32) {
        let arrival = self.arrival(index);
        let address = self.fragments[index as usize].address;
        self.table_slots()[(address & 0xffff) as usize].store(arrival, Ordering::Release);
    }

    /// Leads a direct exit to its target without us from now on, if a jump reaches that far.
    pub fn link(&mut self, exit: &Exit, target: u32) {
        let body = self.fragments[target as usize].body;
        let displacement = body.wrapping_sub(exit.site + 4) as i64;
        if exit.site == 0 {
            return;
        }
        if let Ok(displacement) = i32::try_from(displacement) {
            // SAFETY: the four bytes lie within one cache line of our code; other threads see the old or the new jump.
            unsafe { (exit.site as *mut i32).write_volatile(displacement) };
        }
    }

    /// What a place in the cache means; `None` if `address` is not in translated code.
    pub fn place(&self, address: u64) -> Option<Place> {
        let region = self.cache.region_of(address)?;
        let after = region.fragments.partition_point(|&index| self.fragments[index as usize].start <= address);
        let dirty = Place { pc: 0, state: State::Dirty, path_start: 0, outcomes: Outcomes::default() };
        let Some(&index) = after.checked_sub(1).and_then(|at| region.fragments.get(at)) else { return Some(dirty) };
        let fragment = &self.fragments[index as usize];
        if address < fragment.body || address >= fragment.end {
            return Some(dirty);
        }
        let offset = (address - fragment.body) as u16;
        let marks = &self.marks[fragment.marks as usize..][..usize::from(fragment.mark_count)];
        let after = marks.partition_point(|mark| mark.cache <= offset);
        let Some(mark) = after.checked_sub(1).and_then(|at| marks.get(at)) else { return Some(dirty) };
        let part = self.parts[fragment.blocks as usize + usize::from(mark.block)];
        Some(Place {
            pc: part.address + u64::from(mark.offset),
            state: mark.state,
            path_start: fragment.address,
            outcomes: part.before,
        })
    }

    /// The block whose outcomes translated code at `address` is about to record; 0 if it records an arrival.
    pub fn path_start(&self, address: u64) -> u64 {
        let Some(region) = self.cache.region_of(address) else { return 0 };
        let after = region.fragments.partition_point(|&index| self.fragments[index as usize].start <= address);
        let fragment = after.checked_sub(1).map(|at| &self.fragments[region.fragments[at] as usize]);
        fragment.filter(|fragment| address >= fragment.body).map_or(0, |fragment| fragment.address)
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

    fn announce(&mut self, address: u64, block: u32, bytes: &[u8]) {
        self.append_code(code::BLOCK, &[&address.to_le_bytes(), &block.to_le_bytes(), &[0; 4], bytes]);
    }

    pub fn announce_module(&mut self, address: u64, length: u64, file_offset: u64, path: &[u8]) {
        let tsc = sys::tsc().to_le_bytes();
        let fixed = [address.to_le_bytes(), length.to_le_bytes(), file_offset.to_le_bytes(), tsc];
        self.append_code(code::MODULE, &[fixed.as_flattened(), path]);
    }
}

/// A hash table from addresses to numbers.
pub struct Lookup {
    entries: Vec<(u64, u32)>,
    count: usize,
}

const EMPTY: u32 = u32::MAX;

impl Default for Lookup {
    fn default() -> Self {
        Self::new()
    }
}

impl Lookup {
    pub const fn new() -> Self {
        Self { entries: Vec::new(), count: 0 }
    }

    fn slot(&self, address: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.entries[at].1 != EMPTY && self.entries[at].0 != address {
            at = (at + 1) & mask;
        }
        at
    }

    pub fn get(&self, address: u64) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let (_, number) = self.entries[self.slot(address)];
        (number != EMPTY).then_some(number)
    }

    pub fn insert(&mut self, address: u64, number: u32) {
        if self.count * 2 >= self.entries.len() {
            self.grow();
        }
        let at = self.slot(address);
        if self.entries[at].1 == EMPTY {
            self.count += 1;
        }
        self.entries[at] = (address, number);
    }

    /// Keeps the entries for which `keep` holds.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let capacity = self.entries.len();
        let old = core::mem::replace(&mut self.entries, alloc::vec![(0, EMPTY); capacity]);
        self.count = 0;
        for (address, number) in old {
            if number != EMPTY && keep(address) {
                self.insert(address, number);
            }
        }
    }

    fn grow(&mut self) {
        let capacity = (self.entries.len() * 2).max(1024);
        let old = core::mem::replace(&mut self.entries, alloc::vec![(0, EMPTY); capacity]);
        self.count = 0;
        for (address, number) in old {
            if number != EMPTY {
                self.insert(address, number);
            }
        }
    }
}
