//! Parser and checks of a matrix's TOML file; errors name the line and the key.

use super::spec::{
    Access, Base, DeviceKind, Expect, LoadKind, LoadSpec, Spec, SystemKind, SystemSpec, block_bytes,
    distribution,
};
use crate::compare::Better;
use crate::format::name_of;
use toml::de::{DeTable, DeValue};

/// Minimum of terrace's `--memory`.
const MEMORY_MIN_MIB: u64 = 16;

/// An invalid key, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InvalidKey {
    /// Path such as "load.0.bs": tables by name, arrays of tables by number.
    key: String,
    why: String,
}

fn wrong(key: impl Into<String>, why: impl Into<String>) -> Result<(), InvalidKey> {
    Err(InvalidKey { key: key.into(), why: why.into() })
}

impl Spec {
    /// Reads and checks the text of a matrix.
    ///
    /// # Errors
    /// "line 7: the fault", with the key.
    pub(crate) fn parse(text: &str) -> Result<Spec, String> {
        let mut spec: Spec = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let key = key_at(text, at).map_or(String::new(), |key| format!("{key}: "));
            format!("line {}: {key}{}", line_of_offset(text, at), e.message())
        })?;
        spec.default_names();
        let checks = [
            Spec::check_sizes,
            Spec::check_patterns,
            Spec::check_device,
            Spec::check_systems,
            Spec::check_loads,
            Spec::check_targets,
            Spec::check_interleave,
        ];
        for check in checks {
            check(&spec).map_err(|InvalidKey { key, why }| {
                format!("line {}: {}: {why}", line_of_key(text, &key), key.rsplit('.').next().unwrap_or(&key))
            })?;
        }
        Ok(spec)
    }

    fn default_names(&mut self) {
        for system in self.system.iter_mut().filter(|s| s.name.is_empty()) {
            system.name = name_of(system.kind);
        }
        for load in self.load.iter_mut().filter(|l| l.name.is_empty()) {
            load.name = match load.kind {
                LoadKind::Fio => format!("fio-{}", name_of(load.engine).replace('_', "-")),
                LoadKind::Reads => "reads".into(),
                LoadKind::Command => "command".into(),
            };
        }
    }

    fn check_sizes(&self) -> Result<(), InvalidKey> {
        if !(1..=1000).contains(&self.repetitions) {
            return wrong("repetitions", "1 to 1000");
        }
        if self.file_set.is_some() && self.file_mib.is_some() {
            return wrong("file_set", "give it or file_mib, not both");
        }
        if self.file_set.is_some_and(|n| !(0.01..=1000.0).contains(&n)) {
            return wrong("file_set", "0.01 to 1000 times the limit");
        }
        if self.file_set.is_some() && self.limit_mib.is_none() {
            return wrong("file_set", "is a multiple of limit_mib, which is missing; give file_mib");
        }
        self.check_limits()?;
        if self.measure_s == 0 {
            return wrong("measure_s", "1 or more seconds");
        }
        let jobs_ok = self.jobs.iter().all(|j| (1..=4096).contains(j));
        if !jobs_ok || !self.jobs.is_empty() && !self.jobs_per_cpu.is_empty() {
            return wrong("jobs", "1 to 4096, and either jobs or jobs_per_cpu");
        }
        if !self.jobs_per_cpu.iter().all(|&n| n > 0.0 && n <= 64.0) {
            return wrong("jobs_per_cpu", "above 0, up to 64");
        }
        let sizes = [("file_mib", self.file_mib)].into_iter().map(|(k, v)| (k.to_string(), v));
        let loads = self.load.iter().enumerate().map(|(i, l)| (format!("load.{i}.file_mib"), l.file_mib));
        match sizes.chain(loads).find(|(_, mib)| mib.is_some_and(|mib| !(1..=1 << 24).contains(&mib))) {
            Some((key, _)) => wrong(key, "1 to 16777216 MiB"),
            None => Ok(()),
        }
    }

    /// Checks limits, and terrace's memory if it follows from them.
    fn check_limits(&self) -> Result<(), InvalidKey> {
        let of_loads = self.load.iter().enumerate();
        let of_loads = of_loads.map(|(i, l)| (format!("load.{i}."), l.limit_mib, l.headroom_mib));
        for (key, limit, headroom) in
            [(String::new(), self.limit_mib, self.headroom_mib)].into_iter().chain(of_loads)
        {
            if limit.is_some_and(|mib| !(32..=1 << 24).contains(&mib)) {
                return wrong(key + "limit_mib", "32 to 16777216 MiB");
            }
            if headroom.is_some() && limit.or(self.limit_mib).is_none() {
                return wrong(key + "headroom_mib", "needs a limit_mib, which is missing");
            }
        }
        match self.load.iter().position(|l| self.fixed_mib_of(l).is_some_and(|mib| mib < MEMORY_MIN_MIB)) {
            Some(i) => wrong(
                format!("load.{i}.headroom_mib"),
                format!("leaves terrace less than {MEMORY_MIN_MIB} MiB"),
            ),
            None => Ok(()),
        }
    }

    fn check_patterns(&self) -> Result<(), InvalidKey> {
        let of_loads = self.load.iter().enumerate();
        let of_loads =
            of_loads.filter_map(|(i, l)| Some((format!("load.{i}.patterns"), l.patterns.as_ref()?)));
        for (key, patterns) in [("patterns".to_string(), &self.patterns)].into_iter().chain(of_loads) {
            if let Some(p) = patterns.iter().find(|p| distribution(p).is_none()) {
                return wrong(key, format!("{p:?} is none of random, zipf:THETA, normal:DEV"));
            }
            if patterns.is_empty() {
                return wrong(key, "name one or more");
            }
        }
        Ok(())
    }

    fn check_device(&self) -> Result<(), InvalidKey> {
        let d = &self.device;
        let throttles = [
            ("latency_us", d.latency_us.is_some()),
            ("mib_s", d.mib_s.is_some()),
            ("iops", d.iops.is_some()),
        ];
        if d.kind != DeviceKind::Throttled {
            if let Some((key, _)) = throttles.iter().find(|(_, given)| *given) {
                return wrong(format!("device.{key}"), "only for kind = \"throttled\"");
            }
            if d.on.is_some() {
                return wrong("device.on", "only for kind = \"throttled\"");
            }
        } else if throttles.iter().all(|(_, given)| !given) {
            return wrong("device.kind", "a throttled device wants latency_us, mib_s or iops");
        }
        if d.path.is_some() && d.base() == Base::Memory {
            return wrong("device.path", "a device in memory has no path");
        }
        if d.latency_us.is_some_and(|us| us == 0 || us % 1000 != 0) {
            return wrong("device.latency_us", "whole milliseconds, the resolution of device-mapper's delay");
        }
        if d.latency_us.is_some() && d.base() == Base::Directory {
            return wrong(
                "device.latency_us",
                "only on = \"memory\": a delay wants a block device of its own",
            );
        }
        if d.mib_s == Some(0) || d.iops == Some(0) {
            return wrong("device.kind", "a throttle of 0 lets nothing through");
        }
        Ok(())
    }

    fn check_systems(&self) -> Result<(), InvalidKey> {
        if self.system.is_empty() {
            return wrong("system", "name one or more");
        }
        for (i, s) in self.system.iter().enumerate() {
            let key = |name: &str| format!("system.{i}.{name}");
            let terrace = matches!(s.kind, SystemKind::Terrace | SystemKind::TerraceMount);
            let command = s.kind == SystemKind::Command;
            let foyer = s.kind == SystemKind::Foyer;
            check_name(&key("name"), &s.name, self.system[..i].iter().map(|o| &o.name))?;
            let given = [
                ("args", !s.args.is_empty(), terrace),
                ("memory_mib", s.memory_mib.is_some(), terrace || foyer),
                ("auto", s.auto, terrace && s.memory_mib.is_none()),
                ("program", s.program.is_some(), terrace),
                ("tier_mib", s.tier_mib.is_some(), terrace || foyer),
                ("setup", !s.setup.is_empty(), command),
                ("teardown", !s.teardown.is_empty(), command),
                ("dir", s.dir.is_some(), command),
                ("algorithm", s.algorithm.is_some(), s.kind == SystemKind::Zram),
            ];
            if let Some((name, ..)) = given.iter().find(|(_, given, ok)| *given && !ok) {
                return wrong(key(name), format!("not for kind = \"{}\"", name_of(s.kind)));
            }
            if terrace && s.memory_mib.is_none() && !s.auto && self.limit_mib.is_none() {
                return wrong(key("kind"), "without a limit_mib, terrace wants memory_mib");
            }
            if foyer && (s.memory_mib.or(self.limit_mib).is_none() || s.tier_mib.is_none()) {
                return wrong(key("kind"), "foyer wants tier_mib, and memory_mib or a limit_mib");
            }
            if foyer && self.load.iter().any(|load| load.kind != LoadKind::Reads) {
                return wrong(key("kind"), "foyer is no file system: its loads are of kind = \"reads\"");
            }
            if s.tier_mib.is_some_and(|mib| !(32..=1 << 24).contains(&mib)) {
                return wrong(key("tier_mib"), "32 to 16777216 MiB");
            }
            if s.kind == SystemKind::Zram && self.limit_mib.is_none() {
                return wrong(key("kind"), "zram wants a limit_mib, which it shares with the program");
            }
        }
        Ok(())
    }

    fn check_loads(&self) -> Result<(), InvalidKey> {
        if self.load.is_empty() {
            return wrong("load", "name one or more");
        }
        for (i, l) in self.load.iter().enumerate() {
            let key = |name: &str| format!("load.{i}.{name}");
            check_name(&key("name"), &l.name, self.load[..i].iter().map(|o| &o.name))?;
            match l.kind {
                LoadKind::Fio => self.check_fio(l, &key)?,
                LoadKind::Reads => self.check_reads(l, &key)?,
                LoadKind::Command => self.check_command(l, &key)?,
            }
            let restarts = |s: &SystemSpec| matches!(s.kind, SystemKind::Terrace | SystemKind::TerraceMount);
            if l.restart && (l.kind != LoadKind::Reads || !self.system.iter().all(restarts)) {
                return wrong(key("restart"), "for kind = \"reads\" and systems of terrace");
            }
            if let Some(other) = l.systems.iter().find(|name| !self.system.iter().any(|s| s.name == **name)) {
                return wrong(key("systems"), format!("there is no system {other:?}"));
            }
            if l.expect == Some(Expect::Limit) && self.limit_mib_of(l).is_none() {
                return wrong(key("expect"), "there is no limit_mib");
            }
        }
        Ok(())
    }

    fn check_reads(&self, l: &LoadSpec, key: &dyn Fn(&str) -> String) -> Result<(), InvalidKey> {
        no_shell(l, key, "reads")?;
        if l.once
            || !l.options.is_empty()
            || l.parts != 1
            || l.depth != 1
            || l.rw != Access::Randread
            || l.bs != "4k"
        {
            return wrong(key("kind"), "once, options, parts, depth, rw and bs are fio's");
        }
        match self.file_mib_of(l) {
            None => wrong(key("kind"), "reads want a data set: file_mib, or file_set and limit_mib"),
            Some(_) => Ok(()),
        }
    }

    fn check_fio(&self, l: &LoadSpec, key: &dyn Fn(&str) -> String) -> Result<(), InvalidKey> {
        no_shell(l, key, "fio")?;
        if l.depth == 0 || l.depth > 4096 || l.depth > 1 && !l.engine.is_deep() {
            return wrong(key("depth"), "1 to 4096, above 1 for io_uring and libaio only");
        }
        if self.file_mib_of(l).is_none() {
            return wrong(key("kind"), "fio wants a data set: file_mib, or file_set and limit_mib");
        }
        if block_bytes(&l.bs).is_none() {
            return wrong(key("bs"), "a multiple of 4k, as 4k or 1m");
        }
        if l.once && l.rw != Access::Randread {
            return wrong(key("once"), "for randread: the others do nothing else");
        }
        if l.parts == 0 || l.parts > 1 && (l.rw != Access::Read || self.interleave.is_none()) {
            return wrong(key("parts"), "1 or more, above 1 for rw = \"read\" with interleave only");
        }
        Ok(())
    }

    fn check_command(&self, l: &LoadSpec, key: &dyn Fn(&str) -> String) -> Result<(), InvalidKey> {
        if l.command.is_none() {
            return wrong(key("kind"), "a command load wants its command");
        }
        if l.tree.is_some() != l.prepare.is_some() {
            return wrong(key("tree"), "goes with prepare, which makes it");
        }
        if l.tree.as_ref().is_some_and(|name| name.is_empty() || name.starts_with('.') || name.contains('/'))
        {
            return wrong(key("tree"), "the name of a directory");
        }
        if let Some(Err(e)) = l.regex.as_ref().map(|r| regex_lite::Regex::new(r)) {
            return wrong(key("regex"), e.to_string());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if l.metric.is_empty() || !l.metric.chars().all(plain) {
            return wrong(key("metric"), "letters, digits and _");
        }
        if l.better.is_some_and(|better| better != Better::of(&l.metric_key())) {
            let (name, taken) = (l.metric_key(), Better::of(&l.metric_key()).text());
            return wrong(
                key("better"),
                format!("metric {name:?}: {taken}; name it for its unit, as requests_per_s or load_s"),
            );
        }
        if l.once || !l.options.is_empty() || l.parts != 1 {
            return wrong(key("kind"), "once, options and parts are fio's");
        }
        Ok(())
    }

    fn check_targets(&self) -> Result<(), InvalidKey> {
        for (i, t) in self.target.iter().enumerate() {
            let key = |name: &str| format!("target.{i}.{name}");
            if !self.is_paired() && !t.alone {
                return wrong(key("metric"), "a target is for pairs of runs: pairing = true, or interleave");
            }
            if [t.at_most, t.at_least, t.above].iter().flatten().count() != 1 {
                return wrong(key("metric"), "one of at_most, at_least, above");
            }
            for (name, system) in [("system", &t.system), ("baseline", &t.baseline)] {
                let needed = name == "system" || !t.alone;
                if needed && !self.system.iter().any(|s| s.name == *system) {
                    return wrong(key(name), format!("there is no system {system:?}"));
                }
            }
            if t.load.as_ref().is_some_and(|load| !self.load.iter().any(|l| l.name == *load)) {
                return wrong(key("load"), "there is no such load");
            }
        }
        Ok(())
    }

    fn check_interleave(&self) -> Result<(), InvalidKey> {
        if self.interleave.is_none() {
            return Ok(());
        }
        if self.interleave == Some(0) {
            return wrong("interleave", "1 or more turns");
        }
        let alone = |s: &SystemSpec| {
            matches!(
                s.kind,
                SystemKind::Zram | SystemKind::KernelMglru | SystemKind::Foyer | SystemKind::Command
            )
        };
        if let Some(i) = self.system.iter().position(alone) {
            return wrong(format!("system.{i}.kind"), "it cannot run beside others, as interleave requires");
        }
        match self.load.iter().position(|l| l.kind != LoadKind::Fio || l.once || l.rw == Access::Write) {
            Some(i) => wrong(
                format!("load.{i}.kind"),
                "a turn continues with the caches of the last one: with interleave only fio, without once or write",
            ),
            None => Ok(()),
        }
    }
}

