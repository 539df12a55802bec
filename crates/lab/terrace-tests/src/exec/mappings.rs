//! Script operations on mappings of files: map, read, write, sync, unmap.

use super::{Args, Executor, number, outcome};
use crate::map::Map;

impl Executor {
    pub(super) fn mappings(&mut self, name: &str, a: Args) -> Option<String> {
        let n = |i: usize| number(a[i]);
        Some(match name {
            // A private mapping, read and dropped.
            "mapread" => {
                let (fd, at, len) = (self.fd(a[0]), n(1), n(2) as usize);
                let start = at & !4095;
                let Some(map) =
                    Map::new(fd, start, len + (at - start) as usize, libc::PROT_READ, libc::MAP_PRIVATE)
                else {
                    return Some(outcome(-1));
                };
                let result = self.peek(&map, (at - start) as usize, len);
                map.unmap();
                result
            }
            "mapkeep" => {
                self.unmap(n(1) as usize);
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                match Map::new(self.fd(a[0]), n(2) & !4095, n(3) as usize, protection, libc::MAP_SHARED) {
                    Some(map) => {
                        self.sequence().maps[n(1) as usize] = Some(map);
                        "mapped".into()
                    }
                    None => outcome(-1),
                }
            }
            "unmap" => self.unmap(n(0) as usize),
            "mappeek" | "mappoke" | "msync" => {
                let Some(map) = self.sequence().maps[n(0) as usize].take() else {
                    return Some("empty".into());
                };
                let result = match name {
                    "mappeek" => self.peek(&map, n(1) as usize, n(2) as usize),
                    "mappoke" => self.poke(&map, n(1) as usize, n(2) as usize, n(3) as u64),
                    // SAFETY: the mapping is ours.
                    _ => outcome(unsafe { libc::msync(map.address, map.len, libc::MS_SYNC) }.into()),
                };
                self.sequence().maps[n(0) as usize] = Some(map);
                result
            }
            _ => return None,
        })
    }

    /// Reads a mapping through `process_vm_readv`: beyond the end of the file the result is EFAULT, not
    /// SIGBUS.
    fn peek(&mut self, map: &Map, at: usize, len: usize) -> String {
        let at = at.min(map.len);
        let len = len.min(map.len - at);
        let buf = self.buf.get(len).as_mut_ptr();
        let local = libc::iovec { iov_base: buf.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: map.address.wrapping_byte_add(at), iov_len: len };
        // SAFETY: both vectors are in this process's memory; a missing page gives EFAULT.
        let got =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        self.got(got as i64)
    }

    /// Writes a mapping through `process_vm_writev`, within the file only. Bytes beyond the file's end in its
    /// last page differ: a local file system zeroes them before the file grows, the kernel's FUSE does not.
    fn poke(&mut self, map: &Map, at: usize, len: usize, pattern: u64) -> String {
        let in_file = map.in_file();
        let at = at.min(in_file);
        let len = len.min(in_file - at);
        let buf = self.content(len, pattern).as_mut_ptr();
        let local = libc::iovec { iov_base: buf.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: map.address.wrapping_byte_add(at), iov_len: len };
        // SAFETY: as in peek().
        outcome(unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        } as i64)
    }
}
