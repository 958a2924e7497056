//! What any text in the repository may refer to.

use pulldown_cmark::{Event, Options, Parser, Tag};

use super::Violation;
use super::repo::Repo;

/// Starts of paths that exist on one machine only, in two parts so that this list does not find
/// itself. The second is whether site profiles may name them: where a facility keeps its software
/// is exactly what a profile says.
const PLACES: &[(&[&str], bool)] = &[
    (&["/wo", "rk/"], false),
    (&["/ro", "ot/"], false),
    (&["/op", "t/"], true),
    (&["/tmp/ba", "sh"], false),
];

/// No file names a place that only one machine has.
pub fn no_paths_of_one_machine(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in repo.texts() {
        let places: Vec<String> = PLACES
            .iter()
            .filter(|(_, in_profiles)| !(*in_profiles && path.starts_with("sites/")))
            .map(|(parts, _)| parts.concat())
            .collect();
        for (index, line) in text.lines().enumerate() {
            for place in places.iter().filter(|place| names_absolute(line, place)) {
                let message = format!(
                    "`{place}…` exists on one machine only: use a relative path, an argument or \
                     an environment variable"
                );
                violations.push(Violation::at(path, index + 1, message));
            }
        }
    }
    violations
}

/// Whether `line` contains `place` as the start of a path, not in the middle of one.
fn names_absolute(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/~}*".contains(c))
    })
}

/// Links in Markdown to files of the repository lead somewhere.
pub fn links_resolve(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in repo.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let (Event::Start(Tag::Link { dest_url, .. })
            | Event::Start(Tag::Image { dest_url, .. })) = event
            else {
                continue;
            };
            let elsewhere = dest_url.contains("://") || dest_url.starts_with("mailto:");
            if elsewhere || dest_url.starts_with('#') {
                continue;
            }
            if !resolve(path, &dest_url).is_some_and(|target| repo.contains(&target)) {
                let line = text[..range.start].matches('\n').count() + 1;
                let message = format!("link to `{dest_url}`, which is not in the repository");
                violations.push(Violation::at(path, line, message));
            }
        }
    }
    violations
}

/// The path that `link` in `file` means, or nothing when it leaves the repository.
fn resolve(file: &str, link: &str) -> Option<String> {
    let link = link.split(['#', '?']).next().unwrap_or(link);
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn places_of_one_machine_are_found() {
        for (parts, _) in PLACES {
            let text = format!("first\nrun {}x\n", parts.concat());
            check(no_paths_of_one_machine, &[("a.md", &text)], &["a.md:2: `"]);
        }
    }

    #[test]
    fn the_middle_of_another_path_is_no_such_place() {
        let place = PLACES[0].0.concat();
        let text = format!("see src{place}a and https://example.org{place} and $HOME{place}b\n");
        check(no_paths_of_one_machine, &[("a.md", &text)], &[]);
    }

    #[test]
    fn a_profile_may_say_where_its_site_keeps_software() {
        let text = format!("path = \"{}rocm\"", PLACES[2].0.concat());
        check(no_paths_of_one_machine, &[("sites/lumi.toml", &text)], &[]);
        check(
            no_paths_of_one_machine,
            &[("other.toml", &text)],
            &["other.toml:1: "],
        );
    }

    #[test]
    fn links_lead_to_files_and_folders() {
        let good = "[a](b.md#part), [c](../crates), [d][e], <https://example.org>, [f](#here)\n\n\
                    [e]: ../crates/x/README.md\n";
        let files = [
            ("docs/a.md", good),
            ("docs/b.md", ""),
            ("crates/x/README.md", ""),
        ];
        check(links_resolve, &files, &[]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let bad = "one\n\n[a](gone.md) `[b](code.md)`\n\n![c](../../out.svg)\n[d](/etc/x)\n";
        let expected = [
            "a.md:3: link to `gone.md`",
            "a.md:5: link to `../",
            "a.md:6: link to `/",
        ];
        check(links_resolve, &[("docs/a.md", bad)], &expected);
    }
}
