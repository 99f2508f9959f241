//! FNV-1a of 128 bits: the same in every build, and far apart for names that are alike.

const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Of the parts as one text.
pub(super) fn hash<const N: usize>(parts: [&[u8]; N]) -> u128 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv() {
        assert_eq!(hash([]), BASIS);
        assert_eq!(hash([b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash([b"foo", b"bar"]), hash([b"foobar"]));
        assert_eq!(hash([b"foobar"]), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
