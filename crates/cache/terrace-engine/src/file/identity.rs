//! Identity of a file and its state: pages on a device are valid only while the identity stays the same.

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, statx};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use terrace_policy::mix;
use terrace_tier::Naming;

/// Minimum age of a change with times that differ from the times of a change now. The kernel's clock for files
/// ticks at least every 10 ms. (Git's rule for "racily clean" entries.)
const TICKS_NS: i64 = 20_000_000;
/// The same for times in steps of one or two seconds, or from another machine's clock.
const COARSE_TICKS_NS: i64 = 2_100_000_000;
/// Time after which a change is settled, with fine times.
pub(crate) const SETTLES: Duration = Duration::from_nanos(TICKS_NS as u64 + 1_000_000);

/// Identity of a file when last examined, and its validity.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// None: no tier exists, or a later change may produce the same identity.
    pub(crate) identity: Option<u64>,
    /// End of the state None, by [`Clock::now_ns`](crate::Clock::now_ns). 0: permanent.
    pub(crate) until: u64,
}

/// Identity and state of a file at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Digest of birth time, inode, size, mtime and ctime. Without lasting inode numbers, the path replaces
    /// inode and birth. Never 0.
    pub(crate) digest: u64,
    /// Time of the last change, ns since 1970.
    pub(crate) ctime: i64,
    /// Mark of the file, independent of its state; 0: the file system has no birth times.
    pub(crate) birth: u16,
    /// No other file, or state of this one, has this digest, also after a reboot.
    pub(crate) is_lasting: bool,
    /// The last change by the file's times; then the time in which another may get the same, ns.
    changed: i64,
    ticks: i64,
}

impl Identity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Identity> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
        // Queries the server: the kernel's copy may be a minute old.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let st = statx(&fd, c"", flags, wanted)?;
        Ok(match Naming::of(&fd, &st) {
            Naming::Numbers => Identity::by_number(&st),
            Naming::Paths => Identity::by_name(&st, name_of(&fd).as_deref()),
        })
    }

    /// Identity by inode number: for file systems with lasting numbers and a kernel stamp for each change.
    fn by_number(st: &Statx) -> Identity {
        let born = birth(st);
        let (mtime, ctime) = (ns(st.stx_mtime), ns(st.stx_ctime));
        // Without the device number, which may change at a reboot.
        let words = [st.stx_ino, st.stx_size, born as u64, mtime as u64, ctime as u64];
        let birth = if born == 0 { 0 } else { digest(&[st.stx_ino, born as u64]) as u16 | 1 };
        let ticks = if is_fine(st) { TICKS_NS } else { COARSE_TICKS_NS };
        Identity { digest: digest(&words), ctime, birth, is_lasting: true, changed: ctime, ticks }
    }

    /// Identity by path, for all other file systems: the server may reuse numbers after a restart, and
    /// chooses the times.
    fn by_name(st: &Statx, name: Option<&[u8]>) -> Identity {
        let (mtime, ctime) = (ns(st.stx_mtime), ns(st.stx_ctime));
        let mut words = vec![st.stx_size, mtime as u64, ctime as u64];
        let name_bytes = name.unwrap_or_default();
        words.push(name_bytes.len() as u64);
        words.extend(name_bytes.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        }));
        Identity {
            digest: digest(&words),
            ctime,
            birth: 0,
            // Archives give whole seconds to all of their files.
            is_lasting: name.is_some() && is_fine(st),
            changed: mtime.max(ctime),
            ticks: COARSE_TICKS_NS,
        }
    }

    /// Whether a change at `now` (ns since 1970) or later is sure to produce another identity.
    pub(crate) fn is_settled(&self, now: i64) -> bool {
        now.saturating_sub(self.changed) > self.ticks
    }

    /// Time, ns, after which a change of now is settled. The clock of stamps may be a tick behind.
    pub(crate) fn settles_in(&self) -> u64 {
        (self.ticks + TICKS_NS).unsigned_abs()
    }
}

fn ns(time: StatxTimestamp) -> i64 {
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.into())
}

