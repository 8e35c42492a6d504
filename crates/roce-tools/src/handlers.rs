//! The functions that the bridge serves.

use roce_dispatch::rpc::HandlerError;
use roce_dispatch::{DispatchError, FunctionTable};

use crate::decoder::{MWPM_DECODE, MatchingGraph, Mwpm};

/// The RPC function that answers with each byte of its argument one higher, mod 256.
pub const RPC_INCREMENT: &str = "rpc_increment";

/// The table of the bridge: [`RPC_INCREMENT`], and [`MWPM_DECODE`] where a graph to decode on is given.
pub fn table(graph: Option<&MatchingGraph>) -> Result<FunctionTable, DispatchError> {
    let mut table = FunctionTable::new();
    table.register(RPC_INCREMENT, increment)?;
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

fn decode(decoder: &mut Mwpm, events: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    let flips = decoder.decode(events).map_err(|e| e.handler_error())?;
    if let Some(out) = result.first_mut() {
        *out = flips;
    }
    // A frame without room for the byte is refused by its length.
    Ok(1)
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
