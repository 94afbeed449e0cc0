//! Patterns with which users name functions: `sort_*`, `std::vector*::push_back`, `mem[sc]*`.

use crate::name::names;

/// A name with wildcards: `*` for anything, `?` for one character, `[a-z]` and `[!a-z]` for one of
/// several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
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

impl Pattern {
    #[must_use]
    pub fn new(text: &str) -> Self {
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

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
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

    /// Returns whether the pattern matches any name of the function with this symbol.
    #[must_use]
    pub fn matches_symbol(&self, symbol: &str) -> bool {
        // Most symbols are not mangled and do not match: an allocation for each would be slow.
        self.matches(symbol) || (is_decorated(symbol) && names(symbol)[1..].iter().any(|name| self.matches(name)))
    }

    /// Returns how far `name` is from the pattern; `None` if it is too far to be meant.
    #[must_use]
    pub fn distance(&self, name: &str) -> Option<usize> {
        let wanted: String = self.text.chars().filter(|letter| !matches!(letter, '*' | '?')).collect();
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
    symbol.starts_with("_Z") || symbol.starts_with("_R") || symbol.contains('.')
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
