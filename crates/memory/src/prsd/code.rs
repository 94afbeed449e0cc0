//! Pieces as bytes.
//!
//! The two lowest bits of a piece's first varint, its tag, are its kind; the others are a count:
//!
//! | kind | count | what follows |
//! | --- | --- | --- |
//! | 0 | addresses | of each its difference to the address before |
//! | 1 | dimensions | the difference of the start, and of each dimension its stride and length − 2 |
//! | 2 | addresses | the addresses, eight bytes each |
//!
//! Strides and differences are signed varints. The start differs from the last address of the piece
//! before, or from zero; the innermost dimension comes first. The encoder chooses the shorter one
//! of the kinds 0 and 2, so that an irregular address takes nine bytes with its tag in the worst
//! case. Regular pieces have at least three addresses and take less.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use super::section::{Addresses, DIMENSIONS_MAX, Dimension, Prsd};
use super::{IRREGULAR_MAX, Piece};
use crate::FormatError;
use codec::bytes::{ByteReader, put_signed, put_varint};

const KIND_BITS: u32 = 2;
const DIFFERENCES: u64 = 0;
const REGULAR: u64 = 1;
const WHOLE: u64 = 2;

/// Writes the pieces of one access point.
#[derive(Clone, Debug, Default)]
pub struct PieceEncoder {
    /// The last address that was written.
    last: u64,
}

impl PieceEncoder {
    /// Appends a piece to `out`. Pieces belong behind each other, in the order of the calls.
    pub fn put(&mut self, out: &mut Vec<u8>, piece: Piece<'_>) {
        match piece {
            Piece::Regular(section) => self.put_regular(out, &section),
            Piece::Irregular(addresses) => {
                addresses.chunks(IRREGULAR_MAX).for_each(|addresses| self.put_irregular(out, addresses));
            }
        }
    }

    fn put_regular(&mut self, out: &mut Vec<u8>, section: &Prsd) {
        put_tag(out, REGULAR, section.dimensions().len());
        put_signed(out, section.start().wrapping_sub(self.last));
        for dimension in section.dimensions() {
            put_signed(out, dimension.stride);
            put_varint(out, dimension.length - 2);
        }
        self.last = section.last();
    }

    fn put_irregular(&mut self, out: &mut Vec<u8>, addresses: &[u64]) {
        let start = out.len();
        put_tag(out, DIFFERENCES, addresses.len());
        let body = out.len();
        for &address in addresses {
            put_signed(out, address.wrapping_sub(self.last));
            self.last = address;
        }
        if out.len() - body > size_of_val(addresses) {
            out.truncate(start);
            put_tag(out, WHOLE, addresses.len());
            addresses.iter().for_each(|address| out.extend_from_slice(&address.to_le_bytes()));
        }
    }
}

fn put_tag(out: &mut Vec<u8>, kind: u64, count: usize) {
    put_varint(out, (count as u64) << KIND_BITS | kind);
}

/// Reads pieces from bytes that are not trusted.
#[derive(Clone, Debug)]
pub struct PieceReader<B> {
    bytes: B,
    /// Where the next piece begins.
    at: usize,
    last: u64,
    /// The present irregular addresses, [`IRREGULAR_MAX`] at most.
    irregular: Vec<u64>,
}

impl<B: AsRef<[u8]>> PieceReader<B> {
    #[must_use]
    pub fn new(bytes: B) -> Self {
        Self { bytes, at: 0, last: 0, irregular: Vec::new() }
    }

    /// Returns the next piece, or `None` at the end of the bytes.
    pub fn next_piece(&mut self) -> Result<Option<Piece<'_>>, FormatError> {
        let Self { bytes, at, last, irregular } = self;
        let mut bytes = ByteReader::new(bytes.as_ref().get(*at..).unwrap_or(&[]));
        if bytes.is_empty() {
            return Ok(None);
        }
        irregular.clear();
        let section = read_piece(&mut bytes, last, irregular).ok_or(FormatError("piece of an access point"))?;
        *at += bytes.at();
        Ok(Some(section.map_or(Piece::Irregular(irregular), Piece::Regular)))
    }
}

