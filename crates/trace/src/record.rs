//! The content of recording, facts and end chunks, as bytes and back. [`crate::code_chunk`] has
//! that of code chunks.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::bytes::{ByteReader, put_string, put_varint};
use entity::{AppPc, ThreadId, Tsc};

use crate::error::Problem;
use crate::model::{CallStackId, CallStackNode, DataMode, Exit, Module, ProcessInfo, Recording, ThreadInfo};

/// The content of a recording chunk.
pub(crate) fn write_recording(recording: &Recording) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, u64::from(recording.pid));
    put_varint(&mut out, recording.tsc_hz);
    put_varint(&mut out, recording.start_unix_nanos);
    put_varint(&mut out, recording.start_tsc.get());
    for string in [&recording.host, &recording.cpu, &recording.system, &recording.recorder] {
        put_string(&mut out, string);
    }
    for words in [&recording.command, &recording.options] {
        put_varint(&mut out, words.len() as u64);
        for word in words {
            put_string(&mut out, word);
        }
    }
    put_varint(&mut out, u64::from(recording.data.number()));
    out
}

pub(crate) fn read_recording(content: &[u8]) -> Option<Recording> {
    let mut fields = ByteReader::new(content);
    let mut recording = Recording {
        pid: fields.varint_u32()?,
        tsc_hz: fields.varint()?,
        start_unix_nanos: fields.varint()?,
        start_tsc: Tsc::new(fields.varint()?),
        host: fields.string()?,
        cpu: fields.string()?,
        system: fields.string()?,
        recorder: fields.string()?,
        command: Vec::new(),
        options: Vec::new(),
        data: DataMode::None,
    };
    read_words(&mut fields, &mut recording.command)?;
    // Format version 1 ends here.
    if !fields.is_empty() {
        read_words(&mut fields, &mut recording.options)?;
        recording.data = DataMode::from_number(fields.varint()?)?;
    }
    Some(recording)
}

fn read_words(fields: &mut ByteReader<'_>, words: &mut Vec<String>) -> Option<()> {
    for _ in 0..fields.varint()? {
        words.push(fields.string()?);
    }
    Some(())
}

pub(crate) fn write_exit(exit: Exit) -> Vec<u8> {
    let (tag, value) = match exit {
        Exit::Unknown => (0, 0),
        Exit::Code(code) => (1, code),
        Exit::Signal(signal) => (2, signal),
        Exit::Detached => (3, 0),
    };
    let mut out = vec![tag];
    out.extend_from_slice(&value.to_le_bytes());
    out
}

pub(crate) fn read_exit(content: &[u8]) -> Option<Exit> {
    let mut fields = ByteReader::new(content);
    let (tag, value) = (fields.u8()?, fields.u32()?.cast_signed());
    Some(match tag {
        1 => Exit::Code(value),
        2 => Exit::Signal(value),
        3 => Exit::Detached,
        _ => Exit::Unknown,
    })
}

/// A record of a facts chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Thread(ThreadInfo),
    Module { image: u32, module: Module },
    Unmapped { image: u32, address: u64, length: u64, tsc: Tsc },
    Process(ProcessInfo),
    CallStack(CallStackNode),
}

const THREAD: u8 = 1;
const MODULE: u8 = 2;
const UNMAPPED: u8 = 3;
const PROCESS: u8 = 4;
const CALL_STACK: u8 = 5;

impl Fact {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Thread(info) => {
                out.push(THREAD);
                put_varint(out, u64::from(info.thread.get()));
                put_varint(out, u64::from(info.os_tid));
                put_varint(out, info.parent.map_or(0, |parent| u64::from(parent.get()) + 1));
                put_varint(out, u64::from(info.image));
            }
            Self::Module { image, module } => {
                out.push(MODULE);
                put_varint(out, u64::from(*image));
                for field in [module.address, module.length, module.file_offset, module.tsc.get()] {
                    put_varint(out, field);
                }
                put_string(out, &module.path);
            }
            Self::Unmapped { image, address, length, tsc } => {
                out.push(UNMAPPED);
                put_varint(out, u64::from(*image));
                for field in [*address, *length, tsc.get()] {
                    put_varint(out, field);
                }
            }
            Self::Process(process) => {
                out.push(PROCESS);
                put_varint(out, u64::from(process.pid));
                put_varint(out, process.parent.map_or(0, |parent| u64::from(parent) + 1));
                put_varint(out, process.tsc.get());
                put_varint(out, process.command.len() as u64);
                process.command.iter().for_each(|word| put_string(out, word));
            }
            Self::CallStack(node) => {
                out.push(CALL_STACK);
                put_varint(out, u64::from(node.id.0));
                // Most often the node is younger by a little.
                put_varint(out, u64::from(node.id.0.wrapping_sub(node.below.0)));
                put_varint(out, node.address.get());
            }
        }
    }

    fn read(fields: &mut ByteReader<'_>) -> Option<Self> {
        Some(match fields.u8()? {
            THREAD => Self::Thread(ThreadInfo {
                thread: ThreadId::new(fields.varint_u32()?),
                os_tid: fields.varint_u32()?,
                parent: match fields.varint()? {
                    0 => None,
                    parent => Some(ThreadId::new(u32::try_from(parent - 1).ok()?)),
                },
                image: fields.varint_u32()?,
            }),
            MODULE => Self::Module {
                image: fields.varint_u32()?,
                module: Module {
                    address: fields.varint()?,
                    length: fields.varint()?,
                    file_offset: fields.varint()?,
                    tsc: Tsc::new(fields.varint()?),
                    path: fields.string()?,
                },
            },
            UNMAPPED => Self::Unmapped {
                image: fields.varint_u32()?,
                address: fields.varint()?,
                length: fields.varint()?,
                tsc: Tsc::new(fields.varint()?),
            },
            PROCESS => Self::Process(read_process(fields)?),
            CALL_STACK => {
                let (id, distance) = (fields.varint_u32()?, fields.varint_u32()?);
                let below = CallStackId(id.checked_sub(distance)?);
                Self::CallStack(CallStackNode { id: CallStackId(id), below, address: AppPc::new(fields.varint()?) })
            }
            _ => return None,
        })
    }
}

