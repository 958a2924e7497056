//! Everything that must pass, in the order in which failures come cheapest.
//!
//! A step is a command that a person can run alone; when it fails, the summary repeats it. All
//! steps run even when one fails, so that one run tells everything. Nothing is built twice: clippy
//! and docs share the metadata of dependencies, and tests use the profile that `cargo test` uses.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{set_by_cargo_run, setup, slurm, tidy, torch};

/// Endings of the names of test targets that `--fast` leaves out.
const LEFT_OUT_OF_FAST: &[&str] = &["_e2e", "_slow"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What a developer runs before each commit.
    Fast,
    /// What a machine runs before code is merged.
    Full,
}

struct Step {
    name: &'static str,
    action: Action,
}

enum Action {
    /// Program and arguments, and one variable of the environment where it needs one.
    Command {
        words: Vec<String>,
        variable: Option<(&'static str, &'static str)>,
    },
    /// The dependency policy needs a tool that may be missing.
    Deny,
    Tidy,
    /// PyTorch for a test, by this script.
    Torch(PathBuf),
    /// Slurm's daemons for tests, by this script.
    Slurm(PathBuf),
}

struct Outcome {
    name: &'static str,
    took: Duration,
    verdict: Verdict,
}

enum Verdict {
    Passed,
    /// What it was for is left out, which is no failure.
    LeftOut,
    /// What to run to see it again.
    Failed(String),
}

/// Runs all steps of `extent`.
///
/// # Errors
/// When a step failed; which ones, and how to run them alone, has been printed.
pub fn run(sh: &Shell, extent: Extent) -> anyhow::Result<()> {
    let steps = match extent {
        Extent::Fast => fast_steps(&test_targets(sh)?),
        Extent::Full => full_steps(),
    };
    let outcomes = run_steps(sh, &steps);
    print!("{}", summary(&outcomes));
    if extent == Extent::Fast {
        println!(
            "left out: docs, dependency policy, doc tests, and test targets named *{} (`cargo \
             xtask ci` runs them)",
            LEFT_OUT_OF_FAST.join(", *")
        );
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_)))
        .count();
    anyhow::ensure!(failed == 0, "{failed} of {} steps failed", outcomes.len());
    Ok(())
}

fn full_steps() -> Vec<Step> {
    let torch = torch::installer().map(|script| Step {
        name: "pytorch for a test",
        action: Action::Torch(script),
    });
    let slurm = slurm::installer().map(|script| Step {
        name: "slurm for tests",
        action: Action::Slurm(script),
    });
    let mut steps = vec![
        format(),
        Step {
            name: "tidy",
            action: Action::Tidy,
        },
        Step {
            name: "dependency policy",
            action: Action::Deny,
        },
        clippy(),
        Step {
            name: "docs",
            action: Action::Command {
                words: words("cargo doc --workspace --no-deps"),
                variable: Some(("RUSTDOCFLAGS", "-D warnings")),
            },
        },
    ];
    steps.extend(torch);
    steps.extend(slurm);
    steps.push(command("tests", "cargo test --workspace --no-fail-fast"));
    steps
}

fn fast_steps(test_targets: &[String]) -> Vec<Step> {
    let mut tests = words("cargo test --workspace --no-fail-fast --lib --bins");
    let fast = |target: &&String| {
        !LEFT_OUT_OF_FAST
            .iter()
            .any(|ending| target.ends_with(ending))
    };
    for target in test_targets.iter().filter(fast) {
        tests.extend(["--test".to_owned(), target.clone()]);
    }
    let tests = Action::Command {
        words: tests,
        variable: None,
    };
    vec![
        format(),
        Step {
            name: "tidy",
            action: Action::Tidy,
        },
        clippy(),
        Step {
            name: "fast tests",
            action: tests,
        },
    ]
}

fn format() -> Step {
    command("format", "cargo fmt --all --check")
}

fn clippy() -> Step {
    command(
        "clippy",
        "cargo clippy --workspace --all-targets -- -D warnings",
    )
}

