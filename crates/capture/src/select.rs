//! The part of an execution that is recorded: which code, from when on, and how much.
//!
//! A [`Selection`] is what the user asks for. A [`Selector`] turns names into addresses: when a
//! module is mapped, it looks up the functions in the module's file and publishes the selected
//! ranges in the shared memory, where the engine waits for them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use symbols::{Function, Functions, Pattern};
use trace::Module;

use crate::older_calls::recorder_path;
use crate::shared::Shared;

mod probes;

/// What to record; the default is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Instructions, of all threads together, to execute before recording begins.
    pub skip: u64,
    /// The most instructions, of all threads together, to record.
    pub length: Option<u64>,
    /// The number of memory accesses, of all threads together, after which recording ends: with the
    /// path that makes the last of them.
    pub accesses: Option<u64>,
    /// Whether to leave out code of shared libraries.
    pub no_shared_libs: bool,
    /// Record these routines only, with what they call (`callees`) or without.
    pub routines: Vec<String>,
    pub callees: bool,
    /// Whether to record the stack pointer at the entries of the routines.
    pub scopes: bool,
    /// Whether to record calls of allocation routines, and what is mapped, in all code.
    pub allocations: bool,
}

impl Selection {
    /// Returns whether some code is recorded and other code is not.
    fn is_partial(&self) -> bool {
        self.no_shared_libs || !self.routines.is_empty()
    }

    /// Returns whether the recorder has to leave out anything that the engine delivers.
    pub fn needs_filter(&self) -> bool {
        self.is_partial() || self.skip > 0 || self.length.is_some() || self.accesses.is_some() || self.allocations
    }

    /// Returns the selection as options of the command line.
    pub fn as_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.skip > 0 {
            options.extend(["--skip".to_owned(), self.skip.to_string()]);
        }
        if let Some(length) = self.length {
            options.extend(["--length".to_owned(), length.to_string()]);
        }
        if let Some(accesses) = self.accesses {
            options.extend(["--accesses".to_owned(), accesses.to_string()]);
        }
        if self.no_shared_libs {
            options.push("--no-shared-libs".to_owned());
        }
        for routine in &self.routines {
            options.extend(["--routine".to_owned(), routine.clone()]);
        }
        if self.callees && !self.routines.is_empty() {
            options.push("--callees".to_owned());
        }
        let flags = [(self.scopes, "--scopes"), (self.allocations, "--allocations")];
        options.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, option)| option.to_owned()));
        options
    }

    /// Publishes the selection to the engine, before it is injected.
    pub fn announce(&self, shared: &Shared) {
        let control = shared.control();
        let mut flags = 0;
        if !self.routines.is_empty() {
            flags |= if self.callees { wire::SELECT_CALLEES } else { wire::SELECT_INSIDE };
        }
        // Without callees, only routines of the executable are looked for.
        if self.no_shared_libs && flags & wire::SELECT_INSIDE == 0 {
            flags |= wire::SELECT_OUTSIDE;
        }
        for (is_set, flag) in [(self.scopes, wire::SELECT_SCOPES), (self.allocations, wire::SELECT_ALLOCATIONS)] {
            flags |= if is_set { flag } else { 0 };
        }
        control.selection.store(flags, Ordering::SeqCst);
        control.skip.store(self.skip, Ordering::SeqCst);
    }
}

/// A mapped module.
#[derive(Default)]
struct SelectedModule {
    range: Range<u64>,
    /// Its ranges in the engine's table.
    ranges: Vec<Range<u64>>,
    entries: Vec<u64>,
    probes: Vec<(u64, u8)>,
}

impl SelectedModule {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.entries.is_empty() && self.probes.is_empty()
    }
}

/// Finds the addresses of selected code.
pub struct Selector {
    process: i32,
    executable: PathBuf,
    patterns: Vec<Pattern>,
    callees: bool,
    scopes: bool,
    allocations: bool,
    no_shared_libs: bool,
    modules: Vec<SelectedModule>,
    /// Patterns that have matched a function.
    matched: Vec<bool>,
    /// Files whose functions were read, as the target names them.
    seen: Vec<String>,
    is_too_much: bool,
    /// Sentences about names that several functions have.
    ambiguities: Vec<String>,
}

