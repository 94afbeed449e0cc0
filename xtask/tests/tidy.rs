//! Keeps the documentation true and the tree tidy: every crate is in docs/architecture.md, every
//! path that a document names exists, every question of CONTRIBUTING.md leads to a file, every
//! module has its opening comment, lines are not too wide, and the list of packages is complete.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all files below `directory` whose names end in `ending`.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn packages() -> Vec<(PathBuf, String)> {
    let mut packages = Vec::new();
    for manifest in files(root(), "Cargo.toml") {
        let text = read(&manifest);
        if let Some(name) = text.lines().find_map(|line| line.strip_prefix("name = \"")) {
            packages.push((manifest.parent().unwrap().to_owned(), name.trim_end_matches('"').to_owned()));
        }
    }
    assert!(packages.len() >= 9, "the packages are not found: {packages:?}");
    packages
}

#[test]
fn architecture_lists_every_crate() {
    let page = read(&root().join("docs/architecture.md"));
    for (directory, name) in packages() {
        let folder = directory.strip_prefix(root()).unwrap().display().to_string();
        let short = name.strip_prefix("trackway-").unwrap_or(&name);
        let rows = [&name, short].map(|name| format!("`{name}` (`{folder}`)"));
        assert!(rows.iter().any(|row| page.contains(row)), "docs/architecture.md does not list {name} in {folder}");
    }
}

/// Published names share a prefix; what is never published goes by the name of its folder.
#[test]
fn every_package_is_named_after_its_folder() {
    for (directory, name) in packages() {
        let folder = directory.file_name().unwrap().to_str().unwrap();
        let is_published = !read(&directory.join("Cargo.toml")).contains("publish = false");
        let expected = match folder {
            "cli" => "trackway".to_owned(),
            _ if is_published || folder == "fuzz" => format!("trackway-{folder}"),
            _ => folder.to_owned(),
        };
        assert_eq!(name, expected, "the name of the package in {}", directory.display());
    }
}

/// The directories of the repository that documents and comments name.
const DIRECTORIES: [&str; 7] = ["crates/", "docs/", "workloads/", "xtask/", "fuzz/", ".ci/", ".cargo/"];

/// Returns the words in backquotes that look like paths of the repository.
fn named_paths(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let words = quoted.filter(|word| DIRECTORIES.iter().any(|directory| word.starts_with(directory)));
    words.filter(|word| !word.contains(['*', ' ', '<', '{'])).map(str::to_owned).collect()
}

/// Returns the words of the comments of a Rust file that look like files of the repository.
fn paths_in_comments(text: &str) -> Vec<&str> {
    let comments = text.lines().filter_map(|line| line.split_once("//")).map(|(_, comment)| comment);
    let is_separator = |letter: char| !(letter.is_ascii_alphanumeric() || "/._-".contains(letter));
    let words = comments.flat_map(move |comment| comment.split(is_separator));
    let words = words.map(|word| word.trim_end_matches('.'));
    let is_path = |word: &&str| DIRECTORIES.iter().any(|directory| word.starts_with(directory));
    words
        .filter(is_path)
        .filter(|word| [".md", ".rs", ".c", ".s", ".txt"].iter().any(|end| word.ends_with(end)))
        .collect()
}

/// Returns the link targets of Markdown that are files.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn paths_named_in_documents_exist() {
    let mut checked = 0;
    for document in files(root(), ".md") {
        let text = read(&document);
        for path in named_paths(&text) {
            assert!(root().join(&path).exists(), "{} names {path}, which does not exist", document.display());
            checked += 1;
        }
        for link in links(&text) {
            let file = link.split('#').next().unwrap();
            let target = document.parent().unwrap().join(file);
            assert!(target.exists(), "{} links to {link}, which does not exist", document.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "the documents name nothing: {checked}");
}

/// Whether `text` has `word` with nothing of a longer word around it.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The glossary says `trace::Step` for a public name or a module of a crate.
#[test]
fn every_name_in_the_glossary_exists() {
    let page = read(&root().join("docs/glossary.md"));
    let names = page.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once("::"));
    let mut checked = 0;
    for (package, name) in names {
        let sources = files(&root().join("crates").join(package).join("src"), ".rs");
        let is_known = sources.iter().map(|source| read(source)).any(|source| {
            // A macro defines the types of numbers.
            defines(&source, name) || source.contains("macro_rules! newtype") && has_word(&source, name)
        });
        assert!(is_known, "docs/glossary.md names {package}::{name}, which does not exist");
        checked += 1;
    }
    assert!(checked > 30, "the glossary names nothing: {checked}");
}

/// Returns the rows of "Where is X?": each question with its answer.
fn questions(page: &str) -> Vec<(&str, &str)> {
    let section = page.split("\n## ").find(|section| section.starts_with("Where is X?\n")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| row.trim_matches(['|', ' ']).split_once(" | ").unwrap()).collect()
}

