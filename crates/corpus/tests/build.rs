//! Text becomes windows: the same ones whoever builds them, in whatever pieces.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, files, gzip, json_line, story, stream};
use hansa_corpus::{Corpus, Damage, Error, Manifest, Quiet, Split, TokenDtype, info, verify};
use proptest::prelude::*;

/// What a split's stream must be: documents in order, each followed by the end-of-document token.
fn expected_stream(place: &Place, texts: &[String], split: Split) -> Vec<u32> {
    let tokenizer = place.tokenizer();
    let wanted = split == Split::HeldOut;
    let mut all = Vec::new();
    for text in texts {
        if place.options.held_out.holds_out(text) == wanted {
            all.extend(tokenizer.encode(text).unwrap());
            all.push(tokenizer.end_of_document_id());
        }
    }
    all
}

fn check_streams(place: &Place, texts: &[String]) {
    let corpus = place.corpus();
    for split in [Split::Train, Split::HeldOut] {
        let expected = expected_stream(place, texts, split);
        let seq_len = place.options.seq_len as usize;
        let windows = expected.len().saturating_sub(1) / seq_len;
        let record = corpus.manifest().split(split);
        assert_eq!(record.tokens.0, expected.len() as u64);
        assert_eq!(record.windows.0, windows as u64);
        if windows > 0 {
            assert_eq!(stream(&corpus, split), expected[..=windows * seq_len]);
        }
    }
}

#[test]
fn windows_at_their_stride_give_the_stream_of_documents() {
    let texts: Vec<String> = (0..50).map(|i| story(i, 40)).collect();
    let lines: String = texts.iter().map(|text| json_line(text)).collect();
    check_streams(&Place::new().file("a.jsonl", lines), &texts);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_lengths_of_documents_windows_and_shards_give_the_stream(
        words in prop::collection::vec(0_usize..60, 1..12),
        seq_len in 1_u32..40,
        shard_bytes in 1_u64..400,
    ) {
        // Enough text for one window whatever was drawn.
        let mut texts: Vec<String> =
            (0..).zip(words).map(|(seed, words)| story(seed, words)).collect();
        texts.push(story(1000, 100));
        let lines: String = texts.iter().map(|text| json_line(text)).collect();
        let place = Place::new().file("a.jsonl", lines).with(|options| {
            options.seq_len = seq_len;
            options.shard_bytes = shard_bytes;
            options.held_out.fraction_ppm = 0;
        });
        check_streams(&place, &texts);
    }
}

#[test]
fn threads_batches_and_checkpoints_do_not_change_a_byte() {
    let mut place = Place::new()
        .stories("a.jsonl", 80)
        .file("b.md", story(500, 9000))
        .with(|options| options.shard_bytes = 2000);
    place.build("default").unwrap();
    let expected = files(&place.path("default"));
    assert!(expected.len() > 5, "several shards: {}", expected.len());
    for (threads, checkpoint_bytes) in [(1, 1), (1, 1 << 30), (2, 5000), (5, 300)] {
        let out = format!("{threads}-{checkpoint_bytes}");
        place.options.threads = Some(threads);
        place.options.checkpoint_bytes = checkpoint_bytes;
        place.build(&out).unwrap();
        assert!(files(&place.path(&out)) == expected, "{out} differs");
    }
}

#[test]
fn gzip_members_one_after_another_are_one_file() {
    let halves =
        [0..40, 40..80].map(|half| half.map(|i| json_line(&story(i, 40))).collect::<String>());
    let plain = Place::new().file("c4.json", halves.concat());
    let members = Place::new().file("c4.json.gz", halves.map(gzip).concat());
    let (plain, members) = (plain.corpus(), members.corpus());
    assert_eq!(plain.identity(), members.identity());
    assert_eq!(members.manifest().inputs[0].documents, 80);
}

