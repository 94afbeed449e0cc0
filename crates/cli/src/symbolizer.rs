//! Names for addresses of code: function and offset, or module and offset.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use symbols::Functions;
use trace::{AppPc, Module, Trace};

/// Finds names in the files of a trace's modules, as far as they can be read.
pub struct Symbolizer<'t> {
    trace: &'t Trace,
    files: BTreeMap<&'t str, Option<Functions>>,
    names: HashMap<(u32, AppPc), String>,
}

impl<'t> Symbolizer<'t> {
    pub fn new(trace: &'t Trace) -> Self {
        Self { trace, files: BTreeMap::new(), names: HashMap::new() }
    }

    /// Returns the name of a return address, which belongs to the call before it.
    pub fn return_address(&mut self, image: u32, address: AppPc) -> &str {
        let Self { trace, files, names } = self;
        names.entry((image, address)).or_insert_with(|| name(trace, files, image, address))
    }
}

fn name<'t>(trace: &'t Trace, files: &mut BTreeMap<&'t str, Option<Functions>>, image: u32, address: AppPc) -> String {
    let call = address.get().wrapping_sub(1);
    let contains = |module: &Module| call.wrapping_sub(module.address) < module.length;
    let mut modules = trace.modules().iter().rev().filter(|mapped| mapped.image == image);
    let Some(module) = modules.find(|mapped| contains(&mapped.module)).map(|mapped| &mapped.module) else {
        return format!("{address:#x}");
    };
    let read = || Functions::of_file(Path::new(&module.path)).ok();
    let functions = files.entry(&module.path).or_insert_with(read);
    let in_function = functions.as_ref().and_then(|functions| {
        let bias = functions.bias(module.address, module.file_offset)?;
        let function = functions.whole_at(call.wrapping_sub(bias))?;
        let offset = address.get().wrapping_sub(bias).wrapping_sub(function.start);
        Some(format!("{}+{offset:#x}", function.name()))
    });
    in_function.unwrap_or_else(|| {
        let file = Path::new(&module.path).file_name().unwrap_or_default().to_string_lossy();
        format!("{file}+{:#x}", address.get().wrapping_sub(module.address).wrapping_add(module.file_offset))
    })
}
