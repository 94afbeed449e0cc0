//! Puts the input into chunks with right headers and checksums and reads that as a trace.
//!
//! The input is a list of chunks: kind, codec, four bytes of the extra header, one byte of content length (times four), two bytes
//! of raw length, and the content.
#![no_main]

mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise::exercise(framed(bytes)));

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut file = b"\x89TRK\r\n\x1a\n\x02\0\0\0".to_vec();
    file.extend(crc32fast::hash(&file).to_le_bytes());
    let mut rest = bytes;
    let mut sequence = 0u32;
    while let Some((&[kind, codec, a, b, c, d, length, raw_low, raw_high], behind)) = rest.split_first_chunk::<9>() {
        let (content, behind) = behind.split_at((usize::from(length) * 4).min(behind.len()));
        rest = behind;
        let (kind, codec) = (1 + kind % 7, codec % 5);
        let raw_length =
            if codec == 0 { content.len() as u32 } else { u32::from(u16::from_le_bytes([raw_low, raw_high])) };
        let mut extra = vec![0; [0, 0, 16, 0, 120, 0, 0, 32][usize::from(kind)]];
        if let Some(start) = extra.first_chunk_mut::<4>() {
            // The thread, of a path or data chunk.
            *start = [a & 3, 0, 0, 0];
        }
        if let Some(path) = extra.get_mut(4..8).filter(|_| kind == 7) {
            // Data behind the chunk before it.
            path.copy_from_slice(&sequence.wrapping_sub(1).to_le_bytes());
        }
        if let Some(byte) = extra.get_mut(usize::from(b)) {
            *byte = c ^ d;
        }
        let mut header = vec![0xa7, b'T', b'k', b'C', kind, codec];
        header.extend((extra.len() as u16).to_le_bytes());
        for field in [content.len() as u32, raw_length, crc32fast::hash(content), crc32fast::hash(content), sequence] {
            header.extend(field.to_le_bytes());
        }
        let whole = [&header[..], &extra].concat();
        header.extend(crc32fast::hash(&whole).to_le_bytes());
        file.extend(header);
        file.extend(extra);
        file.extend(content);
        sequence += 1;
    }
    file
}
