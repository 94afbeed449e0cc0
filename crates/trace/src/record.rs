//! The content of recording, code, facts and end chunks, as bytes and back.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::error::Problem;
use crate::model::{AccessDescriptors, DataMode, Exit, Fragment, Module, ProcessInfo, Recording, ThreadInfo};
use codec::bytes::{ByteReader, put_signed, put_string, put_varint, unzigzag, zigzag};
use wire::code::{AccessDescriptor, TAKEN};

/// The content of a recording chunk.
pub(crate) fn write_recording(recording: &Recording) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, u64::from(recording.pid));
    put_varint(&mut out, recording.tsc_hz);
    put_varint(&mut out, recording.start_unix_nanos);
    put_varint(&mut out, recording.start_tsc);
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
        start_tsc: fields.varint()?,
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

/// Definitions on their way into a code chunk.
#[derive(Debug, Default)]
pub(crate) struct CodeContent {
    records: Vec<u8>,
    code: Vec<u8>,
    previous: PreviousFields,
    pub blocks: u32,
    pub fragments: u32,
}

/// The fields that those of the next definition are stored relative to; zero at the start of a
/// chunk.
#[derive(Clone, Copy, Debug, Default)]
struct PreviousFields {
    image: u64,
    block: u64,
    address: u64,
    path: u64,
}

const BLOCK: u8 = 1;
const FRAGMENT: u8 = 2;
const ACCESS_DESCRIPTORS: u8 = 3;
/// Bits of an exit record that hold the terminator.
const TERMINATOR_BITS: u32 = 3;

impl CodeContent {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.code.len()
    }

    pub(crate) fn code_bytes(&self) -> usize {
        self.code.len()
    }

    pub(crate) fn add_block(&mut self, image: u32, id: u32, address: u64, code: &[u8]) {
        let out = &mut self.records;
        out.push(BLOCK);
        put_signed(out, u64::from(image).wrapping_sub(self.previous.image));
        put_signed(out, u64::from(id).wrapping_sub(self.previous.block));
        put_signed(out, address.wrapping_sub(self.previous.address));
        put_varint(out, code.len() as u64);
        self.code.extend_from_slice(code);
        self.previous.after_block(u64::from(image), u64::from(id), address, code.len() as u64);
        self.blocks += 1;
    }

    pub(crate) fn add_fragment(&mut self, image: u32, fragment: &Fragment<'_>) {
        let out = &mut self.records;
        out.push(FRAGMENT);
        put_signed(out, u64::from(image).wrapping_sub(self.previous.image));
        put_signed(out, u64::from(fragment.first_path).wrapping_sub(self.previous.path));
        put_varint(out, fragment.blocks.len() as u64);
        put_varint(out, fragment.exits.len() as u64);
        let mut before = self.previous.block;
        for &block in fragment.blocks {
            let id = u64::from(block & !TAKEN);
            put_varint(out, zigzag(id.wrapping_sub(before)) << 1 | u64::from(block & TAKEN != 0));
            before = id.wrapping_add(1);
        }
        let mut before = 0;
        for &exit in fragment.exits {
            let (count, way) = (u64::from(exit & 0xffff), u64::from(exit >> 16));
            put_varint(out, zigzag(count.wrapping_sub(before)) << TERMINATOR_BITS | way & 7);
            before = count;
        }
        self.previous.after_fragment(u64::from(image), u64::from(fragment.first_path), fragment.exits.len() as u64);
        self.fragments += 1;
    }

    pub(crate) fn add_descriptors(&mut self, descriptors: &AccessDescriptors<'_>) {
        let out = &mut self.records;
        out.push(ACCESS_DESCRIPTORS);
        put_signed(out, u64::from(descriptors.first_path).wrapping_sub(self.previous.path));
        put_varint(out, descriptors.lengths.len() as u64);
        put_varint(out, descriptors.accesses.len() as u64);
        let mut before = 0;
        for &length in descriptors.lengths {
            put_signed(out, u64::from(length).wrapping_sub(before));
            before = u64::from(length);
        }
        let mut before = AccessDescriptor::default();
        for access in descriptors.accesses {
            put_access(out, access, &before);
            before = *access;
        }
    }

    /// Returns the content of the chunk and starts the next one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let taken = std::mem::take(self);
        let mut out = Vec::with_capacity(taken.len() + 10);
        put_varint(&mut out, taken.records.len() as u64);
        out.extend_from_slice(&taken.records);
        out.extend_from_slice(&taken.code);
        out
    }
}

