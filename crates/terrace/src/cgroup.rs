//! Warning before the start if control groups or the machine cannot hold the memory limit and [`OWN_NEED`].

mod alarm;

use terrace_system::cgroup::{Groups, Limit, Machine};

use crate::size::{MIB, Size, human};

pub(crate) use alarm::Alarm;

/// Memory that terrace needs beside `--memory`: code, stacks, request buffers, and the kernel's memory for
/// it. Measured in its own group with 128 MiB: 12 MiB soon after the start, 22 to 24 under load. The load is
/// five jobs of fio with requests of 4 KiB to 1 MiB.
pub(crate) const OWN_NEED: u64 = 24 << 20;

/// A warning if the control group or the machine cannot hold `memory` and [`OWN_NEED`]. None for `auto`.
pub(crate) fn too_small_for(memory: Option<Size>) -> Option<String> {
    let memory = memory?;
    let of_groups = Groups::own().and_then(|groups| groups.limit()).ok().flatten();
    of_groups.and_then(|limit| told_if_too_small(&limit, memory)).or_else(|| {
        let machine = Machine::default().limit().ok()??;
        told_if_more_than_all(machine.bytes, memory)
    })
}

/// Prints the warning of [`too_small_for`] on standard error.
pub(crate) fn tell_if_too_small(memory: Option<Size>) {
    if let Some(line) = too_small_for(memory) {
        terrace_output::error_line!("terrace: {line}");
    }
}

fn told_if_too_small(limit: &Limit, memory: Size) -> Option<String> {
    (limit.bytes < memory.0.saturating_add(OWN_NEED)).then(|| {
        format!(
            "{}: {} cannot hold --memory {memory} and the {} that terrace needs besides: the cache stays smaller; raise this limit, or \
             lower --memory to {}",
            limit.file.display(),
            human(limit.bytes),
            human(OWN_NEED),
            Size(limit.bytes.saturating_sub(OWN_NEED) / MIB * MIB),
        )
    })
}

fn told_if_more_than_all(bytes: u64, memory: Size) -> Option<String> {
    (bytes < memory.0.saturating_add(OWN_NEED)).then(|| {
        let (has, fits) = (human(bytes), Size(bytes.saturating_sub(OWN_NEED) / MIB * MIB));
        format!(
            "this machine has {has} of memory, and --memory is {memory}: the cache stays smaller; leave --memory out, or lower it below {fits}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_without_room_for_terrace_is_told_with_its_cure() {
        let limit = Limit { bytes: 136 * MIB, file: "/g/memory.max".into() };
        let line = told_if_too_small(&limit, Size(128 * MIB)).unwrap();
        assert!(line.contains("/g/memory.max: 136 MiB cannot hold --memory 128MiB"), "{line}");
        assert!(line.contains("lower --memory to 112MiB"), "{line}");
        assert_eq!(told_if_too_small(&limit, Size(112 * MIB)), None);
        let line = told_if_more_than_all(136 * MIB, Size(128 * MIB)).unwrap();
        assert!(line.contains("this machine has 136 MiB") && line.contains("below 112MiB"), "{line}");
        assert_eq!(told_if_more_than_all(136 * MIB, Size(112 * MIB)), None);
        assert_eq!(too_small_for(None), None, "auto keeps to what there is");
    }
}
