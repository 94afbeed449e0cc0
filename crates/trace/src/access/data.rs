//! The data behind a path, and what an access descriptor computes from it: addresses, masks and
//! positions of values.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::code::{HAS_BASE, HAS_FS, HAS_INDEX, IS_SHORT, MASK_BITS, MASK_SIGNS};

use super::NO_VALUE;
use crate::descriptors::{CompiledAccess, Form};
use crate::span::register;

/// The thread's state that accesses depend on, and whether their values are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessContext {
    pub fs_base: u64,
    pub keep_values: bool,
}

/// The data that accesses are decoded from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessData<'d> {
    pub(super) data: &'d [u8],
    pub(super) fs_base: u64,
    /// Position of the data among the values of the buffer, if it is copied there.
    pub(super) values_at: Option<u32>,
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
    pub(super) fn sum(&self, access: &CompiledAccess) -> Option<u64> {
        let mut address = access.displacement;
        if access.flags & HAS_BASE != 0 {
            address = address.wrapping_add(register(self.data, access.base)?);
        }
        if access.flags & HAS_INDEX != 0 && !matches!(access.form, Form::String | Form::Indexed) {
            address = address.wrapping_add(register(self.data, access.index)? << access.scale());
        }
        Some(address)
    }

    pub(super) fn cut(access: &CompiledAccess) -> u64 {
        if access.flags & IS_SHORT != 0 { u64::from(u32::MAX) } else { u64::MAX }
    }

    pub(super) fn origin(&self, access: &CompiledAccess) -> u64 {
        if access.flags & HAS_FS != 0 { self.fs_base } else { 0 }
    }

    /// Returns the linear address `offset` bytes behind that of the access.
    #[inline]
    pub(crate) fn address(&self, access: &CompiledAccess, offset: u64) -> Option<u64> {
        let sum = self.sum(access)?.wrapping_add(offset) & Self::cut(access);
        Some(sum.wrapping_add(self.origin(access)))
    }

    /// Returns the distance of a bit test's operand from its address.
    pub(super) fn bit_offset(&self, access: &CompiledAccess) -> Option<u64> {
        let number = signed(self.data, usize::from(access.mask), access.count)?.cast_signed();
        let operand_bits = u32::from(access.size) * 8;
        Some((number >> operand_bits.trailing_zeros()).cast_unsigned().wrapping_mul(u64::from(access.size)))
    }

    /// Whether element `i` of a vector is selected.
    pub(super) fn selects(&self, access: &CompiledAccess, i: usize) -> Option<bool> {
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

    pub(super) fn value(&self, access: &CompiledAccess, element: usize) -> u32 {
        let place = |at: u16| u32::from(at) + u32::try_from(element).unwrap_or(0) * u32::from(access.size);
        match (self.values_at, access.value_at()) {
            (Some(start), Some(at)) => start.wrapping_add(place(at)),
            _ => NO_VALUE,
        }
    }
}

/// Reads the signed number of `bytes` bytes, at most eight, at `at`.
pub(super) fn signed(data: &[u8], at: usize, bytes: u8) -> Option<u64> {
    let bytes = usize::from(bytes);
    let mut wide = [0; 8];
    wide.get_mut(..bytes)?.copy_from_slice(data.get(at..at.checked_add(bytes)?)?);
    let unused = 64 - 8 * u32::try_from(bytes).ok()?;
    Some((u64::from_le_bytes(wide) << unused).cast_signed().wrapping_shr(unused).cast_unsigned())
}
