//! The embedded trainer: a Qwen3 decoder with explicit backward, AdamW and its schedule.
//!
//! It exists so that one binary trains a model anywhere, without Python or an accelerator. Read
//! `model.rs` first (the whole network, forward and backward), then the operations in `ops/`.
//! It never opens a socket, reads a clock or spawns a thread outside its own rayon pool.
//!
//! # Shapes in names
//!
//! Every tensor is a flat row-major `f32` slice; the suffix of its name is its shape:
//!
//! | letter | size |
//! |---|---|
//! | `b` | windows in a micro-batch |
//! | `s` | tokens in a window (`seq_len`) |
//! | `n` | tokens in a micro-batch, `b·s` |
//! | `d` | `hidden_size` |
//! | `f` | `intermediate_size` |
//! | `v` | `vocab_size` |
//! | `h` | query heads, `num_attention_heads` |
//! | `g` | key/value heads (groups of query heads), `num_key_value_heads` |
//! | `e` | `head_dim` |
//! | `q`, `k` | widths of all query heads `h·e` and all key/value heads `g·e` |
//! | `i`, `o` | input and output width of a linear layer |
//!
//! So `q_bhse` holds queries by window, head, position and component, and `dx_nd` is the gradient of
//! the loss with respect to `x_nd`.

mod adamw;
mod arena;
mod checkpoint;
mod config;
mod error;
mod layout;
mod model;
mod random;
mod schedule;
mod trainer;
mod weights;

#[doc(hidden)]
pub mod ops;

pub use adamw::AdamWConfig;
pub use checkpoint::{load_checkpoint, save_checkpoint};
pub use config::ModelConfig;
pub use error::TrainError;
pub use layout::{TensorSpec, layout};
pub use schedule::Schedule;
pub use trainer::{EvalStats, Moments, StepStats, Trainer};
pub use weights::Weights;
