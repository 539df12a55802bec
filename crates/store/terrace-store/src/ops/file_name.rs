//! Keys as file names. Bytes that a file name cannot have, or that would leave its directory, become `%` and
//! two hex digits.

use crate::error::{Error, Result};

/// Maximum length of a file name, bytes.
const NAME_MAX: usize = 255;

/// The file name of a key. Unique for each key, and never begins with a dot.
pub(super) fn encode(key: &[u8]) -> Vec<u8> {
    if key.is_empty() {
        return b"%".to_vec();
    }
    let mut name = Vec::with_capacity(key.len());
    for (i, &byte) in key.iter().enumerate() {
        match byte {
            b'/' | b'%' | 0..=0x1f | 0x7f => name.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            b'.' if i == 0 => name.extend_from_slice(b"%2E"),
            _ => name.push(byte),
        }
    }
    name
}

/// The key of a file name. None: the name of no key.
pub(super) fn decode(name: &[u8]) -> Option<Vec<u8>> {
    if name == b"%" {
        return Some(Vec::new());
    }
    let (mut key, mut at) = (Vec::with_capacity(name.len()), 0);
    while at < name.len() {
        if name[at] == b'%' {
            let digits = std::str::from_utf8(name.get(at + 1..at + 3)?).ok()?;
            key.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            key.push(name[at]);
            at += 1;
        }
    }
    (encode(&key) == name).then_some(key)
}

/// # Errors
/// The key is too long for a file name.
pub(super) fn check(key: &[u8]) -> Result<()> {
    // Most keys are short.
    let bytes = if 3 * key.len() <= NAME_MAX { 0 } else { encode(key).len() };
    if bytes <= NAME_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "a key's file name", bytes: bytes as u64, max: NAME_MAX as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_names_that_stay_in_their_directory() {
        let plain: [&[u8]; 3] = [b"plain.txt", "t\u{e4}g".as_bytes(), b"a b~-_"];
        plain.iter().for_each(|key| assert_eq!(encode(key), *key));
        let all = (0..=255u8).map(|byte| vec![byte]).chain((0..=255u8).map(|byte| vec![b'x', byte]));
        let odd = [&b""[..], b".", b"..", b"../../etc/passwd", b"%", b"%2E", b"a%", b"\0", b"\xff\xfe"];
        for key in all.chain(odd.map(<[u8]>::to_vec)) {
            let name = encode(&key);
            assert!(!name.is_empty() && name[0] != b'.' && !name.contains(&b'/') && !name.contains(&0));
            assert_eq!(decode(&name), Some(key));
        }
        for no_name in [&b".hidden"[..], b"%4", b"%41", b"%zz", b"a/b"] {
            assert_eq!(decode(no_name), None, "{no_name:?}");
        }
        assert!(check(&[b'x'; 255]).is_ok() && check(&[b'x'; 256]).is_err() && check(&[b'/'; 86]).is_err());
    }
}
