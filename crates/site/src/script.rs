//! The job script, made from the profile: a pure function, shown by `hansa submit --dry-run`.
//!
//! ```text
//!   #SBATCH …           what the job asks for, its name and comment
//!   exports, modules    the surroundings
//!   trap USR1, TERM ──► the trainer, which contributes what it has and says goodbye
//!   hansa train … &     or `hansa agent … -- srun … torchrun …`; in the background: a shell that waits for a
//!   wait                child in the foreground does not run its traps before the child has ended
//!   exit CODE           0: left or done; 75: come back later; anything else is a failure
//! ```
//!
//! The name of the replica, and with it its state directory, is that of the slot: a requeued job and the
//! next link of a chain find there what they carry on. Never here: secrets. They are in files that the
//! script names.

use std::fmt::Write as _;

use crate::profile::{Profile, ScriptSection, ShapeRow};
use crate::shell::{join, quote};

/// What is to be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRequest<'a> {
    /// The run's identity in hexadecimal digits.
    pub run: &'a str,
    /// The replica that the job carries on.
    pub replica: &'a str,
    /// The intent's number.
    pub intent: u64,
    /// Its place in the replica's chain, from 1.
    pub link: u32,
    /// When it may start.
    pub start: StartRule,
    /// Nodes that it must not get.
    pub exclude: Vec<&'a str>,
}

/// When a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRule {
    /// As soon as the queue lets it.
    Now,
    /// Not before so many seconds have passed.
    InSeconds(u64),
    /// Not while another job of its name runs.
    Singleton,
}

/// A job as it is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobScript {
    /// The job's name, by which it is found again.
    pub name: String,
    /// The job's comment, by which it is told from others of its name.
    pub comment: String,
    /// The script.
    pub text: String,
}

/// The first digits of a run's identity, as they stand in names.
#[must_use]
pub fn run8(run: &str) -> &str {
    run.get(..8).unwrap_or(run)
}

/// What the names of a run's jobs at a site begin with.
#[must_use]
pub fn name_prefix(run: &str, site: &str) -> String {
    format!("hansa-{}-{site}-", run8(run))
}

/// The job's name: singleton needs equal ones, all others tell the intent.
#[must_use]
pub fn job_name(profile: &Profile, request: &JobRequest<'_>) -> String {
    let prefix = name_prefix(request.run, &profile.name);
    match profile.jobs.chain {
        crate::profile::Chain::Singleton => format!("{prefix}{}", request.replica),
        _ => format!("{prefix}{}-{}", request.replica, request.intent),
    }
}

/// The job's comment.
#[must_use]
pub fn job_comment(run: &str, replica: &str, intent: u64) -> String {
    format!("hansa run={} replica={replica} intent={intent}", run8(run))
}

/// The intent that a comment of [`job_comment`] speaks of, if it is of this run.
#[must_use]
pub fn intent_of(comment: &str, run: &str) -> Option<u64> {
    let mut words = comment.split_whitespace();
    if words.next() != Some("hansa") || words.next()?.strip_prefix("run=") != Some(run8(run)) {
        return None;
    }
    words.find_map(|word| word.strip_prefix("intent=")?.parse().ok())
}

/// Renders a job.
#[must_use]
pub fn render(profile: &Profile, shape: &ShapeRow, request: &JobRequest<'_>) -> JobScript {
    let name = job_name(profile, request);
    let comment = job_comment(request.run, request.replica, request.intent);
    // A login shell is what knows `module`.
    let mut text = match profile.script.modules.is_empty() {
        true => String::from("#!/bin/bash\n"),
        false => String::from("#!/bin/bash -l\n"),
    };
    directives(&mut text, profile, shape, request, &name, &comment);
    let link = request.link;
    let _ = writeln!(
        text,
        "\n# {comment}, link {link} of its chain: made by hansa from the profile of {}.\n",
        profile.name
    );
    surroundings(&mut text, profile);
    if profile.script.trainer.is_some() {
        text.push_str(MEETING_POINT);
    }
    body(&mut text, &command(profile, shape, request.replica));
    JobScript {
        name,
        comment,
        text,
    }
}

/// A script with what a job of this shape asks for and nothing to do: for `sbatch --test-only`.
#[must_use]
pub fn render_probe(profile: &Profile, shape: &ShapeRow) -> String {
    let mut text = String::from("#!/bin/bash\n");
    for option in resources(profile, shape) {
        let _ = writeln!(text, "#SBATCH {option}");
    }
    text.push_str("#SBATCH --job-name=hansa-probe\nexit 0\n");
    text
}

