//! The finished model as a Hugging Face directory: `model.safetensors`, `config.json`, `tokenizer.json`.

use std::fs::File;
use std::path::{Path, PathBuf};

use hansa_base::Hash;

use crate::error::Error;
use crate::shell::Shell;

/// Writes the model of f32 master weights `theta` to `export/` of the data directory; the directory
/// appears complete or not at all. Blocks for as long as the disk takes.
pub(crate) fn export(shell: &Shell, theta: Hash) -> Result<PathBuf, Error> {
    let data_dir = &shell.data_dir;
    let (draft, out) = (data_dir.join("export.new"), data_dir.join("export"));
    if draft.exists() {
        std::fs::remove_dir_all(&draft).map_err(Error::io("remove", &draft))?;
    }
    std::fs::create_dir(&draft).map_err(Error::io("create", &draft))?;
    let blob = shell.store.open_blob(theta)?;
    copy(blob.path(), &draft.join("model.safetensors"))?;
    let config = draft.join("config.json");
    let json = shell.recipe.model.to_hf_json();
    std::fs::write(&config, json).map_err(Error::io("write", &config))?;
    sync(&config)?;
    match &shell.tokenizer {
        Some(tokenizer) => copy(tokenizer, &draft.join("tokenizer.json"))?,
        None => tracing::warn!(
            "the exported model has no tokenizer.json: the corpus directory is not at hand; copy it \
             from there"
        ),
    }
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(Error::io("remove", &out))?;
    }
    std::fs::rename(&draft, &out).map_err(Error::io("rename", &draft))?;
    sync(data_dir)?;
    Ok(out)
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::copy(from, to).map_err(Error::io("copy", from))?;
    sync(to)
}

fn sync(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(Error::io("sync", path))
}
