//! Unpredictable numbers from the system.

use std::fs::File;
use std::io::{self, Read};

use uuid::{Builder, Uuid};

/// Fills a slice with unpredictable bytes from the system.
pub(crate) fn random_bytes(bytes: &mut [u8]) {
    fill(bytes, from_system).expect("the system has a source of random numbers");
}

/// In a static program, `getrandom` does not find the call, and keeps a device open instead.
#[cfg(target_os = "linux")]
fn from_system(bytes: &mut [u8]) -> io::Result<()> {
    use rustix::io::retry_on_intr;
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::NONBLOCK))?;
        rest = &mut rest[count..];
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn from_system(bytes: &mut [u8]) -> io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// A random UUID (version 4).
pub(crate) fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    random_bytes(&mut bytes);
    Builder::from_random_bytes(bytes).into_uuid()
}

/// Fills a slice from `source`. If the call fails, as it may early in the boot of a machine (EAGAIN), reads the device, which
/// waits until the system has enough entropy.
fn fill(bytes: &mut [u8], source: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    match source(bytes) {
        Ok(()) => Ok(()),
        Err(_) => File::open("/dev/random")?.read_exact(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: the server aborted.
    #[test]
    fn early_in_the_boot_random_bytes_come_from_the_device() {
        let (mut one, mut two) = ([0; 32], [0; 32]);
        for bytes in [&mut one, &mut two] {
            fill(bytes, |_| Err(io::ErrorKind::WouldBlock.into())).expect("the device");
        }
        assert_ne!(one, two);
        assert_ne!(one, [0; 32]);
    }

    #[test]
    fn a_random_uuid_has_version_4() {
        let (one, two) = (random_uuid(), random_uuid());
        assert_eq!((one.get_version_num(), two.get_version_num()), (4, 4));
        assert_ne!(one, two);
    }
}
