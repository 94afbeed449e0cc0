//! Patterns with which users name functions: `sort_*`, `std::vector*::push_back`, `mem[sc]*`,
//! `0x401200`, `libz.so.1:inflate`.

use std::path::Path;

use crate::functions::Function;
use crate::name::names;

/// A name with wildcards, or the address of a function, perhaps with the name of a module.
///
/// Wildcards are `*` for anything, `?` for one character, `[a-z]` and `[!a-z]` for one of several.
/// An address is `0x` and hexadecimal digits: a linked address, as `nm` and `objdump` print it.
/// Before a single colon stands the name of the file that has the function, with wildcards or
/// without; a path with a directory is compared as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    module: Option<Glob>,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Address(u64),
    Name(Glob),
}

/// A text with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Glob {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Literal(char),
    AnyCharacter,
    AnyString,
    Class { ranges: Vec<(char, char)>, inverted: bool },
}

impl Token {
    /// Returns whether the token matches this one character.
    fn matches_character(&self, letter: char) -> bool {
        match self {
            Self::Literal(wanted) => *wanted == letter,
            Self::AnyCharacter => true,
            Self::AnyString => false,
            Self::Class { ranges, inverted } => {
                ranges.iter().any(|&(from, to)| (from..=to).contains(&letter)) != *inverted
            }
        }
    }
}

impl Glob {
    fn new(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            tokens.push(match letter {
                '*' => Token::AnyString,
                '?' => Token::AnyCharacter,
                '[' => match class(rest) {
                    Some((token, after)) => {
                        rest = after;
                        token
                    }
                    None => Token::Literal('['),
                },
                _ => Token::Literal(letter),
            });
        }
        Self { text: text.to_owned(), tokens }
    }

    fn matches(&self, name: &str) -> bool {
        let letters: Vec<char> = name.chars().collect();
        let (mut token, mut letter) = (0, 0);
        // Where to retry after a mismatch: behind the last `*`, one character later.
        let mut retry = None;
        while letter < letters.len() {
            match self.tokens.get(token) {
                Some(Token::AnyString) => {
                    token += 1;
                    retry = Some((token, letter));
                }
                Some(wanted) if wanted.matches_character(letters[letter]) => {
                    token += 1;
                    letter += 1;
                }
                _ => {
                    let Some((after, from)) = retry else { return false };
                    (token, letter) = (after, from + 1);
                    retry = Some((after, letter));
                }
            }
        }
        self.tokens[token..].iter().all(|token| *token == Token::AnyString)
    }
}

impl Pattern {
    #[must_use]
    pub fn new(text: &str) -> Self {
        let (module, function) = split_module(text).map_or((None, text), |(module, rest)| (Some(module), rest));
        let target = match address(function) {
            Some(address) => Target::Address(address),
            None => Target::Name(Glob::new(function)),
        };
        Self { text: text.to_owned(), module: module.map(Glob::new), target }
    }

    /// Returns whether the pattern names a module.
    pub(crate) fn has_module(&self) -> bool {
        self.module.is_some()
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the linked address that the pattern is.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        match self.target {
            Target::Address(address) => Some(address),
            Target::Name(_) => None,
        }
    }

