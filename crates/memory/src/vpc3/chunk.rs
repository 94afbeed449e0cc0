//! Records to chunks, and back. A chunk is its number of records and its four streams, packed by
//! the second stage.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use super::Vpc3Record;
use super::bank::{ADDRESS_PREDICTIONS, AddressBank, Choices, NO_ADDRESS, NO_PC, PC_PREDICTIONS, PcBank};
use crate::FormatError;
use crate::second_stage::{SecondStage, unpack};
use codec::bytes::{ByteReader, put_varint};

/// The most records in a chunk.
pub const CHUNK_RECORDS: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
struct Streams {
    pc_codes: Vec<u8>,
    pcs: Vec<u8>,
    address_codes: Vec<u8>,
    addresses: Vec<u8>,
}

impl Streams {
    fn clear(&mut self) {
        for stream in [&mut self.pc_codes, &mut self.pcs, &mut self.address_codes, &mut self.addresses] {
            stream.clear();
        }
    }
}

/// Makes chunks of records.
#[derive(Clone, Debug)]
pub struct Vpc3Compressor {
    stage: SecondStage,
    pc_bank: PcBank,
    pc_choices: Choices<PC_PREDICTIONS>,
    address_bank: AddressBank,
    address_choices: Choices<ADDRESS_PREDICTIONS>,
    streams: Streams,
}

impl Vpc3Compressor {
    /// Takes about 27 MB for the predictors.
    #[must_use]
    pub fn new(stage: SecondStage) -> Self {
        Self {
            stage,
            pc_bank: PcBank::new(),
            pc_choices: Choices::new(),
            address_bank: AddressBank::new(),
            address_choices: Choices::new(),
            streams: Streams::default(),
        }
    }

    /// Adds a record. Returns a chunk if it is full.
    #[inline]
    pub fn push(&mut self, record: Vpc3Record) -> Option<Vec<u8>> {
        self.push_pc(record.pc);
        self.push_address(record);
        (self.streams.pc_codes.len() == CHUNK_RECORDS).then(|| self.take_chunk())
    }

    /// Returns a chunk of the rest, if there is any.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        (!self.streams.pc_codes.is_empty()).then(|| self.take_chunk())
    }

    #[inline]
    fn push_pc(&mut self, pc: u32) {
        let code = self.pc_choices.choose(&self.pc_bank.predict(), &pc);
        self.streams.pc_codes.push(code.unwrap_or(NO_PC));
        if code.is_none() {
            self.streams.pcs.extend_from_slice(&pc.to_le_bytes());
        }
        self.pc_bank.update(pc);
    }

    #[inline]
    fn push_address(&mut self, Vpc3Record { pc, address }: Vpc3Record) {
        let code = self.address_choices.choose(&self.address_bank.predict(pc), &address);
        self.streams.address_codes.push(code.unwrap_or(NO_ADDRESS));
        if code.is_none() {
            self.streams.addresses.extend_from_slice(&address.to_le_bytes());
        }
        self.address_bank.update(pc, address);
    }

    fn take_chunk(&mut self) -> Vec<u8> {
        let mut chunk = Vec::new();
        let Streams { pc_codes, pcs, address_codes, addresses } = &self.streams;
        put_varint(&mut chunk, pc_codes.len() as u64);
        [pc_codes, pcs, address_codes, addresses].into_iter().for_each(|stream| self.stage.pack(stream, &mut chunk));
        self.streams.clear();
        chunk
    }
}

/// Reads chunks, which are not trusted.
#[derive(Clone, Debug)]
pub struct Vpc3Decompressor {
    pc_bank: PcBank,
    address_bank: AddressBank,
}

impl Default for Vpc3Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Vpc3Decompressor {
    /// Takes about 27 MB for the predictors.
    #[must_use]
    pub fn new() -> Self {
        Self { pc_bank: PcBank::new(), address_bank: AddressBank::new() }
    }

    /// Passes on the records of the next chunk. No later chunk can be read after an error.
    pub fn read(&mut self, chunk: &[u8], mut sink: impl FnMut(Vpc3Record)) -> Result<(), FormatError> {
        let streams = read_streams(chunk)?;
        let mut reader = StreamReader {
            pc_codes: ByteReader::new(&streams.pc_codes),
            pcs: ByteReader::new(&streams.pcs),
            address_codes: ByteReader::new(&streams.address_codes),
            addresses: ByteReader::new(&streams.addresses),
        };
        while !reader.pc_codes.is_empty() {
            sink(self.read_record(&mut reader).ok_or(MALFORMED)?);
        }
        if reader.is_empty() { Ok(()) } else { Err(MALFORMED) }
    }

    fn read_record(&mut self, reader: &mut StreamReader<'_>) -> Option<Vpc3Record> {
        let pc = match reader.pc_codes.u8()? {
            NO_PC => reader.pcs.u32()?,
            code => *self.pc_bank.predict().get(usize::from(code))?,
        };
        self.pc_bank.update(pc);
        let address = match reader.address_codes.u8()? {
            NO_ADDRESS => reader.addresses.u64()?,
            code => *self.address_bank.predict(pc).get(usize::from(code))?,
        };
        self.address_bank.update(pc, address);
        Some(Vpc3Record { pc, address })
    }
}

const MALFORMED: FormatError = FormatError("chunk of VPC3 records");

