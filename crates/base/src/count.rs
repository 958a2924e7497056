//! Numbers that must not be mistaken for one another.

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident) => {
        number!($(#[$doc])* $name(u64));

        impl std::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                Self(all.map(|x| x.0).sum())
            }
        }
    };
}

number!(
    /// The number of the global model; round `g` leads from generation `g` to `g + 1`.
    Generation(u64)
);
number!(
    /// One process lifetime of a replica: the fencing token on every call. Unique in a run.
    Incarnation(u64)
);
number!(
    /// The number of a lease, unique in a run.
    LeaseId(u64)
);
number!(
    /// The number of an announced contribution, unique in a run.
    ContributionNo(u64)
);
number!(
    /// An index into the permuted order of windows of one epoch.
    Position(u64)
);
number!(
    /// A replica name's index in the run's table of names, in order of first registration.
    ReplicaKey(u32)
);
number!(
    /// The number of a pass over the corpus, from 0.
    Epoch(u32)
);
number!(
    /// The number of one history of a run; a restored copy has a later one than what it is a copy of.
    /// Milliseconds since 1970, or more: that no two histories have the same.
    Timeline(u64)
);
count!(
    /// A number of windows (training samples).
    Windows
);
count!(
    /// A number of target tokens.
    Tokens
);
count!(
    /// A number of inner optimiser steps.
    Steps
);
count!(
    /// A number of bytes.
    Bytes
);
