//! Tables 5.1 to 5.4 and 6.1 to 6.16, and the numbers of Figures 6.1 to 6.3. Where rounds differ, a
//! cell has the median and the range.

use report::{Table, grouped, percent};

use super::{ProgramResult, Study, ToolOutput, spread, timed_tools};
use crate::NamedTable;
use crate::spread::{Spread, times};

/// Two decimals.
fn fixed(value: f64) -> String {
    format!("{value:.2}")
}

fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

fn thousandth(value: f64) -> String {
    format!("{value:.3}")
}

fn count(value: f64) -> String {
    grouped(value.round() as u64)
}

/// A count of a tool.
type Count = fn(&ToolOutput) -> u64;

fn name(row: &ProgramResult) -> [String; 2] {
    [row.program.clone(), row.threads.to_string()]
}

impl Study {
    pub(super) fn all_tables(&self) -> Vec<NamedTable> {
        let mut tables = self.programs();
        let mut add = |name, table| tables.push((name, table));
        add("table-6-1", self.sizes("Table 6.1: mcfTrace, size of the trace in bytes and compression", "mcftrace"));
        add("table-6-2", self.seconds("Table 6.2: mcfTrace", "mcftrace"));
        let caption = "Table 6.3: mlsTrace (loads and stores), size of the trace in bytes and compression";
        add("table-6-3", self.sizes(caption, "mlstrace"));
        add("table-6-4", self.seconds("Table 6.4: mlsTrace", "mlstrace"));
        let private = "mcftraptor_private";
        add("table-6-5", self.mispredictions("Table 6.5: private mcfTRaptor, mispredictions", private));
        let caption = "Table 6.6: private mcfTRaptor, size of the trace in bytes and compression";
        add("table-6-6", self.sizes(caption, private));
        add("table-6-7", self.seconds("Table 6.7: private mcfTRaptor", private));
        let shared = "mcftraptor_shared";
        add("table-6-8", self.mispredictions("Table 6.8: shared mcfTRaptor, mispredictions", shared));
        let caption = "Table 6.9: shared mcfTRaptor, size of the trace in bytes and compression";
        add("table-6-9", self.sizes(caption, shared));
        add("table-6-10", self.seconds("Table 6.10: shared mcfTRaptor", shared));
        let interleaved = "mcftraptor_interleaved";
        let caption = "Table 6.8, threads in turns of one branch: mispredictions";
        add("table-6-8-interleaved", self.mispredictions(caption, interleaved));
        let caption = "Table 6.9, threads in turns of one branch: size of the trace in bytes and compression";
        add("table-6-9-interleaved", self.sizes(caption, interleaved));
        let private = "mlvcfiat_private";
        add("table-6-11", self.misses("Table 6.11: private mlvCFiat, cache and first-access misses", private));
        let caption = "Table 6.12: private mlvCFiat, size of the trace in bytes and compression";
        add("table-6-12", self.sizes(caption, private));
        add("table-6-13", self.seconds("Table 6.13: private mlvCFiat", private));
        let shared = "mlvcfiat_shared";
        add("table-6-14", self.misses("Table 6.14: shared mlvCFiat, cache and first-access misses", shared));
        let caption = "Table 6.15: shared mlvCFiat, size of the trace in bytes and compression";
        add("table-6-15", self.sizes(caption, shared));
        add("table-6-16", self.seconds("Table 6.16: shared mlvCFiat", shared));
        self.by_flags(&mut add);
        add("figure-6-2", self.per_unit("Figure 6.2: private mlvCFiat, bytes per instruction and per read", private));
        add("figure-6-3", self.per_unit("Figure 6.3: shared mlvCFiat, bytes per instruction and per read", shared));
        add("savings", self.savings());
        add("slowdown", self.slowdowns());
        add("tool-slowdown", self.tool_slowdowns());
        tables
    }

