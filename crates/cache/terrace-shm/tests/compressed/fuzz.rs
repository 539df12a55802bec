//! Readers of a pool with hostile content: zstd frames and whole objects that are random, mangled, or changed
//! during the read. The library may refuse all of it. It must not crash, touch a byte beside the page, or
//! deliver a page with a wrong check.
//!
//! `TERRACE_SEED` repeats a run, `TERRACE_FUZZ_ROUNDS` sets its length, `TERRACE_SOAK=1` makes it long.

use crate::reader::{OBJECT, Writer};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrace_shm::codec::{Encoding, Page, Unpack};
use terrace_shm::compress::{CompressionMode, Compressor, Unzstd};
use terrace_shm::reader::{Outcome, Reader};
use terrace_shm::unzstd::unzstd;
use terrace_shm::zobject::{HEAD_BYTES, Head, OBJECT_MAX, STORED_MAX};
use terrace_shm::{PAGE_SIZE, Segment};
use terrace_testkit::rng::{Rng, seed};

fn is_soak() -> bool {
    std::env::var("TERRACE_SOAK").is_ok_and(|v| v != "0")
}

fn rounds() -> u64 {
    let requested = std::env::var("TERRACE_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok());
    requested.unwrap_or(if is_soak() { 1_000_000 } else { 20_000 })
}

/// A page between two inaccessible pages: an access beside it crashes the test.
struct Fenced(*mut u8);
impl Fenced {
    fn new() -> Fenced {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory; its first and last page are made inaccessible at once.
        unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), 3 * PAGE_SIZE, rw, MapFlags::PRIVATE).unwrap();
            for fence in [0, 2 * PAGE_SIZE] {
                mprotect(at.byte_add(fence), PAGE_SIZE, MprotectFlags::empty()).unwrap();
            }
            Fenced(at.cast::<u8>().add(PAGE_SIZE))
        }
    }
    fn page(&mut self) -> &mut Page {
        // SAFETY: the page between the fences, borrowed with self; any bytes are a page.
        unsafe { &mut *self.0.cast::<Page>() }
    }
    /// Copies the bytes so that they end at the fence.
    fn hold(&mut self, bytes: &[u8]) -> &[u8] {
        let at = PAGE_SIZE - bytes.len();
        self.page()[at..].copy_from_slice(bytes);
        &self.page()[at..]
    }
}
impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: made in `new`, with this length; nothing borrows it.
        unsafe { munmap(self.0.sub(PAGE_SIZE).cast::<c_void>(), 3 * PAGE_SIZE).unwrap() };
    }
}

/// A page of text and noise in random proportions: zstd uses other kinds of blocks and tables each time.
fn page(rng: &mut Rng) -> Page {
    let (kinds, of) = (1 + rng.index(200), 1 + rng.index(300));
    let noisy = rng.index(of);
    let length = 1 + rng.index(60);
    let word = rng.bytes(length);
    std::array::from_fn(
        |i| {
            if i % of < noisy { rng.index(kinds) as u8 } else { word[(i + i / of) % word.len()] }
        },
    )
}

/// A valid frame and the page in it.
fn frame(rng: &mut Rng, compressor: &mut Compressor) -> (Page, Vec<u8>) {
    loop {
        let page = page(rng);
        if let Ok(coded) = compressor.compress(&page)
            && coded.codec == Encoding::Zstd
        {
            return (page, coded.bytes.to_vec());
        }
    }
}

/// Damages a frame, mostly near the start, where lengths, modes and tables are.
fn mangled(sound: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = sound.to_vec();
    for _ in 0..1 + rng.index(4) {
        let near = if rng.index(2) == 0 { 24 } else { usize::MAX };
        let at = rng.index(out.len().min(near));
        let to = (at + rng.index(40)).min(out.len());
        match rng.index(8) {
            _ if out.is_empty() => out = rng.bytes(1),
            0 | 1 => out[at] ^= 1 << rng.index(8),
            2 => out[at] = rng.next_u64() as u8,
            3 => out.truncate(at),
            4 => drop(out.drain(at..to)),
            5 => drop(out.splice(at..at, out[at..to].to_vec())),
            6 => drop(out.splice(to.., other[to.min(other.len())..].to_vec())),
            _ => {
                let run = rng.index(200);
                let byte = rng.next_u64() as u8;
                drop(out.splice(at..to, std::iter::repeat_n(byte, run)));
            }
        }
    }
    out.truncate(STORED_MAX);
    out
}

