//! Copies and sums of the residual stream.

use rayon::prelude::*;

use super::TASK_VALUES;

/// `y = x`, in parallel.
pub fn copy(y: &mut [f32], x: &[f32]) {
    y.par_chunks_mut(TASK_VALUES)
        .zip(x.par_chunks(TASK_VALUES))
        .for_each(|(y, x)| y.copy_from_slice(x));
}
