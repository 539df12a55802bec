//! terraced's side of `terrace tier add`, `remove`, `resize`: one change at a time, while programs are
//! served.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, RawFd};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use terrace_api::control::{CommandError, ErrorCode, TierAdd, TierChange, TierRemove, TierResize};
use terrace_api::tiers::{TierKind, TierRow};
use terrace_engine::{Engine, TARGETS_MAX};
use terrace_policy::placement::levels::levels;
use terrace_sync::Mutex;
use terrace_tier::Geometry;
use terrace_tier::target::{self, Others, TargetError};
use terrace_tier::{DeviceConfig, TargetTable};

use super::{Off, OpenTarget, record, region_numbers};
use crate::config::{self, Device};
use crate::engine::{device_config, open_media};
use crate::handover::Shared;
use crate::instance::Instance;
use crate::size::{Size, human};

/// The targets of a running instance.
pub(crate) struct Live {
    engine: Arc<Engine>,
    instance: Instance,
    src: PathBuf,
    config: config::Config,
    /// Descriptors of the supervisor.
    kept: Vec<RawFd>,
    supervisor: Pid,
    held: Mutex<Vec<OpenTarget>>,
    /// Targets that were unusable at the start.
    off: Mutex<Vec<Off>>,
}

/// First and longest pause before a store that failed at the start is tried again.
const AGAIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

type Change = Result<TierChange, CommandError>;

fn no(why: impl std::fmt::Display) -> CommandError {
    CommandError::failed(why)
}

/// The tier of each target, by number.
fn levels_of<'a>(held: impl Iterator<Item = &'a OpenTarget> + Clone) -> Vec<(usize, u8)> {
    let times: Vec<u64> = held.clone().map(|held| held.device.read_time().as_nanos() as u64).collect();
    held.map(|held| held.number).zip(levels(&times)).collect()
}

impl Live {
    /// Takes over the targets of an instance after its engine has started.
    pub(crate) fn new(engine: Arc<Engine>, shared: &mut Shared) -> Live {
        let mut held = std::mem::take(&mut shared.tier.held);
        held.iter_mut().zip(shared.memory.tables()).for_each(|(held, table)| held.table = Some(table));
        let (instance, src) = (shared.instance.clone(), shared.place.src.clone());
        let (config, kept, supervisor) = (shared.config.clone(), shared.kept.clone(), shared.supervisor);
        let off = Mutex::new(std::mem::take(&mut shared.tier.off));
        Live { engine, instance, src, config, kept, supervisor, held: Mutex::new(held), off }
    }

    /// Rows of unusable targets for `terrace stat`.
    pub(crate) fn off(&self) -> Vec<TierRow> {
        self.off.lock().iter().map(Off::row).collect()
    }

