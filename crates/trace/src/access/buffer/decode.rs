//! Decoding accesses by the descriptors of a path or of an interrupted fragment.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;
use wire::code::IS_SHORT;

use super::AccessBuffer;
use crate::access::data::{AccessContext, AccessData, signed};
use crate::access::string_run::StridedAccess;
use crate::access::{Access, NO_VALUE, size_of_access};
use crate::descriptors::{CompiledAccess, DescriptorTable, Form};
use crate::span::{Span, iterations, register};

/// Bytes of the two registers that say how far a string instruction came.
const STRING_END_BYTES: usize = 16;

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

impl AccessBuffer {
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
        self.push_stack_pointers(descriptors, span.descriptors, span.blocks, data);
        let mut start = mark.unwrap_or(self.entry_count());
        for accesses in descriptors.blocks(span.descriptors, span.blocks) {
            self.push_all(accesses, &access_data);
            let end = self.entry_count();
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
        let executed = interrupted.blocks.saturating_add(u16::from(interrupted.part));
        self.push_stack_pointers(descriptors, span.descriptors, executed, data);
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
}
