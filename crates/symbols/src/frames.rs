//! The call frame information of a file: the section `.eh_frame`, which programs have for
//! exceptions and which stripping leaves in place.
//!
//! A [`FrameTable`] is the section with an index of its entries. An entry covers the code of one
//! function, or of the part of a function that the compiler placed elsewhere. So the entries tell
//! where the functions of a stripped file are ([`crate::functions`]); what they say about
//! registers is for the crate that unwinds stacks.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer, UnwindSection};
use object::read::elf::ProgramHeader;
use object::{Object, ObjectSection, elf};

use crate::elf::{Elf, Segments, map, parse};

/// An entry of the call frame information, at the addresses that the file was linked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameEntry {
    pub start: u64,
    pub end: u64,
    /// Where the entry is in the section.
    pub offset: usize,
}

/// The call frame information of a file.
#[derive(Debug, Default)]
pub struct FrameTable {
    segments: Segments,
    address: u64,
    bytes: Vec<u8>,
    /// In order of their addresses; made when it is first needed.
    entries: OnceLock<Vec<FrameEntry>>,
}

/// The section as gimli reads it.
pub type FrameSection<'a> = EhFrame<EndianSlice<'a, LittleEndian>>;

impl FrameTable {
    /// Reads a file. A file without call frame information has an empty table.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is no ELF file of 64 bits.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let file = map(path)?;
        Ok(Self::parse(&file).ok_or(io::ErrorKind::InvalidData)?)
    }

    /// Reads the bytes of a file.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self::of_elf(&parse(bytes)?))
    }

    pub(crate) fn of_elf(elf: &Elf) -> Self {
        let (address, bytes) = section(elf).or_else(|| section_by_header(elf)).unwrap_or_default();
        Self { segments: Segments::of_elf(elf), address, bytes: bytes.to_owned(), entries: OnceLock::new() }
    }

    /// Returns the difference between mapped and linked addresses, given where the file was mapped
    /// from `file_offset` on.
    #[must_use]
    pub fn bias(&self, mapped_at: u64, file_offset: u64) -> Option<u64> {
        self.segments.bias(mapped_at, file_offset)
    }

    /// Returns the section.
    #[must_use]
    pub fn section(&self) -> FrameSection<'_> {
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section
    }

    /// Returns what pointers in the section are relative to.
    #[must_use]
    pub fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.address)
    }

    /// Returns the entries in order of their addresses. Those that cover no code are left out.
    #[must_use]
    pub fn entries(&self) -> &[FrameEntry] {
        self.entries.get_or_init(|| self.read_entries())
    }

    /// Returns the entry that covers an address.
    #[must_use]
    pub fn entry_at(&self, address: u64) -> Option<FrameEntry> {
        let entries = self.entries();
        let before = entries.partition_point(|entry| entry.start <= address).checked_sub(1)?;
        entries.get(before).copied().filter(|entry| address < entry.end)
    }

    fn read_entries(&self) -> Vec<FrameEntry> {
        let (section, bases) = (self.section(), self.bases());
        let mut entries = Vec::new();
        let mut all = section.entries(&bases);
        while let Ok(Some(entry)) = all.next() {
            let CieOrFde::Fde(entry) = entry else { continue };
            // An entry that is not understood is no reason to do without the others.
            let Ok(entry) = entry.parse(FrameSection::cie_from_offset) else { continue };
            let start = entry.initial_address();
            let Some(end) = start.checked_add(entry.len()) else { continue };
            if start < end && self.segments.contains(start) {
                entries.push(FrameEntry { start, end, offset: entry.offset() });
            }
        }
        entries.sort_unstable();
        entries.dedup_by_key(|entry| entry.start);
        entries
    }
}

/// Returns the address and the bytes of the section.
fn section<'data>(elf: &Elf<'data>) -> Option<(u64, &'data [u8])> {
    let section = elf.section_by_name(".eh_frame")?;
    // The section of a separate file with symbols is empty.
    section.data().ok().filter(|bytes| !bytes.is_empty()).map(|bytes| (section.address(), bytes))
}

/// Returns the same of a file without section headers, for which the program headers have it.
fn section_by_header<'data>(elf: &Elf<'data>) -> Option<(u64, &'data [u8])> {
    let endian = elf.endian();
    let mut headers = elf.elf_program_headers().iter();
    let header = headers.find(|header| header.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
    let bytes = header.data(endian, elf.data()).ok()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr(endian));
    let header = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
    let Pointer::Direct(address) = header.eh_frame_ptr() else { return None };
    bytes_from(elf, address).map(|bytes| (address, bytes))
}

/// Returns the bytes from an address to the end of its segment. A zero entry ends the section.
fn bytes_from<'data>(elf: &Elf<'data>, address: u64) -> Option<&'data [u8]> {
    let endian = elf.endian();
    let loaded = elf.elf_program_headers().iter().filter(|header| header.p_type(endian) == elf::PT_LOAD);
    loaded.into_iter().find_map(|header| {
        let at = usize::try_from(address.checked_sub(header.p_vaddr(endian))?).ok()?;
        header.data(endian, elf.data()).ok()?.get(at..).filter(|bytes| !bytes.is_empty())
    })
}