fn read_streams(mut chunk: &[u8]) -> Result<Streams, FormatError> {
    let mut header = ByteReader::new(chunk);
    let count = header.varint().and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|&count| count <= CHUNK_RECORDS).ok_or(MALFORMED)?;
    chunk = header.rest();
    let streams = Streams {
        pc_codes: unpack(&mut chunk, count)?,
        pcs: unpack(&mut chunk, count * size_of::<u32>())?,
        address_codes: unpack(&mut chunk, count)?,
        addresses: unpack(&mut chunk, count * size_of::<u64>())?,
    };
    if chunk.is_empty() && streams.pc_codes.len() == count { Ok(streams) } else { Err(MALFORMED) }
}

struct StreamReader<'s> {
    pc_codes: ByteReader<'s>,
    pcs: ByteReader<'s>,
    address_codes: ByteReader<'s>,
    addresses: ByteReader<'s>,
}

impl StreamReader<'_> {
    fn is_empty(&self) -> bool {
        [self.pc_codes, self.pcs, self.address_codes, self.addresses].iter().all(ByteReader::is_empty)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compress(stage: SecondStage, records: &[Vpc3Record]) -> Vec<Vec<u8>> {
        let mut compressor = Vpc3Compressor::new(stage);
        let mut chunks: Vec<Vec<u8>> = records.iter().filter_map(|&record| compressor.push(record)).collect();
        chunks.extend(compressor.finish());
        assert_eq!(compressor.finish(), None);
        chunks
    }

    fn decompress(chunks: &[Vec<u8>]) -> Result<Vec<Vpc3Record>, FormatError> {
        let (mut decompressor, mut records) = (Vpc3Decompressor::new(), Vec::new());
        for chunk in chunks {
            decompressor.read(chunk, |record| records.push(record))?;
        }
        Ok(records)
    }

    fn record((pc, address): (u32, u64)) -> Vpc3Record {
        Vpc3Record { pc, address }
    }

    /// A loop of three accesses: a constant address, a stride, and a short cycle.
    fn regular(count: u64) -> Vec<Vpc3Record> {
        let turn = |turn: u64| [(1, 0x1000), (2, 0x8000 + 8 * turn), (0x1_0003, [7, 9, 5][turn as usize % 3])];
        (0..count).flat_map(turn).map(record).collect()
    }

    #[test]
    fn regular_records_are_predicted() {
        let mut compressor = Vpc3Compressor::new(SecondStage::Store);
        regular(1000).into_iter().for_each(|record| assert_eq!(compressor.push(record), None));
        let Streams { pc_codes, pcs, address_codes, addresses } = &compressor.streams;
        assert_eq!((pc_codes.len(), address_codes.len()), (3000, 3000));
        assert!(pcs.len() <= 5 * 4 && addresses.len() <= 10 * 8, "{} {}", pcs.len(), addresses.len());
        // The choice by use makes one code of nearly all.
        assert!(pc_codes[100..].iter().all(|code| *code == pc_codes[100]));
        for stage in [SecondStage::default(), SecondStage::Bzip2] {
            let chunks = compress(stage, &regular(100_000));
            assert!(chunks.len() == 1 && chunks[0].len() < 1000, "{} bytes", chunks[0].len());
        }
    }

    #[test]
    fn chunks_depend_on_those_before() {
        let records = regular(CHUNK_RECORDS as u64 / 2);
        let chunks = compress(SecondStage::default(), &records);
        assert_eq!(chunks.len(), 2);
        assert!(decompress(&chunks).is_ok_and(|read| read == records));
        assert!(!decompress(&chunks[1..]).is_ok_and(|read| read == records[CHUNK_RECORDS..]));
    }

    #[test]
    fn impossible_chunks_are_refused() {
        let chunk = compress(SecondStage::Store, &regular(10)).remove(0);
        let read = |chunk: &[u8]| Vpc3Decompressor::new().read(chunk, |_| {});
        assert_eq!(read(&chunk), Ok(()));
        assert_eq!(read(&[&chunk[..], &[0]].concat()), Err(MALFORMED));
        assert!(read(&[]).is_err() && read(&[0xff; 9]).is_err());
        for count in [0, 29, 31, 100] {
            assert!(read(&[&[count], &chunk[1..]].concat()).is_err(), "{count} records");
        }
        // The first code: of no prediction.
        assert_eq!(chunk[4], NO_PC);
        assert_eq!(read(&[&chunk[..4], &[NO_PC + 1], &chunk[5..]].concat()), Err(MALFORMED));
    }

    fn any_records() -> impl Strategy<Value = Vec<Vpc3Record>> {
        let local = (0u32..4, prop_oneof![any::<u64>(), 0u64..4]).prop_map(record);
        let any = any::<(u32, u64)>().prop_map(record);
        prop::collection::vec(prop_oneof![local, any], 0..300)
    }

    fn any_stage() -> impl Strategy<Value = SecondStage> {
        prop_oneof![Just(SecondStage::Store), (1..20).prop_map(SecondStage::Zstd), Just(SecondStage::Bzip2)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn records_come_back(records in any_records(), stage in any_stage()) {
            prop_assert_eq!(decompress(&compress(stage, &records)), Ok(records));
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes: Vec<u8>) {
            let _ = decompress(&[bytes]);
        }

        #[test]
        fn damaged_chunks_are_refused_or_read(
            stage in any_stage(), at: prop::sample::Index, byte: u8, is_cut: bool,
        ) {
            let mut chunk = compress(stage, &regular(50)).remove(0);
            let at = at.index(chunk.len());
            chunk[at] = byte;
            chunk.truncate(if is_cut { at } else { chunk.len() });
            let records = decompress(&[chunk]);
            prop_assert!(records.is_err() || records.is_ok_and(|records| records.len() <= CHUNK_RECORDS));
        }
    }
}
