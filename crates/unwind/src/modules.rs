//! What is mapped into a process: which call frame information an address has.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;
use std::sync::Arc;

use symbols::FrameTable;

/// A mapped piece of a file.
#[derive(Debug, Clone)]
pub struct Module {
    range: Range<u64>,
    /// Mapped addresses minus linked addresses.
    bias: u64,
    pub table: Arc<FrameTable>,
}

impl Module {
    pub fn linked(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// The mapped modules, in order of their addresses and without overlaps.
#[derive(Debug, Default)]
pub struct Modules(Vec<Module>);

impl Modules {
    /// Adds a mapping, which replaces what was there.
    pub fn map(&mut self, range: Range<u64>, file_offset: u64, table: Arc<FrameTable>) {
        self.unmap(&range);
        let Some(bias) = table.bias(range.start, file_offset).filter(|_| range.start < range.end) else { return };
        let place = self.0.partition_point(|module| module.range.start < range.start);
        self.0.insert(place, Module { range, bias, table });
    }

    /// Removes a range, which may leave pieces of modules on both sides.
    pub fn unmap(&mut self, range: &Range<u64>) {
        if !self.0.iter().any(|module| module.range.start < range.end && range.start < module.range.end) {
            return;
        }
        let pieces = |module: Module| {
            let Range { start, end } = module.range;
            let outside = [start..end.min(range.start), start.max(range.end)..end];
            outside
                .into_iter()
                .filter(|piece| piece.start < piece.end)
                .map(move |range| Module { range, ..module.clone() })
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(pieces).collect();
    }

    pub fn at(&self, address: u64) -> Option<&Module> {
        let before = self.0.partition_point(|module| module.range.start <= address).checked_sub(1)?;
        self.0.get(before).filter(|module| address < module.range.end)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn own_table() -> Arc<FrameTable> {
        Arc::new(FrameTable::of_file("/proc/self/exe".as_ref()).unwrap())
    }

    /// Returns the file offset of the executable segment.
    fn code_offset() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains(" r-xp ")).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(2).unwrap(), 16).unwrap()
    }

    fn ranges(modules: &Modules) -> Vec<Range<u64>> {
        modules.0.iter().map(|module| module.range.clone()).collect()
    }

    #[test]
    fn a_mapping_replaces_what_was_there() {
        let (table, offset) = (own_table(), code_offset());
        let mut modules = Modules::default();
        modules.map(0x5000..0x9000, offset, table.clone());
        modules.map(0x1000..0x2000, offset, table.clone());
        modules.map(0x6000..0x7000, offset, table);
        assert_eq!(ranges(&modules), [0x1000..0x2000, 0x5000..0x6000, 0x6000..0x7000, 0x7000..0x9000]);
        let linked = |address| modules.at(address).map(|module| module.linked(address));
        assert_eq!(linked(0x5000), linked(0x6000), "both begin at the same place of the file");
        assert_eq!(linked(0x7000), linked(0x5000).map(|linked| linked + 0x2000));
        assert_eq!((linked(0xfff), linked(0x2000), linked(0x9000)), (None, None, None));
        modules.unmap(&(0..0x8fff));
        assert_eq!(ranges(&modules), vec![0x8fff..0x9000; 1]);
    }

    #[test]
    fn what_a_file_does_not_have_is_not_mapped() {
        let mut modules = Modules::default();
        modules.map(0x5000..0x9000, 1 << 50, own_table());
        modules.map(0x5000..0x9000, 0, Arc::default());
        assert!(ranges(&modules).is_empty());
    }
}
