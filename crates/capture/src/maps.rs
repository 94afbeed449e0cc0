//! What the kernel reports about an address space: `/proc/PID/maps` and the auxiliary vector.

use std::io;
use std::ops::Range;

use entity::Tsc;
use trace::Module;
use wire::CodeMapping;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub executable: bool,
    pub writable: bool,
    pub shared: bool,
    pub file_offset: u64,
    /// The number of the file; 0 for anonymous memory.
    pub inode: u64,
    /// Path or name in brackets; empty for anonymous memory.
    pub path: String,
}

impl Mapping {
    /// Returns whether this is code of a file, or the vdso.
    pub fn is_module(&self) -> bool {
        self.executable && (self.path.starts_with('/') || self.path == "[vdso]")
    }

    /// Returns the module that was mapped at a time.
    pub fn module(&self, tsc: Tsc) -> Module {
        Module {
            address: self.range.start,
            length: self.range.end - self.range.start,
            file_offset: self.file_offset,
            path: self.path.clone(),
            tsc,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        let permissions = fields.next()?;
        let has = |letter| permissions.contains(letter);
        let (executable, writable, shared) = (has('x'), has('w'), has('s'));
        let file_offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let inode = fields.nth(1)?.trim().parse().ok()?;
        let path = fields.next().unwrap_or_default().trim_start().to_owned();
        Some(Self { range, executable, writable, shared, file_offset, inode, path })
    }
}

/// Returns the mappings of a process in ascending order.
pub fn of_process(pid: i32) -> io::Result<Vec<Mapping>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapping::parse).collect())
}

/// Returns the executable mappings whose code can change: the engine has to watch them.
pub fn modifiable_code(mappings: &[Mapping]) -> Vec<CodeMapping> {
    let flags = |mapping: &Mapping| {
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        flag(mapping.writable, wire::MAPPING_WRITABLE) | flag(mapping.shared, wire::MAPPING_SHARED)
    };
    let modifiable = mappings.iter().filter(|mapping| mapping.executable && flags(mapping) != 0);
    let describe =
        |mapping: &Mapping| CodeMapping { start: mapping.range.start, end: mapping.range.end, flags: flags(mapping) };
    modifiable.map(describe).collect()
}

/// Returns whether nothing is mapped in `range`.
pub fn is_free(mappings: &[Mapping], range: &Range<u64>) -> bool {
    mappings.iter().all(|mapping| mapping.range.end <= range.start || mapping.range.start >= range.end)
}

/// Keys of the auxiliary vector.
pub const AT_HWCAP2: u64 = 26;
pub const AT_MINSIGSTKSZ: u64 = 51;

/// Returns the auxiliary vector of a process, as pairs of key and value.
pub fn auxiliary_vector(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let (pairs, _) = bytes.as_chunks::<16>();
    Ok(pairs.iter().map(|pair| (word(pair, 0), word(pair, 8))).collect())
}

fn word(bytes: &[u8; 16], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Returns the vdso, which is the same in all processes.
pub fn own_vdso() -> Option<&'static [u8]> {
    let pid = i32::try_from(std::process::id()).ok()?;
    let mappings = of_process(pid).ok()?;
    let range = mappings.into_iter().find(|mapping| mapping.path == "[vdso]")?.range;
    // SAFETY: the kernel has mapped it for as long as the process lives, and nothing writes to it.
    Some(unsafe { std::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line = "7f5e0-7f5e2000 r-xp 00026000 fe:00 1234                       /usr/lib/a b.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(mapping.range, 0x7f5e0..0x7f5e2000);
        assert_eq!((mapping.file_offset, mapping.inode), (0x26000, 1234));
        assert_eq!(mapping.path, "/usr/lib/a b.so (deleted)");
        assert!(mapping.is_module());

        let anonymous = Mapping::parse("1000-2000 rwxp 00000000 00:00 0 ").unwrap();
        assert_eq!(anonymous.path, "");
        let writable = CodeMapping { start: 0x1000, end: 0x2000, flags: wire::MAPPING_WRITABLE };
        assert_eq!(modifiable_code(&[mapping, anonymous.clone()]), [writable]);
        assert!(!anonymous.is_module());
        assert_eq!(Mapping::parse("nonsense"), None);
    }

    #[test]
    fn own_mappings_are_listed() {
        let pid = std::process::id() as i32;
        let mappings = of_process(pid).unwrap();
        assert!(mappings.iter().any(|mapping| mapping.path == "[vdso]" && mapping.is_module()));
        let code = own_mappings_are_listed as *const () as u64;
        assert!(!is_free(&mappings, &(code..code + 1)));
        assert!(is_free(&mappings, &(0..0x1000)));
        assert!(auxiliary_vector(pid).unwrap().iter().any(|&(key, _)| key == AT_MINSIGSTKSZ));
    }
}
