//! Figures 6.1 to 6.3, and the slowdown of programs.

use report::{Bars, Chart};

use super::{ProgramResult, Study, spread, timed_tools};

impl Study {
    /// Returns all figures, each with a name for its file.
    pub(super) fn charts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("figure-6-1", self.shared_to_private()),
            ("figure-6-2", self.per_unit_chart("Figure 6.2: private mlvCFiat, size of the trace", "mlvcfiat_private")),
            ("figure-6-3", self.per_unit_chart("Figure 6.3: shared mlvCFiat, size of the trace", "mlvcfiat_shared")),
            ("slowdown", self.slowdown_chart()),
        ]
    }

    fn by_row(&self, title: &str) -> Chart<Bars> {
        Chart::bars(title).categories(self.rows.iter().map(|row| format!("{}, N = {}", row.program, row.threads)))
    }

    fn values(&self, value: impl Fn(&ProgramResult) -> f64) -> Vec<f64> {
        self.rows.iter().map(value).collect()
    }

    fn shared_to_private(&self) -> String {
        let title = "Figure 6.1: size of traces, shared divided by private structures";
        let ratio = |shared: &str, private: &str| {
            let of = |row: &ProgramResult| row.size_ratio(shared, private);
            self.rows.iter().map(of).map(|ratio| (ratio.median, (ratio.low, ratio.high))).collect::<Vec<_>>()
        };
        let chart = self.by_row(title).y("shared/private");
        chart
            .ranges("mcfTRaptor", ratio("mcftraptor_shared", "mcftraptor_private"))
            .ranges("mcfTRaptor, turns of one branch", ratio("mcftraptor_interleaved", "mcftraptor_private"))
            .ranges("mlvCFiat", ratio("mlvcfiat_shared", "mlvcfiat_private"))
            .svg()
    }

    fn per_unit_chart(&self, title: &str, tool: &str) -> String {
        let chart = self.by_row(title).y("bytes");
        let chart = chart.series("per instruction", self.values(|row| row.per_unit(tool)[0].median));
        chart.series("per read", self.values(|row| row.per_unit(tool)[1].median)).svg()
    }

    fn slowdown_chart(&self) -> String {
        let chart = self.by_row("How many times as long as natively, larger runs").y("times").log_y();
        let native = |row: &ProgramResult| spread(&row.long_seconds.native).median;
        let untraced = |row: &ProgramResult| spread(&row.long_seconds.untraced).median;
        let chart = chart.series("untraced", self.values(|row| untraced(row) / native(row)));
        let live = |row: &ProgramResult, tool: &str| row.long_seconds.live(tool).median / native(row);
        let all =
            timed_tools().fold(chart, |chart, tool| chart.series(tool.name, self.values(|row| live(row, tool.name))));
        all.svg()
    }
}
