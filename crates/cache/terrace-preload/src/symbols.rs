//! The next definition of a function in the program's search order: as dlsym(RTLD_NEXT), but without the
//! loader's lock.
//!
//! Look-ups happen at first calls: in signal handlers, after forks, in threads that a dlopen's constructor
//! awaits. There dlsym would wait for the loader's lock. The objects between this library and libc are loaded
//! at the start and never unloaded: their tables stay readable.
//!
//! Formats: System V ABI (dynamic section, symbol table), and the GNU hash table, which glibc has had since 2.5.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// See link.h.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dyn,
    next: *const LinkMap,
}

/// See elf.h.
#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

/// See link.h.
#[repr(C)]
struct Debug {
    version: c_int,
    map: UnsafeCell<*const LinkMap>,
}

// SAFETY: the loader's. Only the head of its list is read, which is the program and never changes.
unsafe impl Sync for Debug {}

unsafe extern "C" {
    /// The loader's list of objects.
    static _r_debug: Debug;
    /// This library's dynamic section.
    static _DYNAMIC: Dyn;
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// Flag of a version that is used only by explicit request.
const VERSYM_HIDDEN: u16 = 0x8000;
const STT_GNU_IFUNC: u8 = 10;

/// Tables of an object for the look-up.
struct Object {
    base: usize,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    versions: *const u16,
    hash: *const u32,
    soname: usize,
}

/// Whether the tables can be read: 0: not checked yet, 1: yes, 2: no.
static READABLE: AtomicU32 = AtomicU32::new(0);

/// The next definition of a function; None if no object from here to libc has one.
pub(crate) fn next(name: &CStr) -> Option<usize> {
    if READABLE.load(Ordering::Relaxed) == 0 {
        let readable = behind().is_some_and(|mut all| all.any(|o| o.is_some_and(|o| o.is_libc())))
            && behind().is_some_and(|mut all| all.all(|o| o.is_some()));
        READABLE.store(if readable { 1 } else { 2 }, Ordering::Relaxed);
    }
    if READABLE.load(Ordering::Relaxed) == 2 {
        return by_loader(name);
    }
    let hash = gnu_hash(name);
    behind()?.flatten().find_map(|o| o.find(name, hash))
}

/// The same by the loader, for functions of objects that were loaded later.
pub(crate) fn by_loader(name: &CStr) -> Option<usize> {
    // SAFETY: a C string.
    let p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!p.is_null()).then_some(p as usize)
}

/// The objects after this one, up to libc. None for one that lacks the tables.
fn behind() -> Option<impl Iterator<Item = Option<Object>>> {
    // SAFETY: the loader's list. Maps and dynamic sections of objects loaded with the program stay, in their
    // order. The head of the list does not change.
    let mut map = unsafe { _r_debug.map.get().read().as_ref() };
    while map.is_some_and(|m| !std::ptr::eq(m.dynamic, &raw const _DYNAMIC)) {
        // SAFETY: as above.
        map = unsafe { map?.next.as_ref() };
    }
    let mut ended = false;
    // SAFETY: as above.
    let first = unsafe { map?.next.as_ref() };
    // SAFETY: as above.
    Some(std::iter::successors(first, |m| unsafe { m.next.as_ref() }).map_while(move |m| {
        if ended {
            return None;
        }
        let object = Object::new(m);
        ended = object.as_ref().is_some_and(Object::is_libc);
        Some(object)
    }))
}

impl Object {
    fn new(map: &LinkMap) -> Option<Object> {
        let mut o = Object {
            base: map.base,
            strings: std::ptr::null(),
            symbols: std::ptr::null(),
            versions: std::ptr::null(),
            hash: std::ptr::null(),
            soname: 0,
        };
        // The loader replaces the file's offsets by addresses, unless the section is read-only.
        let address = |value: usize| if value < map.base { map.base + value } else { value };
        let mut at = map.dynamic;
        // SAFETY: a dynamic section ends with a tag of zero.
        while let Some(d) = unsafe { at.as_ref() }.filter(|d| d.tag != 0) {
            match d.tag {
                DT_STRTAB => o.strings = address(d.value) as *const c_char,
                DT_SYMTAB => o.symbols = address(d.value) as *const libc::Elf64_Sym,
                DT_VERSYM => o.versions = address(d.value) as *const u16,
                DT_GNU_HASH => o.hash = address(d.value) as *const u32,
                DT_SONAME => o.soname = d.value,
                _ => {}
            }
            at = at.wrapping_add(1);
        }
        (!o.strings.is_null() && !o.symbols.is_null() && !o.hash.is_null()).then_some(o)
    }

    fn is_libc(&self) -> bool {
        self.soname != 0 && self.text(self.soname) == c"libc.so.6"
    }

    fn text(&self, offset: usize) -> &CStr {
        // SAFETY: an offset into the object's own table of strings, each of which ends with a NUL.
        unsafe { CStr::from_ptr(self.strings.add(offset)) }
    }

    /// ```text
    /// buckets | first symbol | filter words | shift | filter: u64 ... | bucket: u32 ... | hash of each symbol: u32 ...
    /// ```
    fn find(&self, name: &CStr, hash: u32) -> Option<usize> {
        // SAFETY: the object's own tables, in their documented format; a chain ends at an odd hash.
        unsafe {
            let head = self.hash;
            let (buckets, first, words) = (*head, *head.add(1), *head.add(2));
            let filter = head.add(4).cast::<u64>();
            let word = *filter.add((hash / 64 % words) as usize);
            let bits = 1 << (hash % 64) | 1 << ((hash >> *head.add(3)) % 64);
            if word & bits != bits || buckets == 0 {
                return None;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut i = *bucket.add((hash % buckets) as usize);
            if i < first {
                return None;
            }
            loop {
                let h = *chain.add((i - first) as usize);
                if h | 1 == hash | 1
                    && let Some(found) = self.definition(i as usize, name)
                {
                    return Some(found);
                }
                if h & 1 != 0 {
                    return None;
                }
                i += 1;
            }
        }
    }

    /// The address of symbol `i`, if it is the default version of `name`.
    ///
    /// # Safety
    /// The object has this symbol.
    unsafe fn definition(&self, i: usize, name: &CStr) -> Option<usize> {
        // SAFETY: the caller's promise.
        let (symbol, hidden) = unsafe {
            let version = if self.versions.is_null() { 0 } else { *self.versions.add(i) };
            (&*self.symbols.add(i), version & VERSYM_HIDDEN != 0)
        };
        if hidden || symbol.st_shndx == 0 || self.text(symbol.st_name as usize) != name {
            return None;
        }
        let at = self.base + symbol.st_value as usize;
        if symbol.st_info & 0xf == STT_GNU_IFUNC {
            // SAFETY: the symbol is a function that returns the address.
            return Some(
                unsafe { std::mem::transmute::<usize, extern "C" fn() -> *const c_void>(at)() } as usize
            );
        }
        Some(at)
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |h: u32, &c| h.wrapping_mul(33).wrapping_add(u32::from(c)))
}
