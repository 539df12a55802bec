//! Identity of a file and its state: its pages on a device are valid only while it is the same.

use rustix::fs::{AtFlags, StatxFlags, statx};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use terrace_policy::mix;

/// Youngest change that is sure to have another time than one that comes now: the kernel's clock for files ticks each 10 ms at the
/// longest. (The same rule as git's for entries that are "racily clean".)
const TICKS_NS: i64 = 20_000_000;
/// After so long a change is settled.
pub const SETTLES: Duration = Duration::from_nanos(TICKS_NS as u64 + 1_000_000);

/// Identity and state of a file at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Of birth time, inode, size, mtime and ctime. Never 0.
    pub digest: u64,
    /// When it last changed, ns since 1970.
    pub ctime: i64,
    /// A mark of the file itself, whatever its state; 0: the file system knows no time of birth.
    pub birth: u16,
}

impl Identity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// The file system's.
    pub fn of(fd: impl AsFd) -> io::Result<Identity> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let st = statx(fd, c"", AtFlags::EMPTY_PATH, wanted)?;
        let ns = |sec: i64, nsec: u32| sec.wrapping_mul(1_000_000_000).wrapping_add(nsec.into());
        let born = if StatxFlags::from_bits_retain(st.stx_mask).contains(StatxFlags::BTIME) {
            ns(st.stx_btime.tv_sec, st.stx_btime.tv_nsec)
        } else {
            0
        };
        let ctime = ns(st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec);
        let mtime = ns(st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec);
        // Not its device's number, which may be another after a restart of the machine.
        let words = [st.stx_ino, st.stx_size, born as u64, mtime as u64, ctime as u64];
        let birth = if born == 0 { 0 } else { digest(&[st.stx_ino, born as u64]) as u16 | 1 };
        Ok(Identity { digest: digest(&words), ctime, birth })
    }

    /// Whether a change from `now` (ns since 1970) on is sure to give it another ctime.
    pub fn is_settled(&self, now: i64) -> bool {
        now.saturating_sub(self.ctime) > TICKS_NS
    }
}

/// A digest of some words, the same for ever; never 0.
fn digest(words: &[u64]) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    words.iter().fold(GOLDEN, |sum, word| mix((sum ^ word).wrapping_mul(GOLDEN))).max(1)
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

    #[test]
    fn fresh_change_is_not_settled() {
        let at = Identity { digest: 1, ctime: 1_000_000_000, birth: 1 };
        assert!(
            !at.is_settled(1_000_000_000) && !at.is_settled(1_019_000_000) && at.is_settled(1_021_000_001)
        );
    }
}
