//! What a demo ends with: who trained what, how the rounds went, what was learnt, and the proof.

use super::prepare::Places;
use super::story::{LATE, Story};
use crate::ui::out;
use crate::{ledger, ui};
use anyhow::ensure;
use comfy_table::{CellAlignment, Table, presets};
use hansa_coordinator::{Replayed, replay_journal, verify_journal};
use hansa_corpus::{Corpus, unigram_perplexity};
use hansa_wire::status::{EvaluationStatus, ReplicaStatus, RoundStatus, TimesStatus};
use std::time::Duration;

/// Prints everything; fails if the journal does not prove what it claims.
pub fn print(places: &Places, story: &Story, took: Duration) -> anyhow::Result<()> {
    let replayed = replay_journal(&places.data())?;
    let report = replayed.history();
    out!(
        "\nWho trained what, in windows of {} tokens:\n",
        replayed.spec.digest.seq_len
    );
    out!("{}", ledger_table(&report.replicas));
    out!("\nThe rounds, with the mean time of their members:\n");
    out!("{}\n", rounds_table(&report.rounds));
    lost_lease_lines(&replayed, story)
        .iter()
        .for_each(|line| out!("{line}"));
    let unigram = unigram_perplexity(&Corpus::open(&places.corpus())?)?;
    out!("{}", perplexity_line(&report.evaluations, unigram));
    let proof = verify_journal(&places.data())?;
    out!("ledger verify: {}", ledger::verdict(&proof));
    out!(
        "journal: {}",
        places.data().join("journal.sqlite").display()
    );
    out!("model:   {}", places.data().join("export").display());
    out!("took {} min {} s", took.as_secs() / 60, took.as_secs() % 60);
    ensure!(proof.is_good(), "the journal does not prove what it claims");
    Ok(())
}

/// Who has what the killed site had leased.
fn lost_lease_lines(replayed: &Replayed, story: &Story) -> Vec<String> {
    let mut lines = Vec::new();
    for &(start, end) in story.lost_lease() {
        for (span, ownership) in replayed.state.ledger.intervals() {
            let (from, to) = (span.start.0.max(start), span.end.0.min(end));
            if from < to {
                let owner = replayed.owner(ownership);
                lines.push(format!("positions {from}..{to}, lost by {LATE}: {owner}"));
            }
        }
    }
    lines
}

/// The ledger by site.
pub fn ledger_table(replicas: &[ReplicaStatus]) -> Table {
    let total: u64 = replicas.iter().map(|replica| replica.tally.committed).sum();
    let header = [
        "replica",
        "granted",
        "committed",
        "reclaimed",
        "failed",
        "inherited",
        "share",
        "processes",
    ];
    let mut table = plain_table(&header);
    for replica in replicas {
        let tally = &replica.tally;
        let share = 100.0 * tally.committed as f64 / total.max(1) as f64;
        table.add_row([
            format!("{}/{}", replica.site, replica.replica),
            ui::count(tally.granted),
            ui::count(tally.committed),
            ui::count(tally.reclaimed),
            ui::count(tally.failed),
            ui::count(tally.inherited),
            format!("{share:.1} %"),
            tally.incarnations.to_string(),
        ]);
    }
    table
}

/// The rounds, with the time split of their members (mean over those who reported it).
pub fn rounds_table(rounds: &[RoundStatus]) -> Table {
    let header = [
        "round",
        "members",
        "windows",
        "train",
        "wait",
        "upload",
        "merge",
        "download",
        "checkpoint",
        "evaluate",
        "exchange",
        "closed because",
    ];
    let mut table = plain_table(&header);
    for round in rounds {
        let times = mean_times(round);
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
        let split =
            |of: fn(&TimesStatus) -> u64| times.as_ref().map_or("–".into(), |t| seconds(of(t)));
        table.add_row([
            format!("{} → {}", round.base, round.base + 1),
            round.members.len().to_string(),
            ui::count(round.windows),
            split(|t| t.train_ms),
            split(|t| t.wait_ms),
            split(|t| t.upload_ms),
            seconds(round.merge_ms),
            split(|t| t.download_ms),
            split(|t| t.checkpoint_ms),
            split(|t| t.evaluate_ms),
            times.as_ref().map_or("–".into(), |t| {
                format!("{:.0} %", 100.0 * exchange_share(t, round.merge_ms))
            }),
            round.reason.clone(),
        ]);
    }
    table
}

/// The part of a round that went into moving and merging weights. A member waits while the others train
/// and while the coordinator merges: only the merge is exchange.
fn exchange_share(times: &TimesStatus, merge_ms: u64) -> f64 {
    let all = times.download_ms
        + times.evaluate_ms
        + times.train_ms
        + times.checkpoint_ms
        + times.upload_ms
        + times.wait_ms;
    let exchange = times.upload_ms + times.download_ms + merge_ms.min(times.wait_ms);
    exchange as f64 / all.max(1) as f64
}

fn mean_times(round: &RoundStatus) -> Option<TimesStatus> {
    let all: Vec<&TimesStatus> = round
        .members
        .iter()
        .filter_map(|m| m.times.as_ref())
        .collect();
    let mean = |of: fn(&TimesStatus) -> u64| {
        all.iter().map(|times| of(times)).sum::<u64>() / all.len().max(1) as u64
    };
    (!all.is_empty()).then(|| TimesStatus {
        download_ms: mean(|t| t.download_ms),
        evaluate_ms: mean(|t| t.evaluate_ms),
        train_ms: mean(|t| t.train_ms),
        checkpoint_ms: mean(|t| t.checkpoint_ms),
        upload_ms: mean(|t| t.upload_ms),
        wait_ms: mean(|t| t.wait_ms),
    })
}

/// Held-out perplexity, first and last, beside the unigram's.
pub fn perplexity_line(evaluations: &[EvaluationStatus], unigram: f64) -> String {
    let (Some(first), Some(last)) = (evaluations.first(), evaluations.last()) else {
        return "no generation was evaluated".to_owned();
    };
    format!(
        "held-out perplexity: {:.1} at generation {}, {:.1} at generation {} (unigram: {unigram:.1})",
        first.perplexity, first.generation, last.perplexity, last.generation,
    )
}

/// A table without frames, numbers to the right.
pub fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_is_what_moves_and_merges_not_the_wait_for_others() {
        let times = TimesStatus {
            download_ms: 500,
            evaluate_ms: 0,
            train_ms: 6_000,
            checkpoint_ms: 500,
            upload_ms: 1_000,
            wait_ms: 2_000,
        };
        assert_eq!(exchange_share(&times, 500), 0.2);
        // Times are means over members, and the one that came last may not have waited at all.
        assert_eq!(
            exchange_share(
                &TimesStatus {
                    wait_ms: 0,
                    ..times
                },
                500
            ),
            0.1875
        );
        assert_eq!(exchange_share(&TimesStatus::default(), 0), 0.0);
    }
}
