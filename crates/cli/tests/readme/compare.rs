//! Compares the output of a command with what the README shows.
//!
//! Words must be the same. Numbers that differ between runs and machines, like addresses, must
//! differ in the same way everywhere: the total that `info` shows stands for the same total in
//! `verify`.

use std::collections::HashMap;

/// How closely output must agree with what is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Closeness {
    /// Character by character.
    Exact,
    /// The same words. Counts and measures agree within a factor of two.
    Similar,
    /// The same words. Numbers of one digit are the same, others have the same form.
    Shape,
}

/// Stands for lines that are not shown.
const ELLIPSIS: &str = "…";
/// A line with this beginning ends with text about the machine.
const RECORDED_BY: &str = "recorded by";
/// Numbers with at least this many digits are not equal by chance.
const LONG: usize = 6;

/// Maps long numbers on the page to printed ones.
#[derive(Default)]
pub struct Comparison {
    printed: HashMap<String, String>,
    shown: HashMap<String, String>,
}

impl Comparison {
    /// Compares all lines, in order; an ellipsis stands for any lines.
    pub fn lines(&mut self, shown: &[String], printed: &str, closeness: Closeness) -> Result<(), String> {
        let mut printed = printed.lines().peekable();
        let mut skips = false;
        for line in shown {
            if line == ELLIPSIS {
                skips = true;
                continue;
            }
            if skips {
                while printed.next_if(|printed| !has_same_words(line, printed)).is_some() {}
            }
            let found = printed.next().ok_or_else(|| format!("'{line}' is not printed"))?;
            self.line(line, found, closeness).map_err(|problem| format!("'{line}': {problem}"))?;
            skips = false;
        }
        match printed.next().filter(|_| !skips) {
            Some(line) => Err(format!("'{line}' is not shown")),
            None => Ok(()),
        }
    }

    fn line(&mut self, shown: &str, printed: &str, closeness: Closeness) -> Result<(), String> {
        if closeness == Closeness::Exact {
            return if shown == printed { Ok(()) } else { Err(format!("'{printed}' is printed")) };
        }
        if !has_same_words(shown, printed) {
            return Err(format!("'{printed}' has other words"));
        }
        if shown.starts_with(RECORDED_BY) {
            return Ok(());
        }
        let (shown, printed) = (pieces(shown), pieces(printed));
        let pairs = shown.iter().zip(&printed).filter_map(|pair| match pair {
            (Piece::Number(shown), Piece::Number(printed)) => Some((shown, printed)),
            _ => None,
        });
        for (shown, printed) in pairs {
            self.number(shown, printed, closeness)?;
        }
        Ok(())
    }

    fn number(&mut self, shown: &str, printed: &str, closeness: Closeness) -> Result<(), String> {
        let differ = |how: &str| Err(format!("{shown} {how} {printed}"));
        if (is_hexadecimal(shown), decimals(shown)) != (is_hexadecimal(printed), decimals(printed)) {
            return differ("has another form than");
        }
        if shown.len() == 1 && shown != printed {
            return differ("is not");
        }
        if is_chosen(shown) && bare(shown) != bare(printed) {
            return differ("was asked for and is not");
        }
        if closeness == Closeness::Similar && is_measure(shown) && !is_near(shown, printed) {
            return differ("is far from");
        }
        if is_hexadecimal(shown) || decimals(shown) == 0 && bare(shown).len() >= LONG {
            return self.bind(bare(shown), bare(printed));
        }
        Ok(())
    }

    /// A number that is shown twice stands for one that is printed twice, and the other way round.
    fn bind(&mut self, shown: String, printed: String) -> Result<(), String> {
        let first_printed = self.printed.entry(shown.clone()).or_insert_with(|| printed.clone());
        let first_shown = self.shown.entry(printed.clone()).or_insert_with(|| shown.clone());
        match (*first_printed == printed, *first_shown == shown) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("{shown} stands for {first_printed} and for {printed}")),
            (true, false) => Err(format!("{first_shown} and {shown} stand for {printed}")),
        }
    }
}

/// A part of a line.
#[derive(Debug, PartialEq)]
enum Piece {
    /// With single spaces: columns are as wide as their numbers.
    Text(String),
    /// As it is written.
    Number(String),
}

fn pieces(line: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut rest, mut before) = (line, ' ');
    while let Some(letter) = rest.chars().next() {
        let length = if before.is_alphanumeric() || ".-_".contains(before) { 0 } else { number_length(rest) };
        match (length, pieces.last_mut()) {
            (1.., _) => pieces.push(Piece::Number(rest[..length].into())),
            (0, Some(Piece::Text(text))) if !(letter == ' ' && before == ' ') => text.push(letter),
            (0, Some(Piece::Text(_))) => {}
            (0, _) => pieces.push(Piece::Text(letter.into())),
        }
        let (done, left) = rest.split_at(length.max(letter.len_utf8()));
        (rest, before) = (left, done.chars().next_back().unwrap_or(letter));
    }
    pieces
}

