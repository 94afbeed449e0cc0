//! Thread indices on the port (field Ti). Each thread runs on a core of its own; a core number has
//! as many bits as are needed to distinguish all cores.

use hashbrown::HashMap;
use thiserror::Error;
use trace::ThreadId;

use crate::bits::BitReader;
use crate::count::{Field, Port};

#[derive(Clone, Debug)]
pub struct Cores {
    /// The core of each thread.
    by_thread: HashMap<ThreadId, usize>,
    count: usize,
    bits: u32,
}

/// Error: there are more threads than cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{threads} threads need as many cores, and there are {cores}")]
pub struct TooFewCores {
    pub threads: usize,
    pub cores: usize,
}

impl Cores {
    /// Assigns a core to each thread. `cores` defaults to the number of threads.
    pub fn new(threads: impl IntoIterator<Item = ThreadId>, cores: Option<usize>) -> Result<Self, TooFewCores> {
        let by_thread: HashMap<ThreadId, usize> =
            threads.into_iter().enumerate().map(|(core, thread)| (thread, core)).collect();
        let (threads, cores) = (by_thread.len(), cores.unwrap_or(by_thread.len()));
        if cores < threads {
            return Err(TooFewCores { threads, cores });
        }
        Ok(Self { by_thread, count: cores, bits: usize::BITS - cores.saturating_sub(1).leading_zeros() })
    }

    /// Returns the number of cores.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.by_thread.len()
    }

    /// Returns the core of a thread.
    #[must_use]
    pub fn of(&self, thread: ThreadId) -> usize {
        self.by_thread.get(&thread).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn write(&self, port: &mut Port, core: usize) {
        port.put(Field::Ti, core as u64, self.bits);
    }

    pub(crate) fn read(&self, bits: &mut BitReader<'_>) -> Option<usize> {
        usize::try_from(bits.get(self.bits)?).ok().filter(|&core| core < self.threads())
    }
}

#[cfg(test)]
impl Cores {
    /// As many cores as threads, which have the first numbers.
    pub(crate) fn of_threads(count: u32) -> Self {
        Self::new((0..count).map(ThreadId::new), None).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_an_index() {
        let bits = |threads: u32, cores| Cores::new((0..threads).map(ThreadId::new), cores).map(|cores| cores.bits);
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(|threads| bits(threads, None).unwrap()), [0, 1, 2, 2, 3, 3, 4]);
        assert_eq!(bits(2, Some(8)), Ok(3));
        assert_eq!(bits(3, Some(2)), Err(TooFewCores { threads: 3, cores: 2 }));
        assert_eq!(bits(0, None), Ok(0));
    }
}
