//! The process's memory.

/// Gives free memory of the heap back to the system. The GNU allocator keeps what lies below a block that is still in
/// use; others give back what they do not need by themselves.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers and only changes what the allocator keeps for itself.
    #[allow(unsafe_code)]
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
