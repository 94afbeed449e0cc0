//! What guesses depend on: the last words, and the address where execution is about to continue,
//! which a stack of calls gives behind returns.

use crate::event::NextPc;

use super::model::{LowPc, StackEffect, low_pc};

/// What a guess depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// Sixteen bits of hash of each of the last three words, the newest lowest.
    pub(super) recent: u64,
    pub(super) last: u32,
    /// Where execution is about to continue.
    pub(super) target: LowPc,
    pub(super) shift: u32,
}

impl Context {
    #[inline]
    pub(super) fn push(&mut self, word: u32) {
        self.recent = (self.recent << 16 | u64::from(word.wrapping_mul(0x9e37_79b1) >> 16)) & 0xffff_ffff_ffff;
        self.last = word;
    }

    #[inline]
    pub(super) fn long(&self) -> usize {
        self.slot(self.recent)
    }

    #[inline]
    pub(super) fn short(&self) -> usize {
        self.slot(u64::from(self.last))
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        let mixed = key
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(u64::from(self.target).wrapping_mul(0xff51_afd7_ed55_8ccd));
        // At most BITS_MAX bits are left.
        #[allow(clippy::cast_possible_truncation)]
        let slot = (mixed >> self.shift) as usize;
        slot
    }
}

/// Return addresses of calls; the newest overwrite the oldest.
pub(super) struct Calls {
    ring: [LowPc; 256],
    top: u8,
}

impl Calls {
    #[inline]
    pub(super) fn new() -> Self {
        Self { ring: [0; 256], top: 0 }
    }

    /// Applies the effect of a path, and returns its target.
    #[inline]
    pub(super) fn follow(&mut self, effect: StackEffect<'_>) -> LowPc {
        match effect {
            StackEffect::Jumps(target) => target,
            StackEffect::Returns => self.pop(1),
            StackEffect::Calls { pops, returns, target, pushes } => {
                let popped = self.pop(pops);
                for &push in pushes {
                    if let Some(slot) = self.ring.get_mut(usize::from(self.top)) {
                        *slot = push;
                    }
                    self.top = self.top.wrapping_add(1);
                }
                if returns { popped } else { target }
            }
        }
    }

    #[inline]
    fn pop(&mut self, count: u32) -> LowPc {
        let [count, ..] = count.to_le_bytes();
        self.top = self.top.wrapping_sub(count);
        self.ring.get(usize::from(self.top)).copied().unwrap_or(0)
    }
}

/// Returns where execution goes on behind an event, given where it would go on without it.
#[inline]
pub(super) fn target_behind(next: NextPc, before: LowPc) -> LowPc {
    match next {
        NextPc::Unchanged => before,
        NextPc::At(pc) => low_pc(pc),
    }
}
