//! Memory accesses, and how the reader decodes them from the data behind a path.
//!
//! An [`AccessBuffer`] collects the accesses of a batch, step by step and event by event. The
//! descriptors of the path say how to decode them ([`crate::descriptors`]). The iterations of a
//! string instruction stay together in a [`StringRun`] until a caller iterates them, because a file
//! could claim any number of them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;
use wire::code::{HAS_BASE, HAS_FS, HAS_INDEX, IS_SHORT, MASK_BITS, MASK_SIGNS};
use wire::word::{
    ACCESS_WRITES, STRING_BACKWARDS, STRING_READS_DESTINATION, STRING_READS_SOURCE, STRING_WRITES_DESTINATION,
};

use crate::descriptors::{CompiledAccess, DescriptorTable, Form};
use crate::event::ExplicitAccess;
use crate::span::{Span, iterations, register};
use crate::visit::Operand;

/// Whether memory was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    Read,
    Write,
}

/// One memory access of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pc: AppPc,
    address: u64,
    /// Bytes; the top bit is set for a write.
    size: u32,
    /// Position of its value among those of the batch.
    value: u32,
}

/// In [`Access::size`].
const WRITE: u32 = 1 << 31;
/// In [`Access::size`]: the entry is not an access but a [`StringRun`], whose index is in `value`.
const RUN: u32 = WRITE - 1;
const NO_VALUE: u32 = u32::MAX;

impl Access {
    /// Returns the address of the instruction.
    #[must_use]
    #[inline]
    pub fn pc(&self) -> AppPc {
        self.pc
    }

    /// Returns the address of the first byte.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u32 {
        self.size & !WRITE
    }

    #[must_use]
    #[inline]
    pub fn kind(&self) -> AccessKind {
        if self.is_write() { AccessKind::Write } else { AccessKind::Read }
    }

    #[must_use]
    #[inline]
    pub fn is_write(&self) -> bool {
        self.size & WRITE != 0
    }
}

/// Iterations of a string instruction.
#[derive(Clone, Copy, Debug, Default)]
struct StringRun {
    count: u64,
    first: StridedAccess,
    second: Option<StridedAccess>,
}

/// An access that every iteration makes once.
#[derive(Clone, Copy, Debug, Default)]
struct StridedAccess {
    address: u64,
    /// Distance from one iteration's address to the next.
    stride: u64,
    /// Size and direction, as in [`Access`].
    size: u32,
    value: u32,
    value_stride: u32,
    /// Addresses are cut to these bits, relative to `origin`.
    cut: u64,
    origin: u64,
}

impl StridedAccess {
    fn access(&self, pc: AppPc, iteration: u64) -> Access {
        let address = self.address.wrapping_add(self.stride.wrapping_mul(iteration)) & self.cut;
        let value = match self.value {
            NO_VALUE => NO_VALUE,
            // A u32 holds any position of a value in a batch.
            value => value.wrapping_add(u32::try_from(iteration).unwrap_or(0).wrapping_mul(self.value_stride)),
        };
        Access { pc, address: address.wrapping_add(self.origin), size: self.size, value }
    }
}

/// The accesses of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessBuffer {
    entries: Vec<Access>,
    runs: Vec<StringRun>,
    values: Vec<u8>,
    /// The range in `entries` of each step.
    steps: Vec<[u32; 2]>,
    /// The range in `entries` of each event.
    events: Vec<[u32; 2]>,
    /// Accesses that could not be decoded.
    pub lost: u64,
}

/// The accesses of a step, of an event or of a batch, in order.
#[derive(Clone, Debug)]
pub struct Accesses<'b> {
    entries: std::slice::Iter<'b, Access>,
    runs: &'b [StringRun],
    current: Option<Iterations<'b>>,
}

#[derive(Clone, Debug)]
struct Iterations<'b> {
    run: &'b StringRun,
    pc: AppPc,
    done: u64,
    second: bool,
}

