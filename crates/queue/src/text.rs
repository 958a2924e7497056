//! Ids, times and texts that come from batch systems.
//!
//! What Slurm prints is anything, and a report that were refused would block all after it. So texts are
//! cut to size and cleaned when they are made, and never refused.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The number of an intent: one wanted job. Unique in a run, restored copies included.
    IntentId
);
number!(
    /// The fencing number of a site's lease: who runs the site process.
    LeaseNo
);
number!(
    /// Seconds since 1970, as batch systems tell the time.
    UnixS
);
number!(
    /// Accelerator-seconds: what an allocation is counted in.
    GpuS
);

impl UnixS {
    /// This time plus seconds; stays at the end of time instead of wrapping.
    #[must_use]
    pub const fn after_s(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Seconds since `earlier`; zero if it lies ahead.
    #[must_use]
    pub const fn since_s(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl GpuS {
    /// In GPU-hours.
    #[must_use]
    pub fn hours(self) -> f64 {
        self.0 as f64 / 3600.0
    }
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $clean:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text, cut to size and cleaned.
            #[must_use]
            pub fn new(text: &str) -> Self {
                Self($clean(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text!(
    /// One line of text for logs and tables: at most 500 characters, no control characters.
    Line,
    line
);
text!(
    /// What a command printed: at most 4,096 bytes; of a longer text its end, where errors are.
    Raw,
    raw
);
text!(
    /// A job's id as the site's Slurm wrote it: at most 64 letters, digits and `;_-.+[]`.
    JobId,
    id
);
text!(
    /// The name that a site's profile gives a shape: one line of at most 64 characters.
    ShapeName,
    short
);

const LINE_CHARS_MAX: usize = 500;
const SHORT_CHARS_MAX: usize = 64;
const RAW_BYTES_MAX: usize = 4096;

fn line(text: &str) -> String {
    clean(text, LINE_CHARS_MAX)
}

fn short(text: &str) -> String {
    clean(text, SHORT_CHARS_MAX)
}

fn clean(text: &str, chars_max: usize) -> String {
    let visible: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let cut: String = visible.trim_start().chars().take(chars_max).collect();
    cut.trim_end().to_owned()
}

fn id(text: &str) -> String {
    let known = |c: &char| c.is_ascii_alphanumeric() || ";_-.+[]".contains(*c);
    text.chars().filter(known).take(SHORT_CHARS_MAX).collect()
}

fn raw(text: &str) -> String {
    let mut from = text.len().saturating_sub(RAW_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let visible = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() => ' ',
        c => c,
    };
    text[from..].chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_cleaned_but_never_refused() {
        assert_eq!(Line::new(" a\nb\u{1b}[31m ").as_str(), "a b [31m");
        assert_eq!(Line::new(&"é".repeat(900)).as_str().chars().count(), 500);
        assert_eq!(JobId::new("12_[1-3];lumi\n").as_str(), "12_[1-3];lumi");
        let long = format!("{}é the end", "x".repeat(4087));
        let cut = Raw::new(&long);
        assert!(cut.as_str().len() <= 4096 && cut.as_str().ends_with("é the end"));
        assert_eq!(Raw::new("é".repeat(3000).as_str()).as_str().len(), 4096);
        // Cleaning twice changes nothing: what is stored comes back the same.
        for text in [" a\nb ", &long, "\u{0}", "a\u{0}"] {
            assert_eq!(Line::new(Line::new(text).as_str()), Line::new(text));
            assert_eq!(Raw::new(Raw::new(text).as_str()), Raw::new(text));
            assert_eq!(JobId::new(JobId::new(text).as_str()), JobId::new(text));
        }
    }
}
