//! `terrace doctor`: checks what terrace can use on this machine, the cost of what is missing, and the cure.
//! It changes nothing and mounts nothing.

pub(crate) mod kernel;
mod limits;
mod place;

use std::fmt::Write;
use std::process::ExitCode;

use terrace_api::doctor::{Check, DoctorReport, State};

use crate::cli;
use crate::commands;
use crate::error::{EXIT_NEGATIVE, Result};

/// Prints the findings; the exit code shows whether terrace can serve.
pub(crate) fn doctor(args: &cli::Doctor) -> Result<ExitCode> {
    let report = look(args);
    let text = if args.json { commands::json(&report) } else { page(&report) };
    commands::print(&text)?;
    Ok(if report.can_serve { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NEGATIVE) })
}

fn look(args: &cli::Doctor) -> DoctorReport {
    let mut checks = vec![
        kernel::version(),
        kernel::fuse(),
        kernel::mounting(),
        kernel::passthrough(),
        kernel::io_uring(),
        kernel::huge_pages(),
        limits::control_groups(),
        limits::memory(),
        limits::open_files(),
        limits::locked_memory(),
        limits::shared_memory(),
        place::library(),
    ];
    if let Some(dir) = &args.dir {
        checks.extend(place::of(dir));
    }
    let can_serve = checks.iter().all(|check| check.state != State::Missing);
    DoctorReport { dir: args.dir.clone(), can_serve, checks, ..DoctorReport::default() }
}

/// A line for each check; below it, the cost and the cure of a lack.
fn page(report: &DoctorReport) -> String {
    let mut page = String::new();
    for Check { name, state, found, cost, cure } in &report.checks {
        let _ = writeln!(page, "{:<8} {name:<15} {found}", state.name());
        for (word, text) in [("costs", cost), ("cure", cure)] {
            if let Some(text) = text {
                let _ = writeln!(page, "{:24} {word}: {text}", "");
            }
        }
    }
    let limited = report.checks.iter().filter(|check| check.state == State::Limited).count();
    let what = report.dir.as_ref().map_or("terrace".to_owned(), |dir| dir.display().to_string());
    let _ = match (report.can_serve, limited) {
        (true, 0) => writeln!(page, "\n{what}: can serve without restrictions."),
        (true, _) => writeln!(page, "\n{what}: can serve; the costs of limits are above."),
        (false, _) => writeln!(page, "\n{what}: cannot serve until the missing parts above are there."),
    };
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: Option<&str>) -> cli::Doctor {
        cli::Doctor { dir: dir.map(Into::into), json: false }
    }

    #[test]
    fn each_flaw_has_its_cost_and_cure() {
        let report = look(&args(Some("/proc")));
        for check in &report.checks {
            let flawed = check.state != State::Good;
            assert_eq!((check.cost.is_some(), check.cure.is_some()), (flawed, flawed), "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
        let names: std::collections::BTreeSet<&str> = report.checks.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), report.checks.len());
    }

    #[test]
    fn directory_that_does_not_exist_cannot_be_served() {
        let report = look(&args(Some("/nonexistent")));
        assert!(!report.can_serve);
        let page = page(&report);
        assert!(page.contains("/nonexistent: cannot serve"), "{page}");
        assert!(page.lines().any(|line| line.starts_with("missing  directory")), "{page}");
    }
}
