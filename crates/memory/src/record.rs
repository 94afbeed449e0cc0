//! Accesses as plain records, in chunks: the codecs that METRIC's is compared with.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::lanes::{DataLayout, DataLayouts};
use codec::streams::Compressor;
use codec::{bytes::ByteReader, bytes::put_varint, fast, lanes};
use entity::PathId;

use crate::origin::MemoryCodec;
use crate::point::PointId;
use crate::second_stage::SecondStage;
use crate::{FormatError, vpc3};

/// Records in a chunk at most.
const RECORDS_MAX: usize = 1 << 20;

/// An access: METRIC's ⟨point_id, EA⟩.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    pub point: PointId,
    pub address: u64,
}

/// Every access point is a path with one address behind it. Path 0 does not exist.
#[derive(Clone, Copy, Debug)]
struct Layout(u32);

impl DataLayout for Layout {
    const EMPTY: Self = Self(0);

    fn fragment(&self) -> u32 {
        self.0
    }

    fn bytes(&self) -> u16 {
        8
    }

    fn longest(&self) -> u16 {
        8
    }
}

struct Layouts;

impl DataLayouts for Layouts {
    type Layout = Layout;

    fn layout(&self, path: PathId) -> Option<Layout> {
        Some(Layout(path.get()))
    }
}

/// Makes chunks of records.
pub(crate) struct RecordWriter {
    form: Form,
    words: Vec<u32>,
    addresses: Vec<u8>,
}

enum Form {
    Vpc3(Box<vpc3::Vpc3Compressor>),
    Native(Box<NativeCoder>),
    Raw,
}

/// The codecs of path chunks and of the data behind them.
#[derive(Default)]
struct NativeCoder {
    words: fast::FastTables,
    lanes: lanes::Encoder<Layout>,
    compressor: Compressor,
}

impl RecordWriter {
    /// `codec` is not [`MemoryCodec::Prsd`].
    pub(crate) fn new(codec: MemoryCodec, stage: SecondStage) -> Self {
        let form = match codec {
            MemoryCodec::Vpc3 => Form::Vpc3(Box::new(vpc3::Vpc3Compressor::new(stage))),
            MemoryCodec::Native => Form::Native(Box::default()),
            MemoryCodec::Prsd | MemoryCodec::Raw => Form::Raw,
        };
        Self { form, words: Vec::new(), addresses: Vec::new() }
    }

    /// Adds a record. Returns a chunk if it is full.
    #[inline]
    pub(crate) fn push(&mut self, AccessRecord { point: PointId(point), address }: AccessRecord) -> Option<Vec<u8>> {
        if let Form::Vpc3(compressor) = &mut self.form {
            return compressor.push(vpc3::Vpc3Record { pc: point, address });
        }
        self.words.push(point + 1);
        self.addresses.extend_from_slice(&address.to_le_bytes());
        (self.words.len() == RECORDS_MAX).then(|| self.take_chunk())
    }

    /// Returns a chunk of the rest, if there is any.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        match &mut self.form {
            Form::Vpc3(compressor) => compressor.finish(),
            _ => (!self.words.is_empty()).then(|| self.take_chunk()),
        }
    }

    fn take_chunk(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.words.len() as u64);
        match &mut self.form {
            Form::Native(coder) => coder.encode(&self.words, &self.addresses, &mut out),
            _ => {
                self.words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                out.extend_from_slice(&self.addresses);
            }
        }
        self.words.clear();
        self.addresses.clear();
        out
    }
}

impl NativeCoder {
    /// Appends the payload of the words, with its length (0: stored as they are), and that of the
    /// addresses.
    fn encode(&mut self, words: &[u32], addresses: &[u8], out: &mut Vec<u8>) {
        let payload = fast::encode(&mut self.words, words).filter(|payload| !payload.is_empty());
        put_varint(out, payload.as_ref().map_or(0, |payload| payload.len() as u64));
        match payload {
            Some(payload) => out.extend_from_slice(&payload),
            None => words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes())),
        }
        self.lanes.clear();
        self.lanes.append(&Layouts, words, addresses, |_, _| {}, |_, _| {});
        let (first, rest) = self.lanes.finish(&mut self.compressor, false);
        out.extend_from_slice(&first);
        out.extend_from_slice(rest);
    }
}

/// Reads chunks of records, which are not trusted.
pub(crate) struct RecordReader(Decoders);

enum Decoders {
    Vpc3(Box<vpc3::Vpc3Decompressor>),
    Native(Box<(fast::FastTables, lanes::Decoder<Layout>)>),
    Raw,
}

const MALFORMED: FormatError = FormatError("chunk of records");

impl RecordReader {
    /// `codec` is not [`MemoryCodec::Prsd`].
    pub(crate) fn new(codec: MemoryCodec) -> Self {
        Self(match codec {
            MemoryCodec::Vpc3 => Decoders::Vpc3(Box::default()),
            MemoryCodec::Native => Decoders::Native(Box::default()),
            MemoryCodec::Prsd | MemoryCodec::Raw => Decoders::Raw,
        })
    }

