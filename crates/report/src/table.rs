//! Tables: a caption, heads, and rows of cells; as aligned text, Markdown or CSV.

pub struct Table {
    caption: String,
    /// The first row has the heads.
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(caption: &str, heads: &[&str]) -> Self {
        let caption = caption.to_owned();
        Self { caption, rows: vec![heads.iter().map(|&head| head.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn caption(&self) -> &str {
        &self.caption
    }

    pub fn heads(&self) -> &[String] {
        &self.rows[0]
    }

    /// Returns the rows without the heads.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows[1..]
    }

    /// Returns aligned text: the first column is flush left, the others are flush right.
    pub fn text(&self) -> String {
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let mut text = format!("{}\n", self.caption);
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = width(column).unwrap_or(0);
                line.push_str(&if column == 0 { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
        text
    }

    /// Returns the caption as a heading and a GitHub table. Rows shorter than the heads are filled
    /// up.
    pub fn markdown(&self) -> String {
        let width = self.heads().len();
        let line = |row: &[String]| {
            let cells = (0..width).map(|column| row.get(column).map_or(String::new(), |cell| cell.replace('|', "\\|")));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = "| --- ".to_owned() + &"| ---: ".repeat(width.saturating_sub(1)) + "|\n";
        let rows: String = self.rows().iter().map(|row| line(row)).collect();
        format!("### {}\n\n{}{rule}{rows}\n", self.caption, line(self.heads()))
    }

    /// Returns heads and rows by RFC 4180, without the caption.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            text.push_str(&row.iter().map(|cell| quote(cell)).collect::<Vec<_>>().join(","));
            text.push_str("\r\n");
        }
        text
    }
}

fn quote(cell: &str) -> String {
    if cell.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned() {
        let mut table = Table::new("Sizes", &["program", "N", "bytes"]);
        table.row(["fft".into(), "1".into(), "1 520".into()]);
        assert_eq!(table.text(), "Sizes\n  program  N  bytes\n  fft      1  1 520\n\n");
    }

    #[test]
    fn rows_may_be_longer_than_the_heads() {
        let mut table = Table::new("Sizes", &["program"]);
        table.row(["fft".into(), "1".into()]);
        table.row([]);
        assert_eq!(table.text(), "Sizes\n  program\n  fft      1\n\n\n");
        assert_eq!(table.csv(), "program\r\nfft,1\r\n\r\n");
    }

    #[test]
    fn markdown() {
        let mut table = Table::new("Sizes", &["program", "N|M", "bytes"]);
        table.row(["fft".into(), "1".into(), "1 520".into()]);
        table.row(["lu".into()]);
        let expected =
            "### Sizes\n\n| program | N\\|M | bytes |\n| --- | ---: | ---: |\n| fft | 1 | 1 520 |\n| lu |  |  |\n\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let mut table = Table::new("Not in CSV", &["program", "N, all", "said"]);
        table.row(["fft 7".into(), "1".into(), "\"no\"".into()]);
        table.row([String::new(), "two\nlines".into(), "é".into()]);
        let expected = "program,\"N, all\",said\r\nfft 7,1,\"\"\"no\"\"\"\r\n,\"two\nlines\",é\r\n";
        assert_eq!(table.csv(), expected);
    }
}
