//! The slot of a key, one of 16,384: CRC16 (XMODEM) of the key, or of its tag between `{` and `}`. The tag
//! begins at the first `{` and ends at the next `}`. Keys with the same tag are on one server. Source: the
//! specification of Redis Cluster.

pub(crate) const SLOTS: u16 = 16_384;

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

static TABLE: [u16; 256] = table();

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

fn tag_of(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        Some(close) if close > 0 => &inner[..close],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The specification's check value, and replies of redis-server to CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(
            [slot_of(b"foo"), slot_of(b"bar"), slot_of(b"hello"), slot_of(b"")],
            [12182, 5061, 866, 0]
        );
    }

    #[test]
    fn tag_decides_the_slot() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(tag_of(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag_of(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(tag_of(b"foo{bar}{zap}"), b"bar");
    }
}
