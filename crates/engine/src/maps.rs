//! What the kernel says about the process's mappings.

use alloc::vec::Vec;

use crate::sys::{self, number};

/// The ranges that are writable and executable.
pub fn writable_code() -> Vec<(u64, u64)> {
    read().split(|byte| *byte == b'\n').filter_map(|line| parse(line).filter(|_| is_writable_code(line))).collect()
}

fn read() -> Vec<u8> {
    let mut text = Vec::new();
    // SAFETY: the kernel reads the name.
    let file = unsafe { sys::call(number::OPEN, [c"/proc/self/maps".as_ptr() as u64, 0, 0, 0, 0, 0]) };
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

fn is_writable_code(line: &[u8]) -> bool {
    line.split(|byte| *byte == b' ').nth(1).is_some_and(|permissions| permissions.starts_with(b"rwx"))
}

/// `start-end` in hexadecimal, at the start of a line.
fn parse(line: &[u8]) -> Option<(u64, u64)> {
    let range = core::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"7ffc1000-7ffc3000 rwxp 00000000 00:00 0   [stack]";
        assert_eq!(parse(line), Some((0x7ffc_1000, 0x7ffc_3000)));
        assert!(is_writable_code(line));
        assert!(!is_writable_code(b"1000-2000 r-xp 0 0:0 0"));
        assert_eq!(parse(b""), None);
    }
}
