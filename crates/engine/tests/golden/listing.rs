//! One case as text.

use std::collections::BTreeSet;
use std::fmt::Write;

use entity::{AppPc, FragmentId, PathId};
use iced_x86::{Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register, SymbolResolver, SymbolResult};
use trackway_engine::cache_pc::CachePc;
use trackway_engine::emit::{Emitter, IndirectTable};
use trackway_engine::tcb;
use trackway_engine::translate::{
    ExitKind, MapEntry, Order, RegisterState, SourceBlock, Spill, Translation, TranslationOptions, translate,
};

use crate::cases::{Case, Layout};

const APPLICATION_BYTES: u64 = 0x10_0000;
const TABLE: u64 = 0x7100_0000;
const HIGH_TABLE: u64 = 0x5500_7100_0000;
const FIRST_PATH: PathId = PathId::new(0x6200_0000);
/// Numbers of paths and exits that are recognised as such.
const NUMBERS: u32 = 0x1000;
const STUBS_DISTANCE: u64 = 0x10_0000;

pub fn case(case: &Case) -> String {
    let mut text = format!("## {}\n", case.name);
    let options = [
        (case.inline_indirect, "guess"),
        (case.order == Order::EveryTime, "ordered"),
        (case.order == Order::Contention, "ordered by contention"),
        (!case.by_pext, "without BMI2"),
        (case.high_table, "high table"),
        (case.check, "checked"),
        (case.data == wire::DATA_ADDRESSES, "addresses"),
        (case.data == wire::DATA_VALUES, "values"),
    ];
    let options: Vec<_> = options.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    let _ = writeln!(text, "# {:?} {}", case.layout, options.join(", "));
    let names = Names { layout: case.layout, stubs_end: case.layout.cache() + STUBS_DISTANCE };
    for (index, block) in case.blocks.iter().enumerate() {
        let address = case.layout.application() + block.offset;
        let _ = writeln!(text, "block {index}");
        for (instruction, bytes) in instructions(address.get(), &block.code) {
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ =
                writeln!(text, "  {:<12} {:<22} {}", names.text(instruction.ip()), bytes, names.format(&instruction));
        }
    }
    let mut room = vec![0u8; 4096];
    let mut out = Emitter::new(&mut room, case.layout.cache());
    let options = TranslationOptions {
        table: IndirectTable { address: if case.high_table { HIGH_TABLE } else { TABLE }, by_pext: case.by_pext },
        inline_indirect: case.inline_indirect,
        order: case.order,
        data: case.data,
        has_avx512: false,
        fragment: FragmentId::new(FIRST_PATH),
        stubs_end: names.stubs_end,
    };
    let source: Vec<_> = case.blocks.iter().map(|block| source_block(case.layout, block, case.check)).collect();
    match translate(&source, &mut out, &options) {
        Ok(translation) => {
            assert!(!out.overflowed());
            let length = out.position();
            code(&mut text, case, &names, &room[..length], &translation);
            exits(&mut text, &names, &translation);
        }
        Err(_) => text.push_str("cannot be read\n"),
    }
    text
}

fn source_block(layout: Layout, block: &crate::cases::Block, check: bool) -> SourceBlock<'_> {
    let address = layout.application() + block.offset;
    let next = block.next.map(|offset| layout.application() + offset);
    SourceBlock { address, code: &block.code, next, check, is_entry: block.is_entry }
}

/// The instructions of `code`, which is at this address of the application or of the cache.
fn instructions(address: u64, code: &[u8]) -> Vec<(Instruction, &[u8])> {
    let mut decoder = isa::decoder(AppPc::new(address), code);
    let mut list = Vec::new();
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        list.push((instruction, &code[start..decoder.position()]));
    }
    list
}

