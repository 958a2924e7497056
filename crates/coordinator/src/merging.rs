//! A closed round's merge, and what may be deleted after it.

use std::collections::{BTreeMap, BTreeSet};

use hansa_base::{Generation, Hash};
use hansa_protocol::{CloseRecord, State};
use hansa_store::StoreError;
use hansa_wire::journal::GenerationFiles;

use crate::error::Error;
use crate::merge::{MergeFailure, MergeInputs, MergeOptions, merge_blobs};
use crate::setup::metadata;
use crate::shell::Shell;

/// A merge that is durable.
#[derive(Debug)]
pub(crate) struct MergeDone {
    pub files: GenerationFiles,
    pub merge_ms: u64,
}

/// Makes the generation after `record.base`. Blocks for as long as disks take.
pub(crate) fn merge(
    shell: &Shell,
    record: &CloseRecord,
    base: GenerationFiles,
) -> Result<MergeDone, Error> {
    let round = record.base;
    try_merge(shell, record, base).map_err(|source| Error::Merge { round, source })
}

fn try_merge(
    shell: &Shell,
    record: &CloseRecord,
    base: GenerationFiles,
) -> Result<MergeDone, MergeFailure> {
    let store = &shell.store;
    let theta = store.open_blob(base.theta)?;
    let momentum = base
        .momentum
        .map(|hash| store.open_blob(hash))
        .transpose()?;
    let contributions = record
        .contributions
        .iter()
        .map(|closed| Ok((store.open_blob(closed.payload)?, closed.tokens)))
        .collect::<Result<Vec<_>, StoreError>>()?;
    let generation = record.base.next();
    let inputs = MergeInputs {
        theta: &theta,
        momentum: momentum.as_ref(),
        contributions: &contributions,
        step: outer_step(record.step),
        codec: shell.recipe.exchange.contribution,
        model_dtype: shell.recipe.exchange.model,
        metadata: metadata(shell.spec.run, generation),
    };
    let options = MergeOptions {
        chunk_bytes: shell.recipe.exchange.chunk_bytes(),
        ..shell.options.merge
    };
    let merged = merge_blobs(store, &inputs, &options)?;
    Ok(MergeDone {
        files: GenerationFiles {
            generation,
            theta: merged.theta.hash(),
            momentum: Some(merged.momentum.hash()),
            model: merged.model.hash(),
        },
        merge_ms: u64::try_from(merged.elapsed.as_millis()).unwrap_or(u64::MAX),
    })
}

fn outer_step(step: hansa_protocol::OuterStep) -> hansa_outer::OuterStep {
    match step {
        hansa_protocol::OuterStep::Nesterov { lr, momentum } => {
            hansa_outer::OuterStep::Nesterov { lr, momentum }
        }
        hansa_protocol::OuterStep::Adopt { momentum } => hansa_outer::OuterStep::Adopt { momentum },
    }
}

/// So many generations keep master weights and momentum between merges: the current one, and in case a
/// file of it is lost, the one before.
pub(crate) const STATES_AT_REST: usize = 2;
/// And while a merge writes: only the base. Its disk, and memory that caches it, need no third set of files.
pub(crate) const STATES_WHILE_MERGING: usize = 1;

/// Deletes the blobs that nothing needs: neither master weights and momentum of one of the newest `states`
/// generations, nor a model that is served, nor an announced or staged contribution, nor `spared`. Hashes
/// stay in the journal. Deletes nothing if all is to be kept. Must not run beside a merge, whose results no
/// record names yet.
pub(crate) fn prune(
    shell: &Shell,
    state: &State,
    files: &BTreeMap<Generation, GenerationFiles>,
    spared: impl IntoIterator<Item = Hash>,
    states: usize,
) -> Result<(), StoreError> {
    if shell.options.keep_all {
        return Ok(());
    }
    let models = files.values().rev().take(shell.options.models_kept());
    let mut needed: BTreeSet<Hash> = models.map(|files| files.model).collect();
    let newest = files.values().rev().take(states);
    needed.extend(
        newest
            .flat_map(|files| [Some(files.theta), files.momentum])
            .flatten(),
    );
    needed.extend(state.contributions.values().map(|c| c.parts.payload));
    needed.extend(spared);
    for hash in shell.store.list()? {
        if !needed.contains(&hash) {
            shell.store.remove(hash)?;
            tracing::debug!(%hash, "pruned a blob");
        }
    }
    Ok(())
}

/// Removes uploads of contributions that are not announced any more.
pub(crate) fn drop_stale_uploads(shell: &Shell, state: &State) -> Result<(), StoreError> {
    let announced: BTreeSet<String> = state
        .contributions
        .values()
        .map(|contribution| contribution.id.to_string())
        .collect();
    for id in shell.store.list_uploads()? {
        if !announced.contains(&id.to_string()) {
            shell.store.abort_upload(&id)?;
        }
    }
    Ok(())
}
