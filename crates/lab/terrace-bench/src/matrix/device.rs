//! The device under the data: a directory, a block device in memory, or a throttled one of these.
//!
//! The device in memory is ext4 on a loop device with direct I/O over a file in tmpfs. The harness makes it
//! outside of the limited group: its memory is the device, not a cache. It stands for persistent memory, with
//! similar costs: the loop device's kernel threads copy each page, and their CPU time is not charged to the
//! system under test.

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

/// A device in use.
#[derive(Debug)]
pub(crate) struct Device {
    /// Directory of the data.
    pub(crate) data: PathBuf,
    /// The kernel's statistics of the block device, if only the systems under test use it.
    pub(crate) stat: Option<PathBuf>,
    /// Throttle of the group.
    pub(crate) throttle: Option<Throttle>,
    /// Description in one line.
    pub(crate) told: String,
    /// Block device and mount point, if the harness may remount it.
    mount: Option<(String, PathBuf)>,
}

/// Room for ext4's metadata.
pub(super) const METADATA_MIB: u64 = 96;

impl Device {
    /// Makes the device with room for `mib` of data. `dir` serves as the directory if the matrix names none;
    /// `work` is this process's directory for mounts; `keep` keeps a directory's data.
    ///
    /// # Errors
    /// A missing feature of the machine, and the cure.
    pub(crate) fn make(
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
            let bytes_per_s = spec.mib_s.map(|mib| mib << 20);
            let is_own = spec.base() == Base::Memory;
            let throttle = Throttle { device: on, bytes_per_s, iops: spec.iops, is_own };
            let mut ends = throttle.ends().into_iter().map(|(file, was)| Setup::Value { file, was });
            ends.try_for_each(|value| cleanup.note(value))?;
            device.throttle = Some(throttle);
            let of = |limit: Option<u64>, unit: &str| {
                limit.map_or(String::new(), |n| format!(", at most {n} {unit}"))
            };
            device.told += &(of(spec.mib_s, "MiB/s") + &of(spec.iops, "requests a second"));
        }
        Ok(device)
    }

    /// Makes an unthrottled device in memory for tiers of `mib` MiB. All its memory is allocated now, outside
    /// the group of any system under test.
    ///
    /// # Errors
    /// A missing feature of the machine, and the cure.
    pub(crate) fn for_tiers(work: &Path, mib: u64, cleanup: &mut Cleanup) -> io::Result<Device> {
        let device = memory("tier", None, work, mib, cleanup)?;
        let image = fs::File::options().write(true).open(work.join("tier-tmpfs/image"))?;
        let bytes = image.metadata()?.len();
        // SAFETY: takes a descriptor and numbers only.
        match unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&image), 0, 0, bytes as i64) } {
            0 => Ok(device),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A file system mounted elsewhere in the harness.
    pub(super) fn mounted(data: PathBuf, block: String, at: PathBuf) -> Device {
        Device { data, stat: None, throttle: None, told: block.clone(), mount: Some((block, at)) }
    }

    /// Remounts it, if the mount is the harness's own, so that no run finds the last one's state in the file
    /// system's memory.
    ///
    /// # Errors
    /// The mount is in use.
    pub(crate) fn renew(&self) -> io::Result<()> {
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
    fs::create_dir_all(&data).map_err(terrace_output::named(&data))?;
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

/// Checks that the device's memory is available; otherwise the OOM killer would free it.
fn check_room(mib: u64) -> io::Result<()> {
    match machine::memory_available() / MIB {
        there if there < mib + 512 => Err(io::Error::other(format!(
            "a device of {mib} MiB does not fit into the {there} MiB of free memory; make the data set smaller"
        ))),
        _ => Ok(()),
    }
}

/// A loop device over `image` with direct I/O.
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

/// Makes ext4 and writes all its tables now, so that no background work remains.
pub(super) fn make_file_system(block: &str) -> io::Result<()> {
    tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", block]).map(drop)
}

pub(super) fn mount(block: &str, at: &Path) -> io::Result<()> {
    tool("mount", &["-t", "ext4", "-o", "noatime", block, text(at)?]).map(drop)
}

pub(super) fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
}

/// Adds device-mapper's delay to the block device.
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

/// Number of a file system's block device.
fn number_of(path: &Path) -> io::Result<(u32, u32)> {
    let number = fs::metadata(path)?.dev();
    Ok((libc::major(number), libc::minor(number)))
}

/// Number of the disk below the data: throttles apply to whole disks.
fn throttled(device: &Device) -> io::Result<(u32, u32)> {
    let (major, minor) = number_of(&device.data)?;
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(|_| {
        io::Error::other(format!(
            "{} is not on a block device: only block devices can be throttled",
            device.data.display()
        ))
    })?;
    // The parent of a partition is its disk.
    let disk = if sys.join("partition").exists() { sys.parent().unwrap_or(&sys) } else { &sys };
    let number = fs::read_to_string(disk.join("dev"))?;
    let parsed = number.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::other(format!("{}: {number:?} is no device number", disk.display())))
}
