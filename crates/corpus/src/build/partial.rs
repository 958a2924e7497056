//! The directory of an unfinished build, `OUT.partial`, and the state to go on from.
//!
//! The state names everything that decides the output bytes (its key). A call with another key
//! starts over; one with the same key goes on. The directory becomes `OUT` by one rename, after
//! the manifest was written into it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::read::Place;
use super::shard::SplitState;
use crate::files::{sync_parent, with_suffix, write_atomically};
use crate::{Error, InputRecord, MANIFEST_FILE, Manifest, Result};

const STATE_FILE: &str = "build-state.json";
const LOCK_FILE: &str = "build.lock";

/// How far a build is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuildState {
    /// Hash of everything that decides the output.
    pub key: String,
    pub place: Place,
    pub inputs: Vec<InputRecord>,
    pub train: SplitState,
    pub held_out: SplitState,
}

/// A locked directory of an unfinished build.
pub(crate) struct Partial {
    pub dir: PathBuf,
    out: PathBuf,
    _lock: File,
}

impl Partial {
    /// Creates or takes over `OUT.partial`, and returns the state to go on from if there is one
    /// with this `key`.
    pub fn open(out: &Path, key: &str) -> Result<(Self, Option<BuildState>)> {
        check_out_is_free(out)?;
        let dir = with_suffix(out, ".partial");
        let lock_path = dir.join(LOCK_FILE);
        if dir.exists() {
            // Its files will be removed or changed: it must be ours.
            if !lock_path.exists() && !is_empty(&dir)? {
                return Err(Error::PartialInTheWay { path: dir });
            }
        } else {
            fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        }
        let lock = File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::BuildInProgress { path: dir }),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &lock_path)(source)),
        }
        let partial = Self {
            dir,
            out: out.to_owned(),
            _lock: lock,
        };
        let state = partial.read_state().filter(|state| state.key == key);
        Ok((partial, state))
    }

    /// Forgets all progress.
    pub fn clear(&self) -> Result<()> {
        let entries = fs::read_dir(&self.dir).map_err(Error::io("list", &self.dir))?;
        for entry in entries {
            let path = entry.map_err(Error::io("list", &self.dir))?.path();
            if path.file_name().is_some_and(|name| name != LOCK_FILE) {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Makes the state durable; the shards it speaks of must be already.
    pub fn save_state(&self, state: &BuildState) -> Result<()> {
        let json = serde_json::to_vec(state).unwrap_or_default();
        write_atomically(&self.dir.join(STATE_FILE), &json)
    }

    /// Removes the directory if it holds no progress worth keeping.
    pub fn drop_if_useless(self) {
        if self.read_state().is_none() {
            // A failure here leaves a directory that the next build clears.
            let _ = self.clear();
            let _ = fs::remove_file(self.dir.join(LOCK_FILE));
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Writes the manifest and gives the directory its name: from here on it is a corpus.
    pub fn publish(self, manifest: &Manifest) -> Result<()> {
        write_atomically(&self.dir.join(MANIFEST_FILE), &manifest.to_json())?;
        for name in [STATE_FILE, LOCK_FILE] {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &path)(error));
                }
                _ => {}
            }
        }
        fs::rename(&self.dir, &self.out).map_err(Error::io("rename into place", &self.out))?;
        sync_parent(&self.out)
    }

    fn read_state(&self) -> Option<BuildState> {
        // An unreadable state is no state: the build starts over.
        let json = fs::read(self.dir.join(STATE_FILE)).ok()?;
        serde_json::from_slice(&json).ok()
    }
}

fn check_out_is_free(out: &Path) -> Result<()> {
    if out.exists() && !(out.is_dir() && is_empty(out)?) {
        return Err(Error::OutputExists {
            path: out.to_owned(),
        });
    }
    Ok(())
}

fn is_empty(dir: &Path) -> Result<bool> {
    let mut entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    Ok(entries.next().is_none())
}
