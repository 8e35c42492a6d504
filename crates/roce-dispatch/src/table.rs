//! The functions that a dispatcher serves, by id.

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::DispatchError;
use crate::in_place::{Arguments, InPlaceFunctions, InPlaceHandler, Results};
use crate::raw::RawFunction;
use crate::rpc::{HandlerError, Status, function_id};
use crate::schema::HandlerSchema;

type RustHandler = Box<dyn FnMut(&[u8], &mut [u8]) -> Result<usize, HandlerError> + Send>;

pub(crate) enum Handler {
    Rust(RustHandler),
    /// Among the functions that work in place.
    InPlace,
    Raw(RawFunction),
}

pub(crate) struct Function {
    id: u32,
    name: Box<str>,
    arg_len: Option<u64>,
    pub(crate) handler: Handler,
}

impl Function {
    /// One of a C table, which gives no names.
    pub(crate) fn with_id(id: u32, handler: Handler) -> Self {
        Self { id, name: format!("{id:#010x}").into(), arg_len: None, handler }
    }

    /// Whether the function's schema, if it has one, allows that many bytes of arguments.
    #[inline]
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
/// [`register_in_place`](Self::register_in_place) does without the copies.
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
pub struct FunctionTable {
    pub(crate) in_place: InPlaceFunctions,
    /// All of them. Open addressing by id, at most half full, so that a look-up is one or two probes however many functions there
    /// are. Ids are hashes already.
    buckets: Box<[Option<Function>]>,
    len: usize,
}

impl FunctionTable {
    /// An empty table.
    pub fn new() -> Self {
        Self { in_place: InPlaceFunctions::new(), buckets: Box::default(), len: 0 }
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
        self.add(name, None, Handler::Rust(Box::new(handler)))
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
        self.add(name, Some(schema), Handler::Rust(Box::new(handler)))
    }

