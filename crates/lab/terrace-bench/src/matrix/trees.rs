//! Directory trees for the commands of loads: made once on the plain directory, and copied or linked for
//! each run.

use super::cleanup::{Cleanup, Setup, tool};
use super::load::Load;
use crate::steps::Step;
use crate::system::{self, Places, System};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The trees of a matrix, kept beside the data directory: on the same device.
#[derive(Debug)]
pub(crate) struct Trees {
    kept: PathBuf,
    /// Trees made so far: name and shell line.
    made: HashSet<(String, String)>,
}

/// The tree of one run; removed when dropped.
#[derive(Debug)]
pub(crate) struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Trees {
    /// No trees yet.
    pub(crate) fn beside(data: &Path) -> Trees {
        Trees { kept: data.with_added_extension("trees"), made: HashSet::new() }
    }

    /// Makes the tree of a load by a step, if it does not exist.
    ///
    /// # Errors
    /// How the step failed.
    pub(crate) fn prepare(
        &mut self,
        load: &Load<'_>,
        places: &Places,
        step: &Step,
        cleanup: &mut Cleanup,
    ) -> Result<(), String> {
        let Some(name) = &load.spec.tree else { return Ok(()) };
        let key = (name.clone(), step.argv.join(" "));
        if self.made.contains(&key) {
            return Ok(());
        }
        cleanup.note(Setup::Path(self.kept.clone())).map_err(|e| e.to_string())?;
        let (fresh, kept) = (Copy(places.data.join(name)), self.kept.join(name));
        for old in [&fresh.0, &kept] {
            let _ = fs::remove_dir_all(old);
        }
        fs::create_dir_all(&self.kept).map_err(|e| format!("{}: {e}", self.kept.display()))?;
        terrace_output::error_line!("{name}: making the data ...");
        system::run(places, &System::Kernel, None, std::slice::from_ref(step))?;
        fs::rename(&fresh.0, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        self.made.insert(key);
        Ok(())
    }

    /// A copy of the load's tree for one run, if it has one.
    ///
    /// # Errors
    /// The failure of `cp`.
    pub(crate) fn copy(&self, load: &Load<'_>, data: &Path) -> Result<Option<Copy>, String> {
        let Some(name) = &load.spec.tree else { return Ok(None) };
        let copy = Copy(data.join(name));
        let _ = fs::remove_dir_all(&copy.0);
        let how = if load.spec.links { "-al" } else { "-a" };
        let [from, to] = [self.kept.join(name), copy.0.clone()].map(|path| path.display().to_string());
        tool("cp", &[how, &from, &to]).map_err(|e| e.to_string())?;
        Ok(Some(copy))
    }
}
