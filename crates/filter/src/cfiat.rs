//! CFiat, the filter of load values. A [`Cfiat`] is a cache with first-access flags and values. A
//! [`LoadEncoder`] emits a [`LoadMessage`] for each load whose value the cache does not know (a
//! first-access miss). The message carries the number of loads that were known since the previous
//! message. A [`LoadDecoder`] reproduces all values.

use std::collections::VecDeque;

use cache::{FirstAccess, FlagCoverage, Geometry, IllegalGeometry, Load, Replacement};

/// Criterion by which a load counts as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownCriterion {
    /// The flags, and equality with the cached value. A load emits a message if its memory was
    /// changed without the cache's knowledge.
    #[default]
    Values,
    /// The flags alone, as in the theses.
    Flags,
}

/// Configuration of the cache and of its flags.
#[derive(Clone, Copy, Debug)]
pub struct CfiatConfig {
    pub geometry: Geometry,
    pub replacement: Replacement,
    /// Bytes that one flag covers.
    pub granularity: u64,
    pub cover: FlagCoverage,
    pub known_by: KnownCriterion,
}

/// Bytes that are compared at once.
const WORD_BYTES: usize = size_of::<u64>();

/// A cache with first-access flags and with the values that the decoder knows.
#[derive(Clone, Debug)]
pub struct Cfiat {
    flags: FirstAccess,
    /// The bytes of each slot, and [`WORD_BYTES`] more.
    bytes: Vec<u8>,
    known_by: KnownCriterion,
}

impl Cfiat {
    pub fn new(config: &CfiatConfig) -> Result<Self, IllegalGeometry> {
        let flags = FirstAccess::new(config.geometry, config.replacement, config.granularity, config.cover)?;
        let lines = config.geometry.sets() * config.geometry.ways();
        let bytes = vec![0; lines * config.geometry.line_bytes() as usize + WORD_BYTES];
        Ok(Self { flags, bytes, known_by: config.known_by })
    }

    /// Returns whether a load of `size` bytes, at most eight, is known, so that [`Self::load`]
    /// would change nothing. Ignores bytes of `value` above the operand. Returns false if only
    /// [`Self::load`] can decide.
    #[must_use]
    #[inline(always)]
    pub fn knows(&self, address: u64, size: usize, value: u64) -> bool {
        let known = self.known_offset(address, size).and_then(|at| self.bytes.get(at..)?.first_chunk());
        known.is_some_and(|known| (u64::from_le_bytes(*known) ^ value) & low_bytes(size) == 0)
    }

    /// Returns whether a load of sixteen bytes is known; see [`Self::knows`].
    #[must_use]
    #[inline(always)]
    pub fn knows_wide(&self, address: u64, value: &[u8; 16]) -> bool {
        let known = self.known_offset(address, value.len()).and_then(|at| self.bytes.get(at..)?.first_chunk());
        known.is_some_and(|known| known == value)
    }

    /// Returns the offset of an operand's bytes if all its flags are set and its line needs no
    /// update.
    #[inline(always)]
    fn known_offset(&self, address: u64, size: usize) -> Option<usize> {
        let slot = self.flags.known_slot(address, size as u64)?;
        Some(self.flags.tags().geometry().byte_index(slot, address))
    }

    /// Updates the cache with a load of `value`. Returns whether the value was known.
    #[inline]
    pub fn load(&mut self, address: u64, value: &[u8]) -> Load {
        let Some(part) = self.flags.access_in_line(address, value.len() as u64) else {
            return self.load_lines(address, value);
        };
        let is_same = self.replace_part(&part, value) || self.known_by == KnownCriterion::Flags;
        Load { cache_hit: part.line.hit, flags_hit: part.flags_hit && is_same }
    }

    #[inline(never)]
    fn load_lines(&mut self, address: u64, value: &[u8]) -> Load {
        let (bytes, known_by, geometry) = (&mut self.bytes, self.known_by, *self.flags.tags().geometry());
        let mut is_same = true;
        let mut load = self.flags.load_parts(address, value.len() as u64, |part| {
            let (own, line) = own_bytes(&geometry, address, part, value.len());
            let was_same = replace(&mut bytes[line], &value[own]);
            is_same &= !part.flags_hit || was_same;
        });
        load.flags_hit &= is_same || known_by == KnownCriterion::Flags;
        load
    }

