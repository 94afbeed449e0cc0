//! Which functions of a file are selected, and which ones the user may have meant.

use std::ops::Range;

use crate::functions::{Function, Functions};
use crate::name::plain_name;
use crate::pattern::Pattern;

/// Functions with less than this between them follow each other.
const PADDING_MAX: u64 = 16;

/// The most names to propose.
const NEAR_MAX: usize = 3;

impl Functions {
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

/// Returns the question whether one of the most similar names was meant; empty if there are none.
#[must_use]
pub fn did_you_mean(pattern: &Pattern, files: impl Iterator<Item = Functions>) -> String {
    let mut found: Vec<(usize, String)> = Vec::new();
    for functions in files {
        let names = functions.list.iter().map(|function| plain_name(&function.symbol));
        found.extend(names.filter_map(|name| Some((pattern.distance(&name)?, name))));
    }
    found.sort_unstable();
    found.dedup();
    let near: Vec<String> = found.into_iter().take(NEAR_MAX).map(|(_, name)| name).collect();
    match near.as_slice() {
        [] => String::new(),
        [names @ .., last] if !names.is_empty() => format!("did you mean {} or {last}?", names.join(", ")),
        [only, ..] => format!("did you mean {only}?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        let function = |start, end, symbol: &str| Function { start, end, symbol: symbol.into() };
        let list =
            vec![function(0x10, 0x18, "parse_a"), function(0x20, 0x30, "parse_b"), function(0x30, 0x40, "print")];
        let mut functions = Functions::default();
        functions.list = list;
        functions
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
    fn names_that_are_near() {
        let ask = |name: &str| did_you_mean(&Pattern::new(name), std::iter::once(functions()));
        assert_eq!(ask("parse_c"), "did you mean parse_a or parse_b?");
        assert_eq!(ask("prind"), "did you mean print?");
        assert_eq!(ask("something_else"), "");
    }
}
