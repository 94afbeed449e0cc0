//! Checks the control flow of a thread's words: one rule for each class of transfer says where the
//! thread may continue.
//!
//! | class | what must come next |
//! | --- | --- |
//! | conditional branch, direct jump or call, cut block | the address that the code says |
//! | indirect jump or call, return | the address that the instruction has loaded, if values were recorded |
//! | system call | its event; then the address behind it, or a signal there or at the instruction itself |
//! | rt_sigreturn | a resume event |
//! | signal, resume, start | the address that the event names |
//! | gap | anything; the gap itself begins where the thread is |
//! | end, detach, exec | nothing but a start |
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use codec::words::{EventWords, Word, Words};
use entity::{AppPc, PathId};

use crate::data::path_bytes;
use crate::descriptors::{CompiledAccess, Form};
use crate::event::{self, RawEvent};
use crate::model::{Event, Step, Terminator};
use crate::program::{FragmentInfo, PathSteps, Program};
use crate::span::register;

/// Bytes of a system call instruction.
const SYSCALL_BYTES: u64 = 2;
/// Number of the system call that ends a signal handler.
const RT_SIGRETURN: u32 = 15;
/// The kernel emulates three functions at these addresses, and no code of them is recorded.
const VSYSCALL: Range<AppPc> = AppPc::new(0xffff_ffff_ff60_0000)..AppPc::new(0xffff_ffff_ff60_1000);
/// Most transitions at the start of a chunk that depend on the chunk before: a system call's event
/// and that of the thread that it has created, and more in a damaged trace.
const FIRST_MAX: usize = 8;
/// Problems listed of one chunk at most.
const PROBLEMS_MAX: usize = 8;

/// Where a thread may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// Anywhere: behind a gap, or a chunk is missing.
    Unknown,
    /// At any address: behind an indirect transfer whose target was not recorded.
    AnyAddress,
    At(AppPc),
    /// Behind a system call instruction, before its event; `after` is the address behind the
    /// instruction.
    SyscallPending {
        after: AppPc,
    },
    /// Behind the event of a system call.
    SyscallReturn {
        after: AppPc,
        number: u32,
    },
    /// Not at all: the thread has not started, has ended or is no longer recorded.
    NotRunning,
}

/// What one path or event says about the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// A path or an interrupted fragment that begins at `head`, and where it leads.
    Execution {
        head: AppPc,
        continuation: Continuation,
    },
    /// A signal that interrupted the thread between paths.
    Signal {
        pc: AppPc,
        continuation: Continuation,
    },
    Gap {
        pc: AppPc,
    },
    Syscall {
        number: u32,
    },
    Child,
    Start {
        pc: AppPc,
    },
    Resume {
        pc: AppPc,
    },
    End,
}

impl Continuation {
    /// Returns where the thread continues behind `transition`, or why `transition` cannot come
    /// here.
    pub(super) fn then(self, transition: &Transition) -> Result<Self, String> {
        match *transition {
            Transition::Execution { head, continuation } => self.must_be_at(head).map(|()| continuation),
            Transition::Signal { pc, continuation } => self.must_be_interrupted_at(pc).map(|()| continuation),
            Transition::Gap { pc } => self.must_be_at(pc).map(|()| Self::Unknown),
            Transition::Syscall { number } => match self {
                Self::SyscallPending { after } => Ok(Self::SyscallReturn { after, number }),
                Self::Unknown => Ok(Self::Unknown),
                _ => Err("a system call without its instruction".into()),
            },
            Transition::Child => match self {
                Self::SyscallReturn { .. } | Self::Unknown => Ok(self),
                _ => Err("a new thread without a system call".into()),
            },
            Transition::Start { pc } => match self {
                Self::NotRunning | Self::Unknown => Ok(Self::At(pc)),
                _ => Err(format!("the thread starts at {pc:#x} although it has not ended")),
            },
            Transition::Resume { pc } => match self {
                Self::NotRunning => Err(over(pc)),
                Self::SyscallPending { .. } => Err(NO_EVENT.into()),
                // A restartable sequence is aborted without a system call; its abort handler is
                // outside of it.
                Self::At(here) if here == pc => Err(format!("the thread resumes at {pc:#x}, where it is")),
                _ => Ok(Self::At(pc)),
            },
            Transition::End => Ok(Self::NotRunning),
        }
    }

    fn must_be_at(self, pc: AppPc) -> Result<(), String> {
        match self {
            Self::SyscallReturn { number: RT_SIGRETURN, .. } => {
                Err(format!("rt_sigreturn is followed by {pc:#x} instead of a resume event"))
            }
            Self::At(expected) | Self::SyscallReturn { after: expected, .. } if expected != pc => {
                Err(format!("the thread was about to execute {expected:#x} but goes on at {pc:#x}"))
            }
            Self::SyscallPending { .. } => Err(NO_EVENT.into()),
            Self::NotRunning => Err(over(pc)),
            _ => Ok(()),
        }
    }

