//! Broken inputs: each a message with file, line and what to do, and nothing left behind.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, gzip, json_line, story};
use hansa_corpus::{Corpus, Manifest, Tokenizer};

/// Two good lines, then `third`.
fn jsonl(third: &[u8]) -> Vec<u8> {
    let lines = json_line(&story(1, 40)) + &json_line(&story(2, 40));
    [lines.as_bytes(), third].concat()
}

fn check_lines(third: &[u8], expected: &str) {
    let found = Place::new().file("a.jsonl", jsonl(third)).short_error();
    assert_eq!(found, expected);
}

#[test]
fn bad_json() {
    check_lines(
        b"{\"text\": \"cut",
        "a.jsonl:3: bad JSON (EOF while parsing a string, column 13); one JSON object per line is \
         expected",
    );
    check_lines(
        b"[1]\n",
        "a.jsonl:3: bad JSON (an array, not an object); one JSON object per line is expected",
    );
}

#[test]
fn a_missing_field_and_one_that_is_not_a_string() {
    check_lines(
        b"{\"url\": \"x\", \"content\": \"y\"}\n",
        "a.jsonl:3: no field `text` (the fields are: content, url); name the field that holds the \
         text",
    );
    check_lines(
        b"{\"text\": null}\n",
        "a.jsonl:3: field `text` is null, not a string; name the field that holds the text",
    );
}

#[test]
fn another_field_can_hold_the_text() {
    let place = Place::new()
        .file(
            "a.jsonl",
            format!("{{\"content\": \"{}\"}}\n", "word ".repeat(100)),
        )
        .with(|options| {
            options.input.field = "content".to_owned();
            options.held_out.fraction_ppm = 0;
        });
    assert_eq!(place.corpus().manifest().text_field, "content");
}

#[test]
fn invalid_utf8_in_json_and_in_text() {
    check_lines(
        b"{\"text\": \"\xff\"}\n",
        "a.jsonl:3:11: invalid UTF-8; convert the file to UTF-8 first",
    );
    let found = Place::new()
        .file("a.txt", b"first\nsecond\nth\xc3ird\n")
        .short_error();
    assert_eq!(
        found,
        "a.txt:3:3: invalid UTF-8; convert the file to UTF-8 first"
    );
}

#[test]
fn the_first_error_in_the_text_is_the_one_reported() {
    let lines = jsonl(b"{}\nnot json\n").repeat(50);
    for threads in [1, 3] {
        let place = Place::new()
            .file("a.jsonl", &lines)
            .with(|options| options.threads = Some(threads));
        assert!(place.short_error().starts_with("a.jsonl:3: no field"));
    }
}

#[test]
fn gzip_cut_short_and_gzip_damaged() {
    let lines: String = (0..400).map(|i| json_line(&story(i, 40))).collect();
    let whole = gzip(&lines);
    for cut in [5, whole.len() / 2, whole.len() - 8, whole.len() - 1] {
        let found = Place::new().file("a.json.gz", &whole[..cut]).short_error();
        assert!(found.contains("ends too early"), "cut at {cut}: {found}");
        assert!(found.starts_with("a.json.gz:"), "{found}");
    }
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        Place::new().file("a.json.gz", bytes).short_error()
    };
    // In the checksum: noticed after the last line.
    let found = flip(whole.len() - 6);
    assert!(found.starts_with("a.json.gz:401: broken gzip"), "{found}");
    // In the data: either it does not decompress, or what comes out is no JSON.
    let found = flip(whole.len() / 2);
    assert!(found.starts_with("a.json.gz:"), "{found}");

    let trailing = [&whole[..], b"garbage after the end"].concat();
    let found = Place::new().file("a.json.gz", trailing).short_error();
    assert!(found.starts_with("a.json.gz:401: broken gzip"), "{found}");
}

#[test]
fn a_second_member_cut_short_is_noticed() {
    let member = gzip(json_line(&story(1, 400)));
    let half = &member[..member.len() / 2];
    let found = Place::new()
        .file("a.json.gz", [&member[..], half].concat())
        .short_error();
    assert!(found.contains("ends too early"), "{found}");
}