/// Where `push [rip + ...]` finds its literals.
fn literals(address: u64, code: &[u8]) -> BTreeSet<u64> {
    let pushes = instructions(address, code).into_iter().map(|(instruction, _)| instruction).filter(|instruction| {
        let here = address..address + code.len() as u64;
        instruction.mnemonic() == Mnemonic::Push
            && instruction.is_ip_rel_memory_operand()
            && here.contains(&instruction.ip_rel_memory_address())
    });
    pushes.map(|instruction| instruction.ip_rel_memory_address()).collect()
}

fn code(text: &mut String, case: &Case, names: &Names, code: &[u8], translation: &Translation) {
    let cache = case.layout.cache().get();
    let literals = literals(cache, code);
    // The literals of eight bytes are behind all instructions.
    let end = literals.first().map_or(code.len(), |first| (first - cache) as usize);
    let _ = writeln!(text, "code");
    for (instruction, _) in instructions(cache, &code[..end]) {
        let offset = instruction.ip() - cache;
        let state = state(case, names, translation, offset as u16);
        let _ = writeln!(text, "  {offset:03x}  {state:<26} {}", names.format(&instruction));
    }
    for literal in literals {
        let offset = (literal - cache) as usize;
        let value = u64::from_le_bytes(code[offset..offset + 8].try_into().unwrap());
        let _ = writeln!(text, "  {offset:03x}  {:<26} dq {}", "", names.text(value));
    }
}

fn state(case: &Case, names: &Names, translation: &Translation, offset: u16) -> String {
    let after = translation.map.partition_point(|entry| entry.cache <= offset);
    let MapEntry { offset, block, state, .. } = translation.map[after - 1];
    let block = &case.blocks[usize::from(block)];
    let pc = names.text((case.layout.application() + block.offset + u64::from(offset)).get());
    match state {
        RegisterState::Cursor => format!("cursor {pc}"),
        RegisterState::App => format!("own {pc}"),
        RegisterState::Scratch => format!("scratch {pc}"),
        RegisterState::ScratchApp => format!("scratch own {pc}"),
        RegisterState::Spilled(spill, own) => {
            format!("spilled{}{} {pc}", spilled(spill), if own { " own" } else { "" })
        }
        RegisterState::BetweenSafePoints => "between".into(),
    }
}

/// The registers that are elsewhere, by number.
fn spilled(spill: Spill) -> String {
    let registers = [(spill.general, ""), (spill.third, ""), (spill.segment, "s"), (spill.vector, "x")];
    let mut text: String = registers
        .iter()
        .filter(|(register, _)| *register != Spill::NONE)
        .map(|(register, kind)| format!(" {kind}{register}"))
        .collect();
    if spill.flags {
        text.push_str(" flags");
    }
    text
}

fn exits(text: &mut String, names: &Names, translation: &Translation) {
    const TERMINATORS: [&str; 5] = ["not taken", "taken", "direct", "indirect", "syscall"];
    for (index, exit) in translation.exits.iter().enumerate() {
        let terminator = TERMINATORS[exit.terminator as usize];
        let _ = write!(text, "exit {index}: {terminator} after {} blocks", exit.blocks);
        if exit.kind != ExitKind::Indirect {
            let _ = write!(text, ", to {}", names.text(exit.target.get()));
        }
        if !exit.site.is_none() {
            let _ = write!(text, ", jump at {:03x}", exit.site - names.layout.cache());
            assert_eq!(exit.site.get() / 8, (exit.site.get() + 3) / 8, "a displacement cannot be changed in one store");
        }
        text.push('\n');
    }
    for (index, block) in translation.blocks.iter().enumerate() {
        let taken = if block.taken { ", taken" } else { "" };
        let _ = writeln!(text, "block {index}: {} bytes{taken}", block.length);
    }
    if translation.has_locked {
        text.push_str("has a locked instruction\n");
    }
}

/// Gives numbers their meaning.
#[derive(Clone, Copy)]
struct Names {
    layout: Layout,
    stubs_end: CachePc,
}

