//! Reads the symbol tables of an ELF file: its functions by name.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::sync::Arc;

use object::read::elf::VersionTable;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

use crate::elf::Elf;
use crate::functions::{Function, Source};

type Symbol<'data, 'file> = object::read::elf::ElfSymbol64<'data, 'file, Endianness>;

/// Returns the functions that the symbol tables name. Those without a length end where they start.
pub fn functions(elf: &Elf) -> Vec<Function> {
    let mut list = static_functions(elf);
    list.extend(dynamic_functions(elf));
    list
}

/// Returns the functions of the full table, which stripping removes. A symbol of a source file
/// stands before the local symbols of that file.
fn static_functions(elf: &Elf) -> Vec<Function> {
    let mut source: Option<Source> = None;
    let mut list = Vec::new();
    for (number, symbol) in (0..).zip(elf.symbols()) {
        if symbol.kind() == SymbolKind::File {
            let name = symbol.name().ok().filter(|name| !name.is_empty());
            source = name.map(|name| Source { name: Arc::from(name), number });
        } else if let Some(function) = function(&symbol) {
            let source = source.clone().filter(|_| symbol.is_local());
            list.push(Function { source, ..function });
        }
    }
    list
}

/// Returns the functions of the table for the dynamic linker.
fn dynamic_functions(elf: &Elf) -> Vec<Function> {
    let versions = elf.elf_section_table().versions(elf.endian(), elf.data()).ok().flatten().unwrap_or_default();
    let named = |symbol: Symbol| {
        let mut function = function(&symbol)?;
        if let Some(version) = old_version(elf, &versions, &symbol) {
            function.symbol = format!("{}@{version}", function.symbol);
        }
        Some(function)
    };
    elf.dynamic_symbols().filter_map(named).collect()
}

/// Returns the version of a symbol that only programs which were linked long ago refer to. A newer
/// function of the same name exists.
fn old_version(elf: &Elf, versions: &VersionTable<Elf64>, symbol: &Symbol) -> Option<String> {
    let index = versions.version_index(elf.endian(), symbol.index());
    let version = versions.version(index).ok()?.filter(|_| index.is_hidden())?;
    Some(String::from_utf8_lossy(version.name()).into_owned())
}

type Elf64 = object::elf::FileHeader64<Endianness>;

fn function(symbol: &Symbol) -> Option<Function> {
    if symbol.kind() != SymbolKind::Text || !symbol.is_definition() {
        return None;
    }
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    let start = symbol.address();
    let end = start.checked_add(symbol.size())?;
    Some(Function { start, end, symbol: name.to_owned(), source: None, part_of: None })
}