/// What a job of this shape asks for.
fn resources(profile: &Profile, shape: &ShapeRow) -> Vec<String> {
    let mut options = Vec::new();
    let mut add =
        |name: &str, value: &str| options.push(format!("--{name}={}", sbatch_word(value)));
    if let Some(account) = profile.account_of(shape) {
        add("account", account);
    }
    add("partition", &shape.partition);
    if let Some(qos) = &shape.qos {
        add("qos", qos);
    }
    add("nodes", &shape.nodes.to_string());
    add("time", &shape.walltime);
    if shape.gpus_per_node > 0 {
        let number = shape.gpus_per_node.to_string();
        options.push(profile.slurm.gpu_option.replace("{}", &number));
    }
    options.extend(profile.slurm.options.iter().cloned());
    options.extend(shape.options.iter().cloned());
    options
}

fn directives(
    text: &mut String,
    profile: &Profile,
    shape: &ShapeRow,
    request: &JobRequest<'_>,
    name: &str,
    comment: &str,
) {
    let script = &profile.script;
    let log = script.logs.join("%x-%j.out");
    let mut options = vec![
        format!("--job-name={}", sbatch_word(name)),
        format!("--comment={}", sbatch_word(comment)),
    ];
    options.extend(resources(profile, shape));
    options.push(format!("--signal=B:USR1@{}", script.signal_before_s));
    // A job that lost its node carries on from the same state under the same name.
    options.push("--requeue".into());
    options.push("--open-mode=append".into());
    options.push(format!("--output={}", sbatch_word(&log.to_string_lossy())));
    let chdir = script.state.to_string_lossy();
    options.push(format!("--chdir={}", sbatch_word(&chdir)));
    match request.start {
        StartRule::Now => {}
        // Relative, so that the zone of the site's clock does not matter.
        StartRule::InSeconds(seconds) => options.push(format!("--begin=now+{seconds}")),
        StartRule::Singleton => options.push("--dependency=singleton".into()),
    }
    if !request.exclude.is_empty() {
        options.push(format!("--exclude={}", request.exclude.join(",")));
    }
    for option in options {
        let _ = writeln!(text, "#SBATCH {option}");
    }
}

/// A word as `sbatch` reads it from a script: double quotes keep blanks together.
fn sbatch_word(word: &str) -> String {
    let clean: String = word
        .chars()
        .filter(|c| !c.is_control() && *c != '"' && *c != '\\')
        .collect();
    match clean.contains([' ', '#', '\'']) {
        true => format!("\"{clean}\""),
        false => clean,
    }
}

/// What a job of this profile sets up before its command.
pub(crate) fn surroundings_of(profile: &Profile) -> String {
    let mut text = String::new();
    surroundings(&mut text, profile);
    text
}

fn surroundings(text: &mut String, profile: &Profile) {
    let script = &profile.script;
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let export = |name: &str, value: &str| format!("export {name}={}", quote(value));
    for setup in &script.setup {
        line(setup.clone());
    }
    if !script.modules.is_empty() {
        line(format!(
            "module load {}",
            join(script.modules.iter().map(String::as_str))
        ));
    }
    // Set for the site's own commands only.
    line("unset SLURM_TIME_FORMAT".into());
    line(export("HANSA_COORDINATOR", &profile.coordinator.url));
    let token_file = script.token_file.as_ref();
    let token_file = token_file.unwrap_or(&profile.coordinator.token_file);
    line(export("HANSA_TOKEN_FILE", &token_file.to_string_lossy()));
    match (&profile.relay, &profile.coordinator.proxy) {
        (Some(relay), _) => line(export("HANSA_PROXY_FILE", &relay.file.to_string_lossy())),
        (None, Some(proxy)) => line(export("HTTPS_PROXY", proxy)),
        (None, None) => {}
    }
    for (name, value) in &script.environment {
        line(export(name, value));
    }
}

/// Where ranks meet. The batch script runs on the job's first node; jobs that share it have other numbers. Ten
/// ports for each: a trainer that is started again should not find its predecessor's in use.
const MEETING_POINT: &str = "export MASTER_ADDR=\"${MASTER_ADDR:-$(hostname)}\"\n\
    export MASTER_PORT=\"${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 1200 * 10))}\"\n";

