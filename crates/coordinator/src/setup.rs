//! From a recipe and a data directory to a run that can be served: the first start, and every other.
//!
//! ```text
//! DATA/lock, journal.sqlite, blobs/, uploads/, tmp/    the store's
//!      run.toml            the recipe, canonical       for people; the journal has it, too
//!      corpus.json         the corpus manifest
//!      auth.toml           hashes of tokens
//!      tls/                the server's identity
//!      export/             the finished model
//! ```
//!
//! On the first start generation 0 is durable before the journal's first record names it. Afterwards the
//! journal alone says what the run is; recipe and corpus are only compared with it.

use std::path::{Path, PathBuf};

use hansa_base::{Generation, Hash, Timeline};
use hansa_outer::Metadata;
use hansa_protocol::DigestFields;
use hansa_store::{Blob, BlobStore, Bring, DataDir, Journal, Record, Seq, StoreError};
use hansa_train::Weights;
use hansa_wire::Recipe;
use hansa_wire::journal::{Entry, GenerationFiles, JOURNAL_VERSION, Started, encode_entry};

use crate::auth::random_hash;
use crate::error::Error;
use crate::merge::{encode_model, read_header};
use crate::options::Options;
use crate::replay::Replayed;
use crate::restore::refuse_unfinished;

/// The corpus manifest's name in the data directory.
pub const CORPUS_FILE: &str = "corpus.json";
/// The canonical recipe's name in the data directory.
pub const RECIPE_FILE: &str = "run.toml";

/// A run, ready to be served.
pub(crate) struct Run {
    pub dir: DataDir,
    pub store: BlobStore,
    pub journal: Journal,
    pub replayed: Replayed,
    /// `tokenizer.json` beside the corpus, if there.
    pub tokenizer: Option<PathBuf>,
}

/// What the corpus path of a recipe leads to, if anything.
struct CorpusFound {
    manifest: hansa_corpus::Manifest,
    dir: PathBuf,
    text: Vec<u8>,
}

