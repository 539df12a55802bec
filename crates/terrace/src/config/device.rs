//! Targets of the tiers below DRAM, from `[[tier.device]]` and `--tier`: files, block devices, places in a
//! store.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_engine::TARGETS_MAX;

use super::Tier;
use super::invalid::InvalidValue;
use crate::error::{Failure, Result, reason};
use crate::size::{MIB, Size};

const READ_USUAL: Duration = Duration::from_micros(90);
const READ_USUAL_REMOTE: Duration = Duration::from_millis(10);
/// Longest name: statistics show names in a column.
const NAME_MAX: usize = 32;
/// One batch: a smaller budget could not write at all.
const WRITE_BUDGET_MIN: Size = Size(MIB);

/// `[[tier.device]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Device {
    /// Name in statistics and messages.
    pub name: String,
    /// A file, a block device, or a place in a store (`s3://`, `fs://`).
    pub path: PathBuf,
    /// Size; none: that of the file or device.
    pub size: Option<Size>,
    /// Bytes that may be written a day; none: as many as pay.
    pub write_budget: Option<Size>,
    /// Total bytes of writes that the vendor warrants; none: not known.
    pub rated_writes: Option<Size>,
    /// Measured speed, set by [`super::Config::look_up_device`].
    #[serde(skip)]
    pub speed: Option<Speed>,
}

/// Measured speed of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    /// Mean time of a 4 KiB read.
    pub read: Duration,
    /// Maximum write bandwidth, bytes a second.
    pub write_bytes: f64,
}

impl Default for Device {
    fn default() -> Device {
        Device {
            name: "device".to_owned(),
            path: PathBuf::new(),
            size: None,
            write_budget: None,
            rated_writes: None,
            speed: None,
        }
    }
}

/// Does a path name a place in a store instead of a file?
pub(crate) fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("s3://") || text.starts_with("fs://"))
}

impl Device {
    /// Mean time of a 4 KiB read: as measured, or else that of a typical SSD or store.
    pub(crate) fn read_time(&self) -> Duration {
        let usual = if is_remote(&self.path) { READ_USUAL_REMOTE } else { READ_USUAL };
        self.speed.map_or(usual, |speed| speed.read)
    }

    /// A path on the target's file system: the file, or its directory while the file does not exist yet.
    pub(crate) fn measured_at(&self) -> &Path {
        match self.path.exists() {
            true => &self.path,
            false => self.path.parent().unwrap_or(Path::new("/")),
        }
    }
}

/// Checks the entries; an error names the key.
pub(crate) fn check(devices: &[Device]) -> std::result::Result<(), InvalidValue> {
    let wrong = |key, why: String, cure: String| Err(InvalidValue::new(key, why, cure));
    if devices.len() > TARGETS_MAX {
        let why = format!("has {} entries, and terrace uses {TARGETS_MAX} at one time", devices.len());
        return wrong("tier.device", why, "remove some of them".to_owned());
    }
    for (n, device) in devices.iter().enumerate() {
        if device.path.as_os_str().is_empty() {
            let cure = "write path = \"FILE\", a file or a block device on a local SSD";
            return wrong("tier.device.path", "is missing".to_owned(), cure.to_owned());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=NAME_MAX).contains(&device.name.len()) || !device.name.chars().all(plain) {
            let cure = format!("write 1 to {NAME_MAX} letters, digits, `-`, `_` or `.`");
            return wrong("tier.device.name", format!("= \"{}\" is no name", device.name), cure);
        }
        if ["dram", "compressed"].contains(&device.name.as_str()) {
            let why = format!("= \"{}\" is the name of another tier", device.name);
            return wrong("tier.device.name", why, "choose another, for example \"ssd\"".to_owned());
        }
        if devices[..n].iter().any(|other| other.name == device.name) {
            let why = format!("= \"{}\" is the name of two tiers", device.name);
            return wrong("tier.device.name", why, "give each a name of its own".to_owned());
        }
        if devices[..n].iter().any(|other| other.path == device.path) {
            let why = format!("= \"{}\" is the path of two tiers", device.path.display());
            return wrong("tier.device.path", why, "name each file or device once".to_owned());
        }
        if let Some(budget) = device.write_budget.filter(|budget| *budget < WRITE_BUDGET_MIN) {
            let cure = format!("write at least {WRITE_BUDGET_MIN}, or leave it out for no limit");
            return wrong("tier.device.write_budget", format!("= {budget} a day is too little"), cure);
        }
        if device.rated_writes == Some(Size(0)) {
            let cure = "write the vendor's figure, for example \"600TB\", or leave it out";
            return wrong("tier.device.rated_writes", "= 0 is no rating".to_owned(), cure.to_owned());
        }
    }
    Ok(())
}

/// Relative paths in a configuration file are relative to its directory.
pub(super) fn resolve(devices: &mut [Device], beside: &Path) {
    for device in devices.iter_mut().filter(|device| !is_remote(&device.path)) {
        device.path = beside.join(&device.path);
    }
}

/// `PATH[:SIZE]`: the text after the last colon is the size if it parses, or else part of the path.
pub(crate) fn split(text: &OsStr) -> (PathBuf, Option<Size>) {
    let bytes = text.as_bytes();
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    // In a place in a store, the number may be a port: a size there needs a unit.
    let has_unit = bytes.last().is_some_and(u8::is_ascii_alphabetic);
    let sized = colon.filter(|_| has_unit || !is_remote(Path::new(text))).and_then(|at| {
        let size = std::str::from_utf8(&bytes[at + 1..]).ok()?.parse::<Size>().ok()?;
        Some((path(&bytes[..at]), Some(size)))
    });
    sized.unwrap_or_else(|| (path(bytes), None))
}

