//! How the kernel scheduled a thread, from `/proc/thread-self/schedstat`.

use std::time::Duration;

/// How long a thread has had a processor, and how long it has waited for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub ran: Duration,
    pub waited: Duration,
}

impl Schedule {
    /// Returns the schedule of the calling thread; `None` if the kernel does not provide it.
    pub(crate) fn of_this_thread() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let mut nanoseconds = text.split_whitespace().map(|number| number.parse().map(Duration::from_nanos));
        Some(Self { ran: nanoseconds.next()?.ok()?, waited: nanoseconds.next()?.ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_and_waiting_times_are_read() {
        let schedule = Schedule::read("1500 20 3\n").unwrap();
        assert_eq!((schedule.ran.as_nanos(), schedule.waited.as_nanos()), (1500, 20));
        assert_eq!([Schedule::read(""), Schedule::read("1"), Schedule::read("1 x")], [None; 3]);
    }
}