    /// Returns whether the pattern is a name without wildcards, which the user takes for the name
    /// of one function.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let is_literal = |token: &Token| matches!(token, Token::Literal(_));
        matches!(&self.target, Target::Name(glob) if glob.tokens.iter().all(is_literal))
    }

    /// Returns whether the pattern can select functions of a module, given the path of its file. A
    /// name without a module applies to all of them, an address to the executable only: libraries
    /// have functions at the same linked addresses.
    #[must_use]
    pub fn applies_to(&self, path: &str, is_executable: bool) -> bool {
        let Some(module) = &self.module else { return is_executable || self.address().is_none() };
        let file = Path::new(path).file_name().and_then(|name| name.to_str());
        module.matches(path) || file.is_some_and(|name| module.matches(name))
    }

    /// Returns whether the pattern matches `name`; an address does not.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        matches!(&self.target, Target::Name(glob) if glob.matches(name))
    }

    /// Returns whether the pattern matches any name of a function; for one without, the name that
    /// is made from its address.
    #[must_use]
    pub fn matches_function(&self, function: &Function) -> bool {
        match function.symbol.as_str() {
            "" => self.matches(&function.name()),
            symbol => self.matches_symbol(symbol),
        }
    }

    /// Returns whether the pattern matches any name of the function with this symbol.
    #[must_use]
    pub fn matches_symbol(&self, symbol: &str) -> bool {
        // Most symbols are not mangled and do not match: an allocation for each would be slow.
        self.matches(symbol) || (is_decorated(symbol) && names(symbol)[1..].iter().any(|name| self.matches(name)))
    }

    /// Returns how far `name` is from the pattern; `None` if it is too far to be meant.
    #[must_use]
    pub fn distance(&self, name: &str) -> Option<usize> {
        let Target::Name(glob) = &self.target else { return None };
        let wanted: String = glob.text.chars().filter(|letter| !matches!(letter, '*' | '?')).collect();
        let (wanted, name) = (wanted.to_lowercase(), name.to_lowercase());
        if wanted.is_empty() {
            return None;
        }
        let most = (wanted.chars().count() / 3).max(1);
        let close = edit_distance(&wanted, &name, most);
        let within = (wanted.len() >= 4 && name.contains(&wanted)).then(|| most + name.len() - wanted.len());
        close.or(within)
    }
}

fn is_decorated(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R") || symbol.contains(['.', '@'])
}

/// Splits a pattern at the colon behind the name of a module. Names of C++ have double colons, and
/// single ones in brackets: `f[abi:cxx11]`.
fn split_module(text: &str) -> Option<(&str, &str)> {
    let (module, function) = text.split_once(':')?;
    let is_name = module.contains(['[', '(', '<', ' ']) || function.starts_with(':');
    (!is_name && !module.is_empty() && !function.is_empty()).then_some((module, function))
}

