//! Chapters 4 and 5 of Tewar 2015: the instruction mix of the programs, the length of the fields of
//! messages, and the bits that each technique needs.

mod figures;
mod row;
mod survey;

use std::path::Path;

use ::port::cores::Cores;
use ::port::{Config, PortResult, PortSettings, Technique};
use filter::cfiat::KnownCriterion;
use report::{Table, percent};
use serde::Serialize;
use trace::{Counts, Excerpt, Trace};

use crate::programs::{Runs, Workspace, build};
use crate::spread::{Spread, times};
use crate::{Error, Findings, NamedTable, Observer};

pub use row::{Row, rows, tables};
pub use survey::{Survey, SurveyResult};

const CONFIGS: [Config; 3] = [Config::SMALL, Config::MEDIUM, Config::LARGE];

/// The same caches as the thesis uses them: a load is known by its flags alone.
const CONFIGS_BY_FLAGS: [Config; 3] = [
    Config { name: "small/flags", ..Config::SMALL },
    Config { name: "medium/flags", ..Config::MEDIUM },
    Config { name: "large/flags", ..Config::LARGE },
];

/// The results of a program with a number of threads.
struct Measurement {
    program: String,
    threads: u16,
    counts: Counts,
    cores: Cores,
    outcomes: Vec<PortResult>,
}

impl Measurement {
    /// Returns the outcome of a technique; `config` matters if the technique has configurations.
    fn of(&self, technique: Technique, config: &str) -> Option<&PortResult> {
        let fits = |own: Option<Config>| own.is_none_or(|own| own.name == config);
        self.outcomes.iter().find(|outcome| outcome.technique == technique && fits(outcome.config))
    }
}

/// The experiment before it runs.
pub struct Experiment {
    runs: Runs,
}

impl Experiment {
    /// Checks that all programs exist.
    pub fn new(runs: Runs) -> Result<Self, Error> {
        Ok(Self { runs: runs.checked()? })
    }

    /// Records every program with every number of threads, and encodes the traces with all
    /// techniques.
    pub fn run(self, observer: &dyn Observer) -> Result<Study, Error> {
        let Runs { programs, threads: thread_counts, repeat, trackway, .. } = &self.runs;
        let mut rounds = Vec::new();
        for number in 1..=*repeat {
            let mut measured = Vec::new();
            for program in programs {
                for &threads in thread_counts {
                    observer.stage(&|| format!("{program} with {threads} threads, {number} of {repeat}"));
                    measured.push(measure(program, threads, &self.runs.size_of(program)?, trackway, observer)?);
                }
            }
            rounds.push(Round { measured });
        }
        Ok(Study { rounds, programs: self.runs.programs, threads: self.runs.threads })
    }
}

fn measure(
    program: &str,
    threads: u16,
    size: &str,
    trackway: &Path,
    observer: &dyn Observer,
) -> Result<Measurement, Error> {
    let (path, workspace) = (build(program)?, Workspace::new(trackway)?);
    let file = workspace.path("values.trk");
    let command = [path.to_str().unwrap_or_default(), &threads.to_string(), size];
    workspace.time(&["record", "-q", "--data", "values", "-o", &file, "--"], &command)?;
    let trace = Trace::open(Path::new(&file))?;
    let excerpt = Excerpt::default();
    // More threads than asked for would be cores of their own.
    let cores = Cores::new(excerpt.threads(&trace), None).map_err(|error| Error::Settings(error.to_string()))?;
    let survey: Survey<'_, Error> = Survey {
        trace: &trace,
        excerpt,
        techniques: &Technique::ALL,
        configs: &CONFIGS,
        settings: PortSettings::default(),
        cores: &cores,
        bits: None,
        observer,
    };
    let by_flags = Survey {
        techniques: &[Technique::MlvCfB, Technique::MlvCfE],
        configs: &CONFIGS_BY_FLAGS,
        settings: PortSettings { known_by: KnownCriterion::Flags, ..PortSettings::default() },
        ..survey
    };
    let mut outcomes = survey.run()?.outcomes;
    // The baselines are in the first survey.
    outcomes.extend(by_flags.run()?.outcomes.into_iter().filter(|outcome| outcome.config.is_some()));
    Ok(Measurement { program: program.to_owned(), threads, counts: *trace.totals(), cores, outcomes })
}

