//! The device under the data: a directory as it is, a block device in memory, or one of these made slower.
//!
//! The one in memory is ext4 on a loop device with direct I/O over a file in tmpfs. All of it is made by the harness, outside of the limited group: its memory
//! is the device, not a cache. It stands for persistent memory, and so do its costs: the loop device's kernel threads copy each page, and take CPU time that
//! no system under test is charged with.

use super::cleanup::{Cleanup, Setup, loops_of, tool};
use super::spec::{Base, DeviceKind, DeviceSpec};
use crate::cgroup::Throttle;
use crate::machine;
use crate::pages::MIB;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A device that is there.
#[derive(Debug)]
pub struct Device {
    /// Where data go.
    pub data: PathBuf,
    /// The kernel's statistics of the block device, where only the systems under test use it.
    pub stat: Option<PathBuf>,
    /// How much the group is held back.
    pub throttle: Option<Throttle>,
    /// One line for people.
    pub told: String,
    /// Block device and mount point, where the mount is ours to renew.
    mount: Option<(String, PathBuf)>,
}

/// Room that ext4 wants beside the data.
pub(super) const METADATA_MIB: u64 = 96;

impl Device {
    /// Makes the device with room for `mib` of data. `dir` is where a directory without a path of its own is taken, `work` a directory of this process
    /// for mounts; with `keep`, a directory's data stay.
    ///
    /// # Errors
    /// A missing ability of the machine, and the cure.
    pub fn make(
        spec: &DeviceSpec,
        dir: &Path,
        work: &Path,
        mib: u64,
        keep: bool,
        cleanup: &mut Cleanup,
    ) -> io::Result<Device> {
        let mut device = match spec.base() {
            Base::Directory => directory(spec.path.as_deref().unwrap_or(dir), keep, cleanup)?,
            Base::Memory => memory("ext4", spec.latency_us, work, mib, cleanup)?,
        };
        if spec.kind == DeviceKind::Throttled && (spec.mib_s.is_some() || spec.iops.is_some()) {
            let on = throttled(&device)?;
            device.throttle =
                Some(Throttle { device: on, bytes_per_s: spec.mib_s.map(|mib| mib << 20), iops: spec.iops });
            let of = |limit: Option<u64>, unit: &str| {
                limit.map_or(String::new(), |n| format!(", at most {n} {unit}"))
            };
            device.told += &(of(spec.mib_s, "MiB/s") + &of(spec.iops, "requests a second"));
        }
        Ok(device)
    }

    /// A device in memory for tiers of so many MiB: nothing slows it down. All its memory is allocated now, and so is none that a system
    /// under test would be charged with.
    ///
    /// # Errors
    /// A missing ability of the machine, and the cure.
    pub fn for_tiers(work: &Path, mib: u64, cleanup: &mut Cleanup) -> io::Result<Device> {
        let device = memory("tier", None, work, mib, cleanup)?;
        let image = fs::File::options().write(true).open(work.join("tier-tmpfs/image"))?;
        let bytes = image.metadata()?.len();
        // SAFETY: takes a descriptor and numbers only.
        match unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&image), 0, 0, bytes as i64) } {
            0 => Ok(device),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A file system that was mounted by somebody else of the harness.
    pub(super) fn mounted(data: PathBuf, block: String, at: PathBuf) -> Device {
        Device { data, stat: None, throttle: None, told: block.clone(), mount: Some((block, at)) }
    }

    /// Mounts it anew, where the mount is ours: no run finds what the one before left in the file system's memory.
    ///
    /// # Errors
    /// Somebody uses the mount.
    pub fn renew(&self) -> io::Result<()> {
        let Some((block, at)) = &self.mount else { return Ok(()) };
        let name = CString::new(at.as_os_str().as_encoded_bytes())?;
        // SAFETY: a C string that outlives the call.
        if unsafe { libc::umount2(name.as_ptr(), 0) } != 0 {
            let e = io::Error::last_os_error();
            return Err(io::Error::new(e.kind(), format!("unmounting {}: {e}", at.display())));
        }
        mount(block, at)
    }
}

fn directory(path: &Path, keep: bool, cleanup: &mut Cleanup) -> io::Result<Device> {
    let data = path.join("terrace-bench-data");
    if !keep {
        cleanup.note(Setup::Path(data.clone()))?;
    }
    fs::create_dir_all(&data).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", data.display())))?;
    let data = data.canonicalize()?;
    Ok(Device {
        told: format!("directory {}", data.display()),
        data,
        stat: None,
        throttle: None,
        mount: None,
    })
}

