//! What an answer must look like, and which window it belongs to.
//!
//! Requests and responses begin with 24 little-endian bytes: magic, function or status, payload length, request
//! id, send time.

use crate::summary::FailureKind;

const REQUEST_MAGIC: u32 = 0x4355_5152;
const RESPONSE_MAGIC: u32 = 0x4355_5153;
/// Bytes of either header: the shortest page.
pub(crate) const HEADER: usize = 24;
/// The same, as registers count.
pub(crate) const HEADER_SIZE: u32 = 24;

const MAGIC: usize = 0;
const STATUS: usize = 4;
const PAYLOAD_LEN: usize = 8;
const REQUEST_ID: usize = 12;
const SEND_TIME: usize = 16;

/// The window in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    /// What was sent, with its send time.
    pub(crate) request: &'a [u8],
    /// The answer is the request itself.
    pub(crate) forward: bool,
}

/// Writes the send time into a request.
pub(crate) fn stamp(request: &mut [u8], packed_time: u64) {
    request[SEND_TIME..HEADER].copy_from_slice(&packed_time.to_le_bytes());
}

/// The request id of a request or response that has one.
pub(crate) fn request_id(message: &[u8]) -> Option<u32> {
    u32_at(message, REQUEST_ID)
}

impl Expected<'_> {
    /// Whether `answer` answers this window and no other. Request ids come again in every round of a loop, so the
    /// send time must match too; 0 and an answer cut before it stand for no send time.
    pub(crate) fn is_answered_by(&self, answer: &[u8]) -> bool {
        let Some(id) = request_id(answer) else { return false };
        let sent_at = u64_at(self.request, SEND_TIME);
        let same_time = match u64_at(answer, SEND_TIME) {
            None => true,
            Some(0) => !self.forward,
            echoed => echoed == sent_at,
        };
        Some(id) == request_id(self.request) && same_time
    }

    /// What is wrong with an answer to this window.
    pub(crate) fn judge(&self, answer: &[u8]) -> Result<(), FailureKind> {
        let too_short = FailureKind::Short { len: answer.len() };
        let (Some(magic), Some(payload_len)) = (u32_at(answer, MAGIC), u32_at(answer, PAYLOAD_LEN)) else {
            return Err(too_short);
        };
        if answer.len() < HEADER {
            return Err(too_short);
        }
        let expected_magic = if self.forward { REQUEST_MAGIC } else { RESPONSE_MAGIC };
        if magic != expected_magic {
            return Err(FailureKind::BadMagic { magic });
        }
        if (answer.len() - HEADER) < payload_len as usize {
            return Err(too_short);
        }
        if self.forward { self.judge_echo(answer) } else { judge_status(answer) }
    }

    /// A bridge sends its frame size, which may be shorter or longer than the window.
    fn judge_echo(&self, answer: &[u8]) -> Result<(), FailureKind> {
        let differs = |(sent, echoed): (&u8, &u8)| sent != echoed;
        match self.request.iter().zip(answer).position(differs) {
            Some(offset) => Err(FailureKind::EchoDiffers { offset }),
            None => Ok(()),
        }
    }
}

fn judge_status(answer: &[u8]) -> Result<(), FailureKind> {
    match u32_at(answer, STATUS).map_or(0, u32::cast_signed) {
        0 => Ok(()),
        status => Err(FailureKind::Status { status }),
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(magic: u32, status: i32, payload: &[u8], id: u32, time: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(magic.to_le_bytes());
        bytes.extend(status.to_le_bytes());
        bytes.extend(u32::try_from(payload.len()).expect("short").to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend(time.to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn an_answer_repeats_id_and_send_time() {
        let request = message(REQUEST_MAGIC, 0, &[1, 2], 7, 900);
        let window = Expected { request: &request, forward: false };
        let answered = |id, time| window.is_answered_by(&message(RESPONSE_MAGIC, 0, &[2, 3], id, time));
        assert!(answered(7, 900));
        assert!(answered(7, 0), "a service may leave the time out");
        assert!(!answered(6, 900), "another window");
        assert!(!answered(7, 899), "the same window in an earlier round");
        let response = message(RESPONSE_MAGIC, 0, &[], 7, 900);
        assert!(window.is_answered_by(&response[..23]));
        assert!(window.is_answered_by(&response[..16]));
        assert!(!window.is_answered_by(&response[..15]), "too short to tell");
    }

    #[test]
    fn what_can_be_wrong_with_an_answer() {
        let request = message(REQUEST_MAGIC, 0, &[1, 2], 7, 900);
        let judge = |answer: &[u8]| Expected { request: &request, forward: false }.judge(answer);
        let good = message(RESPONSE_MAGIC, 0, &[2, 3], 7, 900);
        assert_eq!(judge(&good), Ok(()));
        assert_eq!(judge(&good[..25]), Err(FailureKind::Short { len: 25 }));
        assert_eq!(judge(&good[..20]), Err(FailureKind::Short { len: 20 }));
        assert_eq!(judge(&[]), Err(FailureKind::Short { len: 0 }));
        let failed = message(RESPONSE_MAGIC, -3, &[], 7, 900);
        assert_eq!(judge(&failed), Err(FailureKind::Status { status: -3 }));
        assert_eq!(judge(&request), Err(FailureKind::BadMagic { magic: REQUEST_MAGIC }));
    }

    #[test]
    fn forwarding_answers_with_the_very_request() {
        let mut request = message(REQUEST_MAGIC, 5, &[1, 2], 7, 900);
        request.resize(64, 0);
        let window = Expected { request: &request, forward: true };
        assert_eq!(window.judge(&request), Ok(()));
        assert_eq!(window.judge(&request[..26]), Ok(()));
        let mut longer = request.clone();
        longer.resize(384, 0xAA);
        assert_eq!(window.judge(&longer), Ok(()));
        let mut changed = request.clone();
        changed[25] ^= 1;
        assert_eq!(window.judge(&changed), Err(FailureKind::EchoDiffers { offset: 25 }));
        assert_eq!(window.judge(&request[..25]), Err(FailureKind::Short { len: 25 }));
        let response = message(RESPONSE_MAGIC, 0, &[1, 2], 7, 900);
        assert_eq!(window.judge(&response), Err(FailureKind::BadMagic { magic: RESPONSE_MAGIC }));
        stamp(&mut changed, 0);
        assert!(!window.is_answered_by(&changed), "an echo without its send time");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_judged(bytes in prop::collection::vec(any::<u8>(), 0..80), forward: bool) {
            let request = message(REQUEST_MAGIC, 0, &[1, 2], 7, 900);
            let window = Expected { request: &request, forward };
            if window.judge(&bytes).is_ok() {
                prop_assert!(bytes.len() >= HEADER);
            }
            window.is_answered_by(&bytes);
        }
    }
}