/// Reads a piece: a section, or addresses that are appended to `irregular`. `last` is the last
/// address before the piece, and then that of the piece.
fn read_piece(bytes: &mut ByteReader<'_>, last: &mut u64, irregular: &mut Vec<u64>) -> Option<Option<Prsd>> {
    let tag = bytes.varint()?;
    let count = usize::try_from(tag >> KIND_BITS).ok()?;
    let kind = tag & ((1 << KIND_BITS) - 1);
    match kind {
        REGULAR => read_regular(bytes, last, count).map(Some),
        DIFFERENCES | WHOLE if (1..=IRREGULAR_MAX).contains(&count) => {
            for _ in 0..count {
                *last = if kind == WHOLE { bytes.u64()? } else { last.wrapping_add(bytes.signed()?) };
                irregular.push(*last);
            }
            Some(None)
        }
        _ => None,
    }
}

fn read_regular(bytes: &mut ByteReader<'_>, last: &mut u64, count: usize) -> Option<Prsd> {
    let mut dimensions = [Dimension::default(); DIMENSIONS_MAX];
    let dimensions = dimensions.get_mut(..count)?;
    let start = last.wrapping_add(bytes.signed()?);
    for dimension in dimensions.iter_mut() {
        let stride = bytes.signed()?;
        *dimension = Dimension { stride, length: bytes.varint()?.checked_add(2)? };
    }
    let section = Prsd::new(start, dimensions)?;
    *last = section.last();
    Some(section)
}

/// Reads the addresses of an access point from bytes that are not trusted. Ends behind an error.
#[derive(Clone, Debug)]
pub struct AddressReader<B> {
    pieces: PieceReader<B>,
    /// The addresses of the present piece if it is regular.
    regular: Option<Addresses>,
    /// The next of the irregular addresses.
    irregular_at: usize,
    is_malformed: bool,
}

impl<B: AsRef<[u8]>> AddressReader<B> {
    #[must_use]
    pub fn new(bytes: B) -> Self {
        Self { pieces: PieceReader::new(bytes), regular: None, irregular_at: 0, is_malformed: false }
    }

    #[inline]
    fn next_of_piece(&mut self) -> Option<u64> {
        match &mut self.regular {
            Some(regular) => regular.next(),
            None => {
                let address = self.pieces.irregular.get(self.irregular_at)?;
                self.irregular_at += 1;
                Some(*address)
            }
        }
    }

    /// Goes to the next piece. Returns false at the end.
    fn enter_next_piece(&mut self) -> Result<bool, FormatError> {
        let Some(piece) = self.pieces.next_piece()? else { return Ok(false) };
        self.regular = match piece {
            Piece::Regular(section) => Some(section.addresses()),
            Piece::Irregular(_) => None,
        };
        self.irregular_at = 0;
        Ok(true)
    }
}

impl<B: AsRef<[u8]>> Iterator for AddressReader<B> {
    type Item = Result<u64, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_malformed {
            if let Some(address) = self.next_of_piece() {
                return Some(Ok(address));
            }
            match self.enter_next_piece() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.is_malformed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Owned pieces, for comparison.
    #[derive(Clone, Debug, PartialEq)]
    enum OwnedPiece {
        Regular(Prsd),
        Irregular(Vec<u64>),
    }

    impl OwnedPiece {
        fn of(piece: Piece<'_>) -> Self {
            match piece {
                Piece::Regular(section) => Self::Regular(section),
                Piece::Irregular(addresses) => Self::Irregular(addresses.to_vec()),
            }
        }

        fn as_piece(&self) -> Piece<'_> {
            match self {
                Self::Regular(section) => Piece::Regular(*section),
                Self::Irregular(addresses) => Piece::Irregular(addresses),
            }
        }

        fn addresses(&self) -> Vec<u64> {
            match self {
                Self::Regular(section) => section.addresses().collect(),
                Self::Irregular(addresses) => addresses.clone(),
            }
        }
    }

    fn encode(pieces: &[OwnedPiece]) -> Vec<u8> {
        let (mut encoder, mut out) = (PieceEncoder::default(), Vec::new());
        pieces.iter().for_each(|piece| encoder.put(&mut out, piece.as_piece()));
        out
    }

    fn decode(bytes: &[u8]) -> Result<Vec<OwnedPiece>, FormatError> {
        let (mut reader, mut pieces) = (PieceReader::new(bytes), Vec::new());
        while let Some(piece) = reader.next_piece()? {
            pieces.push(OwnedPiece::of(piece));
        }
        Ok(pieces)
    }

