//! Who may do what: bearer tokens, kept as hashes in `auth.toml` of the data directory.
//!
//! A site's token acts for replicas of that site only. The file is read again when it changes, so that
//! a token is issued or revoked without a restart; a file that cannot be read leaves the last good one
//! in force. Tokens themselves are never stored here and never logged.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hansa_base::{Hash, SiteName};
use serde::{Deserialize, Serialize};

/// The file's name in the data directory.
pub const AUTH_FILE: &str = "auth.toml";
/// How old what is known of the file may be.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const HEAD: &str = "# Tokens of this run, as BLAKE3 hashes. Remove an entry to revoke a token; changes take\n\
                    # effect within seconds.\n";

/// What a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Replicas of this site.
    Site(SiteName),
    /// Everything that an operator does.
    Operator,
    /// Looking at the run's status.
    Read,
}

/// What is wrong with the list of tokens.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file cannot be used.
    #[error("{}: {problem}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No randomness.
    #[error("draw a token: the system gives no random bytes")]
    Random,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthFile {
    #[serde(default, rename = "token", skip_serializing_if = "Vec::is_empty")]
    tokens: Vec<Entry>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    blake3: String,
}

impl Entry {
    fn read(&self) -> Result<(blake3::Hash, Scope), String> {
        let hash: Hash = self.blake3.parse().map_err(|e| format!("blake3: {e}"))?;
        let scope = match (self.scope.as_str(), &self.site) {
            ("site", Some(site)) => {
                Scope::Site(SiteName::from_str(site).map_err(|error| error.to_string())?)
            }
            ("operator", None) => Scope::Operator,
            ("read", None) => Scope::Read,
            _ => {
                return Err(
                    "an entry needs scope = \"site\" with its site, \"operator\" or \"read\""
                        .to_owned(),
                );
            }
        };
        Ok((blake3::Hash::from_bytes(hash.0), scope))
    }
}

/// Makes a new token, adds its hash to the data directory's list and returns the token, which is
/// written down nowhere else.
///
/// # Errors
/// If the list cannot be read or written.
pub fn issue_token(data_dir: &Path, scope: &Scope) -> Result<String, AuthError> {
    let token = format!("hansa_{}", random_hash()?);
    add_token(data_dir, scope, &token)?;
    Ok(token)
}

/// Adds the hash of a token that exists already; adding it twice is harmless.
///
/// # Errors
/// If the list cannot be read or written.
pub fn add_token(data_dir: &Path, scope: &Scope, token: &str) -> Result<(), AuthError> {
    let path = data_dir.join(AUTH_FILE);
    // Held until the new list is in place: of two commands at once, neither loses its token.
    let _lock = lock(data_dir)?;
    let mut file = read(&path)?;
    let (kind, site) = match scope {
        Scope::Site(site) => ("site", Some(site.to_string())),
        Scope::Operator => ("operator", None),
        Scope::Read => ("read", None),
    };
    let blake3 = hash_of(token).to_hex().to_string();
    file.tokens.retain(|entry| entry.blake3 != blake3);
    file.tokens.push(Entry {
        scope: kind.to_owned(),
        site,
        blake3,
    });
    write(&path, &file)
}

/// Waits for whoever else changes the list. The lock goes with the file, or with the process.
fn lock(data_dir: &Path) -> Result<File, AuthError> {
    let path = data_dir.join(".auth.lock");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(io("open", &path))?;
    file.lock().map_err(io("lock", &path))?;
    Ok(file)
}

/// The scopes in a data directory's list; empty if there is none.
///
/// # Errors
/// If the list cannot be read.
pub fn list_tokens(data_dir: &Path) -> Result<Vec<Scope>, AuthError> {
    let path = data_dir.join(AUTH_FILE);
    let tokens = parse(&path, &read(&path)?)?;
    Ok(tokens.into_iter().map(|(_, scope)| scope).collect())
}

/// 32 bytes from the system's generator.
pub(crate) fn random_hash() -> Result<Hash, AuthError> {
    let mut bytes = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| AuthError::Random)?;
    Ok(Hash(bytes))
}

fn hash_of(token: &str) -> blake3::Hash {
    blake3::hash(token.trim().as_bytes())
}

