//! Stores of a path and their depths: a load looks up the stores that its bytes come from.

use effects::SegmentBase;

/// Bytes per line. Lines only serve to find stores: a mask has a bit for every byte.
const LINE: i64 = 1 << LINE_BITS;
const LINE_BITS: u32 = 6;
const BUCKETS: usize = 256;
/// No store.
const NONE: u32 = u32::MAX;

/// Base that addresses are relative to. Operands with different bases are taken to be disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBase {
    /// Versions of register values; 0 without a register.
    pub base: u32,
    pub index: u32,
    pub scale: u8,
    pub segment: SegmentBase,
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLocation {
    pub base_key: AddressBase,
    pub address: i64,
    pub size: u16,
}

/// The bytes of an operand that are in one line.
#[derive(Clone, Copy, Debug)]
struct Piece {
    base_key: AddressBase,
    line: i64,
    bytes: u64,
}

impl MemoryLocation {
    #[inline]
    fn pieces(self) -> impl Iterator<Item = Piece> {
        let (first, last) = (self.address, self.address.saturating_add(self.size.into()).wrapping_sub(1));
        let (first_line, last_line) = (first >> LINE_BITS, last >> LINE_BITS);
        (first_line..=last_line).map(move |line| {
            let from = if line == first_line { first & (LINE - 1) } else { 0 };
            let to = if line == last_line { last & (LINE - 1) } else { LINE - 1 };
            Piece { base_key: self.base_key, line, bytes: (u64::MAX << from) & (u64::MAX >> (LINE - 1 - to)) }
        })
    }
}

impl Piece {
    #[inline]
    fn bucket(&self) -> usize {
        let key = u64::from(self.base_key.base) << 32 | u64::from(self.base_key.index);
        let hash = (key.rotate_left(7) ^ self.line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - BUCKETS.ilog2())) as usize
    }

    #[inline]
    fn is_in_line_of(&self, other: &Self) -> bool {
        self.line == other.line && self.base_key == other.base_key
    }
}

#[derive(Clone, Copy, Debug)]
struct Store {
    piece: Piece,
    depth: u32,
    /// The previous store in the same bucket.
    before: u32,
    is_certain: bool,
}

/// The stores of a path, hashed by base and line.
#[derive(Debug)]
pub struct Stores {
    stores: Vec<Store>,
    /// The latest store of each bucket.
    latest: [u32; BUCKETS],
}

impl Default for Stores {
    fn default() -> Self {
        Self { stores: Vec::new(), latest: [NONE; BUCKETS] }
    }
}

impl Stores {
    pub fn clear(&mut self) {
        if !self.stores.is_empty() {
            self.stores.clear();
            self.latest.fill(NONE);
        }
    }

    /// Records a store by an instruction of this depth. A store that is not certain may leave the
    /// old bytes.
    #[inline]
    pub fn store(&mut self, operand: MemoryLocation, is_certain: bool, depth: u32) {
        for piece in operand.pieces() {
            let latest = &mut self.latest[piece.bucket()];
            let number = u32::try_from(self.stores.len()).unwrap_or(NONE);
            self.stores.push(Store { piece, depth, before: *latest, is_certain });
            *latest = number;
        }
    }

    /// Returns the depth of the deepest store that any of the bytes come from; 0 if they were in
    /// memory before the path.
    #[inline]
    pub fn load(&self, operand: MemoryLocation) -> u32 {
        operand.pieces().map(|piece| self.load_piece(&piece)).max().unwrap_or(0)
    }

    #[inline]
    fn load_piece(&self, piece: &Piece) -> u32 {
        let (mut missing, mut depth) = (piece.bytes, 0);
        let mut at = self.latest[piece.bucket()];
        while missing != 0
            && let Some(store) = self.stores.get(at as usize)
        {
            if store.piece.is_in_line_of(piece) && store.piece.bytes & missing != 0 {
                depth = depth.max(store.depth);
                missing &= if store.is_certain { !store.piece.bytes } else { u64::MAX };
            }
            at = store.before;
        }
        depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: AddressBase = AddressBase { base: 5, index: 0, scale: 1, segment: SegmentBase::Flat };

    fn operand(address: i64, size: u16) -> MemoryLocation {
        MemoryLocation { base_key: BASE, address, size }
    }

    #[test]
    fn pieces_are_cut_at_lines() {
        let pieces = |address, size| operand(address, size).pieces().map(|p| (p.line, p.bytes)).collect::<Vec<_>>();
        assert_eq!(pieces(0, 8), [(0, 0xff)]);
        assert_eq!(pieces(-8, 8), [(-1, 0xff << 56)]);
        assert_eq!(pieces(-2, 4), [(-1, 3 << 62), (0, 3)]);
        assert_eq!(pieces(64, 64), [(1, u64::MAX)]);
        assert_eq!(pieces(63, 66), [(0, 1 << 63), (1, u64::MAX), (2, 1)]);
        assert_eq!(pieces(i64::MAX, 8).len(), 1);
        assert!(pieces(0, 0).is_empty());
    }

    #[test]
    fn a_load_needs_the_stores_it_gets_bytes_from() {
        let mut stores = Stores::default();
        stores.store(operand(60, 8), true, 7);
        stores.store(operand(60, 4), true, 2);
        stores.store(operand(64, 1), false, 3);
        let depths =
            [(60, 4), (60, 8), (64, 1), (68, 4), (56, 4), (65, 1)].map(|(at, size)| stores.load(operand(at, size)));
        assert_eq!(depths, [2, 7, 7, 0, 0, 7]);
        for base_key in [
            AddressBase { base: 6, ..BASE },
            AddressBase { index: 5, ..BASE },
            AddressBase { scale: 2, ..BASE },
            AddressBase { segment: SegmentBase::Fs, ..BASE },
        ] {
            assert_eq!(stores.load(MemoryLocation { base_key, ..operand(60, 8) }), 0);
        }
        stores.clear();
        assert_eq!(stores.load(operand(60, 8)), 0);
    }
}
