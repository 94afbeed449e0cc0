//! The two banks of predictors, and the choice among their predictions.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use super::table::{History, ValueTable};

/// The code for no prediction of a PC. The predictions have the codes below.
pub const NO_PC: u8 = 4;
/// The code for no prediction of an address.
pub const NO_ADDRESS: u8 = 10;
pub const PC_PREDICTIONS: usize = NO_PC as usize;
pub const ADDRESS_PREDICTIONS: usize = NO_ADDRESS as usize;

/// Logarithms of numbers of lines.
const PC_LINES: u32 = 16;
const ORDER_1_LINES: u32 = 17;
const ORDER_3_LINES: u32 = 19;
const ADDRESS_FCM_LINES: u32 = 19;

/// Predictors of PCs.
#[derive(Clone, Debug)]
pub struct PcBank {
    history: History<3>,
    fcm_1: ValueTable<u32, 2>,
    fcm_3: ValueTable<u32, 2>,
}

impl PcBank {
    pub fn new() -> Self {
        let (fcm_1, fcm_3) = (ValueTable::new(ORDER_1_LINES), ValueTable::new(ORDER_3_LINES));
        Self { history: History::new(0, ORDER_1_LINES), fcm_1, fcm_3 }
    }

    /// Returns the predictions in the order of their codes.
    #[inline]
    pub fn predict(&self) -> [u32; PC_PREDICTIONS] {
        let [order_1, _, order_3] = self.history.contexts(0);
        let ([a, b], [c, d]) = (self.fcm_1.line(order_1), self.fcm_3.line(order_3));
        [a, b, c, d]
    }

    #[inline]
    pub fn update(&mut self, pc: u32) {
        let [order_1, _, order_3] = self.history.contexts(0);
        self.fcm_1.update(order_1, pc);
        self.fcm_3.update(order_3, pc);
        self.history.update(0, pc.into());
    }
}

/// Predictors of addresses. The low bits of the PC select the lines of the first levels.
#[derive(Clone, Debug)]
pub struct AddressBank {
    differences: History<3>,
    dfcm_1: ValueTable<u64, 2>,
    dfcm_3: ValueTable<u64, 2>,
    values: History<1>,
    fcm_1: ValueTable<u64, 2>,
    last: ValueTable<u64, 4>,
}

impl AddressBank {
    pub fn new() -> Self {
        Self {
            differences: History::new(PC_LINES, ORDER_1_LINES),
            dfcm_1: ValueTable::new(ORDER_1_LINES),
            dfcm_3: ValueTable::new(ORDER_3_LINES),
            values: History::new(PC_LINES, ADDRESS_FCM_LINES),
            fcm_1: ValueTable::new(ADDRESS_FCM_LINES),
            last: ValueTable::new(PC_LINES),
        }
    }

    /// Returns the predictions in the order of their codes.
    #[inline]
    pub fn predict(&self, pc: u32) -> [u64; ADDRESS_PREDICTIONS] {
        let [order_1, _, order_3] = self.differences.contexts(pc);
        let [context] = self.values.contexts(pc);
        let [last, i, j, k] = self.last.line(pc);
        let after = |difference: u64| last.wrapping_add(difference);
        let ([a, b], [c, d]) = (self.dfcm_1.line(order_1).map(after), self.dfcm_3.line(order_3).map(after));
        let [e, f] = self.fcm_1.line(context);
        [a, b, c, d, e, f, last, i, j, k]
    }

    #[inline]
    pub fn update(&mut self, pc: u32, address: u64) {
        let [order_1, _, order_3] = self.differences.contexts(pc);
        let [context] = self.values.contexts(pc);
        let [last, ..] = self.last.line(pc);
        let difference = address.wrapping_sub(last);
        self.dfcm_1.update(order_1, difference);
        self.dfcm_3.update(order_3, difference);
        self.fcm_1.update(context, address);
        self.last.update(pc, address);
        self.differences.update(pc, difference);
        self.values.update(pc, address);
    }
}

/// How often each prediction was chosen.
#[derive(Clone, Debug)]
pub struct Choices<const PREDICTIONS: usize> {
    counts: [u64; PREDICTIONS],
}

impl<const PREDICTIONS: usize> Choices<PREDICTIONS> {
    pub fn new() -> Self {
        Self { counts: [0; PREDICTIONS] }
    }

    /// Returns the code of the most used prediction that is right.
    #[inline]
    pub fn choose<T: PartialEq>(&mut self, predictions: &[T; PREDICTIONS], value: &T) -> Option<u8> {
        let mut best: Option<(u8, &mut u64)> = None;
        for ((code, prediction), count) in (0..).zip(predictions).zip(&mut self.counts) {
            if prediction == value && best.as_ref().is_none_or(|(_, most)| **most < *count) {
                best = Some((code, count));
            }
        }
        let (code, count) = best?;
        *count += 1;
        Some(code)
    }
}
