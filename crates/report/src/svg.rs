//! SVG elements: escaped, measured and shortened text, and coordinates rounded to a tenth of a
//! pixel.
//!
//! There are no identifiers and no style sheet, so that several charts can be part of one HTML
//! page.

/// Escapes text for XML; forbidden characters become the replacement character.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Position and style of text.
pub struct Text<'a> {
    pub at: (f64, f64),
    pub size: f64,
    /// `start`, `middle` or `end`: which part of the text is at the position.
    pub anchor: &'a str,
    pub bold: bool,
    /// Degrees, clockwise.
    pub rotation: f64,
}

impl Text<'_> {
    pub fn svg(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let (x, y) = (coordinate_text(self.at.0), coordinate_text(self.at.1));
        let weight = if self.bold { " font-weight=\"bold\"" } else { "" };
        let turn = if self.rotation == 0.0 {
            String::new()
        } else {
            format!(" transform=\"rotate({} {x} {y})\"", self.rotation)
        };
        let (size, anchor) = (self.size, self.anchor);
        let attributes = format!("font-size=\"{size}\" text-anchor=\"{anchor}\"{weight}{turn}");
        format!("<text x=\"{x}\" y=\"{y}\" {attributes}>{}</text>\n", escape(text))
    }
}

pub fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), attributes: &str) -> String {
    let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(coordinate_text);
    format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {attributes}/>\n")
}

/// Returns a tooltip for the enclosing element.
pub fn title(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("<title>{}</title>", escape(hint)) }
}

/// Returns a filled rectangle with a tooltip.
pub fn rectangle((x, y): (f64, f64), (width, height): (f64, f64), color: &str, hint: &str) -> String {
    let [x, y, width, height] = [x, y, width, height].map(coordinate_text);
    let title = title(hint);
    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{color}\">{title}</rect>\n")
}

/// Formats a coordinate. A tenth of a pixel is fine enough and keeps files small.
pub fn coordinate_text(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Returns an upper estimate of the width of text. The font is unknown; this is a little wider than
/// with usual fonts.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|character| width_of(character) * size).sum()
}

fn width_of(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | 'I' | '\'' | '|' | '.' | ',' | ':' | ';' | '!' | ' ' | '\u{a0}' => 0.3,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '-' | '/' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 0.92,
        'A'..='Z' => 0.72,
        // From here on, scripts have wide letters.
        '\u{2e80}'.. => 1.1,
        _ => 0.58,
    }
}

/// Returns the text, shortened if it is too wide.
pub fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let (mut short, mut used) = (String::new(), width("…", size));
    for character in text.chars() {
        used += width_of(character) * size;
        if used > room {
            break;
        }
        short.push(character);
    }
    short.truncate(short.trim_end().len());
    short + "…"
}

/// Wraps words into lines that are no wider than `room`, as far as words allow.
pub fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(word, size) + size / 2.0 <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| fit(line, size, room)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b> & \"c\"\n\u{1}é"), "a&lt;b&gt; &amp; &quot;c&quot; \u{fffd}é");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, 1.25, -0.01, 10.96].map(coordinate_text), ["1", "1.2", "0", "11"]);
    }

    #[test]
    fn text_is_shortened_to_fit() {
        assert_eq!(fit("ocean", 10.0, 100.0), "ocean");
        assert_eq!(fit("ocean noncontiguous", 10.0, 45.0), "ocean…");
        assert_eq!(fit("ocean", 10.0, 0.0), "…");
    }

    #[test]
    fn titles_are_wrapped() {
        assert_eq!(wrap("a few  words here", 10.0, 70.0), ["a few words", "here"]);
        assert!(wrap(" ", 10.0, 70.0).is_empty());
    }
}
