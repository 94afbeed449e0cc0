//! From names to [`SelectedFunction`]s: the symbol tables of a trace's modules.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use entity::AppPc;
use symbols::{Functions, Pattern};
use trace::{Item, MappedModule, Steps, Trace};

use crate::flow::IndirectTargets;
use crate::scopes::{CodeFile, Scopes, SelectedFunction};
use crate::tracker::Tracker;

/// The functions of a trace that patterns select, as far as the files of its modules can be read.
#[derive(Debug, Default)]
pub struct Resolver {
    files: BTreeMap<String, Option<Functions>>,
}

impl Resolver {
    /// Returns the functions that any of `patterns` matches; without patterns, all functions.
    pub fn functions(&mut self, trace: &Trace, patterns: &[Pattern]) -> Vec<SelectedFunction> {
        let mut found: BTreeMap<(u32, u64), SelectedFunction> = BTreeMap::new();
        for mapped in trace.modules() {
            for function in self.functions_in(mapped, executable(trace, mapped.image), patterns) {
                // Several symbols may name one function, and a file may be mapped in several
                // pieces.
                found.entry((function.image, function.entry.get())).or_insert(function);
            }
        }
        found.into_values().collect()
    }

    /// Returns the functions of the files in which a pattern was searched, for suggestions: the
    /// executable first, unless the pattern names a module.
    pub fn files<'r>(&'r self, trace: &'r Trace, pattern: &'r Pattern) -> impl Iterator<Item = &'r Functions> {
        let mut seen = BTreeSet::new();
        let is_asked = |mapped: &&MappedModule| {
            let path = &mapped.module.path;
            // Other modules have other functions at an address.
            pattern.address().is_none() || pattern.applies_to(path, path == executable(trace, mapped.image))
        };
        let paths = trace.modules().iter().filter(is_asked).map(|mapped| mapped.module.path.as_str());
        paths.filter(move |&path| seen.insert(path)).filter_map(|path| self.files.get(path)?.as_ref())
    }

    fn functions_in(&mut self, mapped: &MappedModule, executable: &str, patterns: &[Pattern]) -> Vec<SelectedFunction> {
        let module = &mapped.module;
        let read = || Functions::of_file(Path::new(&module.path)).ok();
        let Some(functions) = self.files.entry(module.path.clone()).or_insert_with(read) else { return Vec::new() };
        let Some(bias) = functions.bias(module.address, module.file_offset) else { return Vec::new() };
        let address = |linked: u64| AppPc::new(linked.wrapping_add(bias));
        let is_mapped = |function: &symbols::Function| {
            function.start.wrapping_add(bias).wrapping_sub(module.address) < module.length
        };
        let applies = |pattern: &&Pattern| pattern.applies_to(&module.path, module.path == executable);
        let is_all = patterns.is_empty();
        let patterns: Vec<&Pattern> = patterns.iter().filter(applies).collect();
        let is_wanted = |function: &symbols::Function| {
            is_all || patterns.iter().any(|pattern| functions.selects(pattern, function))
        };
        let whole = functions.list.iter().filter(|function| function.part_of.is_none() && is_mapped(function));
        whole
            .filter(|function| is_wanted(function))
            .map(|function| {
                let parts = functions.parts(function);
                let offsets = parts.iter().map(|part| functions.file_offset(part.start)).collect::<Option<_>>();
                SelectedFunction {
                    name: function.name(),
                    image: mapped.image,
                    entry: address(function.start),
                    ranges: parts.iter().map(|part| address(part.start)..address(part.end)).collect(),
                    file: offsets.map(|offsets| CodeFile { path: PathBuf::from(&module.path), offsets }),
                }
            })
            .collect()
    }
}

/// Returns the path of the executable of an image: the first file that was mapped in it.
fn executable(trace: &Trace, image: u32) -> &str {
    trace.modules().iter().find(|mapped| mapped.image == image).map_or("", |mapped| &mapped.module.path)
}

impl Scopes {
    /// Makes the scopes of functions of a trace. Reads the trace for the targets of indirect jumps,
    /// unless no function has any, and for exceptions, if there is code that nothing else leads to.
    #[must_use]
    pub fn of_trace(trace: &Trace, functions: Vec<SelectedFunction>) -> Self {
        let mut scopes = Self::new(functions, trace.blocks(), &IndirectTargets::default());
        let mut targets = IndirectTargets::default();
        if scopes.has_indirect_jumps() {
            targets = indirect_targets(trace, &scopes);
            scopes = scopes.with_targets(trace, &targets);
        }
        let unreached = scopes.unreached_code();
        if !unreached.is_empty() {
            targets.extend(landings(trace, &scopes, &unreached));
            scopes = scopes.with_targets(trace, &targets);
        }
        scopes
    }

    fn with_targets(self, trace: &Trace, targets: &IndirectTargets) -> Self {
        let functions = self.functions().cloned().collect();
        Self::new(functions, trace.blocks(), targets)
    }
}

/// Collects where functions went on, in `code`, when exceptions had left a call.
fn landings(trace: &Trace, scopes: &Scopes, code: &BTreeSet<AppPc>) -> IndirectTargets {
    let mut landings = IndirectTargets::default();
    for thread in trace.threads() {
        let Ok(mut steps) = trace.steps(thread.info.thread) else { continue };
        let mut tracker = Tracker::new(scopes);
        // What is damaged is reported by whoever reads the trace for its steps.
        while let Ok(Some(batch)) = steps.next_batch() {
            for item in batch.items() {
                match item {
                    Item::Step(step) => tracker.step(&step, trace.blocks(), |_| {}),
                    Item::Event(event) => tracker.event(&event, |_| {}),
                }
                if let Some((end, target)) = tracker.take_landing().filter(|(_, target)| code.contains(target)) {
                    landings.insert(end, target);
                }
            }
        }
    }
    landings
}

/// Collects where the indirect jumps of selected functions went.
fn indirect_targets(trace: &Trace, scopes: &Scopes) -> IndirectTargets {
    let of_chunk = |steps: &mut Steps<'_>| {
        let mut targets = IndirectTargets::default();
        // The caller, who reads the trace for its steps, reports what is damaged.
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
