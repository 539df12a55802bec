//! `run --prefetch` reads the schedule before the command starts. Afterwards it reports files that are gone
//! or changed, and a useless schedule.

use std::path::Path;

use terrace_api::schedule::Schedule;
use terrace_api::stats::{Prefetch, ScheduleState};

use crate::error::{Failure, Result, reason};

pub(super) fn read(path: &Path) -> Result<Schedule> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|err| {
        let cure = "make it with `terrace trace` and `terrace-bench schedule`";
        Failure::new(format!("--prefetch {shown}"), reason(err), cure)
    })?;
    Schedule::parse(&shown.to_string(), &text)
        .map_err(|err| Failure::new(format!("--prefetch {shown}"), err.fault, err.cure))
}

/// Prints one line about parts of the schedule that were not usable.
pub(super) fn tell(prefetch: &Prefetch) {
    if let Some(line) = prefetch.schedule.as_ref().and_then(line) {
        terrace_output::error_line!("terrace: --prefetch: {line}");
    }
}

fn line(schedule: &terrace_api::stats::Schedule) -> Option<String> {
    let left_out = match schedule.files_left_out {
        0 => None,
        1 => Some("1 file is gone or has changed since the schedule was recorded".to_owned()),
        n => Some(format!("{n} files are gone or have changed since the schedule was recorded")),
    };
    let useless = (schedule.state == ScheduleState::Useless).then(|| {
        "stopped: less than half of the fetched pages were used; record the schedule again".to_owned()
    });
    let parts: Vec<String> = left_out.into_iter().chain(useless).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::stats::Schedule;

    #[test]
    fn only_what_went_wrong_is_told() {
        let schedule = Schedule { fetched: 7, used: 7, ..Schedule::default() };
        assert_eq!(line(&schedule), None);
        let gone = Schedule { files_left_out: 2, ..schedule.clone() };
        assert_eq!(line(&gone).unwrap(), "2 files are gone or have changed since the schedule was recorded");
        let useless = Schedule { state: ScheduleState::Useless, ..schedule };
        assert!(line(&useless).unwrap().starts_with("stopped"));
    }
}