/// Rejects keys of commands in other kinds of loads.
fn no_shell(l: &LoadSpec, key: &dyn Fn(&str) -> String, kind: &str) -> Result<(), InvalidKey> {
    let given = [
        ("command", l.command.is_some()),
        ("ramp", l.ramp.is_some()),
        ("regex", l.regex.is_some()),
        ("tree", l.tree.is_some()),
        ("prepare", l.prepare.is_some()),
        ("verify", l.verify.is_some()),
        ("check", l.check.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => wrong(key(name), format!("not for kind = \"{kind}\"")),
        None => Ok(()),
    }
}

/// Checks a name: it is a part of ids, which are split at slashes.
fn check_name<'a>(
    key: &str,
    name: &str,
    mut before: impl Iterator<Item = &'a String>,
) -> Result<(), InvalidKey> {
    if name.contains('/') || name.chars().any(char::is_control) {
        return wrong(key, "no slashes in names");
    }
    if before.any(|other| other == name) {
        return wrong(key, format!("there is another {name:?}"));
    }
    Ok(())
}

/// The line, from 1, of byte `offset`.
fn line_of_offset(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

/// The key on the line of byte `offset`, if there is one.
fn key_at(text: &str, offset: usize) -> Option<&str> {
    let line = text.lines().nth(line_of_offset(text, offset) - 1)?;
    let key = line.split_once('=')?.0.trim();
    key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)).then_some(key)
}

/// The line of a key, or of its nearest enclosing table in the text.
fn line_of_key(text: &str, key: &str) -> usize {
    let Ok(root) = DeTable::parse(text) else { return 1 };
    let mut table = root.get_ref();
    let mut parts = key.split('.').peekable();
    let mut offset = 0;
    while let Some(part) = parts.next() {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
        offset = key.span().start;
        let inner = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            DeValue::Array(all) => {
                let entry =
                    parts.next_if(|n| n.parse::<usize>().is_ok()).and_then(|n| n.parse::<usize>().ok());
                entry.and_then(|n| all.get(n)).and_then(|entry| {
                    offset = entry.span().start;
                    entry.get_ref().as_table()
                })
            }
            _ => None,
        };
        let Some(inner) = inner else { break };
        table = inner;
    }
    line_of_offset(text, offset)
}
