//! From names to [`Function`]s: the symbol tables of a trace's modules.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::path::Path;

use entity::AppPc;
use symbols::{Functions, Pattern};
use trace::{MappedModule, Steps, Trace};

use crate::flow::IndirectTargets;
use crate::scopes::{Function, Scopes};

/// The functions of a trace that patterns select, as far as the files of its modules can be read.
#[derive(Debug, Default)]
pub struct Resolver {
    files: BTreeMap<String, Option<Functions>>,
}

impl Resolver {
    /// Returns the functions that any of `patterns` matches; without patterns, all functions.
    pub fn functions(&mut self, trace: &Trace, patterns: &[Pattern]) -> Vec<Function> {
        let mut found: BTreeMap<(u32, u64), Function> = BTreeMap::new();
        for mapped in trace.modules() {
            for function in self.functions_in(mapped, patterns) {
                // Several symbols may name one function, and a file may be mapped in several pieces.
                found.entry((function.image, function.entry.get())).or_insert(function);
            }
        }
        found.into_values().collect()
    }

    /// Returns the functions of the files that were read, for suggestions.
    pub fn files(&self) -> impl Iterator<Item = &Functions> {
        self.files.values().flatten()
    }

    fn functions_in(&mut self, mapped: &MappedModule, patterns: &[Pattern]) -> Vec<Function> {
        let module = &mapped.module;
        let path = &module.path;
        let read = || Functions::of_file(Path::new(path)).ok();
        let Some(functions) = self.files.entry(path.clone()).or_insert_with(read) else { return Vec::new() };
        let Some(bias) = functions.bias(module.address, module.file_offset) else { return Vec::new() };
        let wanted =
            |symbol: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches_symbol(symbol));
        let is_mapped = |address: u64| address.wrapping_sub(module.address) < module.length;
        let mut parts: BTreeMap<&str, Vec<&symbols::Function>> = BTreeMap::new();
        for function in &functions.list {
            parts.entry(whole_name(&function.symbol)).or_default().push(function);
        }
        let address = |linked: u64| AppPc::new(linked.wrapping_add(bias));
        let mut found = Vec::new();
        for (name, parts) in parts {
            let cold = || parts.iter().filter(|part| part.symbol != name);
            for main in parts.iter().filter(|part| part.symbol == name) {
                if is_mapped(main.start.wrapping_add(bias)) && wanted(name) {
                    let ranges = [main].into_iter().chain(cold()).map(|part| address(part.start)..address(part.end));
                    found.push(Function {
                        name: symbols::plain_name(name),
                        image: mapped.image,
                        entry: address(main.start),
                        ranges: ranges.collect(),
                    });
                }
            }
        }
        found
    }
}

/// Returns the name of the function that a part of it belongs to.
fn whole_name(symbol: &str) -> &str {
    match symbol.find(".cold") {
        Some(end) if end > 0 => symbol.get(..end).unwrap_or(symbol),
        _ => symbol,
    }
}

impl Scopes {
    /// Makes the scopes of functions of a trace. Reads the trace once, for the targets of indirect
    /// jumps, unless no function has any.
    #[must_use]
    pub fn of_trace(trace: &Trace, functions: Vec<Function>) -> Self {
        let scopes = Self::new(functions, trace.blocks(), &IndirectTargets::default());
        if !scopes.has_indirect_jumps() {
            return scopes;
        }
        let targets = indirect_targets(trace, &scopes);
        let functions = scopes.functions().cloned().collect();
        Self::new(functions, trace.blocks(), &targets)
    }
}

/// Collects where the indirect jumps of selected functions went.
fn indirect_targets(trace: &Trace, scopes: &Scopes) -> IndirectTargets {
    let of_chunk = |steps: &mut Steps<'_>| {
        let mut targets = IndirectTargets::default();
        // What is damaged is reported by whoever reads the trace for its steps.
        while let Ok(Some(batch)) = steps.next_batch() {
            for step in batch.steps().iter().filter(|step| !step.next().is_none()) {
                if let Some(end) = scopes.indirect_jump(step.block()) {
                    targets.insert(end, step.next());
                }
            }
        }
        targets
    };
    let mut all = IndirectTargets::default();
    trace.par_chunks(of_chunk).into_iter().for_each(|targets| all.extend(targets));
    all
}