    /// Stores the value of a part. Returns whether it was there already.
    #[inline]
    fn replace_part(&mut self, part: &cache::LineAccess, value: &[u8]) -> bool {
        let at = self.flags.tags().geometry().byte_index(part.line.slot, part.address);
        replace(&mut self.bytes[at..at + value.len()], value)
    }

    /// The inverse of [`Self::load`] for a known load: fills `value` from the cache.
    pub fn recall(&mut self, address: u64, value: &mut [u8]) -> Load {
        let (bytes, geometry, length) = (&self.bytes, *self.flags.tags().geometry(), value.len());
        self.flags.load_parts(address, length as u64, |part| {
            let (own, line) = own_bytes(&geometry, address, part, length);
            value[own].copy_from_slice(&bytes[line]);
        })
    }

    /// Performs a store of `size` bytes, at most eight, if it changes nothing but the bytes.
    /// Ignores bytes of `value` above the operand. Returns false if the caller has to use
    /// [`Self::store`] instead.
    #[must_use]
    #[inline(always)]
    pub fn overwrite(&mut self, address: u64, size: usize, value: u64) -> bool {
        let known = self.known_offset(address, size).and_then(|at| self.bytes.get_mut(at..)?.first_chunk_mut());
        let Some(known) = known else { return false };
        // Reads and writes the whole word: variable sizes would cause unpredictable branches.
        let before = u64::from_le_bytes(*known);
        *known = (before ^ (before ^ value) & low_bytes(size)).to_le_bytes();
        true
    }

    /// Performs a store of sixteen bytes; see [`Self::overwrite`].
    #[must_use]
    #[inline(always)]
    pub fn overwrite_wide(&mut self, address: u64, value: &[u8; 16]) -> bool {
        let known = self.known_offset(address, value.len()).and_then(|at| self.bytes.get_mut(at..)?.first_chunk_mut());
        known.map(|known| *known = *value).is_some()
    }

    /// Performs a store of `value`. Returns whether the cache held the lines.
    #[inline]
    pub fn store(&mut self, address: u64, value: &[u8]) -> bool {
        let Some(part) = self.flags.access_in_line(address, value.len() as u64) else {
            return self.store_lines(address, value);
        };
        self.replace_part(&part, value);
        part.line.hit
    }

    #[inline(never)]
    fn store_lines(&mut self, address: u64, value: &[u8]) -> bool {
        let (bytes, geometry) = (&mut self.bytes, *self.flags.tags().geometry());
        self.flags.store_parts(address, value.len() as u64, |part| {
            let (own, line) = own_bytes(&geometry, address, part, value.len());
            replace(&mut bytes[line], &value[own]);
        })
    }

    /// Copies missing lines of this operand, with their flags, from the first of `others` that
    /// holds them: the caches of a processor send lines to each other.
    pub fn fetch<'c>(&mut self, others: impl Iterator<Item = &'c Self> + Clone, address: u64, bytes: u64) {
        for address in self.flags.lines(address, bytes) {
            if !self.flags.holds(address)
                && let Some(other) = others.clone().find(|other| other.flags.holds(address))
            {
                self.copy_line(other, address);
            }
        }
    }

    fn copy_line(&mut self, other: &Self, address: u64) {
        let line_bytes = self.flags.tags().geometry().line_bytes() as usize;
        if let Some((to, from)) = self.flags.copy_line_from(&other.flags, address) {
            let line = &other.bytes[from * line_bytes..][..line_bytes];
            self.bytes[to * line_bytes..][..line_bytes].copy_from_slice(line);
        }
    }

    /// Invalidates the lines of this operand, because another cache owns them from now on.
    pub fn invalidate(&mut self, address: u64, bytes: u64) {
        self.flags.lines(address, bytes).for_each(|address| self.flags.invalidate(address));
    }

    /// Clears the flags of the lines of these bytes, because another thread has written them.
    pub fn clear_flags(&mut self, address: u64, bytes: u64) {
        self.flags.clear_flags(address, bytes);
    }

    /// Clears all flags, because any memory may have changed.
    pub fn clear_all_flags(&mut self) {
        self.flags.clear_all_flags();
    }
}

