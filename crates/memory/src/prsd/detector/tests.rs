//! Tests of the detector: the frames of Figure 6, nests of loops of any size, and any input.

use proptest::prelude::*;

use super::*;
use crate::prsd::{AddressReader, PieceEncoder};

/// A piece, owned.
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
}

fn detect_with(max_level: usize, addresses: impl IntoIterator<Item = u64>) -> Vec<OwnedPiece> {
    let (mut detector, mut pieces) = (Detector::new(max_level), Vec::new());
    let mut keep = |piece: Piece<'_>| pieces.push(OwnedPiece::of(piece));
    addresses.into_iter().for_each(|address| detector.push(address, &mut keep));
    detector.finish(&mut keep);
    assert!(detector.length == 0 && detector.irregular.is_empty());
    assert!(detector.levels.iter().all(|level| *level == Level::Empty));
    pieces
}

fn detect(addresses: impl IntoIterator<Item = u64>) -> Vec<OwnedPiece> {
    detect_with(MAX_LEVEL, addresses)
}

fn section(start: u64, dimensions: &[(u64, u64)]) -> Prsd {
    let dimension = |&(stride, length): &(u64, u64)| Dimension { stride, length };
    Prsd::new(start, &dimensions.iter().map(dimension).collect::<Vec<_>>()).unwrap()
}

fn regular(start: u64, dimensions: &[(u64, u64)]) -> OwnedPiece {
    OwnedPiece::Regular(section(start, dimensions))
}

/// The nest of Figure 6, `A[i][j]` of `int A[200][200]` where an int has size one.
struct Figure6 {
    detector: Detector,
    row: u64,
    column: u64,
}

const A: u64 = 0x1000;
const N: u64 = 100;
const M: u64 = 50;

impl Figure6 {
    /// Pushes up to the iteration `(i, j)`, which is the input of a frame. Nothing may be flushed.
    fn run_to(&mut self, i: u64, j: u64) {
        while (self.row, self.column) <= (i, j) {
            let address = A + 200 * self.row + self.column;
            self.detector.push(address, &mut |piece| panic!("{piece:?} is flushed"));
            (self.row, self.column) =
                if self.column == M - 1 { (self.row + 1, 0) } else { (self.row, self.column + 1) };
        }
    }

    /// Checks level zero, as start, stride and length, and level one.
    fn check(&self, start: u64, stride: u64, length: u64, level_one: Level) {
        assert_eq!(self.detector.length, length);
        if length >= 2 {
            assert_eq!(self.detector.level_zero(), (start, Dimension { stride, length }));
        } else if length == 1 {
            assert_eq!(self.detector.last, start);
        }
        assert_eq!(self.detector.levels.first().copied().unwrap_or_default(), level_one);
        assert!(self.detector.levels.iter().skip(1).all(|level| *level == Level::Empty));
    }
}

/// METRIC, Figure 6, frame by frame. Frames 6 and 7 print M−1 where M is meant, as Frame 8 shows.
#[test]
fn metric_figure_6() {
    let mut nest = Figure6 { detector: Detector::new(MAX_LEVEL), row: 0, column: 0 };
    let row = |i: u64| A + 200 * i;
    let single = Level::Single(section(A, &[(1, M)]));
    let compound = |length| Level::Compound(section(A, &[(1, M), (200, length)]));
    nest.check(0, 0, 0, Level::Empty);
    nest.run_to(0, 0);
    nest.check(A, 0, 1, Level::Empty);
    nest.run_to(0, 1);
    nest.check(A, 1, 2, Level::Empty);
    nest.run_to(0, 2);
    nest.check(A, 1, 3, Level::Empty);
    nest.run_to(0, M - 1);
    nest.check(A, 1, M, Level::Empty);
    nest.run_to(1, 0);
    nest.check(row(1), 0, 1, single);
    nest.run_to(1, 1);
    nest.check(row(1), 1, 2, single);
    nest.run_to(1, M - 1);
    nest.check(row(1), 1, M, single);
    nest.run_to(2, 0);
    nest.check(row(2), 0, 1, compound(2));
    nest.run_to(3, 0);
    nest.check(row(3), 0, 1, compound(3));
    nest.run_to(N - 1, M - 1);
    nest.check(row(N - 1), 1, M, compound(N - 1));
    // Section 4.3: the RSD of Frame 11 becomes a child of the PRSD above.
    let mut pieces = Vec::new();
    nest.detector.finish(&mut |piece| pieces.push(OwnedPiece::of(piece)));
    assert_eq!(pieces, [regular(A, &[(1, M), (200, N)])]);
}