fn read_process(fields: &mut ByteReader<'_>) -> Option<ProcessInfo> {
    let mut process = ProcessInfo {
        pid: fields.varint_u32()?,
        parent: match fields.varint()? {
            0 => None,
            parent => Some(u32::try_from(parent - 1).ok()?),
        },
        tsc: Tsc::new(fields.varint()?),
        command: Vec::new(),
    };
    for _ in 0..fields.varint()? {
        process.command.push(fields.string()?);
    }
    Some(process)
}

/// Calls `each` for every fact in the content of a facts chunk.
pub(crate) fn read_facts(content: &[u8], mut each: impl FnMut(Fact)) -> Result<(), Problem> {
    let mut fields = ByteReader::new(content);
    while !fields.is_empty() {
        let at = fields.at();
        each(Fact::read(&mut fields).ok_or(Problem::Record { at })?);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_round_trips() {
        let recording = Recording {
            command: vec!["a".into(), String::new(), "c d".into()],
            pid: 4,
            tsc_hz: u64::MAX,
            start_unix_nanos: 6,
            start_tsc: Tsc::new(7),
            host: "h".into(),
            cpu: "c".into(),
            system: "s".into(),
            recorder: "v".into(),
            options: vec!["--skip".into(), "7".into()],
            data: DataMode::Values,
        };
        let bytes = write_recording(&recording);
        assert_eq!(read_recording(&bytes), Some(recording.clone()));
        // What version 1 has: everything but the options (their number, two lengths, seven letters)
        // and the data.
        let old_length = bytes.len() - (1 + 2 + 7) - 1;
        let old = Recording { options: Vec::new(), data: DataMode::None, ..recording };
        for length in 0..bytes.len() {
            assert_eq!(read_recording(&bytes[..length]), (length == old_length).then(|| old.clone()), "{length}");
        }
    }

    #[test]
    fn facts_round_trip() {
        let module = Module { address: 1, length: 2, file_offset: 3, path: "/lib/x".into(), tsc: Tsc::new(9) };
        let facts = [
            Fact::Thread(ThreadInfo { thread: ThreadId::new(1), os_tid: 2, parent: None, image: 0 }),
            Fact::Thread(ThreadInfo { thread: ThreadId::new(2), os_tid: 3, parent: Some(ThreadId::FIRST), image: 1 }),
            Fact::Module { image: 1, module },
            Fact::Unmapped { image: 1, address: u64::MAX, length: 2, tsc: Tsc::new(3) },
            Fact::Process(ProcessInfo { pid: 7, parent: None, tsc: Tsc::new(5), command: vec![] }),
            Fact::Process(ProcessInfo {
                pid: 8,
                parent: Some(7),
                tsc: Tsc::new(6),
                command: vec!["a".into(), String::new()],
            }),
            Fact::CallStack(CallStackNode { id: CallStackId(1), below: CallStackId::EMPTY, address: AppPc::new(5) }),
            Fact::CallStack(CallStackNode { id: CallStackId(9), below: CallStackId(1), address: AppPc::new(u64::MAX) }),
        ];
        let mut bytes = Vec::new();
        facts.iter().for_each(|fact| fact.write(&mut bytes));
        let mut seen = Vec::new();
        read_facts(&bytes, |fact| seen.push(fact)).unwrap();
        assert_eq!(seen, facts);
    }

    #[test]
    fn exits_round_trip() {
        for exit in [Exit::Unknown, Exit::Detached, Exit::Code(-1), Exit::Code(3), Exit::Signal(9)] {
            assert_eq!(read_exit(&write_exit(exit)), Some(exit));
        }
    }
}
