//! Deadlines by key, and in order of time: what is over is found without looking at the rest.

use hansa_base::MonoMs;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines<K> {
    by_key: BTreeMap<K, MonoMs>,
    by_time: BTreeSet<(MonoMs, K)>,
}

impl<K: Ord + Copy> Deadlines<K> {
    /// The same one for all of them.
    pub fn all(keys: impl Iterator<Item = K>, end: MonoMs) -> Self {
        let by_key: BTreeMap<K, MonoMs> = keys.map(|key| (key, end)).collect();
        let by_time = by_key.iter().map(|(key, end)| (*end, *key)).collect();
        Self { by_key, by_time }
    }

    pub fn get(&self, key: K) -> Option<MonoMs> {
        self.by_key.get(&key).copied()
    }

    pub fn set(&mut self, key: K, end: MonoMs) {
        if let Some(last) = self.by_key.insert(key, end) {
            self.by_time.remove(&(last, key));
        }
        self.by_time.insert((end, key));
    }

    pub fn remove(&mut self, key: K) {
        if let Some(last) = self.by_key.remove(&key) {
            self.by_time.remove(&(last, key));
        }
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &MonoMs)> {
        self.by_key.iter()
    }

    /// Those whose time has come, in the order in which it came.
    pub fn over(&self, now: MonoMs) -> impl Iterator<Item = K> {
        let over = self.by_time.iter().take_while(move |(end, _)| *end <= now);
        over.map(|(_, key)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_moved_is_over_once_and_at_its_new_time() {
        let mut deadlines = Deadlines::all([1, 2, 3].into_iter(), MonoMs(10));
        deadlines.set(2, MonoMs(20));
        deadlines.remove(3);
        deadlines.set(4, MonoMs(5));
        let over = |deadlines: &Deadlines<_>, now| deadlines.over(MonoMs(now)).collect::<Vec<_>>();
        assert_eq!(over(&deadlines, 4), []);
        assert_eq!(over(&deadlines, 10), [4, 1]);
        assert_eq!(over(&deadlines, 20), [4, 1, 2]);
        assert_eq!(deadlines.get(2), Some(MonoMs(20)));
        assert_eq!(deadlines.get(3), None);
    }
}
