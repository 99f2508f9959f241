//! Links by name and by index: the kernel numbers them, we name them.

use std::collections::BTreeMap;

use super::Unencodable;
use crate::kernel::state::LinkName;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    names: BTreeMap<u32, LinkName>,
    indices: BTreeMap<LinkName, u32>,
}

impl Links {
    pub(crate) fn name(&self, index: u32) -> Option<&LinkName> {
        self.names.get(&index)
    }

    pub(crate) fn index(&self, name: &LinkName) -> Result<u32, Unencodable> {
        self.indices.get(name).copied().ok_or_else(|| Unencodable::NoLink(name.clone()))
    }

    /// Takes note of a link; returns the name it had until now, if that was another.
    pub(crate) fn insert(&mut self, index: u32, name: &LinkName) -> Option<LinkName> {
        self.indices.insert(name.clone(), index);
        let former = self.names.insert(index, name.clone()).filter(|former| former != name)?;
        self.forget(&former, index);
        Some(former)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(name) = self.names.remove(&index) {
            self.forget(&name, index);
        }
    }

    /// A later link may have taken the name already.
    fn forget(&mut self, name: &LinkName, index: u32) {
        if self.indices.get(name) == Some(&index) {
            self.indices.remove(name);
        }
    }
}

impl FromIterator<(u32, LinkName)> for Links {
    fn from_iter<I: IntoIterator<Item = (u32, LinkName)>>(listed: I) -> Self {
        let mut links = Self::default();
        for (index, name) in listed {
            links.insert(index, &name);
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

    #[test]
    fn a_renamed_link_keeps_its_index_and_loses_its_name() {
        let mut links = Links::default();
        assert_eq!(links.insert(2, &name("eth0")), None);
        assert_eq!(links.insert(2, &name("ens3")), Some(name("eth0")));
        assert_eq!(links.index(&name("ens3")), Ok(2));
        assert!(links.index(&name("eth0")).is_err());
    }

    #[test]
    fn a_link_made_anew_outlives_the_removal_of_the_old_one() {
        let mut links = Links::default();
        links.insert(5, &name("flannel.1"));
        links.insert(9, &name("flannel.1"));
        links.remove(5);
        assert_eq!(links.index(&name("flannel.1")), Ok(9));
        assert_eq!(links.name(5), None);
    }
}
