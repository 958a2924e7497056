//! Pure protocol: block space, lease ledger, membership, rounds, replica machine, invariants.
