//! Tags of a cache: which lines it holds, and which line is the victim of a miss.

use crate::geometry::Geometry;

/// Replacement policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// Round robin, from the highest way down.
    #[default]
    RoundRobin,
    /// Least recently used.
    Lru,
}

/// Marks an empty way. No line has this number: it would lie beyond all addresses.
const EMPTY: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub struct Tags {
    geometry: Geometry,
    replacement: Replacement,
    /// Line number in each way of each set.
    lines: Vec<u64>,
    /// Round robin: for each set, the way that is replaced next. Least recently used: for each way,
    /// the time of its last use.
    order: Vec<u64>,
    now: u64,
    /// Whether a line was ever removed.
    has_invalid_ways: bool,
}

/// Result of an access to a line, which is in the cache afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub set: usize,
    pub way: usize,
    /// Index of the way among those of all sets.
    pub slot: usize,
    pub hit: bool,
    /// The victim.
    pub evicted: Option<u64>,
}

impl Tags {
    #[must_use]
    pub fn new(geometry: Geometry, replacement: Replacement) -> Self {
        let (sets, ways) = (geometry.sets(), geometry.ways());
        let order = match replacement {
            Replacement::RoundRobin => vec![ways as u64 - 1; sets],
            Replacement::Lru => vec![0; sets * ways],
        };
        Self { geometry, replacement, lines: vec![EMPTY; sets * ways], order, now: 0, has_invalid_ways: false }
    }

    #[must_use]
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns whether a hit changes the state.
    #[must_use]
    #[inline]
    pub fn tracks_use(&self) -> bool {
        self.replacement == Replacement::Lru
    }

    /// Returns the slot of a line, if the cache holds it.
    #[must_use]
    #[inline(always)]
    pub fn find(&self, line: u64) -> Option<usize> {
        let first = self.geometry.set(line) * self.geometry.ways();
        // Compares four ways at once, as most caches have.
        if let Some(&[a, b, c, d]) = self.lines.get(first..first + 4).filter(|_| self.geometry.ways() == 4) {
            let hits = u32::from(a == line)
                | u32::from(b == line) << 1
                | u32::from(c == line) << 2
                | u32::from(d == line) << 3;
            return (hits != 0).then(|| first + hits.trailing_zeros() as usize);
        }
        let set = self.lines.get(first..first + self.geometry.ways())?;
        set.iter().position(|&held| held == line).map(|way| first + way)
    }

    /// Returns the result of a hit in a known slot.
    #[inline(always)]
    pub(crate) fn hit_line(&self, slot: usize, line: u64) -> Line {
        let set = self.geometry.set(line);
        Line { set, way: slot - set * self.geometry.ways(), slot, hit: true, evicted: None }
    }

    /// Accesses a line, and fills it on a miss.
    #[inline(always)]
    pub fn access(&mut self, line: u64) -> Line {
        let (set, ways) = (self.geometry.set(line), self.geometry.ways());
        let (slot, hit, evicted) = match self.find(line) {
            Some(slot) => (slot, true, None),
            None => self.fill(set, line),
        };
        if self.replacement == Replacement::Lru {
            self.now += 1;
            self.order[slot] = self.now;
        }
        Line { set, way: slot - set * ways, slot, hit, evicted }
    }

    #[inline(never)]
    fn fill(&mut self, set: usize, line: u64) -> (usize, bool, Option<u64>) {
        let slot = set * self.geometry.ways() + self.victim(set);
        let before = std::mem::replace(&mut self.lines[slot], line);
        (slot, false, (before != EMPTY).then_some(before))
    }

    /// Returns the victim way of a set.
    fn victim(&mut self, set: usize) -> usize {
        let ways = self.geometry.ways();
        // Follows the policy, unless a removed line has left an empty way.
        if self.has_invalid_ways
            && let Some(way) = self.lines[set * ways..][..ways].iter().position(|&line| line == EMPTY)
            && self.next_way_is_occupied(set)
        {
            return way;
        }
        match self.replacement {
            Replacement::RoundRobin => {
                let way = self.order[set];
                self.order[set] = way.checked_sub(1).unwrap_or(ways as u64 - 1);
                way as usize
            }
            Replacement::Lru => {
                let ages = &self.order[set * ways..][..ways];
                ages.iter().enumerate().min_by_key(|&(_, &used)| used).map_or(0, |(way, _)| way)
            }
        }
    }

    /// Returns whether the way that is replaced next holds a line.
    fn next_way_is_occupied(&self, set: usize) -> bool {
        let turn = match self.replacement {
            Replacement::RoundRobin => self.order[set] as usize,
            // The empty way is the least recently used one.
            Replacement::Lru => return false,
        };
        self.lines[set * self.geometry.ways() + turn] != EMPTY
    }

    /// Removes a line. Returns its slot.
    pub fn remove(&mut self, line: u64) -> Option<usize> {
        let slot = self.find(line)?;
        self.lines[slot] = EMPTY;
        self.has_invalid_ways = true;
        if self.replacement == Replacement::Lru {
            self.order[slot] = 0;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sets as lists: the first line is the next victim.
    fn model(lines: &[u64], sets: u64, ways: usize, replacement: Replacement) -> Vec<(bool, Option<u64>)> {
        let mut cache = vec![Vec::<u64>::new(); sets as usize];
        let access = |&line: &u64| {
            let set = &mut cache[(line % sets) as usize];
            let held = set.iter().position(|&held| held == line);
            let evicted = if held.is_none() && set.len() == ways { Some(set.remove(0)) } else { None };
            match (held, replacement) {
                (None, _) => set.push(line),
                (Some(index), Replacement::Lru) => {
                    set.remove(index);
                    set.push(line);
                }
                (Some(_), Replacement::RoundRobin) => {}
            }
            (held.is_some(), evicted)
        };
        lines.iter().map(access).collect()
    }

    #[test]
    fn a_hole_is_filled_first() {
        let mut tags = Tags::new(Geometry::new(64, 16, 4).unwrap(), Replacement::RoundRobin);
        (0..4).for_each(|line| _ = tags.access(line));
        assert_eq!(tags.remove(1), Some(2));
        let line = tags.access(7);
        assert_eq!((line.way, line.evicted), (2, None));
        // Then round robin again.
        assert_eq!(tags.access(8).evicted, Some(0));
    }

    proptest! {
        #[test]
        fn tags_agree_with_lists(
            lines in proptest::collection::vec(0u64..64, 0..600),
            set_bits in 0u32..4, way_bits in 0u32..4, lru in any::<bool>(),
        ) {
            let replacement = if lru { Replacement::Lru } else { Replacement::RoundRobin };
            let geometry = Geometry::new(16 << (set_bits + way_bits), 16, 1 << way_bits).unwrap();
            let mut tags = Tags::new(geometry, replacement);
            for (&line, (hit, evicted)) in lines.iter().zip(model(&lines, 1 << set_bits, 1 << way_bits, replacement)) {
                let found = tags.access(line);
                prop_assert_eq!((found.hit, found.evicted), (hit, evicted));
                prop_assert_eq!(tags.find(line), Some(found.slot));
                prop_assert!(evicted.is_none_or(|evicted| tags.find(evicted).is_none()));
            }
        }
    }

    #[test]
    fn a_removed_line_is_gone() {
        let mut tags = Tags::new(Geometry::new(64, 16, 2).unwrap(), Replacement::Lru);
        let slot = tags.access(4).slot;
        assert_eq!((tags.remove(4), tags.remove(4), tags.find(4)), (Some(slot), None, None));
        assert!(!tags.access(4).hit);
    }
}
