//! Pods that were made with another MTU than new ones get, and keep it as long as they run.

use std::fmt;

use serde::{Deserialize, Serialize};
use tweed_cni::bridge::pods::Pod;

use super::MOST;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherMtu {
    pub total: usize,
    /// As many as a report may hold.
    pub pods: Vec<Pod>,
}

impl From<Vec<Pod>> for OtherMtu {
    fn from(mut pods: Vec<Pod>) -> Self {
        let total = pods.len();
        pods.truncate(MOST);
        Self { total, pods }
    }
}

/// More are in the JSON.
const SHOWN: usize = 5;

impl fmt::Display for OtherMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> =
            self.pods.iter().take(SHOWN).map(|pod| format!("{} ({})", pod.name, pod.mtu)).collect();
        f.write_str(&shown.join(", "))?;
        match self.total.saturating_sub(shown.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(number: usize) -> OtherMtu {
        let pod = |index| Pod { name: format!("shop/web-{index}"), mtu: 1450 };
        (0..number).map(pod).collect::<Vec<_>>().into()
    }

    #[test]
    fn the_first_few_are_named_and_all_are_counted() {
        assert_eq!(pods(2).to_string(), "shop/web-0 (1450), shop/web-1 (1450)");
        assert!(pods(7).to_string().ends_with("shop/web-4 (1450) and 2 more"));
        assert_eq!((pods(250).total, pods(250).pods.len()), (250, MOST));
        assert!(pods(250).to_string().ends_with(" and 245 more"));
    }
}
