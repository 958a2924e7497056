//! What a profile's author gets to read.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;

fn parse(text: &str) -> Result<Profile, ProfileError> {
    Profile::parse(text, Path::new("/sites/x.toml"))
}

fn refused(from: &str, to: &str) -> String {
    let text = commented("lumi");
    assert!(text.contains(from), "{from}");
    parse(&text.replacen(from, to, 1)).unwrap_err().to_string()
}

/// Without what cannot stand beside the rest.
fn together(every: &str) -> String {
    let every = every.replace("ssh = ", "# ssh = ");
    every.replace("command = \"{hansa}", "# command = \"{hansa}")
}

#[test]
fn the_commented_profile_parses_and_shows_the_defaults() {
    let plain = parse(&commented("lumi")).unwrap();
    assert_eq!(plain.name, "lumi");
    assert_eq!(plain.script.signal_before_s, 300);
    assert_eq!(plain.script.corpus, Path::new("/sites/corpus"));
    let every = template::every_key().replace("SITE", "lumi");
    let mut full = parse(&together(&every)).unwrap();
    // Where a comment shows a default, it is the default.
    assert_eq!(full.watch, plain.watch);
    assert_eq!(full.retry, plain.retry);
    assert_eq!(full.jobs, plain.jobs);
    full.checks.purge_days = None;
    full.checks.scratch = None;
    assert_eq!(full.checks, plain.checks);
    assert_eq!(full.slurm.gpu_option, plain.slurm.gpu_option);
}

#[test]
fn every_key_of_the_types_is_in_the_commented_profile() {
    let every = template::every_key().replace("SITE", "lumi");
    let profile = parse(&together(&every)).unwrap();
    let known = known_keys();
    let written = keys_of(&toml::Table::try_from(&profile).unwrap());
    for key in &written {
        let inside = key.starts_with("script.environment.");
        assert!(inside || known.contains(key), "{key} is not documented");
    }
    let apart = ["slurm.ssh", "script.command"];
    for key in known.iter().filter(|key| !apart.contains(&key.as_str())) {
        assert!(written.contains(key), "{key} is documented, but unknown");
    }
}

#[test]
fn a_misspelt_key_is_named_with_its_line_and_the_nearest_one() {
    let said = refused("walltime = \"12", "waltime = \"12");
    assert!(said.contains("unknown key `shape.waltime`"), "{said}");
    assert!(said.contains("did you mean `shape.walltime`?"), "{said}");
    let lines = commented("lumi");
    let line = lines.lines().position(|line| line.starts_with("walltime"));
    assert!(
        said.contains(&format!("line {}:", line.unwrap() + 1)),
        "{said}"
    );
}

#[test]
fn values_that_cannot_work_are_refused_by_key() {
    let cases = [
        (
            "shape = \"usual\"",
            "shape = \"big\"",
            "`jobs.shape`: must be the name of a [[shape]]; there are: usual",
        ),
        ("\"12:00:00\"", "\"12 h\"", "no walltime"),
        (
            "\"12:00:00\"",
            "\"00:05:00\"",
            "script.signal_before_s = 300: set that to 150 or less",
        ),
        (
            "name = \"SITE\"".replace("SITE", "lumi").leak(),
            "name = \"a/b\"",
            "cannot be a name",
        ),
        ("# chain = \"none\"", "chain = \"forever\"", "forever"),
        (
            "# gpu_option = \"--gpus-per-node={}\"",
            "gpu_option = \"--gpus\"",
            "needs {}",
        ),
        (
            "# time_zone = \"Europe/Helsinki\"",
            "time_zone = \"Finland/Turku\"",
            "no time zone",
        ),
        (
            "# ends_at = \"2027-03-31\"",
            "ends_at = \"March\"",
            "is no date",
        ),
        (
            "# command = \"{hansa} train",
            "command = \"{hanza} train",
            "{hanza}",
        ),
        (
            "# trainer = \"torchrun --nproc-per-node {gpus_per_node}",
            "trainer = \"torchrun --nproc-per-node {gpus}",
            "{gpus}",
        ),
        (
            "# trainer = ",
            "command = \"mine\"\ntrainer = ",
            "cannot stand beside script.command",
        ),
        (
            "# environment = { OMP_NUM_THREADS",
            "environment = { \"A;B\"",
            "no name of a variable",
        ),
        ("nodes = 1\n", "nodes = 0\n", "1 to 2^20"),
        ("wanted = 1 ", "wanted = 1000 ", "at most 256"),
        (
            "# ssh = \"login.example\"",
            "ssh = \"login.example\"",
            "must be absolute",
        ),
    ];
    for (from, to, words) in cases {
        let said = refused(from, to);
        assert!(said.contains(words), "{from} → {to}: {said}");
    }
}

#[test]
fn a_fact_needs_a_source_and_a_date() {
    let fact = "[[fact]]\nabout = \"x\"\nfact = \"y\"\nsource = \" \"\ndate = \"2026-11-30\"\n";
    let said = parse(&(commented("lumi") + fact)).unwrap_err().to_string();
    assert!(said.contains("must say who says so"), "{said}");
    let fact = fact
        .replace("\" \"", "\"docs\"")
        .replace("2026-11-30", "soon");
    let said = parse(&(commented("lumi") + &fact)).unwrap_err().to_string();
    assert!(said.contains("is no date"), "{said}");
}

#[test]
fn the_profiles_that_are_shipped_parse() {
    let sites = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sites");
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(sites).unwrap() {
        let path = entry.unwrap().path();
        let profile = Profile::load(&path).unwrap();
        assert_eq!(
            path.file_stem().unwrap().to_str(),
            Some(profile.name.as_str())
        );
        for shape in &profile.shape {
            let known = profile
                .partition
                .iter()
                .find(|row| row.name == shape.partition);
            let known = known.unwrap_or_else(|| panic!("no facts about {}", shape.partition));
            assert!(shape.gpus_per_node <= known.gpus_per_node, "{}", shape.name);
            if let Some(most) = &known.walltime_max {
                let most: Walltime = most.parse().unwrap();
                assert!(walltime_s(shape) <= most.0, "{}", shape.name);
            }
        }
        seen.push(profile.name);
    }
    seen.sort();
    assert_eq!(seen, ["frontier", "lumi", "snellius"]);
}

#[test]
fn paths_lie_beside_the_profile_wherever_it_is_named_from() {
    let here = std::env::current_dir().unwrap();
    for (path, beside) in [
        ("x.toml", here.clone()),
        ("sites/x.toml", here.join("sites")),
    ] {
        let profile = Profile::parse(&commented("lumi"), Path::new(path)).unwrap();
        assert_eq!(profile.script.logs, beside.join("logs"));
        assert_eq!(
            profile.coordinator.token_file,
            beside.join("lumi.token.toml")
        );
    }
}
