//! A batch in the making.

use std::io;

use nix::libc::{
    NF_ACCEPT, NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING,
    NF_INET_PRE_ROUTING, NF_IP_PRI_FILTER, NF_IP_PRI_NAT_DST, NF_IP_PRI_NAT_SRC, NF_IP_PRI_RAW,
    NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NFT_MSG_DELCHAIN,
    NFT_MSG_DELRULE, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFT_MSG_NEWTABLE,
    NLM_F_APPEND, NLM_F_CREATE,
};

use super::family::{Table, TableFamily};
use super::nfta;
use super::rule::Rule;
use crate::frame::Refusal;
use crate::message::{Message, word};
use crate::socket::Socket;

/// Changes of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Batch {
    family: TableFamily,
    table: String,
    messages: Vec<Message>,
}

/// A chain, and where packets come to it.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    pub name: &'a str,
    /// None for one that other chains lead to.
    pub hook: Option<Hook>,
    pub comment: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Where packets come in, before connections are tracked.
    RawPrerouting,
    /// Where the host's own packets leave, before connections are tracked.
    RawOutput,
    /// In front of the translation of destinations of incoming packets.
    Untranslated,
    /// In front of that of the host's own packets.
    OutputUntranslated,
    /// Where the destinations of incoming packets are translated.
    EarlyDestinationNat,
    /// Where the destinations of the host's own packets are translated.
    EarlyOutputNat,
    /// Behind the translation of destinations of incoming packets.
    Translated,
    /// Behind that of the host's own packets.
    OutputTranslated,
    /// Where packets for the host itself are let in or not.
    Input,
    /// Where sources are translated first: only the first translation of a connection counts.
    EarlySourceNat,
    /// Where sources are translated.
    SourceNat,
    /// Where packets that the host passes on are let through or not.
    Forward,
}

/// Of the netfilter header in front of the attributes, in bytes.
pub(super) const HEADER: usize = 4;

/// In front of other programs that translate destinations: only the first translation counts.
const EARLY_NAT_DST: i32 = NF_IP_PRI_NAT_DST - 1;

/// The longest comment that `nft(8)` accepts, in bytes.
const LONGEST_COMMENT: usize = 128;

impl Batch {
    pub fn of(table: Table<'_>) -> Self {
        Self { family: table.family, table: table.name.to_owned(), messages: Vec::new() }
    }

    /// There is this table from now on.
    pub fn table(self, comment: Option<&str>) -> Self {
        let table = self
            .request(NFT_MSG_NEWTABLE, NLM_F_CREATE)
            .text(nfta::TABLE_NAME, &self.table)
            .with(comment, |table, comment| table.bytes(nfta::TABLE_USERDATA, &user_data(comment)));
        self.and(table)
    }

    /// With everything in it.
    pub fn delete_table(self) -> Self {
        let table = self.request(NFT_MSG_DELTABLE, 0).text(nfta::TABLE_NAME, &self.table);
        self.and(table)
    }

    /// There is this chain from now on.
    pub fn chain(self, chain: Chain<'_>) -> Self {
        let message = self
            .as_table()
            .chain_message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain.name)
            .with(chain.hook, |message, hook| hook.append(message))
            .with(chain.comment, |message, comment| {
                message.bytes(nfta::CHAIN_USERDATA, &user_data(comment))
            });
        self.and(message)
    }

    /// From now on, this chain with a hook lets through what comes to its end.
    pub fn accept_at_end(self, chain: &str) -> Self {
        let message = self.as_table().chain_message(NFT_MSG_NEWCHAIN, 0, chain);
        self.and(message.be32(nfta::CHAIN_POLICY, NF_ACCEPT.cast_unsigned()))
    }

    /// Removes a chain that has no rules, and to which none leads.
    pub fn delete_chain(self, chain: &str) -> Self {
        let message = self.as_table().chain_message(NFT_MSG_DELCHAIN, 0, chain);
        self.and(message)
    }

    /// Removes all rules of a chain.
    pub fn flush(self, chain: &str) -> Self {
        let message = self.about_rule(NFT_MSG_DELRULE, 0, chain);
        self.and(message)
    }

    /// Adds a rule behind the others.
    pub fn rule(self, chain: &str, rule: &Rule, comment: Option<&str>) -> Self {
        let message = self
            .about_rule(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, chain)
            .nest(nfta::RULE_EXPRESSIONS, |message| rule.append(message, self.family))
            .with(comment, |rule, comment| rule.bytes(nfta::RULE_USERDATA, &user_data(comment)));
        self.and(message)
    }

    pub fn delete_rule(self, chain: &str, handle: u64) -> Self {
        let message = self
            .about_rule(NFT_MSG_DELRULE, 0, chain)
            .bytes(nfta::RULE_HANDLE, &handle.to_be_bytes());
        self.and(message)
    }

    /// With the changes of another table behind these: all are carried out together.
    pub fn followed_by(mut self, other: Self) -> Self {
        self.messages.extend(other.messages);
        self
    }

    /// How many messages it consists of; a [`Refusal`] names one of them.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Has all of it carried out; returns what of it the kernel refused: then nothing was done.
    pub fn commit(self, socket: &mut Socket) -> io::Result<Vec<Refusal>> {
        socket.transact(bracket(NFNL_MSG_BATCH_BEGIN), self.messages, bracket(NFNL_MSG_BATCH_END))
    }

    pub(super) fn as_table(&self) -> Table<'_> {
        Table { family: self.family, name: &self.table }
    }

    pub(super) fn request(&self, message: i32, flags: i32) -> Message {
        request(self.family, message, flags)
    }

    pub(super) fn and(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    fn about_rule(&self, message: i32, flags: i32, chain: &str) -> Message {
        self.request(message, flags)
            .text(nfta::RULE_TABLE, &self.table)
            .text(nfta::RULE_CHAIN, chain)
    }
}