/// Copies `value`. Returns whether it was there already.
#[inline]
fn replace(known: &mut [u8], value: &[u8]) -> bool {
    // Constant sizes for the usual cases save two library calls.
    match value.len() {
        4 => replace_exactly::<4>(known, value),
        8 => replace_exactly::<8>(known, value),
        16 => replace_exactly::<16>(known, value),
        _ => {
            let was_same = known == value;
            known.copy_from_slice(value);
            was_same
        }
    }
}

#[inline(always)]
fn replace_exactly<const N: usize>(known: &mut [u8], value: &[u8]) -> bool {
    let (Some(known), Some(value)) = (known.as_mut_array::<N>(), value.as_array::<N>()) else { return false };
    std::mem::replace(known, *value) == *value
}

/// Returns a mask of the lowest `count` bytes, one to eight.
#[inline(always)]
fn low_bytes(count: usize) -> u64 {
    u64::MAX >> (WORD_BYTES.wrapping_sub(count) * 8 % 64)
}

/// Returns the ranges of a part: within the operand, and within the bytes of all slots.
#[inline]
fn own_bytes(
    geometry: &Geometry,
    address: u64,
    part: &cache::LineAccess,
    length: usize,
) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let start = part.address.wrapping_sub(address) as usize;
    let end = (start + part.bytes as usize).min(length);
    let line = geometry.byte_index(part.line.slot, part.address);
    (start..end, line..line + (end - start))
}

/// A message: `hits` loads were known, then one loaded `value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadMessage {
    pub hits: u64,
    pub value: Vec<u8>,
}

/// Encoder of one thread: counts known loads since the last message.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadEncoder {
    hits: u64,
}

impl LoadEncoder {
    /// Counts a known load.
    #[inline]
    pub fn add_hit(&mut self) {
        self.hits += 1;
    }

    /// Encodes a load of `value`. Returns what the cache says of it and, if a message is due, the
    /// number of known loads before it.
    #[inline]
    pub fn encode_load(&mut self, cfiat: &mut Cfiat, address: u64, value: &[u8]) -> (Load, Option<u64>) {
        let load = cfiat.load(address, value);
        if load.needs_message() {
            return (load, Some(std::mem::take(&mut self.hits)));
        }
        self.hits += 1;
        (load, None)
    }
}

/// Source of a decoder's messages. A message must be available before its load is decoded.
pub trait LoadMessageSource {
    /// Takes the value of the load that follows `hits` known loads, if there is a message about it.
    /// Returns whether there is one; `None` if the message has a value of another size.
    fn take_value(&mut self, hits: u64, value: &mut [u8]) -> Option<bool>;
}

impl LoadMessageSource for VecDeque<LoadMessage> {
    fn take_value(&mut self, hits: u64, value: &mut [u8]) -> Option<bool> {
        let Some(message) = self.front().filter(|message| message.hits == hits) else { return Some(false) };
        if message.value.len() != value.len() {
            return None;
        }
        value.copy_from_slice(&message.value);
        self.pop_front();
        Some(true)
    }
}

/// Origin of a decoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    Message,
    /// The cache, because there is no message. With [`KnownCriterion::Flags`], memory may have
    /// another value.
    Cache,
}

/// Decoder of one thread, the inverse of [`LoadEncoder`]: takes messages and returns loaded values.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadDecoder {
    hits: u64,
}

