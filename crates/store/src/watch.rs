//! Who looks at an upload's bytes while they are in memory anyway.
//!
//! What a server wants to know of a large file before it uses it, it can learn while the file arrives,
//! instead of reading all of it again. The store does not know what that is: it shows each chunk's bytes,
//! once and in order, to whoever watches, and says when a chunk has proved to be the right one. Never here:
//! what is looked for.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Watches the chunks of an upload.
pub trait Watch: Any + Debug + Send + Sync {
    /// Begins with chunk `index`, whose first byte lies at `offset` of the file. The same chunk may be
    /// begun more than once, until one of the attempts is right.
    fn chunk(self: Arc<Self>, index: u32, offset: u64) -> Box<dyn WatchChunk>;
}

/// Watches the bytes of one chunk; dropped before [`WatchChunk::finish`], it must leave no trace.
pub trait WatchChunk: Debug + Send {
    /// The next bytes of the chunk.
    fn push(&mut self, bytes: &[u8]);

    /// All bytes of the chunk were pushed, and they are those that the manifest names.
    fn finish(self: Box<Self>);
}
