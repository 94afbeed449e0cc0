//! A mutation driver for stable Rust: changes the inputs of a corpus at random and runs a target
//! with them.
//!
//! Each input follows from the seed and its number alone, so that a failure can be repeated with
//! both.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The duration and the seed of a run of a target.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub seed: u64,
    pub count: u64,
    pub time: Duration,
}

impl Bounds {
    /// By default a few seconds with the same inputs every time. `TRACKWAY_FUZZ_SECONDS` sets the
    /// duration, with other inputs every time; `TRACKWAY_FUZZ_SEED` sets the seed.
    ///
    /// # Panics
    /// If one of the variables is not a number.
    #[must_use]
    pub fn from_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
        let (seconds, seed) = (number("TRACKWAY_FUZZ_SECONDS"), number("TRACKWAY_FUZZ_SEED"));
        let now = || UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
        let (count, usual_seed) = if seconds.is_some() { (u64::MAX, now()) } else { (20_000, 1) };
        Self { seed: seed.unwrap_or(usual_seed), count, time: Duration::from_secs(seconds.unwrap_or(3)) }
    }
}

/// The inputs of a target that are kept in the tree.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = folder(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| std::fs::read(path).expect("it can be read")).collect()
}

/// The directory of the inputs of a target.
#[must_use]
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a target with every input of the corpus, and then with mutations of them. Returns the
/// number of inputs.
///
/// # Panics
/// If the target panics; the message names the input.
pub fn run(name: &str, corpus: &[Vec<u8>], bounds: &Bounds, mut target: impl FnMut(&[u8])) -> u64 {
    let start = Instant::now();
    let mut number = 0;
    while number < bounds.count && (number < corpus.len() as u64 || start.elapsed() < bounds.time) {
        let input = input(corpus, bounds.seed, number);
        if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            let path = std::env::temp_dir().join(format!("{name}-{}-{number}", bounds.seed));
            let kept =
                std::fs::write(&path, &input).map_or("could not be kept".into(), |()| path.display().to_string());
            panic!("target {name} failed with input {number} of seed {} ({} bytes: {kept})", bounds.seed, input.len());
        }
        number += 1;
    }
    number
}

/// Returns the input with this number: one of the corpus, or a mutation.
fn input(corpus: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    if let Some(input) = usize::try_from(number).ok().and_then(|number| corpus.get(number)) {
        return input.clone();
    }
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        mutate(&mut input, corpus, &mut random);
    }
    input
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let length = (1 + random.below(32)).min(input.len() - at);
    match random.below(10) {
        0..4 if at < input.len() => input[at] ^= 1 << random.below(8),
        4..6 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)],
        6 => _ = input.drain(at..at + length),
        7 => input.truncate(at),
        8 => {
            let copy = input[at..at + length].to_vec();
            input.splice(at..at, copy);
        }
        _ => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len() + 1);
            let part = &other[from..(from + 64).min(other.len())];
            input.splice(at..at + length.min(part.len()), part.iter().copied());
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