fn command(name: &'static str, line: &str) -> Step {
    Step {
        name,
        action: Action::Command {
            words: words(line),
            variable: None,
        },
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Names of the workspace's integration test targets, each once.
fn test_targets(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let json = cmd!(sh, "cargo metadata --format-version 1 --no-deps")
        .quiet()
        .read()
        .context("list the test targets")?;
    let metadata: serde_json::Value = serde_json::from_str(&json).context("read the metadata")?;
    let items = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = items(&metadata["packages"])
        .iter()
        .flat_map(|package| items(&package["targets"]))
        .filter(|target| items(&target["kind"]).iter().any(|kind| kind == "test"))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn run_steps(sh: &Shell, steps: &[Step]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!(
            "── {}/{} {}: {}",
            index + 1,
            steps.len(),
            step.name,
            step.action.line()
        );
        let started = Instant::now();
        let result = step.action.run(sh);
        let took = started.elapsed();
        let verdict = match (&step.action, result) {
            (_, Ok(())) => Verdict::Passed,
            (Action::Slurm(_), Err(error)) => {
                println!(
                    "── Slurm cannot be installed, so NO test starts a real cluster: {error:#}"
                );
                Verdict::LeftOut
            }
            (Action::Torch(_), Err(error)) => {
                println!(
                    "── PyTorch cannot be installed, so the exported model is NOT compared with it: \
                     {error:#}"
                );
                Verdict::LeftOut
            }
            (action, Err(error)) => {
                println!("── {} failed: {error:#}", step.name);
                Verdict::Failed(action.line())
            }
        };
        outcomes.push(Outcome {
            name: step.name,
            took,
            verdict,
        });
    }
    outcomes
}

impl Action {
    /// What a person types to do only this.
    fn line(&self) -> String {
        match self {
            Self::Command {
                words,
                variable: None,
            } => words.join(" "),
            Self::Command {
                words,
                variable: Some((name, value)),
            } => {
                format!("{name}='{value}' {}", words.join(" "))
            }
            Self::Deny => format!(
                "PATH={}:$PATH cargo deny check {DENY_CHECKS}",
                setup::TOOLS_BIN
            ),
            Self::Tidy => "cargo xtask tidy".to_owned(),
            Self::Torch(script) => torch::lines(script).join(" && "),
            Self::Slurm(script) => slurm::line(script),
        }
    }

    fn run(&self, sh: &Shell) -> anyhow::Result<()> {
        match self {
            Self::Command { words, variable } => run_command(sh, words, *variable),
            Self::Deny => {
                anyhow::ensure!(
                    setup::has_cargo_deny(sh),
                    "cargo-deny is not installed: run `cargo xtask setup`"
                );
                run_command(sh, &words(&format!("cargo deny check {DENY_CHECKS}")), None)
            }
            Self::Tidy => tidy::run(sh),
            Self::Torch(script) => torch::install(sh, script),
            Self::Slurm(script) => slurm::install(sh, script),
        }
    }
}

const DENY_CHECKS: &str = "--hide-inclusion-graph bans licenses sources";

fn run_command(sh: &Shell, words: &[String], variable: Option<(&str, &str)>) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("a step without a program")?;
    let mut command = cmd!(sh, "{program} {arguments...}").quiet();
    for name in set_by_cargo_run() {
        command = command.env_remove(name);
    }
    if let Some((name, value)) = variable {
        command = command.env(name, value);
    }
    Ok(command.run()?)
}

fn summary(outcomes: &[Outcome]) -> String {
    let mut text = String::from("── summary\n");
    for outcome in outcomes {
        let verdict = match outcome.verdict {
            Verdict::Passed => "ok",
            Verdict::LeftOut => "LEFT OUT",
            Verdict::Failed(_) => "FAILED",
        };
        let took_s = outcome.took.as_secs_f64();
        text += &format!("{verdict:>8}  {took_s:7.1} s  {}\n", outcome.name);
    }
    let total_s: f64 = outcomes
        .iter()
        .map(|outcome| outcome.took.as_secs_f64())
        .sum();
    text += &format!("          {total_s:7.1} s  in all\n");
    for outcome in outcomes {
        if let Verdict::Failed(line) = &outcome.verdict {
            text += &format!("{} failed; to see it alone: {line}\n", outcome.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_failed_step_stops_no_other_and_says_how_to_repeat_it() {
        let steps = [
            command("first", "true"),
            Step {
                name: "second",
                action: Action::Command {
                    words: words("false -x"),
                    variable: Some(("A", "b c")),
                },
            },
            command("third", "true"),
        ];
        let text = summary(&run_steps(&Shell::new().unwrap(), &steps));
        assert!(
            text.contains("second failed; to see it alone: A='b c' false -x\n"),
            "{text}"
        );
        assert_eq!(text.matches("  ok").count(), 2, "{text}");
        assert_eq!(text.matches("FAILED").count(), 1, "{text}");
    }

    #[test]
    fn a_missing_pytorch_is_loud_and_fails_nothing() {
        let sh = Shell::new().unwrap();
        let script = PathBuf::from("/nowhere/install-torch.sh");
        let step = Step {
            name: "pytorch",
            action: Action::Torch(script),
        };
        sh.change_dir(std::env::temp_dir());
        let outcomes = run_steps(&sh, &[step, command("tests", "true")]);
        let text = summary(&outcomes);
        assert!(text.contains("LEFT OUT") && text.contains("  ok"), "{text}");
        assert!(
            !text.contains("FAILED") && !text.contains("failed"),
            "{text}"
        );
    }

    #[test]
    fn fast_leaves_out_what_is_named_slow() {
        let targets = [
            "golden".to_owned(),
            "demo_e2e".to_owned(),
            "seeds_slow".to_owned(),
        ];
        let steps = fast_steps(&targets);
        let tests = steps.last().unwrap().action.line();
        assert!(tests.ends_with("--lib --bins --test golden"), "{tests}");
    }

    #[test]
    fn variables_of_cargo_run_do_not_reach_commands() {
        let sh = Shell::new().unwrap();
        assert!(
            set_by_cargo_run().any(|name| name == "CARGO_PKG_NAME"),
            "run under cargo"
        );
        let script = ["sh", "-c", "test -z \"$CARGO_PKG_NAME\""].map(str::to_owned);
        run_command(&sh, &script, None).unwrap();
    }
}