    /// A system call that was interrupted may be made again. An rt_sigreturn that finds no frame
    /// goes to 0.
    fn must_be_interrupted_at(self, pc: AppPc) -> Result<(), String> {
        match self {
            Self::SyscallReturn { after, .. } if pc + SYSCALL_BYTES == after => Ok(()),
            Self::SyscallReturn { number: RT_SIGRETURN, .. } if pc.is_none() => Ok(()),
            _ => self.must_be_at(pc),
        }
    }
}

const NO_EVENT: &str = "a system call instruction without its event";

fn over(pc: AppPc) -> String {
    format!("the thread goes on at {pc:#x} without having started")
}

impl Transition {
    /// Returns where the thread continues behind it; `None` if that depends on what was before.
    fn continuation(&self) -> Option<Continuation> {
        match *self {
            Self::Execution { continuation, .. } | Self::Signal { continuation, .. } => Some(continuation),
            Self::Gap { .. } => Some(Continuation::Unknown),
            Self::Start { pc } | Self::Resume { pc } => Some(Continuation::At(pc)),
            Self::End => Some(Continuation::NotRunning),
            Self::Syscall { .. } | Self::Child => None,
        }
    }
}

/// What the words of a chunk say about the boundaries to the chunks before and behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkBoundary {
    /// The first transitions, up to one that does not depend on the chunk before.
    first: Vec<Transition>,
    /// Where the thread continues behind the chunk; `None` if that depends on the chunk before.
    end: Option<Continuation>,
    /// Indirect transfers whose target was not recorded.
    pub unchecked: u64,
}

impl ChunkBoundary {
    /// Returns where the thread continues behind the chunk, given where it continues before it, or
    /// what is wrong at its start.
    pub(super) fn follow(&self, before: Continuation) -> Result<Continuation, String> {
        let behind = self.first.iter().try_fold(before, |continuation, transition| continuation.then(transition))?;
        Ok(self.end.unwrap_or(behind))
    }

    /// Returns where the thread continues behind the chunk if the chunk before it is not known.
    pub(super) fn end(&self) -> Continuation {
        self.end.unwrap_or(Continuation::Unknown)
    }

    fn add(&mut self, transition: &Transition) -> Result<(), String> {
        match self.end {
            None => {
                self.first.push(*transition);
                self.end =
                    transition.continuation().or((self.first.len() >= FIRST_MAX).then_some(Continuation::Unknown));
                Ok(())
            }
            Some(continuation) => {
                let next = continuation.then(transition);
                self.end = Some(
                    next.as_ref()
                        .map_or_else(|_| transition.continuation().unwrap_or(Continuation::Unknown), |next| *next),
                );
                next.map(drop)
            }
        }
    }
}

/// Checks the words of a chunk.
#[derive(Clone, Copy)]
pub(super) struct FlowChecker<'a> {
    pub program: &'a Program,
    pub image: u32,
    /// Sequence number of the chunk: paths are defined before it.
    pub sequence: u32,
    /// The data behind the words; empty if there is none.
    pub data: &'a [u8],
}

impl<'a> FlowChecker<'a> {
    /// Checks all of `words` and appends what is wrong to `problems`.
    pub(super) fn follow(mut self, words: &[u32], problems: &mut Vec<String>) -> ChunkBoundary {
        let mut boundary = ChunkBoundary::default();
        let mut rest = Words::new(words);
        while let Some(word) = rest.peek() {
            let at = words.len() - rest.rest().len();
            if problems.len() >= PROBLEMS_MAX {
                boundary.end = Some(Continuation::Unknown);
                break;
            }
            let mut note = |problem: String| problems.push(format!("word {at}: {problem}"));
            let transition = match word {
                Word::Path(path) => self.path(path, &mut note),
                Word::Event(event) => self.event(event, &mut note),
            };
            if let Some(transition) = transition {
                boundary.unchecked += u64::from(transition.continuation() == Some(Continuation::AnyAddress));
                boundary.add(&transition).unwrap_or_else(note);
            }
            rest.next();
        }
        boundary
    }

