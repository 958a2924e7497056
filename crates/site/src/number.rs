//! Numbers in what a site's own commands print, such as what is left of an allocation.

use crate::runner::{Printed, RunError};

/// The first number of a text, such as what a budget command prints; with a sign, and commas or apostrophes
/// between thousands. One that could be read in two ways is none.
#[must_use]
pub fn first_number(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_digit())?;
    let (before, number) = text.split_at(at);
    let mut before = before.chars().rev().peekable();
    let point = before.next_if_eq(&'.').is_some();
    let sign = before.next_if(|c| "+-\u{2212}".contains(*c));
    // In standard-7 it joins words.
    let joins = before.next().is_some_and(char::is_alphanumeric);
    let end = number.find(|c: char| !c.is_ascii_digit() && !".,'".contains(c));
    let (number, rest) = number.split_at(end.unwrap_or(number.len()));
    let number = number.trim_end_matches(['.', ',', '\'']);
    let mut rest = rest.chars();
    let exponent = rest.next().is_some_and(|c| c == 'e' || c == 'E')
        && rest
            .next()
            .is_some_and(|c| "+-".contains(c) || c.is_ascii_digit());
    if exponent {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (whole, fraction) = match point {
        true => ("0", number),
        false => (whole, fraction),
    };
    let mut groups = whole.split([',', '\'']);
    let first = groups.next().unwrap_or_default();
    let groups: Vec<&str> = groups.collect();
    let grouped = groups.is_empty() || (1..=3).contains(&first.len());
    if !grouped || groups.iter().any(|group| group.len() != 3) {
        return None;
    }
    let text = format!("{first}{}.{fraction}0", groups.concat());
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite())?;
    let negative = sign.is_some_and(|sign| sign != '+') && !joins;
    Some(if negative { -number } else { number })
}

/// What a budget command says is left, in GPU-hours: nothing if it is overdrawn.
///
/// # Errors
/// If it failed or printed no number, in words.
pub fn hours_left(printed: Result<Printed, RunError>) -> Result<f64, String> {
    let printed = printed.map_err(|error| error.to_string())?;
    if !printed.succeeded() {
        let code = printed
            .code
            .map_or_else(String::new, |code| code.to_string());
        return Err(format!("exit code {code}: {}", printed.both()));
    }
    let text = printed.text();
    let hours = first_number(&text).ok_or_else(|| format!("no plain number: {text}"))?;
    Ok(hours.max(0.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use hansa_slurm::parse::Zone;

    use super::*;
    use crate::runner::{Invocation, Runner, Via};
    use crate::shell::quote;

    #[test]
    fn a_budget_commands_first_number_counts() {
        for (text, number) in [
            ("left: 1234.5 GPU-hours of 2000", Some(1234.5)),
            ("12.", Some(12.0)),
            ("none", None),
            ("-1200", Some(-1200.0)),
            ("left: \u{2212}3.5", Some(-3.5)),
            ("+7", Some(7.0)),
            ("small-g7 is not -7", Some(7.0)),
            ("10,000", Some(10_000.0)),
            ("1,234,567.25 h", Some(1_234_567.25)),
            ("1'000", Some(1000.0)),
            (".5", Some(0.5)),
            // A decimal comma, or a slip.
            ("12,5", None),
            ("1,0000", None),
            ("1234,567", None),
            ("1.234.567", None),
            ("1e6", None),
        ] {
            assert_eq!(first_number(text), number, "{text}");
        }
    }

    #[tokio::test]
    async fn a_budget_is_what_a_command_that_succeeded_printed() {
        let runner = Runner::new(Via::Here, Zone::UTC, None);
        let said = async |line: &str| {
            let line = ["-c", line];
            let invocation = Invocation::new("sh", line, Duration::from_secs(60));
            hours_left(runner.run(&invocation).await)
        };
        assert_eq!(said("echo 10,000").await, Ok(10_000.0));
        assert_eq!(said("echo -1200").await, Ok(0.0));
        let missing = format!("{} --left", quote("/nowhere/my-allocation2"));
        let error = said(&missing).await.unwrap_err();
        assert!(error.contains("exit code 127"), "{error}");
        assert!(said("echo 12; exit 1").await.is_err());
        assert!(
            said("echo none")
                .await
                .unwrap_err()
                .contains("no plain number")
        );
    }
}
