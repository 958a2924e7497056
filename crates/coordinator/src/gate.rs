//! The gate: what a contribution must be before it is staged.
//!
//! Reads the file once, in pieces, whatever its size. Positions, tokens and base were checked when it
//! was announced; here it is about bytes. Never here: what becomes of a contribution that does not pass.

use hansa_outer::{Dtype, Layout, Scan};
use hansa_protocol::{Norm, Problem};
use hansa_store::{Blob, StoreError};

use crate::merge::{MergeFailure, read_header};

/// Small: after a phase that all end together, many contributions are checked at the same time.
const PIECE_ELEMENTS: u64 = 1 << 14;
/// The largest magnitude of a value. No weight that can still train is anywhere near; sums of such
/// values, and momentum over any number of rounds, stay finite in f32 (3.4e38), so that a merge
/// cannot fail on what has passed here.
const VALUE_MAX: f32 = 1e30;

/// What there is to know of a contribution's file: its Euclidean norm, or what is wrong with it.
///
/// # Errors
/// If the disk fails: that is not the contribution's fault.
pub(crate) fn look_at(
    blob: &Blob,
    layout: &Layout,
    dtype: Dtype,
) -> Result<Result<Norm, Problem>, StoreError> {
    let header = match read_header(blob, "the contribution") {
        Ok(header) => header,
        Err(MergeFailure::Store(error)) => return Err(error),
        Err(error) => return Ok(Err(Problem::Form(error.to_string()))),
    };
    if let Err(error) = header.check(layout, dtype) {
        return Ok(Err(Problem::Form(error.to_string())));
    }
    let mut scan = Scan::new();
    let mut bytes = vec![0; PIECE_ELEMENTS as usize * dtype.bytes_per_element()];
    let mut values = vec![0f32; PIECE_ELEMENTS as usize];
    let elements = layout.elements();
    let mut squares = 0.0;
    for start in (0..elements).step_by(PIECE_ELEMENTS as usize) {
        let end = elements.min(start + PIECE_ELEMENTS);
        let count = (end - start) as usize;
        let bytes = &mut bytes[..count * dtype.bytes_per_element()];
        blob.read_exact_at(bytes, header.byte_range(start..end).start)?;
        dtype.decode(bytes, &mut values[..count]);
        scan.push(&values[..count]);
        let huge = values[..count]
            .iter()
            .position(|value| value.abs() > VALUE_MAX);
        let named = |index: u64| {
            let tensor = layout.tensor_at(index);
            tensor.map_or("", |(tensor, _)| tensor.name.as_str())
        };
        if let Some(index) = scan.first_non_finite() {
            let what = format!("a value of tensor {:?} is not finite", named(index));
            return Ok(Err(Problem::NotFinite(what)));
        }
        if let Some(index) = huge {
            let tensor = named(start + index as u64);
            let what = format!("a value of tensor {tensor:?} is beyond {VALUE_MAX:e}");
            return Ok(Err(Problem::NotFinite(what)));
        }
        let piece = values[..count].iter().map(|value| f64::from(*value));
        squares += piece.map(|value| value * value).sum::<f64>();
    }
    // Squares of values up to 1e30, 2^40 of them, are far from overflow in f64.
    Ok(Ok(Norm::new(squares.sqrt()).unwrap_or_default()))
}

/// More bytes than any contribution of this layout can have.
pub(crate) fn bytes_max(layout: &Layout, dtype: Dtype) -> u64 {
    let data = layout
        .elements()
        .saturating_mul(dtype.bytes_per_element() as u64);
    data.saturating_add(hansa_outer::MAX_HEADER_BYTES as u64)
}