/// Birth time, ns since 1970; 0: the file system has none.
fn birth(st: &Statx) -> i64 {
    let knows = StatxFlags::from_bits_retain(st.stx_mask).contains(StatxFlags::BTIME);
    if knows { ns(st.stx_btime) } else { 0 }
}

/// Whether the times are finer than whole seconds.
fn is_fine(st: &Statx) -> bool {
    st.stx_mtime.tv_nsec != 0 || st.stx_ctime.tv_nsec != 0
}

/// A digest of words, stable over versions; never 0.
fn digest(words: &[u64]) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    words.iter().fold(GOLDEN, |sum, word| mix((sum ^ word).wrapping_mul(GOLDEN))).max(1)
}

/// The path of an open file. None: it has no name, or none in this mount namespace.
fn name_of(fd: impl AsFd) -> Option<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let path = std::fs::read_link(link).ok()?.into_os_string();
    let path = path.as_bytes();
    // A file may really have such a name: each start then drops its pages.
    (path.starts_with(b"/") && !path.ends_with(b" (deleted)")).then(|| path.to_owned())
}

#[cfg(test)]
pub(crate) fn found(digest: u64, ctime: i64, birth: u16) -> Identity {
    Identity { digest, ctime, birth, is_lasting: true, changed: ctime, ticks: TICKS_NS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    #[test]
    fn each_change_gives_another_identity() {
        let mut file = tempfile::tempfile().unwrap();
        let mut seen = vec![Identity::of(&file).unwrap()];
        let mut note = |file: &std::fs::File| {
            let now = Identity::of(file).unwrap();
            assert!(seen.iter().all(|before| before.digest != now.digest));
            seen.push(now);
            std::thread::sleep(Duration::from_millis(25));
        };
        std::thread::sleep(Duration::from_millis(25));
        file.write_all(b"one").unwrap();
        note(&file);
        let mtime = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"two", 0).unwrap();
        file.set_modified(mtime).unwrap();
        note(&file);
        file.set_len(1).unwrap();
        note(&file);
    }

    /// Times of a file, each in seconds and ns.
    fn file_with_times(mtime: (i64, u32), ctime: (i64, u32)) -> Statx {
        let mut st = statx(rustix::fs::CWD, c"/", AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
        (st.stx_ino, st.stx_size) = (7, 4096);
        (st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec) = mtime;
        (st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec) = ctime;
        st
    }

    #[test]
    fn fresh_change_is_not_settled() {
        let at = Identity::by_number(&file_with_times((0, 0), (1, 1)));
        assert!(
            !at.is_settled(1_000_000_000) && !at.is_settled(1_019_000_000) && at.is_settled(1_021_000_002)
        );
    }

    #[test]
    fn coarse_times_settle_after_their_seconds() {
        let at = Identity::by_number(&file_with_times((1000, 0), (1000, 0)));
        assert!(at.is_lasting && !at.is_settled(1_001_999_000_000) && at.is_settled(1_002_200_000_000));
        // The later one of the server's time and the file's time counts.
        let at = Identity::by_name(&file_with_times((1000, 5), (0, 0)), Some(b"/s/f"));
        assert!(at.is_lasting && !at.is_settled(1_001_999_000_000) && at.is_settled(1_002_200_000_000));
    }

    #[test]
    fn name_stands_for_a_number_that_does_not_last() {
        let mut st = file_with_times((1000, 5), (0, 0));
        let one = Identity::by_name(&st, Some(b"/s/one"));
        assert_ne!(one.digest, Identity::by_name(&st, Some(b"/s/two")).digest);
        st.stx_ino = 8;
        assert_eq!(one.digest, Identity::by_name(&st, Some(b"/s/one")).digest);
        assert!(!Identity::by_name(&st, None).is_lasting, "a file without a name");
        let whole = file_with_times((1_000_000_000, 0), (1_000_000_000, 0));
        assert!(!Identity::by_name(&whole, Some(b"/s/one")).is_lasting, "the times of an archive");
    }

    #[test]
    fn deleted_file_has_no_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(name_of(file.as_file()), Some(file.path().as_os_str().as_bytes().to_owned()));
        let kept = file.reopen().unwrap();
        drop(file);
        assert_eq!(name_of(&kept), None);
    }
}
