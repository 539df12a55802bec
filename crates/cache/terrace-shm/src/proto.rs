//! Messages between clients and daemon: SOCK_SEQPACKET, one message a packet, in the machine's byte order.
//!
//! | request | descriptors with it | answer | descriptors with it |
//! |---|---|---|---|
//! | HELLO | - | [`Reply`]: slots of the ring, st_dev of the mount, client page + 1 | segment (read-only), touch table, ring; where writes are announced: the two files of [`crate::writes`] (the second one read-only) |
//! | SOURCE | an open descriptor of a file on the mount | object, may_write, direct_align | source file, O_RDONLY, with O_DIRECT if it takes it |
//! | MAPPED | likewise | errno, once the object is marked slow | - |
//! | FLUSH | - (syncfs) | errno, once all is stable | - |
//! | SERVE | an open descriptor of a file of the directory, where there is no mount | object, may_write, once a lease is held | - |
//! | GIVE_UP | an open descriptor of a file of the directory | errno, once the kernel serves the file for the rest of the run | - |
//! | WATCH | a descriptor (O_PATH) of a file that the client opens for writing next | errno, once the daemon sees opens of the file | - |
//! | DEVICE + [`target`] | - | errno; ENODEV: there is no such target | its table (read-only), the target, O_RDONLY and O_DIRECT |
//! | RING | - | none | - |
//! | HINT ([`Hint`]) | - | none | - |
//!
//! Every request except RING and HINT has one [`Reply`]: a client must not map before the slow flag is set.
//! MAPPED, FLUSH and GIVE_UP need no HELLO, and have connections of their own. The descriptor with SOURCE and MAPPED
//! proves that the client may read the file. The daemon checks its device, inode and access mode. Credentials
//! come from the kernel (SCM_CREDENTIALS), never from the message.

/// Registers this process; before SOURCE and RING.
pub const HELLO: u32 = 1;
/// Requests the source descriptor of an open file.
pub const SOURCE: u32 = 2;
/// Announces a shared mapping of a descriptor opened for writing.
pub const MAPPED: u32 = 3;
/// Writes all dirty pages back and syncs the source (syncfs).
pub const FLUSH: u32 = 4;

/// Starts serving a file and requests its object; after HELLO.
pub const SERVE: u32 = 8;

/// Leaves a file to the kernel: a program may write it without announcements.
pub const GIVE_UP: u32 = 9;

/// Announces an open for writing of a file that the daemon may serve; after HELLO.
pub const WATCH: u32 = 10;

/// Requests a target of the device tiers by number ([`target`]); after HELLO.
pub(crate) const DEVICE: u32 = 6;

/// The operation that requests target `n`.
pub const fn target(n: u32) -> u32 {
    DEVICE | n << 8
}

/// The number of the requested target. None: another operation.
pub const fn target_of(op: u32) -> Option<u32> {
    if op & 0xff == DEVICE { Some(op >> 8) } else { None }
}

/// Wakes the daemon: page fills wait in the ring.
pub const RING: u32 = 5;

/// A program's advice for a span of a file: a [`Hint`] in place of a [`Request`].
pub const HINT: u32 = 7;

/// The program will read the span.
pub const WILL_NEED: u32 = 1;
/// The program no longer needs the span.
pub const WONT_NEED: u32 = 2;
/// The program reads in order, from the span's start on.
pub const SEQUENTIAL: u32 = 3;

/// A hint names a file by number, as a page fill does. Its effect is that of a program's read.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    /// [`HINT`].
    pub op: u32,
    /// [`crate::layout::LAYOUT_VERSION`].
    pub version: u32,
    /// Object id.
    pub object: u64,
    /// Start of the span, bytes.
    pub offset: u64,
    /// Length of the span, bytes.
    pub len: u64,
    /// [`WILL_NEED`] ...
    pub advice: u32,
    /// Zero.
    pub reserved: u32,
}

/// A request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// [`HELLO`] ...
    pub op: u32,
    /// [`crate::layout::LAYOUT_VERSION`].
    pub version: u32,
}

/// An answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Reply {
    /// 0 or an errno.
    pub errno: u32,
    /// Slots of the ring (HELLO).
    pub ring_slots: u32,
    /// st_dev of the mount (HELLO).
    pub mount_dev: u64,
    /// Object id (SOURCE, SERVE); number of the client page for announced writes + 1, or 0 (HELLO).
    pub object: u64,
    /// 1 if page fills of this process for the object are accepted (SOURCE, SERVE).
    pub may_write: u32,
    /// Alignment of direct reads of the source, bytes (SOURCE); 0: the source does not support them.
    pub direct_align: u32,
}

const _: () = assert!(size_of::<Request>() == 8);
const _: () = assert!(size_of::<Reply>() == 32);
const _: () = assert!(size_of::<Hint>() == 40);

macro_rules! bytes {
    ($t:ty) => {
        impl $t {
            /// The message as it goes over the socket.
            pub fn as_bytes(&self) -> &[u8] {
                // SAFETY: repr(C), no padding (sizes asserted above), any byte pattern is valid.
                unsafe { std::slice::from_raw_parts((self as *const $t).cast(), size_of::<$t>()) }
            }
            /// Parses a message; None if it has another size.
            pub fn from_bytes(b: &[u8]) -> Option<$t> {
                // SAFETY: length checked; unaligned read; any byte pattern is valid.
                (b.len() == size_of::<$t>()).then(|| unsafe { b.as_ptr().cast::<$t>().read_unaligned() })
            }
        }
    };
}
bytes!(Request);
bytes!(Reply);
bytes!(Hint);