pub(crate) fn open(options: &Options) -> Result<Run, Error> {
    let text = std::fs::read_to_string(&options.recipe);
    let text = text.map_err(Error::io("read", &options.recipe))?;
    let recipe = Recipe::parse(&text, &options.recipe)?;
    let dir = DataDir::lock(&options.data_dir)?;
    refuse_unfinished(dir.path())?;
    let store = BlobStore::open(&dir)?;
    let corpus = find_corpus(&recipe, &options.recipe);
    let journal_path = DataDir::journal_path(dir.path());
    let known = match Journal::open(&journal_path) {
        Ok(journal) => Replayed::load(&journal)?.map(|replayed| (journal, replayed)),
        Err(StoreError::NoJournal(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let (journal, replayed, found) = match known {
        Some((journal, mut replayed)) => {
            let found = continue_run(&recipe, &replayed, corpus)?;
            // Who plans may change from start to start.
            replayed.recipe.plan = recipe.plan.clone();
            (journal, replayed, found)
        }
        None => {
            let found = corpus?;
            let digest = recipe.digest_fields(&found.manifest)?;
            let (journal, replayed) = begin_run(&recipe, digest, options, &dir, &store)?;
            (journal, replayed, Some(found))
        }
    };
    let recipe_text = replayed.started.recipe.as_bytes();
    write_if_changed(&dir.path().join(RECIPE_FILE), recipe_text)?;
    if let Some(found) = &found {
        write_if_changed(&dir.path().join(CORPUS_FILE), &found.text)?;
    }
    let tokenizer = found.map(|found| found.dir.join("tokenizer.json"));
    Ok(Run {
        dir,
        store,
        journal,
        replayed,
        tokenizer: tokenizer.filter(|path| path.is_file()),
    })
}

/// The corpus named by a recipe. Where its shards are there, their sizes are checked, too.
fn find_corpus(recipe: &Recipe, recipe_path: &Path) -> Result<CorpusFound, Error> {
    let base = recipe_path.parent().unwrap_or(Path::new("."));
    let path = base.join(&recipe.corpus.path);
    let (dir, file) = if path.is_file() {
        let dir = path.parent().unwrap_or(Path::new(".")).to_owned();
        (dir, path)
    } else {
        (path.clone(), path.join(hansa_corpus::MANIFEST_FILE))
    };
    if !file.is_file() {
        // Says what is wrong with the directory, and what to do.
        hansa_corpus::Corpus::open(&dir)?;
    }
    let text = std::fs::read(&file).map_err(Error::io("read", &file))?;
    let manifest = hansa_corpus::Manifest::parse(&text, &file)?;
    let shards = manifest
        .train
        .shards
        .iter()
        .chain(&manifest.held_out.shards);
    if shards
        .into_iter()
        .any(|shard| dir.join(&shard.file).exists())
    {
        hansa_corpus::Corpus::open(&dir)?;
    }
    Ok(CorpusFound {
        manifest,
        dir,
        text,
    })
}

/// Compares recipe and corpus with the run that the journal knows.
fn continue_run(
    recipe: &Recipe,
    replayed: &Replayed,
    corpus: Result<CorpusFound, Error>,
) -> Result<Option<CorpusFound>, Error> {
    if let Some(diff) = recipe.difference(&replayed.recipe) {
        return Err(Error::RecipeChanged { diff });
    }
    match corpus {
        Ok(found) => {
            let digest = recipe.digest_fields(&found.manifest)?;
            match replayed.spec.digest.first_difference(&digest) {
                Some(mismatch) => Err(Error::CorpusChanged(mismatch)),
                None => Ok(Some(found)),
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot use the corpus here; going on with what the journal says of it");
            Ok(None)
        }
    }
}

fn begin_run(
    recipe: &Recipe,
    digest: DigestFields,
    options: &Options,
    dir: &DataDir,
    store: &BlobStore,
) -> Result<(Journal, Replayed), Error> {
    let spec = recipe.run_spec_with(digest.clone())?;
    let files = make_first_generation(recipe, spec.run, &options.recipe, dir.path(), store)?;
    let path = DataDir::journal_path(dir.path());
    let mut journal = match Journal::create(&path, &spec.run.0) {
        Err(StoreError::JournalExists(_)) => empty_journal(&path, spec.run)?,
        other => other?,
    };
    let entry = Entry::Started(Started {
        hansa_version: env!("CARGO_PKG_VERSION").to_owned(),
        recipe: recipe.to_toml(),
        digest,
        timeline: next_timeline(Timeline(0)),
        key: random_hash()?,
        files,
    });
    journal.append_batch(&[record(&entry)])?;
    let replayed = Replayed::load(&journal)?.ok_or(Error::NoFiles(Generation(0)))?;
    Ok((journal, replayed))
}

/// The journal that a start left behind that was killed before its first record.
fn empty_journal(path: &Path, run: Hash) -> Result<Journal, Error> {
    let journal = Journal::open(path)?;
    if journal.identity() == run.0 {
        return Ok(journal);
    }
    if journal.last_seq() > Seq(0) {
        return Err(StoreError::JournalExists(path.to_owned()).into());
    }
    // Of another recipe, which was changed since; nothing has begun.
    drop(journal);
    Journal::discard_empty(path)?;
    Ok(Journal::create(path, &run.0)?)
}

/// Weights from the seed, or from a file, as f32 master files and as they travel.
fn make_first_generation(
    recipe: &Recipe,
    run: Hash,
    recipe_path: &Path,
    dir: &Path,
    store: &BlobStore,
) -> Result<GenerationFiles, Error> {
    let weights = match &recipe.inner.init_from {
        Some(file) => {
            let base = recipe_path.parent().unwrap_or(Path::new("."));
            Weights::load_safetensors(&base.join(file), &recipe.model)
        }
        None => Weights::init(&recipe.model, recipe.inner.init_seed),
    };
    let weights = weights.map_err(Error::FirstWeights)?;
    let metadata = metadata(run, Generation(0));
    let draft = dir.join("tmp").join("generation-0.safetensors");
    let saved = weights.save_safetensors(&draft, &metadata);
    saved.map_err(Error::FirstWeights)?;
    drop(weights);
    let chunk_bytes = recipe.exchange.chunk_bytes();
    let theta = store.put_file(&draft, Bring::Move, chunk_bytes)?;
    let model = encode_model(store, &theta, recipe.exchange.model, &metadata, chunk_bytes);
    let model = model.map_err(Error::Model)?;
    Ok(GenerationFiles {
        generation: Generation(0),
        theta: theta.hash(),
        momentum: None,
        model: model.hash(),
    })
}

/// The strings in the header of a generation's files: part of its bytes, so functions of the run only.
pub(crate) fn metadata(run: Hash, generation: Generation) -> Metadata {
    Metadata::from([
        ("format".to_owned(), "pt".to_owned()),
        ("hansa_generation".to_owned(), generation.to_string()),
        ("hansa_run".to_owned(), run.to_string()),
    ])
}

/// The layout of a run's tensors, read from its master weights.
pub(crate) fn layout_of(theta: &Blob) -> Result<hansa_outer::Layout, Error> {
    let header = read_header(theta, "the master weights").map_err(Error::Model)?;
    Ok(header.layout().clone())
}

/// A timeline that nobody else has: the time in milliseconds, if that is later than `last`.
pub(crate) fn next_timeline(last: Timeline) -> Timeline {
    Timeline(wall_ms()).max(last.next())
}

/// A journal record of now.
pub(crate) fn record(entry: &Entry) -> Record {
    Record {
        wall_ms: wall_ms(),
        version: JOURNAL_VERSION,
        payload: encode_entry(entry),
    }
}

/// Milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// Copies for people: the journal is the truth, so a plain replacement is enough.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    let draft = path.with_extension("new");
    std::fs::write(&draft, bytes).map_err(Error::io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(Error::io("rename", &draft))
}

/// A token for a registration.
pub(crate) fn fresh_token() -> Result<Hash, Error> {
    Ok(random_hash()?)
}
