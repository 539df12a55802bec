//! Script operations on names and attributes of files: rename, link, unlink, stat, chmod, times, extended
//! attributes.

use super::listing::{attributes, sorted_names};
use super::{Args, Executor, c, fstat, number, outcome};
use libc::c_int;

impl Executor {
    pub(super) fn names(&mut self, name: &str, a: Args) -> Option<String> {
        let p = |i: usize| c(a[i]);
        // SAFETY: NUL-terminated paths that live over each call.
        Some(outcome(i64::from(unsafe {
            match name {
                "rename" => libc::rename(p(0).as_ptr(), p(1).as_ptr()),
                "renameat2" => libc::renameat2(
                    libc::AT_FDCWD,
                    p(0).as_ptr(),
                    libc::AT_FDCWD,
                    p(1).as_ptr(),
                    number(a[2]) as u32,
                ),
                "link" => libc::link(p(0).as_ptr(), p(1).as_ptr()),
                "symlink" => libc::symlink(p(0).as_ptr(), p(1).as_ptr()),
                "unlink" => libc::unlink(p(0).as_ptr()),
                "mkdir" => libc::mkdir(p(0).as_ptr(), 0o755),
                "rmdir" => libc::rmdir(p(0).as_ptr()),
                "mkfifo" => libc::mkfifo(p(0).as_ptr(), 0o600),
                _ => return None,
            }
        })))
    }

    pub(super) fn attributes(&mut self, name: &str, a: Args) -> Option<String> {
        // SAFETY: NUL-terminated paths and plain integers; the buffers have the lengths given with them.
        Some(unsafe {
            match name {
                "stat" | "lstat" => {
                    let mut st: libc::stat = std::mem::zeroed();
                    let f = if name == "stat" { libc::stat } else { libc::lstat };
                    if f(c(a[0]).as_ptr(), &raw mut st) < 0 {
                        outcome(-1)
                    } else {
                        attributes(&st, a[1] == "mtime")
                    }
                }
                "fstat" => match fstat(self.fd(a[0])) {
                    Some(st) => attributes(&st, a[1] == "mtime"),
                    None => outcome(-1),
                },
                "statx" => {
                    let mut st: libc::statx = std::mem::zeroed();
                    let mask = libc::STATX_SIZE | libc::STATX_NLINK | libc::STATX_TYPE;
                    match libc::statx(libc::AT_FDCWD, c(a[0]).as_ptr(), 0, mask, &raw mut st) {
                        0 if st.stx_mode & 0o170_000 == 0o100_000 => {
                            format!("size {} nlink {}", st.stx_size, st.stx_nlink)
                        }
                        other => outcome(other.into()),
                    }
                }
                "chmod" => outcome(libc::chmod(c(a[0]).as_ptr(), number(a[1]) as u32).into()),
                "fchmod" => outcome(libc::fchmod(self.fd(a[0]), number(a[1]) as u32).into()),
                "chown" => {
                    outcome(libc::lchown(c(a[0]).as_ptr(), number(a[1]) as u32, number(a[2]) as u32).into())
                }
                "utimens" => {
                    let times = times(number(a[1]));
                    outcome(libc::utimensat(libc::AT_FDCWD, c(a[0]).as_ptr(), times.as_ptr(), 0).into())
                }
                "futimens" => outcome(libc::futimens(self.fd(a[0]), times(number(a[1])).as_ptr()).into()),
                "setxattr" => {
                    let (len, pattern, flags) =
                        (number(a[2]) as usize, number(a[3]) as u64, number(a[4]) as c_int);
                    let value = self.content(len, pattern).as_ptr().cast();
                    outcome(libc::setxattr(c(a[0]).as_ptr(), c(a[1]).as_ptr(), value, len, flags).into())
                }
                "getxattr" => {
                    let buf = self.buf.get(65536).as_mut_ptr();
                    let got = libc::getxattr(c(a[0]).as_ptr(), c(a[1]).as_ptr(), buf.cast(), 65536);
                    self.got(got as i64)
                }
                "removexattr" => outcome(libc::removexattr(c(a[0]).as_ptr(), c(a[1]).as_ptr()).into()),
                "listxattr" => {
                    let buf = self.buf.get(65536).as_mut_ptr();
                    let got = libc::listxattr(c(a[0]).as_ptr(), buf.cast(), 65536);
                    if got < 0 { outcome(-1) } else { sorted_names(self.buf.get(got as usize)) }
                }
                _ => return None,
            }
        })
    }
}

fn times(seconds: i64) -> [libc::timespec; 2] {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    [time, time]
}
