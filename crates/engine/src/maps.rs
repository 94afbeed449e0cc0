//! The process's mappings, read from /proc.

use alloc::vec::Vec;

use wire::{CodeMapping, MAPPING_SHARED, MAPPING_WRITABLE};

use crate::sys::{self, number};

/// A mapping that can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub is_writable: bool,
    pub is_shared: bool,
}

impl From<&CodeMapping> for Mapping {
    fn from(&CodeMapping { start, end, flags }: &CodeMapping) -> Self {
        Self { start, end, is_writable: flags & MAPPING_WRITABLE != 0, is_shared: flags & MAPPING_SHARED != 0 }
    }
}

/// All mappings that can be executed; none without /proc.
pub fn executable() -> Vec<Mapping> {
    read().split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// Whether the code at `address` can be executed.
pub fn is_executable(address: u64) -> bool {
    executable().iter().any(|mapping| (mapping.start..mapping.end).contains(&address))
}

fn read() -> Vec<u8> {
    let mut text = Vec::new();
    // SAFETY: the kernel reads the name.
    let file = unsafe { sys::call(number::OPEN, [c"/proc/thread-self/maps".as_ptr() as u64, 0, 0, 0, 0, 0]) };
    let Ok(file) = u64::try_from(file) else { return text };
    let mut buffer = [0u8; 4096];
    // SAFETY: the kernel fills the buffer.
    while let Ok(count @ 1..) = usize::try_from(unsafe {
        sys::call(number::READ, [file, buffer.as_mut_ptr() as u64, buffer.len() as u64, 0, 0, 0])
    }) {
        text.extend_from_slice(&buffer[..count]);
    }
    // SAFETY: our own file.
    unsafe { sys::call(number::CLOSE, [file, 0, 0, 0, 0, 0]) };
    text
}

/// `start-end permissions …`, the addresses in hexadecimal; `None` for what cannot be executed.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|byte| *byte == b' ');
    let range = core::str::from_utf8(words.next()?).ok()?;
    let &[_, write, execute, share] = words.next()?.first_chunk::<4>()?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    let mapping = Mapping { start: start?, end: end?, is_writable: write == b'w', is_shared: share == b's' };
    (execute == b'x').then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let stack = Mapping { start: 0x7ffc_1000, end: 0x7ffc_3000, is_writable: true, is_shared: false };
        assert_eq!(parse(b"7ffc1000-7ffc3000 rwxp 00000000 00:00 0   [stack]"), Some(stack));
        let shared = Mapping { start: 0x1000, end: 0x2000, is_writable: false, is_shared: true };
        assert_eq!(parse(b"1000-2000 r-xs 0 0:0 0"), Some(shared));
        assert_eq!(parse(b"1000-2000 rw-p 0 0:0 0"), None);
        assert_eq!(parse(b"1000-2000"), None);
        assert_eq!(parse(b""), None);
    }
}
