//! What every command says of itself: a changed word here is a changed promise. To accept changes:
//! `INSTA_UPDATE=always cargo test -p hansa --test help`, and read the diff.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

#[test]
fn every_command_says_what_it_does() {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        let mut open = vec![Vec::new()];
        let mut seen = 0;
        while let Some(command) = open.pop() {
            let text = help(&command);
            for subcommand in subcommands(&text) {
                let mut longer = command.clone();
                longer.push(subcommand);
                open.push(longer);
            }
            let name = std::iter::once("hansa").chain(command.iter().map(String::as_str));
            insta::assert_snapshot!(name.collect::<Vec<_>>().join("-"), text);
            seen += 1;
        }
        assert!(seen > 10, "{seen} commands");
    });
}

fn help(command: &[String]) -> String {
    let mut hansa = Command::new(env!("CARGO_BIN_EXE_hansa"));
    // The text is as wide as the terminal, and shows what variables hold.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HANSA_") {
            hansa.env_remove(name);
        }
    }
    hansa.env("COLUMNS", "100").stdin(Stdio::null());
    let output = hansa.args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    assert!(output.stderr.is_empty(), "{command:?}");
    // Where two paragraphs of an option are, clap leaves spaces between them.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What stands first in the lines below `Commands:`.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| line.starts_with("  "));
    let names = names.filter_map(|line| {
        line.strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '))
    });
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}