impl Selector {
    /// Returns `None` if all code is recorded, and nothing is to be found in it.
    pub fn new(selection: &Selection, process: i32) -> Option<Self> {
        (selection.is_partial() || selection.allocations).then(|| Self {
            process,
            executable: PathBuf::new(),
            patterns: selection.routines.iter().map(|routine| Pattern::new(routine)).collect(),
            callees: selection.callees,
            scopes: selection.scopes,
            allocations: selection.allocations,
            no_shared_libs: selection.no_shared_libs,
            modules: Vec::new(),
            matched: vec![false; selection.routines.len()],
            seen: Vec::new(),
            is_too_much: false,
            ambiguities: Vec::new(),
        })
    }

    /// Begins a new image of the process, of which nothing is known yet.
    pub fn next_image(&mut self, shared: &Shared) {
        self.modules.clear();
        self.executable = std::fs::read_link(format!("/proc/{}/exe", self.process)).unwrap_or_default();
        self.publish(shared);
    }

    /// Adds a module that was mapped.
    pub fn mapped(&mut self, module: &Module, shared: &Shared) {
        let range = module.address..module.address.saturating_add(module.length);
        let is_main = Path::new(&module.path) == self.executable;
        let mut selected_module = SelectedModule { range: range.clone(), ..SelectedModule::default() };
        let is_library = !is_main && !module.path.starts_with("/memfd:");
        if self.no_shared_libs && is_library && (self.callees || self.patterns.is_empty()) {
            selected_module.ranges.push(range.clone());
        }
        if !self.patterns.is_empty() && (is_main || !self.no_shared_libs) {
            self.select_functions(module, is_main, &mut selected_module);
        }
        if self.allocations {
            selected_module.probes = self.probes_in(module, &range);
        }
        self.forget(&range);
        let changes_something = !selected_module.is_empty();
        self.modules.push(selected_module);
        if changes_something {
            self.publish(shared);
        }
    }

    /// Removes modules from a range that was unmapped.
    pub fn unmapped(&mut self, address: u64, length: u64, shared: &Shared) {
        if self.forget(&(address..address.saturating_add(length))) {
            self.publish(shared);
        }
    }

    /// Removes modules that lie in `range`. Returns whether that changes the selection.
    fn forget(&mut self, range: &Range<u64>) -> bool {
        let is_gone = |selected_module: &SelectedModule| {
            range.start <= selected_module.range.start && selected_module.range.end <= range.end
        };
        let changes =
            self.modules.iter().any(|selected_module| is_gone(selected_module) && !selected_module.is_empty());
        self.modules.retain(|selected_module| !is_gone(selected_module));
        changes
    }

    /// Adds the selected functions of a module: the entries, the ranges, or both.
    fn select_functions(&mut self, module: &Module, is_main: bool, selected_module: &mut SelectedModule) {
        if self.callees || self.scopes {
            let each = self.functions_in(module, is_main, &selected_module.range, false);
            selected_module.entries = each.iter().map(|function| function.start).collect();
        }
        if !self.callees {
            selected_module.ranges = self.functions_in(module, is_main, &selected_module.range, true);
        }
    }

    /// Returns the ranges of a module's selected functions in `range`.
    fn functions_in(&mut self, module: &Module, is_main: bool, range: &Range<u64>, joined: bool) -> Vec<Range<u64>> {
        let Some(functions) = self.functions_of(&module.path) else { return Vec::new() };
        let Some(bias) = functions.bias(module.address, module.file_offset) else { return Vec::new() };
        let applies: Vec<bool> =
            self.patterns.iter().map(|pattern| pattern.applies_to(&module.path, is_main)).collect();
        self.note_ambiguities(&functions, &module.path, &applies);
        let is_selected = |function: &Function| {
            // A part that was split off is not an entry of the function.
            self.is_selected(&functions, &applies, function) && (joined || function.part_of.is_none())
        };
        functions.selected_ranges(bias, range, joined, is_selected)
    }