#[test]
fn a_long_text_file_is_cut_at_line_ends_and_nothing_is_lost() {
    let text: String = (0..200)
        .map(|i| format!("{}\n", story(i, i as usize % 30)))
        .collect();
    let place = Place::new().file("book.txt", &text).with(|options| {
        options.input.text_document_bytes = Some(500);
        options.held_out.fraction_ppm = 0;
    });
    let corpus = place.corpus();
    let (tokenizer, tokens) = (place.tokenizer(), stream(&corpus, Split::Train));
    let documents: Vec<String> = tokens
        .split(|&token| token == tokenizer.end_of_document_id())
        .map(|document| tokenizer.decode(document).unwrap())
        .collect();
    assert!(documents.len() > 20);
    assert!(documents.iter().all(|document| document.len() <= 500));
    let (last, whole) = documents.split_last().unwrap();
    assert!(whole.iter().all(|document| document.ends_with('\n')));
    assert!(text.starts_with(&(whole.concat() + last)));
}

#[test]
fn a_line_longer_than_a_document_is_cut_between_characters() {
    // One byte, then characters of two: no cut falls on an even byte.
    let line = format!("x{}", "ü".repeat(5000));
    let place = Place::new().file("line.txt", &line).with(|options| {
        options.input.text_document_bytes = Some(100);
        options.held_out.fraction_ppm = 0;
    });
    let corpus = place.corpus();
    // 99 of the 100 bytes of the first piece, 100 of the others: ⌈10001 / 100⌉ and one byte over.
    assert_eq!(corpus.manifest().train.documents, 101);
}

#[test]
fn without_a_bound_a_text_file_is_one_document() {
    let place = Place::new()
        .file("a.rs", story(1, 5000))
        .file("b.md", story(2, 5000))
        .with(|options| {
            options.input.text_document_bytes = None;
            options.held_out.fraction_ppm = 0;
        });
    assert_eq!(place.corpus().manifest().train.documents, 2);
}

#[test]
fn a_byte_order_mark_blank_lines_and_empty_documents_are_left_out() {
    let lines = format!(
        "\u{feff}{}\r\n\n{}{}",
        json_line(&story(1, 90)).trim_end(),
        json_line(" \n"),
        json_line(&story(2, 90))
    );
    let place = Place::new()
        .file("a.jsonl", lines)
        .with(|options| options.held_out.fraction_ppm = 0);
    check_streams(&place, &[story(1, 90), story(2, 90)]);
}

#[test]
fn held_out_documents_follow_from_seed_and_content_alone() {
    let place = Place::new().stories("a.jsonl", 400);
    let corpus = place.corpus();
    let held_out = corpus.manifest().held_out.documents;
    assert!((40..=120).contains(&held_out), "{held_out} of 400 at 20 %");

    // Twice the same documents in another order: each copy falls on its original's side.
    let lines = std::fs::read_to_string(&place.inputs[0]).unwrap();
    let reversed: String = lines
        .lines()
        .rev()
        .map(|line| format!("{line}\n"))
        .collect();
    let twice = Place::new().file("b.jsonl", lines + &reversed);
    assert_eq!(twice.corpus().manifest().held_out.documents, 2 * held_out);

    let other = Place::new()
        .stories("a.jsonl", 400)
        .with(|options| options.held_out.seed = 8);
    assert_ne!(other.corpus().identity(), corpus.identity());
}

