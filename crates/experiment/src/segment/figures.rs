//! Figures of policies side by side, and the numbers behind them: like Figures 7.1 to 7.3 of
//! Hadjipavlou 2025.

use report::{Chart, Table};
use segment::{LengthWeight, max_norm_ratios, pareto_front};

use super::run::PolicyOutcome;

/// Policies that are shown together, each with a name.
pub struct Figures<'f> {
    /// The program or trace, for titles.
    pub subject: &'f str,
    /// The weight of the trace length that is drawn and that the ratio uses.
    pub weight: LengthWeight,
    pub outcomes: Vec<(String, &'f PolicyOutcome)>,
}

/// The number of lines that a reader can distinguish.
const FEW: usize = 7;

impl Figures<'_> {
    /// Returns all figures and tables as files.
    pub fn files(&self) -> Vec<(String, String)> {
        let svg = |name: &str, svg| (format!("{name}.svg"), svg);
        let csv = |name: &str, table: Table| (format!("{name}.csv"), table.csv());
        vec![
            svg("coverage", self.coverage()),
            csv("coverage", self.coverage_table()),
            svg("length-and-count", self.length_and_count()),
            svg("ratio", self.ratio()),
            csv("policies", self.table()),
        ]
    }

    fn ratios(&self) -> Vec<f64> {
        max_norm_ratios(&self.scores())
    }

    fn scores(&self) -> Vec<segment::Score> {
        self.outcomes.iter().map(|(_, own)| own.score(self.weight)).collect()
    }

    fn length_label(&self) -> String {
        format!("trace length, by {}", self.weight.name())
    }

    /// Returns the indices of policies on the Pareto front, those with the fewest traces first.
    fn front(&self) -> Vec<usize> {
        let front = pareto_front(&self.scores());
        let mut places: Vec<usize> = (0..front.len()).filter(|&place| front[place]).collect();
        places.sort_by_key(|&place| (self.outcomes[place].1.trace_count, place));
        // Equal ones are one point.
        places.dedup_by_key(|place| self.outcomes[*place].1.trace_count);
        places
    }

    /// Figure 7.1: the share of instructions that the first traces cover.
    pub fn coverage(&self) -> String {
        let title = format!("Coverage: {}", self.subject);
        let chart = Chart::lines(&title).log_x().x("traces, those that cover most first").y("instructions, %");
        let front = self.front();
        let named: Vec<usize> = if self.outcomes.len() <= FEW {
            (0..self.outcomes.len()).collect()
        } else {
            front.into_iter().take(FEW).collect()
        };
        let points = |own: &PolicyOutcome| {
            own.coverage.iter().map(|&(traces, share)| (traces as f64, 100.0 * share)).collect::<Vec<_>>()
        };
        let others = self.outcomes.iter().enumerate().filter(|(place, _)| !named.contains(place));
        let chart = others.fold(chart, |chart, (_, (name, own))| chart.faint(name, points(own)));
        let named = named.iter().map(|&place| &self.outcomes[place]);
        named.fold(chart, |chart, (name, own)| chart.series(name, points(own))).svg()
    }

    /// Figure 7.2: trace length over trace count. The best policies are at the top left.
    pub fn length_and_count(&self) -> String {
        let title = format!("Trace length and trace count: {}", self.subject);
        let chart = Chart::lines(&title).x("trace count").y(&self.length_label()).log_x();
        let point = |own: &PolicyOutcome| (own.trace_count as f64, own.trace_length.by(self.weight));
        let front = self.front();
        let others = self.outcomes.iter().enumerate().filter(|(place, _)| !front.contains(place));
        let on_front = || front.iter().map(|&place| &self.outcomes[place]);
        chart
            .points("other policies", others.map(|(_, (_, own))| point(own)))
            .dotted("Pareto front", on_front().map(|(_, own)| point(own)))
            .labelled_points(
                "on the Pareto front",
                on_front().map(|(name, own)| (point(own).0, point(own).1, name.clone())),
            )
            .svg()
    }

    /// Figure 7.3: the parts of the ratio, from the worst policy to the best.
    pub fn ratio(&self) -> String {
        let ratios = self.ratios();
        let mut ranked: Vec<usize> = (0..ratios.len()).collect();
        ranked.sort_by(|&one, &other| ratios[one].total_cmp(&ratios[other]));
        let scores = self.scores();
        let longest = scores.iter().map(|own| own.length).fold(0.0, f64::max);
        let most = scores.iter().map(|own| own.count).fold(0.0, f64::max);
        let title = format!("Max-norm ratio: {}", self.subject);
        let chart = Chart::bars(&title).x("policies").y("in parts of the largest; ratio").log_y();
        let values = |value: &dyn Fn(usize) -> f64| ranked.iter().map(|&place| value(place)).collect::<Vec<_>>();
        chart
            .categories(ranked.iter().map(|&place| &self.outcomes[place].0))
            .series(&self.length_label(), values(&|place| scores[place].length / longest))
            .series("trace count", values(&|place| scores[place].count / most))
            .series("max-norm ratio", values(&|place| ratios[place]))
            .svg()
    }

    pub fn coverage_table(&self) -> Table {
        let mut table = Table::new("Coverage", &["policy", "traces", "instructions, %"]);
        for (name, own) in &self.outcomes {
            for (traces, share) in &own.coverage {
                table.row([name.clone(), traces.to_string(), format!("{:.4}", 100.0 * share)]);
            }
        }
        table
    }

    pub fn table(&self) -> Table {
        let lengths = LengthWeight::ALL.map(|weight| format!("trace length by {}", weight.name()));
        let ratio = format!("max-norm ratio by {}", self.weight.name());
        let heads = ["policy", &lengths[0], &lengths[1], "trace count", &ratio, "on the Pareto front"];
        let mut table = Table::new("Policies", &heads);
        let front = pareto_front(&self.scores());
        for (((name, own), ratio), is_on_front) in self.outcomes.iter().zip(self.ratios()).zip(front) {
            let lengths = LengthWeight::ALL.map(|weight| own.trace_length.by(weight).to_string());
            let judged = [own.trace_count.to_string(), ratio.to_string(), u8::from(is_on_front).to_string()];
            table.row([name.clone()].into_iter().chain(lengths).chain(judged));
        }
        table
    }
}
