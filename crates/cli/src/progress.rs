//! A line on the terminal that says how far long work has come. Nothing is written when standard error is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::digits::grouped;

/// Nothing is shown before this time: most work is over by then.
const FIRST: Duration = Duration::from_millis(700);
const EVERY: Duration = Duration::from_millis(200);

pub struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self { next: std::io::stderr().is_terminal().then(|| Instant::now() + FIRST), shown: false }
    }

    /// Shows what `line` gives, if it is time to.
    pub fn tick(&mut self, line: impl FnOnce() -> String) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now >= next {
            self.next = Some(now + EVERY);
            self.shown = true;
            // A terminal that cannot be written to is not worth failing for.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", line());
        }
    }
}

/// The progress of several workers, each of which goes through the same trace.
pub struct Together {
    progress: Mutex<Progress>,
    done: AtomicU64,
    all: u64,
}

impl Together {
    /// So many instructions will have been looked at in the end.
    pub fn new(all: u64) -> Self {
        Self { progress: Mutex::new(Progress::new()), done: AtomicU64::new(0), all }
    }

    /// Somebody has looked at so many more.
    pub fn add(&self, instructions: u64) {
        let done = self.done.fetch_add(instructions, Ordering::Relaxed) + instructions;
        // Whoever cannot have it has nothing new to say.
        if let Ok(mut progress) = self.progress.try_lock() {
            progress.tick(|| format!("{} of {} instructions", grouped(done), grouped(self.all)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