impl Iterator for Accesses<'_> {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        if self.current.is_none() {
            let entry = self.entries.next()?;
            if entry.size != RUN {
                return Some(*entry);
            }
            self.current = self.runs.get(entry.value as usize).map(|run| Iterations::of(run, entry.pc));
        }
        self.iterate()
    }
}

impl Accesses<'_> {
    #[cold]
    fn iterate(&mut self) -> Option<Access> {
        match self.current.as_mut().and_then(Iterator::next) {
            Some(access) => Some(access),
            None => {
                self.current = None;
                self.next()
            }
        }
    }

    /// Counts the accesses without iterating them.
    pub(crate) fn total(&self) -> u64 {
        let (reads, writes) = self.counts();
        reads.saturating_add(writes)
    }

    /// Counts reads and writes without iterating them.
    #[must_use]
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (mut reads, mut writes) = (0u64, 0u64);
        let mut add = |size: u32, count: u64| {
            let sum = if size & WRITE == 0 { &mut reads } else { &mut writes };
            *sum = sum.saturating_add(count);
        };
        for entry in self.entries.as_slice() {
            match self.runs.get(entry.value as usize).filter(|_| entry.size == RUN) {
                None => add(entry.size, 1),
                Some(run) => {
                    for part in [Some(run.first), run.second].into_iter().flatten() {
                        add(part.size, run.count);
                    }
                }
            }
        }
        (reads, writes)
    }
}

impl<'b> Iterations<'b> {
    fn of(run: &'b StringRun, pc: AppPc) -> Self {
        Self { run, pc, done: 0, second: false }
    }
}

impl Iterator for Iterations<'_> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if self.done >= self.run.count {
            return None;
        }
        let iteration = self.done;
        let part = match self.run.second.filter(|_| self.second) {
            Some(second) => second,
            None => self.run.first,
        };
        self.second = !self.second && self.run.second.is_some();
        self.done += u64::from(!self.second);
        Some(part.access(self.pc, iteration))
    }
}

/// Reads the signed number of `bytes` bytes, at most eight, at `at`.
fn signed(data: &[u8], at: usize, bytes: u8) -> Option<u64> {
    let bytes = usize::from(bytes);
    let mut wide = [0; 8];
    wide.get_mut(..bytes)?.copy_from_slice(data.get(at..at.checked_add(bytes)?)?);
    let unused = 64 - 8 * u32::try_from(bytes).ok()?;
    Some((u64::from_le_bytes(wide) << unused).cast_signed().wrapping_shr(unused).cast_unsigned())
}

/// The data that accesses are decoded from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessData<'d> {
    data: &'d [u8],
    fs_base: u64,
    /// Position of the data among the values of the buffer, if it is copied there.
    values_at: Option<u32>,
}

impl<'d> AccessData<'d> {
    /// Returns `data` with values at their positions in it.
    #[inline]
    pub(crate) fn new(data: &'d [u8], context: AccessContext) -> Self {
        Self { data, fs_base: context.fs_base, values_at: context.keep_values.then_some(0) }
    }

    /// Returns the address of a [`Form::Based`] access: a register plus a constant.
    #[inline]
    pub(crate) fn based(&self, access: &CompiledAccess) -> Option<u64> {
        Some(register(self.data, access.base)?.wrapping_add(access.displacement))
    }

