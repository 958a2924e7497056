//! SQLite journal, snapshots, and blobs by hash.
