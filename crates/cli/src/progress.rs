//! A line on the terminal that shows the progress of long work. Nothing is written when standard
//! error is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::digits::grouped;
use crate::failure::Failure;

/// The time before the first line: most work is done by then.
const FIRST: Duration = Duration::from_millis(700);
const EVERY: Duration = Duration::from_millis(200);

/// A progress line, which is cleared when this is dropped.
pub struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self { next: std::io::stderr().is_terminal().then(|| Instant::now() + FIRST), shown: false }
    }

    /// Shows the text that `line` returns, if it is time to.
    pub fn tick(&mut self, line: impl FnOnce() -> String) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now >= next {
            self.next = Some(now + EVERY);
            self.shown = true;
            // A terminal that cannot be written to is no reason to fail.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", line());
        }
    }

    /// Lets the next text replace a line that is shown, however recent that line is.
    fn expire(&mut self) {
        if self.shown {
            self.next = self.next.map(|_| Instant::now());
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Shows the progress of an experiment on the terminal, and prints its warnings.
pub struct TerminalObserver {
    progress: Mutex<Progress>,
}

impl TerminalObserver {
    pub fn new() -> Self {
        Self { progress: Mutex::new(Progress::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl experiment::Observer for TerminalObserver {
    fn stage(&self, describe: &dyn Fn() -> String) {
        let mut progress = self.lock();
        progress.expire();
        progress.tick(describe);
    }

    fn progress(&self, done: u64, total: u64) {
        // Another thread may be showing a line; this one can be left out.
        if let Ok(mut progress) = self.progress.try_lock() {
            progress.tick(|| format!("{} of {} instructions", grouped(done), grouped(total)));
        }
    }

    fn warn(&self, message: &str) {
        let mut progress = self.lock();
        progress.clear();
        eprintln!("{}", Failure::new(message));
    }
}