/// The results of all programs with all numbers of threads, once.
struct Round {
    measured: Vec<Measurement>,
}

/// All rounds.
pub struct Study {
    rounds: Vec<Round>,
    programs: Vec<String>,
    threads: Vec<u16>,
}

/// The JSON of a program.
#[derive(Serialize)]
struct ProgramRows {
    program: String,
    threads: u16,
    round: usize,
    instructions: u64,
    loads: u64,
    techniques: Vec<Row>,
}

/// A class of instructions: its name, and its count.
type InstructionClass = (&'static str, fn(&Counts) -> u64);

impl Findings for Study {
    fn tables(&self) -> Vec<NamedTable> {
        use Technique as T;
        const LARGE: &str = CONFIGS_BY_FLAGS[2].name;
        let mut tables = self.programs_tables();
        let mut add = |name, table| tables.push((name, table));
        for (name, table) in self.length_tables() {
            add(name, table);
        }
        add("table-5-1", self.bandwidth("Table 5.1: mcfNX_b, bits per instruction", &[("", (T::McfNxB, ""))]));
        add("table-5-2", self.mispredictions());
        add("table-5-3", self.ratios("Table 5.3: mcfNX_b / mcfTR_b", T::McfTrB));
        add("table-5-4", self.ratios("Table 5.4: mcfNX_b / mcfTR_e", T::McfTrE));
        add("mcftr-a", self.ratios("Adaptive chunks: mcfNX_b / mcfTR_a", T::McfTrA));
        add("mcftg-e", self.ratios("TAGE and ITTAGE: mcfNX_b / mcfTG_e", T::McfTgE));
        add("mcftg-a", self.ratios("TAGE and ITTAGE, adaptive chunks: mcfNX_b / mcfTG_a", T::McfTgA));
        add("mcfet", self.ratios("Like E-Trace: mcfNX_b / mcfET", T::McfEt));
        add("mcfpt", self.ratios("Like Processor Trace: mcfNX_b / mcfPT", T::McfPt));
        add("figure-5-3", self.totals("Figure 5.3: control flow, bits per instruction of all programs", &T::ALL[..8]));
        add("table-5-5", self.bandwidth("Table 5.5: mlvNX_b, bits per instruction", &[("", (T::MlvNxB, ""))]));
        add("figure-5-5", self.first_access_misses());
        let large = [T::MlvNxB, T::MlvCfB, T::MlvCfE].map(|technique| (technique.name(), (technique, "large")));
        add("table-5-6", self.bandwidth("Table 5.6: load values, large, bits per instruction", &large));
        let large = [("mlvNX_b", (T::MlvNxB, "")), ("mlvCF_b", (T::MlvCfB, LARGE)), ("mlvCF_e", (T::MlvCfE, LARGE))];
        let caption = "Table 5.6 as the thesis measured it, loads known by flags alone: large, bits per instruction";
        add("table-5-6-flags", self.bandwidth(caption, &large));
        add("table-5-7", self.ratios("Table 5.7: mlvNX_b / mlvCF_e", T::MlvCfE));
        let caption = "Table 5.7 as the thesis measured it, loads known by flags alone: mlvNX_b / mlvCF_e";
        let [small, medium, large] = CONFIGS_BY_FLAGS.map(|config| config.name);
        add("table-5-7-flags", self.ratios_of(caption, T::MlvCfE, &[("S", small), ("M", medium), ("L", large)]));
        add("mlvcf-a", self.ratios("Adaptive chunks: mlvNX_b / mlvCF_a", T::MlvCfA));
        add("mlvcc-e", self.ratios("Caches that know of each other: mlvNX_b / mlvCC_e", T::MlvCcE));
        add("figure-5-6", self.totals("Figure 5.6: load values, bits per instruction of all programs", &T::ALL[8..]));
        tables
    }

    fn figures(&self) -> Vec<(String, String)> {
        self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg)).collect()
    }

    fn json(&self) -> impl Serialize {
        let rows = |(round, own): (usize, &Measurement)| ProgramRows {
            program: own.program.clone(),
            threads: own.threads,
            round,
            instructions: own.counts.instructions,
            loads: own.counts.reads,
            techniques: rows(&own.outcomes, &Technique::ALL, &own.cores, None),
        };
        let all = self.rounds.iter().enumerate();
        let all = all.flat_map(|(number, round)| round.measured.iter().map(move |own| (number + 1, own)));
        all.map(rows).collect::<Vec<ProgramRows>>()
    }
}

