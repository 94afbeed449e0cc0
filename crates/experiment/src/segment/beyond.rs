//! Policies beyond the thesis: policies that learn, traces that overlap less, dependences, and
//! trace caches. Here traces of the same path are one, whatever ended them: a cache holds them
//! once.

use ::segment::{Class, LengthWeight, Policy, TraceCacheShape, TraceReplacement};
use report::{Table, grouped, percent};

use super::tables::mean;
use super::{AnalysisOptions, PolicyOutcome, ProgramOutcomes, merged_ratios};
use crate::{Error, NamedTable};

/// The capacities of caches in instructions. A cache holds as many traces of a policy as fit.
const ROOMS: [usize; 3] = [4096, 16_384, 65_536];
const WAYS: usize = 4;
/// The number of traces that a prediction is based on.
const PATH: usize = 7;

/// Returns the policies that are compared with `best`, the best of the first experiment.
fn policies(best: Policy) -> Vec<(&'static str, Policy)> {
    let given = Policy::default();
    let guided = given.with(Class::BackwardNotTaken, false);
    let ends = Class::CONDITIONAL.into_iter().fold(given, |policy, class| policy.with(class, false));
    let limited = |instructions, cfis| Policy::new(instructions, cfis).expect("limits are not 0");
    let consistent = |instructions, least| {
        limited(instructions, 255).with_least_consistency(least).expect("it is more than 0 and less than 1")
    };
    let unsteady = [Class::Return, Class::IndirectCall, Class::IndirectJump];
    let learned = unsteady.into_iter().fold(ends, |policy, class| policy.with(class, false)).restructuring();
    vec![
        ("best of the first experiment", best),
        ("everything inside", given),
        ("conditional jumps end", ends),
        ("backward not taken ends", guided),
        ("consistency 0.5", consistent(32, 0.5)),
        ("consistency 0.8", consistent(32, 0.8)),
        ("restructured", learned),
        ("restructured, whole blocks", learned.keeping_blocks()),
        ("restructured, 2 unsteady inside", limited(32, 2).restructuring().keeping_blocks()),
        ("restructured, meet at 16", learned.keeping_blocks().meeting_from(16)),
        ("restructured, meet at 8", learned.keeping_blocks().meeting_from(8)),
        ("best of the first experiment, 255", best.long()),
        ("backward not taken ends, 255", guided.long()),
        ("consistency 0.5, 255", consistent(255, 0.5)),
        ("restructured, 255", learned.long()),
        ("restructured, meet at 16, 255", learned.long().keeping_blocks().meeting_from(16)),
    ]
}

/// Returns caches of equal capacity in instructions, whatever the length of the traces.
fn caches(policy: &Policy) -> Vec<TraceCacheShape> {
    let traces = |room: usize| (room / (policy.max_instructions() as usize).next_power_of_two()).max(WAYS);
    let shapes = ROOMS.iter().flat_map(|&room| {
        TraceReplacement::ALL
            .into_iter()
            .filter_map(move |replacement| TraceCacheShape::new(traces(room), WAYS, replacement).ok())
    });
    shapes.collect()
}

/// Segments by all policies, those with the same limit together, as they have the same caches.
pub(super) fn measure(
    best: Policy,
    cut: impl Fn(&[Policy], &AnalysisOptions) -> Result<Vec<PolicyOutcome>, Error>,
) -> Result<Vec<PolicyOutcome>, Error> {
    let all: Vec<Policy> = policies(best).into_iter().map(|(_, policy)| policy).collect();
    let mut outcomes = Vec::new();
    for same in all.chunk_by(|one, other| one.max_instructions() == other.max_instructions()) {
        let options = AnalysisOptions { caches: caches(&same[0]), path: PATH, dependences: true, keep_traces: false };
        outcomes.extend(cut(same, &options)?);
    }
    Ok(outcomes)
}

fn names() -> Vec<&'static str> {
    policies(Policy::default()).into_iter().map(|(name, _)| name).collect()
}

/// Returns the average over all programs.
fn average(measured: &[ProgramOutcomes], place: usize, figure: impl Fn(&PolicyOutcome) -> f64) -> f64 {
    mean(measured.iter().map(|own| figure(&own.beyond[place])))
}

/// Returns hits, coverage, and instructions that are also predicted, in per cent.
fn supplied(own: &PolicyOutcome, cache: usize) -> [f64; 3] {
    let Some((asked, caches)) = &own.fetched else { return [0.0; 3] };
    let Some((_, supplied)) = caches.get(cache) else { return [0.0; 3] };
    [
        percent(supplied.hits, asked.traces),
        percent(supplied.instructions, asked.instructions),
        percent(supplied.predicted, asked.instructions),
    ]
}

fn mispredicted(own: &PolicyOutcome) -> f64 {
    own.fetched.as_ref().map_or(0.0, |(asked, _)| percent(asked.mispredicted, asked.traces))
}

/// Returns the number of instructions between two mispredictions.
fn between_failures(own: &PolicyOutcome) -> f64 {
    own.fetched.as_ref().map_or(0.0, |(asked, _)| asked.instructions as f64 / asked.mispredicted.max(1) as f64)
}