/// Replaces the targets of the file by those of flag, environment or mount option `name`. Other keys that the
/// file has for the same path stay in force.
pub(super) fn set(tier: &mut Tier, name: &str, texts: &[OsString]) -> Result<()> {
    let of_file = std::mem::take(&mut tier.device);
    for text in texts {
        let (path, size) = split(text);
        if path.as_os_str().is_empty() {
            let why = format!("`{}` names no file", text.display());
            return Err(Failure::new(
                name,
                why,
                "write PATH or PATH:SIZE, for example /ssd/terrace.tier:64GiB",
            ));
        }
        // The supervisor changes its working directory.
        let absolute = if is_remote(&path) { Ok(path) } else { std::path::absolute(&path) };
        let path = absolute.map_err(|err| Failure::new(name, reason(err), "write an absolute path"))?;
        let known = of_file.iter().find(|device| device.path == path).cloned();
        let mut device =
            known.unwrap_or_else(|| Device { name: free_name(&tier.device, &of_file), ..Device::default() });
        device.path = path;
        device.size = size.or(device.size);
        tier.device.push(device);
    }
    check(&tier.device).map_err(|wrong| Failure::new(name, wrong.to_string(), wrong.cure))
}

/// The first unused name of `device`, `device-2`, ...
pub(crate) fn free_name(devices: &[Device], of_file: &[Device]) -> String {
    let is_taken = |name: &String| devices.iter().chain(of_file).any(|device| device.name == *name);
    let usual = Device::default().name;
    let mut names = [usual.clone()].into_iter().chain((2..).map(|n| format!("{usual}-{n}")));
    names.find(|name| !is_taken(name)).expect("there are more names than devices")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::GIB;

    fn split_of(text: &str) -> (String, Option<u64>) {
        let (path, size) = split(OsStr::new(text));
        (path.display().to_string(), size.map(|size| size.0))
    }

    #[test]
    fn last_colon_separates_a_size_only() {
        assert_eq!(split_of("/ssd/t"), ("/ssd/t".to_owned(), None));
        assert_eq!(split_of("/ssd/t:2GiB"), ("/ssd/t".to_owned(), Some(2 * GIB)));
        assert_eq!(split_of("/ssd/a:b"), ("/ssd/a:b".to_owned(), None));
        assert_eq!(split_of("/ssd/a:b:1G"), ("/ssd/a:b".to_owned(), Some(GIB)));
        assert_eq!(split_of("/ssd/pci-0:1f:"), ("/ssd/pci-0:1f:".to_owned(), None));
        assert_eq!(split_of("/ssd/t:12:x"), ("/ssd/t:12:x".to_owned(), None));
        assert_eq!(split_of(":1G"), (String::new(), Some(GIB)));
        assert!(is_remote(Path::new("fs:///a")) && !is_remote(Path::new("/a")));
        let place = "s3://b/p?endpoint=http://[::1]:9000";
        assert_eq!(split_of(place), (place.to_owned(), None));
        assert_eq!(split_of(&format!("{place}:2GiB")), (place.to_owned(), Some(2 * GIB)));
        let place = "s3://b/p?endpoint=http://h:1G&region=x";
        assert_eq!(split_of(place), (place.to_owned(), None));
        let bytes = OsStr::from_bytes(b"/ssd/\xff:\xff");
        assert_eq!(split(bytes), (PathBuf::from(bytes), None));
    }

    #[test]
    fn flag_keeps_what_the_file_says_of_the_same_path() {
        let ssd = Device {
            name: "ssd".to_owned(),
            path: "/ssd/t".into(),
            size: Some(Size(GIB)),
            write_budget: Some(Size(GIB)),
            ..Device::default()
        };
        let mut tier = Tier { device: vec![ssd.clone()], ..Tier::default() };
        let texts = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
        set(&mut tier, "--tier", &texts(&["/ssd/t:2GiB"])).unwrap();
        assert_eq!(tier.device, [Device { size: Some(Size(2 * GIB)), ..ssd }]);
        set(&mut tier, "--tier", &texts(&["/other", "/ssd/t", "/third:1GiB"])).unwrap();
        let named: Vec<_> =
            tier.device.iter().map(|of| (of.name.as_str(), of.path.to_str().unwrap())).collect();
        assert_eq!(named, [("device", "/other"), ("ssd", "/ssd/t"), ("device-2", "/third")]);
        assert_eq!(tier.device[1].write_budget, Some(Size(GIB)));
        let failure = set(&mut tier, "--tier", &texts(&["/a", "/b", "/a:1GiB"])).unwrap_err().to_string();
        assert_eq!(
            failure,
            "terrace: --tier: tier.device.path = \"/a\" is the path of two tiers; name each file or device once"
        );
        set(&mut tier, "--tier", &texts(&["beside"])).unwrap();
        assert!(tier.device[0].path.is_absolute());
        let failure = set(&mut tier, "--tier", &texts(&[":1GiB"])).unwrap_err().to_string();
        assert_eq!(
            failure,
            "terrace: --tier: `:1GiB` names no file; write PATH or PATH:SIZE, for example /ssd/terrace.tier:64GiB"
        );
    }
}