#[test]
fn a_nest_of_two_loops_is_one_piece() {
    for n in (200..=2000).step_by(90) {
        let pieces = detect((0..n).flat_map(|row| (0..n).map(move |column| A + 0x10_0000 * row + 8 * column)));
        assert_eq!(pieces, [regular(A, &[(8, n), (0x10_0000, n)])]);
    }
}

#[test]
fn a_nest_over_a_whole_matrix_is_one_rsd() {
    for n in [200, 777, 2000] {
        assert_eq!(
            detect((0..n).flat_map(|row| (0..n).map(move |column| 8 * (n * row + column)))),
            [regular(0, &[(8, n * n)])]
        );
    }
}

#[test]
fn columns_and_invariant_rows_are_one_piece() {
    let n = 300;
    let columns = (0..n).flat_map(|column| (0..n).map(move |row| A + 4000 * row + 8 * column));
    assert_eq!(detect(columns), [regular(A, &[(4000, n), (8, n)])]);
    let invariant = (0..n).flat_map(|_| (0..n).map(|column| A + 8 * column));
    assert_eq!(detect(invariant), [regular(A, &[(8, n), (0, n)])]);
    assert_eq!(detect((0..n).map(|_| A)), [regular(A, &[(0, n)])]);
}

#[test]
fn nests_of_any_depth_are_one_piece() {
    for n in [2, 3, 4, 100] {
        let triple = (0..n).flat_map(|plane| {
            (0..n).flat_map(move |row| (0..n).map(move |column| A + (plane << 30) + (row << 20) + 8 * column))
        });
        assert_eq!(detect(triple), [regular(A, &[(8, n), (1 << 20, n), (1 << 30, n)])]);
    }
    let dimensions: Vec<(u64, u64)> = (0..DIMENSIONS_MAX as u32).map(|depth| (100u64.pow(depth), 3)).collect();
    let deep = section(A, &dimensions);
    assert_eq!(detect(deep.addresses()), [OwnedPiece::Regular(deep)]);
}

#[test]
fn sections_that_leave_the_highest_level_are_flushed() {
    let whole = section(A, &[(8, 5), (1000, 4), (100_000, 3)]);
    let row = |plane: u64, row: u64| regular(A + 100_000 * plane + 1000 * row, &[(8, 5)]);
    let plane = |plane: u64| regular(A + 100_000 * plane, &[(8, 5), (1000, 4)]);
    let rows: Vec<OwnedPiece> = (0..12).map(|at| row(at / 4, at % 4)).collect();
    assert_eq!(detect_with(0, whole.addresses()), rows);
    assert_eq!(detect_with(1, whole.addresses()), [plane(0), plane(1), plane(2)]);
    assert_eq!(detect_with(2, whole.addresses()), [OwnedPiece::Regular(whole)]);
    assert_eq!(detect_with(usize::MAX, whole.addresses()), [OwnedPiece::Regular(whole)]);
}

#[test]
fn siblings_need_equal_strides() {
    let addresses = [0, 4, 8, 100, 108, 116, 200, 204, 208];
    let expected = [regular(0, &[(4, 3)]), regular(100, &[(8, 3)]), regular(200, &[(4, 3)])];
    assert_eq!(detect(addresses), expected);
}

