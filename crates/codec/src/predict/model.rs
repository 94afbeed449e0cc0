//! What the codec asks of its user: the paths of a program ([`PathModel`]) and a counter of words
//! ([`WordCounter`]).

use entity::{AppPc, FragmentId, PathId};

/// The low half of an address where execution goes on; 0 if that is not known.
pub type LowPc = u32;

/// Returns the low half of `address`.
#[inline]
#[must_use]
pub fn low_pc(address: AppPc) -> LowPc {
    let [a, b, c, d, ..] = address.get().to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// What the codec asks about the paths of a program. Encoder and decoder must get the same answers.
pub trait PathModel {
    /// What is known of one path.
    type Path: Copy;

    /// Looks a path up; `None` if it is not defined.
    fn path_info(&self, path: PathId) -> Option<Self::Path>;

    /// Returns what a path does to the call stack.
    fn stack_effect(&self, info: &Self::Path) -> StackEffect<'_>;

    /// Returns the number of the exit that `path` leads to, counted from the last one, of the
    /// fragment that [`Self::exits_at`] finds behind all definitions; `None` if `path` belongs to
    /// another fragment.
    fn expected_exit(&self, image: u32, target: LowPc, info: &Self::Path, path: PathId) -> Option<u8>;

    /// Returns the exits of the newest fragment at `target` that was defined before chunk
    /// `sequence`.
    fn exits_at(&self, image: u32, target: LowPc, sequence: u32) -> Option<FragmentExits>;
}

/// A fragment and the number of its exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentExits {
    pub fragment: FragmentId,
    pub count: u16,
}

/// What a path does to the call stack, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEffect<'p> {
    /// Nothing; leads to this address.
    Jumps(LowPc),
    /// Ends in a return and does nothing else.
    Returns,
    /// Pops some return addresses and pushes others. Leads to `target`, or to the last address
    /// popped if it `returns`.
    Calls { pops: u32, returns: bool, target: LowPc, pushes: &'p [LowPc] },
}

/// Counts words while they are encoded.
pub trait WordCounter<P> {
    type Total;

    /// Counts a path.
    fn add_path(&mut self, path: &P);

    /// Counts `times` executions of a path.
    fn add_repeated(&mut self, path: &P, times: u64);

    /// Counts the event at the start of `words`, which comes after the word `before`. Returns its
    /// length in words, or `None` if there is no whole event.
    fn add_event(&mut self, before: u32, words: &[u32]) -> Option<usize>;

    /// Returns the total of `words`. The last of them, or the first word of the event that they end
    /// with, is `last`.
    fn finish(self, words: &[u32], last: u32) -> Self::Total;

    /// Counts all of `words`, on a counter that has counted nothing. The error is the number of
    /// words before the first unknown one.
    fn count(self, words: &[u32]) -> Result<Self::Total, usize>;
}
