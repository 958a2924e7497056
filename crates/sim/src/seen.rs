//! What happened how often: shows that the seeds reach what they are to reach.

macro_rules! seen {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What happened how often.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Seen {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Seen {
            /// Adds what another run has seen.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// Names of what was never seen.
            #[must_use]
            pub fn missing(&self) -> Vec<&'static str> {
                let counts = [$((stringify!($name), self.$name)),+];
                let never = counts.into_iter().filter(|(_, count)| *count == 0);
                never.map(|(name, _)| name).collect()
            }
        }
    };
}

seen! {
    /// Generations published.
    generations,
    /// Epochs that turned.
    epochs,
    /// The coordinator's process died, whenever and of whatever.
    coordinator_crashes,
    /// It died with decisions taken and nothing of them in the journal.
    crashes_before_append,
    /// It died after the journal had them, before anybody was told.
    crashes_before_reply,
    /// It died of a full disk.
    journal_full,
    /// It died in the midst of an append: what the journal ends with is no whole transaction.
    torn_tails,
    /// It was deaf for a while.
    stalls,
    /// A replica's process died.
    crashes,
    /// A replica's network was cut.
    partitions,
    /// A replica's disk was full.
    disks_full,
    /// A trainer found a NaN.
    not_finite,
    /// A step took so long that the replica seemed dead.
    hangs,
    /// A replica's clock jumped ahead.
    clock_jumps,
    /// A signal to stop.
    stops,
    /// A second one.
    second_stops,
    /// An idle replica took the tail of another's lease.
    steals,
    /// A lost lease was given back to its holder.
    revivals,
    /// A loss that was none, without a lease to give back.
    absolved,
    /// A member without a lease was no longer waited for.
    excused_without_progress,
    /// An upload took more than twice its time.
    uploads_too_slow,
    /// A mark was raised for a replica that had one.
    marks_raised,
    /// A replica came to its mark before that was raised.
    waits_at_a_mark,
    /// A stop that took longer than it may: the process ended without a goodbye.
    late_stops,
    /// A process was started while its predecessor lived.
    takeovers,
    /// And a second one before the first was registered.
    takeover_races,
    /// A process found that a newer one had its name.
    fenced,
    /// Windows that a successor took over.
    inherited_windows,
    /// Windows taken back from who was lost.
    reclaimed_windows,
    /// Windows given back.
    released_windows,
    /// Contributions refused after they were announced.
    refused,
    /// Trained windows of no use.
    voids,
    /// Nobody had time for one more step.
    too_late_to_join,
    /// Plans cut short.
    short_plans,
    /// Windows taken out.
    quarantined,
    /// Windows let in again.
    let_out,
    /// Windows lost with who trained them.
    failed_windows,
    /// Checkpoints taken up by a successor.
    restores,
    /// Evaluations done.
    evaluations,
    /// Evaluations taken from who was asked.
    evaluations_lost,
    /// An operator paused the run.
    pauses,
    /// And let it go on.
    resumes,
    /// Contributions whose norm was far from the others'.
    norm_outliers,
    /// Contributions refused for their norm.
    norm_refusals,
    /// Contributions trained again to the same bytes, and refused again.
    refused_again,
    /// Pauses because norms were refused.
    norm_pauses,
    /// Pauses because whatever was contributed was refused.
    refusal_pauses,
    /// An operator drained a site.
    drains,
    /// A replica left because of that, with everything contributed.
    drained_exits,
    /// An operator evicted a replica.
    evictions,
    /// A process ended because of that.
    evicted_exits,
    /// An operator ended the run early.
    stopped_runs,
    /// Messages lost.
    lost_messages,
    /// Messages delivered twice.
    doubled_messages,
    /// Messages that took seconds, and were overtaken by later ones.
    slow_messages,
}
