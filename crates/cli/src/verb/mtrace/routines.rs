//! Routines selected by name: checks that they exist, and finds their blocks in a trace.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use symbols::{Functions, Pattern};
use trace::{BlockIndex, MappedModule, Step, Trace};

use crate::arguments::mtrace::Common;
use crate::failure::Failure;

/// The selected blocks of a trace.
pub struct SelectedBlocks {
    blocks: Vec<bool>,
}

impl SelectedBlocks {
    /// Returns `None` if the whole trace is selected.
    pub fn of_trace(trace: &Trace, common: &Common) -> Result<Option<Self>, Failure> {
        if !common.no_shared_libs && common.routines.is_empty() {
            return Ok(None);
        }
        let patterns: Vec<Pattern> = common.routines.iter().map(|routine| Pattern::new(routine)).collect();
        let mut matched = vec![false; patterns.len()];
        let mut ranges: HashMap<u32, Vec<Range<u64>>> = HashMap::new();
        let chosen = trace.modules().iter().filter(|mapped| !common.no_shared_libs || is_main(trace, mapped));
        for mapped in chosen.clone() {
            let module = &mapped.module;
            let all = module.address..module.address.saturating_add(module.length);
            let own = ranges.entry(mapped.image).or_default();
            if patterns.is_empty() {
                own.push(all);
                continue;
            }
            let Ok(functions) = Functions::of_file(Path::new(&module.path)) else { continue };
            let Some(bias) = functions.bias(module.address, module.file_offset) else { continue };
            let is_main = is_main(trace, mapped);
            own.extend(functions.selected_ranges(bias, &all, true, |function| {
                let mut is_wanted = false;
                for (pattern, matched) in patterns.iter().zip(&mut matched) {
                    let own = pattern.applies_to(&module.path, is_main) && functions.selects(pattern, function);
                    *matched |= own;
                    is_wanted |= own;
                }
                is_wanted
            }));
        }
        if let Some(place) = matched.iter().position(|matched| !matched) {
            let functions = chosen.filter_map(|mapped| Functions::of_file(Path::new(&mapped.module.path)).ok());
            return Err(no_such_routine(&patterns[place], "no module of the trace has a", functions));
        }
        let is_selected = |index| {
            let block = trace.blocks().get(BlockIndex(index))?;
            Some(ranges.get(&block.image())?.iter().any(|range| range.contains(&block.address().get())))
        };
        let count = u32::try_from(trace.blocks().len()).unwrap_or(u32::MAX);
        Ok(Some(Self { blocks: (0..count).map(|index| is_selected(index).unwrap_or(false)).collect() }))
    }

    /// Returns whether the step is in selected code.
    pub fn has(&self, step: &Step) -> bool {
        self.blocks.get(step.block().0 as usize).copied().unwrap_or(false)
    }
}

/// Returns whether a module is the executable, which is the first module of an image.
fn is_main(trace: &Trace, mapped: &MappedModule) -> bool {
    let first = trace.modules().iter().find(|other| other.image == mapped.image);
    first.is_some_and(|first| first.module.path == mapped.module.path) || mapped.module.path.starts_with("/memfd:")
}

fn no_such_routine(pattern: &Pattern, place: &str, files: impl Iterator<Item = Functions>) -> Failure {
    let failure = Failure::new(format!("{place} routine called {}", pattern.text()));
    match symbols::did_you_mean(pattern, files) {
        near if near.is_empty() => {
            failure.hint("names are those of the symbol table or of C++ or Rust source; * ? and [a-z] are wildcards")
        }
        near => failure.hint(near),
    }
}

/// Fails if neither the program nor a library that it is linked with has a selected routine. A
/// program that cannot be read before it runs is accepted: the recorder reports it.
pub fn check_program(common: &Common) -> Result<(), Failure> {
    if common.routines.is_empty() {
        return Ok(());
    }
    let Some(path) = common.source.command.first().and_then(|name| capture::find_program(name)) else { return Ok(()) };
    let Ok(main) = Functions::of_file(&path) else { return Ok(()) };
    let libraries = if common.no_shared_libs { Vec::new() } else { libraries(&path, &main) };
    let libraries = libraries.into_iter().filter_map(|path| Some((Functions::of_file(&path).ok()?, path)));
    let libraries: Vec<(Functions, PathBuf)> = libraries.collect();
    for pattern in common.routines.iter().map(|routine| Pattern::new(routine)) {
        let has = |functions: &Functions, path: &Path, is_main| {
            pattern.applies_to(&path.to_string_lossy(), is_main)
                && functions.list.iter().any(|function| functions.selects(&pattern, function))
        };
        if !has(&main, &path, true) && !libraries.iter().any(|(functions, path)| has(functions, path, false)) {
            let place = match common.no_shared_libs {
                true => "the executable has no",
                false => "neither the program nor a library of it has a",
            };
            return Err(no_such_routine(
                &pattern,
                place,
                std::iter::once(main).chain(libraries.into_iter().map(|(functions, _)| functions)),
            ));
        }
    }
    Ok(())
}

/// Returns the libraries that the dynamic linker would load with the program, as it lists them.
fn libraries(path: &Path, functions: &Functions) -> Vec<PathBuf> {
    let Some(interpreter) = &functions.interpreter else { return Vec::new() };
    let output = Command::new(interpreter).arg("--list").arg(path).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = output else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(listed_path).collect()
}

/// Returns the path in a line such as `libc.so.6 => /lib/libc.so.6 (0x00007f…)`.
fn listed_path(line: &str) -> Option<PathBuf> {
    let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
    let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_the_linker_lists_are_parsed() {
        let path = |line| listed_path(line).map(|path| path.display().to_string());
        assert_eq!(path("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f0000)").as_deref(), Some("/lib/x/libc.so.6"));
        assert_eq!(
            path("\t/lib64/ld-linux-x86-64.so.2 (0x00007f0000)").as_deref(),
            Some("/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007f0000)"), None);
        assert_eq!(path("\tlibx.so => not found"), None);
    }
}
