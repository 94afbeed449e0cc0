//! Fast conversion of numbers to text: the inner loop of `dump` spends its time here.

pub use report::{grouped, percent, size};

const HEX: &[u8; 16] = b"0123456789abcdef";

const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX[byte >> 4], HEX[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Returns `0x` and sixteen digits, as printf does for `0x%016x`.
#[inline]
pub fn hex(value: u64) -> [u8; 18] {
    let mut text = [0; 18];
    (text[0], text[1]) = (b'0', b'x');
    for (place, byte) in value.to_be_bytes().into_iter().enumerate() {
        let [high, low] = PAIRS[byte as usize];
        (text[2 + 2 * place], text[3 + 2 * place]) = (high, low);
    }
    text
}

/// Returns `0x` and two digits for each of at most 64 bytes, of which the last is the highest.
#[inline]
pub fn hex_of_bytes<'t>(bytes: &[u8], text: &'t mut [u8; 130]) -> &'t [u8] {
    (text[0], text[1]) = (b'0', b'x');
    for (place, &byte) in bytes.iter().rev().take(64).enumerate() {
        let [high, low] = PAIRS[byte as usize];
        (text[2 + 2 * place], text[3 + 2 * place]) = (high, low);
    }
    &text[..2 + 2 * bytes.len().min(64)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_what_printf_gives() {
        for value in [0, 1, 0x3f_8320_0b03, 0xfedc_ba98_7654_3210, u64::MAX] {
            assert_eq!(hex(value), *format!("0x{value:016x}").as_bytes());
        }
    }

    #[test]
    fn bytes_are_written_as_a_number() {
        assert_eq!(hex_of_bytes(&[0x34, 0x12, 0xf0], &mut [0; 130]), b"0xf01234");
        assert_eq!(hex_of_bytes(&[1; 64], &mut [0; 130]), format!("0x{}", "01".repeat(64)).as_bytes());
    }
}
