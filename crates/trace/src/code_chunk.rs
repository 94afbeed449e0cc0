//! The content of code chunks: definitions as bytes and back.
//!
//! [`CodeContent`] encodes definitions for a writer, [`read_code`] decodes them for a reader. A
//! writer does not decode: it takes the definitions themselves from the [`CodeContent`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::bytes::{ByteReader, put_signed, put_varint, unzigzag, zigzag};
use entity::{AppPc, BlockId, FragmentId, PathId};
use wire::code::{AccessDescriptor, FragmentBlock, FragmentExit};

use crate::container::CodeHeader;
use crate::definition::{Definition, Definitions};
use crate::error::Problem;
use crate::model::{AccessDescriptors, Fragment};

/// Definitions on their way into a code chunk: as they came, for the tables of the writer, and
/// encoded, for the file.
#[derive(Debug, Default)]
pub(crate) struct CodeContent {
    definitions: Definitions,
    /// All definitions but the code of blocks.
    records: Vec<u8>,
    previous: PreviousFields,
    header: CodeHeader,
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

    /// Bytes of the content, but for the length of the records.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.definitions.code().len()
    }

    pub(crate) fn header(&self) -> CodeHeader {
        self.header
    }

    /// Iterates the definitions in the order in which they were added.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = Definition<'_>> {
        self.definitions.iter()
    }

    /// Returns the content of the chunk.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() + 10);
        put_varint(&mut out, self.records.len() as u64);
        out.extend_from_slice(&self.records);
        out.extend_from_slice(self.definitions.code());
        out
    }

    pub(crate) fn add(&mut self, definition: &Definition<'_>) {
        match *definition {
            Definition::Block { image, id, address, code } => self.put_block(image, id, address, code.len() as u64),
            Definition::Fragment { image, ref fragment } => self.put_fragment(image, fragment),
            Definition::AccessDescriptors(ref descriptors) => self.put_descriptors(descriptors),
        }
        self.definitions.push(definition);
    }

    fn put_block(&mut self, image: u32, id: BlockId, address: AppPc, length: u64) {
        let (id, address) = (u64::from(id.get()), address.get());
        let out = &mut self.records;
        out.push(BLOCK);
        put_signed(out, u64::from(image).wrapping_sub(self.previous.image));
        put_signed(out, id.wrapping_sub(self.previous.block));
        put_signed(out, address.wrapping_sub(self.previous.address));
        put_varint(out, length);
        self.previous.after_block(u64::from(image), id, address, length);
        self.header.blocks += 1;
        self.header.code_bytes += length;
    }

    fn put_fragment(&mut self, image: u32, fragment: &Fragment<'_>) {
        let first_path = u64::from(fragment.fragment.first_path().get());
        let out = &mut self.records;
        out.push(FRAGMENT);
        put_signed(out, u64::from(image).wrapping_sub(self.previous.image));
        put_signed(out, first_path.wrapping_sub(self.previous.path));
        put_varint(out, fragment.blocks.len() as u64);
        put_varint(out, fragment.exits.len() as u64);
        let mut before = self.previous.block;
        for &block in fragment.blocks {
            let id = u64::from(block.block().get());
            put_varint(out, zigzag(id.wrapping_sub(before)) << 1 | u64::from(block.is_taken()));
            before = id.wrapping_add(1);
        }
        let mut before = 0;
        for &exit in fragment.exits {
            let (count, terminator) = (u64::from(exit.block_count()), u64::from(exit.terminator()));
            put_varint(out, zigzag(count.wrapping_sub(before)) << TERMINATOR_BITS | terminator & 7);
            before = count;
        }
        self.previous.after_fragment(u64::from(image), first_path, fragment.exits.len() as u64);
        self.header.fragments += 1;
    }

    fn put_descriptors(&mut self, descriptors: &AccessDescriptors<'_>) {
        let first_path = u64::from(descriptors.fragment.first_path().get());
        let out = &mut self.records;
        out.push(ACCESS_DESCRIPTORS);
        put_signed(out, first_path.wrapping_sub(self.previous.path));
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

/// Calls `each` for every definition in the content of a code chunk.
pub(crate) fn read_code(content: &[u8], mut each: impl FnMut(Definition<'_>)) -> Result<(), Problem> {
    let mut code = ByteReader::new(content);
    let records = code.varint().and_then(|length| code.take(usize::try_from(length).ok()?));
    let mut reader = CodeReader {
        records: ByteReader::new(records.ok_or(Problem::Record { at: 0 })?),
        code,
        previous: PreviousFields::default(),
        blocks: Vec::new(),
        exits: Vec::new(),
        lengths: Vec::new(),
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
    /// Of the fragment that was read last.
    blocks: Vec<FragmentBlock>,
    exits: Vec<FragmentExit>,
    /// Of the access descriptors that were read last.
    lengths: Vec<u32>,
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
        self.lengths.clear();
        let mut before = 0u64;
        for _ in 0..length_count {
            before = before.wrapping_add(self.records.signed()?);
            self.lengths.push(u32::try_from(before).ok()?);
        }
        self.accesses.clear();
        let mut before = AccessDescriptor::default();
        for _ in 0..access_count {
            before = take_access(&mut self.records, &before)?;
            self.accesses.push(before);
        }
        Some(Definition::AccessDescriptors(AccessDescriptors {
            fragment: fragment_id(first_path)?,
            lengths: &self.lengths,
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
        let (id, address) = (BlockId::new(u32::try_from(id).ok()?), AppPc::new(address));
        Some(Definition::Block { image: u32::try_from(image).ok()?, id, address, code })
    }

    fn fragment(&mut self) -> Option<Definition<'_>> {
        let image = self.previous.image.wrapping_add(self.records.signed()?);
        let first_path = self.previous.path.wrapping_add(self.records.signed()?);
        let (block_count, exit_count) = (self.records.varint()?, self.records.varint()?);
        self.blocks.clear();
        let mut before = self.previous.block;
        for _ in 0..block_count {
            let record = self.records.varint()?;
            let id = before.wrapping_add(unzigzag(record >> 1));
            self.blocks.push(FragmentBlock::new(BlockId::new(u32::try_from(id).ok()?), record & 1 != 0));
            before = id.wrapping_add(1);
        }
        self.exits.clear();
        let mut before = 0u64;
        for _ in 0..exit_count {
            let record = self.records.varint()?;
            before = before.wrapping_add(unzigzag(record >> TERMINATOR_BITS));
            let terminator = u32::try_from(record & 7).ok()?;
            self.exits.push(FragmentExit::new(u16::try_from(before).ok()?, terminator));
        }
        self.previous.after_fragment(image, first_path, exit_count);
        let fragment = Fragment { fragment: fragment_id(first_path)?, blocks: &self.blocks, exits: &self.exits };
        Some(Definition::Fragment { image: u32::try_from(image).ok()?, fragment })
    }
}

fn fragment_id(first_path: u64) -> Option<FragmentId> {
    Some(FragmentId::new(PathId::new(u32::try_from(first_path).ok()?)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn block(image: u32, id: u32, address: u64, code: &[u8]) -> Definition<'_> {
        Definition::Block { image, id: BlockId::new(id), address: AppPc::new(address), code }
    }

    fn jump(block: u32, is_taken: bool) -> FragmentBlock {
        FragmentBlock::new(BlockId::new(block), is_taken)
    }

    fn fragment_id(first_path: u32) -> FragmentId {
        super::fragment_id(first_path.into()).unwrap()
    }

    #[test]
    fn definitions_round_trip() {
        let blocks = [block(0, 3, 0x1000, &[0xc3]), block(1, 1, u64::MAX, &[0x90, 0xc3]), block(0, u32::MAX, 0, &[])];
        let fragments = [
            Fragment {
                fragment: fragment_id(7),
                blocks: &[jump(3, false), jump(1, true), jump(3, false)],
                exits: &[FragmentExit::new(1, 0), FragmentExit::new(3, 4), FragmentExit::new(2, 3)],
            },
            Fragment { fragment: fragment_id(10), blocks: &[], exits: &[FragmentExit::new(0xffff, 7)] },
        ];
        let fragments = fragments.map(|fragment| Definition::Fragment { image: 2, fragment });
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
        let descriptors =
            AccessDescriptors { fragment: fragment_id(7), lengths: &[8, 4, 12 << 10], accesses: &accesses };
        let mut content = CodeContent::default();
        let descriptors = [Definition::AccessDescriptors(descriptors)];
        let all = blocks.iter().chain(&fragments).chain(&descriptors).copied();
        all.clone().for_each(|definition| content.add(&definition));
        let bytes = content.encoded();
        assert!(content.definitions().eq(all.clone()));
        let mut expected = all;
        read_code(&bytes, |definition| assert_eq!(expected.next(), Some(definition))).unwrap();
        assert_eq!(expected.next(), None);
        assert_eq!(content.header(), CodeHeader { blocks: 3, fragments: 2, code_bytes: 3 });
        assert!(read_code(&bytes[..6], |_| ()).is_err());
    }

    /// Files of all versions hold these bytes.
    #[test]
    fn encoding_of_definitions_is_fixed() {
        let mut content = CodeContent::default();
        content.add(&block(0, 1, 0x1000, &[0x90, 0x74, 0x10]));
        content.add(&block(0, 2, 0x1003, &[0xc3]));
        let blocks = [jump(1, false), jump(2, true)];
        let exits = [FragmentExit::new(1, 1), FragmentExit::new(2, 3)];
        let fragment = Fragment { fragment: fragment_id(1), blocks: &blocks, exits: &exits };
        content.add(&Definition::Fragment { image: 0, fragment });
        let access = AccessDescriptor { block: 1, size: 8, flags: 8, base: 4, ..AccessDescriptor::default() };
        let descriptors = AccessDescriptors { fragment: fragment_id(1), lengths: &[0, 12], accesses: &[access] };
        content.add(&Definition::AccessDescriptors(descriptors));
        #[rustfmt::skip]
        let expected = [
            34,
            BLOCK, 0, 2, 0x80, 0x40, 3,
            BLOCK, 0, 0, 0, 1,
            FRAGMENT, 0, 2, 2, 2, 6, 1, 17, 19,
            ACCESS_DESCRIPTORS, 3, 2, 1, 0, 24, 1, 0, 8, 1, 0, 8, 0, 4,
            0x90, 0x74, 0x10, 0xc3,
        ];
        assert_eq!(content.encoded(), expected);
    }
}
