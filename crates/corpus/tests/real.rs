//! Real text and real tokenizers, against numbers computed by another implementation.
#![allow(clippy::unwrap_used)]

mod common;

use common::test_data;
use hansa_corpus::{
    BuildOptions, Corpus, Quiet, Split, TokenDtype, Tokenizer, build, unigram_perplexity, verify,
};
use tempfile::TempDir;

#[test]
fn gpt2_tokens_of_c4_are_those_of_tiktoken() {
    let Some(data) = test_data() else { return };
    let dir = TempDir::new().unwrap();
    let tokenizer = Tokenizer::load(&data.join("data/tokenizers/gpt2/tokenizer.json"), None);
    let tokenizer = tokenizer.unwrap();
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.end_of_document_id()),
        (50_257, 50_256)
    );
    // 1,505,521 tokens are 6,273 windows of 240 targets and nothing over: one shard is the stream.
    let mut options = BuildOptions::new(240);
    options.held_out.fraction_ppm = 0;
    let inputs = [data.join("data/corpus/c4_3200.jsonl.gz")];
    let out = dir.path().join("c4");
    let manifest = build(&inputs, &tokenizer, &out, &options, &Quiet).unwrap();
    assert_eq!(manifest.train.documents, 3200);
    assert_eq!(manifest.train.tokens.0, 1_505_521);
    assert_eq!(manifest.train.windows.0, 6273);
    assert_eq!(manifest.dtype, TokenDtype::U16);
    // BLAKE3 of tiktoken's `encode_ordinary` of every document, each followed by 50256, as u16.
    assert_eq!(
        manifest.train.shards[0].hash.to_string(),
        "1edcb719e5f0172d9652699f030e8a3b02795918fad6da846341ba4c3df1c148"
    );
    assert_eq!(verify(&out, &Quiet).unwrap().manifest, manifest);
}

#[test]
fn the_unigram_perplexity_of_c4_is_that_of_another_implementation() {
    let Some(data) = test_data() else { return };
    let dir = TempDir::new().unwrap();
    let tokenizer = Tokenizer::load(&data.join("data/tokenizers/gpt2/tokenizer.json"), None);
    let mut options = BuildOptions::new(256);
    options.held_out.fraction_ppm = 20_000;
    let inputs = [data.join("data/corpus/c4_3200.jsonl.gz")];
    let out = dir.path().join("c4");
    build(&inputs, &tokenizer.unwrap(), &out, &options, &Quiet).unwrap();
    let corpus = Corpus::open(&out).unwrap();
    assert_eq!(corpus.windows(Split::HeldOut).0, 89);
    let perplexity = unigram_perplexity(&corpus).unwrap();
    // The same rule and formula in Python, on tiktoken's tokens.
    assert!(
        (perplexity / 2_184.984_100_535_157 - 1.0).abs() < 1e-9,
        "{perplexity}"
    );
}

#[test]
fn the_qwen3_tokenizer_loads_packed_and_needs_four_bytes() {
    let Some(data) = test_data() else { return };
    let path = data.join("data/tokenizers/qwen3/tokenizer.json.gz");
    let tokenizer = Tokenizer::load(&path, None).unwrap();
    assert_eq!(tokenizer.vocab_size(), 151_669);
    assert_eq!(tokenizer.end_of_document_id(), 151_643);
    assert_eq!(
        TokenDtype::for_vocab(tokenizer.vocab_size()),
        TokenDtype::U32
    );
    let tokens = tokenizer.encode("Die Hanse <|im_start|>").unwrap();
    assert!(
        !tokens.contains(&151_644),
        "text does not spell special tokens"
    );
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "Die Hanse <|im_start|>");
}
