//! Slurm's short form of node names: `nid[005000-005003,005007],login1`. It is counted, and expanded
//! only as far as somebody asks for: a list of a million nodes costs no more than its text.

use super::text::digits;
use super::tres::Nodes;

/// Some nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeList {
    /// As printed.
    pub text: String,
    /// How many they are, if the text is well formed.
    pub count: Option<Nodes>,
}

impl NodeList {
    /// Takes the text; `whole` says that nothing can be missing at its end.
    pub(super) fn new(text: &str, whole: bool) -> Self {
        let count = if whole { count(text).map(Nodes) } else { None };
        let text = text.to_owned();
        Self { text, count }
    }

    /// The first names, at most `names_max`; `None` if the text is not well formed.
    #[must_use]
    pub fn expand(&self, names_max: usize) -> Option<Vec<String>> {
        self.count?;
        let mut all = Vec::new();
        for name in names(&self.text)? {
            let room = names_max - all.len();
            all.extend(expand_one(name, room)?);
        }
        Some(all)
    }
}

/// The names of one part, which is well formed, at most `room`.
fn expand_one(name: &str, room: usize) -> Option<Vec<String>> {
    let Some((before, rest)) = name.split_once('[') else {
        return Some(vec![name.to_owned()].into_iter().take(room).collect());
    };
    let (ranges, after) = rest.split_once(']')?;
    let tails = expand_one(after, room)?;
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        for number in digits::<u32>(first)?..=digits(last)? {
            if all.len() >= room {
                return Some(all);
            }
            let left = room - all.len();
            let head = format!("{before}{number:0width$}");
            all.extend(tails.iter().take(left).map(|tail| format!("{head}{tail}")));
        }
    }
    Some(all)
}

fn count(text: &str) -> Option<u32> {
    let mut total: u32 = 0;
    for name in names(text)? {
        total = total.checked_add(count_one(name)?)?;
    }
    Some(total)
}

/// The parts between the commas that are outside of brackets.
fn names(text: &str) -> Option<Vec<&str>> {
    let mut depth = 0_u32;
    let mut names = Vec::new();
    let mut start = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                names.push(text.get(start..at)?);
                start = at + 1;
            }
            _ => {}
        }
    }
    names.push(text.get(start..)?);
    (depth == 0).then_some(names)
}

/// The number of names of one part: the product over its brackets.
fn count_one(mut name: &str) -> Option<u32> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut product: u32 = 1;
    let mut empty = true;
    while let Some((before, rest)) = name.split_once('[') {
        let (ranges, after) = rest.split_once(']')?;
        if !before.chars().all(plain) {
            return None;
        }
        let mut inside: u32 = 0;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (digits(first)?, digits(last)?);
            let span = last.checked_sub(first)?.checked_add(1)?;
            inside = inside.checked_add(span)?;
        }
        product = product.checked_mul(inside)?;
        empty = false;
        name = after;
    }
    let named = name.chars().all(plain) && !(empty && name.is_empty());
    named.then_some(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_expanded_as_far_as_asked() {
        let expand = |text: &str, most| NodeList::new(text, true).expand(most);
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let list = "nid[005000-005001,005007],login1,x[1-2]c[0-1]";
        let all = [
            "nid005000",
            "nid005001",
            "nid005007",
            "login1",
            "x1c0",
            "x1c1",
            "x2c0",
            "x2c1",
        ];
        assert_eq!(expand(list, 100), names(&all));
        assert_eq!(expand(list, 5), names(&all[..5]));
        assert_eq!(expand("n[0-4294967294]", 2), names(&["n0", "n1"]));
        assert_eq!(expand("n[a]", 2), None);
        assert_eq!(
            NodeList::new("n[1-2]", false).expand(2),
            None,
            "it may be cut"
        );
    }

    #[test]
    fn nodes_are_counted() {
        let cases = [
            ("nid005000", 1),
            ("nid[005000-005003,005007]", 5),
            ("nid[001000,005000]", 2),
            ("a1132u20n01,oat-03", 2),
            ("x[1-2]c[0-7],y9", 17),
            ("node[1-855],node[856-1171]", 1171),
        ];
        for (text, nodes) in cases {
            assert_eq!(count(text), Some(nodes), "{text}");
        }
        let bad = [
            "",
            "n[",
            "n[1-",
            "n[1-2",
            "n]",
            "n[2-1]",
            "n[a]",
            "n[]",
            "a,,b",
            "n[[1]]",
            "n[0-4294967295]",
            "n[0-4294967294],b,c",
            "(null)",
            "n[1]é",
        ];
        for text in bad {
            assert_eq!(count(text), None, "{text}");
        }
    }
}
