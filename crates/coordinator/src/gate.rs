//! The gate: what a contribution must be before it is staged.
//!
//! Positions, tokens and base were checked when it was announced; here it is about bytes. Every chunk is
//! looked at on its own and the findings are put together in order, so that the answer is the same
//! whatever was looked at first. Never here: what becomes of a contribution that does not pass.

use hansa_outer::{Arriving, Codec, Layout, Part, VALUE_MAX, combine, data_offset};
use hansa_protocol::{Norm, Problem};
use hansa_store::{Blob, StoreError};

use crate::merge::{MergeFailure, read_payload_header};

/// Small: after a phase that all end together, many contributions are checked at the same time.
const PIECE_BYTES: u64 = 64 << 10;

/// What there is to know of a contribution's file: its Euclidean norm, or what is wrong with it. If it has
/// a norm, no value of it is beyond [`VALUE_MAX`], so that a merge cannot fail on what has passed here.
///
/// # Errors
/// If the disk fails: that is not the contribution's fault.
pub(crate) fn look_at(
    blob: &Blob,
    layout: &Layout,
    codec: Codec,
) -> Result<Result<Norm, Problem>, StoreError> {
    let header = match read_payload_header(blob, "the contribution") {
        Ok(header) => header,
        Err(MergeFailure::Store(error)) => return Err(error),
        Err(error) => return Ok(Err(Problem::Form(error.to_string()))),
    };
    if let Err(error) = header.check(layout, codec) {
        return Ok(Err(Problem::Form(error.to_string())));
    }
    let (elements, data_offset) = (layout.elements(), header.data_offset());
    let mut piece = vec![0; PIECE_BYTES as usize];
    let parts = (0..blob.manifest().chunk_count()).map(|index| {
        let range = blob.manifest().chunk_range(index);
        let (offset, length) = range.unwrap_or_default();
        let arriving = Arriving::new(codec, elements, data_offset, offset);
        look_at_chunk(blob, arriving, offset, length, &mut piece)
    });
    let parts = parts.collect::<Result<Vec<Part>, StoreError>>()?;
    let found = combine(codec, elements, data_offset, &parts);
    let Some((index, value)) = found.first_bad else {
        // Squares of values up to 1e30, 2^40 of them, are far from overflow in f64.
        return Ok(Ok(
            Norm::new(found.squared_norm.sqrt()).unwrap_or_default()
        ));
    };
    let tensor = layout.tensor_at(index);
    let tensor = tensor.map_or("", |(tensor, _)| tensor.name.as_str());
    Ok(Err(Problem::NotFinite(match value.is_finite() {
        false => format!("a value of tensor {tensor:?} is not finite"),
        true => format!("a value of tensor {tensor:?} is beyond {VALUE_MAX:e}"),
    })))
}

fn look_at_chunk(
    blob: &Blob,
    mut arriving: Arriving,
    offset: u64,
    length: u64,
    piece: &mut [u8],
) -> Result<Part, StoreError> {
    let mut done = 0;
    while done < length {
        let piece = &mut piece[..(length - done).min(PIECE_BYTES) as usize];
        blob.read_exact_at(piece, offset + done)?;
        arriving.push(piece);
        done += piece.len() as u64;
    }
    Ok(arriving.finish())
}

/// Whether a file of so many bytes can be a contribution to this layout.
pub(crate) fn size_fits(layout: &Layout, codec: Codec, total_bytes: u64) -> bool {
    let head_bytes = data_offset(total_bytes, codec, layout.elements());
    head_bytes.is_some_and(|bytes| bytes <= hansa_outer::MAX_HEADER_BYTES as u64)
}
