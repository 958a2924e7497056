//! A seeded world in which both halves of the protocol run against each other, with faults.
