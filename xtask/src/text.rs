//! Checks of text: words that comments avoid, names that were changed, statements that must agree, subjects of commits.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that stand where the field has a noun. A comment line counts once.
const AVOIDED: &[&str] = &[
    "who",
    "whoever",
    "somebody",
    "nobody",
    "told",
    "said",
    "asks",
    "believed",
    "bears",
    "in vain",
    "that which",
];
/// Comment lines with an avoided word, in all Rust files, at most.
const AVOIDED_MAX: usize = 10;

/// Characters of a commit's subject, at most.
const SUBJECT_LENGTH_MAX: usize = 72;
/// Subjects are checked from the commit after this one.
const SUBJECTS_SINCE: &str = "fe4035f4";

/// Names that were changed, and their successors. Neither sources nor documents may have the old ones.
const RETIRED: &[(&str, &str)] = &[
    ("OwedBooks", "DestageIndex"),
    ("Whereabouts", "FileLookup"),
    ("Cellar", "StoreUnderTest"),
    ("Foreseen", "ParsedRequest"),
    ("Superseded", "DeadRecords"),
    ("Ladder", "RankIndex"),
    ("Crowd", "ThreadShedding"),
    ("twigs_max", "small_nodes_max"),
    ("Side::Fast", "Side::Preload"),
    ("owed page", "undestaged page"),
    ("owed pages", "undestaged pages"),
    ("OwedFile", "UndestagedFile"),
    ("OwedPages", "UndestagedMark or UndestagedPages"),
    ("Record::Owed", "Record::Undestaged"),
    ("Record::Base", "Record::BaseVersion"),
    ("Record::Permit", "Record::WriteIntent"),
    ("Record::Paid", "Record::DestageComplete"),
    ("PERMIT_NS", "INTENT_NS"),
    ("Permits", "WriteIntents"),
    ("paid record", "destage-complete record"),
    ("may_owe", "may_have_undestaged"),
    ("takes_owed", "takes_undestaged"),
    ("append_owed", "append_undestaged"),
    ("end_owed", "end_target_write"),
    ("owe_times", "note_second_writeback"),
    ("must_settle", "must_destage"),
    ("settle_locked", "destage_locked"),
    ("settle_due", "destage_due"),
    ("bring_home", "sync_to_source"),
    ("keeper", "supervisor"),
    ("Keeper", "Supervisor"),
    ("has_keeper", "has_lease_holder"),
    ("FastHit", "PreloadHit"),
    ("FastMiss", "PreloadMiss"),
    ("MainHit", "MountHit"),
    ("MainMiss", "MountMiss"),
    ("twig", "small node"),
    ("Astray", "WalkError"),
    ("Squeezed", "Fixture"),
    ("hasty_chunks", "unbacked_chunks"),
    ("is_buried", "has_queued_tombstone"),
    ("bury", "queue_tombstone"),
    ("believable", "valid_identity"),
    ("unproved_until", "identity_due_ns"),
    ("hear_close", "take_close_error"),
    ("is_unheard", "has_unreported_close"),
    ("is_unsettled", "has_unsynced_pages"),
    ("is_deaf", "watch_failed"),
    ("hear_loop", "watch_loop"),
    ("hears_of", "watch_names_of"),
    ("tell_clients", "notify_clients"),
    ("tell_shortage", "log_shortage"),
    ("is_crowded", "is_filling"),
    ("settle_soon", "reopen_preload_path_soon"),
    ("hold_in", "lock_keys_in"),
    ("ARGUMENTS_MAX_STRANGER", "ARGUMENTS_MAX_UNAUTHENTICATED"),
    ("multigenerational LRU", "S3-FIFO with an adaptive probation queue"),
    ("fast door", "preload path"),
    ("main door", "mount path"),
];

