//! Tables as text: a caption, heads, and rows whose cells are aligned.

pub struct Table {
    caption: String,
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

    /// The first column is flush left, numbers are flush right.
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
}
