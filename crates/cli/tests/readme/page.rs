//! The blocks of a page in Markdown, and the commands in them.

/// A block between fences.
pub struct Block<'a> {
    /// The word behind the opening fence.
    pub language: &'a str,
    pub text: String,
}

/// A command and the lines shown below it.
#[derive(Debug, PartialEq)]
pub struct CommandExample {
    pub command: String,
    pub lines: Vec<String>,
}

pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some(Block { language, text: String::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// The commands behind `$ `. A here-document up to the line `END` belongs to its command.
pub fn commands(block: &str) -> Vec<CommandExample> {
    let mut commands: Vec<CommandExample> = Vec::new();
    let mut lines = block.lines();
    while let Some(line) = lines.next() {
        if let Some(command) = line.strip_prefix("$ ") {
            let mut command = command.to_owned();
            if command.ends_with("<<'END'") {
                for line in lines.by_ref() {
                    command.extend(["\n", line]);
                    if line == "END" {
                        break;
                    }
                }
            }
            commands.push(CommandExample { command, lines: Vec::new() });
        } else if let Some(last) = commands.last_mut() {
            last.lines.push(line.to_owned());
        }
    }
    commands
}

#[test]
fn blocks_and_commands_are_found() {
    let page = "text\n```\nfirst\n```\n```console\n$ cat <<'END'\na\nEND\na\n$ b\n```\n";
    let blocks = blocks(page);
    assert_eq!(blocks.iter().map(|block| block.language).collect::<Vec<_>>(), ["", "console"]);
    assert_eq!(blocks[0].text, "first\n");
    let shown = |command: &str, lines: &[&str]| CommandExample {
        command: command.into(),
        lines: lines.iter().map(|&line| line.to_owned()).collect(),
    };
    assert_eq!(commands(&blocks[1].text), [shown("cat <<'END'\na\nEND", &["a"]), shown("b", &[])]);
}
