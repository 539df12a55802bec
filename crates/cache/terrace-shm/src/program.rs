//! Decides whether a program loads the preload library: programs for glibc on x86-64 do. Programs with a
//! sanitizer do not: its runtime must be the first library.
//!
//! ld.so of a 32-bit program reports an error for the library, and musl's does not start the program. So
//! every exec checks the program's file first. The check may run between vfork and exec, so it does not
//! allocate.

use rustix::fs::{AtFlags, Mode, OFlags};
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The library's file name.
pub const LIBRARY: &str = "libterrace_preload.so";

/// Longest chain of script interpreters, as in the kernel.
const SCRIPTS_MAX: usize = 5;
/// Bytes read at a file's start: mostly enough for a program's headers and its interpreter's name.
const HEAD_BYTES: usize = 1024;
const PATH_BYTES: usize = 1024;
/// Checked entries of a dynamic section.
const ENTRIES_MAX: usize = 256;

/// See elf(5).
const PROGRAM_LOAD: u32 = 1;
const PROGRAM_DYNAMIC: u32 = 2;
const PROGRAM_INTERPRETER: u32 = 3;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const CLASS_64: u8 = 2;
const MACHINE_X86_64: u16 = 62;

/// Runtimes of sanitizers that refuse to start behind another library.
const SANITIZERS: [&[u8]; 4] = [b"libasan.", b"libhwasan.", b"libtsan.", b"libclang_rt."];

/// False if the program would not load the library, or would report an error. True for an unreadable file.
pub fn loads_libraries(dir: BorrowedFd<'_>, path: &CStr) -> bool {
    let Some(file) = open(dir, path) else { return true };
    of_file(file).unwrap_or(true)
}

fn open(dir: BorrowedFd<'_>, path: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match path.is_empty() {
        // The descriptor is the program (fexecve).
        true => rustix::io::fcntl_dupfd_cloexec(dir, 0).ok(),
        false => rustix::fs::openat(dir, path, flags, Mode::empty()).ok(),
    }
}

/// A file and its first bytes.
struct File {
    fd: OwnedFd,
    head: [u8; HEAD_BYTES],
    len: usize,
}

impl File {
    fn new(fd: OwnedFd) -> Option<File> {
        let mut head = [0; HEAD_BYTES];
        let len = rustix::io::pread(&fd, &mut head[..], 0).ok()?;
        Some(File { fd, head, len })
    }
    fn head(&self) -> &[u8] {
        &self.head[..self.len]
    }
    /// Reads at an offset. Returns the number of bytes.
    fn read(&self, at: u64, to: &mut [u8]) -> Option<usize> {
        let from = usize::try_from(at).ok()?;
        if let Some(bytes) = self.head().get(from..from.checked_add(to.len())?) {
            to.copy_from_slice(bytes);
            return Some(to.len());
        }
        rustix::io::pread(&self.fd, to, at).ok()
    }
}

fn of_file(fd: OwnedFd) -> Option<bool> {
    let mut path = [0; PATH_BYTES];
    let mut file = File::new(fd)?;
    for _ in 0..SCRIPTS_MAX {
        if !file.head().starts_with(b"#!") {
            return of_elf(&file);
        }
        file = File::new(open(rustix::fs::CWD, interpreter_of_script(file.head(), &mut path)?)?)?;
    }
    None
}

/// `#! /path argument`.
fn interpreter_of_script<'a>(head: &[u8], path: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let line = head.get(2..)?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(|byte| b" \t\0".contains(byte)).find(|word| !word.is_empty())?;
    path.get_mut(..word.len())?.copy_from_slice(word);
    *path.get_mut(word.len())? = 0;
    CStr::from_bytes_until_nul(path).ok()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut all = [0; 8];
    all[..N].copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(all))
}

/// A program header: kind, offset in the file, address, bytes.
fn header(file: &File, at: u64) -> Option<(u32, u64, u64, u64)> {
    let mut raw = [0; 56];
    file.read(at, &mut raw).filter(|&len| len == raw.len())?;
    Some((
        number::<4>(&raw, 0)? as u32,
        number::<8>(&raw, 8)?,
        number::<8>(&raw, 16)?,
        number::<8>(&raw, 32)?,
    ))
}