    /// Returns the slice that holds the value of an access and the position in it; an empty slice
    /// if there is no value. Not for [`Form::Long`].
    #[inline(always)]
    pub(crate) fn value_in<'b>(&self, access: &'b CompiledAccess) -> (&'b [u8], usize)
    where
        'd: 'b,
    {
        match access.value_at() {
            _ if self.values_at.is_none() => (&[], 0),
            Some(at) => (self.data, at.into()),
            None if access.has_constant() => (&access.constant, 0),
            None => (&[], 0),
        }
    }

    /// Returns the sum of base, displacement and index, not truncated and not relative to fs.
    #[inline]
    fn sum(&self, access: &CompiledAccess) -> Option<u64> {
        let mut address = access.displacement;
        if access.flags & HAS_BASE != 0 {
            address = address.wrapping_add(register(self.data, access.base)?);
        }
        if access.flags & HAS_INDEX != 0 && !matches!(access.form, Form::String | Form::Indexed) {
            address = address.wrapping_add(register(self.data, access.index)? << access.scale());
        }
        Some(address)
    }

    fn cut(access: &CompiledAccess) -> u64 {
        if access.flags & IS_SHORT != 0 { u64::from(u32::MAX) } else { u64::MAX }
    }

    fn origin(&self, access: &CompiledAccess) -> u64 {
        if access.flags & HAS_FS != 0 { self.fs_base } else { 0 }
    }

    /// Returns the linear address `offset` bytes behind that of the access.
    #[inline]
    pub(crate) fn address(&self, access: &CompiledAccess, offset: u64) -> Option<u64> {
        let sum = self.sum(access)?.wrapping_add(offset) & Self::cut(access);
        Some(sum.wrapping_add(self.origin(access)))
    }

    /// Returns the distance of a bit test's operand from its address.
    fn bit_offset(&self, access: &CompiledAccess) -> Option<u64> {
        let number = signed(self.data, usize::from(access.mask), access.count)?.cast_signed();
        let operand_bits = u32::from(access.size) * 8;
        Some((number >> operand_bits.trailing_zeros()).cast_unsigned().wrapping_mul(u64::from(access.size)))
    }

    /// Whether element `i` of a vector is selected.
    fn selects(&self, access: &CompiledAccess, i: usize) -> Option<bool> {
        match access.mask_kind {
            MASK_BITS => Some(register(self.data, access.mask)? >> i & 1 != 0),
            MASK_SIGNS => {
                let size = usize::from(access.size);
                let last = usize::from(access.mask) + i * size + size - 1;
                Some(self.data.get(last)? & 0x80 != 0)
            }
            _ => Some(true),
        }
    }

    fn value(&self, access: &CompiledAccess, element: usize) -> u32 {
        let place = |at: u16| u32::from(at) + u32::try_from(element).unwrap_or(0) * u32::from(access.size);
        match (self.values_at, access.value_at()) {
            (Some(start), Some(at)) => start.wrapping_add(place(at)),
            _ => NO_VALUE,
        }
    }
}

fn size_of_access(size: u32, writes: bool) -> u32 {
    size.min(RUN - 1) | if writes { WRITE } else { 0 }
}

/// Bytes of the two registers that say how far a string instruction came.
const STRING_END_BYTES: usize = 16;

