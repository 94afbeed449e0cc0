//! `cargo xtask experiments`: repeats the measurements of the theses and of METRIC, keeps all
//! tables and a selection of figures under docs/experiments/, and updates the numbers that
//! docs/experiments.md quotes from them.

mod quotes;

use std::path::Path;
use std::process::Command;

use crate::{build_trackway, machine, packages, root};

/// Repeat the measurements of the theses and of METRIC, and keep tables and figures under
/// docs/experiments/.
///
/// Takes a little more than half an hour on an idle machine with two cores.
#[derive(clap::Args)]
pub struct Arguments {
    /// Experiments: mtrace, port, segment, metric; by default all of them.
    names: Vec<String>,
    #[command(flatten)]
    packages: packages::Arguments,
}

/// An experiment, and the figures that are kept.
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// Without their ending.
    figures: &'static [&'static str],
}

const EXPERIMENTS: [Experiment; 4] = [
    Experiment {
        name: "mtrace",
        title: "mTrace (Myers 2014, chapters 5 and 6)",
        figures: &["figure-6-1", "figure-6-2", "figure-6-3", "slowdown"],
    },
    Experiment {
        name: "port",
        title: "Trace ports (Tewar 2015, chapters 4 and 5)",
        figures: &[
            "figure-4-10-bcnt",
            "figure-4-10-diffta",
            "figure-4-11-chunks",
            "figure-5-1",
            "figure-5-2",
            "figure-5-3",
            "figure-5-5",
            "figure-5-6",
        ],
    },
    Experiment {
        name: "segment",
        title: "Traces out of executions (Hadjipavlou 2025, chapter 7)",
        figures: &["figure-7-1-perl", "figure-7-2-perl", "figure-7-3-perl", "figure-7-4", "table-7-1", "table-7-9"],
    },
    Experiment {
        name: "metric",
        title: "Memory traces (METRIC, section 5)",
        figures: &["table-1", "finding", "figure-7"],
    },
];

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let chosen = chosen(&arguments.names)?;
    packages::require(&["test", "experiments"], &arguments.packages)?;
    // The revision may change while it is measured.
    let origin = format!("{} ({})", machine::today(), machine::describe());
    let (trackway, directory) = (build_trackway()?, tempfile::tempdir().map_err(|error| error.to_string())?);
    for experiment in chosen {
        experiment.measure(&trackway, directory.path())?;
        experiment.keep(directory.path(), &origin)?;
    }
    let page = root().join("docs/experiments.md");
    write(&page, &quotes::refreshed(&read(&page)?, &tables)?)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>, String> {
    let find = |name: &String| EXPERIMENTS.iter().find(|own| own.name == name).ok_or_else(|| unknown(name));
    if names.is_empty() { Ok(EXPERIMENTS.iter().collect()) } else { names.iter().map(find).collect() }
}

fn unknown(name: &str) -> String {
    format!("there is no experiment called {name}; there are {}", EXPERIMENTS.map(|own| own.name).join(", "))
}

/// The page with the tables of an experiment.
fn tables(name: &str) -> Result<String, String> {
    read(&root().join("docs/experiments").join(format!("{name}.md")))
}

impl Experiment {
    fn measure(&self, trackway: &Path, directory: &Path) -> Result<(), String> {
        let mut command = Command::new(trackway);
        command.args(["experiment", self.name, "--markdown", "--plots"]).arg(directory.join(self.name));
        command.arg("-o").arg(directory.join(self.name).with_extension("md"));
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`trackway experiment {}` ended with {status}", self.name)),
            Err(error) => Err(format!("cannot run {}: {error}", trackway.display())),
        }
    }

    /// Makes the page, which says when and where it was measured, and puts its figures beside it.
    fn keep(&self, directory: &Path, origin: &str) -> Result<(), String> {
        let text = read(&directory.join(self.name).with_extension("md"))?;
        let pages = root().join("docs/experiments");
        let figures = pages.join(self.name);
        std::fs::create_dir_all(&figures).map_err(|error| format!("{}: {error}", figures.display()))?;
        for figure in self.figures {
            let file = format!("{figure}.svg");
            write(&figures.join(&file), &read(&directory.join(self.name).join(&file))?)?;
        }
        write(&pages.join(self.name).with_extension("md"), &self.page(&text, origin))
    }

    fn page(&self, tables: &str, origin: &str) -> String {
        let Self { name, title, figures } = self;
        let pictures: String = figures.iter().map(|figure| format!("![{figure}]({name}/{figure}.svg)\n\n")).collect();
        format!(
            "# {title}\n\nMade by `cargo xtask experiments {name}` on {origin}; not edited. What it means is in \
             [experiments.md](../experiments.md). Where\nrounds differ, a cell has the median and, in brackets, \
             the lowest and the highest.\n\n{pictures}{tables}"
        )
        .trim_end()
        .to_owned()
            + "\n"
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_found() {
        assert_eq!(chosen(&[]).unwrap().len(), 4);
        assert_eq!(chosen(&["port".into()]).unwrap()[0].name, "port");
        assert!(chosen(&["prt".into()]).err().unwrap().contains("there are mtrace, port, segment, metric"));
    }

    /// Every number that the page quotes is the one in the table that it links to.
    #[test]
    fn the_page_quotes_the_tables() {
        let page = read(&root().join("docs/experiments.md")).unwrap();
        assert_eq!(page, quotes::refreshed(&page, &tables).unwrap(), "run `cargo xtask experiments`");
        assert!(quotes::count(&page) > 30);
    }

    #[test]
    fn every_figure_is_kept() {
        for Experiment { name, figures, .. } in &EXPERIMENTS {
            for figure in *figures {
                let path = root().join("docs/experiments").join(name).join(format!("{figure}.svg"));
                assert!(path.is_file(), "{}", path.display());
            }
        }
    }
}