pub(super) fn tables(measured: &[ProgramOutcomes]) -> Vec<NamedTable> {
    vec![
        ("beyond-policies", policies_table(measured)),
        ("beyond-prediction", prediction(measured)),
        ("beyond-caches", caches_table(measured)),
        ("beyond-programs", programs(measured)),
    ]
}

fn policies_table(measured: &[ProgramOutcomes]) -> Table {
    let heads = [
        "policy",
        "length by coverage",
        "length by occurrences",
        "trace count",
        "ratio by coverage",
        "ratio by occurrences",
        "traces",
        "consistency",
        "overlap",
        "hot overlap",
        "ILP",
        "aliases",
    ];
    let mut table = Table::new("Beyond the thesis: policies, averages over all programs", &heads);
    let ratios = |weight| measured.iter().map(|own| merged_ratios(&own.beyond, weight)).collect::<Vec<_>>();
    let ratios: [Vec<Vec<f64>>; 2] = LengthWeight::ALL.map(ratios);
    for (place, name) in names().into_iter().enumerate() {
        let of = |figure: fn(&PolicyOutcome) -> f64| average(measured, place, figure);
        let [coverage, occurrences] = ratios.each_ref().map(|all| mean(all.iter().map(|ratios| ratios[place])));
        table.row([
            name.to_owned(),
            format!("{:.2}", of(|own| own.trace_length.by_coverage)),
            format!("{:.2}", of(|own| own.trace_length.by_occurrences)),
            format!("{:.0}", of(|own| own.path_count as f64)),
            format!("{coverage:.2}"),
            format!("{occurrences:.2}"),
            format!("{:.0}", of(|own| own.paths as f64)),
            format!("{:.2}", of(|own| own.consistency)),
            format!("{:.2}", of(|own| own.overlap[0].times())),
            format!("{:.2}", of(|own| own.overlap[1].times())),
            format!("{:.2}", of(|own| own.ilp.unwrap_or(0.0))),
            format!("{:.0}", of(|own| own.aliases as f64)),
        ]);
    }
    table
}

fn prediction(measured: &[ProgramOutcomes]) -> Table {
    let heads = ["policy", "mispredicted %", "instructions between", "hits %", "coverage %", "supplied %"];
    let room = ROOMS[1];
    let caption = format!(
        "Beyond the thesis: prediction of traces, and a cache with room for {room} instructions (LRU), averages"
    );
    let mut table = Table::new(&caption, &heads);
    // The caches of the smallest capacity come first.
    let cache = TraceReplacement::ALL.len();
    for (place, name) in names().into_iter().enumerate() {
        let rates = (0..3).map(|rate| average(measured, place, |own| supplied(own, cache)[rate]));
        let predicted = [average(measured, place, mispredicted), average(measured, place, between_failures)];
        let cells = predicted.into_iter().chain(rates).map(|rate| format!("{rate:.2}"));
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    table
}

fn caches_table(measured: &[ProgramOutcomes]) -> Table {
    let all = ROOMS.iter().flat_map(|room| TraceReplacement::ALL.map(|replacement| (room, replacement)));
    let heads: Vec<String> =
        all.map(|(room, replacement)| format!("{}k {}", room / 1024, replacement.name())).collect();
    let heads: Vec<&str> = ["policy"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut table =
        Table::new("Beyond the thesis: instructions from caches, per cent, by room and replacement, averages", &heads);
    for (place, name) in names().into_iter().enumerate() {
        let cells = (0..heads.len() - 1).map(|cache| average(measured, place, |own| supplied(own, cache)[1]));
        table.row([name.to_owned()].into_iter().chain(cells.map(|rate| format!("{rate:.2}"))));
    }
    table
}

/// Returns a table that shows where restructuring helps.
fn programs(measured: &[ProgramOutcomes]) -> Table {
    let shown = [
        ("best", "best of the first experiment"),
        ("restructured", "restructured, whole blocks"),
        ("meet 8", "restructured, meet at 8"),
        ("255", "restructured, 255"),
    ];
    let heads = ["length", "count", "supplied %"].map(|figure| shown.map(|(name, _)| format!("{figure}: {name}")));
    let heads: Vec<String> = ["program".to_owned()].into_iter().chain(heads.concat()).collect();
    let caption = format!(
        "Beyond the thesis: program by program, length by coverage, supplied with room for {} instructions (LRU)",
        ROOMS[1]
    );
    let mut table = Table::new(&caption, &heads.iter().map(String::as_str).collect::<Vec<_>>());
    let place = |name: &str| names().iter().position(|known| *known == name);
    let places: Vec<usize> = shown.iter().filter_map(|(_, name)| place(name)).collect();
    for own in measured {
        let outcomes = || places.iter().map(|&place| &own.beyond[place]);
        let lengths = outcomes().map(|own| format!("{:.2}", own.trace_length.by_coverage));
        let counts = outcomes().map(|own| grouped(own.path_count as u64));
        let supplied = outcomes().map(|own| format!("{:.2}", supplied(own, TraceReplacement::ALL.len())[2]));
        table.row([own.program.clone()].into_iter().chain(lengths).chain(counts).chain(supplied));
    }
    table
}