impl AccessBuffer {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.runs.clear();
        self.values.clear();
        self.steps.clear();
        self.events.clear();
        self.lost = 0;
    }

    fn entry_count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn of_step(&self, step: usize) -> Accesses<'_> {
        self.part(self.steps.get(step))
    }

    pub(crate) fn of_event(&self, event: usize) -> Accesses<'_> {
        self.part(self.events.get(event))
    }

    pub(crate) fn all(&self) -> Accesses<'_> {
        Accesses { entries: self.entries.iter(), runs: &self.runs, current: None }
    }

    fn part(&self, range: Option<&[u32; 2]>) -> Accesses<'_> {
        let &[start, end] = range.unwrap_or(&[0, 0]);
        let entries = self.entries.get(start as usize..end as usize).unwrap_or(&[]);
        Accesses { entries: entries.iter(), runs: &self.runs, current: None }
    }

    /// Returns the bytes that were read or written.
    pub(crate) fn value(&self, access: &Access) -> Option<&[u8]> {
        if access.value == NO_VALUE {
            return None;
        }
        let at = access.value as usize;
        self.values.get(at..at.checked_add(access.size() as usize)?)
    }

    /// Returns the position at which explicit accesses begin, for [`Self::push_path`] or
    /// [`Self::push_event`].
    pub(crate) fn mark(&self) -> u32 {
        self.entry_count()
    }

    /// Returns the address of the instruction whose accesses begin at `mark`.
    pub(crate) fn pc_at(&self, mark: u32) -> AppPc {
        self.entries.get(mark as usize).map_or(AppPc::NONE, |entry| entry.pc)
    }

    fn keep(&mut self, data: &[u8], keep_values: bool) -> Option<u32> {
        let at = u32::try_from(self.values.len()).ok().filter(|_| keep_values)?;
        self.values.extend_from_slice(data);
        Some(at)
    }

    /// Appends the accesses of a path, one range for each step. Those from `mark` on belong to the
    /// first step.
    pub(crate) fn push_path(
        &mut self,
        descriptors: &DescriptorTable,
        span: Span,
        data: &[u8],
        context: AccessContext,
        mark: Option<u32>,
    ) {
        let access_data =
            AccessData { values_at: self.keep(data, context.keep_values), ..AccessData::new(data, context) };
        let mut start = mark.unwrap_or(self.entry_count());
        for accesses in descriptors.blocks(span.descriptors, span.blocks) {
            self.push_all(accesses, &access_data);
            let end = self.entry_count();
            self.steps.push([start, end]);
            start = end;
        }
    }

    /// Appends `count` steps without accesses of their own. Accesses from `mark` on belong to the
    /// first.
    pub(crate) fn push_empty_steps(&mut self, count: usize, mark: Option<u32>) {
        let end = self.entry_count();
        let mut start = mark.unwrap_or(end);
        for _ in 0..count {
            self.steps.push([start, end]);
            start = end;
        }
    }

    /// Appends the accesses of an interrupted fragment: those of its completed blocks, and those
    /// before `pc` in the next block, which is a step of its own if `part`. Returns the position of
    /// the accesses that a string instruction at `pc` had made already.
    pub(crate) fn push_interrupted(
        &mut self,
        descriptors: &DescriptorTable,
        span: Span,
        interrupted: Interruption,
        data: &[u8],
        context: AccessContext,
    ) -> Option<u32> {
        let access_data =
            AccessData { values_at: self.keep(data, context.keep_values), ..AccessData::new(data, context) };
        let whole = usize::from(interrupted.blocks);
        let mut start = self.entry_count();
        let mut unfinished: &[CompiledAccess] = &[];
        for (place, accesses) in descriptors.blocks(span.descriptors, interrupted.blocks.saturating_add(1)).enumerate()
        {
            let happened = if place < whole {
                accesses
            } else {
                let count = accesses.iter().take_while(|access| access.pc < interrupted.pc).count();
                let (before, rest) = accesses.split_at_checked(count).unwrap_or((accesses, &[]));
                let has_begun = |access: &&CompiledAccess| {
                    let end = usize::from(access.mask) + STRING_END_BYTES;
                    access.pc == interrupted.pc && access.form == Form::String && end <= data.len()
                };
                let count = rest.iter().take_while(has_begun).count();
                unfinished = rest.get(..count).unwrap_or(&[]);
                before
            };
            self.push_all(happened, &access_data);
            let end = self.entry_count();
            if place < whole || interrupted.part {
                self.steps.push([start, end]);
            }
            start = end;
        }
        self.push_all(unfinished, &access_data);
        (!unfinished.is_empty()).then_some(start)
    }

    /// Appends an event. The accesses from `mark` on belong to it.
    pub(crate) fn push_event(&mut self, mark: Option<u32>) {
        let end = self.entry_count();
        self.events.push([mark.unwrap_or(end), end]);
    }

    /// Moves the accesses from `mark` to `end` behind all others and returns their new position.
    pub(crate) fn move_to_end(&mut self, mark: u32, end: u32) -> u32 {
        let count = end.saturating_sub(mark);
        if let Some(tail) = self.entries.get_mut(mark as usize..)
            && count as usize <= tail.len()
        {
            tail.rotate_left(count as usize);
        }
        for step in self.steps.iter_mut().rev().take_while(|step| step[0] >= end) {
            *step = step.map(|place| place - count);
        }
        self.entry_count().saturating_sub(count)
    }

    /// Appends explicit accesses.
    pub(crate) fn push_explicit(&mut self, access: ExplicitAccess, data: &[u8], keep_values: bool) {
        match access {
            ExplicitAccess::Access { pc, address, size } => {
                let bytes = size & !ACCESS_WRITES;
                let enough = keep_values && bytes as usize <= data.len();
                let value = self.keep(data, enough).unwrap_or(NO_VALUE);
                let size = size_of_access(bytes, size & ACCESS_WRITES != 0);
                self.entries.push(Access { pc, address, size, value });
            }
            ExplicitAccess::String { pc, source, destination, count, shape } => {
                let parts = self.string_accesses([source, destination], count, shape, data, keep_values);
                self.push_run(pc, u64::from(count), parts);
            }
        }
    }

    /// Returns the accesses of an iteration, in order.
    fn string_accesses(
        &mut self,
        [source, destination]: [u64; 2],
        count: u32,
        shape: u32,
        data: &[u8],
        keep_values: bool,
    ) -> [Option<StridedAccess>; 2] {
        let size = shape & 0xff;
        let stride = if shape & STRING_BACKWARDS != 0 { 0u64.wrapping_sub(u64::from(size)) } else { u64::from(size) };
        let all = u64::from(size) * u64::from(count);
        let has = |elements: u64| keep_values && elements > 0 && elements <= data.len() as u64;
        let start = self.keep(data, keep_values && !data.is_empty()).unwrap_or(0);
        let part = |address: u64, writes: bool, at: Option<u32>, value_stride: u32| StridedAccess {
            address,
            stride,
            size: size_of_access(size, writes),
            value: at.unwrap_or(NO_VALUE),
            value_stride,
            cut: u64::MAX,
            origin: 0,
        };
        let reads_source = shape & STRING_READS_SOURCE != 0;
        let first_values = has(all).then_some(start);
        let second_values = has(2 * all).then(|| start.wrapping_add(u32::try_from(all).unwrap_or(0)));
        let read = reads_source.then(|| part(source, false, first_values, size));
        let second = if shape & STRING_READS_DESTINATION != 0 {
            let values = if reads_source { second_values } else { first_values };
            Some(part(destination, false, values, size))
        } else if shape & STRING_WRITES_DESTINATION != 0 {
            // `movs` writes what it has read; `stos` writes the same value every time.
            let once = has(u64::from(size)).then_some(start);
            Some(if reads_source {
                part(destination, true, first_values, size)
            } else {
                part(destination, true, once, 0)
            })
        } else {
            None
        };
        [read, second]
    }

    fn push_run(&mut self, pc: AppPc, count: u64, parts: [Option<StridedAccess>; 2]) {
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else { return };
        if count == 0 {
            return;
        }
        let Ok(number) = u32::try_from(self.runs.len()) else { return };
        self.runs.push(StringRun { count, first, second: parts.next() });
        self.entries.push(Access { pc, address: 0, size: RUN, value: number });
    }

    /// Appends the first of `accesses` with its values, and returns the others.
    pub(crate) fn push_first<'p>(
        &mut self,
        accesses: &'p [CompiledAccess],
        data: &[u8],
        context: AccessContext,
    ) -> &'p [CompiledAccess] {
        let access_data =
            AccessData { values_at: self.keep(data, context.keep_values), ..AccessData::new(data, context) };
        self.push_next(accesses, &access_data)
    }

    #[inline]
    fn push_all(&mut self, accesses: &[CompiledAccess], access_data: &AccessData<'_>) {
        let mut rest = accesses;
        while !rest.is_empty() {
            rest = self.push_next(rest, access_data);
        }
    }

    /// Appends the first of `accesses`, or the first two of a string instruction, and returns the
    /// others.
    #[inline(always)]
    fn push_next<'p>(&mut self, accesses: &'p [CompiledAccess], access_data: &AccessData<'_>) -> &'p [CompiledAccess] {
        let Some((access, mut rest)) = accesses.split_first() else { return &[] };
        let made = match access.form {
            Form::Based => self.push_plain(access, access_data, access_data.based(access)),
            Form::Absolute => self.push_plain(access, access_data, Some(access.displacement)),
            Form::Plain | Form::Long => self.push_plain(access, access_data, access_data.address(access, 0)),
            Form::Bit => {
                let address = access_data.bit_offset(access).and_then(|offset| access_data.address(access, offset));
                self.push_plain(access, access_data, address)
            }
            Form::String => {
                let other = rest.first().filter(|next| next.form == Form::String && next.pc == access.pc);
                rest = rest.get(usize::from(other.is_some())..).unwrap_or(&[]);
                self.push_string(access, other, access_data)
            }
            Form::Masked | Form::Packed | Form::Indexed => self.push_vector(access, access_data),
            Form::Any => self.push_any(access, access_data),
        };
        self.lost += u64::from(made.is_none());
        rest
    }

    #[inline]
    fn push_plain(
        &mut self,
        access: &CompiledAccess,
        access_data: &AccessData<'_>,
        address: Option<u64>,
    ) -> Option<()> {
        let address = address?;
        let value = self.value_position(access, access_data, 0);
        let size = size_of_access(u32::from(access.size), access.writes());
        self.entries.push(Access { pc: access.pc, address, size, value });
        Some(())
    }

    #[inline]
    fn value_position(&mut self, access: &CompiledAccess, access_data: &AccessData<'_>, element: usize) -> u32 {
        if access_data.values_at.is_some() && access.has_constant() {
            return self.constant(access);
        }
        access_data.value(access, element)
    }

    fn constant(&mut self, access: &CompiledAccess) -> u32 {
        let Ok(at) = u32::try_from(self.values.len()) else { return NO_VALUE };
        let size = usize::from(access.size);
        self.values.extend_from_slice(access.constant.get(..size).unwrap_or(&access.constant));
        let sign = if access.constant.last().is_some_and(|&top| top & 0x80 != 0) { 0xff } else { 0 };
        self.values.resize(at as usize + size, sign);
        at
    }

    fn push_vector(&mut self, access: &CompiledAccess, access_data: &AccessData<'_>) -> Option<()> {
        let mut beside = 0;
        for element in 0..usize::from(access.count) {
            let selected = access_data.selects(access, element)?;
            let offset = match access.form {
                Form::Indexed => {
                    let at = usize::from(access.index) + element * usize::from(access.index_bytes);
                    signed(access_data.data, at, access.index_bytes)? << access.scale()
                }
                _ => beside * u64::from(access.size),
            };
            beside += u64::from(selected || access.form == Form::Masked);
            if selected {
                let address = access_data.address(access, offset)?;
                let value = self.value_position(access, access_data, element);
                let size = size_of_access(u32::from(access.size), access.writes());
                self.entries.push(Access { pc: access.pc, address, size, value });
            }
        }
        Some(())
    }

    /// Appends one access if any of the elements is selected.
    fn push_any(&mut self, access: &CompiledAccess, access_data: &AccessData<'_>) -> Option<()> {
        let elements = u64::MAX.checked_shr(64 - u32::from(access.count)).unwrap_or(0);
        if register(access_data.data, access.mask)? & elements == 0 {
            return Some(());
        }
        self.push_plain(access, access_data, access_data.address(access, 0))
    }

    fn push_string(
        &mut self,
        access: &CompiledAccess,
        other: Option<&CompiledAccess>,
        access_data: &AccessData<'_>,
    ) -> Option<()> {
        let (count, first) = self.strided_access(access, access_data)?;
        let second = match other {
            None => None,
            Some(other) => Some(self.strided_access(other, access_data)?.1),
        };
        self.push_run(access.pc, count, [Some(first), second]);
        Some(())
    }

    /// Returns the number of iterations, and the access that each makes.
    fn strided_access(
        &mut self,
        access: &CompiledAccess,
        access_data: &AccessData<'_>,
    ) -> Option<(u64, StridedAccess)> {
        let cut = AccessData::cut(access);
        let before = register(access_data.data, access.index)?;
        let after = register(access_data.data, access.mask)?;
        let register_after = register(access_data.data, access.mask.checked_add(8)?)?;
        let count = iterations(before, after, access.flags & IS_SHORT != 0)?;
        let address = access_data.sum(access)? & cut;
        let backwards = register_after.wrapping_sub(address) & cut > cut / 2;
        let size = u64::from(access.size);
        let stride = if backwards { 0u64.wrapping_sub(size) } else { size };
        let part = StridedAccess {
            address,
            stride,
            size: size_of_access(u32::from(access.size), access.writes()),
            value: self.value_position(access, access_data, 0),
            value_stride: 0,
            cut,
            origin: access_data.origin(access),
        };
        Some((count, part))
    }

    /// Drops the first `steps` steps and `events` events, and the accesses before `pc` of the step
    /// that is first then.
    pub(crate) fn drop_before(&mut self, steps: usize, events: usize, pc: AppPc) {
        self.steps.drain(..steps.min(self.steps.len()));
        self.events.drain(..events.min(self.events.len()));
        let place = self.entry_count();
        let &[start, end] = self.steps.first().unwrap_or(&[place, place]);
        let entries = self.entries.get(start as usize..end as usize).unwrap_or(&[]);
        let skipped = entries.iter().take_while(|access| access.pc < pc).count();
        self.remove(start, u32::try_from(skipped).unwrap_or(0));
        let before = self.events.first().map_or(start, |event| event[0].min(start));
        self.remove(0, before);
    }

    /// Returns an access together with its value.
    #[inline]
    pub(crate) fn operand(&self, access: &Access) -> Operand<'_> {
        // Without a value the position is behind all bytes, and the operand has none.
        let (data, at) = (&*self.values, access.value as usize);
        let Access { pc, address, .. } = *access;
        Operand { pc, address, size: access.size(), is_write: access.is_write(), data, at }
    }

    /// Starts a copy of `other`: takes over the runs and values that its entries refer to.
    pub(crate) fn start_copy(&mut self, other: &Self) {
        self.clear();
        self.runs.clone_from(&other.runs);
        self.values.clone_from(&other.values);
        self.lost = other.lost;
    }

    /// Copies the accesses of a step of `other` whose instructions are wanted.
    pub(crate) fn copy_step(&mut self, other: &Self, step: usize, is_wanted: impl Fn(AppPc) -> bool) {
        let start = self.entry_count();
        let entries = other.entries_in(other.steps.get(step));
        self.entries.extend(entries.iter().filter(|entry| is_wanted(entry.pc)));
        self.steps.push([start, self.entry_count()]);
    }

    /// Copies the accesses of an event of `other`.
    pub(crate) fn copy_event(&mut self, other: &Self, event: usize) {
        let start = self.entry_count();
        self.entries.extend_from_slice(other.entries_in(other.events.get(event)));
        self.events.push([start, self.entry_count()]);
    }

    fn entries_in(&self, range: Option<&[u32; 2]>) -> &[Access] {
        let &[start, end] = range.unwrap_or(&[0, 0]);
        self.entries.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// Removes `count` entries from `start` on.
    fn remove(&mut self, start: u32, count: u32) {
        let end = (start as usize).saturating_add(count as usize).min(self.entries.len());
        self.entries.drain((start as usize).min(end)..end);
        for range in self.steps.iter_mut().chain(&mut self.events) {
            *range = range.map(|place| if place > start { place.saturating_sub(count).max(start) } else { place });
        }
    }
}

/// The thread's state that accesses depend on, and whether their values are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessContext {
    pub fs_base: u64,
    pub keep_values: bool,
}

/// How much of a fragment was executed when a signal interrupted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interruption {
    /// Blocks completed.
    pub blocks: u16,
    /// Address of the interrupted instruction.
    pub pc: AppPc,
    /// Whether a part of the next block was executed.
    pub part: bool,
}
