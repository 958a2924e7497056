//! What each codec promises of the numbers.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn key() -> Dither {
    Dither::new(*b"a tester")
}

fn encoded(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; codec.bytes(values.len() as u64) as usize];
    codec.encode(key(), 0, values, &mut bytes).unwrap();
    bytes
}

fn through(codec: Codec, values: &[f32]) -> Vec<f32> {
    let mut back = vec![f32::NAN; values.len()];
    codec.decode(&encoded(codec, values), &mut back);
    back
}

/// Values of all sizes, zeros and denormal numbers among them.
fn anything() -> impl Strategy<Value = f32> {
    let magnitude = (-45.0..30.0_f32).prop_map(|e| 10f32.powf(e));
    (magnitude, any::<bool>(), 0..10).prop_map(|(m, negative, zero)| {
        let value = if zero == 0 { 0.0 } else { m.min(VALUE_MAX) };
        if negative { -value } else { value }
    })
}

/// What a block may be off by, beside rounding in the last place.
fn int8_bound(block: &[f32]) -> f64 {
    let largest = block.iter().fold(0f32, |most, v| most.max(v.abs()));
    f64::from(largest) / 127.0 * 1.0001 + 127.0 * f64::from(f32::MIN_POSITIVE)
}

proptest! {
    #[test]
    fn errors_stay_within_the_bounds(values in prop::collection::vec(anything(), 0..400)) {
        prop_assert_eq!(through(Codec::F32, &values), values.clone());
        for (value, back) in values.iter().zip(through(Codec::Bf16, &values)) {
            let error = (f64::from(back) - f64::from(*value)).abs();
            // Below the normal range the steps stay the same.
            let bound = f64::from(value.abs()) / 128.0 + f64::from(f32::MIN_POSITIVE) / 128.0;
            prop_assert!(error <= bound, "{value:e} came back as {back:e}");
        }
        let back = through(Codec::Int8, &values);
        for (block, back) in values.chunks(BLOCK_ELEMENTS).zip(back.chunks(BLOCK_ELEMENTS)) {
            for (value, back) in block.iter().zip(back) {
                let error = (f64::from(*back) - f64::from(*value)).abs();
                prop_assert!(error <= int8_bound(block), "{value:e} came back as {back:e}");
            }
        }
    }

    #[test]
    fn any_cutting_gives_the_same_bytes(
        values in prop::collection::vec(-1f32..1.0, 1..1000),
        cuts in prop::collection::vec(1usize..4, 0..6),
    ) {
        for codec in Codec::ALL {
            let whole = encoded(codec, &values);
            let (mut parts, mut first) = (Vec::new(), 0);
            for cut in cuts.iter().copied().chain([values.len()]) {
                let end = (first + cut * BLOCK_ELEMENTS).min(values.len());
                let range = codec.byte_range(first as u64..end as u64);
                prop_assert_eq!(range.start, parts.len() as u64);
                let mut bytes = vec![0; (range.end - range.start) as usize];
                codec.encode(key(), first as u64, &values[first..end], &mut bytes).unwrap();
                parts.extend(bytes);
                first = end;
                if first == values.len() {
                    break;
                }
            }
            prop_assert_eq!(parts, whole, "{}", codec);
        }
    }

    #[test]
    fn the_first_value_that_no_contribution_may_hold_is_named(
        mut values in prop::collection::vec(-1f32..1.0, 1..3000),
        at in any::<prop::sample::Index>(),
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.1e30, 3e38]),
    ) {
        let index = at.index(values.len());
        values[index] = bad;
        for codec in Codec::ALL {
            let mut bytes = vec![0; codec.bytes(values.len() as u64) as usize];
            let error = codec.encode(key(), 0, &values, &mut bytes).unwrap_err();
            prop_assert_eq!((error.index, error.value.to_bits()), (index, bad.to_bits()));
        }
    }

    #[test]
    fn decoding_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
        // As many whole elements as fit.
        for codec in Codec::ALL {
            let most = (0..=bytes.len() as u64).rev();
            let mut fitting = most.filter(|elements| codec.bytes(*elements) <= bytes.len() as u64);
            let elements = fitting.next().unwrap();
            let mut values = vec![0.0; elements as usize];
            codec.decode(&bytes[..codec.bytes(elements) as usize], &mut values);
        }
    }
}

