//! Sentences about a pattern that does not mean one function: which ones it may mean.

use crate::functions::{Function, Functions};
use crate::pattern::Pattern;

/// The most names to propose.
const NEAR_MAX: usize = 3;

/// Returns the question whether one of the most similar names was meant; empty if there are none.
/// For an address that is in no function, it is a statement about the function before it.
///
/// `files` are those in which the function was looked for. The executable is the first one, unless
/// the pattern names a module.
#[must_use]
pub fn did_you_mean(pattern: &Pattern, mut files: impl Iterator<Item = Functions>) -> String {
    if let Some(address) = pattern.address() {
        return files.find_map(|functions| functions.before(address).map(before)).unwrap_or_default();
    }
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut nameless = None;
    for (number, functions) in files.enumerate() {
        if number == 0 && functions.list.iter().all(|function| function.symbol.is_empty()) {
            nameless = functions.list.first().map(|function| function.start);
        }
        let names = functions.list.iter().filter(|function| !function.symbol.is_empty()).map(Function::name);
        found.extend(names.filter_map(|name| Some((pattern.distance(&name)?, name))));
    }
    found.sort_unstable();
    found.dedup();
    let near: Vec<String> = found.into_iter().take(NEAR_MAX).map(|(_, name)| name).collect();
    match nameless.filter(|_| !pattern.has_module()) {
        _ if !near.is_empty() => format!("did you mean {}?", listed(&near, "or")),
        Some(start) => format!("the executable is stripped: its functions are known by address, such as {start:#x}"),
        None => String::new(),
    }
}

fn before(function: &Function) -> String {
    format!("the nearest function before it is {}, {:#x} to {:#x}", function.name(), function.start, function.end)
}

/// Returns a sentence that lists the functions which an exact name may mean, with their addresses
/// and, where they are known, source files; empty if the name is not ambiguous. `module` is the
/// name of the file, or empty for the executable.
#[must_use]
pub fn ambiguity(pattern: &Pattern, functions: &Functions, module: &str) -> String {
    let choices = functions.choices(pattern);
    if choices.len() < 2 {
        return String::new();
    }
    let prefix = if module.is_empty() { String::new() } else { format!("{module}:") };
    let choice = |function: &&Function| format!("{prefix}{:#x}{}", function.start, details(pattern, function));
    let list = listed(&choices.iter().map(choice).collect::<Vec<_>>(), "and");
    format!("{} functions are called {}: {list}; select one by its address", choices.len(), pattern.text())
}

/// Returns what tells a function apart from others that the pattern matches, in parentheses.
fn details(pattern: &Pattern, function: &Function) -> String {
    let name = Some(function.full_name()).filter(|name| !pattern.matches(name));
    let source = function.source.as_ref().map(|source| format!("in {}", source.name));
    let details: Vec<String> = name.into_iter().chain(source).collect();
    if details.is_empty() { String::new() } else { format!(" ({})", details.join(" ")) }
}

/// Returns `a, b or c`.
fn listed(items: &[String], conjunction: &str) -> String {
    match items {
        [items @ .., last] if !items.is_empty() => format!("{} {conjunction} {last}", items.join(", ")),
        items => items.join(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Source;

    fn function(start: u64, symbol: &str) -> Function {
        Function { start, end: start + 8, symbol: symbol.into(), source: None, part_of: None }
    }

    fn ask_for(list: Vec<Function>, text: &str) -> String {
        did_you_mean(&Pattern::new(text), std::iter::once(Functions::of_list(list)))
    }

    fn ask(text: &str) -> String {
        let list =
            vec![function(0x10, "parse_a"), function(0x20, "parse_b"), function(0x30, "print"), function(0x40, "")];
        ask_for(list, text)
    }

    #[test]
    fn names_that_are_near() {
        assert_eq!(ask("parse_c"), "did you mean parse_a or parse_b?");
        assert_eq!(ask("prind"), "did you mean print?");
        assert_eq!(ask("lib.so:prind"), "did you mean print?");
        assert_eq!(ask("something_else"), "");
        assert_eq!(ask("sub_4"), "");
    }

    #[test]
    fn an_executable_without_names() {
        let ask = |text: &str| ask_for(vec![function(0x40_1136, ""), function(0x40_1200, "")], text);
        let sentence = "the executable is stripped: its functions are known by address, such as 0x401136";
        assert_eq!([ask("print"), ask("lib.so:print")], [sentence, ""]);
    }

    #[test]
    fn functions_before_an_address() {
        assert_eq!(ask("0x1f"), "the nearest function before it is parse_a, 0x10 to 0x18");
        assert_eq!(ask("0x1000"), "the nearest function before it is sub_40, 0x40 to 0x48");
        assert_eq!(ask("0xf"), "");
    }

    #[test]
    fn names_of_several_functions() {
        let in_source = |number, name: &str, start| {
            let source = Some(Source { name: name.into(), number });
            Function { source, ..function(start, "help") }
        };
        let overloads = [function(0x50, "_ZN2ns1fEi"), function(0x60, "_ZN2ns1fEc")];
        let list = [vec![in_source(1, "a.c", 0x10), in_source(2, "b.c", 0x20)], overloads.into()].concat();
        let functions = Functions::of_list(list);
        let ask = |text: &str, module: &str| ambiguity(&Pattern::new(text), &functions, module);
        assert_eq!(
            ask("help", ""),
            "2 functions are called help: 0x10 (in a.c) and 0x20 (in b.c); select one by its address"
        );
        assert_eq!(
            ask("ns::f", "x.so"),
            "2 functions are called ns::f: x.so:0x50 (ns::f(int)) and x.so:0x60 (ns::f(char)); \
             select one by its address"
        );
        assert_eq!(ask("ns::f(int)", ""), "");
        assert_eq!(ask("help*", ""), "");
        assert_eq!(ask("0x10", ""), "");
    }
}