impl Round {
    fn get(&self, program: &str, threads: u16) -> Option<&Measurement> {
        self.measured.iter().find(|own| own.program == program && own.threads == threads)
    }

    fn with_threads(&self, threads: u16) -> impl Iterator<Item = &Measurement> {
        self.measured.iter().filter(move |own| own.threads == threads)
    }

    /// Returns the sum of `part` over all programs with this number of threads.
    fn sum(&self, threads: u16, part: impl Fn(&Measurement) -> u64) -> u64 {
        self.with_threads(threads).map(part).sum()
    }

    fn instructions(&self, threads: u16) -> u64 {
        self.sum(threads, |own| own.counts.instructions)
    }

    fn bits(&self, threads: u16, technique: Technique, config: &str) -> u64 {
        self.sum(threads, |own| bits_of(own, technique, config))
    }

    /// Bits per instruction of all programs together.
    fn bpi(&self, threads: u16, technique: Technique, config: &str) -> f64 {
        times(self.bits(threads, technique, config), self.instructions(threads))
    }

    /// Returns mispredicted outcomes and targets of a technique with this number of threads, in per
    /// cent over all programs.
    fn wrong(&self, threads: u16, technique: Technique, config: &str) -> [f64; 2] {
        let sum = |part: fn(&::port::traptor::PredictionCounts) -> u64| {
            let of = |own: &Measurement| {
                own.of(technique, config).and_then(|own| own.rates.predicted).map_or(0, |own| part(&own))
            };
            self.sum(threads, of)
        };
        let outcomes = percent(sum(|own| own.outcomes_wrong), sum(|own| own.outcomes));
        [outcomes, percent(sum(|own| own.targets_wrong), sum(|own| own.targets))]
    }

    /// Returns first-access misses with this number of threads, in per cent of all loads of all
    /// programs.
    fn first_access_misses(&self, threads: u16, technique: Technique, config: &str) -> f64 {
        let known = |own: &Measurement| own.of(technique, config).and_then(|own| own.rates.known).unwrap_or_default();
        percent(self.sum(threads, |own| known(own).reported), self.sum(threads, |own| known(own).loads))
    }

    /// Returns the lowest and the highest rate of first-access misses of a program.
    fn first_access_extremes(&self, threads: u16, technique: Technique, config: &str) -> [f64; 2] {
        let known = |own: &Measurement| own.of(technique, config).and_then(|own| own.rates.known).unwrap_or_default();
        let rates = self.with_threads(threads).map(|own| percent(known(own).reported, known(own).loads));
        let spread = Spread::of(rates);
        [spread.low, spread.high]
    }
}

impl Study {
    fn spread(&self, figure: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        self.spread(figure).median
    }

    /// Returns a table with a row for each program and one for all, and a column for each number of
    /// threads and each of `parts`.
    fn table<P: Copy>(
        &self,
        caption: &str,
        parts: &[(&str, P)],
        show: impl Fn(f64) -> String,
        cell: impl Fn(&Measurement, P) -> f64,
        total: impl Fn(&Round, u16, P) -> f64,
    ) -> Table {
        let columns: Vec<(u16, &(&str, P))> =
            self.threads.iter().flat_map(|&threads| parts.iter().map(move |part| (threads, part))).collect();
        let heads = columns.iter().map(|(threads, (name, _))| format!("N={threads} {name}").trim_end().to_owned());
        let heads: Vec<String> = std::iter::once("program".to_owned()).chain(heads).collect();
        let mut table = Table::new(caption, &heads.iter().map(String::as_str).collect::<Vec<_>>());
        for program in &self.programs {
            let one =
                |round: &Round, threads, part| round.get(program, threads).map_or(f64::NAN, |own| cell(own, part));
            let cells =
                columns.iter().map(|&(threads, &(_, part))| self.spread(|round| one(round, threads, part)).cell(&show));
            table.row(std::iter::once(program.clone()).chain(cells));
        }
        let cells =
            columns.iter().map(|&(threads, &(_, part))| self.spread(|round| total(round, threads, part)).cell(&show));
        table.row(std::iter::once("total".to_owned()).chain(cells));
        table
    }

