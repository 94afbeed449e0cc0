//! Events, decoded from the words of a ring (`wire::word`).
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::{AppPc, FragmentId, PathId, ThreadId, Tsc};
use wire::word;

use crate::allocation::{MappingCall, RoutineCall, RoutineKind};
use crate::model::{CallStackId, Event, Step};
use crate::program::Program;

/// An event as it was recorded, with fields that only decoding needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// `None` for explicit accesses, see [`ExplicitAccess`].
    pub event: Option<Event>,
    /// Of a signal: the fragment that it interrupted, if any, and how many of its blocks were
    /// completed.
    pub interrupted: Option<(FragmentId, u32)>,
}

impl RawEvent {
    pub(crate) fn tsc(&self) -> Option<Tsc> {
        self.event?.tsc()
    }

    /// Returns the time at which the event and all behind it begin; `None` if the event interrupted
    /// something, whose time is not known.
    pub(crate) fn begins(&self) -> Option<Tsc> {
        self.tsc().filter(|_| self.interrupted.is_none())
    }

    /// Returns the time at which what follows an interruption begins.
    pub(crate) fn ends(&self) -> Option<Tsc> {
        self.tsc().filter(|_| self.interrupted.is_some())
    }
}

/// Where an event finds its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The event carries no execution: the thread continues as if it had not come.
    Unchanged,
    /// The thread was at this address.
    At(AppPc),
    /// The thread does not continue where it was.
    Elsewhere,
}

impl Location {
    /// Returns the address if the event decides it, [`AppPc::NONE`] if the event leaves it unknown;
    /// `None` for an event that carries no execution.
    pub(crate) fn known_pc(self) -> Option<AppPc> {
        match self {
            Self::Unchanged => None,
            Self::At(pc) => Some(pc),
            Self::Elsewhere => Some(AppPc::NONE),
        }
    }
}

impl RawEvent {
    /// Returns where the event finds the thread: the target of an indirect transfer before it. All
    /// readers take the events that carry no execution from here.
    pub(crate) fn location(&self, program: &Program) -> Location {
        match self.event {
            None
            | Some(
                Event::Time { .. }
                | Event::Child { .. }
                | Event::Syscall { .. }
                | Event::FsBase { .. }
                | Event::RoutineEnter { .. }
                | Event::RoutineReturn { .. }
                | Event::Mapping { .. },
            ) => Location::Unchanged,
            Some(Event::Signal { pc, .. }) => {
                let head = self.interrupted.and_then(|(fragment, _)| program.head(fragment.first_path()));
                Location::At(head.unwrap_or(pc))
            }
            Some(Event::Gap { pc }) => Location::At(pc),
            Some(_) => Location::Elsewhere,
        }
    }

    /// Returns the steps that the event interrupted: whole ones, and a part of one more. `None` if
    /// its fields are impossible.
    pub(crate) fn interrupted_steps<'p>(&self, program: &'p Program) -> Option<(&'p [Step], Option<Step>)> {
        match (self.event, self.interrupted) {
            (Some(Event::Signal { pc, .. }), Some((fragment, blocks))) => program.interrupted(fragment, blocks, pc),
            _ => Some((&[], None)),
        }
    }
}

/// Memory accesses that an event of their own records, because no access descriptor covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExplicitAccess {
    /// Iterations of a string instruction, see `wire::word::STRING`.
    String { pc: AppPc, source: u64, destination: u64, count: u32, shape: u32 },
    /// A single access, see `wire::word::ACCESS`.
    Access { pc: AppPc, address: u64, size: u32 },
}

impl ExplicitAccess {
    /// Returns the number of reads and writes.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match *self {
            Self::Access { size, .. } => {
                if size & word::ACCESS_WRITES == 0 {
                    (1, 0)
                } else {
                    (0, 1)
                }
            }
            Self::String { count, shape, .. } => {
                let has = |flag: u32| u64::from(shape & flag != 0) * u64::from(count);
                let (source, destination) = (has(word::STRING_READS_SOURCE), has(word::STRING_READS_DESTINATION));
                // An instruction that reads at its destination does not write there.
                let writes = if destination == 0 { has(word::STRING_WRITES_DESTINATION) } else { 0 };
                (source + destination, writes)
            }
        }
    }
}

/// Whether the event that begins with `first` holds accesses that belong to the next path or
/// signal.
#[inline]
pub(crate) fn is_explicit_access(first: u32) -> bool {
    first & word::EVENT != 0 && matches!(word::kind(first), word::STRING | word::ACCESS)
}

