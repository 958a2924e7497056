//! Trying again, boundedly and not in step with everybody else.

use hansa_base::RetryPolicy;

use crate::error::TransferError;

/// Calls until it succeeds, fails for good, or the policy gives up; then the last error is returned.
/// `seed` spreads the delays: give every caller another.
pub async fn with_retries<T, F>(
    policy: &RetryPolicy,
    seed: u64,
    mut call: impl FnMut() -> F,
) -> Result<T, TransferError>
where
    F: Future<Output = Result<T, TransferError>>,
{
    let mut patience = Patience::new(policy, seed);
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) => patience.wait(error).await?,
        }
    }
}

/// The same for a transfer in parts: whatever moves something earns all its retries anew, so that a path
/// that breaks again and again, but carries something each time, is passed.
pub(crate) struct Patience<'a> {
    policy: &'a RetryPolicy,
    seed: u64,
    attempt: u32,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(policy: &'a RetryPolicy, seed: u64) -> Self {
        Self {
            policy,
            seed,
            attempt: 0,
        }
    }

    pub(crate) fn moved(&mut self) {
        self.attempt = 0;
    }

    /// Waits before the next attempt; gives the error back if there is to be none.
    pub(crate) async fn wait(&mut self, error: TransferError) -> Result<(), TransferError> {
        let delay = self
            .policy
            .delay(self.attempt, mix(self.seed, self.attempt));
        let Some(delay) = delay.filter(|_| error.is_transient()) else {
            return Err(error);
        };
        let attempt = self.attempt;
        tracing::debug!(%error, attempt, delay_ms = delay.as_millis() as u64, "trying again");
        tokio::time::sleep(delay).await;
        self.attempt = self.attempt.saturating_add(1);
        Ok(())
    }
}

/// SplitMix64's output function over a seed and a counter.
fn mix(seed: u64, attempt: u32) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(attempt) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    fn policy(retries_max: u32) -> RetryPolicy {
        let (first, longest) = (Duration::from_micros(1), Duration::from_micros(10));
        RetryPolicy {
            first,
            longest,
            retries_max: Some(retries_max),
        }
    }

    fn refused(status: u16) -> TransferError {
        TransferError::Refused {
            status,
            code: "x".into(),
            message: "y".into(),
            more: serde_json::Map::new(),
        }
    }

    #[tokio::test]
    async fn transient_errors_are_retried_up_to_the_bound_and_others_not_at_all() {
        for (status, succeeds_at, calls_expected, ok) in
            [(503, 3, 3, true), (503, 9, 5, false), (409, 2, 1, false)]
        {
            let calls = Cell::new(0);
            let call = || async {
                calls.set(calls.get() + 1);
                if calls.get() >= succeeds_at {
                    Ok(())
                } else {
                    Err(refused(status))
                }
            };
            assert_eq!(with_retries(&policy(4), 1, call).await.is_ok(), ok);
            assert_eq!(calls.get(), calls_expected);
        }
    }
}
