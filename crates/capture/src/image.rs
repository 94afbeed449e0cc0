//! The engine image: the segments and relocations of a static-PIE executable, as an injector needs
//! them.
//!
//! The build script checks the finished image with the same code. An image that would need a
//! dynamic linker (undefined symbols, symbolic relocations, thread-local storage, relocations in
//! text) fails the build instead of a target. Knows nothing of processes.

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, Rela};
use object::{LittleEndian, Object, ObjectSymbol};

const ENDIAN: LittleEndian = LittleEndian;
pub const PAGE: u64 = 4096;
/// Packed relative relocations; newer than the table of constants.
const DT_RELR: u32 = 36;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ImageError {
    #[error("the engine image is no ELF file: {0}")]
    NotElf(String),
    #[error("the engine image is not a position-independent x86-64 executable")]
    WrongKind,
    #[error("the engine image has thread-local storage")]
    ThreadLocalStorage,
    #[error("the engine image wants an interpreter or shared libraries")]
    NotStatic,
    #[error("the engine image has relocations in its text")]
    TextRelocations,
    #[error("the engine image has a relocation of type {kind} at {offset:#x}; only R_X86_64_RELATIVE can be applied")]
    Relocation { kind: u32, offset: u64 },
    #[error("the engine image has relocations in a form that is not understood (tag {0:#x})")]
    RelocationForm(u64),
    #[error("the engine image has the undefined symbol `{0}`")]
    Undefined(String),
    #[error("the engine image has segments that overlap, share a page, or are larger in the file than in memory")]
    Segments,
    #[error("the engine image's entry point or a relocation lies outside of its segments")]
    Outside,
}

/// A loaded segment of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSegment {
    /// Its start, relative to the image's base.
    pub offset: u64,
    /// Its contents; the rest up to `memory_bytes` is zero.
    pub bytes: Vec<u8>,
    pub memory_bytes: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
}

impl ImageSegment {
    /// Returns the start of the first page, relative to the image's base.
    pub fn start(&self) -> u64 {
        self.offset & !(PAGE - 1)
    }

    /// Returns the end of the last page, relative to the image's base.
    pub fn end(&self) -> u64 {
        (self.offset + self.memory_bytes).next_multiple_of(PAGE)
    }

    fn has(&self, offset: u64, length: u64) -> bool {
        offset >= self.offset && offset - self.offset + length <= self.bytes.len() as u64
    }
}

/// A relocation: the 64-bit word at `offset` becomes the base plus `addend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    pub offset: u64,
    pub addend: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// In ascending order, no two on one page.
    pub segments: Vec<ImageSegment>,
    /// Relative to the base.
    pub entry: u64,
    pub relocations: Vec<Relocation>,
    /// Bytes from the base to the end of the last page.
    pub span: u64,
}

impl Image {
    /// Parses the ELF file and checks that it needs nothing but relative relocations.
    pub fn parse(file: &[u8]) -> Result<Self, ImageError> {
        let file_parts =
            ElfFile64::<LittleEndian>::parse(file).map_err(|error| ImageError::NotElf(error.to_string()))?;
        check_header(&file_parts)?;
        check_symbols(&file_parts)?;
        let segments = loaded_segments(&file_parts, file)?;
        let relocations = relocations(&file_parts, file, &segments)?;
        let entry = file_parts.elf_header().e_entry(ENDIAN);
        if !segments.iter().any(|segment| segment.executable && segment.has(entry, 1)) {
            return Err(ImageError::Outside);
        }
        let span = segments.last().map_or(0, ImageSegment::end);
        Ok(Self { segments, entry, relocations, span })
    }

