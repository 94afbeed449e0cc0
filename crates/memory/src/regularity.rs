//! Stream-oriented metrics of one access point (METRIC, section 9), computed from its pieces.
//!
//! A *stream* is an RSD, alone or in a PRSD: a PRSD of N RSDs is N streams of one length and one
//! stride. A *predictable* access is one in a regular piece.

use std::collections::BTreeMap;

use crate::prsd::Piece;

/// How regular the accesses of an access point are.
///
/// ```
/// use trackway_memory::prsd::{Detector, MAX_LEVEL};
/// use trackway_memory::regularity::Regularity;
///
/// let (mut detector, mut regularity) = (Detector::new(MAX_LEVEL), Regularity::default());
/// let addresses = (0..60).map(|at| 0x1000 + 8 * at).chain([0x77, 0x5555_5555]);
/// addresses.for_each(|address| detector.push(address, &mut |piece| regularity.add(&piece)));
/// detector.finish(&mut |piece| regularity.add(&piece));
/// assert_eq!((regularity.accesses(), regularity.predictable_accesses()), (62, 60));
/// assert_eq!(regularity.mean_stream_length(), Some(60.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regularity {
    irregular: u64,
    predictable: u64,
    /// The number of streams of each length.
    lengths: BTreeMap<u64, u64>,
    /// The number of streams of each stride.
    strides: BTreeMap<i64, u64>,
}

impl Regularity {
    /// Adds a piece.
    pub fn add(&mut self, piece: &Piece<'_>) {
        match piece {
            Piece::Irregular(addresses) => self.irregular += addresses.len() as u64,
            Piece::Regular(section) => {
                let (rsd, streams) = (section.rsd(), section.rsd_count());
                self.predictable = self.predictable.saturating_add(section.length());
                add(&mut self.lengths, rsd.length, streams);
                add(&mut self.strides, rsd.stride.cast_signed(), streams);
            }
        }
    }

    /// Adds the accesses of the same access point in another part of the execution.
    pub fn merge(&mut self, other: &Self) {
        self.irregular += other.irregular;
        self.predictable = self.predictable.saturating_add(other.predictable);
        other.lengths.iter().for_each(|(&length, &streams)| add(&mut self.lengths, length, streams));
        other.strides.iter().for_each(|(&stride, &streams)| add(&mut self.strides, stride, streams));
    }

    /// Returns the number of all accesses.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.predictable.saturating_add(self.irregular)
    }

    #[must_use]
    pub fn predictable_accesses(&self) -> u64 {
        self.predictable
    }

    /// Returns predictable accesses divided by all accesses, or `None` without any.
    #[must_use]
    pub fn regularity_ratio(&self) -> Option<f64> {
        ratio(self.predictable, self.accesses())
    }

    /// Returns the number of streams.
    #[must_use]
    pub fn streams(&self) -> u64 {
        self.lengths.values().fold(0, |sum, &streams| sum.saturating_add(streams))
    }

    /// Returns the average number of accesses in a stream, or `None` without streams.
    #[must_use]
    pub fn mean_stream_length(&self) -> Option<f64> {
        ratio(self.predictable, self.streams())
    }

    /// Returns the number of distinct lengths of streams.
    #[must_use]
    pub fn distinct_lengths(&self) -> usize {
        self.lengths.len()
    }

    /// Returns the number of distinct strides of streams.
    #[must_use]
    pub fn distinct_strides(&self) -> usize {
        self.strides.len()
    }

    /// Returns each length with its share of all streams, the most frequent first.
    #[must_use]
    pub fn length_distribution(&self) -> Vec<(u64, f64)> {
        distribution(&self.lengths, self.streams())
    }

    /// Returns each stride, in bytes, with its share of all streams, the most frequent first.
    #[must_use]
    pub fn stride_distribution(&self) -> Vec<(i64, f64)> {
        distribution(&self.strides, self.streams())
    }
}

fn add<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, count: u64) {
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn distribution<K: Copy>(counts: &BTreeMap<K, u64>, whole: u64) -> Vec<(K, f64)> {
    let mut sorted: Vec<(K, u64)> = counts.iter().map(|(&key, &count)| (key, count)).collect();
    sorted.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    sorted.into_iter().filter_map(|(key, count)| Some((key, ratio(count, whole)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prsd::{Dimension, Prsd};

    fn regular(start: u64, dimensions: &[(u64, u64)]) -> Piece<'static> {
        let dimension = |&(stride, length): &(u64, u64)| Dimension { stride, length };
        Piece::Regular(Prsd::new(start, &dimensions.iter().map(dimension).collect::<Vec<_>>()).unwrap())
    }

    fn regularity(pieces: &[Piece<'_>]) -> Regularity {
        let mut regularity = Regularity::default();
        pieces.iter().for_each(|piece| regularity.add(piece));
        regularity
    }

    #[test]
    fn without_accesses_there_are_no_ratios() {
        let none = Regularity::default();
        assert_eq!((none.accesses(), none.streams(), none.distinct_lengths(), none.distinct_strides()), (0, 0, 0, 0));
        assert_eq!((none.regularity_ratio(), none.mean_stream_length()), (None, None));
        assert!(none.length_distribution().is_empty() && none.stride_distribution().is_empty());
    }

    /// METRIC, section 9: every RSD of a PRSD is a stream.
    #[test]
    fn a_nest_is_as_many_streams_as_it_has_rsds() {
        let nest = regularity(&[regular(0, &[(8, 50), (800, 3)]), regular(7, &[(0u64.wrapping_sub(4), 10)])]);
        assert_eq!((nest.accesses(), nest.predictable_accesses(), nest.streams()), (160, 160, 4));
        assert_eq!((nest.regularity_ratio(), nest.mean_stream_length()), (Some(1.0), Some(40.0)));
        assert_eq!(nest.length_distribution(), [(50, 0.75), (10, 0.25)]);
        assert_eq!(nest.stride_distribution(), [(8, 0.75), (-4, 0.25)]);
    }

    #[test]
    fn irregular_accesses_lower_the_ratio() {
        let mixed = regularity(&[Piece::Irregular(&[1, 2, 9]), regular(0, &[(8, 9)])]);
        assert_eq!((mixed.regularity_ratio(), mixed.mean_stream_length()), (Some(0.75), Some(9.0)));
        assert_eq!((mixed.distinct_lengths(), mixed.distinct_strides()), (1, 1));
        assert_eq!(regularity(&[Piece::Irregular(&[1])]).regularity_ratio(), Some(0.0));
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let pieces = [regular(0, &[(8, 9), (100, 2)]), Piece::Irregular(&[5]), regular(9, &[(8, 4)])];
        let mut merged = regularity(&pieces[..1]);
        merged.merge(&regularity(&pieces[1..]));
        assert_eq!(merged, regularity(&pieces));
    }
}
