//! One interface of one container: what is added, checked and deleted.

use std::fmt;

#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Attachment {
    pub container_id: String,
    pub interface: String,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of container {}", self.interface, self.container_id)
    }
}