/// Reads the explicit accesses at the start of `words`.
pub(crate) fn read_explicit_access(words: &[u32]) -> Option<ExplicitAccess> {
    let (&first, rest) = words.split_first()?;
    let rest = rest.get(..word::length(first)?.checked_sub(1)?)?;
    let mut fields = EventFields(rest);
    match word::kind(first) {
        word::STRING if first & word::EVENT != 0 => {
            let (pc, source, destination) = (fields.pc(), fields.wide(), fields.wide());
            Some(ExplicitAccess::String { pc, source, destination, count: fields.word(), shape: fields.word() })
        }
        word::ACCESS if first & word::EVENT != 0 => {
            Some(ExplicitAccess::Access { pc: fields.pc(), address: fields.wide(), size: fields.word() })
        }
        _ => None,
    }
}

/// The words behind the first word of an event, field by field.
struct EventFields<'w>(&'w [u32]);

impl EventFields<'_> {
    #[inline]
    fn word(&mut self) -> u32 {
        let (&word, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        word
    }

    #[inline]
    fn wide(&mut self) -> u64 {
        u64::from(self.word()) | u64::from(self.word()) << 32
    }

    #[inline]
    fn pc(&mut self) -> AppPc {
        AppPc::new(self.wide())
    }

    #[inline]
    fn tsc(&mut self) -> Tsc {
        Tsc::new(self.wide())
    }

    fn triple(&mut self) -> [u64; 3] {
        [self.wide(), self.wide(), self.wide()]
    }

    fn enter(&mut self, routine: u8) -> Option<Event> {
        let (pc, stack_pointer, arguments, caller) = (self.pc(), self.wide(), self.triple(), self.pc());
        let (routine, stack) = (RoutineKind::from_number(routine)?, CallStackId(self.word()));
        let call = RoutineCall { routine, pc, stack_pointer, arguments, caller, stack };
        Some(Event::RoutineEnter { call, tsc: self.tsc() })
    }

    fn mapping(&mut self, is_nested: bool) -> Event {
        let (number, arguments, result) = (self.word(), self.triple(), self.wide());
        let call = MappingCall { number, arguments, result, is_nested, stack: CallStackId(self.word()) };
        Event::Mapping { call, tsc: self.tsc() }
    }

    /// Reads the first path of a fragment, which is 0 if there is none, and a number of blocks.
    fn interrupted(&mut self) -> Option<(FragmentId, u32)> {
        let (first_path, blocks) = (self.word(), self.word());
        (first_path != 0).then(|| (FragmentId::new(PathId::new(first_path)), blocks))
    }
}

/// Reads the timestamp at the start of `words`, and returns it with the words behind it.
#[inline]
pub(crate) fn time(words: &[u32]) -> Option<(Tsc, &[u32])> {
    let (&[first, low, high], behind) = words.split_first_chunk()?;
    let is_time = first & word::EVENT != 0 && word::kind(first) == word::TIME;
    is_time.then_some((Tsc::new(u64::from(low) | u64::from(high) << 32), behind))
}

