//! Name resolution as CNI configs and results hold it.

use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn parse(dns: &Object) -> Result<Self, Error> {
        Ok(Self {
            nameservers: texts(dns, "nameservers")?,
            domain: json::text(dns, "domain")?.unwrap_or_default().to_owned(),
            search: texts(dns, "search")?,
            options: texts(dns, "options")?,
        })
    }

    /// Reads what resolv.conf(5) says; comments and unknown keywords are passed over.
    pub fn parse_resolv_conf(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
            dns.take(line);
        }
        dns
    }

    fn take(&mut self, line: &str) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(keyword) = words.next() else { return };
        let mut words = words.peekable();
        if words.peek().is_none() {
            return;
        }
        match keyword.as_str() {
            "nameserver" => self.nameservers.extend(words.next()),
            "domain" => self.domain = words.next().unwrap_or_default(),
            "search" => self.search.extend(words),
            "options" => self.options.extend(words),
            _ => {}
        }
    }
}

fn texts(dns: &Object, key: &str) -> Result<Vec<String>, Error> {
    let wrong = || Error::invalid_config(format!("{key} of dns is not a list of texts"));
    let texts = json::list(dns, key)?.into_iter().flatten();
    texts.map(|text| text.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_without_its_comments() {
        let dns = Dns::parse_resolv_conf(
            "; old\n# new\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n\
             domain example.com\nsearch a.example b.example\noptions ndots:5 edns0\nsortlist x\n\
             nameserver\n",
        );
        assert_eq!(dns.nameservers, ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(dns.domain, "example.com");
        assert_eq!(dns.search, ["a.example", "b.example"]);
        assert_eq!(dns.options, ["ndots:5", "edns0"]);
        assert!(Dns::parse_resolv_conf("# nothing\n\n").is_empty());
    }
}