    /// Starts a thread that adds stores which failed at the start, once they can be reached. The thread ends
    /// when no store is left.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn try_stores_again(self: Arc<Live>) -> std::io::Result<()> {
        let stores = move |live: &Live| -> Vec<Device> {
            let off = live.off.lock();
            off.iter()
                .filter(|off| config::is_remote(&off.device.path))
                .map(|off| off.device.clone())
                .collect()
        };
        if stores(&self).is_empty() {
            return Ok(());
        }
        let again = move || {
            let mut pause = *AGAIN.start();
            while !stores(&self).is_empty() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(*AGAIN.end());
                for device in stores(&self) {
                    self.try_again(device);
                }
            }
        };
        std::thread::Builder::new().name("stores".to_owned()).spawn(again).map(drop)
    }

    fn try_again(&self, device: Device) {
        let others = others(&self.held.lock(), None);
        let Ok(target) = super::target(&self.config, &device, &self.src, others, self.supervisor) else {
            return;
        };
        let name = device.name.clone();
        let (number, first_region, made, removed, table) = (0, 0, false, false, None);
        let mut held = self.held.lock();
        let added =
            self.begin(&mut held, OpenTarget { device, target, number, first_region, made, removed, table });
        self.tell(&held);
        match added {
            Ok(_) => {
                tracing::info!("tier {name}: its store answers, and the tier takes and serves pages");
                let _ = self.forget_off(&name);
            }
            Err(err) => tracing::warn!("tier {name}: the tier cannot be added, and is tried again: {err}"),
        }
    }

    /// Removes an unusable target from the list, also for the next terraced.
    fn forget_off(&self, name: &str) -> std::io::Result<Option<Device>> {
        let mut off = self.off.lock();
        let Some(at) = off.iter().position(|off| off.device.name == name) else { return Ok(None) };
        record::note_gone(&self.instance, name)?;
        Ok(Some(off.remove(at).device))
    }

    /// The name of an unusable target, given its name or path.
    fn name_off(&self, asked: &Path) -> Option<String> {
        let off = self.off.lock();
        let is_it = |off: &&Off| off.device.path == asked || asked.to_str() == Some(&off.device.name);
        off.iter().find(is_it).map(|off| off.device.name.clone())
    }

    pub(crate) fn add(&self, asked: &TierAdd) -> Change {
        let mut held = self.held.try_lock().ok_or_else(busy)?;
        let mut device = Device {
            name: asked.name.clone().unwrap_or_default(),
            path: asked.path.clone(),
            size: asked.bytes.map(Size),
            ..Device::default()
        };
        let mut all: Vec<Device> = held.iter().map(|held| held.device.clone()).collect();
        let off = self.off.lock().clone().into_iter().map(|off| off.device);
        all.extend(off.filter(|off| off.path != asked.path));
        if asked.name.is_none() {
            device.name = config::free_name(&all, &[]);
        }
        all.push(device.clone());
        config::check_devices(&all).map_err(|wrong| no(format!("{wrong}; {}", wrong.cure)))?;
        let one = config::Tier { device: vec![device], ..self.config.tier.clone() };
        let mut config = config::Config { tier: one, ..self.config.clone() };
        config.tier.format = asked.format;
        config.look_up_device(&self.src).map_err(|failure| no(failure.line()))?;
        let Some(device) = config.tier.device.pop() else { return Err(no("no device")) };
        let made = !config::is_remote(&device.path) && !device.path.exists();
        let others = others(&held, None);
        let target = super::target(&config, &device, &self.src, others, self.supervisor)
            .map_err(|failure| no(failure.line()))?;
        let (number, first_region, removed, table) = (0, 0, false, None);
        let new = OpenTarget { device, target, number, first_region, made, removed, table };
        let added = self.begin(&mut held, new);
        self.tell(&held);
        if added.is_ok()
            && let Some(name) = self.name_off(&asked.path)
        {
            self.forget_off(&name).map_err(no)?;
        }
        added
    }

    /// Starts the use of an opened target.
    fn begin(&self, held: &mut Vec<OpenTarget>, mut new: OpenTarget) -> Change {
        let (config, table) = match prepare(held, &mut new) {
            Ok(prepared) => prepared,
            Err(why) => {
                super::close(new, &self.kept);
                return Err(why);
            }
        };
        let change = TierChange::of(&new.device.name, &new.device.path, config.bytes);
        held.push(new);
        let levels = levels_of(held.iter());
        let level = levels.last().map_or(0, |(_, level)| *level);
        let config = DeviceConfig { level, ..config };
        let begun = record::write(&self.instance, held);
        match begun.and_then(|()| self.engine.add_target(config, table, &levels)) {
            Ok(()) => Ok(change),
            Err(err) => {
                held.pop().into_iter().for_each(|held| super::close(held, &self.kept));
                Err(no(format!("{}: {err}", change.path.display())))
            }
        }
    }

    pub(crate) fn remove(&self, asked: &TierRemove) -> Change {
        let mut held = self.held.try_lock().ok_or_else(busy)?;
        let name_off = self.name_off(&asked.target);
        if let Some(name) = name_off
            && let Some(device) = self.forget_off(&name).map_err(no)?
        {
            return Ok(TierChange::of(&device.name, &device.path, 0));
        }
        let at = find(&held, &asked.target)?;
        if held.len() == 1 && !asked.force {
            let why = "it is the last tier: its pages would leave the cache; `--force` removes it";
            return Err(CommandError::new(ErrorCode::Refused, why));
        }
        held[at].removed = true;
        record::write(&self.instance, &held).map_err(no)?;
        let left: Vec<&OpenTarget> = held.iter().filter(|held| !held.removed).collect();
        let levels = levels_of(left.into_iter());
        let counts = self.engine.remove_target(held[at].number, &levels);
        // Even on an error: the record marks it as removed.
        let counts = counts.map_err(no)?;
        let gone = held.remove(at);
        let mut change = TierChange::of(&gone.device.name, &gone.device.path, 0);
        (change.moved_pages, change.dropped_pages) = (counts.moved_down, counts.dropped);
        change.file_removed = gone.made;
        super::close(gone, &self.kept);
        self.tell(&held);
        Ok(change)
    }

    pub(crate) fn resize(&self, asked: &TierResize) -> Change {
        let mut held = self.held.try_lock().ok_or_else(busy)?;
        let at = find(&held, &asked.target)?;
        let name = held[at].device.name.clone();
        if config::is_remote(&held[at].device.path) {
            return Err(no("a tier in a store keeps its size: remove it, and add it again with this size"));
        }
        let before = held[at].target.superblock.geometry;
        let geometry = self.divided(&held, at, asked.bytes)?;
        let path = held[at].device.path.clone();
        let fd = held[at].target.fd.as_fd();
        if geometry.regions() > before.regions() {
            target::extend(fd, geometry.bytes()).map_err(|fault| no(TargetError::new(&path, fault)))?;
        }
        let counts = || {
            self.engine.stats().tiers.into_iter().find(|row| row.name == name && row.kind == TierKind::Device)
        };
        let (was, mut new) = (counts().unwrap_or_default(), held[at].target.superblock.clone());
        new.geometry = geometry;
        let old = std::mem::replace(&mut held[at].target.superblock, new);
        let level =
            levels_of(held.iter()).iter().find(|(n, _)| *n == held[at].number).map_or(0, |(_, level)| *level);
        let done = self.engine.resize_target(&device_config(&held[at], level));
        let table = match done {
            Ok(table) => table,
            Err(err) => {
                held[at].target.superblock = old;
                return Err(no(format!("{}: {err}", path.display())));
            }
        };
        let before_table = held[at].table.replace(table);
        held[at].device.size = Some(Size(asked.bytes));
        self.tell(&held);
        drop(before_table);
        if let Err(err) = target::cut(held[at].target.fd.as_fd(), geometry.bytes()) {
            tracing::warn!(
                "{}: the tier's file cannot be truncated ({err}); its unused end still takes space",
                path.display()
            );
        }
        let now = counts().unwrap_or_default();
        let mut change = TierChange::of(&name, &path, geometry.bytes());
        change.moved_pages = now.moved_down.saturating_sub(was.moved_down);
        change.dropped_pages = now.dropped.saturating_sub(was.dropped);
        Ok(change)
    }

    /// The geometry of a target of `bytes`, with its present region size.
    fn divided(&self, held: &[OpenTarget], at: usize, bytes: u64) -> Result<Geometry, CommandError> {
        let of = &held[at].target.superblock.geometry;
        let region = human(of.region_bytes().into());
        let Some(geometry) = of.resized(bytes) else {
            let why = match bytes < of.bytes_min() {
                true => {
                    format!(
                        "is too small: the tier has regions of {region}, and needs {}",
                        human(of.bytes_min())
                    )
                }
                false => format!(
                    "is too large for the tier's regions of {region}: remove the tier, and add it again"
                ),
            };
            return Err(no(format!("{} {why}", human(bytes))));
        };
        let others_end = held.iter().filter(|other| other.first_region > held[at].first_region);
        let room = others_end.map(|other| other.first_region).min().unwrap_or(terrace_engine::REGIONS_MAX);
        if geometry.regions() > room - held[at].first_region {
            return Err(no("the tier cannot grow in place: remove it, and add it again with this size"));
        }
        target::check_memory(
            &held[at].device.path,
            geometry,
            self.config.memory.most().0,
            others(held, Some(at)),
        )
        .map_err(no)?;
        Ok(geometry)
    }

    /// Writes the record for the next terraced, and the description for commands.
    fn tell(&self, held: &[OpenTarget]) {
        let info = self.instance.info().map(|info| {
            let tiers = held.iter().map(|held| held.device.path.clone()).collect();
            terrace_api::instance::Info { tiers, ..info }
        });
        let told = record::write(&self.instance, held)
            .and_then(|()| info.map_or(Ok(()), |info| self.instance.write_info(&info)));
        if let Err(err) = told {
            tracing::error!(
                "the record of the tiers cannot be written ({err}): a restarted terraced uses the old list"
            );
        }
    }
}

