//! The functions that a dispatcher serves, by id.

#![forbid(unsafe_code)]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::DispatchError;
use crate::raw::RawFunction;
use crate::rpc::{HandlerError, Status, function_id};
use crate::schema::HandlerSchema;

type RustHandler = Box<dyn FnMut(&[u8], &mut [u8]) -> Result<usize, HandlerError> + Send>;

pub(crate) enum Handler {
    Rust(RustHandler),
    Raw(RawFunction),
}

pub(crate) struct Function {
    id: u32,
    name: String,
    arg_len: Option<u64>,
    pub(crate) handler: Handler,
}

impl Function {
    /// Whether the function's schema, if it has one, allows that many bytes of arguments.
    pub(crate) fn accepts(&self, arg_len: u32) -> bool {
        self.arg_len.is_none_or(|expected| expected == u64::from(arg_len))
    }
}

/// The functions of a dispatcher.
///
/// A handler is called with the request's arguments and room for results, and says how many bytes of results
/// it wrote, or fails with a code of its own. The room is zeroed, begins on an 8-byte boundary (as do the
/// arguments), and is as long as a response frame allows; a handler that needs more returns the length it
/// needs, and the caller learns that the result was too large.
///
/// A handler that panics costs its caller the answer, no more: it stays in the table and is called again.
/// (In a program built with `panic = "abort"` the program ends.)
///
/// ```
/// use roce_dispatch::FunctionTable;
///
/// let mut table = FunctionTable::new();
/// table.register("rpc_increment", |args, result| {
///     for (out, byte) in result.iter_mut().zip(args) {
///         *out = byte.wrapping_add(1);
///     }
///     Ok(args.len())
/// })?;
/// # Ok::<(), roce_dispatch::DispatchError>(())
/// ```
#[derive(Default)]
pub struct FunctionTable {
    functions: Vec<Function>,
    index: Index,
}

impl FunctionTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function that takes arguments of any length.
    ///
    /// # Errors
    /// [`DispatchError::Duplicate`] when a function of that name, or one whose name has the same hash, is there.
    pub fn register(
        &mut self,
        name: &str,
        handler: impl FnMut(&[u8], &mut [u8]) -> Result<usize, HandlerError> + Send + 'static,
    ) -> Result<(), DispatchError> {
        self.insert(function_id(name), name.to_owned(), None, Handler::Rust(Box::new(handler)))
    }

    /// Adds a function whose arguments are exactly as long as `schema` says; other requests are answered with
    /// [`Status::BAD_LENGTH`] and never reach it.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_with_schema(
        &mut self,
        name: &str,
        schema: &HandlerSchema,
        handler: impl FnMut(&[u8], &mut [u8]) -> Result<usize, HandlerError> + Send + 'static,
    ) -> Result<(), DispatchError> {
        let handler = Handler::Rust(Box::new(handler));
        self.insert(function_id(name), name.to_owned(), Some(schema.arg_len()), handler)
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Whether a function has that id.
    pub fn contains(&self, id: u32) -> bool {
        self.index.find(id).is_some()
    }

    pub(crate) fn insert(
        &mut self,
        id: u32,
        name: String,
        arg_len: Option<u64>,
        handler: Handler,
    ) -> Result<(), DispatchError> {
        if let Some(at) = self.index.find(id) {
            let first = self.functions[at].name.clone();
            return Err(DispatchError::Duplicate { id, first, second: name });
        }
        self.functions.push(Function { id, name, arg_len, handler });
        self.index = Index::of(&self.functions);
        Ok(())
    }

    pub(crate) fn find(&mut self, id: u32) -> Option<&mut Function> {
        self.index.find(id).map(|at| &mut self.functions[at])
    }
}

impl fmt::Debug for FunctionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.functions.iter().map(|function| (function.id, &function.name))).finish()
    }
}

/// Calls a Rust handler; whatever it does, there is an answer.
pub(crate) fn call(handler: &mut RustHandler, args: &[u8], result: &mut [u8]) -> Result<usize, Status> {
    match catch_unwind(AssertUnwindSafe(|| handler(args, result))) {
        Ok(Ok(len)) if len <= result.len() => Ok(len),
        Ok(Ok(_)) => Err(Status::RESULT_TOO_LARGE),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Status::HANDLER_PANICKED),
    }
}

