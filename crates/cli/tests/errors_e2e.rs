//! Mistakes that people make with real processes: each ends with one short error that says what to
//! do, loses nothing, and once it is mended the run goes on to its end.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{Place, Process, Server, documents};

/// A coordinator with a token for the site `alder`.
fn served(place: &Place) -> Server {
    let server = place.serve("data");
    place.token("alder", "data");
    server
}

/// Nobody was granted anything by mistake.
fn nothing_granted(place: &Place) {
    let status = place.json("status --data data --json");
    assert_eq!(
        status["ledger"]["free"], status["ledger"]["windows"],
        "{status:#}"
    );
}

#[test]
fn a_broken_recipe_is_refused_by_line_and_key_and_leaves_nothing_behind() {
    let place = Place::new();
    let mistakes: [(&str, &str, &[&str]); 7] = [
        (
            "steps = 10",
            "setps = 10",
            &["line 20", "`phase.setps`", "did you mean `phase.steps`"],
        ),
        (
            "steps = 10",
            "steps = \"ten\"",
            &["line 20", "`phase.steps`", "\"ten\""],
        ),
        ("steps = 10", "steps = = 10", &["line 20", "broken.toml"]),
        ("[phase]", "[phase", &["line 19", "broken.toml"]),
        (
            "batch = 4",
            "batch = 0",
            &["line 21", "`phase.batch`", "must be"],
        ),
        (
            "peak_lr = 2e-3",
            "peak_lr = -1",
            &["`inner.peak_lr`", "must be"],
        ),
        ("batch = 4\n", "", &["`phase`", "missing", "`batch`"]),
    ];
    let serve = "serve broken.toml --data data --listen 127.0.0.1:0";
    for (from, to, words) in mistakes {
        place.recipe("broken.toml", &[(from, to)]);
        place.refuse(serve, words);
        assert!(!place.path("data").exists(), "{to}");
    }
    place.refuse(
        "serve nowhere.toml --data data --listen 127.0.0.1:0",
        &["nowhere.toml", "No such file"],
    );
    let server = place.serve("data");
    place.finish(server, "data");
}

#[test]
fn a_recipe_and_its_corpus_must_fit_when_a_run_begins() {
    let place = Place::new();
    let serve = "serve other.toml --data data --listen 127.0.0.1:0";
    place.recipe("other.toml", &[("seq_len = 32", "seq_len = 64")]);
    place.refuse(serve, &["corpus.seq_len is 64", "built with 32"]);
    place.recipe("other.toml", &[("vocab_size = 400", "vocab_size = 99")]);
    place.refuse(serve, &["model.vocab_size is 99", "400"]);
    place.recipe("other.toml", &[("\"corpus\"", "\"korpus\"")]);
    place.refuse(serve, &["korpus", "is not a corpus", "correct the path"]);
    place.copy("corpus", "cut");
    damage(&place.path("cut/train-00000.bin"), Damage::Cut);
    place.recipe("other.toml", &[("\"corpus\"", "\"cut\"")]);
    place.refuse(serve, &["cut", "does not match its manifest", "copy"]);
    // The directory that they left is as good as a new one.
    let server = place.serve("data");
    place.finish(server, "data");
}

enum Damage {
    Flip,
    Cut,
    Remove,
}