    /// The next bytes of data; none if there are fewer.
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.data.split_at_checked(bytes).unwrap_or((&[], &[]));
        self.data = rest;
        taken
    }

    fn path(&mut self, path: PathId, note: &mut dyn FnMut(String)) -> Option<Transition> {
        let program = self.program;
        let data = self.take(path_bytes(program, path).unwrap_or(0));
        let fragment = program.fragment_of(path)?;
        self.check_definition(fragment, path, note);
        let PathSteps { steps, last } = program.path(path)?;
        let has_indirect = program.counts(path)?.has_indirect();
        let mut loaded = LoadedTargets { program, data, blocks: self.blocks_of(path).filter(|_| has_indirect) };
        loaded.check(steps, note);
        let continuation = match last.terminator() {
            Terminator::Indirect => loaded.target(&last).map_or(Continuation::AnyAddress, continuation_at),
            Terminator::Syscall => Continuation::SyscallPending { after: last.next() },
            _ => Continuation::At(last.next()),
        };
        Some(Transition::Execution { head: fragment.head, continuation })
    }

    fn check_definition(&self, fragment: &FragmentInfo, path: PathId, note: &mut dyn FnMut(String)) {
        if fragment.image != self.image {
            note(format!("path {path} is of image {}, the thread is in image {}", fragment.image, self.image));
        }
        if fragment.sequence >= self.sequence {
            note(format!("path {path} is executed before it is defined"));
        }
    }

    /// The accesses of a fragment, block by block; `None` if no data is behind its paths.
    fn blocks_of(&self, path: PathId) -> Option<impl Iterator<Item = &'a [CompiledAccess]> + use<'a>> {
        let descriptors = &self.program.descriptors;
        descriptors.span(path).map(|span| descriptors.blocks(span.descriptors, u16::MAX))
    }

    /// Returns the transition of an event; `None` if the event does not say where the thread is.
    fn event(&mut self, event: EventWords<'_>, note: &mut dyn FnMut(String)) -> Option<Transition> {
        let data = self.take(event.data_bytes());
        let raw = event::read(event.words())?;
        Some(match raw.event? {
            Event::Signal { pc, handler, .. } => self.signal(&raw, pc, handler, data, note),
            Event::Start { pc, .. } => Transition::Start { pc },
            Event::Resume { pc, .. } => Transition::Resume { pc },
            Event::Gap { pc } => Transition::Gap { pc },
            Event::Syscall { number, .. } => Transition::Syscall { number },
            Event::Child { .. } => Transition::Child,
            Event::End { .. } | Event::Detach { .. } => Transition::End,
            Event::Time { .. }
            | Event::FsBase { .. }
            | Event::RoutineEnter { .. }
            | Event::RoutineReturn { .. }
            | Event::Mapping { .. }
            | Event::Unfinished { .. }
            | Event::Lost => return None,
        })
    }

    fn signal(
        &self,
        raw: &RawEvent,
        pc: AppPc,
        handler: AppPc,
        data: &'a [u8],
        note: &mut dyn FnMut(String),
    ) -> Transition {
        let continuation = if handler.is_none() { Continuation::NotRunning } else { Continuation::At(handler) };
        let path = raw.interrupted.map(|(fragment, _)| fragment.first_path());
        let Some((path, fragment)) = path.and_then(|path| Some((path, self.program.fragment_of(path)?))) else {
            return Transition::Signal { pc, continuation };
        };
        self.check_definition(fragment, path, note);
        // Steps that cannot have been interrupted are counted as lost, and reported by their
        // number.
        let executed = raw.interrupted_steps(self.program);
        let mut loaded = LoadedTargets { program: self.program, data, blocks: self.blocks_of(path) };
        loaded.check(executed.map_or(&[], |(whole, _)| whole), note);
        Transition::Execution { head: fragment.head, continuation }
    }
}

/// Returns where the thread continues at `target`. Of a vsyscall only the return is recorded.
fn continuation_at(target: AppPc) -> Continuation {
    if VSYSCALL.contains(&target) { Continuation::AnyAddress } else { Continuation::At(target) }
}

/// The targets that the indirect transfers of a path have loaded, block by block.
struct LoadedTargets<'a, B> {
    program: &'a Program,
    data: &'a [u8],
    blocks: Option<B>,
}

impl<'a, B: Iterator<Item = &'a [CompiledAccess]>> LoadedTargets<'a, B> {
    /// Checks steps that are followed by another one of the same fragment.
    fn check(&mut self, steps: &[Step], note: &mut dyn FnMut(String)) {
        for step in steps.iter().take(if self.blocks.is_some() { usize::MAX } else { 0 }) {
            if let Some(target) = self.target(step).filter(|&target| target != step.next()) {
                let next = step.next();
                note(format!("an indirect transfer has loaded {target:#x} but goes on at {next:#x}"));
            }
        }
    }

    /// Returns the address that the indirect transfer at the end of the next block has loaded, if
    /// it was recorded.
    fn target(&mut self, step: &Step) -> Option<AppPc> {
        let accesses = self.blocks.as_mut()?.next()?;
        if step.terminator() != Terminator::Indirect {
            return None;
        }
        let pc = self.program.blocks.get(step.block())?.last();
        let is_load = |access: &&CompiledAccess| access.pc == pc && !access.writes() && access.size == 8;
        let is_single = |access: &&CompiledAccess| matches!(access.form, Form::Based | Form::Absolute | Form::Plain);
        let load = accesses.iter().rev().take_while(|access| access.pc == pc).filter(is_load).find(is_single)?;
        register(self.data, load.value_at()?).map(AppPc::new)
    }
}
