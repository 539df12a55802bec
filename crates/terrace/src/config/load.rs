//! Builds the configuration of an invocation: finds, reads and checks the file, then applies overrides.

use std::ffi::OsString;
use std::path::Path;

use super::{CompressionMode, Config, device, limits, locate, measured};
use crate::cli::Tuning;
use crate::error::{Failure, Result, reason};

impl Config {
    pub(crate) fn load(tuning: &Tuning) -> Result<Config> {
        Config::load_with(tuning, &|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    /// [`Config::load`] with the environment as a function, for tests.
    pub(super) fn load_with(tuning: &Tuning, env: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let mut config = match locate::file(tuning.config.as_deref(), env) {
            Some(path) => Config::read(&path)?,
            None => Config::default(),
        };
        let memory = named(&tuning.memory, "--memory").or(named(&env("TERRACE_MEMORY"), "TERRACE_MEMORY"));
        if let Some((name, text)) = memory {
            config.memory = limits::parse_memory(name, text)?;
        }
        let policy = named(&tuning.policy, "--policy").or(named(&env("TERRACE_POLICY"), "TERRACE_POLICY"));
        if let Some((name, text)) = policy {
            limits::check_policy(&text).map_err(|(why, cure)| Failure::new(name, why, cure))?;
            config.policy = text;
            limits::check_min_ttl(&config)
                .map_err(|wrong| Failure::new(name, wrong.to_string(), wrong.cure))?;
        }
        let numa = named(&tuning.numa, "--numa").or(named(&env("TERRACE_NUMA"), "TERRACE_NUMA"));
        if let Some((name, text)) = numa {
            config.numa = limits::parse_numa(name, &text)?;
        }
        let passthrough = named(&tuning.passthrough, "--passthrough")
            .or(named(&env("TERRACE_PASSTHROUGH"), "TERRACE_PASSTHROUGH"));
        if let Some((name, text)) = passthrough {
            config.fuse.passthrough = limits::parse_passthrough(name, &text)?;
        }
        let of_env = env("TERRACE_TIER").map(|text| vec![OsString::from(text)]);
        let of_flags = (!tuning.tier.is_empty()).then(|| tuning.tier.clone());
        if let Some((name, texts)) = named(&of_flags, "--tier").or(named(&of_env, "TERRACE_TIER")) {
            device::set(&mut config.tier, name, &texts)?;
        }
        let metrics =
            named(&tuning.metrics, "--metrics").or(named(&env("TERRACE_METRICS"), "TERRACE_METRICS"));
        config.metrics.public |= tuning.metrics_public;
        if let Some((name, text)) = metrics {
            config.metrics.address = text;
            limits::check_metrics(&config.metrics).map_err(|(why, cure)| Failure::new(name, why, cure))?;
        }
        config.tier.format = tuning.format_tier;
        if config.tier.format && config.tier.device.is_empty() {
            let cure = "name it with --tier PATH[:SIZE], or in [[tier.device]] of the configuration";
            return Err(Failure::new("--format-tier", "there is no tier to format", cure));
        }
        Ok(config)
    }

    /// Reads and checks one file.
    pub(super) fn read(path: &Path) -> Result<Config> {
        let name = &path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|err| Failure::new(name, reason(err), "name a readable file"))?;
        let mut config = Config::parse(&text).map_err(|(line, why, cure)| {
            Failure::new(format_args!("{} line {line}", path.display()), why, cure)
        })?;
        if !config.tier.probe.as_os_str().is_empty() {
            config.tier.probe = path.parent().unwrap_or(Path::new("")).join(&config.tier.probe);
        }
        let file = std::path::absolute(path)
            .map_err(|err| Failure::new(name, reason(err), "name it by an absolute path"))?;
        device::resolve(&mut config.tier.device, file.parent().unwrap_or(Path::new("/")));
        Ok(config)
    }

    /// Looks up the costs of the source's and the tiers' devices in the file of `tier.probe`, if there is
    /// one.
    pub(crate) fn look_up_device(&mut self, src: &Path) -> Result<()> {
        if self.tier.probe.as_os_str().is_empty() {
            return Ok(());
        }
        self.tier.miss = measured::miss(&self.tier.probe, src)?;
        if self.tier.miss.is_none() && self.tier.compressed.codec != CompressionMode::None {
            terrace_output::error_line!("{}", measured::unknown(&self.tier.probe, src));
        }
        for device in self.tier.device.iter_mut().filter(|device| !device::is_remote(&device.path)) {
            device.speed = measured::speed(&self.tier.probe, device.measured_at())?;
        }
        Ok(())
    }

    /// Parses and checks the text of a file; an error comes with its line and cure.
    pub(super) fn parse(text: &str) -> std::result::Result<Config, (usize, String, String)> {
        let config = toml::from_str::<Config>(text).map_err(|err| {
            let line = locate::line_of_offset(text, err.span().map_or(0, |span| span.start));
            (line, err.message().to_owned(), "correct the line, docs/terrace.toml lists every key".to_owned())
        })?;
        match limits::check(&config) {
            Ok(()) => Ok(config),
            Err(wrong) => Err((locate::line_of_key(text, wrong.key), wrong.to_string(), wrong.cure)),
        }
    }
}

/// A value with the name of its source.
fn named<'a, T: Clone>(value: &Option<T>, name: &'a str) -> Option<(&'a str, T)> {
    value.clone().map(|text| (name, text))
}
