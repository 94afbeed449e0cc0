//! A guess of the next word, how much it is trusted, and the stream of bits that says whether it
//! was right.

/// Trust at which a guess of the long table is only counted.
pub(super) const SURE: u32 = 7;
/// Streams of bits: for first guesses by trust and relation to the other guess, for second guesses
/// by trust and whether the first was sure, one that marks events, one that marks expected
/// fragments.
pub(super) const FIRST: usize = 3 * (SURE as usize + 1);
pub(super) const SECOND: usize = 2 * (SURE as usize + 1);
pub(super) const BIT_STREAMS: usize = FIRST + SECOND + 2;
pub(super) const IS_EVENT: usize = FIRST + SECOND;
pub(super) const IS_EXPECTED: usize = IS_EVENT + 1;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guess {
    /// 0: none.
    pub(super) word: u32,
    /// Up to [`SURE`].
    pub(super) trust: u32,
}

impl Guess {
    /// Returns the guess after `word` has come. Without branches, because they could not be
    /// predicted.
    #[inline]
    pub(super) fn learned(self, word: u32) -> Self {
        let right = self.word == word;
        let kept = right | (self.trust > 1);
        let more = (self.trust + 1).min(SURE);
        let less = (self.trust >> 1).max(1);
        Self {
            word: std::hint::select_unpredictable(kept, self.word, word),
            trust: std::hint::select_unpredictable(right, more, less),
        }
    }
}

/// The guesses for one word, in the order they are tried.
pub(super) struct Guesses {
    pub(super) first: u32,
    pub(super) second: u32,
    /// Whether the first is tried: not if it was sure, because then it is known to be wrong.
    pub(super) ask_first: bool,
    /// Whether the second is tried after the first: not if both are the same.
    pub(super) ask_second: bool,
    /// The streams of their bits.
    pub(super) first_stream: usize,
    pub(super) second_stream: usize,
}

impl Guesses {
    #[inline]
    pub(super) fn new(long: Guess, short: Guess) -> Self {
        let missed = long.trust == SURE;
        let swap = !missed & (short.trust > long.trust);
        let pick = |yes: Guess, no: Guess| Guess {
            word: std::hint::select_unpredictable(swap, yes.word, no.word),
            trust: std::hint::select_unpredictable(swap, yes.trust, no.trust),
        };
        let (first, second) = (pick(short, long), pick(long, short));
        let same = second.word == first.word;
        // Of the first guesses only a short one can be sure.
        let relation = usize::from(second.trust > 0) + usize::from(same);
        Self {
            first: first.word,
            second: second.word,
            ask_first: !missed,
            ask_second: !same,
            first_stream: first.trust as usize * 3 + relation,
            second_stream: FIRST + second.trust as usize * 2 + usize::from(missed),
        }
    }
}