impl LoadDecoder {
    /// Fills `value` with what the load that is executed now returns, and returns its origin.
    /// Returns `None` if the message has a value of another size.
    pub fn decode_load(
        &mut self,
        cfiat: &mut Cfiat,
        address: u64,
        value: &mut [u8],
        messages: &mut impl LoadMessageSource,
    ) -> Option<ValueOrigin> {
        if messages.take_value(self.hits, value)? {
            cfiat.load(address, value);
            self.hits = 0;
            return Some(ValueOrigin::Message);
        }
        cfiat.recall(address, value);
        self.hits += 1;
        Some(ValueOrigin::Cache)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(known_by: KnownCriterion) -> CfiatConfig {
        CfiatConfig {
            geometry: Geometry::new(128, 16, 2).unwrap(),
            replacement: Replacement::RoundRobin,
            granularity: 4,
            cover: FlagCoverage::Whole,
            known_by,
        }
    }

    #[test]
    fn stored_and_emitted_values_are_known() {
        let (mut cfiat, mut encoder) = (Cfiat::new(&config(KnownCriterion::Values)).unwrap(), LoadEncoder::default());
        assert_eq!(encoder.encode_load(&mut cfiat, 0x100, &[1, 2, 3, 4]).1, Some(0));
        cfiat.store(0x104, &[5, 6, 7, 8]);
        assert_eq!(encoder.encode_load(&mut cfiat, 0x100, &[1, 2, 3, 4, 5, 6, 7, 8]).1, None);
        assert_eq!(encoder.encode_load(&mut cfiat, 0x105, &[6]).1, None);
        assert_eq!(encoder.encode_load(&mut cfiat, 0x108, &[0; 4]).1, Some(2));
    }

    #[test]
    fn the_fast_check_agrees() {
        let mut cfiat = Cfiat::new(&config(KnownCriterion::Values)).unwrap();
        assert!(!cfiat.knows(0x10c, 4, 7));
        cfiat.load(0x10c, &[7, 0, 0, 0]);
        assert!(cfiat.knows(0x10c, 4, 7) && cfiat.knows(0x10c, 4, 7 | 1 << 32) && cfiat.knows(0x10d, 1, 0));
        assert!(!cfiat.knows(0x10c, 4, 8) && !cfiat.knows(0x10c, 5, 7) && !cfiat.knows(0x10c, 0, 7));
        cfiat.store(0x100, &[1; 16]);
        assert!(cfiat.knows_wide(0x100, &[1; 16]) && !cfiat.knows_wide(0x100, &[2; 16]));
        assert!(!cfiat.knows_wide(0x101, &[1; 16]));
    }

    #[test]
    fn an_overwritten_value_is_known() {
        let mut cfiat = Cfiat::new(&config(KnownCriterion::Values)).unwrap();
        assert!(!cfiat.overwrite(0x100, 4, 7));
        cfiat.store(0x100, &[1; 16]);
        assert!(cfiat.overwrite(0x103, 2, 0x0202_0202) && cfiat.overwrite(0x108, 8, 3));
        assert!(!cfiat.overwrite(0x10d, 4, 7) && !cfiat.overwrite(0x108, 0, 7));
        assert!(cfiat.knows_wide(0x100, &[1, 1, 1, 2, 2, 1, 1, 1, 3, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!cfiat.overwrite_wide(0x101, &[5; 16]) && cfiat.overwrite_wide(0x100, &[5; 16]));
        assert!(cfiat.knows_wide(0x100, &[5; 16]));
    }

    #[test]
    fn changes_unseen_by_the_cache_are_emitted_only_by_values() {
        for (known_by, expected) in [(KnownCriterion::Values, Some(0)), (KnownCriterion::Flags, None)] {
            let (mut cfiat, mut encoder) = (Cfiat::new(&config(known_by)).unwrap(), LoadEncoder::default());
            assert_eq!(encoder.encode_load(&mut cfiat, 0x100, &[1; 4]).1, Some(0));
            assert_eq!(encoder.encode_load(&mut cfiat, 0x100, &[2; 4]).1, expected);
        }
    }

    #[derive(Clone, Copy, Debug)]
    struct Access {
        thread: usize,
        address: u64,
        size: usize,
        kind: u8,
        value: u8,
    }

    fn access() -> impl Strategy<Value = Access> {
        (0usize..3, 0u64..300, 1usize..40, 0u8..8, any::<u8>())
            .prop_map(|(thread, address, size, kind, value)| Access { thread, address, size, kind, value })
    }

    /// Returns the cache of the accessing thread, after the coherence actions that precede the
    /// access.
    fn cache_before<'c>(caches: &'c mut [Cfiat], own: usize, access: &Access, coherent: bool) -> &'c mut Cfiat {
        if coherent && access.kind != 0 {
            let (address, bytes) = (access.address, access.size as u64);
            let others: Vec<Cfiat> =
                caches.iter().enumerate().filter(|(index, _)| *index != own).map(|(_, cache)| cache.clone()).collect();
            caches[own].fetch(others.iter(), address, bytes);
            if access.kind < 3 {
                let others = caches.iter_mut().enumerate().filter(|(index, _)| *index != own);
                others.for_each(|(_, cache)| cache.invalidate(address, bytes));
            }
        }
        &mut caches[own]
    }

    proptest! {
        /// Threads share memory and have private caches or one shared cache. A kernel writes memory
        /// unseen.
        #[test]
        fn decoders_reproduce_every_load(
            accesses in proptest::collection::vec(access(), 0..400),
            shared in any::<bool>(), coherent in any::<bool>(), touched in any::<bool>(), granule_bits in 0u32..4,
        ) {
            let cover = if touched { FlagCoverage::Touched } else { FlagCoverage::Whole };
            let config = CfiatConfig { granularity: 1 << granule_bits, cover, ..config(KnownCriterion::Values) };
            let own = |thread: usize| if shared { 0 } else { thread };
            let mut caches: Vec<_> = (0..3).map(|_| Cfiat::new(&config).unwrap()).collect();
            let mut decoder_caches = caches.clone();
            let (mut memory, mut encoders) = (vec![0u8; 400], [LoadEncoder::default(); 3]);
            let mut messages = [const { Vec::new() }; 3];
            let mut loaded = Vec::new();
            for access in &accesses {
                let bytes = &mut memory[access.address as usize..][..access.size];
                match access.kind {
                    0 => bytes.fill(access.value),
                    1..3 => {
                        bytes.fill(access.value);
                        let cache = cache_before(&mut caches, own(access.thread), access, coherent);
                        let wide = u64::from_le_bytes([access.value; 8]);
                        if access.size > 8 || !cache.overwrite(access.address, access.size, wide) {
                            cache.store(access.address, bytes);
                        }
                    }
                    _ => {
                        let cache = cache_before(&mut caches, own(access.thread), access, coherent);
                        let is_known = match access.size {
                            1..=8 => {
                                let mut wide = [access.value; 8];
                                wide[..access.size].copy_from_slice(bytes);
                                cache.knows(access.address, access.size, u64::from_le_bytes(wide))
                            }
                            _ => bytes.as_array().is_some_and(|wide| cache.knows_wide(access.address, wide)),
                        };
                        let (load, hits) = encoders[access.thread].encode_load(cache, access.address, bytes);
                        prop_assert!(load.flags_hit || !is_known);
                        messages[access.thread].extend(hits.map(|hits| LoadMessage { hits, value: bytes.to_vec() }));
                        loaded.push(bytes.to_vec());
                    }
                }
            }
            let mut decoders = messages.map(|messages| (LoadDecoder::default(), VecDeque::from(messages)));
            let mut loaded = loaded.into_iter();
            for access in &accesses {
                let cache = cache_before(&mut decoder_caches, own(access.thread), access, coherent);
                let mut value = vec![access.value; access.size];
                match access.kind {
                    0 => {}
                    1..3 => _ = cache.store(access.address, &value),
                    _ => {
                        let (decoder, messages) = &mut decoders[access.thread];
                        prop_assert!(decoder.decode_load(cache, access.address, &mut value, messages).is_some());
                        prop_assert_eq!(Some(value), loaded.next());
                    }
                }
            }
            prop_assert!(decoders.iter().all(|(_, messages)| messages.is_empty()));
        }
    }
}
