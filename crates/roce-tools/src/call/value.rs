//! Arguments and results as text: `u8:1,2,3`, `f64:0.5`, `bits:0110`.

use std::fmt::{self, Display};
use std::str::FromStr;

use roce_dispatch::UnifiedLink;
use roce_dispatch::caller::{Acquired, Answered, Bits, CallError, Frame, Scalar};
use serde_json::{Value as Json, json};

/// One or several numbers of a type, or bits.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Bytes.
    U8(Vec<u8>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Bits, the first one first.
    Bits(Vec<bool>),
}

const FORM: &str = "write TYPE:VALUES, as u8:1,2,3 or bits:0110; types are u8, i32, i64, f32, f64 and bits";

impl FromStr for Value {
    type Err = String;

    /// Reads `TYPE:VALUE,VALUE…`; there may be none.
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, values) = text.split_once(':').ok_or(FORM)?;
        match kind {
            "u8" => numbers(kind, values).map(Self::U8),
            "i32" => numbers(kind, values).map(Self::I32),
            "i64" => numbers(kind, values).map(Self::I64),
            "f32" => numbers(kind, values).map(Self::F32),
            "f64" => numbers(kind, values).map(Self::F64),
            "bits" => values.chars().map(bit).collect::<Result<_, _>>().map(Self::Bits),
            _ => Err(format!("there is no type {kind:?}; {FORM}")),
        }
    }
}

fn numbers<T: FromStr>(kind: &str, text: &str) -> Result<Vec<T>, String> {
    let number = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is no {kind}"));
    if text.is_empty() { Ok(Vec::new()) } else { text.split(',').map(number).collect() }
}

fn bit(c: char) -> Result<bool, String> {
    match c {
        '0' => Ok(false),
        '1' => Ok(true),
        _ => Err(format!("{c:?} is no bit; write 0 or 1")),
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: Display>(f: &mut fmt::Formatter<'_>, kind: &str, values: &[T]) -> fmt::Result {
            let values: Vec<String> = values.iter().map(T::to_string).collect();
            write!(f, "{kind}:{}", values.join(","))
        }
        match self {
            Self::U8(v) => list(f, "u8", v),
            Self::I32(v) => list(f, "i32", v),
            Self::I64(v) => list(f, "i64", v),
            Self::F32(v) => list(f, "f32", v),
            Self::F64(v) => list(f, "f64", v),
            Self::Bits(v) => {
                write!(f, "bits:{}", v.iter().map(|&b| if b { '1' } else { '0' }).collect::<String>())
            }
        }
    }
}

impl Value {
    /// Appends it to a frame's arguments.
    ///
    /// # Errors
    /// As [`Frame::put`].
    pub fn put<L: UnifiedLink>(&self, frame: &mut Frame<'_, L, Acquired>) -> Result<(), CallError> {
        match self {
            Self::U8(v) => frame.put(&v[..]),
            Self::I32(v) => frame.put(&v[..]),
            Self::I64(v) => frame.put(&v[..]),
            Self::F32(v) => frame.put(&v[..]),
            Self::F64(v) => frame.put(&v[..]),
            Self::Bits(v) => frame.put(&Bits(v)),
        }
        .map(drop)
    }

    /// `{"type": …, "values": […]}`; bits are 0 and 1.
    pub fn json(&self) -> Json {
        match self {
            Self::U8(v) => json!({ "type": "u8", "values": v }),
            Self::I32(v) => json!({ "type": "i32", "values": v }),
            Self::I64(v) => json!({ "type": "i64", "values": v }),
            Self::F32(v) => json!({ "type": "f32", "values": v }),
            Self::F64(v) => json!({ "type": "f64", "values": v }),
            Self::Bits(v) => {
                json!({ "type": "bits", "values": v.iter().map(|&b| u8::from(b)).collect::<Vec<_>>() })
            }
        }
    }

    /// The type and number to read such a value back.
    pub fn result_type(&self) -> ResultType {
        let (kind, count) = match self {
            Self::U8(v) => (Kind::U8, v.len()),
            Self::I32(v) => (Kind::I32, v.len()),
            Self::I64(v) => (Kind::I64, v.len()),
            Self::F32(v) => (Kind::F32, v.len()),
            Self::F64(v) => (Kind::F64, v.len()),
            Self::Bits(v) => (Kind::Bits, v.len()),
        };
        ResultType { kind, count: Some(count) }
    }
}

