//! Trace formats with records of fixed size: plain 64-bit keys, and libCacheSim's oracleGeneral
//! (libCacheSim/traceReader/customizedReader/oracle/oracleGeneralBin.h).

use crate::capture::access::Access;
use crate::capture::error::Error;
use crate::capture::input::Input;

/// The next record of `N` bytes, `None` at the end.
fn record<const N: usize>(input: &mut Input, called: &str) -> Result<Option<[u8; N]>, Error> {
    let bytes = input.peek(N)?;
    let left = bytes.len();
    if let Ok(record) = <[u8; N]>::try_from(bytes) {
        input.consume(N);
        return Ok(Some(record));
    }
    if left == 0 {
        return Ok(None);
    }
    let fault = format!("{left} bytes are left over, {called} has {N}");
    Err(input.error(input.here(), fault, "the file is cut short, or of another format: see --format"))
}

pub(super) fn u64_key(input: &mut Input) -> Result<Option<Access>, Error> {
    Ok(record::<8>(input, "a key")?.map(|bytes| Access::of(u64::from_le_bytes(bytes))))
}

/// Time in seconds, key, size, next use. The next use is ignored.
pub(super) fn oracle(input: &mut Input) -> Result<Option<Access>, Error> {
    let Some(bytes) = record::<24>(input, "a record of oracleGeneral")? else { return Ok(None) };
    let (time, rest) = bytes.split_first_chunk::<4>().expect("24 bytes begin with 4");
    let key = rest.first_chunk::<8>().expect("20 bytes begin with 8");
    let seconds = u32::from_le_bytes(*time);
    Ok(Some(Access { time_ms: u64::from(seconds) * 1000, ..Access::of(u64::from_le_bytes(*key)) }))
}
