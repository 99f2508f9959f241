//! A store of addresses with as many reservations as are asked for.

use std::fs::{File, create_dir_all, remove_file, write};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// After the address of the network and the gateway's.
const FIRST: u32 = 0x0af4_0002;

/// How many addresses a `/16` has for pods.
pub(super) const ALL: u32 = (1 << 16) - 3;

pub(super) struct Store {
    directory: PathBuf,
    index: PathBuf,
}

impl Store {
    /// The first `count` addresses are held by containers that exist on paper alone, and the next
    /// one is whose turn it is.
    pub(super) fn fill(home: &Path, count: u32) -> Result<Self> {
        let networks = home.join("networks");
        let (directory, index) = (networks.join("cbr0"), networks.join(".cbr0.index"));
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
        Ok(Self { directory, index })
    }

    /// Touches it as any other program would that works on it.
    pub(super) fn disturb(&self) -> Result<()> {
        let stray = self.directory.join("stray");
        File::create(&stray)?;
        Ok(remove_file(stray)?)
    }

    /// As after the first boot with it.
    pub(super) fn lose_index(&self) -> Result<()> {
        match remove_file(&self.index) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_ends_below_the_address_for_all() {
        assert_eq!(address(0).to_string(), "10.244.0.2");
        assert_eq!(address(ALL - 1).to_string(), "10.244.255.254");
    }
}