    /// Returns a table of bits per instruction.
    fn bandwidth(&self, caption: &str, techniques: &[(&str, (Technique, &str))]) -> Table {
        self.table(
            caption,
            techniques,
            four_digits,
            |own, (technique, config)| times(bits_of(own, technique, config), own.counts.instructions),
            |round, threads, (technique, config)| round.bpi(threads, technique, config),
        )
    }

    /// Returns a table of the bits of the baseline over the bits of a technique, by configuration.
    fn ratios(&self, caption: &str, technique: Technique) -> Table {
        let sizes: &[(&str, &str)] = match technique.filter().is_configured() {
            true => &[("S", "small"), ("M", "medium"), ("L", "large")],
            false => &[("", "")],
        };
        self.ratios_of(caption, technique, sizes)
    }

    fn ratios_of(&self, caption: &str, technique: Technique, sizes: &[(&str, &str)]) -> Table {
        self.table(
            caption,
            sizes,
            |ratio| format!("{ratio:.1}"),
            |own, config| times(bits_of(own, technique.baseline(), config), bits_of(own, technique, config)),
            |round, threads, config| {
                let bits = |technique| round.bits(threads, technique, config);
                times(bits(technique.baseline()), bits(technique))
            },
        )
    }

    /// Tables 4.2 to 4.4.
    fn programs_tables(&self) -> Vec<NamedTable> {
        let kinds: [InstructionClass; 5] = [
            ("instructions/M", |counts| counts.instructions),
            ("branches %", Counts::branches),
            ("C,D %", |counts| counts.conditional_taken + counts.conditional_not_taken),
            ("U,D %", |counts| counts.unconditional_direct),
            ("U,I %", |counts| counts.unconditional_indirect),
        ];
        let (control, reads) = (&kinds[..], [kinds[0], ("loads %", |counts| counts.reads)]);
        let sized = |part: u64, all: u64| if part == all { all as f64 / 1e6 } else { percent(part, all) };
        let table = |caption: &str, kinds: &[InstructionClass]| {
            self.table(
                caption,
                kinds,
                two_digits,
                |own, part| sized(part(&own.counts), own.counts.instructions),
                |round, threads, part| sized(round.sum(threads, |own| part(&own.counts)), round.instructions(threads)),
            )
        };
        vec![
            ("table-4-2", table("Table 4.2: control flow of the programs", control)),
            ("table-4-3", table("Table 4.3: memory reads of the programs", &reads)),
            ("table-4-4", self.operand_sizes()),
        ]
    }

    /// Table 4.4, for the first number of threads in the first round.
    fn operand_sizes(&self) -> Table {
        const NAMES: [&str; 8] = ["byte", "word", "dword", "qword", "eword", "oword", "hword", "others"];
        let heads: Vec<&str> = ["program", "reads/M"].into_iter().chain(NAMES).collect();
        let threads = self.threads.first().copied().unwrap_or(1);
        let mut table = Table::new(&format!("Table 4.4: memory reads by size, per cent (N={threads})"), &heads);
        let classes = |own: &Measurement| own.of(Technique::MlvNxB, "").map_or([0; 8], |all| all.rates.load_classes);
        let row = |name: &str, classes: [u64; 8]| {
            let reads = classes.iter().sum();
            let cells = classes.map(|count| format!("{:.2}", percent(count, reads)));
            [name.to_owned(), format!("{:.2}", reads as f64 / 1e6)].into_iter().chain(cells)
        };
        let mut total = [0; 8];
        for own in self.rounds.iter().take(1).flat_map(|round| round.with_threads(threads)) {
            total.iter_mut().zip(classes(own)).for_each(|(sum, count)| *sum += count);
            table.row(row(&own.program, classes(own)));
        }
        table.row(row("total", total));
        table
    }

