//! Moves the timestamp with which a segment begins behind the first path.
//!
//! A thread opens a segment when it has something to write, and begins it with a timestamp. What it
//! writes may be a path that it has executed before: under a lock, say, that it released long ago.
//! So the timestamp belongs behind the first path or signal that says what was executed.

use wire::word::{self, ACCESS, EVENT, SIGNAL, STRING, TIME};

const TIME_WORDS: usize = 3;
const SIGNAL_WORDS: usize = 9;

/// Moves the timestamp at the start of a segment's words, if there is one.
pub fn move_opening_time(words: &mut [u32]) {
    if words.first() != Some(&word::event(TIME, 0)) {
        return;
    }
    let mut at = TIME_WORDS;
    // Events about accesses belong to the next path.
    while let Some(&first) =
        words.get(at).filter(|&&first| first & EVENT != 0 && matches!(word::kind(first), STRING | ACCESS))
    {
        at += word::length(first).unwrap_or(1);
    }
    let Some(&first) = words.get(at) else { return };
    if first & EVENT == 0 && first != 0 {
        words[..=at].rotate_left(TIME_WORDS);
    } else if word::kind(first) == SIGNAL
        && let Some(&[_, fragment, .., low, high]) = words[at..].first_chunk::<SIGNAL_WORDS>()
        && fragment != 0
    {
        // The signal's timestamp is later than the segment's.
        words[1..TIME_WORDS].copy_from_slice(&[low, high]);
        words[..at + SIGNAL_WORDS].rotate_left(TIME_WORDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: [u32; 3] = [word::event(TIME, 0), 5, 0];

    fn moved(behind: &[u32]) -> Vec<u32> {
        let mut words = [&OPENING[..], behind].concat();
        move_opening_time(&mut words);
        words
    }

    #[test]
    fn it_goes_behind_the_first_path() {
        assert_eq!(moved(&[7, 8]), [&[7][..], &OPENING, &[8]].concat());
        assert_eq!(moved(&[7]), [&[7][..], &OPENING].concat());
        let access = [word::event(ACCESS, 0), 1, 2, 3, 4, 5];
        let string = [word::event(STRING, 0), 1, 2, 3, 4, 5, 6, 7, 8];
        let events = [&access[..], &string, &access, &[7]].concat();
        assert_eq!(moved(&[&events[..], &[8]].concat()), [&events[..], &OPENING, &[8]].concat());
    }

    #[test]
    fn a_signal_that_interrupts_a_path_has_the_time() {
        let signal = |fragment| [word::event(SIGNAL, 11), fragment, 2, 3, 4, 5, 6, 9, 1];
        let same = [word::event(TIME, 0), 9, 1];
        assert_eq!(moved(&[&signal(1)[..], &[8]].concat()), [&signal(1)[..], &same, &[8]].concat());
        assert_eq!(moved(&signal(0)), [&OPENING[..], &signal(0)].concat());
    }

    #[test]
    fn everything_else_stays() {
        let syscall = [word::event(word::SYSCALL, 0), 1, 6, 0, 7];
        for behind in
            [&[][..], &[0], &OPENING, &syscall, &[word::event(ACCESS, 0)], &[word::event(SIGNAL, 1), 1], &[u32::MAX]]
        {
            assert_eq!(moved(behind), [&OPENING[..], behind].concat());
        }
        let mut other = [7, 8, 9, 10];
        move_opening_time(&mut other);
        assert_eq!(other, [7, 8, 9, 10]);
        move_opening_time(&mut []);
    }
}
