//! Ids, counts, byte sizes, durations, retry policy: newtypes, nothing else.