    /// Adds a function that reads its arguments where they were received and writes its results where they are sent
    /// from, with nothing copied but what it asks for: the shortest way there is, and the one for long frames.
    ///
    /// `schema` is as for [`register_with_schema`](Self::register_with_schema); without one, arguments of any length are
    /// taken. What [`Arguments`] says of memory that a peer may write is the price.
    ///
    /// ```
    /// use roce_dispatch::{Arguments, FunctionTable, Results};
    ///
    /// let mut table = FunctionTable::new();
    /// table.register_in_place("parity", None, |syndrome: Arguments<'_>, correction: &mut Results<'_>| {
    ///     correction.put_word(syndrome.words().fold(0, |parity, word| parity ^ word));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), roce_dispatch::DispatchError>(())
    /// ```
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_in_place(
        &mut self,
        name: &str,
        schema: Option<&HandlerSchema>,
        mut handler: impl FnMut(Arguments<'_>, &mut Results<'_>) -> Result<(), HandlerError> + Send + 'static,
    ) -> Result<(), DispatchError> {
        // It checks the length of its arguments itself, wherever it is called from.
        self.add(name, None, Handler::InPlace)?;
        let expected = schema.map(HandlerSchema::arg_len);
        let handler: InPlaceHandler = Box::new(move |args, results| {
            let is_right = expected.is_none_or(|expected| expected == args.len() as u64);
            if is_right { handler(args, results).map_err(Status::from) } else { Err(Status::BAD_LENGTH) }
        });
        self.in_place.insert(function_id(name), handler);
        Ok(())
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a function has that id.
    pub fn contains(&self, id: u32) -> bool {
        self.probe(id).is_ok()
    }

    pub(crate) fn add(
        &mut self,
        name: &str,
        schema: Option<&HandlerSchema>,
        handler: Handler,
    ) -> Result<(), DispatchError> {
        let arg_len = schema.map(HandlerSchema::arg_len);
        self.insert(Function { id: function_id(name), name: name.into(), arg_len, handler })
    }

    pub(crate) fn insert(&mut self, function: Function) -> Result<(), DispatchError> {
        let id = function.id;
        if let Ok(Some(taken)) = self.probe(id).map(|bucket| &self.buckets[bucket]) {
            let [first, second] = [taken, &function].map(|function| function.name.to_string());
            return Err(DispatchError::Duplicate { id, first, second });
        }
        self.len += 1;
        self.reserve();
        self.put(function);
        Ok(())
    }

    #[inline]
    pub(crate) fn find(&mut self, id: u32) -> Option<&mut Function> {
        let bucket = self.first_bucket(id);
        match self.buckets.get(bucket) {
            Some(Some(function)) if function.id == id => self.buckets[bucket].as_mut(),
            _ => self.find_behind(id),
        }
    }

    #[cold]
    fn find_behind(&mut self, id: u32) -> Option<&mut Function> {
        self.probe(id).ok().and_then(|bucket| self.buckets[bucket].as_mut())
    }

    /// Where `id` is, or else where it belongs, if there is room.
    fn probe(&self, id: u32) -> Result<usize, Option<usize>> {
        let first = self.first_bucket(id);
        let buckets = (0..self.buckets.len()).map(|step| first.wrapping_add(step) & (self.buckets.len() - 1));
        for bucket in buckets {
            match &self.buckets[bucket] {
                Some(function) if function.id == id => return Ok(bucket),
                Some(_) => {}
                None => return Err(Some(bucket)),
            }
        }
        Err(None)
    }

    #[inline]
    fn first_bucket(&self, id: u32) -> usize {
        id as usize & self.buckets.len().wrapping_sub(1)
    }

    /// Keeps the table half empty.
    fn reserve(&mut self) {
        let wanted = (2 * self.len).next_power_of_two();
        if wanted > self.buckets.len() {
            let larger = std::iter::repeat_with(|| None).take(wanted).collect();
            let functions = std::mem::replace(&mut self.buckets, larger);
            functions.into_iter().flatten().for_each(|function| self.put(function));
        }
    }

    /// There is room, and no other function of its id.
    fn put(&mut self, function: Function) {
        if let Err(Some(free)) = self.probe(function.id) {
            self.buckets[free] = Some(function);
        }
    }
}

impl Default for FunctionTable {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FunctionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions = self.buckets.iter().flatten();
        f.debug_map().entries(functions.map(|function| (function.id, &function.name))).finish()
    }
}

/// Calls a Rust handler; whatever it does, there is an answer.
#[inline]
pub(crate) fn call(handler: &mut RustHandler, args: &[u8], result: &mut [u8]) -> Result<usize, Status> {
    let len = within_wall(|| handler(args, result).map_err(Status::from))?;
    if len <= result.len() { Ok(len) } else { Err(Status::RESULT_TOO_LARGE) }
}

/// As [`call`], for one that works in place.
#[inline]
pub(crate) fn call_in_place(
    handler: &mut InPlaceHandler,
    args: Arguments<'_>,
    mut results: Results<'_>,
) -> Result<usize, Status> {
    within_wall(|| handler(args, &mut results))?;
    if results.len() <= results.room() { Ok(results.len()) } else { Err(Status::RESULT_TOO_LARGE) }
}

/// A wall that no panic of a handler passes.
#[inline]
fn within_wall<T>(handler: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(handler)).unwrap_or_else(|panic| {
        discard(panic);
        Err(Status::HANDLER_PANICKED)
    })
}

/// What a panic carries may panic again when it is dropped, and what that one carries is not given another chance.
#[cold]
#[inline(never)]
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
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
            assert_eq!(&*found.name, name);
        }
        assert!(!table.contains(function_id("g")));
        assert_eq!(table.len(), 1000);
    }

    #[test]
    fn ids_that_share_a_bucket_are_told_apart() {
        let mut table = FunctionTable::new();
        for id in [7, 7 + 64, 7 + 128, u32::MAX, 0] {
            let handler = Handler::Rust(Box::new(empty));
            table.insert(Function::with_id(id, handler)).expect("ids differ");
        }
        for id in [7, 7 + 64, 7 + 128, u32::MAX, 0] {
            assert_eq!(table.find(id).map(|f| &*f.name), Some(&*format!("{id:#010x}")));
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