    /// Keeps a sentence about each name that several functions of a module have.
    fn note_ambiguities(&mut self, functions: &Functions, path: &str, applies: &[bool]) {
        let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
        for (pattern, _) in self.patterns.iter().zip(applies).filter(|(_, applies)| **applies) {
            let sentence = symbols::ambiguity(pattern, functions, &name);
            if !sentence.is_empty() && !self.ambiguities.contains(&sentence) {
                self.ambiguities.push(sentence);
            }
        }
    }

    /// Returns the entries of a module's allocation routines in `range`.
    fn probes_in(&mut self, module: &Module, range: &Range<u64>) -> Vec<(u64, u8)> {
        let Some(functions) = self.functions_of(&module.path) else { return Vec::new() };
        let Some(bias) = functions.bias(module.address, module.file_offset) else { return Vec::new() };
        let probe =
            |function: &Function| Some((function.start.wrapping_add(bias), probes::routine_of(&function.symbol)?));
        functions.list.iter().filter_map(probe).filter(|(address, _)| range.contains(address)).collect()
    }

    fn is_selected(&mut self, functions: &Functions, applies: &[bool], function: &Function) -> bool {
        let mut is_selected = false;
        let patterns = self.patterns.iter().zip(&mut self.matched).zip(applies);
        for ((pattern, matched), _) in patterns.filter(|(_, applies)| **applies) {
            if functions.selects(pattern, function) {
                *matched = true;
                is_selected = true;
            }
        }
        is_selected
    }

    fn functions_of(&mut self, path: &str) -> Option<Functions> {
        if path == "[vdso]" {
            return crate::maps::own_vdso().and_then(Functions::parse);
        }
        let functions = Functions::of_file(&recorder_path(self.process, path)).ok()?;
        if !self.seen.iter().any(|seen| seen == path) {
            self.seen.push(path.to_owned());
        }
        Some(functions)
    }

    fn publish(&mut self, shared: &Shared) {
        let ranges =
            merged(self.modules.iter().flat_map(|selected_module| selected_module.ranges.iter().cloned()).collect());
        let mut entries: Vec<u64> =
            self.modules.iter().flat_map(|selected_module| selected_module.entries.iter().copied()).collect();
        entries.sort_unstable();
        entries.dedup();
        let mut probes: Vec<(u64, u8)> =
            self.modules.iter().flat_map(|selected_module| selected_module.probes.iter().copied()).collect();
        // One routine may have several names, of which the first counts.
        probes.sort_unstable();
        probes.dedup_by_key(|&mut (address, _)| address);
        self.is_too_much |= ranges.len() > wire::RANGES_MAX || entries.len() > wire::ENTRIES_MAX;
        shared.publish_selection(&ranges, &entries, &probes);
    }

    /// Returns warnings about routines that were not found.
    pub fn warnings(&self) -> Vec<String> {
        let unmatched = self.patterns.iter().zip(&self.matched).filter(|(_, matched)| !**matched);
        let mut warnings: Vec<String> = unmatched.map(|(pattern, _)| self.no_such_routine(pattern)).collect();
        warnings.extend(self.ambiguities.iter().cloned());
        if self.is_too_much {
            warnings.push("more routines match than can be selected; some of them are not recorded".to_owned());
        }
        warnings
    }

    fn no_such_routine(&self, pattern: &Pattern) -> String {
        let files = self.seen.iter().filter_map(|path| Functions::of_file(&recorder_path(self.process, path)).ok());
        let near = symbols::did_you_mean(pattern, files);
        let near = if near.is_empty() { near } else { format!("; {near}") };
        let place = if self.no_shared_libs { "the executable has no" } else { "nothing that was mapped has a" };
        format!("{place} routine called {}, so nothing was recorded for it{near}", pattern.text())
    }
}

