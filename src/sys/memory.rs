//! Returns free heap memory to the system.

/// Returns free heap memory to the system. The GNU allocator keeps free memory that lies below a block in use; other
/// allocators return it by themselves.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers, and it changes nothing but the allocator's own free memory.
    #[allow(unsafe_code)]
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
