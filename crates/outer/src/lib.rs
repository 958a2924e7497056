//! Pure outer loop: tensor layout, pseudo-gradient codecs, streaming merge, outer optimiser.
//!
//! Between two generations of the global model stands one formula, applied element by element to
//! hundreds of millions of numbers that lie in several files. This crate holds the formula
//! ([`OuterStep`]), the map of the files ([`Layout`], [`Header`]), the form of the numbers in them
//! ([`Dtype`], [`Codec`]) and the loop that joins the three over one chunk ([`Merge`]).
//!
//! Everything here is a function of its arguments. The crate never opens a file, starts a thread,
//! reads a clock or draws a random number: the shell around it moves the bytes.
//!
//! **Same bits everywhere.** Merges are run again after a crash, perhaps on another machine, and
//! must give the same bytes. So every sum has a fixed order that no chunk size or thread count
//! changes, and products and sums are rounded separately: Rust never contracts `a * b + c` into a
//! fused multiply-add (only `f32::mul_add` does that, and it is not used here), whatever the target.

#[cfg(target_endian = "big")]
compile_error!(
    "Hansa maps little-endian safetensors data onto memory; big-endian hosts are not supported"
);

mod arriving;
mod codec;
mod dtype;
mod header;
mod layout;
mod merge;
mod payload;
mod scan;
mod step;
mod wide;

pub use arriving::{Arriving, Found, Part, combine};
pub use codec::{BLOCK_ELEMENTS, BadValue, Codec, Dither, UnknownCodec, VALUE_MAX, first_bad};
pub use dtype::{Dtype, UnknownDtype};
pub use header::{Header, HeaderError, MAX_HEADER_BYTES, Metadata, PREFIX_BYTES};
pub use layout::{Layout, LayoutError, TensorSpec};
pub use merge::{Chunk, Merge, MergeError, MergePlan, Weights};
pub use payload::{PayloadHeader, data_offset};
pub use scan::{Scan, first_non_finite, squared_norm};
pub use step::{OuterStep, pseudo_gradient};