fn memory(
    name: &str,
    latency_us: Option<u64>,
    work: &Path,
    mib: u64,
    cleanup: &mut Cleanup,
) -> io::Result<Device> {
    let room = mib + mib / 32 + METADATA_MIB;
    let (tmpfs, at) = (work.join(format!("{name}-tmpfs")), work.join(name));
    let image = tmpfs.join("image");
    check_room(room)?;
    fs::create_dir_all(&tmpfs)?;
    fs::create_dir_all(&at)?;
    cleanup.note(Setup::Mount(tmpfs.clone()))?;
    let size = format!("size={}m", room + 16);
    tool("mount", &["-t", "tmpfs", "-o", &size, "terrace-bench", text(&tmpfs)?])?;
    fs::File::create(&image)?.set_len(room << 20)?;
    let mut block = attach(&image, cleanup)?;
    let mut told = format!("{room} MiB of memory, as ext4 on {block}");
    if let Some(us) = latency_us {
        block = delayed(&block, us, cleanup)?;
        told += &format!(", {us} us later");
    }
    make_file_system(&block)?;
    cleanup.note(Setup::Mount(at.clone()))?;
    mount(&block, &at)?;
    let data = at.join("data");
    fs::create_dir(&data)?;
    let (major, minor) = number_of(&data)?;
    let stat = Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat")));
    Ok(Device { data: data.canonicalize()?, stat, throttle: None, told, mount: Some((block, at)) })
}

/// Memory that the device would take must be there, or the machine would end somebody to get it.
fn check_room(mib: u64) -> io::Result<()> {
    match machine::memory_available() / MIB {
        there if there < mib + 512 => Err(io::Error::other(format!(
            "a device of {mib} MiB does not fit into the {there} MiB of memory that are free; make the data set smaller"
        ))),
        _ => Ok(()),
    }
}

/// A loop device over `image`, which reads and writes it past the page cache.
fn attach(image: &Path, cleanup: &mut Cleanup) -> io::Result<String> {
    cleanup.note(Setup::Loop(image.to_path_buf()))?;
    let block = tool("losetup", &["--find", "--show", "--direct-io=on", text(image)?]).map_err(|e| {
        io::Error::new(
            e.kind(),
            format!("no loop device: {e}; load the module loop, or take kind = \"directory\""),
        )
    })?;
    let name = loops_of(image).first().cloned().unwrap_or_default();
    let direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap_or_default();
    if direct.trim() == "1" {
        return Ok(block);
    }
    Err(io::Error::other(
        "tmpfs takes no direct I/O here (Linux 6.6 and later do): the device would have a page cache of its own",
    ))
}

/// ext4, with all its tables written now: nothing of it goes on in the background later.
pub(super) fn make_file_system(block: &str) -> io::Result<()> {
    tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", block]).map(drop)
}

pub(super) fn mount(block: &str, at: &Path) -> io::Result<()> {
    tool("mount", &["-t", "ext4", "-o", "noatime", block, text(at)?]).map(drop)
}

pub(super) fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{} is not written in UTF-8", path.display())))
}

/// The block device with device-mapper's delay on it.
fn delayed(block: &str, us: u64, cleanup: &mut Cleanup) -> io::Result<String> {
    let targets = tool("dmsetup", &["targets"]).unwrap_or_default();
    if !targets.lines().any(|line| line.starts_with("delay ")) {
        return Err(io::Error::other(
            "latency_us wants device-mapper with its target delay (dmsetup, module dm-delay), which this machine has not; \
             mib_s and iops do without",
        ));
    }
    let name = format!("terrace-bench-{}", std::process::id());
    let sectors = tool("blockdev", &["--getsz", block])?;
    cleanup.note(Setup::Mapper(name.clone()))?;
    tool("dmsetup", &["create", &name, "--table", &format!("0 {sectors} delay {block} 0 {}", us / 1000)])?;
    Ok(format!("/dev/mapper/{name}"))
}

/// Number of the block device below a file system.
fn number_of(path: &Path) -> io::Result<(u32, u32)> {
    let number = fs::metadata(path)?.dev();
    Ok((libc::major(number), libc::minor(number)))
}

/// Number of the disk below the data: throttles are for whole disks.
fn throttled(device: &Device) -> io::Result<(u32, u32)> {
    let (major, minor) = number_of(&device.data)?;
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(|_| {
        io::Error::other(format!(
            "{} is on no block device, which alone can be throttled",
            device.data.display()
        ))
    })?;
    // A partition is below its disk.
    let disk = if sys.join("partition").exists() { sys.parent().unwrap_or(&sys) } else { &sys };
    let number = fs::read_to_string(disk.join("dev"))?;
    let parsed = number.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::other(format!("{}: {number:?} is no device number", disk.display())))
}
