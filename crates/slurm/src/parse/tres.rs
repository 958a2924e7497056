//! Counts of resources, and Slurm's lists of them: `cpu=256,gres/gpu:mi250=16,mem=960G,node=2`.

use std::fmt;

use super::text::digits;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            pub(super) fn read(text: &str) -> Option<Self> {
                // From here upwards Slurm's numbers mean "none" or "no limit".
                digits(text).filter(|&count: &u32| count < 0xffff_fff0).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

counts! {
    /// A number of nodes.
    Nodes;
    /// A number of processors, as the site counts them (cores or threads).
    Cpus;
    /// A number of GPUs, as the site counts them.
    Gpus;
}

/// Trackable resources, in the order printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tres(Vec<(String, String)>);

impl Tres {
    pub(super) fn read(text: &str) -> Option<Self> {
        let pairs: Option<Vec<_>> = text
            .split(',')
            .map(|pair| {
                let (name, amount) = pair.split_once('=')?;
                let plain = |c: char| c.is_ascii_alphanumeric() || "/:_-.".contains(c);
                let named = !name.is_empty() && name.chars().all(plain);
                (named && !amount.is_empty()).then(|| (name.to_owned(), amount.to_owned()))
            })
            .collect();
        pairs.map(Self)
    }

    /// Names and amounts as printed.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, amount)| (name.as_str(), amount.as_str()))
    }

    /// The amount of one resource as printed.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs()
            .find_map(|(known, amount)| (known == name).then_some(amount))
    }

    /// Processors.
    #[must_use]
    pub fn cpus(&self) -> Option<Cpus> {
        self.get("cpu").and_then(Cpus::read)
    }

    /// Nodes.
    #[must_use]
    pub fn nodes(&self) -> Option<Nodes> {
        self.get("node").and_then(Nodes::read)
    }

    /// GPUs: `gres/gpu`, or else the sum over the types, if each of them is a number.
    #[must_use]
    pub fn gpus(&self) -> Option<Gpus> {
        if let Some(all) = self.get("gres/gpu") {
            return Gpus::read(all);
        }
        let of_types = self
            .pairs()
            .filter(|(name, _)| name.starts_with("gres/gpu:"));
        let mut sum: Option<u32> = None;
        for (_, amount) in of_types {
            sum = Some(sum.unwrap_or(0).checked_add(digits(amount)?)?);
        }
        sum.map(Gpus)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gpus_are_counted_once() {
        let gpus = |text| Tres::read(text).unwrap().gpus();
        assert_eq!(
            gpus("cpu=32,gres/gpu:a100=4,gres/gpu=4,node=1"),
            Some(Gpus(4))
        );
        assert_eq!(gpus("gres/gpu:a100=4,gres/gpu:h100=2"), Some(Gpus(6)));
        assert_eq!(gpus("cpu=32,mem=0,node=1"), None);
        assert_eq!(gpus("gres/gpu:a100=4,gres/gpu:h100=x"), None);
        assert_eq!(gpus("gres/gpu=99999999999"), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "cpu", "cpu=", "=4", "cpu=4,", "cpu=4 node=1,x y=2"] {
            assert_eq!(Tres::read(bad), None, "{bad}");
        }
    }
}
