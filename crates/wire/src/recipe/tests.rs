//! Recipes as people write them, with their mistakes: each message names key, line and way out.
#![allow(clippy::unwrap_used)]
use super::*;
use hansa_protocol::Solo;

const SMALL: &str = r#"
name = "small"

[model]
vocab_size = 64
hidden_size = 8
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 4
tie_word_embeddings = true

[corpus]
path = "../corpus"
seq_len = 16

[phase]
steps = 4
batch = 2

[inner]
peak_lr = 1e-3

[end]
rounds = 3
"#;

fn parse(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::parse(text, Path::new("run.toml"))
}

fn with(line: &str, table: &str) -> String {
    SMALL.replace(&format!("[{table}]\n"), &format!("[{table}]\n{line}\n"))
}

fn refuse(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn what_is_left_out_gets_the_documented_default() {
    let recipe = parse(SMALL).unwrap();
    assert_eq!((recipe.outer.lr, recipe.outer.momentum), (0.7, 0.9));
    assert_eq!(recipe.outer.solo, Solo::Adopt);
    assert!(recipe.phase.balance);
    assert_eq!((recipe.lease.alpha, recipe.lease.beta), (2.5, 10.0));
    let ttl = (recipe.lease.ttl_min_s, recipe.lease.ttl_max_s);
    assert_eq!(ttl, (60.0, 1800.0));
    assert_eq!((recipe.inner.beta1, recipe.inner.beta2), (0.9, 0.95));
    assert_eq!(
        (recipe.inner.weight_decay, recipe.inner.clip_norm),
        (0.1, 1.0)
    );
    assert_eq!(recipe.end.end(), Some(End::Rounds(3)));
}

#[test]
fn the_canonical_text_parses_to_the_same_recipe() {
    let recipe = parse(&with(
        "init_from = \"a/b.safetensors\"\nfloor = 0.05",
        "inner",
    ))
    .unwrap();
    assert_eq!(parse(&recipe.to_toml()).unwrap(), recipe);
    assert_eq!(
        parse(&recipe.to_toml()).unwrap().to_toml(),
        recipe.to_toml()
    );
}

#[test]
fn unknown_keys_are_named_with_their_line_and_the_nearest_known_one() {
    let message = refuse(&with("acumulation = 4", "phase"));
    let expected =
        "run.toml: line 19: unknown key `phase.acumulation`; did you mean `phase.accumulation`?";
    assert_eq!(message, expected);
    // The misspelt key is named, not the one that is missing because of it.
    let message = refuse(&SMALL.replace("peak_lr", "peek_lr"));
    assert!(
        message.contains("`inner.peek_lr`; did you mean `inner.peak_lr`?"),
        "{message}"
    );
    let message = refuse(&with("momentum = 0.9", "inner"));
    assert!(
        message.contains("did you mean `outer.momentum`?"),
        "{message}"
    );
    let message = refuse(&SMALL.replace("[phase]", "[phases]"));
    assert!(
        message.contains("unknown key `phases`; did you mean `phase`?"),
        "{message}"
    );
    let message = refuse(&with("model_type = \"qwen3\"", "model"));
    assert!(
        message.contains("unknown key `model.model_type`; remove it"),
        "{message}"
    );
}

#[test]
fn a_wrong_type_or_value_names_key_line_and_what_is_expected() {
    let message = refuse(&with("lr = 1\n[outer]\nlr = \"fast\"", "end"));
    assert!(
        message.contains("outer.lr") || message.contains("end.lr"),
        "{message}"
    );
    let message = refuse(&SMALL.replace("peak_lr = 1e-3", "peak_lr = \"fast\""));
    assert!(
        message.starts_with("run.toml: line 23: `inner.peak_lr`: "),
        "{message}"
    );
    assert!(
        message.contains("f64") || message.contains("float"),
        "{message}"
    );
    let message = refuse(&SMALL.replace("steps = 4", "steps = -4"));
    assert!(message.contains("line 19: `phase.steps`"), "{message}");
    let message = refuse(&SMALL.replace("steps = 4", "steps = 0"));
    assert_eq!(
        message,
        "run.toml: line 19: `phase.steps`: must be 1 to 2^32 - 1"
    );
    let message = refuse(&SMALL.replace("batch = 2\n", ""));
    assert!(
        message.contains("`phase`") && message.contains("batch"),
        "{message}"
    );
    let message = refuse(&SMALL.replace("head_dim = 4", "head_dim = 3"));
    assert!(
        message.contains("`model.head_dim`: is 3: it must be even"),
        "{message}"
    );
    let message = refuse(&with("tokens = 5", "end"));
    assert!(message.contains("`end`: needs exactly one of"), "{message}");
    let message = refuse(&format!("{SMALL}\n[outer]\nsolo = \"half\""));
    assert!(
        message.contains("`outer.solo`") && message.contains("\"adopt\""),
        "{message}"
    );
    let message = refuse(&format!("{SMALL}\n[exchange]\nmodel = \"fp16\""));
    assert!(
        message.contains("`exchange.model`") && message.contains("\"bf16\""),
        "{message}"
    );
    for (table, line) in [
        ("outer", "lr = nan"),
        ("outer", "lr = inf"),
        ("rounds", "grace_s = -1"),
        ("lease", "ttl_min_s = 1e300"),
        ("lease", "alpha = inf"),
        ("exchange", "chunk_mib = 0"),
    ] {
        let key = format!("{table}.{}", line.split(' ').next().unwrap());
        let message = refuse(&format!("{SMALL}\n[{table}]\n{line}"));
        assert!(
            message.contains(&format!("line 29: `{key}`: must be")),
            "{message}"
        );
    }
    assert!(
        refuse("name = ").contains("line 1"),
        "{}",
        refuse("name = ")
    );
}

#[test]
fn a_change_shows_as_a_diff_but_a_moved_corpus_does_not() {
    let recipe = parse(SMALL).unwrap();
    assert_eq!(recipe.difference(&parse(SMALL).unwrap()), None);
    let moved = parse(&SMALL.replace("../corpus", "/data/corpus")).unwrap();
    assert_eq!(moved.difference(&recipe), None);
    let changed = parse(&SMALL.replace("steps = 4", "steps = 5")).unwrap();
    let diff = changed.difference(&recipe).unwrap();
    assert!(diff.contains("-steps = 4\n+steps = 5\n"), "{diff}");
}

fn corpus(seq_len: u32, vocab_size: u32) -> Manifest {
    let shard = |split: &str, windows: u64| {
        let (file, bytes) = (
            format!("{split}-00000.bin"),
            (windows * u64::from(seq_len) + 1) * 2,
        );
        let hash = "ab".repeat(32);
        format!(
            r#"{{"windows":{windows},"tokens":9,"documents":1,"shards":[{{"file":"{file}",
            "windows":{windows},"bytes":{bytes},"hash":"{hash}"}}]}}"#
        )
    };
    let text = format!(
        r#"{{"format":"hansa-corpus","version":1,"tokenizer":{{"file":"tokenizer.json",
        "hash":"{}","vocab_size":{vocab_size},"end_of_document":{{"token":"<e>","id":0}}}},
        "dtype":"u16","seq_len":{seq_len},"train":{},"held_out":{},
        "held_out_rule":{{"seed":0,"fraction_ppm":10000}},"text_field":"text","text_document_bytes":null,"inputs":[]}}"#,
        "cd".repeat(32),
        shard("train", 40),
        shard("held-out", 4),
    );
    Manifest::parse(text.as_bytes(), Path::new("manifest.json")).unwrap()
}

#[test]
fn the_run_spec_needs_a_corpus_that_fits() {
    let recipe = parse(SMALL).unwrap();
    let spec = recipe.run_spec(&corpus(16, 64)).unwrap();
    assert_eq!(spec.digest.windows, Windows(40));
    assert_eq!(spec.digest.shards[0].name, "train-00000.bin");
    assert_eq!(spec.run, recipe.run_id(&spec.digest));
    let message = recipe.run_spec(&corpus(32, 64)).unwrap_err().to_string();
    assert!(
        message.contains("corpus.seq_len is 16, but the corpus was built with 32"),
        "{message}"
    );
    let message = recipe.run_spec(&corpus(16, 65)).unwrap_err().to_string();
    assert!(
        message.contains("model.vocab_size is 64") && message.contains("65"),
        "{message}"
    );
}