fn damage(file: &Path, how: Damage) {
    let mut bytes = std::fs::read(file).unwrap();
    match how {
        Damage::Flip => bytes[1000] ^= 1,
        Damage::Cut => bytes.truncate(bytes.len() - 10),
        Damage::Remove => return std::fs::remove_file(file).unwrap(),
    }
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_site_whose_corpus_does_not_match_its_manifest_is_told_which_file() {
    let place = Place::new();
    let server = served(&place);
    let line = place.train_line("alder", &server);
    let line = line.replace("--corpus corpus", "--corpus copied");
    for (file, how, words) in [
        (
            "train-00000.bin",
            Damage::Flip,
            "the content of train-00000.bin",
        ),
        ("train-00000.bin", Damage::Cut, "bytes instead of"),
        (
            "held-out-00000.bin",
            Damage::Remove,
            "held-out-00000.bin is missing",
        ),
        ("tokenizer.json", Damage::Flip, "tokenizer.json"),
        ("manifest.json", Damage::Cut, "bad manifest"),
        ("manifest.json", Damage::Remove, "is not a corpus"),
    ] {
        place.copy("corpus", "copied");
        damage(&place.path("copied").join(file), how);
        place.refuse(&line, &["copied", words]);
        std::fs::remove_dir_all(place.path("copied")).unwrap();
    }
    place.refuse(&line, &["copied is not a corpus", "path"]);
    nothing_granted(&place);
    place.copy("corpus", "copied");
    place.start(&line).end_well();
    server.process.end_well();
    place.verified("data");
}

#[test]
fn a_site_with_another_corpus_or_tokenizer_is_told_the_first_field_that_differs() {
    let place = Place::new();
    let server = served(&place);
    place.write("other.jsonl", &documents(2, 300));
    place.do_it("corpus tokenizer other.jsonl --vocab-size 400 --out other.json");
    place.build("text.jsonl", "other.json", "other-tokenizer");
    place.build("other.jsonl", "tokenizer.json", "other-text");
    place.do_it(
        "corpus build text.jsonl --tokenizer tokenizer.json --seq-len 16 --held-out 0.05 --out \
         other-length",
    );
    let line = place.train_line("alder", &server);
    for (corpus, field) in [
        ("other-tokenizer", "tokenizer differs"),
        ("other-text", "number of windows differs"),
        ("other-length", "seq_len differs"),
    ] {
        let line = line.replace("--corpus corpus", &format!("--corpus {corpus}"));
        let words = [field, "the run has", "copy the run's corpus"];
        place.refuse(&line, &words);
    }
    nothing_granted(&place);
    place.start(&line).end_well();
    server.process.end_well();
    place.verified("data");
}

#[test]
fn a_port_and_a_data_directory_have_one_coordinator() {
    let place = Place::new();
    let server = served(&place);
    let address = server.address();
    let port = address.rsplit(':').next().unwrap();
    place.refuse(
        &format!("serve run.toml --data other --listen {address}"),
        &["port", port, "in use", "another port"],
    );
    place.refuse(
        "serve run.toml --data data --listen 127.0.0.1:0",
        &["data is in use", "process", "stop that one first"],
    );
    place.refuse(
        "serve run.toml --data data --listen 0.0.0.0:0 --plain",
        &["data is in use"],
    );
    place.refuse(
        "serve run.toml --data other --listen 0.0.0.0:0 --plain",
        &["0.0.0.0", "plain HTTP", "TLS"],
    );
    place.finish(server, "data");
    // What the refused ones began can be served as soon as it has a port.
    let server = place.serve("other");
    server.process.terminate();
    server.process.end_well();
    place.verified("other");
}

#[test]
fn nobody_without_the_right_credentials_gets_in() {
    let place = Place::new();
    let server = served(&place);
    let (url, port) = (&server.url, server.address().rsplit(':').next().unwrap());
    let line = place.train_line("alder", &server);
    let pin = |fingerprint: &str| {
        format!("token = \"00112233445566778899\"\nfingerprint = \"{fingerprint}\"\n")
    };
    place.write("wrong.toml", &pin(&server.fingerprint));
    place.write("empty.toml", "");
    place.write("unpinned.toml", "token = \"00112233445566778899\"\n");
    let with = |from: &str, to: &str| line.replace(from, to);
    let check = |line: String, words: &[&str]| place.refuse(&line, words);

    let words = ["does not accept the token", "token file"];
    check(with("alder.toml", "wrong.toml"), &words);
    let status = format!("status --coordinator {url} --token-file wrong.toml");
    check(status, &words);
    let other = format!("sha256:{}", "ab".repeat(32));
    check(
        format!("{line} --fingerprint {other}"),
        &["not the pinned", &server.fingerprint, &other],
    );
    check(
        format!("{line} --fingerprint sha256:12"),
        &["not a fingerprint", "64"],
    );
    check(
        with("--site alder", "--site birch"),
        &["for site alder", "birch needs"],
    );
    check(with("alder.toml", "none.toml"), &["none.toml", "token add"]);
    check(
        with("alder.toml", "empty.toml"),
        &["empty.toml is no token file"],
    );
    check(
        with("alder.toml", "unpinned.toml"),
        &["needs the coordinator's fingerprint", "--fingerprint"],
    );
    let plain = with(url, &format!("http://127.0.0.1:{port}"));
    check(
        plain.replace("alder.toml", "unpinned.toml"),
        &["does not answer in plain HTTP", "use https://"],
    );
    for credentials in ["alder.toml", "unpinned.toml"] {
        let away = with(url, "http://192.0.2.1:8443");
        check(
            away.replace("alder.toml", credentials),
            &["http://192.0.2.1:8443", "plain HTTP", "use https://"],
        );
    }
    check(
        with(url, "vm.example:8443"),
        &["vm.example:8443", "https://host:8443"],
    );

    nothing_granted(&place);
    place.finish(server, "data");
}

/// A replica that is slow enough to be in mid-phase for seconds, and is.
fn slow_replica(place: &Place, server: &Server) -> Process {
    let line = place.train_line("alder", server);
    let mut replica = place.start(&format!("{line} --pace 10"));
    replica.event("step");
    replica
}

#[test]
fn a_second_live_process_of_a_replica_is_refused_and_the_first_trains_on() {
    let place = Place::new();
    let server = served(&place);
    let first = slow_replica(&place, &server);
    let line = place.train_line("alder", &server);
    let elsewhere = line.replace("state-alder", "state-copy");
    place.refuse(
        &elsewhere,
        &["another process trains as alder/r0", "stop", "try again in"],
    );
    place.refuse(
        &line,
        &["state-alder is in use", "stop that one first", "--state"],
    );
    place.token("birch", "data");
    let birch = line
        .replace("--site alder", "--site birch")
        .replace("alder.toml", "birch.toml");
    place.refuse(&birch, &["state-alder is in use"]);
    first.end_well();
    server.process.end_well();
    place.verified("data");
    // Its directory is its own even when it is gone.
    let report = place.json("ledger show data --json");
    assert_eq!(
        report["replicas"].as_array().unwrap().len(),
        1,
        "{report:#}"
    );
}

#[test]
fn a_restart_with_another_recipe_or_corpus_is_refused_with_the_difference() {
    let place = Place::new();
    let server = served(&place);
    let address = server.address().to_owned();
    let mut replica = slow_replica(&place, &server);
    replica.event("contributed");
    server.process.terminate();
    server.process.end_well();

    let serve = |recipe: &str| format!("serve {recipe} --data data --listen {address}");
    place.recipe("changed.toml", &[("steps = 10", "steps = 12")]);
    let words = ["recipe was changed", "-steps = 10", "+steps = 12", "undo"];
    place.refuse(&serve("changed.toml"), &words);
    place.write("other.jsonl", &documents(2, 300));
    place.build("other.jsonl", "tokenizer.json", "other-text");
    place.recipe("changed.toml", &[("\"corpus\"", "\"other-text\"")]);
    place.refuse(
        &serve("changed.toml"),
        &["corpus is not the one", "number of windows differs"],
    );
    place.verified("data");

    // Undone; a moved corpus is no change.
    place.copy("corpus", "moved");
    place.recipe("moved.toml", &[("\"corpus\"", "\"moved\"")]);
    let server = place.serve_on("moved.toml", "data", &address);
    assert_eq!(
        replica.end().code,
        Some(0),
        "it has waited for the coordinator"
    );
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn a_question_about_a_run_that_is_not_there_says_how_to_name_one() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    for dir in ["nowhere", "empty"] {
        place.refuse(&format!("status --data {dir}"), &[dir, "hansa serve"]);
        for what in ["verify", "show"] {
            let line = format!("ledger {what} {dir}");
            place.refuse(&line, &[dir, "does not exist", "data directory"]);
        }
        place.refuse(
            &format!("token add alder --data {dir}"),
            &[dir, "hansa serve"],
        );
    }
    place.refuse(
        "ledger verify run.toml",
        &["run.toml", "not a Hansa journal"],
    );
    let words = ["which coordinator?", "--data", "--token-file"];
    place.refuse("status", &words);
    place.refuse("status --coordinator https://127.0.0.1:9", &words);
    // The data directory wins over what the environment says for `hansa train`.
    let variable = ("HANSA_COORDINATOR", "https://127.0.0.1:9");
    place.refuse_with(variable, "status --data nowhere", &["nowhere"]);

    let server = place.serve("data");
    server.process.kill();
    // Nobody is there to ask, but the journal is.
    let status = place.json("status --data data --json");
    assert_eq!(status["waiting"]["reason"], "coordinator", "{status:#}");
    let words = ["alder.toml exists", "another file"];
    place.token("alder", "data");
    place.refuse("token add alder --data data --out alder.toml", &words);
}