/// The length of the number that a text begins with; zero if it begins with none, or with a word
/// like `1024x4`.
fn number_length(text: &str) -> usize {
    let digits = |text: &str| text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let mut length = match text.strip_prefix("0x") {
        Some(rest) => 2 + rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_hexdigit()).len(),
        None => digits(text),
    };
    while length > 0 && text[length..].starts_with(' ') && digits(&text[length + 1..]) == 3 {
        length += 4;
    }
    if length > 0 && text[length..].starts_with('.') && digits(&text[length + 1..]) > 0 {
        length += 1 + digits(&text[length + 1..]);
    }
    if text[length..].starts_with(char::is_alphanumeric) { 0 } else { length }
}

fn has_same_words(shown: &str, printed: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        let line = if line.starts_with(RECORDED_BY) { line.split(" on ").next().unwrap_or_default() } else { line };
        let word = |piece| match piece {
            Piece::Text(text) => text,
            Piece::Number(_) => "#".into(),
        };
        pieces(line).into_iter().map(word).collect()
    };
    words(shown) == words(printed)
}

fn is_hexadecimal(number: &str) -> bool {
    number.starts_with("0x")
}

/// How many digits are behind the point.
fn decimals(number: &str) -> usize {
    number.split_once('.').map_or(0, |(_, fraction)| fraction.len())
}

/// Counts have groups of digits; process numbers do not.
fn is_measure(number: &str) -> bool {
    number.contains([' ', '.'])
}

fn bare(number: &str) -> String {
    number.replace(' ', "")
}

fn value(number: &str) -> f64 {
    bare(number).parse().unwrap_or_else(|_| panic!("'{number}' is no number"))
}

/// Returns whether a number is a whole number of millions, which an option has asked for.
fn is_chosen(number: &str) -> bool {
    decimals(number) == 0 && bare(number).ends_with("000000") && !is_hexadecimal(number)
}

/// Within a factor of two. Percentages and seconds near zero may differ by more.
fn is_near(shown: &str, printed: &str) -> bool {
    let slack = if [2, 6].contains(&decimals(shown)) { 0.1 } else { 0.0 };
    let (shown, printed) = (value(shown), value(printed));
    (shown - printed).abs() <= slack || (0.5..=2.0).contains(&(shown / printed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether printed lines agree with those that are shown.
    fn agree(shown: &str, printed: &str, closeness: Closeness) -> bool {
        let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
        Comparison::default().lines(&shown, printed, closeness).is_ok()
    }

    #[test]
    fn lines_have_pieces() {
        let text = |text: &str| Piece::Text(text.into());
        let number = |number: &str| Piece::Number(number.into());
        assert_eq!(pieces("a  1 234 567      35"), [text("a "), number("1 234 567"), text(" "), number("35")]);
        assert_eq!(pieces("%95.12 0x8850,"), [text("%"), number("95.12"), text(" "), number("0x8850"), text(",")]);
        assert_eq!(pieces("libc.so.6 1024x4 100M"), [text("libc.so.6 1024x4 100M")]);
    }

    #[test]
    fn other_lines_are_noticed() {
        let shown = "1, 0x000000000040101b, C, D, NT jz 0x401020";
        assert!(agree(shown, shown, Closeness::Exact));
        for other in [("0x401020", "0x401021"), ("NT", "T"), ("jz", "jnz"), ("1,", "0,"), ("0x00", "0x0")] {
            assert!(!agree(shown, &shown.replacen(other.0, other.1, 1), Closeness::Exact), "{other:?}");
        }
        assert!(!agree("a\nb", "a", Closeness::Shape), "a line is missing");
        assert!(!agree("a", "a\nb", Closeness::Shape), "a line is not shown");
        assert!(agree("…\nb 12\n…", "a\nb 13\nc", Closeness::Shape));
        assert!(!agree("…\nb 12", "a\nb 13\nc", Closeness::Shape), "the last line is not shown");
    }

    #[test]
    fn other_words_and_far_numbers_are_noticed() {
        let shown = "thread  parent  instructions\n     1       0     1 234 567  29.06 %";
        let printed = "thread  parent  instructions\n     1       0       934 567  31.00 %";
        assert!(agree(shown, printed, Closeness::Similar));
        let others =
            [("thread", "threads"), ("  1 ", "  2 "), ("934 567", "434 567"), ("31.00", "3.10"), ("31.00", "31.0")];
        for other in others {
            assert!(!agree(shown, &printed.replacen(other.0, other.1, 1), Closeness::Similar), "{other:?}");
        }
        assert!(agree(shown, &printed.replace("31.00", "3.10"), Closeness::Shape));
        assert!(agree("0.01 %", "0.07 %", Closeness::Similar));
        assert!(!agree("0.0282 bits", "0.0700 bits", Closeness::Similar));
        assert!(!agree("100 000 000 instructions", "100 000 001 instructions", Closeness::Similar));
    }

    #[test]
    fn a_number_stands_for_the_same_everywhere() {
        let shown = "instructions 1 234 567\n{'instructions': 1234567}";
        assert!(agree(shown, "instructions 1 234 568\n{'instructions': 1234568}", Closeness::Similar));
        assert!(!agree(shown, "instructions 1 234 568\n{'instructions': 1234567}", Closeness::Similar));
        assert!(!agree("0x401000\n0x402000", "0x555000\n0x555000", Closeness::Similar));
    }
}
