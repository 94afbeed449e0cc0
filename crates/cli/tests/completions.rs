//! Completion scripts, which `trackway completions` makes from the definition of the command line.

mod support;

use support::trackway;

#[test]
fn scripts_contain_every_verb_and_option() {
    for shell in ["bash", "zsh", "fish"] {
        let script = trackway(&["completions", shell]).assert_success().text();
        for verb in ::trackway::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(script.contains(verb.get_name()), "{shell} does not complete {}", verb.get_name());
        }
        for option in ["no-aslr", "follow", "technique", "dependences"] {
            assert!(script.contains(option), "{shell} does not complete --{option}");
        }
    }
}

#[test]
fn scripts_are_accepted_by_bash() {
    let script = trackway(&["completions", "bash"]).assert_success().text();
    let check = format!("{script}\ncomplete -p trackway");
    let status = std::process::Command::new("bash").args(["-c", &check]).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
}

#[test]
fn unknown_shell_is_refused() {
    assert_eq!(trackway(&["completions", "command.com"]).status, 2);
}
