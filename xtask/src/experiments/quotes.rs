//! Numbers that a page quotes from tables: links such as `[0.93](experiments/port.md#table-5-1
//! "total; N=1")`. The title of the link contains the first cells of a row and the head of the
//! column; `min` and `max` stand for the row with the lowest and the highest number.

/// Where quotes begin, behind their text.
const LINK: &str = "](experiments/";

/// A quote, cut out of the page.
struct Quote<'p> {
    text: &'p str,
    experiment: &'p str,
    table: &'p str,
    cell: &'p str,
}

/// Returns the page with all numbers as they are in the tables, each with as many decimals as
/// before. `pages` returns the page with the tables of an experiment.
pub fn refreshed(page: &str, pages: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let (mut fresh, mut rest) = (String::new(), page);
    while let Some((before, quote, behind)) = next(rest) {
        let value = value(&pages(quote.experiment)?, &quote)?;
        let begin = before.len() - quote.text.len();
        fresh += &before[..begin];
        fresh += &formatted(value, decimals(quote.text));
        fresh += &rest[before.len()..rest.len() - behind.len()];
        rest = behind;
    }
    Ok(fresh + rest)
}

/// Returns the number of quotes.
#[cfg(test)]
pub fn count(page: &str) -> usize {
    let mut rest = page;
    std::iter::from_fn(|| next(rest).map(|(_, _, behind)| rest = behind)).count()
}

/// Returns the next quote, and the text before and behind its link. Links without a title quote
/// nothing.
fn next(page: &str) -> Option<(&str, Quote<'_>, &str)> {
    let mut from = 0;
    loop {
        let at = from + page[from..].find(LINK)?;
        from = at + LINK.len();
        let end = page[from..].find([')', '"'])?;
        if page[from + end..].starts_with(')') {
            continue;
        }
        let (place, rest) = (page[from..from + end].trim_end(), &page[from + end + 1..]);
        let (cell, behind) = rest.split_once("\")")?;
        let (file, table) = place.split_once('#').unwrap_or((place, ""));
        let text = page[..at].rsplit('[').next().unwrap_or_default();
        let experiment = file.trim_end_matches(".md");
        return Some((&page[..at], Quote { text, experiment, table, cell }, behind));
    }
}

fn decimals(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// Formats a number with groups of three digits.
fn formatted(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        let left = whole.len() - place;
        if place > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped + &rest.map_or(String::new(), |rest| format!(".{rest}"))
}

/// Returns the number at the start of a cell: a median, or a count.
fn number(cell: &str) -> Option<f64> {
    let end = cell.find(|letter: char| !(letter.is_ascii_digit() || "-. ".contains(letter))).unwrap_or(cell.len());
    cell[..end].replace(' ', "").parse().ok()
}

fn value(page: &str, quote: &Quote<'_>) -> Result<f64, String> {
    let Quote { experiment, table, cell, .. } = quote;
    let wrong = |what: &str| format!("docs/experiments/{experiment}.md has no {what} for \"{cell}\" in {table}");
    let (_, section) = page.split_once(&format!("<a id=\"{table}\"></a>")).ok_or_else(|| wrong("table"))?;
    let section = section.split("<a id=").next().unwrap_or_default();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = section.lines().filter(|line| line.starts_with('|')).map(cells);
    let heads = rows.next().ok_or_else(|| wrong("heads"))?;
    let mut words: Vec<&str> = cell.split("; ").collect();
    let head = words.pop().unwrap_or_default();
    if words.is_empty() {
        return Err(wrong("row"));
    }
    let column = heads.iter().position(|own| own == head).ok_or_else(|| wrong("column"))?;
    let numbers = |rows: &mut dyn Iterator<Item = Vec<String>>| {
        rows.filter_map(|row| number(row.get(column)?)).collect::<Vec<f64>>()
    };
    // A rule follows the heads.
    let mut rows = rows.skip(1);
    match words[..] {
        ["min"] => numbers(&mut rows).into_iter().reduce(f64::min),
        ["max"] => numbers(&mut rows).into_iter().reduce(f64::max),
        _ => rows
            .find(|row| words.iter().zip(row).all(|(word, cell)| word == cell))
            .and_then(|row| number(row.get(column)?)),
    }
    .ok_or_else(|| wrong("row with a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "<a id=\"one\"></a>\n\n### One\n\n\
                          | program | N | raw | better |\n| --- | ---: | ---: | ---: |\n\
                          | fft | 1 | 1 234.56 (1 000.00–2 000.00) | 2 of 20 |\n| fft | 4 | -0.07 | - |\n\n\
                          <a id=\"two\"></a>\n\n| a | b |\n| --- | ---: |\n| fft | 7 |\n| (3,2) | 8 |\n";

    fn fresh(page: &str) -> Result<String, String> {
        refreshed(page, &|name| if name == "port" { Ok(TABLES.into()) } else { Err(format!("no {name}")) })
    }

    #[test]
    fn numbers_are_brought_up_to_date() {
        let page = "It is [1.0](experiments/port.md#one \"fft; 1; raw\"), \
                    [3](experiments/port.md#one \"fft; 1; better\") of 20, see [here](experiments/port.md).";
        let expected = page.replace("[1.0]", "[1 234.6]").replace("[3]", "[2]");
        assert_eq!(fresh(page).unwrap(), expected);
        assert_eq!((fresh(&expected).unwrap(), count(page)), (expected, 2));
    }

    #[test]
    fn extremes_and_signs_are_quoted() {
        let quoted = |title: &str| fresh(&format!("[0.0](experiments/port.md#one \"{title}\")"));
        assert!(quoted("max; raw").unwrap().starts_with("[1 234.6]"));
        assert!(quoted("min; raw").unwrap().starts_with("[-0.1]"));
        let brackets = "[0](experiments/port.md#two \"(3,2); b\") and [1](experiments/port.md)";
        assert_eq!(fresh(brackets).unwrap(), brackets.replace("[0]", "[8]"));
        assert_eq!((formatted(-1234.5, 1), formatted(-123.0, 0)), ("-1 234.5".into(), "-123".into()));
    }

    #[test]
    fn missing_cells_are_reported() {
        for (place, what) in [
            ("port.md#three \"fft; b\"", "table"),
            ("port.md#one \"fft; 1; b\"", "column"),
            ("port.md#two \"radix; b\"", "row"),
            ("port.md \"fft; b\"", "table"),
            ("port.md#one \"fft; 4; better\"", "number"),
            ("part.md#one \"fft; 1; raw\"", "no part"),
        ] {
            let failure = fresh(&format!("[1](experiments/{place})")).unwrap_err();
            assert!(failure.contains(what), "{failure}");
        }
    }
}