fn address(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// A class of characters, from behind its bracket, and what follows it.
fn class(text: &str) -> Option<(Token, &str)> {
    let (inside, after) = text.split_at(text.char_indices().skip(1).find(|&(_, letter)| letter == ']')?.0);
    let inverted = inside.starts_with('!');
    let letters: Vec<char> = inside[usize::from(inverted)..].chars().collect();
    let mut ranges = Vec::new();
    let mut rest = letters.as_slice();
    loop {
        rest = match rest {
            [from, '-', to, rest @ ..] => {
                ranges.push((*from, *to));
                rest
            }
            [one, rest @ ..] => {
                ranges.push((*one, *one));
                rest
            }
            [] => break,
        };
    }
    (!ranges.is_empty()).then_some((Token::Class { ranges, inverted }, &after[1..]))
}

/// Returns the edit distance with insertions, deletions, substitutions and transpositions, if it is
/// at most `most`.
fn edit_distance(one: &str, other: &str, most: usize) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, &letter) in one.iter().enumerate() {
        let mut next = vec![at + 1; other.len() + 1];
        for (column, &theirs) in other.iter().enumerate() {
            let changed = row[column] + usize::from(letter != theirs);
            next[column + 1] = changed.min(row[column + 1] + 1).min(next[column] + 1);
            if at > 0 && column > 0 && letter == other[column - 1] && one[at - 1] == theirs {
                next[column + 1] = next[column + 1].min(before[column - 1] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().filter(|&edits| edits <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let pattern = Pattern::new(pattern);
        yes.iter().for_each(|name| assert!(pattern.matches_symbol(name), "{pattern:?} {name}"));
        no.iter().for_each(|name| assert!(!pattern.matches_symbol(name), "{pattern:?} {name}"));
    }

    #[test]
    fn wildcards() {
        check("main", &["main"], &["", "mai", "mains", "amain", "Main"]);
        check("*", &["", "x", "any thing"], &[]);
        check("sort_*", &["sort_", "sort_me"], &["sort", "asort_"]);
        check("*a*b", &["ab", "xaxbxb", "aab"], &["aba", "b"]);
        check("f?o", &["foo", "f*o"], &["fo", "fooo"]);
        check("mem[sc]*", &["memset", "memcpy"], &["memmove", "mem"]);
        check("[!a-c]x", &["dx", "-x"], &["ax", "cx", "x"]);
        check("a[", &["a["], &["a"]);
        check("operator[]", &["operator[]"], &["operator"]);
        check("a[]b]", &["a]", "ab"], &["a", "a["]);
    }

    #[test]
    fn decorated_symbols() {
        check("ns::f", &["_ZN2ns1fEi", "_ZN2ns1fEi.part.0"], &["_ZN2ns1gEi"]);
        check("ns::f(int)", &["_ZN2ns1fEi"], &["_ZN2ns1fEc"]);
        check("sort", &["sort", "sort.isra.0", "sort.cold"], &["sort.b", "sorted"]);
        check("core::fmt::*", &["_ZN4core3fmt5write17h0123456789abcdefE"], &["core"]);
    }

    #[test]
    fn addresses() {
        let address = |text: &str| Pattern::new(text).address();
        assert_eq!((address("0x401200"), address("0xAb"), address("l.so:0x7")), (Some(0x40_1200), Some(0xab), Some(7)));
        assert_eq!((address("401200"), address("0x"), address("0xg"), address("0x+1")), (None, None, None, None));
        assert_eq!((address("0x10000000000000000"), address("0x*")), (None, None));
        check("0x10", &[], &["", "0x10"]);
    }

    #[test]
    fn names_without_wildcards_are_exact() {
        let is_exact = |text: &str| Pattern::new(text).is_exact();
        assert!(["main", "ns::f(int)", "operator[]", "l.so:f", "l*:f"].into_iter().all(is_exact));
        assert!(!["m*", "f?", "[ab]", "0x10", "l.so:0x10"].into_iter().any(is_exact));
    }

    #[test]
    fn patterns_with_a_module() {
        let applies = |text: &str, path: &str, is_executable| Pattern::new(text).applies_to(path, is_executable);
        assert!(applies("libz.so.1:f", "/lib/libz.so.1", false) && !applies("libz.so.1:f", "/lib/libz.so.2", false));
        assert!(applies("libz*:0x10", "/lib/libz.so.1", false) && applies("/lib/libz.so:f", "/lib/libz.so", false));
        assert!(applies("f", "/lib/libz.so", false) && applies("f", "/bin/sort", true));
        assert!(applies("0x10", "/bin/sort", true) && !applies("0x10", "/lib/libz.so", false));
        assert!(!applies("sort:main", "/bin/sorted", true));
        check("libz.so.1:in?late", &["inflate"], &["libz.so.1:inflate"]);
        check("l.so:ns::f", &["_ZN2ns1fEi"], &["f"]);
    }

    #[test]
    fn colons_in_names() {
        check("ns::f", &["ns::f"], &[]);
        check("f[[]abi:cxx11]", &["f[abi:cxx11]"], &[]);
        check("a:", &["a:"], &[]);
        check(":a", &[":a"], &[]);
    }

    #[test]
    fn functions_without_a_name_are_matched_by_their_address() {
        let nameless =
            Function { start: 0x40_1200, end: 0x40_1210, symbol: String::new(), source: None, part_of: None };
        let matches = |text: &str| Pattern::new(text).matches_function(&nameless);
        assert!(["sub_401200", "sub_4012*", "*"].into_iter().all(matches));
        assert!(!["", "sub_401201", "0x401200"].into_iter().any(matches));
    }

    #[test]
    fn near_names() {
        let near = |pattern: &str, name: &str| Pattern::new(pattern).distance(name);
        assert_eq!(near("quiksort", "quicksort"), Some(1));
        assert_eq!(near("Quicksort", "quicksort"), Some(0));
        assert_eq!(near("mian", "main"), Some(1));
        assert_eq!(near("sort", "zebra"), None);
        assert_eq!(near("sort", "quicksort"), Some(6));
        assert_eq!(near("*", "quicksort"), None);
        assert!(near("qsort*", "qsort_r") < near("qsort*", "my_qsort_helper"));
    }
}
