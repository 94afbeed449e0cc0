//! Routines that a running process does not have: a recorder that attached for them would wait for
//! nothing.

use std::fmt;
use std::path::Path;

use entity::Tsc;

use super::{SelectedModule, Selection, Selector, executable_of};
use crate::maps;

/// The routines that were asked for, none of which is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRoutines {
    names: Vec<String>,
    /// A question for names that are similar; empty if there are none.
    similar: String,
}

impl UnknownRoutines {
    /// Returns the routines of a selection if the process has none of them, and none can come with
    /// a library: one that is named, and that is not mapped.
    pub fn in_process(selection: &Selection, process: i32) -> Option<Self> {
        if selection.routines.is_empty() {
            return None;
        }
        let mut selector = Selector::new(selection, process)?;
        selector.executable = executable_of(process);
        let mut may_come = vec![true; selector.patterns.len()];
        for mapping in maps::of_process(process).ok()?.iter().filter(|mapping| mapping.is_module()) {
            let module = mapping.module(Tsc::default());
            let is_main = Path::new(&module.path) == selector.executable;
            for (pattern, may_come) in selector.patterns.iter().zip(&mut may_come) {
                *may_come &= !pattern.applies_to(&module.path, is_main);
            }
            let mut selected_module = SelectedModule { range: mapping.range.clone(), ..SelectedModule::default() };
            selector.select_functions(&module, is_main, &mut selected_module);
        }
        let is_missing = selector.matched.iter().chain(&may_come).all(|&is_there| !is_there);
        is_missing.then(|| Self {
            names: selection.routines.clone(),
            similar: selector.patterns.first().map_or(String::new(), |pattern| selector.similar_names(pattern)),
        })
    }

    /// Returns what the user could do about it.
    pub fn hint(&self) -> String {
        match self.similar.as_str() {
            "" => {
                "`nm -C` lists the functions of a file; a library that comes later is named: libz.so.1:inflate".into()
            }
            similar => similar.into(),
        }
    }
}

impl fmt::Display for UnknownRoutines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.names.join(" or "))
    }
}
