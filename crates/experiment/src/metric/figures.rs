//! Figure 7 of METRIC, and Table I as figures.

use memory::MemoryCodec::{Native, Prsd, Vpc3};
use report::{Bars, Chart};

use super::tables::TIME_PARTS;
use super::{Round, Study};

impl Study {
    /// Returns all figures, each with a name for its file.
    pub(super) fn charts(&self) -> Vec<(&'static str, String)> {
        vec![("table-1", self.rate_chart()), ("finding", self.finding_chart()), ("figure-7", self.time_chart())]
    }

    fn programs(&self) -> impl Iterator<Item = &str> {
        self.results.iter().map(|own| own.program.as_str())
    }

    fn rate_chart(&self) -> String {
        let title = "Table I: compression rates, the most regular program first";
        let chart = Chart::bars(title).categories(self.programs()).y("6 bytes per access/bytes of the file").log_y();
        let codecs = [Prsd, Vpc3, Native];
        let add = |chart: Chart<Bars>, codec: memory::MemoryCodec| {
            chart.series(codec.name(), self.medians(|round| round.rate(codec)))
        };
        codecs.into_iter().fold(chart, add).svg()
    }

    fn finding_chart(&self) -> String {
        let points =
            self.results.iter().map(|own| (own.predictable_percent(), own.median(Round::ratio), &*own.program));
        let chart = Chart::lines("Regularity, and how much better regular sections compress than VPC3");
        let chart = chart.x("predictable accesses, %").y("rate of prsd/rate of vpc3").log_y();
        chart.labelled_points("program", points).svg()
    }

    fn time_chart(&self) -> String {
        let title = "Figure 7: time of prsd relative to that of vpc3";
        let chart = Chart::bars(title).categories(self.programs()).y("relative to vpc3").stacked();
        let add = |chart: Chart<Bars>, (name, part): &(&str, fn(&Round) -> f64)| chart.series(name, self.medians(part));
        TIME_PARTS.iter().fold(chart, add).svg()
    }
}
