//! Where the accesses of a file come from: the program, its modules and scopes, and the codec.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::fmt;

use codec::bytes::{ByteReader, put_string, put_varint};
use entity::AppPc;

/// How the accesses of a file are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryCodec {
    /// The order by SEQUITUR, the addresses as regular sections (METRIC, section 3).
    #[default]
    Prsd,
    /// VPC3, the baseline of METRIC's Table I.
    Vpc3,
    /// The codecs of `.trk` files.
    Native,
    /// Records of fixed size.
    Raw,
}

impl MemoryCodec {
    pub const ALL: [Self; 4] = [Self::Prsd, Self::Vpc3, Self::Native, Self::Raw];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prsd => "prsd",
            Self::Vpc3 => "vpc3",
            Self::Native => "native",
            Self::Raw => "raw",
        }
    }
}

impl fmt::Display for MemoryCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file that was mapped executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeModule {
    pub image: u32,
    pub address: u64,
    pub length: u64,
    pub file_offset: u64,
    pub path: String,
}

/// A function whose entries and exits are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionScope {
    pub name: String,
    pub image: u32,
    pub entry: AppPc,
}

/// A loop whose iterations are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopScope {
    /// Its position in [`Origin::functions`].
    pub function: u32,
    /// The position of the loop around it in [`Origin::loops`].
    pub parent: Option<u32>,
    /// The address at which it is entered, the lowest if there are several.
    pub entry: AppPc,
    /// Whether control can enter at several addresses.
    pub is_irreducible: bool,
}

/// Where the accesses of a file come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub codec: MemoryCodec,
    /// The command line of the program.
    pub command: Vec<String>,
    /// The options that restricted what was recorded.
    pub options: Vec<String>,
    pub modules: Vec<CodeModule>,
    pub functions: Vec<FunctionScope>,
    pub loops: Vec<LoopScope>,
}

impl Origin {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(&mut out, self.codec.name());
        for words in [&self.command, &self.options] {
            put_varint(&mut out, words.len() as u64);
            words.iter().for_each(|word| put_string(&mut out, word));
        }
        put_varint(&mut out, self.modules.len() as u64);
        for module in &self.modules {
            put_varint(&mut out, u64::from(module.image));
            for field in [module.address, module.length, module.file_offset] {
                put_varint(&mut out, field);
            }
            put_string(&mut out, &module.path);
        }
        put_varint(&mut out, self.functions.len() as u64);
        for function in &self.functions {
            put_string(&mut out, &function.name);
            put_varint(&mut out, u64::from(function.image));
            put_varint(&mut out, function.entry.get());
        }
        put_varint(&mut out, self.loops.len() as u64);
        for found in &self.loops {
            put_varint(&mut out, u64::from(found.function));
            put_varint(&mut out, found.parent.map_or(0, |parent| u64::from(parent) + 1));
            put_varint(&mut out, found.entry.get());
            out.push(u8::from(found.is_irreducible));
        }
        out
    }

    pub(crate) fn read(content: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(content);
        let name = fields.string()?;
        let origin = Self {
            codec: MemoryCodec::ALL.into_iter().find(|codec| codec.name() == name)?,
            command: read_list(&mut fields, ByteReader::string)?,
            options: read_list(&mut fields, ByteReader::string)?,
            modules: read_list(&mut fields, read_module)?,
            functions: read_list(&mut fields, read_function)?,
            loops: read_list(&mut fields, read_loop)?,
        };
        fields.is_empty().then_some(origin)
    }
}

/// Reads a length and as many elements.
fn read_list<'b, T>(
    fields: &mut ByteReader<'b>,
    mut read: impl FnMut(&mut ByteReader<'b>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut list = Vec::new();
    for _ in 0..fields.varint()? {
        list.push(read(fields)?);
    }
    Some(list)
}

fn read_module(fields: &mut ByteReader<'_>) -> Option<CodeModule> {
    Some(CodeModule {
        image: fields.varint_u32()?,
        address: fields.varint()?,
        length: fields.varint()?,
        file_offset: fields.varint()?,
        path: fields.string()?,
    })
}

fn read_function(fields: &mut ByteReader<'_>) -> Option<FunctionScope> {
    Some(FunctionScope { name: fields.string()?, image: fields.varint_u32()?, entry: AppPc::new(fields.varint()?) })
}

fn read_loop(fields: &mut ByteReader<'_>) -> Option<LoopScope> {
    Some(LoopScope {
        function: fields.varint_u32()?,
        parent: match fields.varint_u32()? {
            0 => None,
            parent => Some(parent - 1),
        },
        entry: AppPc::new(fields.varint()?),
        is_irreducible: fields.u8()? != 0,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_comes_back() {
        let module = CodeModule { image: 1, address: 2, length: u64::MAX, file_offset: 4, path: "/bin/a".into() };
        let function = FunctionScope { name: "f".into(), image: 0, entry: AppPc::new(0x1000) };
        let found = LoopScope { function: 0, parent: None, entry: AppPc::new(0x1010), is_irreducible: true };
        let origin = Origin {
            codec: MemoryCodec::Vpc3,
            command: vec!["a".into(), "b c".into()],
            options: vec!["--callees".into()],
            modules: vec![module],
            functions: vec![function],
            loops: vec![found.clone(), LoopScope { parent: Some(0), ..found }],
        };
        let bytes = origin.write();
        assert_eq!(Origin::read(&bytes), Some(origin));
        for length in 0..bytes.len() {
            assert_eq!(Origin::read(&bytes[..length]), None);
        }
        assert_eq!(Origin::read(b"\x01x"), None);
    }
}