    /// Table 5.2, extended by other predictors.
    fn mispredictions(&self) -> Table {
        let kinds = ["outcomes", "targets"];
        let columns: Vec<(usize, u16)> =
            (0..2).flat_map(|kind| self.threads.iter().map(move |&threads| (kind, threads))).collect();
        let heads = columns.iter().map(|&(kind, threads)| format!("{} N={threads}", kinds[kind]));
        let heads: Vec<String> = ["predictors".to_owned(), "config".to_owned()].into_iter().chain(heads).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let mut table = Table::new("Table 5.2: mispredicted, per cent", &heads);
        for (name, technique) in [("gshare, iBTB", Technique::McfTrE), ("TAGE, ITTAGE", Technique::McfTgE)] {
            for config in &CONFIGS {
                let wrong = |kind: usize, threads| {
                    self.spread(|round| round.wrong(threads, technique, config.name)[kind]).cell(two_digits)
                };
                let cells = columns.iter().map(|&(kind, threads)| wrong(kind, threads));
                table.row([name.to_owned(), config.name.to_owned()].into_iter().chain(cells));
            }
        }
        table
    }

    /// The numbers of Figure 5.5: for all programs, and for those with the fewest and the most
    /// misses.
    fn first_access_misses(&self) -> Table {
        let heads = self.threads.iter().flat_map(|n| [format!("N={n}"), format!("N={n} min"), format!("N={n} max")]);
        let heads: Vec<String> = ["caches".to_owned(), "config".to_owned()].into_iter().chain(heads).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let caption = "Figure 5.5: first-access misses, per cent of all loads: all programs, the best and the worst";
        let mut table = Table::new(caption, &heads);
        let caches = [
            ("alone", Technique::MlvCfE, &CONFIGS),
            ("alone", Technique::MlvCfE, &CONFIGS_BY_FLAGS),
            ("coherent", Technique::MlvCcE, &CONFIGS),
        ];
        for (name, technique, configs) in caches {
            for config in configs {
                let cells = |&threads: &u16| {
                    let all = self.spread(|round| round.first_access_misses(threads, technique, config.name));
                    let extreme = |end: usize| {
                        self.spread(|round| round.first_access_extremes(threads, technique, config.name)[end])
                    };
                    [all, extreme(0), extreme(1)].map(|spread| spread.cell(two_digits))
                };
                let cells = self.threads.iter().flat_map(cells);
                table.row([name.to_owned(), config.name.to_owned()].into_iter().chain(cells));
            }
        }
        table
    }

    /// Bits per instruction of all programs together.
    fn totals(&self, caption: &str, techniques: &[Technique]) -> Table {
        let heads: Vec<String> = self.threads.iter().map(|threads| format!("N={threads}")).collect();
        let heads: Vec<&str> = ["technique", "config"].into_iter().chain(heads.iter().map(String::as_str)).collect();
        let mut table = Table::new(caption, &heads);
        for &technique in techniques {
            for &config in configs_of(technique) {
                let cell =
                    |&threads: &u16| self.spread(|round| round.bpi(threads, technique, config)).cell(four_digits);
                let name =
                    [technique.name().to_owned(), if config.is_empty() { "-".to_owned() } else { config.to_owned() }];
                table.row(name.into_iter().chain(self.threads.iter().map(cell)));
            }
        }
        table
    }
}

fn configs_of(technique: Technique) -> &'static [&'static str] {
    if technique.filter().is_configured() { &["small", "medium", "large"] } else { &[""] }
}

fn bits_of(own: &Measurement, technique: Technique, config: &str) -> u64 {
    own.of(technique, config).map_or(0, |outcome| outcome.port.bits())
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn four_digits(value: f64) -> String {
    format!("{value:.4}")
}
