//! Words for a shell, quoted so that they stay what they are.

/// A word in single quotes, or bare where nothing in it is special.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command line of quoted words.
pub fn join<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(quote).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let words = [
            "plain",
            "",
            "two words",
            "it's",
            "$HOME `id` \"x\" \\",
            "a;b&&c",
            "ü\n*",
        ];
        let line = format!("printf '%s\\0' {}", join(words));
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .output()
            .unwrap();
        let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
