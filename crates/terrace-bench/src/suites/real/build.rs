//! Building a kernel (Linux, `tinyconfig`) with many compilers at once, sources and build on the served directory.
//!
//! The more compilers, the less memory is left for files, so the limit follows them: what they hold at their peak, found by a build without
//! a limit, and a part for files on top. A build is right when its result is, byte for byte, that of the build on the plain directory.

use super::shell::{Tree, find, number_after};
use super::{Load, Options, Times, compare};
use crate::machine;
use crate::steps::Step;
use crate::suites::MIB;
use crate::suites::fio::Scale;
use crate::system::{self, Places, Run, System, interrupted};
use crate::trial::{Sample, Trial};
use std::fs;
use std::io;
use std::path::PathBuf;

const TREE: &str = "terrace-bench-build";

/// Builds with twice, four and eight times as many jobs as processors, or as many as asked for.
pub fn run(trial: &mut Trial, scale: Scale, options: &Options) -> io::Result<()> {
    let cpus = machine::cpus() as u32;
    let jobs = match options.jobs.is_empty() {
        true => vec![cpus * 2, cpus * 4, cpus * 8],
        false => options.jobs.clone(),
    };
    let named = jobs.into_iter().map(|jobs| (jobs, format!("kernel build, {jobs} jobs")));
    let wanted: Vec<_> = named.filter(|(_, name)| trial.wanted("real", name)).collect();
    if wanted.is_empty() || interrupted() {
        return Ok(());
    }
    let mut build = Build::unpack(&trial.places).map_err(io::Error::other)?;
    for (jobs, name) in wanted {
        let held = build.reference(&trial.places, jobs).map_err(io::Error::other)?;
        let limit = held / MIB * MIB + options.build_cache_mib * MIB;
        let (held, mib) = (held / MIB, limit / MIB);
        eprintln!("{name}: the compilers hold {held} MiB at their peak, so the limit is {mib} MiB");
        compare(trial, &name, Scale { limit, ..scale }, &["seconds"], &build)?;
    }
    Ok(())
}

#[derive(Debug)]
struct Build {
    jobs: u32,
    /// SHA-256 of the plain build's result.
    digest: String,
    tree: Tree,
}

impl Build {
    /// Unpacks the distribution's sources, but for code that the smallest kernel never builds: 50,000 files.
    fn unpack(places: &Places) -> Result<Build, String> {
        for (program, package) in [("make", "make"), ("gcc", "gcc"), ("flex", "flex"), ("bison", "bison")] {
            find(program, &[], package)?;
        }
        let sources = sources()?.display().to_string();
        let script = format!(
            "mkdir -p {{dir}}/{TREE}/src
tar -xf {sources} -C {{dir}}/{TREE}/src --strip-components=1 --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/net/*.[ch]' \
    --exclude='*/drivers/media/*.[ch]' --exclude='*/drivers/staging/*.[ch]' --exclude='*/sound/*.[ch]' \
    --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' --exclude='*/tools/perf/*'"
        );
        let tree = Tree::make(places, TREE, vec![Step::new("unpack", ["bash", "-euc", &script])])?;
        // A build elsewhere (O=) only reads its sources.
        let tree = tree.linked();
        Ok(Build { jobs: 0, digest: String::new(), tree })
    }

    /// A build on the plain directory, without a limit: its result, and what its processes held at their peak.
    fn reference(&mut self, places: &Places, jobs: u32) -> Result<u64, String> {
        self.jobs = jobs;
        let _data = self.tree.fresh(places)?;
        let run = system::run(places, &System::Kernel, None, |_| self.all_steps())?;
        self.digest = run.step("verify")?.output.clone();
        Ok(run.pinned_max)
    }

    fn all_steps(&self) -> Vec<Step> {
        let make = format!(
            "export KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=b KBUILD_BUILD_HOST=b KBUILD_BUILD_VERSION=1 LC_ALL=C
make -s -C {{dir}}/{TREE}/src O={{dir}}/{TREE}/out"
        );
        let step = |name: &str, script: &str| Step::new(name, ["bash", "-euc", script]);
        vec![
            step("configure", &format!("{make} tinyconfig")),
            step(
                "measure",
                &format!(
                    "{make} -j{} vmlinux && find {{dir}}/{TREE}/out -name '*.o' | echo objects $(wc -l)",
                    self.jobs
                ),
            ),
            step("verify", &format!("cd {{dir}}/{TREE}/out && cat vmlinux System.map | sha256sum")),
        ]
    }
}

impl Load for Build {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn probe(&self, _limit: u64) -> u64 {
        // The compilers take nearly all of the limit.
        32 * MIB
    }

    fn steps(&self, _times: Times, _seed: u64) -> Vec<Step> {
        self.all_steps()
    }

    fn judge(&self, _places: &Places, run: &Run) -> Result<Sample, String> {
        let digest = &run.step("verify")?.output;
        if *digest != self.digest {
            return Err(format!("the build gave {}, the plain one {}", digest.trim(), self.digest.trim()));
        }
        Ok(Sample::from([("objects", number_after(run.step("measure")?, "objects")?)]))
    }

    fn last_words(&self) -> String {
        String::new()
    }
}

/// The newest sources that the distribution has installed.
fn sources() -> Result<PathBuf, String> {
    let all = fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    all.filter(is_source).max().ok_or_else(|| {
        "no kernel sources in /usr/src: install linux-source, or run `make bench-real`, which does"
            .to_string()
    })
}