/// Assigns numbers and table to a new target, and opens its medium.
fn prepare(
    held: &[OpenTarget],
    new: &mut OpenTarget,
) -> Result<(DeviceConfig, Arc<TargetTable>), CommandError> {
    let used: Vec<(u32, u32)> = held.iter().map(OpenTarget::regions).collect();
    let number = (0..TARGETS_MAX).find(|n| held.iter().all(|held| held.number != *n));
    let place = number.zip(region_numbers(&used, new.regions().1));
    (new.number, new.first_region) =
        place.ok_or_else(|| no("there is no room for another tier: remove one, or add a smaller one"))?;
    let mut config = device_config(new, 0);
    let table = TargetTable::create(&config).map(Arc::new).map_err(no)?;
    open_media(slice::from_mut(&mut config), slice::from_ref(new)).map_err(no)?;
    new.table = Some(table.clone());
    Ok((config, table))
}

fn busy() -> CommandError {
    CommandError::new(ErrorCode::Busy, "another tier is being added, removed or resized")
}

/// Finds a target by name or path.
fn find(held: &[OpenTarget], asked: &Path) -> Result<usize, CommandError> {
    let same = |held: &OpenTarget| {
        held.device.path == asked
            || asked.to_str() == Some(&held.device.name)
            || asked
                .canonicalize()
                .is_ok_and(|asked| held.device.path.canonicalize().is_ok_and(|path| path == asked))
    };
    held.iter().position(same).ok_or_else(|| {
        let names: Vec<&str> = held.iter().map(|held| held.device.name.as_str()).collect();
        let known = if names.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        no(format!("there is no tier {}; {known}", asked.display()))
    })
}

/// Sum of all targets' geometries, without one.
fn others(held: &[OpenTarget], but: Option<usize>) -> Others {
    let mut others = Others::default();
    let rest = held.iter().enumerate().filter(|(n, _)| Some(*n) != but);
    rest.for_each(|(_, held)| others.add(held.target.superblock.geometry));
    others
}