    fn any_address() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0x7fff_0000_0000u64..0x7fff_0000_1000]
    }

    fn any_piece() -> impl Strategy<Value = OwnedPiece> {
        let dimension = (any_address(), 2u64..5).prop_map(|(stride, length)| Dimension { stride, length });
        let regular = (any_address(), prop::collection::vec(dimension, 1..=DIMENSIONS_MAX))
            .prop_map(|(start, dimensions)| OwnedPiece::Regular(Prsd::new(start, &dimensions).unwrap()));
        let irregular = prop::collection::vec(any_address(), 1..=IRREGULAR_MAX).prop_map(OwnedPiece::Irregular);
        prop_oneof![regular, irregular]
    }

    proptest! {
        #[test]
        fn pieces_come_back(pieces in prop::collection::vec(any_piece(), 0..20)) {
            let bytes = encode(&pieces);
            prop_assert_eq!(decode(&bytes), Ok(pieces.clone()));
            let all: Vec<u64> = pieces.iter().flat_map(OwnedPiece::addresses).take(1000).collect();
            let read: Result<Vec<u64>, FormatError> = AddressReader::new(&bytes).take(1000).collect();
            prop_assert_eq!(read, Ok(all));
        }

        #[test]
        fn an_irregular_address_takes_nine_bytes_at_most(runs: Vec<Vec<u64>>) {
            let runs = runs.into_iter().filter(|run| !run.is_empty());
            let pieces: Vec<OwnedPiece> = runs.map(OwnedPiece::Irregular).collect();
            let count: usize = pieces.iter().map(|piece| piece.addresses().len()).sum();
            prop_assert!(encode(&pieces).len() <= 9 * count);
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes: Vec<u8>) {
            let pieces = decode(&bytes);
            let addresses: Result<Vec<u64>, FormatError> = AddressReader::new(&bytes).take(100_000).collect();
            prop_assert!(pieces.is_err() || addresses.is_ok());
            if let Ok(pieces) = pieces {
                prop_assert_eq!(decode(&encode(&pieces)), Ok(pieces));
            }
        }

        #[test]
        fn damaged_pieces_are_refused_or_read(
            pieces in prop::collection::vec(any_piece(), 1..5), at: prop::sample::Index, byte: u8, is_cut: bool,
        ) {
            let mut bytes = encode(&pieces);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(if is_cut { at } else { bytes.len() });
            let _ = decode(&bytes);
            let _ = AddressReader::new(&bytes).take(100_000).last();
        }
    }

    #[test]
    fn impossible_pieces_are_refused() {
        let put = |kind, count, rest: &[u64]| {
            let mut bytes = Vec::new();
            put_tag(&mut bytes, kind, count);
            rest.iter().for_each(|&value| put_varint(&mut bytes, value));
            decode(&bytes)
        };
        assert!(put(REGULAR, 1, &[0, 0, 1]).is_ok());
        for (kind, count, rest) in [
            (REGULAR, 0, vec![0]),
            (REGULAR, DIMENSIONS_MAX + 1, vec![0; 20]),
            (REGULAR, 1, vec![0, 0, u64::MAX]),
            (REGULAR, 2, vec![0, 0, 1 << 40, 0, 1 << 40]),
            (DIFFERENCES, 0, vec![]),
            (DIFFERENCES, IRREGULAR_MAX + 1, vec![0; 100]),
            (DIFFERENCES, 2, vec![0]),
            (WHOLE, 1, vec![0]),
            (3, 1, vec![0]),
        ] {
            assert_eq!(put(kind, count, &rest), Err(FormatError("piece of an access point")), "{kind} {count}");
        }
    }

    #[test]
    fn an_error_ends_the_addresses() {
        let mut bytes = encode(&[OwnedPiece::Irregular(vec![1, 2])]);
        bytes.push(0xff);
        let mut addresses = AddressReader::new(&bytes);
        assert_eq!([addresses.next(), addresses.next()], [Some(Ok(1)), Some(Ok(2))]);
        assert!(addresses.next().is_some_and(|address| address.is_err()) && addresses.next().is_none());
    }
}