#[test]
fn the_largest_values_come_back_finite() {
    let values = [VALUE_MAX, -VALUE_MAX, 1.0, 0.0];
    for codec in Codec::ALL {
        assert!(
            through(codec, &values).iter().all(|v| v.is_finite()),
            "{codec}"
        );
    }
}

#[test]
fn what_is_on_the_grid_stays_as_it_is() {
    let grid: Vec<f32> = (-127..=127).map(|q| q as f32 * 0.25).collect();
    // Each block holds the largest magnitude, so each has the scale 1/4.
    let blocks = grid.iter().flat_map(|v| [*v, 31.75]).collect::<Vec<_>>();
    assert_eq!(through(Codec::Int8, &blocks), blocks);
    let short: Vec<f32> = (0..300).map(|i| i as f32 * 0.5).collect();
    let kept: Vec<f32> = short.iter().copied().filter(|v| *v < 128.0).collect();
    assert_eq!(through(Codec::Bf16, &kept), kept);
    for codec in Codec::ALL {
        assert_eq!(through(codec, &[0.0; 200]), [0.0; 200], "{codec}");
    }
}

#[test]
fn a_mean_over_many_elements_is_right_where_the_nearest_value_is_not() {
    // A third of a step above the grid: nearest would lose it always.
    let cases = [
        (Codec::Bf16, 1.0 + 1.0 / 384.0, 1.0 / 128.0),
        (Codec::Bf16, -1.0 - 1.0 / 384.0, 1.0 / 128.0),
        (Codec::Int8, 1.0 / 381.0, 1.0 / 127.0),
        (Codec::Int8, -1.0 / 381.0, 1.0 / 127.0),
    ];
    for (codec, value, step) in cases {
        let mut values = vec![value as f32; BLOCK_ELEMENTS * 500];
        // Gives every block of int8 the scale 1/127.
        values
            .iter_mut()
            .step_by(BLOCK_ELEMENTS)
            .for_each(|v| *v = 1.0);
        let back = through(codec, &values);
        let pairs = back.iter().zip(&values).enumerate();
        let errors = pairs.filter(|(index, _)| index % BLOCK_ELEMENTS != 0);
        let errors: Vec<f64> = errors
            .map(|(_, (b, v))| f64::from(*b) - f64::from(*v))
            .collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        // Five standard errors of draws that are at most a step apart.
        let bound = 5.0 * step / 2.0 / (errors.len() as f64).sqrt();
        assert!(
            mean.abs() < bound,
            "{codec} {value}: {mean:e} is beyond {bound:e}"
        );
        let worst = errors.iter().fold(0f64, |most, e| most.max(e.abs()));
        assert!(
            worst > step / 2.0,
            "{codec}: nothing was rounded the far way"
        );
    }
}

#[test]
fn the_bytes_are_those_that_the_format_says() {
    let bytes = encoded(Codec::Int8, &[127.0, -127.0, 0.0, 64.0]);
    assert_eq!(bytes, [0, 0, 0x80, 0x3f, 127, 129, 0, 64]);
    assert_eq!(encoded(Codec::Bf16, &[1.0, -2.0]), [0x80, 0x3f, 0, 0xc0]);
    assert_eq!(Codec::Int8.bytes(0), 0);
    assert_eq!(Codec::Int8.bytes(129), 132 + 5);
    assert_eq!(Codec::Int8.byte_range(128..256), 132..264);
}

#[test]
fn the_widest_vectors_give_the_bytes_that_the_narrowest_give() {
    let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 1e-3).collect();
    for codec in [Codec::Bf16, Codec::Int8] {
        let mut narrow = Vec::new();
        for (number, values) in (0..).zip(values.chunks(BLOCK_ELEMENTS)) {
            let mut bytes = vec![0; codec.bytes(values.len() as u64) as usize];
            match codec {
                Codec::Int8 => int8_block(&key().block(number), values, &mut bytes),
                _ => bf16_block(&key().block(number), values, &mut bytes),
            }
            narrow.extend(bytes);
        }
        assert_eq!(encoded(codec, &values), narrow, "{codec}");
    }
}

#[test]
fn names_are_read_back() {
    for codec in Codec::ALL {
        assert_eq!(codec.name().parse(), Ok(codec));
    }
    let error = "int4".parse::<Codec>().unwrap_err().to_string();
    assert!(error.contains("int8"), "{error}");
}
