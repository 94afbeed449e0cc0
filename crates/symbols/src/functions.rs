//! The functions of one ELF file.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind, elf};

/// A function, at the addresses that the file was linked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    pub start: u64,
    pub end: u64,
    /// As the symbol table spells it.
    pub symbol: String,
}

/// An executable segment of a file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    offset: u64,
    length: u64,
}

/// The functions of a file.
#[derive(Debug, Clone, Default)]
pub struct Functions {
    /// In order of their addresses; several may have the same one.
    pub list: Vec<Function>,
    segments: Vec<Segment>,
    /// The interpreter that the file names, if it does.
    pub interpreter: Option<PathBuf>,
}

const PAGE: u64 = 4096;

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
        let mut functions = Self::of_elf(&elf);
        if elf.symbols().next().is_none()
            && let Some(debug) = debug_file(&elf)
            && let Ok(file) = map(&debug)
            && let Some(elf) = parse(&file)
        {
            functions.list.extend(Self::of_elf(&elf).list);
        }
        functions.normalize();
        Ok(functions)
    }

    /// Reads the bytes of a file.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut functions = Self::of_elf(&parse(bytes)?);
        functions.normalize();
        Some(functions)
    }

    fn of_elf(elf: &Elf) -> Self {
        let endian = elf.endian();
        let loaded = elf
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian) & elf::PF_X != 0);
        let segments = loaded.map(|header| Segment {
            address: header.p_vaddr(endian),
            offset: header.p_offset(endian),
            length: header.p_memsz(endian),
        });
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let list = functions.filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            let start = symbol.address();
            let end = start.checked_add(symbol.size())?;
            Some(Function { start, end, symbol: name.to_owned() })
        });
        let interpreter = elf.section_by_name(".interp").and_then(|section| section.data().ok()).map(path_of);
        let mut functions = Self { list: list.collect(), segments: segments.collect(), interpreter };
        functions.fill_missing_ends(elf);
        functions
    }

    /// Gives functions without a length an end. Those written in assembly may have none: they reach
    /// to the next one or to the end of their section.
    fn fill_missing_ends(&mut self, elf: &Elf) {
        let mut starts: Vec<u64> = self.list.iter().map(|function| function.start).collect();
        starts.sort_unstable();
        let sections: Vec<(u64, u64)> = elf
            .sections()
            .map(|section| (section.address(), section.address().saturating_add(section.size())))
            .collect();
        for function in self.list.iter_mut().filter(|function| function.start == function.end) {
            let next = starts.get(starts.partition_point(|&start| start <= function.start)).copied();
            let section = sections.iter().find(|(start, end)| (*start..*end).contains(&function.start));
            function.end = next.into_iter().chain(section.map(|(_, end)| *end)).min().unwrap_or(function.start);
        }
    }

    fn normalize(&mut self) {
        self.list.retain(|function| function.start < function.end);
        self.list.sort_unstable();
        self.list.dedup();
    }

    /// Returns the difference between mapped and linked addresses, given where the file was mapped
    /// from `file_offset` on.
    #[must_use]
    pub fn bias(&self, mapped_at: u64, file_offset: u64) -> Option<u64> {
        let is_of = |segment: &&Segment| {
            let start = segment.offset & !(PAGE - 1);
            file_offset >= start && file_offset < segment.offset.saturating_add(segment.length)
        };
        let segment = self.segments.iter().find(is_of)?;
        let linked_at = segment.address.wrapping_sub(segment.offset).wrapping_add(file_offset);
        Some(mapped_at.wrapping_sub(linked_at))
    }
}

type Elf<'data> = ElfFile64<'data, Endianness>;

/// Returns a path that ends with a zero byte.
fn path_of(bytes: &[u8]) -> PathBuf {
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    PathBuf::from(OsStr::from_bytes(name))
}

fn parse(bytes: &[u8]) -> Option<Elf<'_>> {
    ElfFile64::parse(bytes).ok()
}

fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the mapping is read only. If another process truncates the file meanwhile, an access
    // ends this process. It would end the target, too, which has mapped the same file.
    unsafe { Mmap::map(&file) }
}

/// Returns the path at which distributions install the symbols of a file.
fn debug_file(elf: &Elf) -> Option<PathBuf> {
    let id = elf.build_id().ok()??;
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (directory, name) = digits.split_at_checked(2)?;
    Some(PathBuf::from(format!("/usr/lib/debug/.build-id/{directory}/{name}.debug")))
}

#[cfg(test)]
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
    fn what_is_no_elf_file() {
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
