//! The functions of one ELF file: their ranges and names, and which one has an address.
//!
//! [`Functions`] joins what symbol tables name ([`crate::symbol_table`]) with what only the call
//! frame information knows of ([`crate::frames`]). A function of the latter kind has no name.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::{Object, ObjectSection};

use crate::elf::{Elf, Segments, debug_file, map, parse};
use crate::frames::FrameTable;
use crate::lookup::Lookup;
use crate::name::{full_name, plain_name, whole_symbol};
use crate::symbol_table;

/// A source file that a symbol table names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Without its directory.
    pub name: Arc<str>,
    /// Tells files of the same name apart.
    pub(crate) number: u32,
}

/// A function or a part of one, at the addresses that the file was linked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    pub start: u64,
    pub end: u64,
    /// As the symbol table spells it; empty if no symbol table names the function.
    pub symbol: String,
    /// The source file, which symbol tables name for static functions only.
    pub source: Option<Source>,
    /// Where the function starts that this is a part of: the compiler has placed the part
    /// elsewhere, because it is rarely executed. `None` for the function itself.
    pub part_of: Option<u64>,
}

impl Function {
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns the shortest name that a person would use; for a function without a name, one made
    /// from its address: `sub_401200`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.symbol.as_str() {
            "" => format!("sub_{:x}", self.start),
            symbol => plain_name(symbol),
        }
    }

    /// Returns the name in the source, with parameters where the symbol has them.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.symbol.is_empty() { self.name() } else { full_name(&self.symbol) }
    }

    /// Returns where the whole function starts, be this the function or a part of it.
    #[must_use]
    pub fn whole_start(&self) -> u64 {
        self.part_of.unwrap_or(self.start)
    }
}

/// The functions of a file.
#[derive(Debug, Clone, Default)]
pub struct Functions {
    /// In order of their addresses; several may have the same one.
    pub list: Vec<Function>,
    segments: Segments,
    /// The interpreter that the file names, if it does.
    pub interpreter: Option<PathBuf>,
    lookup: Lookup,
}

impl Functions {
    /// Reads a file. Reads the separate file with its symbols as well, if the file itself has only
    /// those for linking.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is no ELF file of 64 bits.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let file = map(path)?;
        let elf = parse(&file).ok_or(io::ErrorKind::InvalidData)?;
        let mut named = symbol_table::functions(&elf);
        if elf.symbols().next().is_none()
            && let Some(debug) = debug_file(&elf)
            && let Ok(file) = map(&debug)
            && let Some(elf) = parse(&file)
        {
            named.extend(symbol_table::functions(&elf));
        }
        Ok(Self::of_elf(&elf, named))
    }

    /// Reads the bytes of a file.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let elf = parse(bytes)?;
        let named = symbol_table::functions(&elf);
        Some(Self::of_elf(&elf, named))
    }

    fn of_elf(elf: &Elf, mut named: Vec<Function>) -> Self {
        let frames = FrameTable::of_elf(elf);
        fill_missing_ends(&mut named, elf, &frames);
        named.retain(|function| function.start < function.end);
        let mut list = nameless(&named, elf, &frames);
        list.append(&mut named);
        let interpreter = elf.section_by_name(".interp").and_then(|section| section.data().ok()).map(path_of);
        Self { segments: Segments::of_elf(elf), interpreter, ..Self::of_list(list) }
    }

    /// Makes the functions of a file from a list in any order.
    pub(crate) fn of_list(mut list: Vec<Function>) -> Self {
        assign_parts(&mut list);
        list.sort_unstable();
        list.dedup();
        let lookup = Lookup::new(&list);
        Self { list, lookup, ..Self::default() }
    }

    /// Returns the difference between mapped and linked addresses, given where the file was mapped
    /// from `file_offset` on.
    #[must_use]
    pub fn bias(&self, mapped_at: u64, file_offset: u64) -> Option<u64> {
        self.segments.bias(mapped_at, file_offset)
    }

    /// Returns where in the file the code at a linked address is.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.file_offset(address)
    }

    /// Returns the function, or the part of one, whose range has a linked address. Of several
    /// functions it returns the innermost; of several names of one range, the plainest.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&Function> {
        self.list.get(self.lookup.at(address)?)
    }

    /// Returns the function to which a linked address belongs, even if the address is in a part
    /// that the compiler has placed elsewhere.
    #[must_use]
    pub fn whole_at(&self, address: u64) -> Option<&Function> {
        let found = self.at(address)?;
        found.part_of.map_or(Some(found), |start| self.at(start))
    }

    /// Returns the whole of a function, given it or one of its parts: the function first, then its
    /// parts in order of their addresses.
    #[must_use]
    pub fn parts(&self, function: &Function) -> Vec<&Function> {
        let start = function.whole_start();
        let parts = self.lookup.parts_of(start).filter_map(|index| self.list.get(index));
        self.at(start).into_iter().chain(parts).collect()
    }

    /// Returns the last function, or part of one, that starts at or before an address.
    pub(crate) fn before(&self, address: u64) -> Option<&Function> {
        let after = self.list.partition_point(|function| function.start <= address);
        self.at(self.list.get(after.checked_sub(1)?)?.start)
    }
}

