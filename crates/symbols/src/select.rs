//! Which functions of a file a pattern selects, and where they are mapped.

use std::ops::Range;

use crate::functions::{Function, Functions};
use crate::name::{full_name, without_variant};
use crate::pattern::Pattern;

/// Functions with less than this between them follow each other.
const PADDING_MAX: u64 = 16;

impl Functions {
    /// Returns whether a pattern selects a function of this file. An address selects the function
    /// that has it, with all parts. A name selects every function and part that it matches.
    ///
    /// The caller checks whether the pattern applies to the file ([`Pattern::applies_to`]).
    #[must_use]
    pub fn selects(&self, pattern: &Pattern, function: &Function) -> bool {
        match pattern.address() {
            Some(address) => self.whole_at(address).is_some_and(|whole| whole.start == function.whole_start()),
            None => pattern.matches_function(function),
        }
    }

    /// Returns the different functions that an exact name matches, in order of their addresses. If
    /// there are several, the name is ambiguous: static functions of several source files may have
    /// the same name, and overloaded functions have it without their parameters. Other names of a
    /// function, its variants and its parts do not count. Empty for a pattern with wildcards.
    #[must_use]
    pub fn choices(&self, pattern: &Pattern) -> Vec<&Function> {
        if !pattern.is_exact() {
            return Vec::new();
        }
        let is_whole = |function: &&Function| function.part_of.is_none() && self.selects(pattern, function);
        let matching: Vec<&Function> = self.list.iter().filter(is_whole).collect();
        let mut choices: Vec<&Function> = matching.iter().map(|function| original_of(function, &matching)).collect();
        choices.sort_by_key(|function| function.start);
        choices.dedup_by_key(|function| function.start);
        choices
    }

    /// Returns the ranges of the functions that `is_selected`, within `range`, for a file that is
    /// mapped `bias` away from its linked addresses. If `joined`, functions that follow each other
    /// give one range.
    pub fn selected_ranges(
        &self,
        bias: u64,
        range: &Range<u64>,
        joined: bool,
        mut is_selected: impl FnMut(&Function) -> bool,
    ) -> Vec<Range<u64>> {
        let place = |function: &Function| function.start.wrapping_add(bias)..function.end.wrapping_add(bias);
        let is_here =
            |place: &Range<u64>| place.start < place.end && range.start <= place.start && place.start < range.end;
        let mut selected: Vec<Range<u64>> = Vec::new();
        let mut follows = false;
        for function in &self.list {
            let place = place(function);
            if !is_here(&place) || !is_selected(function) {
                follows = false;
                continue;
            }
            if let Some(last) = selected.last_mut().filter(|_| follows && joined)
                && place.start.saturating_sub(last.end) < PADDING_MAX
            {
                last.end = last.end.max(place.end.min(range.end));
            } else {
                selected.push(place.start..place.end.min(range.end));
            }
            follows = true;
        }
        selected
    }
}

/// Returns the function that a compiler has made another from: that of the same name in the same
/// source file, or else the global one. If it is not in the file, its first variant stands for it.
fn original_of<'a>(function: &'a Function, matching: &[&'a Function]) -> &'a Function {
    // Constructors and destructors have several symbols for one name in the source.
    let name = |symbol: &str| full_name(without_variant(symbol));
    let own = name(&function.symbol);
    let find = |source, may_be_variant: bool| {
        matching.iter().copied().find(|other| {
            let is_original = without_variant(&other.symbol) == other.symbol;
            other.source == source && (is_original || may_be_variant) && name(&other.symbol) == own
        })
    };
    let source = || function.source.clone();
    find(source(), false).or_else(|| find(None, false)).or_else(|| find(source(), true)).unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Source;

    fn functions() -> Functions {
        let list = [function(0x10, "parse_a"), function(0x20, "parse_b"), function(0x30, "print")];
        let ends = [0x18, 0x30, 0x40];
        Functions::of_list(list.into_iter().zip(ends).map(|(function, end)| Function { end, ..function }).collect())
    }

    fn function(start: u64, symbol: &str) -> Function {
        Function { start, end: start + 8, symbol: symbol.into(), source: None, part_of: None }
    }

    fn in_source(number: u32, function: Function) -> Function {
        Function { source: Some(Source { name: "a.c".into(), number }), ..function }
    }

    fn choices(list: Vec<Function>, name: &str) -> Vec<u64> {
        Functions::of_list(list).choices(&Pattern::new(name)).iter().map(|function| function.start).collect()
    }

    #[test]
    fn functions_in_a_row_are_one_range() {
        let pattern = Pattern::new("parse_*");
        let wanted = |joined, range: &Range<u64>| {
            functions().selected_ranges(0x1000, range, joined, |function| pattern.matches_symbol(&function.symbol))
        };
        assert_eq!(wanted(true, &(0x1000..0x2000)), vec![0x1010..0x1030; 1]);
        assert_eq!(wanted(false, &(0x1000..0x2000)), [0x1010..0x1018, 0x1020..0x1030]);
        assert_eq!(wanted(true, &(0x1018..0x1028)), vec![0x1020..0x1028; 1]);
    }

    #[test]
    fn an_address_selects_a_function_with_its_parts() {
        let list = vec![function(0x10, "f"), function(0x18, "g"), function(0x80, "f.cold"), function(0x18, "alias")];
        let functions = Functions::of_list(list);
        let selected = |text: &str| {
            let selected = functions.list.iter().filter(|function| functions.selects(&Pattern::new(text), function));
            selected.map(|function| function.symbol.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(selected("0x10"), ["f", "f.cold"]);
        assert_eq!(selected("0x84"), ["f", "f.cold"]);
        assert_eq!(selected("0x1f"), ["alias", "g"]);
        assert!(selected("0x20").is_empty() && selected("0xf").is_empty());
        assert_eq!(selected("f"), ["f", "f.cold"]);
    }

    #[test]
    fn static_functions_of_several_files_are_a_choice() {
        let list = || vec![in_source(1, function(0x10, "f")), in_source(2, function(0x20, "f")), function(0x30, "g")];
        assert_eq!(choices(list(), "f"), [0x10, 0x20]);
        assert_eq!(choices(list(), "g"), [0x30]);
        assert!(choices(list(), "h").is_empty() && choices(list(), "f*").is_empty());
    }

    #[test]
    fn variants_and_other_names_are_no_choice() {
        let variants = vec![
            function(0x10, "f"),
            in_source(1, function(0x20, "f.part.0")),
            in_source(1, function(0x30, "f.part.0.cold")),
            function(0x40, "f@V1"),
        ];
        assert_eq!(choices(variants, "f"), [0x10]);
        let without_original = vec![in_source(1, function(0x20, "f.part.0")), in_source(1, function(0x30, "f.isra.0"))];
        assert_eq!(choices(without_original, "f"), [0x20]);
        let of_two_files = vec![in_source(1, function(0x20, "f.part.0")), in_source(2, function(0x30, "f.part.0"))];
        assert_eq!(choices(of_two_files, "f"), [0x20, 0x30]);
        let destructors = vec![function(0x10, "_ZN1AD0Ev"), function(0x20, "_ZN1AD2Ev"), function(0x20, "_ZN1AD1Ev")];
        assert_eq!(choices(destructors, "A::~A"), [0x10]);
    }

    #[test]
    fn overloads_are_a_choice() {
        let list = || vec![function(0x10, "_ZN2ns1fEi"), function(0x20, "_ZN2ns1fEc")];
        assert_eq!(choices(list(), "ns::f"), [0x10, 0x20]);
        assert_eq!(choices(list(), "ns::f(int)"), [0x10]);
    }
}