    /// Tables 6.11 to 6.15 with loads known by flags alone, as in the theses.
    fn by_flags(&self, add: &mut impl FnMut(&'static str, Table)) {
        let caption = |number: &str, what: &str| format!("Table {number} by flags alone, as in the thesis: {what}");
        let (rates, size) = ("cache and first-access misses", "size of the trace in bytes and compression");
        let [private, shared] = ["mlvcfiat_private_flags", "mlvcfiat_shared_flags"];
        add("table-6-11-flags", self.misses(&caption("6.11", &format!("private mlvCFiat, {rates}")), private));
        add("table-6-12-flags", self.sizes(&caption("6.12", &format!("private mlvCFiat, {size}")), private));
        let over_a_trace = "private mlvCFiat over a trace, seconds";
        add("table-6-13-flags", self.seconds_over_a_trace(&caption("6.13", over_a_trace), private));
        add("table-6-14-flags", self.misses(&caption("6.14", &format!("shared mlvCFiat, {rates}")), shared));
        add("table-6-15-flags", self.sizes(&caption("6.15", &format!("shared mlvCFiat, {size}")), shared));
    }

    /// Tables 5.1 to 5.4.
    fn programs(&self) -> Vec<NamedTable> {
        vec![
            ("table-5-1", self.control_flow()),
            ("table-5-2", self.memory()),
            ("table-5-3", self.operands("Table 5.3: memory reads per instruction, by size", "loads")),
            ("table-5-4", self.operands("Table 5.4: memory writes per instruction, by size", "stores")),
        ]
    }

    fn control_flow(&self) -> Table {
        let heads =
            ["program", "N", "instructions", "branches %", "cond. direct %", "uncond. direct %", "uncond. indirect %"];
        let parts: [Count; 4] = [
            |own| own.number("branches"),
            |own| own.number("conditional_direct_taken") + own.number("conditional_direct_not_taken"),
            |own| own.number("unconditional_direct"),
            |own| own.number("unconditional_indirect"),
        ];
        self.table("Table 5.1: control flow", &heads, |row| {
            let own = row.tool("mcftrace");
            let share = |part: Count| own.spread(|raw| percent(part(raw), raw.number("instructions")));
            let instructions = own.spread(|raw| raw.number("instructions") as f64).cell(count);
            std::iter::once(instructions).chain(parts.map(|part| share(part).cell(fixed))).collect()
        })
    }

    fn memory(&self) -> Table {
        let heads = ["program", "N", "instructions", "reads", "writes", "reads/ins", "writes/ins"];
        self.table("Table 5.2: memory reads and writes", &heads, |row| {
            let own = row.tool("mlstrace");
            let number = |part: Count| own.spread(|raw| part(raw) as f64).cell(count);
            let per = |part: Count| own.spread(|raw| times(part(raw), raw.number("instructions"))).cell(fixed);
            let reads: Count = |raw| accesses(raw, "loads", "total");
            let writes: Count = |raw| accesses(raw, "stores", "total");
            vec![number(|own| own.number("instructions")), number(reads), number(writes), per(reads), per(writes)]
        })
    }

    fn operands(&self, caption: &str, direction: &str) -> Table {
        const KINDS: [(&str, &str); 8] = [
            ("byte", "byte"),
            ("word", "word"),
            ("dword", "doubleword"),
            ("qword", "quadword"),
            ("eword", "extended_precision"),
            ("oword", "octaword"),
            ("hword", "hexaword"),
            ("others", "other"),
        ];
        let heads: Vec<&str> = ["program", "N"].into_iter().chain(KINDS.map(|(head, _)| head)).collect();
        self.table(caption, &heads, |row| {
            let share = |kind: &str| {
                let per = |raw: &ToolOutput| times(accesses(raw, direction, kind), raw.number("instructions"));
                row.tool("mlstrace").spread(per).cell(fixed)
            };
            KINDS.map(|(_, kind)| share(kind)).to_vec()
        })
    }

    fn sizes(&self, caption: &str, tool: &str) -> Table {
        let heads = ["program", "N", "raw", "gzip", "bzip2", "raw/gzip", "raw/bzip2"];
        self.table(caption, &heads, |row| {
            let own = row.tool(tool);
            let compressed = [own.gzip.bytes, own.bzip2.bytes];
            let raw = own.spread(|raw| raw.bytes as f64).cell(count);
            let ratios = compressed.map(|bytes| one(times(own.first_bytes(), bytes), tenth));
            std::iter::once(raw).chain(compressed.map(grouped)).chain(ratios).collect()
        })
    }

    fn seconds_over_a_trace(&self, caption: &str, tool: &str) -> Table {
        self.table(caption, &["program", "N", "raw", "gzip", "bzip2"], |row| {
            let own = row.tool(tool);
            let compressed = [own.gzip.seconds, own.bzip2.seconds].map(thousandth);
            std::iter::once(own.spread(|raw| raw.seconds).cell(thousandth)).chain(compressed).collect()
        })
    }

    /// The thesis has the columns from `live` to `bzip2/raw`.
    fn seconds(&self, caption: &str, tool: &str) -> Table {
        let heads = [
            "program",
            "N",
            "native",
            "untraced",
            "live",
            "live gzip",
            "live bzip2",
            "gzip/raw",
            "bzip2/raw",
            "live/untraced",
            "over a trace",
            "gzip",
            "bzip2",
        ];
        self.table(&format!("{caption}, seconds"), &heads, |row| {
            let own = row.tool(tool);
            let (native, untraced) = (spread(&row.seconds.native), row.seconds.untraced_by(tool));
            let live = row.seconds.live(tool);
            let compressed = [&own.gzip, &own.bzip2].map(|own| own.live_seconds.unwrap_or_default());
            let over = [own.gzip.seconds, own.bzip2.seconds].map(thousandth);
            [native, untraced, live]
                .map(|spread| spread.cell(thousandth))
                .into_iter()
                .chain(compressed.map(thousandth))
                .chain(compressed.map(|seconds| one(seconds / live.median, fixed)))
                .chain([one(live.median / untraced.median, tenth)])
                .chain([own.spread(|raw| raw.seconds).cell(thousandth)])
                .chain(over)
                .collect()
        })
    }

    fn mispredictions(&self, caption: &str, tool: &str) -> Table {
        let heads = ["program", "N", "cond. direct", "outcomes %", "uncond. indirect", "targets %", "exceptions"];
        self.table(caption, &heads, |row| {
            let own = row.tool(tool);
            let number = |name: &str| own.spread(|raw| raw.number(name) as f64).cell(count);
            let rate =
                |wrong: &str, all: &str| own.spread(|raw| percent(raw.number(wrong), raw.number(all))).cell(thousandth);
            vec![
                number("conditional_direct"),
                rate("outcomes_mispredicted", "conditional_direct"),
                number("unconditional_indirect"),
                rate("targets_mispredicted", "unconditional_indirect"),
                number("exceptions"),
            ]
        })
    }

    fn misses(&self, caption: &str, tool: &str) -> Table {
        let heads = ["program", "N", "accesses", "cache %", "loads that hit", "first access %", "of all loads %"];
        self.table(caption, &heads, |row| {
            let own = row.tool(tool);
            let sum =
                |one: &str, other: &str| own.spread(|raw| (raw.number(one) + raw.number(other)) as f64).cell(count);
            let rate = |name: &str| own.spread(|raw| raw.rate(name)).cell(fixed);
            vec![
                sum("cache_hits", "cache_misses"),
                rate("cache_miss_percent"),
                sum("first_access_hits", "first_access_misses"),
                rate("first_access_miss_percent_of_hits"),
                rate("first_access_miss_percent_of_loads"),
            ]
        })
    }

    /// The numbers of Figures 6.2 and 6.3.
    fn per_unit(&self, caption: &str, tool: &str) -> Table {
        let heads = ["program", "N", "bytes/ins", "bytes/read"];
        self.table(caption, &heads, |row| row.per_unit(tool).map(|spread| spread.cell(thousandth)).to_vec())
    }

    fn savings(&self) -> Table {
        let heads = [
            "program",
            "N",
            "mcfTrace/private",
            "mlsTrace/private",
            "TRaptor shared/private",
            "in turns of one/private",
            "CFiat shared/private",
        ];
        self.table("What filters save, and what sharing costs (Figure 6.1; raw sizes)", &heads, |row| {
            let ratios = [
                row.size_ratio("mcftrace", "mcftraptor_private"),
                row.size_ratio("mlstrace", "mlvcfiat_private"),
                row.size_ratio("mcftraptor_shared", "mcftraptor_private"),
                row.size_ratio("mcftraptor_interleaved", "mcftraptor_private"),
                row.size_ratio("mlvcfiat_shared", "mlvcfiat_private"),
            ];
            ratios.map(|ratio| ratio.cell(tenth)).to_vec()
        })
    }

    /// How many times longer everything takes than the program alone, with about a hundred million
    /// instructions.
    fn slowdowns(&self) -> Table {
        let heads = ["program", "N", "native s", "untraced", "untraced, values", "recorded", "recorded, values"];
        let heads: Vec<&str> = heads.into_iter().chain(timed_tools().map(|tool| tool.name)).collect();
        self.table("Slowdown of larger runs: how many times as long as natively", &heads, |row| {
            let own = &row.long_seconds;
            let native = spread(&own.native);
            let runs = [&own.untraced, &own.untraced_with_values, &own.recorded, &own.recorded_with_values];
            let live = timed_tools().map(|tool| own.live(tool.name));
            let slower = runs.map(|seconds| spread(seconds)).into_iter().chain(live);
            std::iter::once(native.cell(thousandth))
                .chain(slower.map(|seconds| one(seconds.median / native.median, tenth)))
                .collect()
        })
    }

    /// How many times longer tools take than the engine that traces nothing, in the same runs.
    fn tool_slowdowns(&self) -> Table {
        let heads: Vec<&str> = ["program", "N"].into_iter().chain(timed_tools().map(|tool| tool.name)).collect();
        self.table("Slowdown of larger runs: how many times as long as untraced", &heads, |row| {
            let own = &row.long_seconds;
            let slower = |tool: &str| own.live(tool).median / own.untraced_by(tool).median;
            timed_tools().map(|tool| one(slower(tool.name), tenth)).collect()
        })
    }

    /// A row for each program and number of threads.
    fn table(&self, caption: &str, heads: &[&str], cells: impl Fn(&ProgramResult) -> Vec<String>) -> Table {
        let mut table = Table::new(caption, heads);
        self.rows.iter().for_each(|row| table.row(name(row).into_iter().chain(cells(row))));
        table
    }
}

impl ProgramResult {
    /// How many times as many bytes one tool writes as another.
    pub(super) fn size_ratio(&self, tool: &str, other: &str) -> Spread {
        self.spread_of_two(tool, other, |one, other| times(one.bytes, other.bytes))
    }

    /// Bytes for each instruction and for each load.
    pub(super) fn per_unit(&self, tool: &str) -> [Spread; 2] {
        let units: [Count; 2] = [|all| all.number("instructions"), |all| accesses(all, "loads", "total")];
        units.map(|unit| self.spread_of_two(tool, "mlstrace", |own, all| times(own.bytes, unit(all))))
    }
}

fn accesses(raw: &ToolOutput, direction: &str, kind: &str) -> u64 {
    raw.statistics[direction][kind].as_u64().unwrap_or(0)
}

/// Returns the cell of a single measurement.
fn one(value: f64, show: fn(f64) -> String) -> String {
    Spread::of([value]).cell(show)
}
