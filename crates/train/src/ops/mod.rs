//! The operations of the network: one file each, forward beside backward.
//!
//! Each takes and returns flat slices whose names carry their shapes, runs on the current rayon pool,
//! and keeps no state. Work is cut into tasks of a fixed size, never by the number of threads, and sums
//! over tasks run in task order: the same input gives the same bits on any number of threads.

pub mod attention;
pub mod cross_entropy;
pub mod embedding;
pub mod heads;
pub mod linear;
pub mod matmul;
pub mod residual;
pub mod rmsnorm;
pub mod rope;
pub mod simd;
pub mod swiglu;

/// Values an element-wise task works on: 64 KiB, so that two or three operands stay in the L2 cache.
pub(crate) const TASK_VALUES: usize = 16 * 1024;

/// Rows of `width` values that make one task.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (TASK_VALUES / width).max(1)
}

/// Whether an operation overwrites its output or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Overwrite.
    Set,
    /// Add, as gradients of a value with several uses do.
    Add,
}