/// Runs the command so that signals reach it, and its exit code is the job's.
fn body(text: &mut String, command: &str) {
    let _ = write!(
        text,
        r#"
# Told to leave (a while before the walltime's end, or by scancel): so is the trainer, which contributes
# what it has. A second signal would make it drop that.
told=
leave() {{ [ -n "$told" ] || {{ told=1; kill -USR1 "$child"; }}; }} 2>/dev/null
{command} &
child=$!
trap leave USR1 TERM
while wait "$child"; code=$?; [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do :; done
if [ -n "$told" ] && [ "$code" -gt 128 ]; then
    # That was the signal's code: the child may have ended between the two commands above.
    wait "$child" 2>/dev/null
    again=$?
    [ "$again" -eq 127 ] || code=$again
fi
# 0: it left cleanly, or the run is over. 75: a later job goes on.
exit "$code"
"#
    );
}

const PLACEHOLDERS: &[&str] = &[
    "hansa",
    "site",
    "replica",
    "corpus",
    "state",
    "nodes",
    "gpus_per_node",
    "coordinator",
    "token_file",
];

fn command(profile: &Profile, shape: &ShapeRow, replica: &str) -> String {
    let script = &profile.script;
    let filled = |template: &str| filled(template, profile, shape, replica);
    let around = [script.launcher.clone(), script.container.clone()];
    let mut words: Vec<String> = around.into_iter().flatten().collect();
    if let Some(trainer) = &script.trainer {
        // Variables such as SLURM_NODEID are those of each task, in the container.
        let task = quote(&format!("exec {}", filled(trainer)));
        words.insert(0, format!("{} --", hansa("agent", profile, replica)));
        words.push(format!("bash -c {task}"));
    } else {
        words.push(match &script.command {
            Some(template) => filled(template),
            None => hansa("train", profile, replica),
        });
    }
    words.join(" ")
}

/// `hansa train …` or `hansa agent …`.
fn hansa(what: &str, profile: &Profile, replica: &str) -> String {
    let script = &profile.script;
    let state = script.state.join(replica);
    let (corpus, state) = (script.corpus.to_string_lossy(), state.to_string_lossy());
    let mut words = vec![script.hansa.as_str(), what, "--site", &profile.name];
    words.extend(["--replica", replica, "--corpus", &corpus, "--state", &state]);
    // Its predecessor in the chain may still be leaving.
    words.push("--wait-if-busy");
    let leave_within = script.leave_within_s().to_string();
    words.extend(["--leave-within-s", &leave_within]);
    let cache = script.cache.as_ref().map(|path| path.to_string_lossy());
    if let Some(cache) = &cache {
        words.extend(["--cache", cache]);
    }
    words.extend(script.train_arguments.iter().map(String::as_str));
    join(words)
}

/// A template with what this job fills in.
fn filled(template: &str, profile: &Profile, shape: &ShapeRow, replica: &str) -> String {
    let script = &profile.script;
    let token_file = script.token_file.as_ref();
    let token_file = token_file.unwrap_or(&profile.coordinator.token_file);
    let value = |name: &str| match name {
        "hansa" => quote(&script.hansa),
        "site" => quote(&profile.name),
        "replica" => quote(replica),
        "corpus" => quote(&script.corpus.to_string_lossy()),
        "state" => quote(&script.state.join(replica).to_string_lossy()),
        "nodes" => shape.nodes.to_string(),
        "gpus_per_node" => shape.gpus_per_node.to_string(),
        "coordinator" => quote(&profile.coordinator.url),
        _ => quote(&token_file.to_string_lossy()),
    };
    fill(template, value)
}

/// Fills in `{name}`; `${name}` is the shell's.
fn fill(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut text = template.to_owned();
    for name in PLACEHOLDERS {
        let placeholder = format!("{{{name}}}");
        text = text
            .split(&format!("${placeholder}"))
            .map(|part| part.replace(&placeholder, &value(name)))
            .collect::<Vec<_>>()
            .join(&format!("${placeholder}"));
    }
    text
}

/// Whether every placeholder of the commands is known, and only one of them is there; else the key and why.
pub(crate) fn check_commands(script: &ScriptSection) -> Result<(), (&'static str, String)> {
    if script.command.is_some() && script.trainer.is_some() {
        let why = "cannot stand beside script.command: the trainer is what `hansa agent` starts";
        return Err(("script.trainer", why.to_owned()));
    }
    let templates = [
        ("script.command", &script.command),
        ("script.trainer", &script.trainer),
    ];
    for (key, template) in templates {
        check_template(template.as_deref().unwrap_or_default()).map_err(|why| (key, why))?;
    }
    Ok(())
}

fn check_template(template: &str) -> Result<(), String> {
    for (at, _) in template.match_indices('{') {
        let shell = template[..at].ends_with('$');
        let Some((name, _)) = template[at + 1..].split_once('}') else {
            continue;
        };
        let a_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if a_name && !shell && !PLACEHOLDERS.contains(&name) {
            return Err(format!(
                "has {{{name}}}; known are {{{}}}",
                PLACEHOLDERS.join("}, {")
            ));
        }
    }
    Ok(())
}