fn of_elf(file: &File) -> Option<bool> {
    let head = file.head();
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if head.get(4) != Some(&CLASS_64) || number::<2>(head, 18)? as u16 != MACHINE_X86_64 {
        return Some(false);
    }
    let (first, size, count) = (number::<8>(head, 32)?, number::<2>(head, 54)?, number::<2>(head, 56)?);
    let headers = || (0..count).filter_map(|i| header(file, first.checked_add(i * size)?));
    if let Some((_, at, _, bytes)) = headers().find(|of| of.0 == PROGRAM_INTERPRETER) {
        let mut path = [0; 256];
        let room = path.get_mut(..usize::try_from(bytes).ok()?)?;
        file.read(at, room)?;
        let path = CStr::from_bytes_until_nul(&path).ok()?.to_bytes();
        let name = path.rsplit(|&byte| byte == b'/').next()?;
        if !name.starts_with(b"ld-linux") {
            return Some(false);
        }
    }
    let dynamic = headers().find(|of| of.0 == PROGRAM_DYNAMIC)?;
    let strings = each_entry(file, dynamic.1, |tag, _| tag == STRINGS)?;
    let (_, at, address, _) = headers()
        .find(|&(kind, _, start, bytes)| kind == PROGRAM_LOAD && strings.wrapping_sub(start) < bytes)?;
    let strings = strings - address + at;
    let has_sanitizer = each_entry(file, dynamic.1, |tag, value| {
        let mut name = [0; 16];
        tag == NEEDED
            && file.read(strings.wrapping_add(value), &mut name).is_some()
            && SANITIZERS.iter().any(|of| name.starts_with(of))
    });
    Some(has_sanitizer.is_none())
}

/// The value of the first entry of a dynamic section for which `f` returns true.
fn each_entry(file: &File, at: u64, f: impl Fn(u64, u64) -> bool) -> Option<u64> {
    let mut raw = [0; 512];
    for from in (0..ENTRIES_MAX * 16).step_by(raw.len()) {
        let len = file.read(at.checked_add(from as u64)?, &mut raw)?;
        for entry in raw[..len].chunks_exact(16) {
            let (tag, value) = (number::<8>(entry, 0)?, number::<8>(entry, 8)?);
            if tag == 0 {
                return None;
            }
            if f(tag, value) {
                return Some(value);
            }
        }
    }
    None
}

/// Calls `found` with each path that execvp(3) tries for a name, until it returns a value.
pub fn search<T>(name: &CStr, path: Option<&[u8]>, mut found: impl FnMut(&CStr) -> Option<T>) -> Option<T> {
    let name_bytes = name.to_bytes();
    if name_bytes.contains(&b'/') {
        return found(name);
    }
    let mut full = [0; PATH_BYTES];
    for dir in path.unwrap_or(b"/bin:/usr/bin").split(|&byte| byte == b':') {
        let len = dir.len() + usize::from(!dir.is_empty());
        let Some(room) = full.get_mut(..len + name_bytes.len() + 1) else { continue };
        room[..dir.len()].copy_from_slice(dir);
        room[dir.len()..len].fill(b'/');
        room[len..len + name_bytes.len()].copy_from_slice(name_bytes);
        room[len + name_bytes.len()] = 0;
        let Ok(candidate) = CStr::from_bytes_with_nul(room) else { continue };
        if rustix::fs::accessat(rustix::fs::CWD, candidate, rustix::fs::Access::EXEC_OK, AtFlags::empty())
            .is_ok()
            && let Some(answer) = found(candidate)
        {
            return Some(answer);
        }
    }
    None
}

