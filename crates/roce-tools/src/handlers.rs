//! The functions that the bridge and the service offer.

use roce_dispatch::rpc::HandlerError;
use roce_dispatch::{DispatchError, FunctionTable};

use crate::decoder::{MWPM_DECODE, MatchingGraph, Mwpm};

/// The RPC function that answers with each byte of its argument one higher, mod 256.
pub const RPC_INCREMENT: &str = "rpc_increment";

/// The RPC function that adds up 32-bit integers: one ARRAY_INT32 argument, one INT64 result. Bytes that are no whole
/// integer are its error 1.
pub const SUM: &str = "sum";

/// The RPC function that answers with its arguments.
pub const ECHO: &str = "echo";

/// A table of [`RPC_INCREMENT`], [`SUM`] and [`ECHO`], and of [`MWPM_DECODE`] where a graph to decode on is given.
pub fn table(graph: Option<&MatchingGraph>) -> Result<FunctionTable, DispatchError> {
    let mut table = FunctionTable::new();
    table.register(RPC_INCREMENT, increment)?;
    table.register(SUM, sum)?;
    table.register(ECHO, echo)?;
    if let Some(graph) = graph {
        let mut decoder = Mwpm::new(graph);
        table.register(MWPM_DECODE, move |events, result| decode(&mut decoder, events, result))?;
    }
    Ok(table)
}

fn increment(arguments: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    for (out, byte) in result.iter_mut().zip(arguments) {
        *out = byte.wrapping_add(1);
    }
    Ok(arguments.len())
}

fn sum(arguments: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    let (integers, rest) = arguments.as_chunks();
    if !rest.is_empty() {
        return Err(HandlerError::new(1).expect("positive"));
    }
    let sum: i64 = integers.iter().map(|&bytes| i64::from(i32::from_le_bytes(bytes))).sum();
    Ok(answer(&sum.to_le_bytes(), result))
}

fn echo(arguments: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    Ok(answer(arguments, result))
}

/// Copies what fits. A frame without room for the rest is refused by the length.
fn answer(bytes: &[u8], result: &mut [u8]) -> usize {
    if let Some(out) = result.get_mut(..bytes.len()) {
        out.copy_from_slice(bytes);
    }
    bytes.len()
}

fn decode(decoder: &mut Mwpm, events: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    let flips = decoder.decode(events).map_err(|e| e.handler_error())?;
    Ok(answer(&[flips], result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::DetectorErrorModel;

    #[test]
    fn increment_wraps() {
        let mut result = [9; 4];
        assert_eq!(increment(&[0, 254, 255], &mut result), Ok(3));
        assert_eq!(result, [1, 255, 0, 9]);
    }

    #[test]
    fn sum_is_wider_than_what_it_adds() {
        let mut result = [9; 8];
        let arguments: Vec<u8> = [i32::MAX, i32::MAX, -1].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(sum(&arguments, &mut result), Ok(8));
        assert_eq!(i64::from_le_bytes(result), 2 * i64::from(i32::MAX) - 1);
        assert_eq!(sum(&[], &mut result), Ok(8));
        assert_eq!(result, [0; 8]);
        assert_eq!(sum(&arguments[1..], &mut result), Err(HandlerError::new(1).unwrap()));
        assert_eq!(sum(&[], &mut result[..7]), Ok(8), "its length refuses it");
    }

    #[test]
    fn echo_echoes() {
        let mut result = [9; 3];
        assert_eq!(echo(&[1, 2], &mut result), Ok(2));
        assert_eq!(result, [1, 2, 9]);
    }

    #[test]
    fn decode_answers_a_byte_or_a_code() {
        let model = DetectorErrorModel::parse("error(0.1) D0 L1\nerror(0.1) D1").unwrap();
        let mut decoder = Mwpm::new(&MatchingGraph::new(&model).unwrap());
        let mut result = [9; 2];
        assert_eq!(decode(&mut decoder, &[0b11], &mut result), Ok(1));
        assert_eq!(result, [2, 9]);
        assert_eq!(decode(&mut decoder, &[], &mut result), Err(HandlerError::new(1).unwrap()));
        assert_eq!(decode(&mut decoder, &[4], &mut result), Err(HandlerError::new(2).unwrap()));
    }
}
