//! Numbers as text, fast: the inner loop of `dump` spends its time here.

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

/// `0x` and sixteen digits, as `0x%016x` gives them.
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

/// `0x` and two digits for each of at most 64 bytes, of which the last is the highest.
#[inline]
pub fn hex_of_bytes<'t>(bytes: &[u8], text: &'t mut [u8; 130]) -> &'t [u8] {
    (text[0], text[1]) = (b'0', b'x');
    for (place, &byte) in bytes.iter().rev().take(64).enumerate() {
        let [high, low] = PAIRS[byte as usize];
        (text[2 + 2 * place], text[3 + 2 * place]) = (high, low);
    }
    &text[..2 + 2 * bytes.len().min(64)]
}

/// A number with its digits in groups of three: 1 234 567.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A size in a unit that suits it: 512 B, 1.5 KiB, 20.0 MiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `part` of `whole` in per cent.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
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

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1 000");
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(20 << 20), "20.0 MiB");
        assert_eq!(percent(1, 4), 25.0);
        assert_eq!(percent(1, 0), 0.0);
    }
}
