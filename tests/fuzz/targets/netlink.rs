//! Datagrams of netlink: unchanged, or as messages of the kinds that the daemon reads.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tweed::kernel::read_datagram;

/// Links, addresses, routes, neighbours, settings, nexthops; then elements, rules, chains, sets and
/// tables of nftables; then the end of a list and the refusal of a request.
const KINDS: [u16; 22] = [
    16, 17, 20, 21, 24, 25, 28, 29, 80, 104, 105, 0x0a00, 0x0a01, 0x0a03, 0x0a05, 0x0a06, 0x0a09,
    0x0a0c, 0x0a0e, 0x0a0f, 2, 3,
];

fuzz_target!(|input: (bool, Vec<(u8, u16, &[u8])>)| {
    let (is_raw, messages) = input;
    let mut datagram = Vec::new();
    for (kind, flags, payload) in messages {
        if is_raw {
            datagram.extend(payload);
            continue;
        }
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        let length = u32::try_from(16 + payload.len()).unwrap();
        datagram.extend(length.to_ne_bytes());
        datagram.extend(kind.to_ne_bytes());
        datagram.extend(flags.to_ne_bytes());
        datagram.extend([0; 8]);
        datagram.extend(payload);
        datagram.resize(datagram.len().next_multiple_of(4), 0);
    }
    drop(read_datagram(&datagram));
});
