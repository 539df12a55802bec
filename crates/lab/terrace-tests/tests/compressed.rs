//! Programs over the compressed tier: their content is right, and the program itself decompresses hits.

use std::fs;
use terrace_tests::rng::Rng;
use terrace_tests::{Side, TestMount};

const PAGE: usize = 4096;
const PAGES: u64 = 8192;

/// Every other page is repetitive, as LZ4 needs it; LZ4 cannot compress the others, and zstd halves them.
fn content(page: u64) -> Vec<u8> {
    let mut rng = Rng::new(page);
    let mut letters = std::iter::repeat_with(move || b'a' + rng.below(13) as u8);
    if page.is_multiple_of(2) {
        return letters.by_ref().take(PAGE).collect();
    }
    let word: Vec<u8> = letters.by_ref().take(512).collect();
    let mut bytes = format!("page {page} ").repeat(200).into_bytes();
    bytes.splice(..0, word);
    bytes.truncate(PAGE);
    bytes
}

/// A file of twice the memory, which fits into half of it when compressed; read in random order and compared
/// with the source.
const READ: &str = r#"
import os, random, sys
pages, source = int(sys.argv[1]), sys.argv[2]
mine, theirs = os.open('f', os.O_RDONLY), os.open(source, os.O_RDONLY)
random.seed(7)
for _ in range(6 * pages):
    at, skip, n = 4096 * random.randrange(pages), random.choice((0, 0, 100)), random.choice((4096, 4096, 1000))
    if os.pread(mine, n, at + skip) != os.pread(theirs, n, at + skip):
        sys.exit(f'page {at // 4096} is another')
"#;

#[test]
fn programs_read_compressed_pages_without_the_daemon() {
    let config = std::env::temp_dir().join(format!("terrace-compressed-{}.toml", std::process::id()));
    let share = "min_percent = 60\nmax_percent = 60\n";
    fs::write(&config, format!("[tier.compressed]\nadmit = \"all\"\n{share}")).unwrap();
    let named = config.to_str().unwrap();
    let mount = TestMount::with("compressed", Side::Preload, &["--memory", "24MiB", "--config", named]);
    fs::remove_file(&config).unwrap();
    let all: Vec<u8> = (0..PAGES).flat_map(content).collect();
    fs::write(mount.src().join("f"), all).unwrap();
    fs::write(mount.aside().join("read.py"), READ).unwrap();
    let (script, source) = (mount.aside().join("read.py"), mount.src().join("f"));
    let read = format!("python3 {} {PAGES} {}", script.display(), source.display());
    mount.shell(&read, 120);
    let stat = mount.stat().cache;
    mount.check();
    let hits = stat.compressed.as_ref().map_or(0, |tier| tier.hits);
    assert!(hits > PAGES, "{stat:?}");
    assert!(stat.memory.used_bytes <= stat.memory.limit_bytes, "{stat:?}");
    // Pages that the preload path cannot decode are read through the mount path.
    assert!(stat.fuse.reads < hits / 20, "{stat:?}");
    mount.finish();
}

/// A program may have its own zstd, of another version.
#[test]
fn programs_see_nothing_of_the_librarys_zstd() {
    let mount = TestMount::new("symbols", Side::Preload, "16MiB");
    let look = "import ctypes; seen = ctypes.CDLL(None); print(hasattr(seen, 'pread64'), \
                any(hasattr(seen, 'ZSTD_' + name) for name in ('decompressDCtx', 'isError', 'compress2')))";
    assert_eq!(mount.shell(&format!("python3 -c \"{look}\""), 60), "True False\n");
    mount.finish();
}