impl Names {
    fn name(&self, value: u64) -> Option<String> {
        let application = self.layout.application().get();
        let cache = self.layout.cache().get();
        let stubs_end = self.stubs_end.get();
        let stubs = stubs_end - STUBS_DISTANCE / 2;
        let path = u64::from(FIRST_PATH.get());
        let negated = value.wrapping_neg();
        Some(if (application..application + APPLICATION_BYTES).contains(&value) {
            format!("app+{:x}", value - application)
        } else if (stubs..stubs_end).contains(&value) {
            let index = (stubs_end - value) / trackway_engine::translate::STUB_STRIDE as u64 - 1;
            format!("stub{index}")
        } else if (cache..cache + STUBS_DISTANCE / 2).contains(&value) {
            format!("cache+{:x}", value - cache)
        } else if (path..path + u64::from(NUMBERS)).contains(&value) {
            format!("path{}", value - path)
        } else if (application..application + APPLICATION_BYTES).contains(&negated) {
            format!("minus_app+{:x}", negated - application)
        } else if value == TABLE || value == HIGH_TABLE {
            "table".into()
        } else {
            return None;
        })
    }

    fn text(&self, value: u64) -> String {
        self.name(value).unwrap_or_else(|| format!("{value:x}"))
    }

    fn format(&self, instruction: &Instruction) -> String {
        let mut formatter = IntelFormatter::with_options(Some(Box::new(*self)), None);
        let options = formatter.options_mut();
        options.set_first_operand_char_index(0);
        options.set_space_after_operand_separator(true);
        options.set_space_between_memory_add_operators(true);
        options.set_hex_prefix("0x");
        options.set_hex_suffix("");
        options.set_uppercase_hex(false);
        options.set_rip_relative_addresses(false);
        let mut text = String::new();
        formatter.format(instruction, &mut text);
        text
    }
}

/// The field of the thread's state at an offset from gs.
fn field(offset: u64) -> Option<&'static str> {
    let fields = [
        (tcb::SCRATCH_RCX, "scratch_rcx"),
        (tcb::SCRATCH_RDX, "scratch_rdx"),
        (tcb::SCRATCH_THIRD, "scratch_third"),
        (tcb::SCRATCH_SEGMENT, "scratch_segment"),
        (tcb::GS_BASE, "gs_base"),
        (tcb::SCRATCH_VECTOR, "scratch_vector"),
        (tcb::FLAGS, "flags"),
        (tcb::OPERAND, "operand"),
        (tcb::ENGINE_STACK, "engine_stack"),
        (tcb::CURSOR, "cursor"),
        (tcb::EXIT_ENTRY, "exit_entry"),
        (tcb::MISMATCH_ENTRY, "mismatch_entry"),
        (tcb::TABLE_MASK, "table_mask"),
        (tcb::APP_R15, "app_r15"),
        (tcb::OWNERS, "owners"),
        (tcb::ORDER_KEYS, "key_of_1"),
        (tcb::ORDER_KEYS + 8, "key_of_2"),
        (tcb::ORDER_KEYS + 16, "key_of_4"),
        (tcb::ORDER_KEYS + 24, "key_of_8"),
        (tcb::ORDER_INDEX, "order_index"),
        (tcb::ORDER_TAG, "order_tag"),
        (tcb::ORDER_OLD, "order_old"),
        (tcb::ORDER_LEFT, "order_left"),
        (tcb::ORDER_CARRY, "order_carry"),
        (tcb::ORDER_VALUES, "order_values"),
    ];
    fields.iter().find(|(at, _)| u64::from(*at) == offset).map(|(_, name)| *name)
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        operand: u32,
        instruction_operand: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let operand = instruction_operand.unwrap_or(operand);
        let in_memory = instruction.op_kind(operand) == OpKind::Memory;
        let name = if in_memory && instruction.memory_segment() == Register::GS {
            field(address)?.to_string()
        } else {
            self.name(address)?
        };
        Some(SymbolResult::with_string(address, name))
    }
}
