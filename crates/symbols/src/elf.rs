//! Opens ELF files: maps them into memory, and knows where their code was linked to.
//!
//! [`Segments`] converts between mapped and linked addresses. [`crate::functions`] and
//! [`crate::frames`] read the rest of a file.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, elf};

pub type Elf<'data> = ElfFile64<'data, Endianness>;

const PAGE: u64 = 4096;

/// An executable segment of a file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    offset: u64,
    length: u64,
}

/// The executable segments of a file.
#[derive(Debug, Clone, Default)]
pub struct Segments(Vec<Segment>);

impl Segments {
    pub fn of_elf(elf: &Elf) -> Self {
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
        Self(segments.collect())
    }

    /// Returns where in the file the code at a linked address is.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let offset = |segment: &Segment| {
            let distance = address.checked_sub(segment.address)?;
            (distance < segment.length).then(|| segment.offset.saturating_add(distance))
        };
        self.0.iter().find_map(offset)
    }

    /// Returns whether code is linked to this address.
    pub fn contains(&self, address: u64) -> bool {
        let is_inside = |segment: &Segment| address.checked_sub(segment.address).is_some_and(|at| at < segment.length);
        self.0.iter().any(is_inside)
    }

    /// Returns the difference between mapped and linked addresses, given where the file was mapped
    /// from `file_offset` on.
    pub fn bias(&self, mapped_at: u64, file_offset: u64) -> Option<u64> {
        let is_of = |segment: &&Segment| {
            let start = segment.offset & !(PAGE - 1);
            file_offset >= start && file_offset < segment.offset.saturating_add(segment.length)
        };
        let segment = self.0.iter().find(is_of)?;
        let linked_at = segment.address.wrapping_sub(segment.offset).wrapping_add(file_offset);
        Some(mapped_at.wrapping_sub(linked_at))
    }
}

pub fn parse(bytes: &[u8]) -> Option<Elf<'_>> {
    ElfFile64::parse(bytes).ok()
}

pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the mapping is read only, and programs do not write to files of code that are in use:
    // installers and compilers put new files in their places. If another process changes the file
    // all the same, its functions may be wrong; if it truncates the file, an access ends this
    // process, as it ends every process that has mapped the file.
    unsafe { Mmap::map(&file) }
}

/// Returns the path at which distributions install the symbols of a file.
pub fn debug_file(elf: &Elf) -> Option<PathBuf> {
    let id = elf.build_id().ok()??;
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (directory, name) = digits.split_at_checked(2)?;
    Some(PathBuf::from(format!("/usr/lib/debug/.build-id/{directory}/{name}.debug")))
}
