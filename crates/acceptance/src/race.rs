//! The checker for the workload `race`: the values that a thread stores must follow from those that
//! it has loaded, although another thread changes the word all the time.
//!
//! The program stores the number of each step to the first word of its own memory, and the result
//! of the step at the place of that number. See `race_rounds.inc` for the steps.

/// The address of the shared word, with a second one behind it.
pub const SHARED: u64 = 0x10_0000_0000;
/// The address of the threads' own memory, a page for each.
pub const OWN: u64 = 0x10_0010_0000;
const PAGE: u64 = 4096;
const SLOT: u64 = 16;

/// Checks the accesses of one thread.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    /// The current step, and the number that the thread uses in this round.
    step: u32,
    number: u64,
    /// The last load from the shared words.
    loaded: Option<LastLoad>,
    /// The value that `cmpxchg` compares with.
    compared: u64,
    /// The last value that the thread itself has stored to the shared word.
    stored: Option<u64>,
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct LastLoad {
    offset: u64,
    value: u128,
}

/// Numbers of checked accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub rounds: u64,
    pub loads: u64,
    pub stores: u64,
    /// Loads of the whole word with another value than the thread has stored last: another thread
    /// was faster.
    pub foreign: u64,
    /// Results that follow from a load.
    pub results: u64,
}

impl Checker {
    /// Checks the next access of the thread.
    ///
    /// # Errors
    ///
    /// If a stored value does not follow from the loaded one.
    pub fn look(&mut self, address: u64, writes: bool, bytes: &[u8]) -> Result<(), String> {
        let Some(value) = number(bytes) else { return Ok(()) };
        match (address.wrapping_sub(SHARED), address.wrapping_sub(OWN)) {
            (offset @ 0..16, _) if writes => self.store(offset, bytes.len(), value),
            (offset @ 0..16, _) => {
                self.load(offset, bytes.len(), value);
                Ok(())
            }
            (_, offset) if offset < 8 * PAGE && writes => self.own(offset % PAGE, bytes.len(), value),
            _ => Ok(()),
        }
    }

    fn load(&mut self, offset: u64, size: usize, value: u128) {
        self.counts.loads += 1;
        if let Some(LastLoad { value, .. }) = self.loaded
            && self.step == 12
        {
            self.compared = value as u64;
        }
        self.loaded = Some(LastLoad { offset, value });
        if (offset, size) == (0, 8) && self.stored.is_some_and(|stored| u128::from(stored) != value) {
            self.counts.foreign += 1;
        }
    }

    /// Checks a store to the shared words.
    fn store(&mut self, offset: u64, size: usize, value: u128) -> Result<(), String> {
        self.counts.stores += 1;
        let before = self.loaded.filter(|loaded| loaded.offset == offset).map(|loaded| loaded.value as u64);
        let mask = if size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
        let expected = match (self.step, before) {
            (20, _) => (offset == 0).then_some(self.number),
            (10, Some(_)) => Some(self.number),
            (7 | 11, Some(before)) => Some(before.wrapping_add(self.number)),
            (8, Some(before)) => Some(before.wrapping_add(1)),
            (9, Some(before)) => Some(before.wrapping_sub(5)),
            (12, Some(before)) => Some(if before == self.compared { before.wrapping_add(1) } else { before }),
            (21, Some(before)) => Some(!before),
            (22, Some(before)) => Some(before << 3),
            (23, Some(before)) => Some(before | 1 << 17),
            (28, Some(before)) => Some(before | self.number),
            _ => return Err(format!("step {} stores {value:#x} at {offset} without a load before", self.step)),
        };
        self.stored = (offset == 0 && size == 8).then_some(value as u64);
        match expected.map(|expected| expected & mask) {
            Some(expected) if u128::from(expected) != value => Err(format!(
                "step {} has loaded {before:x?} at {offset} and stored {value:#x}, not {expected:#x}",
                self.step
            )),
            _ => Ok(()),
        }
    }

    /// Checks a store to the thread's own memory.
    fn own(&mut self, offset: u64, size: usize, value: u128) -> Result<(), String> {
        if offset == 0 {
            self.step = value as u32;
            self.loaded = None;
            return Ok(());
        }
        if u64::from(self.step) != offset / SLOT {
            return Err(format!("step {} stores to the place of step {}", self.step, offset / SLOT));
        }
        if self.step == 1 {
            self.number = value as u64;
            self.counts.rounds += 1;
            return Ok(());
        }
        let Some(LastLoad { value: loaded, .. }) = self.loaded else {
            return Err(format!("step {} stores {value:#x} without a load before", self.step));
        };
        self.counts.results += 1;
        let expected = self.result(loaded);
        let mask = if size == 16 { u128::MAX } else { (1 << (8 * size)) - 1 };
        if expected & mask == value {
            return Ok(());
        }
        Err(format!(
            "step {} of round {} has loaded {loaded:#x} and made {value:#x} of it, not {:#x}",
            self.step,
            self.counts.rounds,
            expected & mask
        ))
    }

    /// Returns the result of a step from the value that it has loaded.
    fn result(&self, loaded: u128) -> u128 {
        let (word, number) = (loaded as u64, self.number);
        let result = match self.step {
            2 => word.wrapping_mul(5).wrapping_add(7),
            3 => (word ^ number) & 0xffff_ffff,
            5 => i64::from(word as i16).cast_unsigned(),
            6 => word.wrapping_add(number),
            7 => u64::from(word.checked_add(number).is_none()),
            13 => return loaded,
            14 => u64::from(word < number),
            18 => (word.cast_signed() as f64).to_bits(),
            19 => {
                let high = ((loaded >> 64) as u64).wrapping_add(number);
                return u128::from(high) << 64 | u128::from(word.wrapping_add(number));
            }
            24 => word.wrapping_mul(77),
            26 if number & 0x100 != 0 => 1,
            27 => u64::from(word & 4 != 0),
            _ => word,
        };
        result.into()
    }
}

/// Returns bytes as a number; `None` if there are more than any step accesses.
fn number(bytes: &[u8]) -> Option<u128> {
    (bytes.len() <= 16).then(|| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u128::from(byte)))
}
