//! Measured speeds of the devices of source and targets, from the file that `[tier] probe` names.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use terrace_api::device_profile::{Device, DeviceProfile};

use super::device::Speed;
use crate::error::{Failure, Result, reason};

const MIB: f64 = 1048576.0;
const CURE: &str =
    "write get_latency_us and put_mib_s below [device.\"DIRECTORY\"]; docs/operation.md has an example";

/// Mean time of a 4 KiB read of the device that holds `src`; none without a measurement of it.
pub(super) fn miss(file: &Path, src: &Path) -> Result<Option<Duration>> {
    speed(file, src).map(|found| found.map(|speed| speed.read))
}

/// Measured speed of the device that holds `path`; none if the file has no measurement of it.
pub(super) fn speed(file: &Path, path: &Path) -> Result<Option<Speed>> {
    let text =
        std::fs::read_to_string(file).map_err(|err| Failure::new(file.display(), reason(err), CURE))?;
    let probe = DeviceProfile::parse(&text).map_err(|wrong| {
        Failure::new(format_args!("{} line {}", file.display(), wrong.line), wrong.why, CURE)
    })?;
    Ok(entry(&probe, path).map(|device| Speed {
        read: Duration::from_secs_f64(device.get_latency_us / 1e6),
        write_bytes: device.put_mib_s * MIB,
    }))
}

/// The warning that there is no measurement.
pub(super) fn unknown(file: &Path, src: &Path) -> Failure {
    Failure::new(
        src.display(),
        format_args!(
            "{} has no entry for its device: a miss counts as on a typical NVMe disk",
            file.display()
        ),
        format_args!("add [device.\"{}\"] with get_latency_us and put_mib_s to it", src.display()),
    )
}

/// The entry for the file system of `src`; of several, the one with the nearest directory above `src`.
fn entry<'a>(probe: &'a DeviceProfile, src: &Path) -> Option<&'a Device> {
    let dev = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.dev());
    let here = dev(src)?;
    let targets = probe.device.iter().map(|(name, device)| (Path::new(name), device));
    let near = |path: &Path| if src.starts_with(path) { path.components().count() } else { 0 };
    let same = targets.filter(|(path, _)| dev(path) == Some(here));
    same.max_by_key(|(path, _)| near(path)).map(|(_, device)| device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &Path, get_latency_us: f64) -> String {
        format!("[device.\"{}\"]\nget_latency_us = {get_latency_us}\nput_mib_s = 1.0\n", name.display())
    }

    #[test]
    fn the_nearest_measurement_on_the_same_device_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (file, src, beside) = (path.join("p.toml"), path.join("src"), path.join("beside"));
        std::fs::create_dir(&src).unwrap();
        std::fs::create_dir(&beside).unwrap();
        let with = |devices: &[String]| {
            std::fs::write(&file, devices.concat()).unwrap();
            miss(&file, &src).map(|found| found.map(|miss| miss.as_nanos()))
        };
        let proc = device(Path::new("/proc"), 1.0);
        assert_eq!(with(std::slice::from_ref(&proc)).unwrap(), None);
        assert_eq!(with(&[proc, device(&beside, 90.0)]).unwrap(), Some(90_000));
        assert_eq!(with(&[device(&beside, 90.0), device(&path, 81.5)]).unwrap(), Some(81_500));
        let found = speed(&file, &src).unwrap().unwrap();
        assert_eq!((found.read, found.write_bytes), (Duration::from_nanos(81_500), MIB));
        let failure = with(&[device(&path, -1.0)]).unwrap_err().to_string();
        assert!(failure.contains("p.toml line 2: get_latency_us = -1 is out of bounds"), "{failure}");
        std::fs::remove_file(&file).unwrap();
        assert!(miss(&file, &src).unwrap_err().to_string().contains("No such file"));
    }
}