/// Sorts ranges and joins those that touch or overlap.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_as_on_the_command_line() {
        let selection = Selection {
            skip: 5,
            length: Some(7),
            no_shared_libs: true,
            routines: vec!["a*".into(), "b".into()],
            callees: true,
            accesses: Some(9),
            scopes: true,
            allocations: true,
        };
        let words = "--skip 5 --length 7 --accesses 9 --no-shared-libs --routine a* --routine b \
            --callees --scopes --allocations";
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(selection.as_options(), words);
        assert!(Selection::default().as_options().is_empty() && !Selection::default().needs_filter());
    }

    #[test]
    fn ranges_are_joined() {
        assert_eq!(merged(vec![30..40, 10..20, 15..18, 20..25]), [10..25, 30..40]);
        assert!(merged(Vec::new()).is_empty());
    }

    /// Returns the executable of this test, as if it were a target's.
    fn own_module() -> Module {
        let mappings = crate::maps::of_process(std::process::id() as i32).unwrap();
        let here = own_module as *const () as u64;
        let mapping = mappings.into_iter().find(|mapping| mapping.range.contains(&here)).unwrap();
        let length = mapping.range.end - mapping.range.start;
        let (address, file_offset) = (mapping.range.start, mapping.file_offset);
        Module { address, length, file_offset, path: mapping.path, ..Module::default() }
    }

    fn selector(selection: &Selection, shared: &Shared) -> Selector {
        selection.announce(shared);
        let mut selector = Selector::new(selection, std::process::id() as i32).unwrap();
        selector.next_image(shared);
        selector
    }

    #[test]
    fn a_function_is_found_where_it_is() {
        let shared = Shared::create_alone().unwrap();
        let routines = vec!["*::select::tests::own_module".to_owned()];
        let selection = Selection { routines, ..Selection::default() };
        let mut selector = selector(&selection, &shared);
        selector.mapped(&own_module(), &shared);
        let here = own_module as *const () as u64;
        let (ranges, entries) = shared.selection();
        assert!(ranges.iter().any(|range| range.start == here) && entries.is_empty());
        assert!(selector.warnings().is_empty());
        let module = own_module();
        selector.unmapped(module.address, module.length, &shared);
        assert!(shared.selection().0.is_empty());

        let mut with_callees = self::selector(&Selection { callees: true, ..selection }, &shared);
        with_callees.mapped(&module, &shared);
        assert_eq!(shared.selection(), (Vec::new(), vec![here]));
    }

    #[test]
    fn libraries_are_left_out() {
        let shared = Shared::create_alone().unwrap();
        let mut selector = selector(&Selection { no_shared_libs: true, ..Selection::default() }, &shared);
        selector.mapped(&own_module(), &shared);
        assert!(shared.selection().0.is_empty(), "the executable is no library");
        let library = Module { address: 0x1000, length: 0x2000, path: "/lib/x.so".into(), ..Module::default() };
        selector.mapped(&library, &shared);
        assert_eq!(shared.selection(), (vec![Range { start: 0x1000, end: 0x3000 }], Vec::new()));
        selector.next_image(&shared);
        assert!(shared.selection().0.is_empty());
    }

    #[test]
    fn a_name_that_is_nearly_right() {
        let shared = Shared::create_alone().unwrap();
        let routines = vec!["capture::select::tests::own_modul".to_owned(), "*".to_owned()];
        let mut selector = selector(&Selection { routines, ..Selection::default() }, &shared);
        selector.mapped(&own_module(), &shared);
        let [warning] = selector.warnings().try_into().unwrap();
        assert!(warning.contains("own_modul,") && warning.contains("own_module"), "{warning}");
    }

    #[test]
    fn the_kernels_module_has_functions() {
        let functions = Functions::parse(crate::maps::own_vdso().unwrap()).unwrap();
        assert!(functions.list.iter().any(|function| function.symbol.contains("gettime")));
    }
}
