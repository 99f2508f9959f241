//! What links leave to the hardware behind them.

use std::fmt;
use std::io;

use nix::errno::Errno;
use tweed_netlink::{Ethtool, Switch, TX_CHECKSUM};

use crate::model::entry::{LinkName, TxChecksum};

/// The conversation with ethtool's side of the kernel, taken up when there is something to say.
#[derive(Default)]
pub(super) struct Offloads {
    ethtool: Option<Ethtool>,
}

/// The kernel did not do it.
#[derive(Debug)]
pub(super) struct Unchanged {
    link: LinkName,
    error: io::Error,
}

impl Offloads {
    /// None if there is no such link, or the kernel does not tell.
    pub(super) fn read(&mut self, link: &LinkName) -> Option<TxChecksum> {
        let read = self.converse(|ethtool| ethtool.is_active(link.as_str(), TX_CHECKSUM));
        Some(TxChecksum { link: link.clone(), offloaded: read.ok()?? })
    }

    pub(super) fn write(&mut self, wanted: &TxChecksum) -> Result<(), Unchanged> {
        let TxChecksum { link, offloaded } = wanted;
        let switch = if *offloaded { Switch::On } else { Switch::Off };
        let written = self.converse(|it| it.switch(link.as_str(), TX_CHECKSUM, switch));
        written.map_err(|error| Unchanged { link: link.clone(), error })
    }

    /// A broken conversation is not gone on with.
    fn converse<T>(&mut self, talk: impl FnOnce(&mut Ethtool) -> io::Result<T>) -> io::Result<T> {
        let mut ethtool = self.ethtool.take().map_or_else(Ethtool::open, Ok)?;
        let said = talk(&mut ethtool)?;
        self.ethtool = Some(ethtool);
        Ok(said)
    }
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, error } = self;
        let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        let errno = errno.desc().to_lowercase();
        write!(
            f,
            "the kernel does not switch it over netlink ({errno}): run ethtool -K {link} {TX_CHECKSUM} off"
        )
    }
}