/// From id to position: open addressing, at most half full, so that a look-up is one or two probes however
/// many functions there are. Ids are hashes already. Eight functions take two cache lines.
#[derive(Default)]
struct Index {
    buckets: Box<[Option<Bucket>]>,
}

#[derive(Clone, Copy)]
struct Bucket {
    id: u32,
    at: u32,
}

impl Index {
    fn of(functions: &[Function]) -> Self {
        let mut index =
            Self { buckets: vec![None; (2 * functions.len()).next_power_of_two()].into_boxed_slice() };
        for (function, at) in functions.iter().zip(0..) {
            let bucket = index.probe(function.id).find(|&b| index.buckets[b].is_none());
            if let Some(bucket) = bucket {
                index.buckets[bucket] = Some(Bucket { id: function.id, at });
            }
        }
        index
    }

    fn find(&self, id: u32) -> Option<usize> {
        self.probe(id).map_while(|b| self.buckets[b]).find(|b| b.id == id).map(|b| b.at as usize)
    }

    /// Every bucket once, beginning where `id` belongs.
    fn probe(&self, id: u32) -> impl Iterator<Item = usize> + use<> {
        let len = self.buckets.len();
        (0..len).map(move |step| (id as usize).wrapping_add(step) & (len - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(_: &[u8], _: &mut [u8]) -> Result<usize, HandlerError> {
        Ok(0)
    }

    #[test]
    fn many_functions_are_all_found() {
        let mut table = FunctionTable::new();
        assert!(!table.contains(function_id("f0")));
        let names: Vec<_> = (0..1000).map(|i| format!("f{i}")).collect();
        for name in &names {
            table.register(name, empty).expect("names differ");
        }
        for name in &names {
            let found = table.find(function_id(name)).expect("registered");
            assert_eq!(&found.name, name);
        }
        assert!(!table.contains(function_id("g")));
        assert_eq!(table.len(), 1000);
    }

    #[test]
    fn ids_that_share_a_bucket_are_told_apart() {
        let mut table = FunctionTable::new();
        for id in [7, 7 + 64, 7 + 128, u32::MAX, 0] {
            table.insert(id, id.to_string(), None, Handler::Rust(Box::new(empty))).expect("ids differ");
        }
        for id in [7, 7 + 64, 7 + 128, u32::MAX, 0] {
            assert_eq!(table.find(id).map(|f| f.name.clone()), Some(id.to_string()));
        }
        assert!(!table.contains(7 + 256));
    }

    #[test]
    fn a_name_twice_is_refused() {
        let mut table = FunctionTable::new();
        table.register("sum", empty).expect("the first");
        assert_eq!(
            table.register("sum", empty),
            Err(DispatchError::Duplicate { id: 0xdd4e_3aa8, first: "sum".into(), second: "sum".into() })
        );
    }

    #[test]
    fn names_of_one_hash_are_refused_with_both() {
        // A known pair of 32-bit FNV-1a collisions.
        let (first, second) = ("costarring", "liquid");
        assert_eq!(function_id(first), function_id(second));
        let mut table = FunctionTable::new();
        table.register(first, empty).expect("the first");
        let error = table.register(second, empty).expect_err("a collision").to_string();
        assert!(error.contains(first) && error.contains(second), "{error}");
    }

    #[test]
    fn what_a_handler_does_becomes_a_status() {
        let mut result = [0; 4];
        let mut run = |handler: RustHandler| call(&mut { handler }, &[], &mut result);
        assert_eq!(run(Box::new(|_, _| Ok(4))), Ok(4));
        assert_eq!(run(Box::new(|_, _| Ok(5))), Err(Status::RESULT_TOO_LARGE));
        let code = HandlerError::new(3).expect("positive");
        assert_eq!(run(Box::new(move |_, _| Err(code))), Err(Status::from_code(3)));
        assert_eq!(run(Box::new(|_, result| Ok(usize::from(result[9])))), Err(Status::HANDLER_PANICKED));
    }
}