#[test]
fn no_text_and_too_little_text() {
    let found = Place::new()
        .file("a.txt", "")
        .file("b.jsonl", "\n\n")
        .error();
    assert!(found.contains("every file is empty"), "{found}");
    assert!(Place::new().error().contains("no input files"));

    let few = Place::new()
        .file("a.txt", "a few words")
        .with(|options| options.held_out.fraction_ppm = 0)
        .error();
    assert!(few.starts_with("the train split has "), "{few}");
    assert!(few.contains("one window needs 17"), "{few}");

    let lines = json_line(&story(1, 400));
    let none_held_out = Place::new()
        .file("a.jsonl", lines)
        .with(|options| options.held_out.fraction_ppm = 1)
        .error();
    assert!(
        none_held_out.contains("raise the held-out fraction"),
        "{none_held_out}"
    );
}

#[test]
fn inputs_that_are_no_text() {
    let found = Place::new().file("novels.tgz", "").short_error();
    assert!(
        found.starts_with("novels.tgz: a .tgz file is not read"),
        "{found}"
    );
    let mut place = Place::new();
    place.inputs.push(place.path("missing.txt"));
    assert!(place.short_error().starts_with("cannot read missing.txt"));
    place.inputs[0] = place.path("");
    assert!(place.error().contains("a directory is not read"));
}

#[test]
fn options_out_of_range() {
    let check = |change: fn(&mut hansa_corpus::BuildOptions), expected: &str| {
        let found = Place::new().stories("a.jsonl", 2).with(change).error();
        assert!(found.starts_with(expected), "{found}");
    };
    check(|options| options.seq_len = 0, "option `seq_len` is 0");
    check(|options| options.threads = Some(0), "option `threads` is 0");
    check(
        |options| options.input.text_document_bytes = Some(3),
        "option `text_document_bytes` is 3",
    );
    check(
        |options| options.held_out.fraction_ppm = 1_000_000,
        "option `held_out.fraction_ppm` is 1000000",
    );
}

#[test]
fn a_tokenizer_without_the_token_that_ends_documents() {
    let place = Place::new();
    let path = place.path("tokenizer.json");
    let error = Tokenizer::load(&path, Some("</s>"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("no token `</s>` to end documents with"),
        "{error}"
    );
    assert!(
        error.contains("special tokens are: <|endoftext|>"),
        "{error}"
    );
    assert_eq!(
        Tokenizer::load(&path, Some("a")).unwrap().end_of_document(),
        "a"
    );
}

#[test]
fn a_tokenizer_that_is_none_or_draws_lots() {
    let place = Place::new();
    let path = place.path("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["model"]["dropout"] = 0.1.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let error = Tokenizer::load(&path, None).err().unwrap().to_string();
    assert!(error.contains("it uses dropout"), "{error}");
    std::fs::write(&path, "{}").unwrap();
    let error = Tokenizer::load(&path, None).err().unwrap().to_string();
    assert!(error.contains("not a usable tokenizer"), "{error}");
}

#[test]
fn manifests_that_cannot_be_used() {
    let place = Place::new().stories("a.jsonl", 60);
    place.build("corpus").unwrap();
    let path = place.path("corpus/manifest.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "`{from}` is not in the manifest");
        let error = Manifest::parse(bad.as_bytes(), &path)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        "\"version\": 1",
        "\"version\": 2",
        "corpus format 2, this version of Hansa reads 1",
    );
    check(
        "hansa-corpus",
        "lübeck-corpus",
        "its format is `lübeck-corpus`",
    );
    check(
        "train-00000.bin",
        "../../secret.bin",
        "should be `train-00000.bin`",
    );
    check("\"u16\"", "\"u32\"", "are not stored as u32");
    check("\"windows\": ", "\"windows\": 1", "not 1");
    check(
        "\"seq_len\": 16",
        "\"seq_len\": 17",
        "does not follow from its windows",
    );
    check("}", "", "bad manifest");

    let nowhere = Corpus::open(&place.path("nowhere"))
        .unwrap_err()
        .to_string();
    assert!(nowhere.contains("nor is it a directory"), "{nowhere}");
    let empty = Corpus::open(&place.path("")).unwrap_err().to_string();
    assert!(
        empty.contains("has no manifest.json; name the directory"),
        "{empty}"
    );
}
