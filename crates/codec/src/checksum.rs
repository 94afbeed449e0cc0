//! CRC-32 over several slices.

/// Returns the checksum of `parts`, as if they were one slice.
#[must_use]
pub fn crc(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}
