//! The widest vectors that a processor has.
//!
//! The crate is compiled for the oldest processors of its architecture; here its loops are compiled once
//! more for newer ones, and the processor at hand chooses. The numbers are the same: wider registers hold
//! more lanes of the same operations, and no two of them are contracted into one.

/// Does `work` with the widest vectors there are. It must be marked `inline(always)`, and so must the loops
/// that it calls: what is not inlined stays as it was compiled. `FnMut`, because a closure that is called
/// by value goes through a shim that is not inlined either.
#[inline(always)]
pub(crate) fn wide<R>(work: impl FnMut() -> R) -> R {
    struct Work<F>(F);
    impl<R, F: FnMut() -> R> pulp::WithSimd for Work<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Work(work))
}
