//! A port counts the bits that go out, by field, and optionally keeps them. All encoders write to a
//! [`Port`].

use crate::bits::BitWriter;

/// Field of a message or packet. Variants follow the names of Tewar 2015.
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
    /// Sign of a difference between targets.
    Sign,
    DiffTA,
    /// The target of an exception.
    Eta,
    /// Loads since the last message.
    FahCnt,
    /// The value of a load.
    Lv,
    /// Type of a packet.
    Header,
    /// Outcomes of consecutive branches.
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

    /// Returns the name that Tewar 2015 uses.
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
    /// The bits, if they are kept.
    stream: Option<BitWriter>,
    /// Number of messages or packets.
    pub messages: u64,
}

impl Port {
    /// Returns a port that keeps the bits.
    #[must_use]
    pub fn writing() -> Self {
        Self { stream: Some(BitWriter::default()), ..Self::default() }
    }

    /// Writes the lowest `count` bits of `value`.
    #[inline]
    pub fn put(&mut self, field: Field, value: u64, count: u32) {
        self.fields[field as usize] += u64::from(count);
        if let Some(stream) = &mut self.stream {
            stream.put(value, count);
        }
    }

    /// Writes bytes in memory order.
    pub fn put_bytes(&mut self, field: Field, bytes: &[u8]) {
        self.fields[field as usize] += 8 * bytes.len() as u64;
        if let Some(stream) = &mut self.stream {
            bytes.iter().for_each(|&byte| stream.put(byte.into(), 8));
        }
    }

    /// Returns the number of bits written.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.fields.iter().sum()
    }

    /// Returns the number of bits written for a field.
    #[must_use]
    pub fn of(&self, field: Field) -> u64 {
        self.fields[field as usize]
    }

    /// Takes the complete bytes, if bits are kept.
    pub fn take(&mut self) -> Vec<u8> {
        self.stream.as_mut().map_or(Vec::new(), BitWriter::take)
    }

    /// Pads the last byte with zeros and takes the remaining bytes.
    pub fn finish(&mut self) -> Vec<u8> {
        if let Some(stream) = &mut self.stream {
            stream.pad();
        }
        self.take()
    }
}