/// The library's decoder and the daemon's are the same code on other memory: they must agree on every frame.
#[test]
fn mangled_frames_are_refused_or_decoded_as_the_daemon_does() {
    let seed = seed("mangled_frames_are_refused_or_decoded_as_the_daemon_does");
    let mut rng = Rng::new(seed);
    let (mut input, mut ours, mut theirs) = (Fenced::new(), Fenced::new(), Fenced::new());
    let mut daemon = Unzstd::new().unwrap();
    let mut compressor = Compressor::new(CompressionMode::Dense, 75).unwrap();
    let (mut decoded, mut refused) = (0, 0);
    let (mut wanted, mut sound) = frame(&mut rng, &mut compressor);
    let mut other = Vec::new();
    for round in 0..rounds() {
        if round % 16 == 0 {
            let (page, bytes) = frame(&mut rng, &mut compressor);
            (wanted, other) = (page, std::mem::replace(&mut sound, bytes));
        }
        let bytes = match rng.index(8) {
            0 => {
                let n = rng.index(STORED_MAX + 1);
                rng.bytes(n)
            }
            _ => mangled(&sound, &other, &mut rng),
        };
        let bytes = input.hold(&bytes);
        ours.page().fill(0x11);
        theirs.page().fill(0x11);
        let is_page = unzstd(bytes, ours.page(), round as usize);
        assert_eq!(
            is_page,
            daemon.zstd(bytes, theirs.page()),
            "round {round}, TERRACE_SEED={seed}: {bytes:x?}"
        );
        if is_page {
            assert!(ours.page() == theirs.page(), "round {round}, TERRACE_SEED={seed}: {bytes:x?}");
            decoded += 1;
        } else {
            refused += 1;
        }
        // The decoder keeps no state of the damaged frame.
        let bytes = input.hold(&sound);
        let again = unzstd(bytes, ours.page(), round as usize) && *ours.page() == wanted;
        assert!(again, "round {round}, TERRACE_SEED={seed}: a sound frame after {refused} others");
    }
    println!("{decoded} decoded, {refused} refused");
    assert!(decoded > 0 && refused > 0, "all of them went one way");
}

/// A program's reader: zstd as the preload library decodes it.
struct Library;
impl Unpack for Library {
    fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
        unzstd(bytes, out, 0)
    }
}

/// Address of the object of page 0: the first slot of its zspage.
fn object(seg: &Segment) -> *mut u8 {
    seg.zspage(0)
}

/// Objects changed under their heads are never a page. Objects with forged heads that fit do no harm.
#[test]
fn mangled_objects_are_no_pages() {
    let seed = seed("mangled_objects_are_no_pages");
    let mut rng = Rng::new(seed);
    let mut compressor = Compressor::new(CompressionMode::Dense, 75).unwrap();
    let mut out = Fenced::new();
    let (mut damaged, mut passed, mut forged) = (0_u64, 0, 0);
    let (mut wanted, mut sound) = frame(&mut rng, &mut compressor);
    for round in 0..rounds() / 4 {
        if round % 16 == 0 {
            (wanted, sound) = frame(&mut rng, &mut compressor);
        }
        let mut w = Writer::new(2, 2);
        w.put(0, Encoding::Zstd, &sound).unwrap();
        assert_eq!(w.read(0, &mut out.page()[..], &mut Library), Outcome::Done(PAGE_SIZE));
        assert!(*out.page() == wanted, "round {round}, TERRACE_SEED={seed}");
        let at = object(&w.fixture.seg);
        // SAFETY: a slot has room for its largest object; no other thread reads it.
        let (head, slot) = unsafe {
            let slot = std::slice::from_raw_parts_mut(at, HEAD_BYTES + sound.len());
            (Head(at.cast::<u64>().read()), slot)
        };
        assert!(head.fits(&slot[HEAD_BYTES..]), "the object stands where we look for it");
        let is_forged = rng.index(4) == 0;
        if is_forged {
            let mut bytes = mangled(&sound, &[], &mut rng);
            bytes.resize(sound.len(), 0);
            let codec = [Encoding::Same, Encoding::Lz4, Encoding::Zstd, Encoding::Zstd][rng.index(4)];
            slot[..HEAD_BYTES].copy_from_slice(&Head::new(codec, head.place(), &bytes).0.to_le_bytes());
            slot[HEAD_BYTES..].copy_from_slice(&bytes);
        } else {
            for _ in 0..1 + rng.index(3) {
                let near = if rng.index(2) == 0 { HEAD_BYTES } else { slot.len() };
                slot[rng.index(near)] ^= 1 << rng.index(8);
            }
        }
        let (from, n) = [(0, PAGE_SIZE), (0, 100), (1000, 3096)][rng.index(3)];
        let outcome = w.read(from as u64, &mut out.page()[from..from + n], &mut Library);
        let same = out.page()[from..from + n] == wanted[from..from + n];
        match outcome {
            Outcome::MountPath { done: 0 } => damaged += 1,
            Outcome::Done(k) if k == n && is_forged => forged += 1,
            // Changes that undid each other. Otherwise 1 in 260,000 passes the check, and few of these are
            // valid frames.
            Outcome::Done(k) if k == n && same => {}
            Outcome::Done(k) if k == n => passed += 1,
            other => panic!("round {round}, TERRACE_SEED={seed}: {other:?}"),
        }
    }
    println!("{damaged} refused, {forged} forged, {passed} damaged ones passed for pages");
    assert!(damaged > 0 && forged > 0, "all of them went one way");
    assert!(passed <= 2 + damaged / 50_000, "TERRACE_SEED={seed}: {passed} of {damaged} passed");
}

