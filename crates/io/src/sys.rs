//! System calls that neither rustix nor the standard library offers in a safe form.

use rustix::io::Errno;

/// Blocks all signals in the calling thread, so that they reach the thread that is there to handle them.
pub(crate) fn block_signals() -> Result<(), Errno> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset(3) writes a whole set to the given place.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was just filled; a null pointer means that the old mask is not wanted.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed)) }
}