#[test]
fn a_change_of_phase_flushes_in_order() {
    let first = section(A, &[(8, 10), (1000, 10)]);
    let second = section(0x9_0000, &[(4, 20), (4096, 7)]);
    let between = [3, 0x5555, 42];
    let addresses = first.addresses().chain(between).chain(second.addresses());
    // The last one of the irregular addresses meets the first one of the second nest, whose first
    // row is therefore shorter.
    let expected = [
        OwnedPiece::Regular(first),
        OwnedPiece::Irregular(vec![3, 0x5555, 42, 0x9_0000]),
        regular(0x9_0004, &[(4, 19)]),
        regular(0x9_1000, &[(4, 20), (4096, 6)]),
    ];
    assert_eq!(detect(addresses), expected);
}

#[test]
fn short_sections_are_irregular_unless_they_are_children() {
    assert_eq!(detect([]), []);
    assert_eq!(detect([7]), [OwnedPiece::Irregular(vec![7])]);
    assert_eq!(detect([7, 9]), [OwnedPiece::Irregular(vec![7, 9])]);
    assert_eq!(detect([7, 9, 11]), [regular(7, &[(2, 3)])]);
    assert_eq!(detect([7, 9, 107, 109]), [regular(7, &[(2, 2), (100, 2)])]);
}

#[test]
fn random_addresses_are_irregular_and_take_no_space() {
    let mut address = 1u64;
    let addresses = std::iter::from_fn(|| {
        address = address.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        Some(address)
    });
    let (mut detector, mut encoder, mut out) = (Detector::new(MAX_LEVEL), PieceEncoder::default(), Vec::new());
    for address in addresses.take(100_000) {
        detector.push(address, &mut |piece| encoder.put(&mut out, piece));
        assert!(detector.levels.len() <= 1 && detector.irregular.len() < IRREGULAR_MAX);
    }
    detector.finish(&mut |piece| encoder.put(&mut out, piece));
    assert!((800_000..820_000).contains(&out.len()), "{}", out.len());
}

/// Loops and loose addresses in turn, anywhere in the address space.
fn any_addresses() -> impl Strategy<Value = Vec<u64>> {
    let stride = || prop_oneof![Just(0u64), 0u64..20, any::<u64>()];
    let nest = (any::<u64>(), prop::collection::vec((stride(), 2u64..5), 1..4))
        .prop_map(|(start, dimensions)| section(start, &dimensions).addresses().collect::<Vec<u64>>());
    let loose = prop::collection::vec(prop_oneof![any::<u64>(), 0u64..8, u64::MAX - 8..=u64::MAX], 0..8);
    prop::collection::vec(prop_oneof![nest, loose], 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn pieces_generate_the_addresses(addresses in any_addresses(), max_level in 0usize..9) {
        let pieces = detect_with(max_level, addresses.iter().copied());
        let generated = pieces.iter().flat_map(|piece| match piece {
            OwnedPiece::Regular(section) => section.addresses().collect(),
            OwnedPiece::Irregular(addresses) => addresses.clone(),
        });
        prop_assert!(generated.eq(addresses.iter().copied()));
        for piece in &pieces {
            let height = matches!(piece, OwnedPiece::Regular(section) if section.height() > max_level);
            prop_assert!(!height);
        }
    }

    #[test]
    fn bytes_generate_the_addresses(addresses in any_addresses()) {
        let (mut detector, mut encoder, mut out) = (Detector::new(MAX_LEVEL), PieceEncoder::default(), Vec::new());
        let mut encode = |piece: Piece<'_>| encoder.put(&mut out, piece);
        addresses.iter().for_each(|&address| detector.push(address, &mut encode));
        detector.finish(&mut encode);
        prop_assert!(out.len() <= 9 * addresses.len());
        let read: Result<Vec<u64>, crate::FormatError> = AddressReader::new(&out).collect();
        prop_assert_eq!(read, Ok(addresses));
    }
}
