//! A check of a crate's layers: its folders import only those below them.
//!
//! The head of `lib.rs` lists the folders from the top down, one a row of a table: ``//! | `reclaim` | free frames ... |``.

use std::path::Path;

/// The names in the first column of the table, from the top down.
fn floors(head: &str) -> Vec<String> {
    let rows = head.lines().filter_map(|line| line.strip_prefix("//! | ")?.split('|').next());
    let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(|name| name.trim_end_matches(']').to_owned()).collect()
}

/// The folder of a file below the crate's `src`, or its name, if it lies in none.
fn floor_of(src: &Path, file: &Path) -> Option<String> {
    let first = file.strip_prefix(src).ok()?.components().next()?.as_os_str().to_str()?;
    Some(first.trim_end_matches(".rs").to_owned())
}

/// Files that import something of a folder above theirs, and folders that the table lacks.
pub(crate) fn arrows_up(src: &Path) -> Vec<String> {
    let root = src.join("lib.rs");
    let floors = floors(&std::fs::read_to_string(&root).unwrap_or_default());
    let rank = |name: &str| floors.iter().position(|floor| floor == name);
    let (mut bad, is_folder) = (Vec::new(), |name: &str| src.join(name).is_dir());
    let folders = std::fs::read_dir(src).into_iter().flatten().flatten();
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| is_folder(name) && rank(name).is_none()) {
        bad.push(format!("{}: the table of folders lacks `{name}`", root.display()));
    }
    for (from, to) in super::circles::arrows_of(&root, &mut bad) {
        let floors = (floor_of(src, &from), floor_of(src, &to));
        let (Some(above), Some(below)) = floors else { continue };
        if let (Some(high), Some(low)) = (rank(&above), rank(&below))
            && high > low
        {
            bad.push(format!("{} imports {}: `{above}` lies below `{below}`", from.display(), to.display()));
        }
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> usize {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        arrows_up(dir.path()).len()
    }

    #[test]
    fn arrow_to_a_folder_above_is_refused() {
        let lib = "//! | `up` | a |\n//! | [`down`] | b |\nmod up; mod down;";
        let down = [("lib.rs", lib), ("up/mod.rs", "use crate::down::f;"), ("down/mod.rs", "pub fn f() {}")];
        assert_eq!(arrows(&down), 0);
        let up = [("lib.rs", lib), ("down/mod.rs", "use crate::up::f;"), ("up/mod.rs", "pub fn f() {}")];
        assert_eq!(arrows(&up), 1);
    }

    #[test]
    fn folder_without_a_row_is_reported() {
        let lib = "//! | `up` | a |\nmod up; mod other;";
        assert_eq!(arrows(&[("lib.rs", lib), ("up/mod.rs", ""), ("other/mod.rs", "")]), 1);
    }
}
