//! Links by name and by index: the kernel uses indices, tweed uses names.

use std::collections::BTreeMap;

use super::Unencodable;
use crate::mac::MacAddr;
use crate::model::entry::LinkName;
use crate::model::node::Interface;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    names: BTreeMap<u32, LinkName>,
    known: BTreeMap<LinkName, KnownLink>,
}

/// A link as last reported by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownLink {
    pub(crate) index: u32,
    pub(crate) mac: MacAddr,
    pub(crate) is_up: bool,
    pub(crate) has_carrier: bool,
    pub(crate) mtu: u32,
}

impl Links {
    pub(crate) fn get(&self, name: &LinkName) -> Option<&KnownLink> {
        self.known.get(name)
    }

    /// The links as interfaces, as far as their notifications show.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = Interface> {
        self.known.iter().map(|(name, KnownLink { is_up, has_carrier, mtu, .. })| Interface {
            name: name.clone(),
            mtu: *mtu,
            up: *is_up && *has_carrier,
            layer2: false,
            addresses: Vec::new(),
        })
    }

    pub(crate) fn name(&self, index: u32) -> Option<&LinkName> {
        self.names.get(&index)
    }

    pub(crate) fn index(&self, name: &LinkName) -> Result<u32, Unencodable> {
        let known = self.get(name).ok_or_else(|| Unencodable::NoLink(name.clone()))?;
        Ok(known.index)
    }

    /// Records a link; returns its former name if it was renamed.
    pub(crate) fn insert(&mut self, name: &LinkName, known: KnownLink) -> Option<LinkName> {
        let index = known.index;
        self.known.insert(name.clone(), known);
        let former = self.names.insert(index, name.clone()).filter(|former| former != name)?;
        self.forget(&former, index);
        Some(former)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(name) = self.names.remove(&index) {
            self.forget(&name, index);
        }
    }

    /// Keeps the name if a newer link already uses it.
    fn forget(&mut self, name: &LinkName, index: u32) {
        if self.known.get(name).is_some_and(|known| known.index == index) {
            self.known.remove(name);
        }
    }
}

impl FromIterator<(LinkName, KnownLink)> for Links {
    fn from_iter<I: IntoIterator<Item = (LinkName, KnownLink)>>(listed: I) -> Self {
        let mut links = Self::default();
        for (name, known) in listed {
            links.insert(&name, known);
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LinkName {
        LinkName::new(text)
    }

    fn at(index: u32) -> KnownLink {
        KnownLink {
            index,
            mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
            is_up: true,
            has_carrier: true,
            mtu: 1500,
        }
    }

    #[test]
    fn a_renamed_link_keeps_its_index_and_loses_its_name() {
        let mut links = Links::default();
        assert_eq!(links.insert(&name("eth0"), at(2)), None);
        assert_eq!(links.insert(&name("ens3"), at(2)), Some(name("eth0")));
        assert_eq!(links.index(&name("ens3")), Ok(2));
        assert!(links.index(&name("eth0")).is_err());
    }

    #[test]
    fn a_recreated_link_survives_the_removal_of_the_old_one() {
        let mut links = Links::default();
        links.insert(&name("flannel.1"), at(5));
        links.insert(&name("flannel.1"), at(9));
        links.remove(5);
        assert_eq!(links.index(&name("flannel.1")), Ok(9));
        assert_eq!(links.name(5), None);
    }
}