/// Fields of an access descriptor that are stored if they are not zero. Each has a bit in the byte
/// before them.
const FIELDS: [fn(&mut AccessDescriptor) -> Field<'_>; 8] = [
    |access| Field::Short(&mut access.base),
    |access| Field::Short(&mut access.index),
    |access| Field::Short(&mut access.value),
    |access| Field::Short(&mut access.mask),
    |access| Field::Byte(&mut access.count),
    |access| Field::Byte(&mut access.mask_kind),
    |access| Field::Byte(&mut access.index_bytes),
    |access| Field::Long(&mut access.constant),
];

enum Field<'a> {
    Byte(&'a mut u8),
    Short(&'a mut u16),
    Long(&'a mut u64),
}

impl Field<'_> {
    fn get(&self) -> u64 {
        match self {
            Self::Byte(value) => u64::from(**value),
            Self::Short(value) => u64::from(**value),
            Self::Long(value) => **value,
        }
    }

    fn set(self, new: u64) -> Option<()> {
        match self {
            Self::Byte(value) => *value = u8::try_from(new).ok()?,
            Self::Short(value) => *value = u16::try_from(new).ok()?,
            Self::Long(value) => *value = new,
        }
        Some(())
    }
}

fn put_access(out: &mut Vec<u8>, access: &AccessDescriptor, before: &AccessDescriptor) {
    let mut copy = *access;
    let fields = FIELDS.map(|field| field(&mut copy).get());
    let present = (0..8).filter(|&bit| fields.get(bit).is_some_and(|&field| field != 0));
    out.push(present.fold(0, |present, bit| present | 1 << bit));
    out.extend_from_slice(&[access.kind, access.flags]);
    put_varint(out, u64::from(access.block.wrapping_sub(before.block)));
    put_varint(out, u64::from(access.offset.wrapping_sub(offset_before(access.block, before))));
    put_varint(out, u64::from(access.size));
    put_signed(out, access.displacement.cast_unsigned());
    for field in fields.into_iter().filter(|&field| field != 0) {
        put_varint(out, field);
    }
}

/// Returns what the offset of an access is stored relative to: the offset of the access before it,
/// if that is in the same block.
fn offset_before(block: u16, before: &AccessDescriptor) -> u16 {
    if block == before.block { before.offset } else { 0 }
}

fn take_access(fields: &mut ByteReader<'_>, before: &AccessDescriptor) -> Option<AccessDescriptor> {
    let short = |value: u64| u16::try_from(value).ok();
    let present = fields.u8()?;
    let mut access = AccessDescriptor { kind: fields.u8()?, flags: fields.u8()?, ..AccessDescriptor::default() };
    access.block = before.block.wrapping_add(short(fields.varint()?)?);
    access.offset = offset_before(access.block, before).wrapping_add(short(fields.varint()?)?);
    access.size = short(fields.varint()?)?;
    access.displacement = fields.signed()?.cast_signed();
    for (_, field) in FIELDS.iter().enumerate().filter(|(bit, _)| present >> bit & 1 != 0) {
        field(&mut access).set(fields.varint()?)?;
    }
    Some(access)
}

impl PreviousFields {
    fn after_block(&mut self, image: u64, block: u64, address: u64, length: u64) {
        (self.image, self.block, self.address) = (image, block.wrapping_add(1), address.wrapping_add(length));
    }

    fn after_fragment(&mut self, image: u64, first_path: u64, exits: u64) {
        (self.image, self.path) = (image, first_path.wrapping_add(exits));
    }
}

/// One definition out of a code chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Definition<'a> {
    Block { image: u32, id: u32, address: u64, code: &'a [u8] },
    Fragment { image: u32, fragment: Fragment<'a> },
    AccessDescriptors(AccessDescriptors<'a>),
}

/// Calls `each` for every definition in the content of a code chunk.
pub(crate) fn read_code(content: &[u8], mut each: impl FnMut(Definition<'_>)) -> Result<(), Problem> {
    let mut code = ByteReader::new(content);
    let records = code.varint().and_then(|length| code.take(usize::try_from(length).ok()?));
    let mut reader = CodeReader {
        records: ByteReader::new(records.ok_or(Problem::Record { at: 0 })?),
        code,
        previous: PreviousFields::default(),
        lists: Vec::new(),
        accesses: Vec::new(),
    };
    while !reader.records.is_empty() {
        let at = reader.records.at();
        each(reader.next().ok_or(Problem::Record { at })?);
    }
    Ok(())
}

struct CodeReader<'a> {
    records: ByteReader<'a>,
    code: ByteReader<'a>,
    previous: PreviousFields,
    /// Blocks and exits of the fragment that was read last, or lengths of the access descriptors.
    lists: Vec<u32>,
    /// The access descriptors that were read last.
    accesses: Vec<AccessDescriptor>,
}

impl<'a> CodeReader<'a> {
    fn next(&mut self) -> Option<Definition<'_>> {
        match self.records.u8()? {
            BLOCK => self.block(),
            FRAGMENT => self.fragment(),
            ACCESS_DESCRIPTORS => self.descriptors(),
            _ => None,
        }
    }

    fn descriptors(&mut self) -> Option<Definition<'_>> {
        let first_path = self.previous.path.wrapping_add(self.records.signed()?);
        let (length_count, access_count) = (self.records.varint()?, self.records.varint()?);
        self.lists.clear();
        let mut before = 0u64;
        for _ in 0..length_count {
            before = before.wrapping_add(self.records.signed()?);
            self.lists.push(u32::try_from(before).ok()?);
        }
        self.accesses.clear();
        let mut before = AccessDescriptor::default();
        for _ in 0..access_count {
            before = take_access(&mut self.records, &before)?;
            self.accesses.push(before);
        }
        let first_path = u32::try_from(first_path).ok()?;
        Some(Definition::AccessDescriptors(AccessDescriptors {
            first_path,
            lengths: &self.lists,
            accesses: &self.accesses,
        }))
    }

    fn block(&mut self) -> Option<Definition<'a>> {
        let image = self.previous.image.wrapping_add(self.records.signed()?);
        let id = self.previous.block.wrapping_add(self.records.signed()?);
        let address = self.previous.address.wrapping_add(self.records.signed()?);
        let length = self.records.varint()?;
        let code = self.code.take(usize::try_from(length).ok()?)?;
        self.previous.after_block(image, id, address, length);
        Some(Definition::Block { image: u32::try_from(image).ok()?, id: u32::try_from(id).ok()?, address, code })
    }

    fn fragment(&mut self) -> Option<Definition<'_>> {
        let image = self.previous.image.wrapping_add(self.records.signed()?);
        let first_path = self.previous.path.wrapping_add(self.records.signed()?);
        let (block_count, exit_count) = (self.records.varint()?, self.records.varint()?);
        self.lists.clear();
        let mut before = self.previous.block;
        for _ in 0..block_count {
            let record = self.records.varint()?;
            let id = before.wrapping_add(unzigzag(record >> 1));
            self.lists.push(u32::try_from(id).ok()? | if record & 1 != 0 { TAKEN } else { 0 });
            before = id.wrapping_add(1);
        }
        let mut before = 0u64;
        for _ in 0..exit_count {
            let record = self.records.varint()?;
            before = before.wrapping_add(unzigzag(record >> TERMINATOR_BITS));
            let way = u32::try_from(record & 7).ok()?;
            self.lists.push(u32::try_from(before).ok().filter(|&count| count <= 0xffff)? | way << 16);
        }
        self.previous.after_fragment(image, first_path, exit_count);
        let (blocks, exits) = self.lists.split_at_checked(usize::try_from(block_count).ok()?)?;
        let fragment = Fragment { first_path: u32::try_from(first_path).ok()?, blocks, exits };
        Some(Definition::Fragment { image: u32::try_from(image).ok()?, fragment })
    }
}

