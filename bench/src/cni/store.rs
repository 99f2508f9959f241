//! A store of addresses with a given number of reservations.

use std::fs::{File, create_dir_all, write};
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};

/// The first address after those of the network and the gateway.
const FIRST: u32 = 0x0af4_0002;

/// The number of addresses that a `/16` has for pods.
pub(super) const ALL: u32 = (1 << 16) - 3;

/// Reserves the first `count` addresses for containers that do not exist; the next allocation gets
/// the address after them.
pub(super) fn fill(home: &Path, count: u32) -> Result<()> {
    let directory = home.join("networks/cbr0");
    create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let record = |number: u32| {
        let path = directory.join(address(number).to_string());
        write(&path, format!("e{number:063x}\r\neth0"))
    };
    (0..count).try_for_each(record)?;
    File::create(directory.join("lock"))?;
    if let Some(last) = count.checked_sub(1) {
        write(directory.join("last_reserved_ip.0"), address(last).to_string())?;
    }
    Ok(())
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_ends_below_the_broadcast_address() {
        assert_eq!(address(0).to_string(), "10.244.0.2");
        assert_eq!(address(ALL - 1).to_string(), "10.244.255.254");
    }
}
