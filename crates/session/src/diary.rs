//! Where events go: to whoever watches, and into the replica's own log on disk.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::event::SessionEvent;
use crate::options::EventSink;

/// The log is moved aside (to `.old`) beyond this size: at most two of these lie around.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// What happens many times a second is logged this often.
const FREQUENT_EVERY: Duration = Duration::from_secs(1);

/// Tells events. Losing the log (a full disk) never stops training.
pub(crate) struct Diary {
    sink: EventSink,
    log: Mutex<Option<Log>>,
}

struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    frequent_at: Option<Instant>,
}

#[derive(Serialize)]
struct Line<'a> {
    unix_ms: u64,
    #[serde(flatten)]
    event: &'a SessionEvent,
}

impl Diary {
    pub fn new(sink: EventSink) -> Self {
        let log = Mutex::new(None);
        Self { sink, log }
    }

    /// From now on events are also written to this file.
    pub fn log_to(&self, path: &Path) {
        let opened = File::options().append(true).create(true).open(path);
        match opened.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((bytes, file)) => {
                let log = Log {
                    path: path.to_owned(),
                    file,
                    bytes,
                    frequent_at: None,
                };
                if let Ok(mut slot) = self.log.lock() {
                    *slot = Some(log);
                }
            }
            Err(error) => tracing::warn!(%error, path = %path.display(), "cannot write the log"),
        }
    }

    pub fn tell(&self, event: &SessionEvent) {
        (self.sink)(event);
        // Poison: another thread's panic ends the session anyway.
        let Ok(mut log) = self.log.lock() else {
            return;
        };
        if let Some(open) = log.as_mut()
            && let Err(error) = open.write(event)
        {
            tracing::warn!(%error, path = %open.path.display(), "the log ends here");
            *log = None;
        }
    }
}

impl Log {
    fn write(&mut self, event: &SessionEvent) -> std::io::Result<()> {
        let frequent = matches!(
            event,
            SessionEvent::Step { .. }
                | SessionEvent::Downloading { .. }
                | SessionEvent::Uploading { .. }
                | SessionEvent::Evaluating { .. }
                | SessionEvent::CheckingCorpus { .. }
                | SessionEvent::HeartbeatAnswered { .. }
        );
        if frequent {
            let soon = self
                .frequent_at
                .is_some_and(|at| at.elapsed() < FREQUENT_EVERY);
            if soon {
                return Ok(());
            }
            self.frequent_at = Some(Instant::now());
        }
        if self.bytes > LOG_BYTES_MAX {
            std::fs::rename(&self.path, self.path.with_extension("log.old"))?;
            self.file = File::options().append(true).create(true).open(&self.path)?;
            self.bytes = 0;
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = since_epoch.map_or(0, |since| since.as_millis() as u64);
        let mut line = serde_json::to_vec(&Line { unix_ms, event })?;
        line.push(b'\n');
        self.bytes += line.len() as u64;
        self.file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    #[test]
    fn events_reach_the_watcher_and_the_log_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.log");
        let seen = Arc::new(Mutex::new(0));
        let counter = seen.clone();
        let diary = Diary::new(Arc::new(move |_| *counter.lock().unwrap() += 1));
        diary.log_to(&path);
        let long = SessionEvent::Waiting {
            reason: "x".repeat(1 << 20),
        };
        (0..20).for_each(|_| diary.tell(&long));
        assert_eq!(*seen.lock().unwrap(), 20);
        let old = path.with_extension("log.old");
        for file in [&path, &old] {
            assert!(std::fs::metadata(file).unwrap().len() <= LOG_BYTES_MAX + (2 << 20));
            let text = std::fs::read_to_string(file).unwrap();
            let last: serde_json::Value =
                serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!(last["event"], "waiting");
            assert!(last["unix_ms"].as_u64().unwrap() > 0);
        }
    }
}