#[test]
fn a_large_vocabulary_is_stored_in_four_bytes() {
    let place = Place::new().stories("a.jsonl", 20);
    let path = place.path("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["model"]["vocab"]["a token nobody needs"] = 70_000.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let corpus = place.corpus();
    assert_eq!(corpus.manifest().tokenizer.vocab_size, 70_001);
    assert_eq!(corpus.manifest().dtype, TokenDtype::U32);
    let texts: Vec<String> = (0..20).map(|i| story(i, 40)).collect();
    let expected = expected_stream(&place, &texts, Split::Train);
    assert!(expected.starts_with(&stream(&corpus, Split::Train)));
}

#[test]
fn the_manifest_alone_tells_what_the_corpus_is() {
    let place = Place::new().stories("a.jsonl", 60);
    let corpus = place.corpus();
    let alone = place.path("copied-to-the-coordinator.json");
    std::fs::copy(place.path("corpus/manifest.json"), &alone).unwrap();
    let manifest = Manifest::load(&alone).unwrap();
    assert_eq!(&manifest, corpus.manifest());
    assert_eq!(info(&place.path("corpus")).unwrap(), manifest);
    assert_eq!(manifest.identity(), corpus.identity());
    assert_eq!(manifest.inputs[0].name, "a.jsonl");
    assert_eq!(manifest.tokenizer.hash, place.tokenizer().hash());
    assert_eq!(corpus.tokenizer().unwrap().hash(), place.tokenizer().hash());
}

#[test]
fn verify_finds_a_flipped_byte_and_open_a_wrong_size() {
    let place = Place::new().stories("a.jsonl", 60);
    place.build("corpus").unwrap();
    let (dir, shard) = (place.path("corpus"), place.path("corpus/train-00000.bin"));
    assert_eq!(verify(&dir, &Quiet).unwrap().files, 3);

    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&shard, &bytes).unwrap();
    Corpus::open(&dir).unwrap();
    let file = || "train-00000.bin".to_owned();
    let damage = |error| match error {
        Error::Damaged { damage, .. } => damage,
        other => panic!("{other}"),
    };
    let found = damage(verify(&dir, &Quiet).unwrap_err());
    assert_eq!(found, [Damage::Content { file: file() }]);

    let expected = bytes.len() as u64;
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let found = damage(Corpus::open(&dir).unwrap_err());
    let (file, found_bytes) = (file(), expected - 1);
    assert_eq!(
        found,
        [Damage::Size {
            file,
            found: found_bytes,
            expected
        }]
    );

    std::fs::remove_file(&shard).unwrap();
    std::fs::remove_file(place.path("corpus/tokenizer.json")).unwrap();
    assert_eq!(damage(Corpus::open(&dir).unwrap_err()).len(), 2);
}

#[test]
fn a_window_beyond_the_end_and_an_impossible_token_are_errors() {
    let place = Place::new().stories("a.jsonl", 60);
    let corpus = place.corpus();
    let count = corpus.windows(Split::Train).0;
    let mut window = Vec::new();
    let error = corpus.window(count, &mut window).unwrap_err();
    assert!(matches!(error, Error::NoSuchWindow { .. }), "{error}");
    corpus.held_out_window(0, &mut window).unwrap();

    let shard = place.path("corpus/train-00000.bin");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[..2].copy_from_slice(&[0xff, 0xff]);
    std::fs::write(&shard, bytes).unwrap();
    let error = Corpus::open(&place.path("corpus"))
        .unwrap()
        .window(0, &mut window);
    assert!(matches!(
        error,
        Err(Error::TokenOutOfRange { token: 65_535, .. })
    ));
}

#[test]
fn the_unigram_perplexity_is_the_formula() {
    let place = Place::new().stories("a.jsonl", 60);
    let corpus = place.corpus();
    let vocab_size = place.tokenizer().vocab_size() as usize;
    let train = &stream(&corpus, Split::Train)[1..];
    let held_out = &stream(&corpus, Split::HeldOut)[1..];
    let nll: f64 = held_out
        .iter()
        .map(|token| {
            let count = train.iter().filter(|other| *other == token).count();
            -(((count + 1) as f64) / ((train.len() + vocab_size) as f64)).ln()
        })
        .sum();
    let expected = (nll / held_out.len() as f64).exp();
    let found = hansa_corpus::unigram_perplexity(&corpus).unwrap();
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");

    let none = Place::new()
        .stories("a.jsonl", 60)
        .with(|options| options.held_out.fraction_ppm = 0);
    let error = hansa_corpus::unigram_perplexity(&none.corpus()).unwrap_err();
    assert!(matches!(error, Error::NoHeldOut));
}
