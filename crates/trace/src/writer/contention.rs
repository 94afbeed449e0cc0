//! Whether compressing well would take time from the program that is recorded.
//!
//! As long as a processor is idle, compressing costs the program nothing. If the worker itself has
//! to wait for a processor, compressing costs the program as much time as it takes, which matters
//! if words come quickly.

use std::time::{Duration, Instant};

use crate::schedule::Schedule;

/// What is looked at together, at least.
const WINDOW: Duration = Duration::from_millis(20);
/// Words per second for which compressing well would take about a fifth of a processor.
const QUICK: f64 = 1e7;
/// Least share of its time that a thread waits for a processor if none is idle. Being woken takes
/// some time on any machine.
const WAITED: f64 = 0.1;

/// What the worker has measured since its last decision, and that decision.
#[derive(Debug)]
pub(super) struct Contention {
    since: Instant,
    words: usize,
    schedule: Option<Schedule>,
    is_high: bool,
}

impl Default for Contention {
    fn default() -> Self {
        Self { since: Instant::now(), words: 0, schedule: None, is_high: false }
    }
}

impl Contention {
    /// Counts words that have come. The thread whose waiting counts must call it.
    pub(super) fn note(&mut self, words: usize) {
        self.words += words;
        let time = self.since.elapsed();
        if time >= WINDOW {
            self.look(time, Schedule::of_this_thread());
            self.since = Instant::now();
        }
    }

    pub(super) fn is_high(&self) -> bool {
        self.is_high
    }

    fn look(&mut self, time: Duration, now: Option<Schedule>) {
        let quick = self.words as f64 > QUICK * time.as_secs_f64();
        self.is_high = quick && self.schedule.zip(now).is_some_and(|(before, now)| waits(before, now));
        (self.words, self.schedule) = (0, now);
    }
}

/// Whether a thread had to wait for a processor for a notable share of the time.
fn waits(before: Schedule, now: Schedule) -> bool {
    let (ran, waited) = (now.ran.saturating_sub(before.ran), now.waited.saturating_sub(before.waited));
    waited > (ran + waited).mul_f64(WAITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(ran: u64, waited: u64) -> Option<Schedule> {
        Some(Schedule { ran: Duration::from_millis(ran), waited: Duration::from_millis(waited) })
    }

    #[test]
    fn quick_words_and_no_idle_processor_are_contention() {
        let mut contention = Contention::default();
        let mut look = |words, now| {
            contention.words = words;
            contention.look(WINDOW, now);
            contention.is_high()
        };
        // The first look has nothing to compare with.
        assert!(!look(1_000_000, schedule(100, 100)));
        assert!(look(1_000_000, schedule(110, 110)));
        // Words come slowly; nobody else wants a processor; the kernel reports nothing.
        assert!(!look(1000, schedule(120, 120)));
        assert!(!look(1_000_000, schedule(140, 121)));
        assert!(!look(1_000_000, None));
        assert!(!look(1_000_000, schedule(160, 140)));
        assert!(look(1_000_000, schedule(170, 150)));
    }
}
