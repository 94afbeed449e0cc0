//! Accesses that an event records itself, because no access descriptor covers them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;
use wire::word::{
    ACCESS_WRITES, STRING_BACKWARDS, STRING_READS_DESTINATION, STRING_READS_SOURCE, STRING_WRITES_DESTINATION,
};

use super::AccessBuffer;
use crate::access::string_run::{StridedAccess, StringRun};
use crate::access::{Access, NO_VALUE, RUN, size_of_access};
use crate::event::ExplicitAccess;

impl AccessBuffer {
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

    pub(super) fn push_run(&mut self, pc: AppPc, count: u64, parts: [Option<StridedAccess>; 2]) {
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else { return };
        if count == 0 {
            return;
        }
        let Ok(number) = u32::try_from(self.runs.len()) else { return };
        self.runs.push(StringRun { count, first, second: parts.next() });
        self.entries.push(Access { pc, address: 0, size: RUN, value: number });
    }
}
