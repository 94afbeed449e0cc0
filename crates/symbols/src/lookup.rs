//! Finds functions by address, in a list in which functions may overlap.
//!
//! Ranges of functions overlap where a file has several names for the same code, and where
//! hand-written assembly nests functions. A [`Lookup`] cuts the address space into disjoint spans,
//! each with the innermost function that covers it, so that a binary search finds it.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::functions::Function;

/// Addresses, and the index of the function that has them.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    index: usize,
}

/// Indices into a list of functions, by addresses.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    spans: Vec<Span>,
    /// Where functions start that have parts elsewhere, each with the index of a part; sorted.
    parts: Vec<(u64, usize)>,
}

impl Lookup {
    /// Makes the lookup of a list in order of addresses.
    pub fn new(list: &[Function]) -> Self {
        let mut parts: Vec<(u64, usize)> =
            list.iter().enumerate().filter_map(|(index, function)| Some((function.part_of?, index))).collect();
        parts.sort_unstable();
        Self { spans: spans(list), parts }
    }

    /// Returns the index of the function at an address.
    pub fn at(&self, address: u64) -> Option<usize> {
        let before = self.spans.partition_point(|span| span.start <= address).checked_sub(1)?;
        self.spans.get(before).filter(|span| address < span.end).map(|span| span.index)
    }

    /// Returns the indices of the parts of the function that starts at an address.
    pub fn parts_of(&self, start: u64) -> impl Iterator<Item = usize> + '_ {
        let from = self.parts.partition_point(|&(whole, _)| whole < start);
        let rest = self.parts.get(from..).unwrap_or_default();
        rest.iter().take_while(move |&&(whole, _)| whole == start).map(|&(_, index)| index)
    }
}

/// Returns the spans of a list. A function lies upon those that start earlier, that are longer, and
/// that have a name which is less plain.
fn spans(list: &[Function]) -> Vec<Span> {
    let mut order: Vec<(usize, &Function)> = list.iter().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| {
        let by_range = one.start.cmp(&other.start).then(other.end.cmp(&one.end));
        by_range.then_with(|| plainness(&other.symbol).cmp(&plainness(&one.symbol)))
    });
    let mut pile = Pile::default();
    for (index, function) in order {
        pile.advance(function.start);
        pile.open.push((function.end, index));
    }
    pile.advance(u64::MAX);
    pile.spans
}

/// Orders the names of one range: first the one that people use. Compilers and libraries add
/// underscores and suffixes to names that are for themselves.
fn plainness(symbol: &str) -> (usize, usize, &str) {
    let underscores = symbol.bytes().take_while(|&byte| byte == b'_').count();
    (underscores, symbol.len(), symbol)
}

/// The functions that cover an address, from the outermost to the innermost, as the address grows.
#[derive(Default)]
struct Pile {
    address: u64,
    /// The end and the index of each.
    open: Vec<(u64, usize)>,
    spans: Vec<Span>,
}

impl Pile {
    /// Adds the spans up to an address.
    fn advance(&mut self, until: u64) {
        while let Some(&(end, index)) = self.open.last() {
            let stop = end.min(until);
            if self.address < stop {
                self.spans.push(Span { start: self.address, end: stop, index });
                self.address = stop;
            }
            if end > until {
                break;
            }
            self.open.pop();
        }
        self.address = until;
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn function(start: u64, end: u64, symbol: &str) -> Function {
        Function { start, end, symbol: symbol.into(), source: None, part_of: None }
    }

    /// Returns the name at each address from 0 to 9.
    fn names(list: &[Function]) -> String {
        let lookup = Lookup::new(list);
        (0..10).map(|address| lookup.at(address).map_or("-", |index| &list[index].symbol)).collect()
    }

    #[test]
    fn the_innermost_function_is_found() {
        assert_eq!(names(&[]), "----------");
        assert_eq!(names(&[function(1, 3, "a"), function(5, 7, "b")]), "-aa--bb---");
        assert_eq!(names(&[function(1, 9, "a"), function(3, 5, "b"), function(4, 5, "c")]), "-aabcaaaa-");
    }

    #[test]
    fn functions_that_overlap_without_nesting_are_found() {
        assert_eq!(names(&[function(1, 5, "a"), function(3, 8, "b")]), "-aabbbbb--");
        assert_eq!(names(&[function(0, 9, "a"), function(1, 3, "b"), function(2, 7, "c")]), "abcccccaa-");
    }

    #[test]
    fn the_plainest_of_several_names_is_found() {
        let list = [function(0, 2, "__x"), function(0, 2, "_"), function(0, 2, "x"), function(0, 2, "x@V1")];
        assert_eq!(names(&list), "xx--------");
    }

    #[test]
    fn parts_are_found_by_the_start_of_their_function() {
        let part = |start, whole| Function { part_of: Some(whole), ..function(start, start + 1, "p") };
        let list = [part(1, 7), part(2, 5), part(3, 7), function(7, 9, "f")];
        let parts = |start| Lookup::new(&list).parts_of(start).collect::<Vec<_>>();
        assert_eq!((parts(7), parts(5), parts(6)), (vec![0, 2], vec![1], vec![]));
    }
}
