//! The site side of training: leases, heartbeats, checkpoint order, contributions.
