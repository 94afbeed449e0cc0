//! The functions and loops of a trace that the user selects, or that were selected for recording.

use scope::{FunctionId, Resolver, Scopes, SelectedFunction};
use symbols::Pattern;
use trace::{AppPc, Trace};

use crate::failure::Failure;

/// Returns the scopes of the functions that `routines` name; without names, those of the routines
/// that were recorded, or of all functions.
pub fn select(trace: &Trace, routines: &[String]) -> Result<Scopes, Failure> {
    let patterns: Vec<Pattern> = match routines {
        [] => recorded_routines(trace).map(Pattern::new).collect(),
        _ => routines.iter().map(|routine| Pattern::new(routine)).collect(),
    };
    let mut resolver = Resolver::default();
    let functions = resolver.functions(trace, &patterns);
    if functions.is_empty() && !patterns.is_empty() {
        let names: Vec<&str> = patterns.iter().map(Pattern::text).collect();
        return Err(unknown(&names, trace, &patterns[0], &resolver));
    }
    // The recorder has warned of those that were recorded.
    for pattern in patterns.iter().filter(|_| !routines.is_empty()) {
        if resolver.functions(trace, std::slice::from_ref(pattern)).is_empty() {
            eprintln!("{}", unknown(&[pattern.text()], trace, pattern, &resolver));
        }
    }
    Ok(Scopes::of_trace(trace, functions))
}

/// Returns the routines that were selected when a trace was recorded.
pub fn recorded_routines(trace: &Trace) -> impl Iterator<Item = &str> {
    let options = &trace.recording().options;
    let values = options.iter().zip(options.iter().skip(1));
    values.filter(|(option, _)| *option == "--routine").map(|(_, routine)| routine.as_str())
}

/// Says that there is no function of these names. The first one is that of `pattern`.
fn unknown(names: &[&str], trace: &Trace, pattern: &Pattern, resolver: &Resolver) -> Failure {
    let failure = Failure::new(format!("no module of the trace has a function called {}", names.join(" or ")));
    match symbols::did_you_mean(pattern, resolver.files(trace, pattern).cloned()) {
        near if near.is_empty() => failure.hint("the files of its modules may be gone, or have no symbols"),
        near => failure.hint(near),
    }
}

/// Returns the name and the address of a function.
pub fn function(scopes: &Scopes, id: FunctionId) -> (&str, AppPc) {
    scopes.function(id).map_or(("", AppPc::NONE), |SelectedFunction { name, entry, .. }| (name, *entry))
}

/// Returns the lowest address at which a loop is entered.
pub fn loop_entry(scopes: &Scopes, function: FunctionId, index: u32) -> AppPc {
    let entry = || {
        let flow = scopes.flow(function)?;
        let found = flow.forest.loops().get(index as usize)?;
        Some(flow.span(*found.entries.first()?)?.start)
    };
    entry().unwrap_or(AppPc::NONE)
}