/// Gives functions without a length an end. Those written in assembly may have none: they reach to
/// the next one, or to the end of their section or of their frame entry.
fn fill_missing_ends(functions: &mut [Function], elf: &Elf, frames: &FrameTable) {
    if functions.iter().all(|function| function.start < function.end) {
        return;
    }
    let own = functions.iter().map(|function| function.start);
    let mut starts: Vec<u64> = own.chain(frames.entries().iter().map(|entry| entry.start)).collect();
    starts.sort_unstable();
    let sections: Vec<Range<u64>> =
        elf.sections().map(|section| section.address()..section.address().saturating_add(section.size())).collect();
    for function in functions.iter_mut().filter(|function| function.start == function.end) {
        let start = function.start;
        let next = starts.get(starts.partition_point(|&other| other <= start)).copied();
        let section = sections.iter().find(|section| section.contains(&start)).map(|section| section.end);
        let entry = frames.entry_at(start).map(|entry| entry.end);
        function.end = next.into_iter().chain(section).chain(entry).min().unwrap_or(start);
    }
}

/// Returns the functions that only the call frame information knows of. Stubs of the procedure
/// linkage table are no functions, although an entry covers them.
fn nameless(named: &[Function], elf: &Elf, frames: &FrameTable) -> Vec<Function> {
    let mut ranges: Vec<Range<u64>> = named.iter().map(Function::range).collect();
    let is_plt = |name: &str| name == ".plt" || name.starts_with(".plt.");
    let stubs = elf.sections().filter(|section| section.name().is_ok_and(is_plt));
    ranges.extend(stubs.map(|section| section.address()..section.address().saturating_add(section.size())));
    let ranges = merged(ranges);
    let is_known = |start: u64, end: u64| {
        let before_end = ranges.partition_point(|range| range.start < end);
        before_end.checked_sub(1).and_then(|last| ranges.get(last)).is_some_and(|range| start < range.end)
    };
    let unknown = frames.entries().iter().filter(|entry| !is_known(entry.start, entry.end));
    let nameless = |start, end| Function { start, end, symbol: String::new(), source: None, part_of: None };
    unknown.map(|entry| nameless(entry.start, entry.end)).collect()
}

/// Sorts ranges and joins those that overlap.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Finds the function of each part that the compiler has placed elsewhere. It has the name of the
/// part without the suffix. Of several, it is the one of the same source file, or else the global
/// one.
fn assign_parts(list: &mut [Function]) {
    let names = list.iter().filter_map(|function| whole_symbol(&function.symbol));
    let mut wholes: HashMap<String, Vec<(Option<Source>, u64)>> =
        names.map(|name| (name.to_owned(), Vec::new())).collect();
    for function in list.iter() {
        if let Some(named) = wholes.get_mut(&function.symbol) {
            named.push((function.source.clone(), function.start));
        }
    }
    for part in list {
        let named = whole_symbol(&part.symbol).and_then(|name| wholes.get(name));
        part.part_of = named.and_then(|named| whole_of(part.source.as_ref(), named));
    }
}

/// Returns where the function of a part starts, given the source files and starts of all functions
/// with the right name.
fn whole_of(source: Option<&Source>, named: &[(Option<Source>, u64)]) -> Option<u64> {
    let only = |wanted: Option<&Source>| {
        let mut starts = named.iter().filter(|(source, _)| source.as_ref() == wanted).map(|&(_, start)| start);
        let start = starts.next()?;
        starts.all(|other| other == start).then_some(start)
    };
    only(source).or_else(|| only(None))
}

/// Returns a path that ends with a zero byte.
fn path_of(bytes: &[u8]) -> PathBuf {
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    PathBuf::from(OsStr::from_bytes(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn our_own_functions() {
        let functions = Functions::of_file(Path::new("/proc/self/exe")).unwrap();
        let here =
            functions.list.iter().find(|function| crate::plain_name(&function.symbol).ends_with("our_own_functions"));
        let here = here.expect("this test is a function");
        assert!(here.start < here.end);
        assert!(functions.list.is_sorted());
        // Linked and mapped addresses differ by the bias.
        let now = our_own_functions as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&now).then(|| (number(start), number(fields[2])))
        });
        let (start, offset) = found.unwrap();
        let bias = functions.bias(start, offset).unwrap();
        assert!(functions.list.iter().any(|function| function.start.wrapping_add(bias) == now));
    }

    #[test]
    fn files_of_other_kinds_are_refused() {
        assert!(Functions::parse(b"").is_none());
        assert!(Functions::parse(b"#!/bin/sh").is_none());
        assert!(Functions::parse(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]).is_none());
        assert!(Functions::of_file(Path::new("/nonexistent")).is_err());
        assert!(Functions::of_file(Path::new("/")).is_err());
    }

    #[test]
    fn damaged_files_are_read_without_panic() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        for length in [64, 1000, file.len() / 2] {
            let _ = Functions::parse(&file[..length]);
        }
        let mut damaged = file;
        for place in (0..damaged.len().min(1 << 16)).step_by(97) {
            damaged[place] ^= 0x5a;
        }
        let _ = Functions::parse(&damaged);
    }
}
