//! Files and programs where jobs will want them.

use std::collections::BTreeMap;

use hansa_corpus::Manifest;

use super::network::Run;
use super::{Findings, quota};
use crate::commands::Slurm;
use crate::number::first_number;
use crate::profile::Profile;
use crate::runner::Printed;
use crate::shell::{join, quote};

pub(super) fn token_file(findings: &mut Findings, profile: &Profile) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = &profile.coordinator.token_file;
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
            let advice = format!("chmod 600 {}", path.display());
            findings.warn("token file", "others may read it", advice);
        }
        Ok(_) => findings.good("token file", "readable by you alone"),
        Err(error) => findings.bad(
            "token file",
            format!("{}: {error}", path.display()),
            "copy it from the coordinator's machine: `hansa token add SITE`",
        ),
    }
}

pub(super) async fn folders(findings: &mut Findings, slurm: &Slurm, profile: &Profile) {
    let script = &profile.script;
    let mut folders = vec![
        ("state folder", &script.state),
        ("log folder", &script.logs),
    ];
    folders.extend(script.cache.iter().map(|cache| ("cache folder", cache)));
    for (what, folder) in folders {
        let folder = folder.to_string_lossy();
        let dir = quote(&folder);
        // Made if need be, as the first job would; the file goes again.
        let line =
            format!("mkdir -p -- {dir} && f=$(mktemp {dir}/.hansa-check-XXXXXX) && rm -- \"$f\"");
        match said(slurm.shell(&line).await) {
            Ok(_) => findings.good(what, &folder),
            Err(text) => findings.bad(
                what,
                text,
                "it must be writable: correct [script] in the profile",
            ),
        }
    }
    let scratch = profile.checks.scratch.as_ref().unwrap_or(&script.state);
    let scratch = scratch.to_string_lossy();
    let quota = quota::left(slurm, &scratch).await;
    space(findings, slurm, profile, &scratch, quota.kib).await;
    inodes(findings, slurm, profile, &scratch, quota.files).await;
    if let Some(days) = profile.checks.purge_days {
        purge(findings, slurm, profile, days).await;
    }
}

/// Room, of the filesystem and of the quotas.
async fn space(
    findings: &mut Findings,
    slurm: &Slurm,
    profile: &Profile,
    scratch: &str,
    quota_kib: Option<i64>,
) {
    let least = profile.checks.free_gib_min;
    let line = format!("df -Pk -- {} | awk 'NR==2 {{ print $4 }}'", quote(scratch));
    let free = said(slurm.shell(&line).await)
        .ok()
        .and_then(|text| first_number(&text));
    let gib = |kib: f64| kib / 1_048_576.0;
    let advice = format!("checks.free_gib_min is {least}: make room, or ask for more");
    match (free.map(gib), quota_kib.map(|kib| gib(kib as f64))) {
        (_, Some(left)) if left < least as f64 => {
            findings.bad(
                "space",
                format!("{left:.1} GiB more within the quota"),
                advice,
            );
        }
        (Some(free), _) if free < least as f64 => {
            findings.bad("space", format!("{free:.1} GiB free at {scratch}"), advice);
        }
        (_, Some(left)) => findings.good("space", format!("{left:.0} GiB more within the quota")),
        (Some(free), None) => findings.good("space", format!("{free:.0} GiB free")),
        (None, None) => findings.warn(
            "space",
            format!("df says nothing of {scratch}"),
            "set checks.scratch",
        ),
    }
}

/// Files that may still be made: of the filesystem, and of the quotas.
async fn inodes(
    findings: &mut Findings,
    slurm: &Slurm,
    profile: &Profile,
    scratch: &str,
    quota_files: Option<i64>,
) {
    let least = profile.checks.free_inodes_min as f64;
    // Some filesystems do not count, and say that they have none at all.
    let line = format!(
        "df -Pi -- {} | awk 'NR==2 && $2>0 {{ print $4 }}'",
        quote(scratch)
    );
    let free = said(slurm.shell(&line).await)
        .ok()
        .and_then(|text| first_number(&text));
    let advice = format!("checks.free_inodes_min is {least}: delete old files, or ask for more");
    match (free, quota_files.map(|files| files as f64)) {
        (_, Some(left)) if left < least => {
            findings.bad("files", format!("{left} more within the quota"), advice);
        }
        (Some(left), _) if left < least => {
            findings.bad("files", format!("{left} more at {scratch}"), advice);
        }
        (_, Some(left)) => findings.good("files", format!("{left} more within the quota")),
        (Some(left), None) => findings.good("files", format!("{left} more")),
        (None, None) => findings.skip("files", "the filesystem does not say how many it has left"),
    }
}

async fn purge(findings: &mut Findings, slurm: &Slurm, profile: &Profile, days: u64) {
    let corpus = profile.script.corpus.to_string_lossy();
    // A week before it is too late.
    let old = days.saturating_sub(7);
    let line = format!("find {} -type f -atime +{old} | head -n 1", quote(&corpus));
    match said(slurm.shell(&line).await) {
        Ok(text) if text.is_empty() => {
            findings.good("purge", format!("nothing is older than {old} days"))
        }
        Ok(text) => findings.warn(
            "purge",
            format!("{text} was not used for {old} days, and goes after {days}"),
            "read it once (`hansa corpus verify`), or keep the corpus elsewhere",
        ),
        Err(text) => findings.skip("purge", text),
    }
}

