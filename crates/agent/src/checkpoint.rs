//! A foreign trainer's checkpoint: a folder that it fills as it likes, and a small file that names it.
//!
//! The session renames and links one file, so the file is what it is given; the folders lie beside it in
//! `trainer/` and are never changed once they are named. A folder that neither `latest.ckpt` nor
//! `accepted.ckpt` names goes when the next one is complete.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

const VERSION: u32 = 1;
const FOLDERS: &str = "trainer";
/// More than any session's part takes.
const BYTES_MAX: u64 = 64 << 20;

/// The small file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Envelope {
    version: u32,
    /// The folder's name in `trainer/`.
    folder: String,
    /// The session's part.
    pub meta: Value,
}

impl Envelope {
    /// Reads a checkpoint's file, and where its folder is.
    pub fn read(path: &Path) -> io::Result<(Self, PathBuf)> {
        let mut text = Vec::new();
        // The embedded trainer's checkpoint, which holds weights, is no envelope.
        let size = File::open(path)?
            .take(BYTES_MAX + 1)
            .read_to_end(&mut text)?;
        if size as u64 > BYTES_MAX || !text.starts_with(b"{") {
            let wrong = "no trainer under `hansa agent` wrote it; was it `hansa train`? Give this one a state \
                         directory of its own";
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        let envelope: Self = serde_json::from_slice(&text)?;
        if envelope.version != VERSION {
            let found = envelope.version;
            let wrong = format!("its version is {found}, this hansa writes {VERSION}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        let name = Path::new(&envelope.folder);
        if name.components().count() != 1 || name.file_name().is_none() {
            let wrong = format!("it names {:?}, which is no folder's name", envelope.folder);
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        let folder = folders_of(path).join(&envelope.folder);
        Ok((envelope, folder))
    }
}

fn folders_of(path: &Path) -> PathBuf {
    path.with_file_name(FOLDERS)
}

/// An empty folder for the next checkpoint at `path`; what an interrupted one left is removed.
pub(crate) fn new_folder(path: &Path) -> io::Result<PathBuf> {
    let folders = folders_of(path);
    std::fs::create_dir_all(&folders)?;
    remove_unnamed(path, &named(path)?);
    let numbers = std::fs::read_dir(&folders)?.map(|entry| {
        let name = entry?.file_name();
        Ok(name.to_str().and_then(|name| name.parse::<u64>().ok()))
    });
    let numbers: Vec<Option<u64>> = numbers.collect::<io::Result<_>>()?;
    let next = numbers
        .into_iter()
        .flatten()
        .max()
        .map_or(1, |last| last + 1);
    let folder = folders.join(next.to_string());
    std::fs::create_dir(&folder)?;
    Ok(folder)
}

/// Makes a filled folder the checkpoint at `path`: first its files are durable, then it is named.
pub(crate) fn name(path: &Path, folder: &Path, meta: &Value) -> io::Result<()> {
    sync_tree(folder)?;
    File::open(folders_of(path))?.sync_all()?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let envelope = Envelope {
        version: VERSION,
        folder: name.into_owned(),
        meta: meta.clone(),
    };
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{file_name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(&envelope)?)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    match named(path) {
        Ok(named) => remove_unnamed(path, &named),
        // The checkpoint is there; the next one tells.
        Err(error) => tracing::warn!(%error, "cannot look for old checkpoints"),
    }
    Ok(())
}

fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// Folders that checkpoints beside `path` name.
fn named(path: &Path) -> io::Result<Vec<PathBuf>> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut named = Vec::new();
    for entry in std::fs::read_dir(parent)? {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "ckpt")
        {
            // One that cannot be read may name any folder: then nothing goes.
            named.push(Envelope::read(&file)?.1);
        }
    }
    Ok(named)
}

/// Removes the others. What cannot go now (NFS keeps a file that a process has open) goes another time.
fn remove_unnamed(path: &Path, named: &[PathBuf]) {
    let folders = std::fs::read_dir(folders_of(path)).into_iter().flatten();
    for folder in folders.flatten().map(|entry| entry.path()) {
        if named.contains(&folder) {
            continue;
        }
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove an old checkpoint yet");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn save(path: &Path, content: &str) -> PathBuf {
        let folder = new_folder(path).unwrap();
        std::fs::create_dir(folder.join("shards")).unwrap();
        std::fs::write(folder.join("shards/0"), content).unwrap();
        name(path, &folder, &json!({ "at": content })).unwrap();
        folder
    }

    fn content(path: &Path) -> String {
        let (envelope, folder) = Envelope::read(path).unwrap();
        let text = std::fs::read_to_string(folder.join("shards/0")).unwrap();
        assert_eq!(envelope.meta["at"], text);
        text
    }

    #[test]
    fn the_latest_and_the_accepted_checkpoint_stay_and_others_go() {
        let dir = tempfile::tempdir().unwrap();
        let (latest, accepted) = (
            dir.path().join("latest.ckpt"),
            dir.path().join("accepted.ckpt"),
        );
        save(&latest, "1");
        std::fs::hard_link(&latest, &accepted).unwrap();
        save(&latest, "2");
        save(&latest, "3");
        assert_eq!(
            (content(&latest), content(&accepted)),
            ("3".into(), "1".into())
        );
        let folders = std::fs::read_dir(dir.path().join(FOLDERS)).unwrap();
        assert_eq!(folders.count(), 2);
    }

    #[test]
    fn an_interrupted_save_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("latest.ckpt");
        save(&latest, "1");
        let torn = new_folder(&latest).unwrap();
        std::fs::write(torn.join("half"), "x").unwrap();
        assert_eq!(content(&latest), "1");
        save(&latest, "2");
        assert_eq!(content(&latest), "2");
        assert!(!torn.join("half").exists());
    }

    #[test]
    fn an_old_folder_that_cannot_go_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("latest.ckpt");
        save(&latest, "1");
        // What stands for it cannot be removed as a folder.
        let stuck = dir.path().join(FOLDERS).join("stuck");
        std::fs::write(&stuck, "").unwrap();
        save(&latest, "2");
        assert_eq!(content(&latest), "2");
        assert!(stuck.exists());
    }

    #[test]
    fn the_embedded_trainers_checkpoint_is_told_from_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("latest.ckpt");
        std::fs::write(&latest, b"\x08\0\0\0weights").unwrap();
        let error = Envelope::read(&latest).unwrap_err();
        assert!(error.to_string().contains("hansa train"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_told_and_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("latest.ckpt");
        std::fs::write(&latest, b"{\"version\":1,\"folder\":\"../x\",\"meta\":0}").unwrap();
        assert!(Envelope::read(&latest).is_err());
        std::fs::write(&latest, b"{\"vers").unwrap();
        assert!(Envelope::read(&latest).is_err());
        std::fs::create_dir(dir.path().join(FOLDERS)).unwrap();
        assert!(new_folder(&latest).is_err());
    }
}