fn read(path: &Path) -> Result<AuthFile, AuthError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(io("read", path)(error)),
    };
    toml::from_str(&text).map_err(|error| AuthError::Unusable {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

fn parse(path: &Path, file: &AuthFile) -> Result<Vec<(blake3::Hash, Scope)>, AuthError> {
    let unusable = |problem| AuthError::Unusable {
        path: path.to_owned(),
        problem,
    };
    file.tokens
        .iter()
        .map(|entry| entry.read().map_err(unusable))
        .collect()
}

fn write(path: &Path, file: &AuthFile) -> Result<(), AuthError> {
    let mut text = HEAD.to_owned();
    // A structure of strings cannot fail to serialise.
    let _ = write!(text, "\n{}", toml::to_string(file).unwrap_or_default());
    let draft = path.with_extension("toml.new");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut out = options.open(&draft).map_err(io("create", &draft))?;
    out.write_all(text.as_bytes())
        .and_then(|()| out.sync_all())
        .map_err(io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(io("rename", &draft))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", dir))
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> AuthError {
    let path = path.to_owned();
    move |source| AuthError::Io { what, path, source }
}

/// The list in force.
pub(crate) struct Tokens {
    path: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    tokens: Vec<(blake3::Hash, Scope)>,
    stamp: Option<(SystemTime, u64)>,
    looked: Instant,
}

impl Known {
    /// Compares every entry, each in constant time (as `blake3::Hash` does).
    fn find(&self, presented: blake3::Hash) -> Option<Scope> {
        let mut found = None;
        for (hash, scope) in &self.tokens {
            if *hash == presented {
                found = Some(scope.clone());
            }
        }
        found
    }
}

impl Tokens {
    /// Reads the list; an absent one is made, without a token in it.
    pub fn load(data_dir: &Path) -> Result<Self, AuthError> {
        let path = data_dir.join(AUTH_FILE);
        let lock = lock(data_dir)?;
        let file = read(&path)?;
        if !path.exists() {
            write(&path, &file)?;
        }
        drop(lock);
        let known = Known {
            tokens: parse(&path, &file)?,
            stamp: stamp(&path),
            looked: Instant::now(),
        };
        Ok(Self {
            path,
            known: Mutex::new(known),
        })
    }

    /// What a presented token is for; `None` if it is not in the list.
    pub fn scope(&self, token: &str) -> Option<Scope> {
        let presented = hash_of(token);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.elapsed() >= LOOK_EVERY {
            self.look_again(&mut known);
        }
        // A token that was issued a moment ago must work at once; looking costs one stat.
        if known.find(presented).is_none() {
            self.look_again(&mut known);
        }
        known.find(presented)
    }

    fn look_again(&self, known: &mut Known) {
        known.looked = Instant::now();
        let now = stamp(&self.path);
        if now == known.stamp {
            return;
        }
        match read(&self.path).and_then(|file| parse(&self.path, &file)) {
            Ok(tokens) => {
                tracing::info!(tokens = tokens.len(), "the list of tokens was read again");
                known.tokens = tokens;
                known.stamp = now;
            }
            // Said once for each change.
            Err(error) => {
                tracing::error!(%error, "the changed list of tokens is not used");
                known.stamp = now;
            }
        }
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn look_now(tokens: &Tokens) {
        let mut known = tokens.known.lock().unwrap();
        tokens.look_again(&mut known);
    }

    #[test]
    fn tokens_are_scoped_stored_as_hashes_and_revoked_by_editing_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let site = Scope::Site("lumi".parse().unwrap());
        let token = issue_token(dir.path(), &site).unwrap();
        let tokens = Tokens::load(dir.path()).unwrap();
        assert_eq!(tokens.scope(&token), Some(site));
        assert_eq!(tokens.scope("hansa_x"), None);
        assert_eq!(tokens.scope(""), None);
        let path = dir.path().join(AUTH_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains(&token) && text.contains("site = \"lumi\""),
            "{text}"
        );

        // A token works from the moment it is issued.
        let operator = issue_token(dir.path(), &Scope::Operator).unwrap();
        assert_eq!(tokens.scope(&operator), Some(Scope::Operator));
        // Many at once lose none.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| issue_token(dir.path(), &Scope::Read).unwrap());
            }
        });
        assert_eq!(list_tokens(dir.path()).unwrap().len(), 10);
        look_now(&tokens);
        // A broken edit changes nothing; a good one revokes.
        std::fs::write(&path, "[[token]]\nscope = \"king\"\nblake3 = \"00\"\n").unwrap();
        look_now(&tokens);
        assert_eq!(tokens.scope(&operator), Some(Scope::Operator));
        std::fs::write(&path, "").unwrap();
        look_now(&tokens);
        assert_eq!(tokens.scope(&operator), None);
    }
}
