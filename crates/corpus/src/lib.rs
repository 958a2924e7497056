//! Text to windows on disk, and memory-mapped reading of them.
