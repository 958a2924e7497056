//! The outer optimiser: from a weighted mean of pseudo-gradients to the next generation.
//!
//! Replicas only ever send how far they walked (`Δ = θ_g − θ_i`, a gradient's sign); this is the one
//! place that turns the mean walk `Δ̄` into a new model. It knows neither files nor who contributed.

/// The step as a round's close record resolves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterStep {
    /// `m ← μ·m + Δ̄`, then `θ ← θ − η·(Δ̄ + μ·m)`: `torch.optim.SGD(nesterov=True, dampening=0)`,
    /// with the learning rate outside the buffer. PyTorch's first step sets the buffer to the
    /// gradient; a buffer of zeros gives the same. `μ = 0, η = 1` is FedAvg, and a solo round taken
    /// in full is this with `η = 1`.
    Nesterov {
        /// Outer learning rate `η` > 0.
        lr: f64,
        /// Outer momentum `μ`, in `[0, 1)`.
        momentum: f64,
    },
    /// A solo round that adopts the replica's weights: `θ ← θ − Δ̄`, `m ← μ·m`.
    Adopt {
        /// Outer momentum `μ`, in `[0, 1)`, by which the buffer decays.
        momentum: f64,
    },
}

impl OuterStep {
    /// Whether the coefficients make sense: `η` finite and positive, `μ` in `[0, 1)`.
    pub fn is_valid(&self) -> bool {
        match *self {
            OuterStep::Nesterov { lr, momentum } => {
                lr.is_finite() && lr > 0.0 && (0.0..1.0).contains(&momentum)
            }
            OuterStep::Adopt { momentum } => (0.0..1.0).contains(&momentum),
        }
    }

    /// Takes the step on some elements, in place. Each product and each sum rounds once, to f32.
    ///
    /// # Panics
    /// If the three slices differ in length.
    #[inline(always)]
    pub fn apply(&self, mean_delta: &[f32], theta: &mut [f32], momentum: &mut [f32]) {
        assert_eq!(
            mean_delta.len(),
            theta.len(),
            "delta and theta differ in length"
        );
        assert_eq!(
            theta.len(),
            momentum.len(),
            "theta and momentum differ in length"
        );
        let elements = theta.iter_mut().zip(momentum).zip(mean_delta);
        match *self {
            OuterStep::Nesterov { lr, momentum: mu } => {
                let (lr, mu) = (lr as f32, mu as f32);
                for ((theta, m), delta) in elements {
                    *m = mu * *m + *delta;
                    *theta -= lr * (*delta + mu * *m);
                }
            }
            OuterStep::Adopt { momentum: mu } => {
                let mu = mu as f32;
                for ((theta, m), delta) in elements {
                    *m *= mu;
                    *theta -= *delta;
                }
            }
        }
    }
}

/// `Δ = θ_base − θ_local`, element by element. The base is what the replica downloaded (rounded to
/// bf16 if models travel so), not the coordinator's master copy.
///
/// # Panics
/// If the three slices differ in length.
pub fn pseudo_gradient(theta_base: &[f32], theta_local: &[f32], delta: &mut [f32]) {
    assert_eq!(
        theta_base.len(),
        theta_local.len(),
        "base and local differ in length"
    );
    assert_eq!(
        theta_base.len(),
        delta.len(),
        "weights and delta differ in length"
    );
    for ((delta, base), local) in delta.iter_mut().zip(theta_base).zip(theta_local) {
        *delta = base - local;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_solo_replica_is_adopted_and_momentum_decays() {
        let base = [1.0, -2.0, 0.5];
        let local = [1.5, -2.25, 0.5];
        let (mut theta, mut momentum, mut delta) = (base, [2.0, 4.0, 8.0], [0.0; 3]);
        pseudo_gradient(&base, &local, &mut delta);
        OuterStep::Adopt { momentum: 0.5 }.apply(&delta, &mut theta, &mut momentum);
        assert_eq!(theta, local);
        assert_eq!(momentum, [1.0, 2.0, 4.0]);
    }

    #[test]
    fn impossible_coefficients_are_seen() {
        let nesterov = |lr, momentum| OuterStep::Nesterov { lr, momentum }.is_valid();
        assert!(nesterov(0.7, 0.9) && nesterov(1.0, 0.0));
        assert!(!nesterov(0.0, 0.9) && !nesterov(f64::NAN, 0.9) && !nesterov(f64::INFINITY, 0.9));
        assert!(!nesterov(0.7, 1.0) && !nesterov(0.7, -0.1) && !nesterov(0.7, f64::NAN));
        assert!(!OuterStep::Adopt { momentum: 1.0 }.is_valid());
    }
}