    /// Appends the records of the next chunk, which are of `point_count` access points, to
    /// `records`. No later chunk can be read after an error.
    pub(crate) fn read(
        &mut self,
        chunk: &[u8],
        point_count: usize,
        records: &mut Vec<AccessRecord>,
    ) -> Result<(), FormatError> {
        let before = records.len();
        self.append(chunk, point_count, records)?;
        let is_known = |record: &AccessRecord| (record.point.0 as usize) < point_count;
        if records.iter().skip(before).all(is_known) { Ok(()) } else { Err(MALFORMED) }
    }

    fn append(&mut self, chunk: &[u8], point_count: usize, records: &mut Vec<AccessRecord>) -> Result<(), FormatError> {
        if let Decoders::Vpc3(decompressor) = &mut self.0 {
            let push = |record: vpc3::Vpc3Record| {
                records.push(AccessRecord { point: PointId(record.pc), address: record.address });
            };
            return decompressor.read(chunk, push);
        }
        let mut fields = ByteReader::new(chunk);
        let count = fields.varint().and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|&count| count <= RECORDS_MAX).ok_or(MALFORMED)?;
        let (words, addresses) = match &mut self.0 {
            Decoders::Native(decoders) => read_native(decoders, &mut fields, count, point_count)?,
            _ => (read_words(&mut fields, count).ok_or(MALFORMED)?, fields.rest().to_vec()),
        };
        let (addresses, []) = addresses.as_chunks() else { return Err(MALFORMED) };
        if addresses.len() != count {
            return Err(MALFORMED);
        }
        for (word, address) in words.into_iter().zip(addresses) {
            let point = word.checked_sub(1).map(PointId).ok_or(MALFORMED)?;
            records.push(AccessRecord { point, address: u64::from_le_bytes(*address) });
        }
        Ok(())
    }
}

fn read_words(fields: &mut ByteReader<'_>, count: usize) -> Option<Vec<u32>> {
    let (words, _) = fields.take(count.checked_mul(size_of::<u32>())?)?.as_chunks();
    Some(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

fn read_native(
    (tables, lanes): &mut (fast::FastTables, lanes::Decoder<Layout>),
    fields: &mut ByteReader<'_>,
    count: usize,
    point_count: usize,
) -> Result<(Vec<u32>, Vec<u8>), FormatError> {
    let length = fields.varint().and_then(|length| usize::try_from(length).ok()).ok_or(MALFORMED)?;
    let (mut words, mut addresses) = (Vec::new(), Vec::new());
    if length == 0 {
        words = read_words(fields, count).ok_or(MALFORMED)?;
    } else {
        let payload = fields.take(length).ok_or(MALFORMED)?;
        fast::decode(tables, payload, count, &mut words).map_err(|_| MALFORMED)?;
    }
    // The decoder of lanes takes memory for the highest number. Words with the top bit set would be
    // events, which have no place here.
    let is_point = |&word: &u32| word != 0 && word as usize <= point_count && word <= wire::word::PATH_MAX;
    if !words.iter().all(is_point) {
        return Err(MALFORMED);
    }
    lanes.decode(&Layouts, &words, fields.rest(), 8 * count, &mut addresses).map_err(|_| MALFORMED)?;
    Ok((words, addresses))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODECS: [MemoryCodec; 3] = [MemoryCodec::Vpc3, MemoryCodec::Native, MemoryCodec::Raw];

    fn chunks(codec: MemoryCodec, records: &[AccessRecord]) -> Vec<Vec<u8>> {
        let mut writer = RecordWriter::new(codec, SecondStage::default());
        let mut chunks: Vec<Vec<u8>> = records.iter().filter_map(|&record| writer.push(record)).collect();
        chunks.extend(writer.finish());
        assert!(writer.finish().is_none());
        chunks
    }

    fn check(codec: MemoryCodec, records: &[AccessRecord]) {
        let (mut reader, mut read) = (RecordReader::new(codec), Vec::new());
        for chunk in chunks(codec, records) {
            reader.read(&chunk, 50, &mut read).unwrap();
        }
        assert!(read == records, "{codec}");
    }

    fn any_record() -> impl Strategy<Value = AccessRecord> {
        let address = prop_oneof![any::<u64>(), 0x1000u64..0x1100];
        (0u32..50, address).prop_map(|(point, address)| AccessRecord { point: PointId(point), address })
    }

    #[test]
    fn more_than_a_chunk_comes_back() {
        let records: Vec<AccessRecord> =
            (0..2_500_000u32).map(|at| AccessRecord { point: PointId(at % 7), address: u64::from(at) * 8 }).collect();
        CODECS.into_iter().for_each(|codec| check(codec, &records));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn records_come_back(records in prop::collection::vec(any_record(), 0..3000)) {
            CODECS.into_iter().for_each(|codec| check(codec, &records));
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes: Vec<u8>, count in 0u8..20) {
            for codec in CODECS {
                let chunk = [&[count][..], &bytes].concat();
                let _ = RecordReader::new(codec).read(&chunk, 50, &mut Vec::new());
            }
        }

        #[test]
        fn damaged_chunks_are_refused_or_read(
            records in prop::collection::vec(any_record(), 1..200), at: prop::sample::Index, byte: u8,
        ) {
            for codec in CODECS {
                let mut chunk = chunks(codec, &records).remove(0);
                let at = at.index(chunk.len());
                chunk[at] = byte;
                let _ = RecordReader::new(codec).read(&chunk, 50, &mut Vec::new());
            }
        }
    }
}
