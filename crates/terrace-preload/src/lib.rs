//! The preload path: an LD_PRELOAD library that serves reads of files on a terrace mount out of the shared segment.
//!
//! | module | what |
//! |---|---|
//! | [`hooks`] | the exported functions |
//! | [`table`] | what is known of each descriptor |
//! | [`read`], [`miss`], [`buffer`] | hits; own misses; bad addresses |
//! | [`leased`], [`directory`] | where there is no mount |
//! | [`uring`] | reads by rings of liburing |
//! | [`file`], [`fill`] | what a read works on; fills and requests for the daemon |
//! | [`connection`], [`rings`], [`source`], [`helper`] | the connection to the daemon, and the memory and the descriptors that come over it |
//! | [`next`], [`symbols`], [`sys`], [`local`] | the real functions, how they are found, raw system calls, thread-local state |
//! | [`quiet`] | filters of system calls |
//! | [`unwind`] | the unwinder, loaded when it is needed |
//!
//! It may only be faster than the mount path, never different. So whatever is odd goes to the real call: unusual flags,
//! arguments that the kernel would refuse, a position that somebody else may move, a daemon that does not answer. It
//! allocates nothing after its start and waits for no lock on any read, and so may run inside signal handlers and
//! allocators. Only a bug of ours allocates, on its way to the guard that closes the connection.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the preload path knows the system calls and the calling convention of Linux on x86-64 only");

mod buffer;
mod connection;
mod device;
mod directory;
mod exchange;
mod file;
mod fill;
mod helper;
mod hooks;
mod leased;
mod local;
mod miss;
mod next;
mod quiet;
mod read;
mod rings;
mod run;
mod source;
mod symbols;
mod sys;
mod table;
mod unwind;
mod uring;

/// Before this has run, every hook is the kernel's call and nothing else.
extern "C" fn start() {
    // A library's start must not show in the program's errno.
    // SAFETY: errno is this thread's.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // A bug of ours is the connection's end and not the program's: no word of it on the program's stderr.
        std::panic::set_hook(Box::new(|_| ()));
        next::start();
        connection::configure();
        directory::configure();
        if connection::mount_dev().is_some() {
            hooks::watch_forks();
        }
        *errno = before;
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
