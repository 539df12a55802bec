//! The results for people: a line for each direction and transfer size of a target, one process beside as many as did best.

use crate::format::short as number;
use std::fmt::Write;
use terrace_api::device_profile::{Cell, Device, DeviceProfile, Op, RAM};

/// CPU time of others, per cent, above which the numbers are doubted aloud.
const OTHERS_MAX: f64 = 100.0 * crate::machine::FOREIGN_CPU_MAX;

/// All targets.
pub fn of(probe: &DeviceProfile) -> String {
    let mut out = String::new();
    for (name, device) in &probe.device {
        let _ = writeln!(out, "{}", headline(name, device));
        let _ = writeln!(
            out,
            "{:>9} {:<4} {:>9} | {:>10} {:>10} {:>10} | {:>10} {:>6} {:>10}",
            "data set", "", "transfer", "us, mean", "p99", "MiB/s", "best MiB/s", "procs", "us, mean"
        );
        let mut rest = device.cells.as_slice();
        while let Some(first) = rest.first() {
            let same = |c: &Cell| {
                (c.op, c.data_mib, c.transfer_kib) == (first.op, first.data_mib, first.transfer_kib)
            };
            let (group, others) = rest.split_at(rest.iter().take_while(|c| same(c)).count());
            line(&mut out, group);
            rest = others;
        }
        if device.others_cpu_percent > OTHERS_MAX {
            let _ = writeln!(
                out,
                "Others took {} % of the processors meanwhile: measure again when the machine is quiet.",
                number(device.others_cpu_percent)
            );
        }
        out.push('\n');
    }
    out
}

fn headline(name: &str, device: &Device) -> String {
    let Device { file_system, block_device, .. } = device;
    let kind = format!("{:?}", device.kind).to_lowercase();
    let on = if block_device.is_empty() { String::new() } else { format!(" on {block_device}") };
    let way = match (file_system.is_empty(), device.direct) {
        (true, _) => "copied".to_owned(),
        (false, true) => format!("{kind}, {file_system}{on}, O_DIRECT"),
        (false, false) => format!("{kind}, {file_system}{on}, through the page cache: it has no O_DIRECT"),
    };
    format!("{}: {way}. One process, and as many as did best:", title(name))
}

/// Display name of an entry of [`RAM`].
fn title(name: &str) -> &str {
    if name == RAM { "memory" } else { name }
}

fn line(out: &mut String, group: &[Cell]) {
    let (Some(one), Some(best)) = (group.first(), group.iter().max_by(|a, b| a.mib_s.total_cmp(&b.mib_s)))
    else {
        return;
    };
    let op = if one.op == Op::Get { "get" } else { "put" };
    let _ = writeln!(
        out,
        "{:>9} {op:<4} {:>9} | {:>10} {:>10} {:>10} | {:>10} {:>6} {:>10}",
        format!("{} MiB", one.data_mib),
        format!("{} KiB", one.transfer_kib),
        number(one.latency_us),
        number(one.latency_us_p99),
        number(one.mib_s),
        number(best.mib_s),
        best.processes,
        number(best.latency_us),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::device_profile::{Kind, Machine, SCHEMA};

    fn cell(op: Op, transfer_kib: u64, processes: usize, mib_s: f64) -> Cell {
        Cell {
            data_mib: 64,
            op,
            transfer_kib,
            processes,
            ops: 1,
            latency_us: 81.5 * processes as f64,
            latency_us_p50: 80.0,
            latency_us_p99: 120.0,
            mib_s,
        }
    }

    #[test]
    fn one_line_a_transfer_size_with_the_best_crew() {
        let cells = vec![
            cell(Op::Get, 4, 1, 48.0),
            cell(Op::Get, 4, 4, 150.0),
            cell(Op::Get, 4, 8, 120.0),
            cell(Op::Put, 4, 1, 9.0),
        ];
        let device = Device {
            kind: Kind::Nvme,
            measured: String::new(),
            file_system: "ext4".into(),
            block_device: "/dev/nvme0n1".into(),
            direct: true,
            others_cpu_percent: 30.0,
            get_latency_us: 81.5,
            get_mib_s: 150.0,
            put_latency_us: 81.5,
            put_mib_s: 9.0,
            cells,
        };
        let probe = DeviceProfile {
            schema: SCHEMA.into(),
            machine: Machine::default(),
            device: [("/data".to_owned(), device)].into(),
        };
        let text = of(&probe);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("/data: nvme, ext4 on /dev/nvme0n1, O_DIRECT."), "{text}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[2]), "64 MiB get 4 KiB | 81.5 120 48.0 | 150 4 326", "{text}");
        assert_eq!(words(lines[3]), "64 MiB put 4 KiB | 81.5 120 9.00 | 9.00 1 81.5", "{text}");
        assert!(lines[4].starts_with("Others took 30"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= 110), "{text}");
    }
}