impl Table<'_> {
    pub(super) fn chain_message(self, message: i32, flags: i32, chain: &str) -> Message {
        request(self.family, message, flags)
            .text(nfta::CHAIN_TABLE, self.name)
            .text(nfta::CHAIN_NAME, chain)
    }
}

impl Hook {
    pub(super) const ALL: [Self; 12] = [
        Self::RawPrerouting,
        Self::RawOutput,
        Self::Untranslated,
        Self::OutputUntranslated,
        Self::EarlyDestinationNat,
        Self::EarlyOutputNat,
        Self::Translated,
        Self::OutputTranslated,
        Self::Input,
        Self::EarlySourceNat,
        Self::SourceNat,
        Self::Forward,
    ];

    /// The kernel's number of it, the place among other chains there, and the kind of chain.
    pub(super) const fn place(self) -> (u32, u32, &'static str) {
        let (number, priority, kind_of_chain) = match self {
            Self::RawPrerouting => (NF_INET_PRE_ROUTING, NF_IP_PRI_RAW, "filter"),
            Self::RawOutput => (NF_INET_LOCAL_OUT, NF_IP_PRI_RAW, "filter"),
            Self::Untranslated => (NF_INET_PRE_ROUTING, EARLY_NAT_DST - 10, "filter"),
            Self::OutputUntranslated => (NF_INET_LOCAL_OUT, EARLY_NAT_DST - 10, "filter"),
            Self::EarlyDestinationNat => (NF_INET_PRE_ROUTING, EARLY_NAT_DST, "nat"),
            Self::EarlyOutputNat => (NF_INET_LOCAL_OUT, EARLY_NAT_DST, "nat"),
            Self::Translated => (NF_INET_PRE_ROUTING, NF_IP_PRI_NAT_DST + 10, "filter"),
            Self::OutputTranslated => (NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST + 10, "filter"),
            Self::Input => (NF_INET_LOCAL_IN, NF_IP_PRI_FILTER, "filter"),
            Self::EarlySourceNat => (NF_INET_POST_ROUTING, NF_IP_PRI_NAT_SRC - 1, "nat"),
            Self::SourceNat => (NF_INET_POST_ROUTING, NF_IP_PRI_NAT_SRC, "nat"),
            Self::Forward => (NF_INET_FORWARD, NF_IP_PRI_FILTER, "filter"),
        };
        (number.cast_unsigned(), priority.cast_unsigned(), kind_of_chain)
    }

    fn append(self, chain: Message) -> Message {
        let (number, priority, kind_of_chain) = self.place();
        chain
            .nest(nfta::CHAIN_HOOK, |hook| {
                hook.be32(nfta::HOOK_HOOKNUM, number).be32(nfta::HOOK_PRIORITY, priority)
            })
            .text(nfta::CHAIN_TYPE, kind_of_chain)
    }
}

pub(super) fn request(family: TableFamily, message: i32, flags: i32) -> Message {
    let subsystem = NFNL_SUBSYS_NFTABLES << 8;
    Message::new(word(subsystem | message), flags, &[family.number(), 0, 0, 0])
}

fn bracket(message: i32) -> Message {
    let [high, low] = word(NFNL_SUBSYS_NFTABLES).to_be_bytes();
    Message::new(word(message), 0, &[0, 0, high, low])
}

/// A comment, as `nft(8)` keeps it: a kind, a length, and a text that ends with a zero.
fn user_data(comment: &str) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let text: Vec<u8> = comment.bytes().take(LONGEST_COMMENT).chain([0]).collect();
    let mut data = vec![COMMENT, u8::try_from(text.len()).unwrap_or(u8::MAX)];
    data.extend(text);
    data
}