/// Reads the event at the start of `words`; `None` if there is no whole one.
pub(crate) fn read(words: &[u32]) -> Option<RawEvent> {
    let (&first, rest) = words.split_first()?;
    if first & word::EVENT == 0 || rest.len() + 1 < word::length(first)? {
        return None;
    }
    let [low, ..] = first.to_le_bytes();
    let mut fields = EventFields(rest);
    let mut interrupted = None;
    let event = match word::kind(first) {
        word::START => Event::Start { pc: fields.pc(), tsc: fields.tsc() },
        word::TIME => Event::Time { tsc: fields.tsc() },
        word::SYSCALL => Event::Syscall { number: fields.word(), tsc: fields.tsc() },
        word::SIGNAL => {
            interrupted = fields.interrupted();
            Event::Signal { signal: low, pc: fields.pc(), handler: fields.pc(), tsc: fields.tsc() }
        }
        word::RESUME => Event::Resume { pc: fields.pc(), tsc: fields.tsc() },
        word::END => Event::End { tsc: fields.tsc() },
        word::CHILD => Event::Child { thread: ThreadId::new(fields.word()), os_tid: fields.word() },
        word::DETACH => Event::Detach { tsc: fields.tsc() },
        word::FS_BASE => Event::FsBase { base: fields.wide() },
        word::GAP => Event::Gap { pc: fields.pc() },
        word::ENTER => fields.enter(low)?,
        word::RETURN => {
            let routine = RoutineKind::from_number(low)?;
            Event::RoutineReturn { routine, value: fields.wide(), tsc: fields.tsc() }
        }
        word::MAPPING => fields.mapping(first & word::MAPPING_NESTED != 0),
        word::STRING | word::ACCESS => return Some(RawEvent { event: None, interrupted }),
        _ => return None,
    };
    Some(RawEvent { event: Some(event), interrupted })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn words(kind: u8, low: u32, rest: &[u32]) -> Vec<u32> {
        [&[word::event(kind, low)], rest].concat()
    }

    fn pc(low: u64, high: u64) -> AppPc {
        AppPc::new(low | high << 32)
    }

    fn tsc(low: u64, high: u64) -> Tsc {
        Tsc::new(low | high << 32)
    }

    #[test]
    fn events_are_read() {
        let signal = Event::Signal { signal: 11, pc: pc(3, 4), handler: pc(5, 6), tsc: tsc(7, 8) };
        let child = Event::Child { thread: ThreadId::new(1), os_tid: 2 };
        let interrupted = Some((FragmentId::new(PathId::new(1)), 2));
        let cases = [
            (words(word::START, 0, &[1, 2, 3, 4]), Event::Start { pc: pc(1, 2), tsc: tsc(3, 4) }, None),
            (words(word::TIME, 0, &[1, 2]), Event::Time { tsc: tsc(1, 2) }, None),
            (words(word::SYSCALL, 0, &[1, 2, 3]), Event::Syscall { number: 1, tsc: tsc(2, 3) }, None),
            (words(word::SIGNAL, 11, &[1, 2, 3, 4, 5, 6, 7, 8]), signal, interrupted),
            (words(word::RESUME, 0, &[1, 2, 3, 4]), Event::Resume { pc: pc(1, 2), tsc: tsc(3, 4) }, None),
            (words(word::END, 0, &[9, 0]), Event::End { tsc: tsc(9, 0) }, None),
            (words(word::CHILD, 0, &[1, 2]), child, None),
            (words(word::DETACH, 0, &[1, 0]), Event::Detach { tsc: tsc(1, 0) }, None),
            (words(word::FS_BASE, 0, &[1, 2]), Event::FsBase { base: 1 | 2 << 32 }, None),
            (words(word::GAP, 0, &[1, 2]), Event::Gap { pc: pc(1, 2) }, None),
        ];
        for (words, event, interrupted) in cases.into_iter().chain(allocations()) {
            assert_eq!(read(&words), Some(RawEvent { event: Some(event), interrupted }));
            assert_eq!(read(&words[..words.len() - 1]), None);
            assert_eq!((is_explicit_access(words[0]), read_explicit_access(&words)), (false, None));
        }
        assert_eq!(read(&[word::event(99, 0), 0, 0]), None);
        assert_eq!(read(&[7]), None);
    }

    type Case = (Vec<u32>, Event, Option<(FragmentId, u32)>);

    fn allocations() -> [Case; 3] {
        let numbers: Vec<u32> = (1..16).collect();
        let wide = |low: u64, high: u64| low | high << 32;
        let enter = RoutineCall {
            routine: RoutineKind::Calloc,
            pc: pc(1, 2),
            stack_pointer: wide(3, 4),
            arguments: [wide(5, 6), wide(7, 8), wide(9, 10)],
            caller: pc(11, 12),
            stack: CallStackId(13),
        };
        let arguments = [wide(2, 3), wide(4, 5), wide(6, 7)];
        let mapping = MappingCall { number: 1, arguments, result: wide(8, 9), is_nested: true, stack: CallStackId(10) };
        let value = wide(1, 2);
        [
            (words(word::ENTER, 2, &numbers), Event::RoutineEnter { call: enter, tsc: tsc(14, 15) }, None),
            (
                words(word::RETURN, 1, &numbers[..4]),
                Event::RoutineReturn { routine: RoutineKind::Malloc, value, tsc: tsc(3, 4) },
                None,
            ),
            (words(word::MAPPING, 1, &numbers[..12]), Event::Mapping { call: mapping, tsc: tsc(11, 12) }, None),
        ]
    }

    #[test]
    fn unknown_routines_are_no_events() {
        assert_eq!(read(&words(word::ENTER, 99, &[0; 15])), None);
        assert_eq!(read(&words(word::RETURN, 0, &[0; 4])), None);
        assert_eq!(read(&words(word::STACK_POINTER, 0, &[0; 2])), None);
    }

    #[test]
    fn explicit_accesses_are_read() {
        let string = ExplicitAccess::String { pc: pc(1, 2), source: 3, destination: 4, count: 5, shape: 6 };
        let access = ExplicitAccess::Access { pc: pc(1, 0), address: 2 | 3 << 32, size: u32::MAX };
        let cases = [
            (words(word::STRING, 7 << 8, &[1, 2, 3, 0, 4, 0, 5, 6]), string),
            (words(word::ACCESS, 7 << 8, &[1, 0, 2, 3, u32::MAX]), access),
        ];
        for (words, expected) in cases {
            assert!(is_explicit_access(words[0]));
            assert_eq!(read_explicit_access(&words), Some(expected));
            assert_eq!(read_explicit_access(&words[..words.len() - 1]), None);
            assert_eq!(read(&words), Some(RawEvent { event: None, interrupted: None }));
        }
    }
}