/// Whether a source has the definition of something called `name`.
fn defines(source: &str, name: &str) -> bool {
    let keywords = ["fn", "struct", "enum", "trait", "const", "type", "mod"];
    keywords.iter().any(|keyword| has_word(source, &format!("{keyword} {name}")))
}

/// Whether a file is found by its name: whether `text` has a word of its path below `src`, or
/// begins with it. A crate's root goes by the name of the crate.
fn leads_to(text: &str, path: &str) -> bool {
    let (directory, file) = path.split_once("/src/").unwrap();
    let name = if file == "lib.rs" { directory.trim_start_matches("crates/") } else { file };
    let (prefix_length, text) = (5, text.to_lowercase());
    let words = name.trim_end_matches(".rs").split(['/', '_']);
    let mut prefixes = words.map(|word| &word[..word.len().min(prefix_length)]);
    prefixes.any(|prefix| text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word.starts_with(prefix)))
}

/// An answer names a file that the words of the question lead to and perhaps, behind a comma,
/// something that is defined there. Behind a semicolon there may be further files.
#[test]
fn every_answer_names_a_file_that_its_question_leads_to() {
    let page = read(&root().join("CONTRIBUTING.md"));
    let questions = questions(&page);
    assert!(questions.len() >= 20, "CONTRIBUTING.md answers {} questions", questions.len());
    for (question, answer) in questions {
        let quoted: Vec<&str> = answer.split('`').skip(1).step_by(2).collect();
        assert!(quoted[0].starts_with("crates/"), "the answer to \"{question}\" does not begin with a file");
        let own_words: Vec<&str> = answer.split('`').step_by(2).collect();
        let mut path = quoted[0];
        for (at, word) in quoted.into_iter().enumerate() {
            if word.starts_with("crates/") {
                path = word;
                let text = if at == 0 { question.to_owned() } else { own_words.concat() };
                assert!(leads_to(&text, path), "\"{text}\" does not lead to {path}");
            }
            let source = read(&root().join(path));
            let name = word.rsplit("::").next().unwrap();
            assert!(word == path || defines(&source, name), "{path} does not define {word}");
        }
    }
}

#[test]
fn words_lead_to_files_by_their_names() {
    assert!(leads_to("Where is a signal deferred?", "crates/engine/src/signal/deferred.rs"));
    assert!(leads_to("What does `isa` know?", "crates/isa/src/lib.rs"));
    assert!(!leads_to("Where is a `ret` translated?", "crates/engine/src/emit.rs"));
    assert!(defines("fn status(exit: Exit)", "status") && !defines("status(exit)", "status"));
    assert_eq!(questions("# A\n## Where is X?\n\n| q | a |\n| --- | --- |\n| b? | `c` |\n\n## D"), [("b?", "`c`")]);
}

#[test]
fn paths_named_in_comments_exist() {
    let mut checked = 0;
    for module in files(root(), ".rs").iter().filter(|module| !module.ends_with("xtask/tests/tidy.rs")) {
        for path in paths_in_comments(&read(module)) {
            assert!(root().join(path).exists(), "{} names {path}, which does not exist", module.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "the comments name nothing: {checked}");
    assert_eq!(paths_in_comments("//! See docs/a.md.\nlet x = 1; // `crates/b.rs`\n"), ["docs/a.md", "crates/b.rs"]);
}

#[test]
fn modules_open_with_their_purpose() {
    let modules = files(root(), ".rs");
    assert!(modules.len() > 100, "the modules are not found: {}", modules.len());
    for module in modules {
        let text = read(&module);
        // Attributes of the crate may come first.
        let first = text.lines().find(|line| !line.starts_with("#![") && !line.is_empty()).unwrap_or_default();
        let is_comment = first.strip_prefix("//!").is_some_and(|words| words.trim().len() > 10);
        assert!(is_comment, "{} does not begin with a comment that says what it is for", module.display());
    }
}

/// Columns of a line of code.
const CODE_WIDTH: usize = 120;
/// Columns of a line of prose, in a document or in a comment.
const PROSE_WIDTH: usize = 100;

/// The files and directories whose lines have to fit.
const WIDTH_CHECKED: [&str; 9] =
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "crates", "fuzz", "workloads", "xtask"];

/// Files that a program writes.
const GENERATED: [&str; 2] = ["docs/experiments", "docs/soak"];

/// Tests whose lines hold whole programs and descriptors: only their comments have to fit.
const WITH_LONG_TEXTS: [&str; 2] = ["crates/acceptance/tests", "crates/oracle/tests"];

/// Returns the lines that are prose, each with its number: tables, headings, code blocks and
/// generated sections are not.
fn prose<'t>(lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<(usize, &'t str)> {
    let (mut is_code, mut is_generated) = (false, false);
    let is_prose = |&(_, line): &(usize, &str)| {
        is_generated = (is_generated || line.starts_with("<!-- bench ")) && !line.starts_with("<!-- end of bench ");
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !(is_code || is_fence || is_generated || line.starts_with(['|', '<', '#']))
    };
    lines.filter(is_prose).collect()
}