pub(super) async fn corpus(
    findings: &mut Findings,
    slurm: &Slurm,
    profile: &Profile,
    run: Option<&Run>,
) {
    let what = "corpus";
    let dir = profile.script.corpus.to_string_lossy();
    let line = join(["cat", "--", &format!("{dir}/manifest.json")]);
    let text = match said(slurm.shell(&line).await) {
        Ok(text) => text,
        Err(text) => {
            let advice = "copy the corpus directory there, and set script.corpus";
            return findings.bad(what, text, advice);
        }
    };
    let manifest = match Manifest::parse(text.as_bytes(), &profile.script.corpus) {
        Ok(manifest) => manifest,
        Err(error) => return findings.bad(what, error, "copy the corpus directory again"),
    };
    let missing = missing(slurm, &dir, &manifest).await;
    if !missing.is_empty() {
        let found = format!("missing or of another size: {missing}");
        return findings.bad(what, found, "copy these again, then `hansa corpus verify`");
    }
    let windows = manifest.train.windows;
    let Some(answer) = run.and_then(|run| run.answer.as_ref()) else {
        let found = format!("{windows} windows; not compared, the coordinator does not answer");
        return findings.warn(what, found, "check again once it does");
    };
    let (recipe, digest) = answer;
    match recipe.digest_fields(&manifest) {
        Ok(here) if here == *digest => {
            findings.good(
                what,
                format!("{windows} windows, the run's; `hansa corpus verify` hashes them"),
            );
        }
        Ok(_) => findings.bad(
            what,
            "another corpus than the run's",
            "copy the run's corpus",
        ),
        Err(error) => findings.bad(what, error, "copy the run's corpus"),
    }
}

/// Files of the corpus that are not there as the manifest says, by size.
async fn missing(slurm: &Slurm, dir: &str, manifest: &Manifest) -> String {
    let parts = [&manifest.train.shards, &manifest.held_out.shards];
    let shards: Vec<(&str, u64)> = parts
        .into_iter()
        .flatten()
        .map(|shard| (shard.file.as_str(), shard.bytes.0))
        .collect();
    let names = join(shards.iter().map(|(name, _)| *name));
    let line = format!("cd {} && stat -L -c '%s %n' -- {names}", quote(dir));
    match slurm.shell(&line).await {
        // It fails if one of them is not there, and tells of the others.
        Ok(printed) => other_sizes(&printed.text(), &shards),
        Err(error) => error.to_string(),
    }
}

/// The first files that are not listed with their size.
fn other_sizes(listed: &str, wanted: &[(&str, u64)]) -> String {
    let sizes: BTreeMap<&str, &str> = listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(size, name)| (name, size))
        .collect();
    let other = wanted
        .iter()
        .filter(|(name, bytes)| sizes.get(name) != Some(&bytes.to_string().as_str()));
    let names: Vec<&str> = other.map(|(name, _)| *name).take(5).collect();
    names.join(", ")
}

/// The binary, in its modules or container, as a job would start it.
pub(super) async fn programs(findings: &mut Findings, slurm: &Slurm, profile: &Profile) {
    let script = &profile.script;
    if !script.modules.is_empty() {
        let line = format!(
            "module load {}",
            join(script.modules.iter().map(String::as_str))
        );
        match said(slurm.shell(&join(["bash", "-lc", &line])).await) {
            Ok(_) => findings.good("modules", script.modules.join(", ")),
            Err(text) => findings.bad("modules", text, "`module avail` shows what there is"),
        }
    }
    let hansa = quote(&script.hansa);
    let mut words: Vec<&str> = script.container_of_hansa().into_iter().collect();
    words.push(&hansa);
    let line = format!("{} --version", words.join(" "));
    if let Some(trainer) = &script.trainer {
        trainer_program(findings, slurm, profile, trainer).await;
    }
    let what = match script.container_of_hansa() {
        Some(_) => "container",
        None => "hansa",
    };
    match said(slurm.shell(&line).await) {
        Ok(text) => findings.good(what, text),
        Err(text) => findings.bad(
            what,
            text,
            "copy the binary to the site and set script.hansa to its path",
        ),
    }
}

/// The trainer's first word, in the container with the modules, as a task would find it.
async fn trainer_program(findings: &mut Findings, slurm: &Slurm, profile: &Profile, trainer: &str) {
    let script = &profile.script;
    let word = trainer.split_whitespace().next().unwrap_or_default();
    let mut line = script.container.clone().unwrap_or_default();
    line.push_str(&format!(
        " bash -c {}",
        quote(&format!("command -v {word}"))
    ));
    let shell = match script.modules.is_empty() {
        true => "-c",
        false => {
            let modules = join(script.modules.iter().map(String::as_str));
            line = format!("module load {modules} && {line}");
            "-lc"
        }
    };
    let what = "trainer";
    match said(slurm.shell(&join(["bash", shell, &line])).await) {
        Ok(text) => findings.good(what, text),
        Err(text) => {
            let text = format!("{word} is no command here: {text}");
            let advice = "script.trainer begins with a program of the container, or of script.modules; a path \
                          is safer";
            findings.bad(what, text, advice);
        }
    }
}

/// What a command printed if it succeeded, else its complaint.
pub(super) fn said(printed: Result<Printed, crate::runner::RunError>) -> Result<String, String> {
    match printed {
        Ok(printed) if printed.succeeded() => Ok(printed.text()),
        Ok(printed) => Err(match printed.both() {
            text if text.is_empty() => format!("exit code {:?}", printed.code.unwrap_or(-1)),
            text => text,
        }),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_size_is_as_bad_as_none() {
        let wanted = [("a.bin", 10), ("b.bin", 20), ("c.bin", 30)];
        assert_eq!(other_sizes("10 a.bin\n20 b.bin\n30 c.bin\n", &wanted), "");
        assert_eq!(other_sizes("10 a.bin\n7 b.bin", &wanted), "b.bin, c.bin");
    }
}