/// Files with a name of [`RETIRED`].
pub(crate) fn retired_names(files: &[(PathBuf, String)]) -> Vec<String> {
    let of_file = |(path, text): &(PathBuf, String)| {
        let found = RETIRED.iter().filter(|(old, _)| {
            text.match_indices(old).any(|(at, _)| {
                let after = text[at + old.len()..].chars().next();
                let before = text[..at].chars().next_back();
                let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                !is_word(before) && !is_word(after)
            })
        });
        let line = |(old, new): &(&str, &str)| format!("{}: `{old}` is now `{new}`", path.display());
        found.map(line).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// The words of a line in lower case, separated and surrounded by single spaces.
fn words_of(line: &str) -> String {
    let split = line.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty());
    split.fold(" ".to_owned(), |all, word| all + &word.to_lowercase() + " ")
}

/// Comment lines of Rust files with an avoided word: `file:line: word`.
pub(crate) fn avoided_words(root: &Path, sources: &[(PathBuf, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        let name = path.strip_prefix(root).unwrap_or(path).display();
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        for (number, line) in comments {
            let words = words_of(line);
            if let Some(word) = AVOIDED.iter().find(|word| words.contains(&format!(" {word} "))) {
                found.push(format!("{name}:{}: \"{word}\"", number + 1));
            }
        }
    }
    found
}

/// The avoided words, if there are more than [`AVOIDED_MAX`].
pub(crate) fn too_many_avoided_words(root: &Path, sources: &[(PathBuf, String)]) -> Vec<String> {
    let found = avoided_words(root, sources);
    let over = found.len() > AVOIDED_MAX;
    let head = format!("{} comment lines have avoided words, over {AVOIDED_MAX}", found.len());
    if over { [vec![head], found].concat() } else { Vec::new() }
}

/// Statements of the engine's lock order: ARCHITECTURE.md has the only one, and the engine refers to it.
pub(crate) fn lock_orders(sources: &[(PathBuf, String)], architecture: &str) -> Vec<String> {
    let states = |text: &str| text.lines().filter(|line| line.contains("Lock order:")).count();
    let mut bad: Vec<String> = sources
        .iter()
        .filter(|(path, text)| states(text) > 0 && path.to_string_lossy().contains("terrace-engine/src/"))
        .map(|(path, _)| format!("{}: states a lock order; ARCHITECTURE.md has the only one", path.display()))
        .collect();
    match states(architecture) {
        1 => {}
        n => bad.push(format!("ARCHITECTURE.md: {n} lock orders instead of one")),
    }
    bad
}

/// Why a subject is refused, if it is: it is too long, or names several changes.
pub(crate) fn bad_subject(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if subject.trim().is_empty() {
        return Some("no subject".to_owned());
    }
    if length > SUBJECT_LENGTH_MAX {
        return Some(format!("{length} characters, over {SUBJECT_LENGTH_MAX}; the body says why"));
    }
    subject.contains(';').then(|| "several changes; commit each by itself".to_owned())
}

/// Subjects of commits that are too long or name several changes. Nothing is checked outside of a checkout.
pub(crate) fn commits(root: &Path) -> Vec<String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["log", "--no-merges", "--format=%h %s", &format!("{SUBJECTS_SINCE}..HEAD")]);
    // A source archive and a shallow clone have no such history.
    let Some(done) = git.output().ok().filter(|done| done.status.success()) else { return Vec::new() };
    let subjects = String::from_utf8_lossy(&done.stdout).into_owned();
    let check = |line: &str| {
        let (hash, subject) = line.split_once(' ')?;
        Some(format!("commit {hash}: {}", bad_subject(subject)?))
    };
    subjects.lines().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avoided_words_are_found_in_comments_alone() {
        let of = |text: &str| avoided_words(Path::new("/"), &[(PathBuf::from("/a.rs"), text.to_owned())]);
        assert_eq!(of("/// Those who wait.\nlet who = 1;\n"), ["a.rs:1: \"who\""]);
        assert_eq!(of("// whole, asksome, in vein"), Vec::<String>::new());
        assert_eq!(of("    // It waits in vain."), ["a.rs:1: \"in vain\""]);
    }

    #[test]
    fn retired_name_is_refused_as_a_whole_word() {
        let of = |text: &str| retired_names(&[(PathBuf::from("a.rs"), text.to_owned())]).len();
        assert_eq!([of("struct Ladder;"), of("struct Ladders;"), of("rank_index")], [1, 0, 0]);
    }

    #[test]
    fn second_lock_order_is_refused() {
        let source = |text: &str| vec![(PathBuf::from("terrace-engine/src/lib.rs"), text.to_owned())];
        assert!(lock_orders(&source("// See ARCHITECTURE.md"), "**Lock order:** a, b").is_empty());
        assert_eq!(lock_orders(&source("//! Lock order: b, a"), "**Lock order:** a, b").len(), 1);
        assert_eq!(lock_orders(&[], "").len(), 1);
    }

    #[test]
    fn subjects_are_short_and_name_one_change() {
        assert_eq!(bad_subject("umount: report a crashed daemon"), None);
        assert!(bad_subject(&"x".repeat(SUBJECT_LENGTH_MAX + 1)).is_some());
        assert!(bad_subject("a; b").is_some() && bad_subject("").is_some());
    }
}
