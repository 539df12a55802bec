//! One request of the library to the daemon over a connected socket, and the wait for its answer.

use crate::sys;
use std::ffi::{c_int, c_void};
use terrace_shm::layout::LAYOUT_VERSION;
use terrace_shm::proto::{Reply, Request};

/// Descriptors that come with HELLO's answer: segment, touch table, ring; where writes are announced, also the
/// clients' and the daemon's file of writes. No answer has more.
pub(crate) const HELLO_FDS: usize = 5;
/// The first of them, which each HELLO's answer has.
pub(crate) const REQUIRED_FDS: usize = 3;

/// Buffer for a control message of up to `HELLO_FDS` descriptors, aligned for the kernel.
#[repr(C, align(8))]
struct Control([u8; 64]);
const CONTROL_HEAD: usize = size_of::<libc::cmsghdr>();

/// The address of a socket at `path`. None: the path is empty or too long.
pub(crate) fn address_of(path: &[u8]) -> Option<libc::sockaddr_un> {
    // SAFETY: all zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return None;
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as std::ffi::c_char;
    }
    Some(address)
}

/// Sends a request and waits for its answer. None: the connection is no longer usable.
pub(crate) fn exchange(
    s: c_int,
    op: u32,
    fd: Option<c_int>,
    fds: &mut [c_int; HELLO_FDS],
    wait_ms: u64,
) -> Option<Reply> {
    let request = Request { op, version: LAYOUT_VERSION };
    let bytes = request.as_bytes();
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: zero is a valid msghdr. Everything that it points to lives on this frame.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        let len = CONTROL_HEAD + size_of::<c_int>();
        let head =
            libc::cmsghdr { cmsg_len: len as _, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        // SAFETY: 64 bytes hold a header and a descriptor.
        unsafe {
            control.0.as_mut_ptr().cast::<libc::cmsghdr>().write(head);
            control.0.as_mut_ptr().add(CONTROL_HEAD).cast::<c_int>().write(fd);
        }
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = len as _;
    }
    let flags = libc::MSG_NOSIGNAL as usize;
    // SAFETY: see above.
    let sent =
        unsafe { sys::raw(libc::SYS_sendmsg, [s as usize, &raw const message as usize, flags, 0, 0, 0]) };
    if sent != bytes.len() as isize || !sys::wait_readable(s, wait_ms) {
        return None;
    }
    receive(s, fds)
}

/// One answer with its descriptors.
fn receive(s: c_int, fds: &mut [c_int; HELLO_FDS]) -> Option<Reply> {
    let mut bytes = [0_u8; size_of::<Reply>()];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: zero is a valid msghdr. Everything that it points to lives on this frame.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // Room for exactly `HELLO_FDS` descriptors: the kernel closes the rest.
    message.msg_controllen = (CONTROL_HEAD + HELLO_FDS * size_of::<c_int>()) as _;
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as usize;
    // SAFETY: see above.
    let n = unsafe { sys::raw(libc::SYS_recvmsg, [s as usize, &raw mut message as usize, flags, 0, 0, 0]) };
    if n < 0 {
        return None;
    }
    if message.msg_controllen as usize > CONTROL_HEAD {
        // SAFETY: the kernel wrote a header and whole descriptors, inside the given room.
        unsafe {
            let head = control.0.as_ptr().cast::<libc::cmsghdr>().read();
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let count = (head.cmsg_len - CONTROL_HEAD) / size_of::<c_int>();
                let from = control.0.as_ptr().add(CONTROL_HEAD).cast::<c_int>();
                for (i, fd) in fds.iter_mut().enumerate().take(count) {
                    *fd = from.add(i).read();
                }
            }
        }
    }
    Reply::from_bytes(&bytes[..n as usize])
}

/// Sends a message without an answer, and does not wait.
pub(crate) fn tell(fd: c_int, bytes: &[u8]) {
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    // SAFETY: reads the message, which outlives the call.
    unsafe { sys::raw(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) };
}

/// Whether the other end has closed the connection, or has sent an answer without a request.
pub(crate) fn is_hung_up(socket: c_int) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: one byte of this frame.
    let n = unsafe {
        sys::raw(libc::SYS_recvfrom, [socket as usize, &raw mut byte as usize, 1, flags as usize, 0, 0])
    };
    n != -(libc::EAGAIN as isize)
}
