//! What a path has stored, and how deep: from a load to the stores that its bytes come from.

use effects::SegmentBase;

/// Bytes of a line. Lines are no more than a way to find stores: a mask has a bit for every byte.
const LINE: i64 = 1 << LINE_BITS;
const LINE_BITS: u32 = 6;
const BUCKETS: usize = 256;
/// No store.
const NONE: u32 = u32::MAX;

/// What addresses are relative to: places of different origins are different places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Versions of registers' values; 0 if there is no register.
    pub base: u32,
    pub index: u32,
    pub scale: u8,
    pub segment: SegmentBase,
}

/// Some bytes in memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub origin: Origin,
    pub address: i64,
    pub size: u16,
}

/// The bytes of a place that are in one line.
#[derive(Clone, Copy, Debug)]
struct Piece {
    origin: Origin,
    line: i64,
    bytes: u64,
}

impl Place {
    #[inline]
    fn pieces(self) -> impl Iterator<Item = Piece> {
        let (first, last) = (self.address, self.address.saturating_add(self.size.into()).wrapping_sub(1));
        let (first_line, last_line) = (first >> LINE_BITS, last >> LINE_BITS);
        (first_line..=last_line).map(move |line| {
            let from = if line == first_line { first & (LINE - 1) } else { 0 };
            let to = if line == last_line { last & (LINE - 1) } else { LINE - 1 };
            Piece { origin: self.origin, line, bytes: (u64::MAX << from) & (u64::MAX >> (LINE - 1 - to)) }
        })
    }
}

impl Piece {
    #[inline]
    fn bucket(&self) -> usize {
        let key = u64::from(self.origin.base) << 32 | u64::from(self.origin.index);
        let hash = (key.rotate_left(7) ^ self.line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - BUCKETS.ilog2())) as usize
    }

    #[inline]
    fn is_in_line_of(&self, other: &Self) -> bool {
        self.line == other.line && self.origin == other.origin
    }
}

#[derive(Clone, Copy, Debug)]
struct Store {
    piece: Piece,
    depth: u32,
    /// The store before this one in the same bucket.
    before: u32,
    is_certain: bool,
}

/// The stores of a path, to be found by where they are.
#[derive(Debug)]
pub struct Stores {
    stores: Vec<Store>,
    /// By bucket, the latest store.
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

    /// Stores with an instruction of this depth. What is not certain may leave what was there before.
    #[inline]
    pub fn store(&mut self, place: Place, is_certain: bool, depth: u32) {
        for piece in place.pieces() {
            let latest = &mut self.latest[piece.bucket()];
            let number = u32::try_from(self.stores.len()).unwrap_or(NONE);
            self.stores.push(Store { piece, depth, before: *latest, is_certain });
            *latest = number;
        }
    }

    /// The depth of the deepest store that any of the bytes come from; 0 if they were there before the path.
    #[inline]
    pub fn load(&self, place: Place) -> u32 {
        place.pieces().map(|piece| self.load_piece(&piece)).max().unwrap_or(0)
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

    const ORIGIN: Origin = Origin { base: 5, index: 0, scale: 1, segment: SegmentBase::Flat };

    fn place(address: i64, size: u16) -> Place {
        Place { origin: ORIGIN, address, size }
    }

    #[test]
    fn pieces_are_cut_at_lines() {
        let pieces = |address, size| place(address, size).pieces().map(|p| (p.line, p.bytes)).collect::<Vec<_>>();
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
        stores.store(place(60, 8), true, 7);
        stores.store(place(60, 4), true, 2);
        stores.store(place(64, 1), false, 3);
        let depths =
            [(60, 4), (60, 8), (64, 1), (68, 4), (56, 4), (65, 1)].map(|(at, size)| stores.load(place(at, size)));
        assert_eq!(depths, [2, 7, 7, 0, 0, 7]);
        for origin in [
            Origin { base: 6, ..ORIGIN },
            Origin { index: 5, ..ORIGIN },
            Origin { scale: 2, ..ORIGIN },
            Origin { segment: SegmentBase::Fs, ..ORIGIN },
        ] {
            assert_eq!(stores.load(Place { origin, ..place(60, 8) }), 0);
        }
        stores.clear();
        assert_eq!(stores.load(place(60, 8)), 0);
    }
}
