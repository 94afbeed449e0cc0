//! A port: counts the bits that go out, field by field, and keeps them if somebody wants them.

use crate::bits::BitWriter;

/// What bits stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// The thread.
    Ti,
    /// Instructions since the last message.
    Sl,
    /// Branches since the last message.
    BCnt,
    /// Instructions before an exception.
    ICnt,
    /// Of a difference between targets.
    Sign,
    DiffTA,
    /// The target of an exception.
    Eta,
    /// Loads since the last message.
    FahCnt,
    /// The value of a load.
    Lv,
    /// What a packet is.
    Header,
    /// Outcomes of branches, one after the other.
    Map,
}

impl Field {
    pub const ALL: [Self; 11] = [
        Self::Ti,
        Self::Sl,
        Self::BCnt,
        Self::ICnt,
        Self::Sign,
        Self::DiffTA,
        Self::Eta,
        Self::FahCnt,
        Self::Lv,
        Self::Header,
        Self::Map,
    ];

    /// As Tewar 2015 calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ti => "Ti",
            Self::Sl => "SL",
            Self::BCnt => "bCnt",
            Self::ICnt => "iCnt",
            Self::Sign => "sign",
            Self::DiffTA => "diffTA",
            Self::Eta => "ETA",
            Self::FahCnt => "fahCnt",
            Self::Lv => "LV",
            Self::Header => "header",
            Self::Map => "map",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Port {
    fields: [u64; Field::ALL.len()],
    /// The bits themselves.
    stream: Option<BitWriter>,
    /// Messages or packets.
    pub messages: u64,
}

impl Port {
    /// One that keeps the bits.
    #[must_use]
    pub fn writing() -> Self {
        Self { stream: Some(BitWriter::default()), ..Self::default() }
    }

    /// The lowest `count` bits of `value` go out.
    #[inline]
    pub fn put(&mut self, field: Field, value: u64, count: u32) {
        self.fields[field as usize] += u64::from(count);
        if let Some(stream) = &mut self.stream {
            stream.put(value, count);
        }
    }

    /// Bytes go out as they are in memory.
    pub fn put_bytes(&mut self, field: Field, bytes: &[u8]) {
        self.fields[field as usize] += 8 * bytes.len() as u64;
        if let Some(stream) = &mut self.stream {
            bytes.iter().for_each(|&byte| stream.put(byte.into(), 8));
        }
    }

    /// All that went out.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.fields.iter().sum()
    }

    /// What went out as this field.
    #[must_use]
    pub fn of(&self, field: Field) -> u64 {
        self.fields[field as usize]
    }

    /// Bytes that are complete, if they are kept; each is given once.
    pub fn take(&mut self) -> Vec<u8> {
        self.stream.as_mut().map_or(Vec::new(), BitWriter::take)
    }

    /// The same at the end, when the last byte is filled with zeros.
    pub fn finish(&mut self) -> Vec<u8> {
        if let Some(stream) = &mut self.stream {
            stream.pad();
        }
        self.take()
    }
}