/// A record of a facts chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Thread(ThreadInfo),
    Module { image: u32, module: Module },
    Unmapped { image: u32, address: u64, length: u64, tsc: u64 },
    Process(ProcessInfo),
}

const THREAD: u8 = 1;
const MODULE: u8 = 2;
const UNMAPPED: u8 = 3;
const PROCESS: u8 = 4;

impl Fact {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Thread(info) => {
                out.push(THREAD);
                put_varint(out, u64::from(info.thread));
                put_varint(out, u64::from(info.os_tid));
                put_varint(out, info.parent.map_or(0, |parent| u64::from(parent) + 1));
                put_varint(out, u64::from(info.image));
            }
            Self::Module { image, module } => {
                out.push(MODULE);
                put_varint(out, u64::from(*image));
                for field in [module.address, module.length, module.file_offset, module.tsc] {
                    put_varint(out, field);
                }
                put_string(out, &module.path);
            }
            Self::Unmapped { image, address, length, tsc } => {
                out.push(UNMAPPED);
                put_varint(out, u64::from(*image));
                for field in [*address, *length, *tsc] {
                    put_varint(out, field);
                }
            }
            Self::Process(process) => {
                out.push(PROCESS);
                put_varint(out, u64::from(process.pid));
                put_varint(out, process.parent.map_or(0, |parent| u64::from(parent) + 1));
                put_varint(out, process.tsc);
                put_varint(out, process.command.len() as u64);
                process.command.iter().for_each(|word| put_string(out, word));
            }
        }
    }

    fn read(fields: &mut ByteReader<'_>) -> Option<Self> {
        Some(match fields.u8()? {
            THREAD => Self::Thread(ThreadInfo {
                thread: fields.varint_u32()?,
                os_tid: fields.varint_u32()?,
                parent: match fields.varint()? {
                    0 => None,
                    parent => Some(u32::try_from(parent - 1).ok()?),
                },
                image: fields.varint_u32()?,
            }),
            MODULE => Self::Module {
                image: fields.varint_u32()?,
                module: Module {
                    address: fields.varint()?,
                    length: fields.varint()?,
                    file_offset: fields.varint()?,
                    tsc: fields.varint()?,
                    path: fields.string()?,
                },
            },
            UNMAPPED => Self::Unmapped {
                image: fields.varint_u32()?,
                address: fields.varint()?,
                length: fields.varint()?,
                tsc: fields.varint()?,
            },
            PROCESS => Self::Process(read_process(fields)?),
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
        tsc: fields.varint()?,
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
            start_tsc: 7,
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
    fn definitions_round_trip() {
        let blocks: [(u32, u32, u64, &[u8]); 3] =
            [(0, 3, 0x1000, &[0xc3]), (1, 1, u64::MAX, &[0x90, 0xc3]), (0, u32::MAX, 0, &[])];
        let fragments = [
            Fragment { first_path: 7, blocks: &[3, 1 | TAKEN, 3], exits: &[1, 3 | 4 << 16, 2 | 3 << 16] },
            Fragment { first_path: 10, blocks: &[], exits: &[0xffff | 7 << 16] },
        ];
        let mut content = CodeContent::default();
        for (image, id, address, code) in blocks {
            content.add_block(image, id, address, code);
        }
        for fragment in &fragments {
            content.add_fragment(2, fragment);
        }
        let simple = AccessDescriptor {
            block: 1,
            offset: 7,
            size: 8,
            flags: 8,
            base: 16,
            displacement: -8,
            ..AccessDescriptor::default()
        };
        let full = AccessDescriptor {
            block: 2,
            offset: 3,
            size: 64,
            kind: 4,
            flags: 0xff,
            base: 1,
            index: 2,
            value: u16::MAX,
            mask: 4,
            count: 5,
            mask_kind: 6,
            index_bytes: 7,
            reserved: [0; 5],
            displacement: i64::MIN,
            constant: u64::MAX,
        };
        let accesses = [simple, AccessDescriptor { offset: 9, ..simple }, full, full];
        let descriptors = AccessDescriptors { first_path: 7, lengths: &[8, 4, 12 << 10], accesses: &accesses };
        content.add_descriptors(&descriptors);
        let bytes = content.take();
        let mut seen = 0;
        read_code(&bytes, |definition| {
            match definition {
                Definition::Block { image, id, address, code } => assert_eq!((image, id, address, code), blocks[seen]),
                Definition::Fragment { image, fragment } => assert_eq!((image, fragment), (2, fragments[seen - 3])),
                Definition::AccessDescriptors(read) => assert_eq!(read, descriptors),
            }
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, 6);
        assert!(read_code(&bytes[..6], |_| ()).is_err());
    }

    #[test]
    fn facts_round_trip() {
        let module = Module { address: 1, length: 2, file_offset: 3, path: "/lib/x".into(), tsc: 9 };
        let facts = [
            Fact::Thread(ThreadInfo { thread: 1, os_tid: 2, parent: None, image: 0 }),
            Fact::Thread(ThreadInfo { thread: 2, os_tid: 3, parent: Some(0), image: 1 }),
            Fact::Module { image: 1, module },
            Fact::Unmapped { image: 1, address: u64::MAX, length: 2, tsc: 3 },
            Fact::Process(ProcessInfo { pid: 7, parent: None, tsc: 5, command: vec![] }),
            Fact::Process(ProcessInfo { pid: 8, parent: Some(7), tsc: 6, command: vec!["a".into(), String::new()] }),
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
