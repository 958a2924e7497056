//! What quotas leave, where Lustre tells.

use crate::commands::Slurm;
use crate::shell::quote;

/// What may still be stored; `None` where nothing limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Space.
    pub kib: Option<i64>,
    /// Files.
    pub files: Option<i64>,
}

/// What the user's, the group's and the project's quota leave in a folder.
pub(super) async fn left(slurm: &Slurm, folder: &str) -> Left {
    let folder = quote(folder);
    let line = format!(
        "command -v lfs >/dev/null || exit 0; cd {folder} || exit 0; lfs quota -q -u \"$(id -un)\" .; echo ==; \
         lfs quota -q -g \"$(stat -c %G .)\" .; echo ==; p=$(lfs project -d . | awk '{{ print $1 }}'); \
         [ \"${{p:-0}}\" = 0 ] || lfs quota -q -p \"$p\" ."
    );
    match slurm.shell(&line).await {
        Ok(printed) => least(&printed.text()),
        Err(_) => Left::default(),
    }
}

/// The least of what several answers leave.
fn least(text: &str) -> Left {
    let answers = text.split("==").filter_map(read);
    answers.fold(Left::default(), |all, one| Left {
        kib: least_of(all.kib, one.kib),
        files: least_of(all.files, one.files),
    })
}

fn least_of(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).min()
}

/// One answer of `lfs quota -q`: the path, and KiB used, soft, hard, grace, files used, soft, hard, grace. A
/// long path stands on a line of its own; what is over its limit has an asterisk.
fn read(text: &str) -> Option<Left> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| word.trim_end_matches('*').parse::<i64>().ok();
    let columns = words.windows(7).find_map(|w| {
        let numbers = [w[0], w[1], w[2], w[4], w[5], w[6]].map(number);
        numbers
            .iter()
            .all(Option::is_some)
            .then(|| numbers.map(Option::unwrap_or_default))
    })?;
    let left = |used: i64, soft: i64, hard: i64| {
        let limit = if hard > 0 { hard } else { soft };
        (limit > 0).then_some(limit - used)
    };
    let [kib, kib_soft, kib_hard, files, files_soft, files_hard] = columns;
    Some(Left {
        kib: left(kib, kib_soft, kib_hard),
        files: left(files, files_soft, files_hard),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_of_all_quotas_counts() {
        let unlimited = "/users/me  1000  0  0  -  12  0  0  -\n";
        assert_eq!(least(unlimited), Left::default());
        // A project's, over its space, with a path that takes a line.
        let project = "/scratch/project_465000123/hansa\n   600*  500  500  6d23h  90  0  100  -\n";
        let both = least(&format!("{unlimited}==\n==\n{project}"));
        assert_eq!((both.kib, both.files), (Some(-100), Some(10)));
        let user = ". 10 0 1000 - 95 90 0 -\nuid 1000 is using default block quota setting\n";
        let all = least(&format!("{user}==\n{project}"));
        assert_eq!((all.kib, all.files), (Some(-100), Some(-5)));
        assert_eq!(least("Disk quotas are not enabled"), Left::default());
    }
}
