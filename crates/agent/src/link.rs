//! The connection to the trainer: lines of JSON, one question at a time.
//!
//! Waiting is done in short pieces, so that a process that ended is noticed at once, and one that shows
//! no progress is given up after a stated time. Any line from the trainer is progress.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::child::{self, Child};
use crate::error::LinkError;
use crate::protocol::{
    Answer, Ask, Complaint, FirstLine, Greeting, Hello, LINE_BYTES_MAX, Numbered, PROTOCOL_VERSION,
    Said,
};

/// How often the process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the agent waits for at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the start of a process to its hello.
    pub start: Duration,
    /// Between two signs of life while something is asked.
    pub hang: Duration,
}

/// The socket that a trainer connects to; the file goes with it.
pub(crate) struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    /// Makes the socket. Its folder must be the user's own: whoever connects is believed.
    pub fn open(path: &Path) -> Result<Self, LinkError> {
        let io = |source| {
            let what = format!("make the agent's socket {}", path.display());
            LinkError::SetUp { what, source }
        };
        // An agent that was killed leaves its socket behind. Nothing else is removed.
        if std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let path = path.to_owned();
        Ok(Self { listener, path })
    }

    /// Waits for the trainer and reads its hello.
    pub fn meet(
        &self,
        child: &Child,
        patience: Patience,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Link, Hello), LinkError> {
        let began = Instant::now();
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(source) => {
                    let what = "wait for the trainer";
                    return Err(LinkError::Io { what, source });
                }
            }
            alive(child)?;
            let waited = began.elapsed();
            if waited > patience.start || stop.load(Ordering::Relaxed) {
                let socket = self.path.clone();
                return Err(LinkError::NeverCame { socket, waited });
            }
            std::thread::sleep(LOOK_EVERY / 4);
        };
        let mut link = Link::new(stream, child.clone(), patience.hang, stop.clone())?;
        match link.read("say hello")? {
            FirstLine::Hello(hello) => Ok((link, hello)),
            FirstLine::Unfit(why) => Err(LinkError::Unfit(why)),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn alive(child: &Child) -> Result<(), LinkError> {
    match child.ended() {
        Some(status) => Err(LinkError::Ended(child::describe(status))),
        None => Ok(()),
    }
}

/// A trainer that has said hello.
pub(crate) struct Link {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
    asked: u64,
    child: Child,
    hang: Duration,
    /// Set when nobody wants an answer any more.
    stop: Arc<AtomicBool>,
}

/// What came of a question.
pub(crate) type Told = Result<Value, Complaint>;

impl Link {
    fn new(
        stream: UnixStream,
        child: Child,
        hang: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, LinkError> {
        let set_up = |source| LinkError::Io {
            what: "set up the trainer's connection",
            source,
        };
        stream.set_nonblocking(false).map_err(set_up)?;
        stream.set_read_timeout(Some(LOOK_EVERY)).map_err(set_up)?;
        stream.set_write_timeout(Some(hang)).map_err(set_up)?;
        Ok(Self {
            reader: BufReader::with_capacity(64 << 10, stream),
            line: Vec::new(),
            asked: 0,
            child,
            hang,
            stop,
        })
    }

    /// Refuses a trainer of another version.
    pub fn check_version(&mut self, hello: &Hello) -> Result<(), LinkError> {
        let (theirs, ours) = (hello.protocol, PROTOCOL_VERSION);
        if theirs == ours {
            return Ok(());
        }
        Err(self.refuse(LinkError::OtherVersion { theirs, ours }))
    }

    /// Tells the trainer what the run is.
    pub fn welcome(&mut self, run: &Value) -> Result<(), LinkError> {
        let protocol = PROTOCOL_VERSION;
        self.write(&Greeting::Welcome { protocol, run })
    }

    /// Tells the trainer why it is not welcome, too.
    pub fn refuse(&mut self, error: LinkError) -> LinkError {
        let why = error.to_string();
        // What matters is told to the agent's user.
        let _ = self.write(&Greeting::Refused { why: &why });
        error
    }

    /// Asks, and waits for as long as there are signs of life.
    pub fn ask(&mut self, ask: &Ask) -> Result<Told, LinkError> {
        self.asked += 1;
        let id = self.asked;
        self.write(&Numbered { id, ask })?;
        loop {
            let answer: Answer = self.read(ask.name())?;
            if answer.id != id {
                let wrong = format!("an answer to question {} instead of {id}", answer.id);
                return Err(LinkError::Nonsense(wrong));
            }
            match answer.said {
                Said::Progress(_) => {}
                Said::Ok(value) => return Ok(Ok(value)),
                Said::Error(complaint) => return Ok(Err(complaint)),
            }
        }
    }

    fn write(&mut self, message: &impl serde::Serialize) -> Result<(), LinkError> {
        let io = |source| LinkError::Io {
            what: "ask the trainer",
            source,
        };
        let mut line = serde_json::to_vec(message).map_err(|error| io(error.into()))?;
        line.push(b'\n');
        match self.reader.get_mut().write_all(&line) {
            // Why it closed says more than that it did.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(self.closed()),
            written => written.map_err(io),
        }
    }

    /// One line from the trainer.
    fn read<T: DeserializeOwned>(&mut self, ask: &'static str) -> Result<T, LinkError> {
        self.line.clear();
        let began = Instant::now();
        loop {
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len() as u64);
            let mut limited = (&mut self.reader).take(room);
            match limited.read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.ends_with(b"\n") => break,
                Ok(_) if room == 0 => {
                    return Err(LinkError::Nonsense("a line without end".to_owned()));
                }
                Ok(0) => return Err(self.closed()),
                Ok(_) => {}
                Err(error) if is_pause(&error) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(self.closed());
                }
                Err(source) => {
                    let what = "listen to the trainer";
                    return Err(LinkError::Io { what, source });
                }
            }
            alive(&self.child)?;
            let waited = began.elapsed();
            if waited > self.hang || self.stop.load(Ordering::Relaxed) {
                return Err(LinkError::Hangs { ask, waited });
            }
        }
        serde_json::from_slice(&self.line).map_err(|error| {
            let start = String::from_utf8_lossy(&self.line[..self.line.len().min(200)]);
            LinkError::Nonsense(format!("{error}, in {:?}", start.trim_end()))
        })
    }

    /// A closed connection is explained by the process's end, which may follow it by a moment.
    fn closed(&self) -> LinkError {
        for _ in 0..25 {
            if let Err(ended) = alive(&self.child) {
                return ended;
            }
            std::thread::sleep(LOOK_EVERY / 4);
        }
        LinkError::Closed
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::protocol::ComplaintKind;

    fn patience(hang: Duration) -> Patience {
        Patience {
            start: Duration::from_secs(60),
            hang,
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// A link to a trainer that writes `script` after its hello, whatever is asked.
    fn linked(script: &'static str, hang: Duration) -> (Link, Hello, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let door = Door::open(&path).unwrap();
        let mut trainer = UnixStream::connect(&path).unwrap();
        let hello = r#"{"hello":{"protocol":1,"ranks":2,"software":"t","tensors":[]}}"#;
        writeln!(trainer, "{hello}").unwrap();
        trainer.write_all(script.as_bytes()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (link, hello) = door.meet(&Child::default(), patience(hang), &stop).unwrap();
        (link, hello, trainer)
    }

    fn end() -> Ask {
        Ask::End {
            why: "test".to_owned(),
        }
    }

    #[test]
    fn progress_comes_before_an_answer() {
        let script = "{\"id\":1,\"progress\":{}}\n{\"id\":1,\"ok\":{\"loss\":2.5}}\n\
                      {\"id\":2,\"error\":{\"kind\":\"no_space\",\"why\":\"full\"}}\n";
        let (mut link, hello, _trainer) = linked(script, LONG);
        assert_eq!(hello.ranks, 2);
        assert_eq!(link.ask(&end()).unwrap().unwrap()["loss"], 2.5);
        let complaint = link.ask(&end()).unwrap().unwrap_err();
        assert_eq!(complaint.kind, ComplaintKind::NoSpace);
    }

    #[test]
    fn silence_nonsense_and_a_closed_connection_are_three_things() {
        let (mut link, _, _silent) = linked("", Duration::from_millis(1));
        assert!(matches!(
            link.ask(&end()),
            Err(LinkError::Hangs { ask: "end", .. })
        ));
        let (mut link, _, _trainer) = linked("hello?\n", LONG);
        assert!(matches!(link.ask(&end()), Err(LinkError::Nonsense(_))));
        let (mut link, _, _trainer) = linked("{\"id\":9,\"ok\":{}}\n", LONG);
        assert!(matches!(link.ask(&end()), Err(LinkError::Nonsense(_))));
        let (mut link, _, trainer) = linked("", LONG);
        drop(trainer);
        assert!(matches!(link.ask(&end()), Err(LinkError::Closed)));
    }

    #[test]
    fn a_process_that_ends_is_noticed_before_it_connects() {
        let dir = tempfile::tempdir().unwrap();
        let door = Door::open(&dir.path().join("s")).unwrap();
        let words = ["sh", "-c", "exit 4"].map(str::to_owned);
        let child = Child::start(&words, Path::new("s"), Path::new("r")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let error = door.meet(&child, patience(LONG), &stop).err().unwrap();
        assert!(matches!(&error, LinkError::Ended(how) if how == "exit status 4"));
    }

    #[test]
    fn a_socket_takes_the_place_of_an_old_one_and_of_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        drop(Door::open(&path).unwrap());
        std::fs::write(&path, "notes").unwrap();
        let error = Door::open(&path).err().unwrap();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "notes");
        // Longer than a socket's path may be.
        let error = Door::open(&dir.path().join("long".repeat(40)))
            .err()
            .unwrap();
        assert!(matches!(error, LinkError::SetUp { .. }), "{error}");
    }

    #[test]
    fn another_version_is_told_to_both_sides() {
        let (mut link, mut hello, trainer) = linked("", LONG);
        hello.protocol = 9;
        let error = link.check_version(&hello).unwrap_err();
        assert!(matches!(error, LinkError::OtherVersion { theirs: 9, .. }));
        let mut told = String::new();
        BufReader::new(trainer).read_line(&mut told).unwrap();
        assert!(
            told.contains("refused") && told.contains("version 9"),
            "{told}"
        );
    }
}