/// Returns the lines of a text, each with its number.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// Returns the lines of a Rust source that are prose in comments, each with its number.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let contents = numbered(text).filter_map(|(number, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        Some((number, comment.trim_start_matches(['/', '!']).trim_start()))
    });
    let lines: Vec<&str> = text.lines().collect();
    prose(contents).into_iter().map(|(number, _)| (number, lines[number - 1])).collect()
}

fn is_below(file: &Path, directories: &[&str]) -> bool {
    directories.iter().any(|directory| file.starts_with(root().join(directory)))
}

/// Returns the numbers of the lines of a file that are too wide.
fn wide_lines(file: &Path) -> Vec<usize> {
    let text = read(file);
    let wider = |width| move |&(_, line): &(usize, &str)| line.chars().count() > width;
    let is_markdown = file.extension().is_some_and(|extension| extension == "md");
    let prose = if is_markdown { prose(numbered(&text)) } else { comments(&text) };
    let mut wide: Vec<(usize, &str)> = prose.into_iter().filter(wider(PROSE_WIDTH)).collect();
    if !is_markdown && !is_below(file, &WITH_LONG_TEXTS) {
        wide.extend(numbered(&text).filter(wider(CODE_WIDTH)));
    }
    wide.into_iter().map(|(number, _)| number).collect()
}

#[test]
fn lines_are_not_too_wide() {
    let mut wide = Vec::new();
    let mut checked = 0;
    for path in WIDTH_CHECKED.map(|path| root().join(path)) {
        let listed = if path.is_dir() { [files(&path, ".rs"), files(&path, ".md")].concat() } else { vec![path] };
        for file in listed.iter().filter(|file| !is_below(file, &GENERATED)) {
            wide.extend(wide_lines(file).iter().map(|number| format!("{}:{number}", file.display())));
            checked += 1;
        }
    }
    assert!(checked > 50, "the files are not found: {checked}");
    assert!(wide.is_empty(), "these lines have too many columns:\n{}", wide.join("\n"));
}

#[test]
fn tables_and_code_are_not_prose() {
    let text = "one\n\n| a |\n```\ncode\n```\n<!-- bench amd -->\nnumbers\n<!-- end of bench amd -->\ntwo";
    let words: Vec<&str> =
        prose(numbered(text)).into_iter().map(|(_, line)| line).filter(|line| !line.is_empty()).collect();
    assert_eq!(words, ["one", "two"]);
    assert_eq!(comments("//! one\nlet two;\n    // three\n/// | four |\n"), [(1, "//! one"), (3, "    // three")]);
}

/// Returns the programs that a source file starts by their names.
fn started_programs(source: &str) -> Vec<&str> {
    let names = source.split("Command::new(\"").skip(1).filter_map(|rest| rest.split('"').next());
    names.filter(|name| !name.contains('/')).collect()
}

/// `acceptance::tool` panics for programs that are not in the list; tests that start programs
/// directly do not.
#[test]
fn every_program_that_tests_start_is_in_the_list_of_packages() {
    let list = read(&root().join("xtask/packages.txt"));
    let (tests, _) = list.split_once("[bench]").unwrap();
    let listed: Vec<&str> =
        tests.lines().filter_map(|line| line.split_once(": ")).flat_map(|(_, programs)| programs.split(' ')).collect();
    let mut checked = 0;
    for file in files(root(), ".rs").iter().filter(|file| !file.starts_with(root().join("xtask"))) {
        for program in started_programs(&read(file)) {
            assert!(
                listed.contains(&program),
                "{} starts {program}, which is not in xtask/packages.txt",
                file.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 10, "no programs are found: {checked}");
    assert_eq!(started_programs("Command::new(\"a\").arg(x); Command::new(\"/b/c\")"), ["a"]);
}

/// Returns whether `text` has an absolute path that begins with `directory`.
fn names(text: &str, directory: &str) -> bool {
    text.match_indices(directory)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.'))
}

#[test]
fn no_file_names_a_directory_of_a_developer() {
    let documents = files(root(), ".md").into_iter().chain(files(root(), ".rs")).chain(files(root(), ".toml"));
    for document in documents.filter(|document| !document.ends_with("xtask/tests/tidy.rs")) {
        let text = read(&document);
        for directory in ["/home/", "/work/", "/root/"] {
            assert!(!names(&text, directory), "{} names a path under {directory}", document.display());
        }
    }
    assert!(names("see /root/x", "/root/") && !names("/proc/7/root/x", "/root/"));
}

#[test]
fn paths_and_links_in_a_text_are_found() {
    let text = "see `docs/a.md`, `cargo test`, `crates/*` and [this](b.md#part), [that](https://example.org)";
    assert_eq!(named_paths(text), ["docs/a.md"]);
    assert_eq!(links(text), ["b.md#part"]);
}
