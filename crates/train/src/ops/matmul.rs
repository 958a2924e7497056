//! Matrix products: the one place that calls the `gemm` crate, behind bounds-checked views.
//!
//! `gemm` cuts a product into tiles by the sizes alone and gives each tile to one thread, so the result
//! does not depend on the number of threads. It does depend on the kind of CPU, whose caches and
//! registers decide the tiles.

use super::Write;

/// A read-only matrix view: `rows × cols`, each with its own stride.
#[derive(Debug, Clone, Copy)]
pub struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix that fills `data`.
    pub fn new(data: &'a [f32], cols: usize) -> Mat<'a> {
        assert!(
            data.len().is_multiple_of(cols),
            "{} values in rows of {cols}",
            data.len()
        );
        Mat {
            data,
            rows: data.len() / cols,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Mat<'a> {
        Mat {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

/// Who computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread, for products inside a task.
    One,
    /// The current rayon pool.
    All,
}

/// `out (+)= scale · a·b`, with `out` row-major and dense.
pub fn matmul(out: &mut [f32], write: Write, scale: f32, a: Mat, b: Mat, threads: Threads) {
    let (rows, depth, cols) = (a.rows, a.cols, b.cols);
    assert_eq!(b.rows, depth, "inner sizes of a product differ");
    assert_eq!(out.len(), rows * cols, "output size of a product");
    let parallelism = match threads {
        Threads::One => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(rayon::current_num_threads()),
    };
    // SAFETY: each view covers its whole slice (`Mat::new` checked it, `t` only swaps), `out` holds
    // `rows · cols` values as asserted, and `&mut` keeps it apart from both inputs.
    unsafe {
        gemm::gemm(
            rows,
            cols,
            depth,
            out.as_mut_ptr(),
            1,
            cols as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}
