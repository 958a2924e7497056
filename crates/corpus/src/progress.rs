//! How long work tells whoever watches how far it is. This crate never draws anything itself.

/// Receives the progress of a long operation; called from one thread at a time, a few times a
/// second at most per batch of work. Any `Fn(&Tick) + Sync` is one.
pub trait Progress: Sync {
    /// Takes note of how far the work is.
    fn tick(&self, tick: &Tick);
}

impl<F: Fn(&Tick) + Sync> Progress for F {
    fn tick(&self, tick: &Tick) {
        self(tick);
    }
}

/// Nobody is watching.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Progress for Quiet {
    fn tick(&self, _: &Tick) {}
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading text and counting its words, for a tokenizer. `done` and `total` are input bytes.
    CountWords,
    /// Learning merges. `done` and `total` are vocabulary entries.
    Merge,
    /// Reading text and writing windows. `done` and `total` are input bytes (compressed ones).
    Tokenise,
    /// Hashing the files of a corpus. `done` and `total` are bytes.
    Verify,
}

/// How far a stage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// What is being done.
    pub stage: Stage,
    /// Work done, in the stage's unit.
    pub done: u64,
    /// All of the stage's work, in its unit.
    pub total: u64,
    /// Documents read so far; 0 where the stage has none.
    pub documents: u64,
    /// Tokens written so far; 0 where the stage has none.
    pub tokens: u64,
}
