//! Checks that fragments agree with their code: each block goes to the next one, and each exit fits
//! the last instruction.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;
use isa::Transfer;

use crate::block::Node;
use crate::model::{Step, Terminator};
use crate::program::{FragmentInfo, Program};

/// Returns what is wrong with a fragment; `None` if nothing is.
pub(super) fn problem(program: &Program, fragment: &FragmentInfo) -> Option<String> {
    let steps = program.steps_of(fragment);
    let inner = steps.split_last().map_or(&[][..], |(_, inner)| inner);
    let wrong = inner.iter().find_map(|step| inner_problem(program, step)).or_else(|| {
        let mut exits = fragment.paths().filter_map(|path| Some(program.path(path)?.last));
        exits.find_map(|last| exit_problem(program, &last))
    })?;
    Some(format!("the fragment of path {}: {wrong}", fragment.id))
}

fn inner_problem(program: &Program, step: &Step) -> Option<String> {
    let node = program.blocks.node(step.block().0)?;
    let expected = match target(node, step.terminator()) {
        Target::Address(address) if address != step.next() => format!("{address:#x}"),
        Target::Impossible => "outside".into(),
        Target::Address(_) | Target::Any => return None,
    };
    Some(format!("the block at {:#x} leads to {expected}, not to {:#x}", node.address, step.next()))
}

fn exit_problem(program: &Program, last: &Step) -> Option<String> {
    let node = program.blocks.node(last.block().0)?;
    let is_call = last.terminator() == Terminator::Syscall && node.transfer == Transfer::Syscall;
    let is_impossible = !is_call && matches!(target(node, last.terminator()), Target::Impossible);
    is_impossible.then(|| format!("the block at {:#x} cannot be left as exit {:?}", node.address, last.terminator()))
}

/// Where a block leads.
enum Target {
    Address(AppPc),
    /// Its code does not say.
    Any,
    /// Its last instruction has no such terminator, or none that leads to another block of the same
    /// fragment.
    Impossible,
}

fn target(node: &Node, terminator: Terminator) -> Target {
    match (terminator, node.transfer) {
        (Terminator::Taken, Transfer::Conditional { target })
        | (Terminator::Direct, Transfer::Jump { target } | Transfer::Call { target }) => Target::Address(target),
        (Terminator::NotTaken, Transfer::Conditional { .. }) | (Terminator::Next, Transfer::Next | Transfer::Trap) => {
            Target::Address(node.end)
        }
        (Terminator::Indirect, Transfer::IndirectJump | Transfer::IndirectCall | Transfer::Return) => Target::Any,
        _ => Target::Impossible,
    }
}