/// How to read a result: `TYPExN`, as in `i32x4`, or `TYPE` for as many as there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultType {
    kind: Kind,
    count: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I32,
    I64,
    F32,
    F64,
    Bits,
}

impl FromStr for ResultType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, count) = match text.split_once('x') {
            Some((kind, count)) => {
                (kind, Some(count.parse().map_err(|_| format!("{count:?} is no number"))?))
            }
            None => (text, None),
        };
        let kind = match kind {
            "u8" => Kind::U8,
            "i32" => Kind::I32,
            "i64" => Kind::I64,
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            "bits" => Kind::Bits,
            _ => {
                return Err(
                    "write TYPE or TYPExN, as i32 or i32x4; types are u8, i32, i64, f32, f64 and bits"
                        .to_owned(),
                );
            }
        };
        Ok(Self { kind, count })
    }
}

impl ResultType {
    /// All bytes.
    pub const BYTES: Self = Self { kind: Kind::U8, count: None };
    /// 64-bit integers.
    pub const INT64: Self = Self { kind: Kind::I64, count: None };

    /// Takes the next result, of `left` bytes that are left.
    fn take<L: UnifiedLink>(
        self,
        answer: &mut Frame<'_, L, Answered>,
        left: usize,
    ) -> Result<Value, CallError> {
        fn several<T: Scalar, L: UnifiedLink>(
            answer: &mut Frame<'_, L, Answered>,
            count: Option<usize>,
            left: usize,
        ) -> Result<Vec<T>, CallError> {
            // One more than there are whole ones, where bytes would be left over: that is refused.
            let count = count.unwrap_or(left.div_ceil(size_of::<T>()));
            check_left(count.saturating_mul(size_of::<T>()), left)?;
            let mut values = vec![T::default(); count];
            answer.take_array(&mut values)?;
            Ok(values)
        }
        match self.kind {
            Kind::U8 => several(answer, self.count, left).map(Value::U8),
            Kind::I32 => several(answer, self.count, left).map(Value::I32),
            Kind::I64 => several(answer, self.count, left).map(Value::I64),
            Kind::F32 => several(answer, self.count, left).map(Value::F32),
            Kind::F64 => several(answer, self.count, left).map(Value::F64),
            Kind::Bits => {
                let count = self.count.unwrap_or(8 * left);
                check_left(count.div_ceil(8), left)?;
                let mut bits = vec![false; count];
                answer.take_bits(&mut bits)?;
                Ok(Value::Bits(bits))
            }
        }
    }

    /// Reads the results of an answer; what no type is given for is read as bytes.
    pub(super) fn take_all<L: UnifiedLink>(
        types: &[Self],
        answer: &mut Frame<'_, L, Answered>,
    ) -> Result<Vec<Value>, CallError> {
        let mut values: Vec<Value> =
            types.iter().map(|t| t.take(answer, answer.left())).collect::<Result<_, _>>()?;
        if answer.left() > 0 {
            values.push(Self::BYTES.take(answer, answer.left())?);
        }
        Ok(values)
    }
}

/// Before there is memory for them.
fn check_left(wanted: usize, left: usize) -> Result<(), CallError> {
    if wanted <= left { Ok(()) } else { Err(CallError::Exhausted { wanted, left }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        for text in
            ["u8:1,2,255", "i32:-1", "i64:9223372036854775807", "f32:0.5,-2", "f64:1.25", "bits:0110", "u8:"]
        {
            assert_eq!(text.parse::<Value>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in ["", "u8", "u8:256", "u8:1,", "i32:1.5", "bits:012", "u16:1", "f32:x"] {
            assert!(bad.parse::<Value>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn result_types() {
        assert_eq!("i64".parse(), Ok(ResultType::INT64));
        assert_eq!("bitsx12".parse(), Ok(ResultType { kind: Kind::Bits, count: Some(12) }));
        assert_eq!(Value::F32(vec![1.0, 2.0]).result_type(), "f32x2".parse().unwrap());
        for bad in ["", "u8x", "x2", "u8x-1", "u16"] {
            assert!(bad.parse::<ResultType>().is_err(), "{bad:?}");
        }
    }
}
