//! Small texts, a small tokenizer and a corpus builder, shared by the tests of this crate.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use hansa_corpus::{
    BpeOptions, BuildOptions, Corpus, Error, HeldOut, InputOptions, Manifest, Quiet, Split,
    Tokenizer, build, train_bpe,
};
use tempfile::TempDir;

/// A directory with a tokenizer and whatever inputs a test writes.
pub struct Place {
    dir: TempDir,
    pub inputs: Vec<PathBuf>,
    pub options: BuildOptions,
}

impl Place {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let text = dir.path().join("words.txt");
        std::fs::write(&text, story(99, 3000)).unwrap();
        train(&[text], &dir.path().join("tokenizer.json"), 400, None);
        let mut options = BuildOptions::new(16);
        options.held_out = HeldOut {
            seed: 7,
            fraction_ppm: 200_000,
        };
        Self {
            dir,
            inputs: Vec::new(),
            options,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn file(mut self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        self.inputs.push(path);
        self
    }

    /// `count` documents of JSON lines.
    pub fn stories(self, name: &str, count: u64) -> Self {
        let lines = (0..count)
            .map(|i| json_line(&story(i, 40)))
            .collect::<String>();
        self.file(name, lines)
    }

    pub fn with(mut self, change: impl FnOnce(&mut BuildOptions)) -> Self {
        change(&mut self.options);
        self
    }

    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::load(&self.path("tokenizer.json"), None).unwrap()
    }

    pub fn build(&self, out: &str) -> Result<Manifest, Error> {
        let out = self.path(out);
        build(&self.inputs, &self.tokenizer(), &out, &self.options, &Quiet)
    }

    /// Builds into `corpus` and opens it.
    pub fn corpus(&self) -> Corpus {
        self.build("corpus").unwrap();
        Corpus::open(&self.path("corpus")).unwrap()
    }

    /// The error of a build, which must leave nothing behind.
    pub fn error(&self) -> String {
        let error = self.build("corpus").unwrap_err();
        assert!(
            !self.path("corpus").exists(),
            "a failed build left a corpus"
        );
        assert!(
            !self.path("corpus.partial").exists(),
            "a failed build left a partial one"
        );
        error.to_string()
    }

    /// `error`, with the path of the first input shortened to its name.
    pub fn short_error(&self) -> String {
        let mut dir = self.dir.path().display().to_string();
        dir.push('/');
        self.error().replace(&dir, "")
    }
}

pub fn train(inputs: &[PathBuf], out: &Path, vocab_size: u32, threads: Option<usize>) {
    let options = BpeOptions {
        vocab_size,
        input: InputOptions::default(),
        threads,
    };
    train_bpe(inputs, out, &options, &Quiet).unwrap();
}

/// Words in a fixed pseudo-random order: a text that is the same on every machine.
pub fn story(seed: u64, words: usize) -> String {
    const WORDS: [&str; 16] = [
        "the",
        "ship",
        "sailed",
        "from",
        "Lübeck",
        "with",
        "herring",
        "and",
        "amber,",
        "past",
        "Visby.\n",
        "merchants",
        "ledger",
        "counted",
        "1356",
        "barrels",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut text = format!("{seed}");
    for _ in 0..words {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        text.push(' ');
        text.push_str(WORDS[(state >> 60) as usize]);
    }
    text
}

pub fn json_line(text: &str) -> String {
    format!(
        "{}\n",
        serde_json::json!({"url": "https://example.org", "text": text})
    )
}

pub fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_ref()).unwrap();
    encoder.finish().unwrap()
}

/// All windows of a split, put together again as a stream.
pub fn stream(corpus: &Corpus, split: Split) -> Vec<u32> {
    let mut all = Vec::new();
    let mut window = Vec::new();
    for index in 0..corpus.windows(split).0 {
        corpus.read(split, index, &mut window).unwrap();
        assert_eq!(window.len(), corpus.seq_len() + 1);
        if let Some(last) = all.pop() {
            assert_eq!(
                last, window[0],
                "window {index} does not begin where the last one ended"
            );
        }
        all.extend_from_slice(&window);
    }
    all
}

/// Names and bytes of a directory's files, sorted.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The folder of shared test data, or `None` with a word on stderr.
pub fn test_data() -> Option<PathBuf> {
    let dir = std::env::var_os("HANSA_TEST_DATA").map(PathBuf::from);
    if dir.is_none() {
        eprintln!("skipped: HANSA_TEST_DATA is not set");
    }
    dir
}