/// Whether this word of LD_PRELOAD is the library.
pub fn is_library(word: &[u8]) -> bool {
    word.strip_suffix(LIBRARY.as_bytes()).is_some_and(|dir| dir.is_empty() || dir.ends_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn loads(path: &Path) -> bool {
        loads_libraries(rustix::fs::CWD, &CString::new(path.as_os_str().as_bytes()).unwrap())
    }

    /// An ELF file: class, machine, interpreter, a library that it needs.
    fn elf(class: u8, machine: u16, interpreter: &str, needed: &str) -> Vec<u8> {
        let strings = format!("\0{needed}\0");
        let (dynamic_at, strings_at, interpreter_at) = (512_u64, 1024_u64, 1536_u64);
        let mut file = vec![0; 2048];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF");
        put(4, &[class]);
        put(18, &machine.to_le_bytes());
        put(32, &64_u64.to_le_bytes());
        put(54, &56_u16.to_le_bytes());
        put(56, &3_u16.to_le_bytes());
        let len = interpreter.len() as u64 + 1;
        for (i, (kind, at, bytes)) in
            [(1_u32, 0, 2048), (2, dynamic_at, 48), (3, interpreter_at, len)].into_iter().enumerate()
        {
            let of = 64 + i * 56;
            put(of, &kind.to_le_bytes());
            put(of + 8, &at.to_le_bytes());
            put(of + 16, &(at + 0x40_0000 * u64::from(kind == 1)).to_le_bytes());
            put(of + 32, &u64::to_le_bytes(bytes));
        }
        for (i, (tag, value)) in [(1_u64, 1_u64), (5, 0x40_0000 + strings_at), (0, 0)].into_iter().enumerate()
        {
            put(dynamic_at as usize + i * 16, &tag.to_le_bytes());
            put(dynamic_at as usize + i * 16 + 8, &value.to_le_bytes());
        }
        put(strings_at as usize, strings.as_bytes());
        put(interpreter_at as usize, interpreter.as_bytes());
        file
    }

    #[test]
    fn programs_that_cannot_load_the_library_are_known() {
        let dir = std::env::temp_dir().join(format!("terrace-programs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let glibc = "/lib64/ld-linux-x86-64.so.2";
        for (n, (file, right)) in [
            (elf(2, 62, glibc, "libc.so.6"), true),
            (elf(1, 3, "/lib/ld-linux.so.2", "libc.so.6"), false),
            (elf(2, 183, "/lib/ld-linux-aarch64.so.1", "libc.so.6"), false),
            (elf(2, 62, "/lib/ld-musl-x86_64.so.1", "libc.so"), false),
            (elf(2, 62, glibc, "libasan.so.8"), false),
            (elf(2, 62, glibc, "libclang_rt.asan-x86_64.so"), false),
            (b"no program".to_vec(), true),
            (Vec::new(), true),
            (elf(2, 62, glibc, "libc.so.6")[..100].to_vec(), true),
        ]
        .into_iter()
        .enumerate()
        {
            let (program, script) = (dir.join(format!("p{n}")), dir.join(format!("s{n}")));
            std::fs::write(&program, file).unwrap();
            std::fs::write(&script, format!("#! {} -x\nrest\n", program.display())).unwrap();
            assert_eq!((loads(&program), loads(&script)), (right, right), "program {n}");
        }
        let circle = dir.join("circle");
        std::fs::write(&circle, format!("#!{}\n", circle.display())).unwrap();
        assert!(loads(&circle) && loads(&dir) && loads(Path::new("/nonexistent")));
        std::fs::remove_dir_all(dir).unwrap();
        assert!(loads(&std::env::current_exe().unwrap()));
    }

    #[test]
    fn names_are_found_as_by_execvp() {
        let tried = |name: &CStr, path: Option<&[u8]>| {
            let mut all = Vec::new();
            search::<()>(name, path, |at| {
                all.push(at.to_str().unwrap().to_owned());
                None
            });
            all
        };
        assert_eq!(tried(c"a/b", Some(b"/bin")), ["a/b"]);
        assert_eq!(tried(c"sh", Some(b"/nonexistent:/bin")), ["/bin/sh"]);
        assert!(tried(c"sh", None).contains(&"/bin/sh".to_owned()));
        assert_eq!(tried(c"nonexistent-program", None), [""; 0]);
    }

    #[test]
    fn the_library_is_known_by_its_name() {
        assert!(is_library(b"/usr/lib/terrace/libterrace_preload.so") && is_library(LIBRARY.as_bytes()));
        assert!(!is_library(b"/usr/lib/xlibterrace_preload.so") && !is_library(b"/usr/lib/libjemalloc.so"));
    }
}