    /// Returns the contents of each segment for an image at `base`.
    pub fn relocated(&self, base: u64) -> Vec<Vec<u8>> {
        let mut contents: Vec<Vec<u8>> = self.segments.iter().map(|segment| segment.bytes.clone()).collect();
        for relocation in &self.relocations {
            for (segment, bytes) in self.segments.iter().zip(&mut contents) {
                if segment.has(relocation.offset, 8) {
                    let at = (relocation.offset - segment.offset) as usize;
                    let value = base.wrapping_add_signed(relocation.addend);
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        contents
    }
}

type Parts<'data> = ElfFile64<'data, LittleEndian>;

fn check_header(parts: &Parts) -> Result<(), ImageError> {
    let header = parts.elf_header();
    if header.e_machine(ENDIAN) != elf::EM_X86_64 || header.e_type(ENDIAN) != elf::ET_DYN {
        return Err(ImageError::WrongKind);
    }
    for program in parts.elf_program_headers() {
        match program.p_type(ENDIAN) {
            elf::PT_TLS => return Err(ImageError::ThreadLocalStorage),
            elf::PT_INTERP => return Err(ImageError::NotStatic),
            _ => {}
        }
    }
    Ok(())
}

fn check_symbols(parts: &Parts) -> Result<(), ImageError> {
    let mut all = parts.symbols().chain(parts.dynamic_symbols());
    match all.find(|symbol| symbol.is_undefined() && symbol.name().is_ok_and(|name| !name.is_empty())) {
        Some(symbol) => Err(ImageError::Undefined(symbol.name().unwrap_or_default().to_owned())),
        None => Ok(()),
    }
}

fn loaded_segments(parts: &Parts, file: &[u8]) -> Result<Vec<ImageSegment>, ImageError> {
    let mut segments = Vec::new();
    let mut previous_end = 0;
    for program in parts.elf_program_headers() {
        if program.p_type(ENDIAN) != elf::PT_LOAD || program.p_memsz(ENDIAN) == 0 {
            continue;
        }
        let bytes = program.data(ENDIAN, file).map_err(|()| ImageError::Segments)?.to_vec();
        let flags = program.p_flags(ENDIAN);
        let segment = ImageSegment {
            offset: program.p_vaddr(ENDIAN),
            memory_bytes: program.p_memsz(ENDIAN),
            bytes,
            readable: flags & elf::PF_R != 0,
            writable: flags & elf::PF_W != 0,
            executable: flags & elf::PF_X != 0,
        };
        let too_far = segment.offset.saturating_add(segment.memory_bytes) > 1 << 30;
        if too_far || segment.start() < previous_end || segment.bytes.len() as u64 > segment.memory_bytes {
            return Err(ImageError::Segments);
        }
        previous_end = segment.end();
        segments.push(segment);
    }
    Ok(segments)
}

fn relocations(parts: &Parts, file: &[u8], segments: &[ImageSegment]) -> Result<Vec<Relocation>, ImageError> {
    let (start, length) = relocation_table(parts, file)?;
    if length == 0 {
        return Ok(Vec::new());
    }
    let entry_bytes = size_of::<elf::Rela64<LittleEndian>>() as u64;
    let segment = segments.iter().find(|segment| segment.has(start, length)).ok_or(ImageError::Outside)?;
    let table = &segment.bytes[(start - segment.offset) as usize..][..length as usize];
    let (entries, _) =
        object::pod::slice_from_bytes::<elf::Rela64<LittleEndian>>(table, (length / entry_bytes) as usize)
            .map_err(|()| ImageError::Outside)?;
    entries.iter().map(|entry| relocation(entry, segments)).collect()
}

fn relocation(entry: &elf::Rela64<LittleEndian>, segments: &[ImageSegment]) -> Result<Relocation, ImageError> {
    let (offset, kind) = (entry.r_offset(ENDIAN), entry.r_type(ENDIAN, false));
    if kind != elf::R_X86_64_RELATIVE {
        return Err(ImageError::Relocation { kind, offset });
    }
    let segment = segments.iter().find(|segment| segment.has(offset, 8)).ok_or(ImageError::Outside)?;
    if segment.executable {
        return Err(ImageError::TextRelocations);
    }
    Ok(Relocation { offset, addend: entry.r_addend(ENDIAN) })
}

/// Returns address and length of the relocation table, from the dynamic section.
fn relocation_table(parts: &Parts, file: &[u8]) -> Result<(u64, u64), ImageError> {
    let (mut start, mut length) = (0, 0);
    for program in parts.elf_program_headers() {
        let Ok(Some(entries)) = program.dynamic(ENDIAN, file) else { continue };
        for entry in entries {
            let value = entry.d_val(ENDIAN);
            match u32::try_from(entry.d_tag(ENDIAN)).unwrap_or(u32::MAX) {
                elf::DT_NULL => break,
                elf::DT_RELA => start = value,
                elf::DT_RELASZ => length = value,
                elf::DT_NEEDED => return Err(ImageError::NotStatic),
                elf::DT_TEXTREL => return Err(ImageError::TextRelocations),
                elf::DT_FLAGS if value & u64::from(elf::DF_TEXTREL) != 0 => return Err(ImageError::TextRelocations),
                tag @ (elf::DT_REL | elf::DT_JMPREL | DT_RELR) => {
                    return Err(ImageError::RelocationForm(u64::from(tag)));
                }
                _ => {}
            }
        }
    }
    Ok((start, length))
}