/// Overwrites the object of page 0 until `stop`: with valid and mangled frames, with fitting and other heads.
fn scribble(seg: &Segment, sound: &[u8], place: u32, mut rng: Rng, stop: &AtomicBool) {
    let at = object(seg);
    while !stop.load(Ordering::Relaxed) {
        let bytes = if rng.index(3) == 0 { sound.to_vec() } else { mangled(sound, &[], &mut rng) };
        let head = match rng.index(4) {
            0 => Head(rng.next_u64()),
            _ => Head::new([Encoding::Lz4, Encoding::Zstd][rng.index(2)], place, &bytes),
        };
        let object = [&head.0.to_le_bytes()[..], &bytes].concat();
        for (i, byte) in object.iter().enumerate().take(OBJECT_MAX) {
            // SAFETY: inside the zspage. The readers race with it as with a hostile daemon, and must cope
            // with any mixture.
            unsafe { at.add(i).write_volatile(*byte) };
        }
        if rng.index(8) == 0 {
            seg.zclass(0).store(rng.next_u64() as u8, Ordering::Relaxed);
        }
    }
}

/// A reader decodes the bytes that it checked, although the pool changes all the time: it decodes a copy.
#[test]
fn objects_that_change_while_they_are_read_do_no_harm() {
    let seed = seed("objects_that_change_while_they_are_read_do_no_harm");
    let mut rng = Rng::new(seed);
    let (page, sound) = frame(&mut rng, &mut Compressor::new(CompressionMode::Dense, 75).unwrap());
    let mut w = Writer::new(2, 2);
    let handle = w.put(0, Encoding::Zstd, &sound).unwrap();
    let place = w.fixture.pool.place(handle).0;
    let class = w.fixture.seg.zclass(0).load(Ordering::Relaxed);
    let (seg, touches, stop) = (w.fixture.seg.clone(), w.fixture.touches.clone(), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(if is_soak() { 60 } else { 3 });
    let (mut whole, mut other, mut refused) = (0_u64, 0_u64, 0_u64);
    std::thread::scope(|s| {
        s.spawn(|| scribble(&seg, &sound, place, Rng::new(rng.next_u64()), &stop));
        let mut out = Fenced::new();
        while Instant::now() < end {
            // Otherwise the slot's address would rarely be the object's.
            seg.zclass(0).store(class, Ordering::Relaxed);
            let to = out.page().as_mut_ptr();
            // SAFETY: `out` takes a page; the object stays.
            let outcome = unsafe {
                Reader { seg: &seg, touches: &touches }.read(
                    seg.object(OBJECT),
                    0,
                    to,
                    PAGE_SIZE,
                    &mut Library,
                )
            };
            match outcome {
                Outcome::Done(PAGE_SIZE) if *out.page() == page => whole += 1,
                Outcome::Done(PAGE_SIZE) => other += 1,
                Outcome::MountPath { done: 0 } => refused += 1,
                odd => panic!("TERRACE_SEED={seed}: {odd:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{whole} whole, {other} forged, {refused} refused");
    assert!(whole > 0 && refused > 0, "TERRACE_SEED={seed}: no object was read, or none changed");
}
