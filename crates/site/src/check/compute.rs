//! The same questions, asked on a compute node by a tiny job.

use std::time::Duration;

use super::files::said;
use super::{CheckOptions, Findings};
use crate::commands::Slurm;
use crate::profile::Profile;
use crate::script::render_probe;
use crate::shell::quote;

/// The job may have to wait for its turn.
const WITHIN: Duration = Duration::from_secs(900);
/// Minutes that the job asks for.
const MINUTES: u32 = 5;

pub(super) async fn job(findings: &mut Findings, slurm: &Slurm, options: &CheckOptions) {
    let what = "compute node";
    let endpoint = options.endpoint.as_ref().ok();
    let own = with_own_relay(&options.profile);
    let (profile, relay) = match crate::relay::start_for(&own, endpoint).await {
        Ok(relay) => (&own, relay),
        // A port of its own: the relay that runs there is the one to ask through.
        Err(_) if relay_runs(&options.profile) => (&options.profile, None),
        Err(error) => return findings.bad(what, error, "set relay.listen in the profile"),
    };
    let Some(text) = script(profile) else {
        return findings.skip(what, "the profile has no preferred shape");
    };
    let logs = profile.script.logs.to_string_lossy();
    let printed = slurm
        .shell_with(&line(&logs), &text, WITHIN + Duration::from_secs(30))
        .await;
    drop(relay);
    if let Some(relay) = &own.relay {
        // It leads nowhere any more; if it stays, nobody reads it.
        let _ = std::fs::remove_file(&relay.file);
    }
    let id = match said(printed) {
        Ok(text) => text.lines().last().unwrap_or_default().to_owned(),
        Err(text) => {
            let advice = "submit a job of this shape by hand; with a long queue, use a debug shape";
            return findings.bad(what, text, advice);
        }
    };
    let path = format!("{logs}/hansa-check-{id}.out");
    let output = slurm.tail(&path, 16_384).await.ok().flatten();
    read(findings, &output.unwrap_or_default());
}

/// Waits for the job and prints its number; a job that is not waited for any more is cancelled.
fn line(logs: &str) -> String {
    let seconds = WITHIN.as_secs();
    format!(
        "cd {} && job=$(timeout -k 5 {seconds} sbatch --parsable --wait --job-name=hansa-check \
         --time={MINUTES} --output=hansa-check-%j.out); code=$?; job=${{job%%;*}}; \
         if [ \"$code\" -eq 124 ]; then scancel \"$job\"; \
         echo \"job $job did not start and end within {seconds} s, and was cancelled\" >&2; fi; \
         echo \"$job\"; exit \"$code\"",
        quote(logs)
    )
}

/// Jobs of a site process read its relay's file: that one stays as it is.
fn with_own_relay(profile: &Profile) -> Profile {
    let mut own = profile.clone();
    if let Some(relay) = &mut own.relay {
        relay.file.as_mut_os_string().push(".check");
    }
    own
}

fn relay_runs(profile: &Profile) -> bool {
    let relay = profile.relay.as_ref();
    relay.is_some_and(|relay| relay.file.exists())
}

/// Lines `hansa-check: WHAT: ok` or `hansa-check: WHAT: failed: WHY`.
fn read(findings: &mut Findings, output: &str) {
    let mut seen = 0;
    for line in output.lines() {
        let Some((what, result)) = line
            .strip_prefix("hansa-check: ")
            .and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        seen += 1;
        let what = format!("compute node: {what}");
        match result.strip_prefix("failed: ") {
            None => findings.good(&what, result),
            Some(why) => findings.bad(&what, why, advice(&what)),
        }
    }
    if seen == 0 {
        let advice = "look at the job's output; its node may not see script.logs";
        findings.bad(
            "compute node",
            format!("the job said nothing: {output:?}"),
            advice,
        );
    }
}

fn advice(what: &str) -> &'static str {
    if what.ends_with("coordinator") {
        "compute nodes have no way out: set coordinator.proxy, or a [relay]"
    } else if what.ends_with("hansa") {
        "script.hansa must be where compute nodes see it"
    } else {
        "[script] must name paths that compute nodes see"
    }
}

fn script(profile: &Profile) -> Option<String> {
    let shape = profile.shape(&profile.jobs.shape)?;
    let mut shape = shape.clone();
    // One node is enough to see what all of them see.
    shape.nodes = 1;
    let probe = render_probe(profile, &shape);
    let head = probe.trim_end().trim_end_matches("exit 0");
    let surroundings = crate::script::surroundings_of(profile);
    let script = &profile.script;
    let container = script
        .container_of_hansa()
        .map(|c| format!("{c} "))
        .unwrap_or_default();
    let hansa = format!("{container}{}", quote(&script.hansa));
    let token_file = script
        .token_file
        .as_ref()
        .unwrap_or(&profile.coordinator.token_file);
    let checks = [
        ("hansa", format!("{hansa} --version")),
        (
            "corpus",
            format!(
                "test -r {}",
                quote(&format!("{}/manifest.json", script.corpus.display()))
            ),
        ),
        (
            "state",
            format!(
                "f=$(mktemp {}/.hansa-check-XXXXXX) && rm \"$f\"",
                quote(&script.state.to_string_lossy())
            ),
        ),
        (
            "token file",
            format!("test -r {}", quote(&token_file.to_string_lossy())),
        ),
        ("coordinator", format!("{hansa} status --json >/dev/null")),
    ];
    let mut text = format!("{head}{surroundings}");
    text.push_str("say() { what=$1; shift; if out=$(\"$@\" 2>&1); then echo \"hansa-check: $what: ok ${out:0:100}\"; else echo \"hansa-check: $what: failed: \"$out; fi; }\n");
    for (what, line) in checks {
        let line = format!("say {} bash -c {}\n", quote(what), quote(&line));
        text.push_str(&line);
    }
    text.push_str("exit 0\n");
    Some(text)
}
