//! Functions in C, from a shared library.

use std::fmt;
use std::path::Path;

use libloading::Library;
use roce_dispatch::FunctionTable;
use roce_dispatch::schema::RawFunctionTable;

use crate::Error;

/// The symbol that a plug-in exports: a constant of the type [`RawFunctionTable`], `{entries, count}` in C.
pub const PLUGIN_TABLE: &str = "roce_function_table";

/// A shared library whose functions are served. It stays loaded until the process ends.
///
/// Each caller is served by a thread of its own, so the functions may run in several threads at once.
#[derive(Clone, Copy)]
pub struct Plugin {
    /// In the library.
    table: *const RawFunctionTable,
}

// SAFETY: an address in a library that is never unloaded. By the promise of `load` nobody writes the table, and its
// functions may run in any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above; shared, it gives away no more than that address.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads the library at `path`, which runs its initialisers, and finds its [`PLUGIN_TABLE`].
    ///
    /// Whoever names a library vouches for it: that the table is of this layout and is never written to, that its
    /// functions keep to their slots, keep no pointer, may run in several threads at once, and let no exception out.
    ///
    /// # Errors
    /// [`Error::Plugin`] when it cannot be loaded, or has no such symbol.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let refused = |source| Error::Plugin { path: path.to_owned(), source };
        // SAFETY: whoever names the library vouches for its initialisers, as the documentation asks.
        let library = unsafe { Library::new(path) }.map_err(refused)?;
        // SAFETY: a symbol of this name is a table, by the same promise; only its address is taken here.
        let table =
            *unsafe { library.get::<*const RawFunctionTable>(PLUGIN_TABLE.as_bytes()) }.map_err(refused)?;
        // Threads may be in its functions for as long as the process lives.
        std::mem::forget(library);
        Ok(Self { table })
    }

    /// Adds its functions to a table.
    ///
    /// # Errors
    /// [`Error::Dispatch`] when a name is there already, or an entry cannot be served by a host thread.
    pub fn register(&self, table: &mut FunctionTable) -> Result<(), Error> {
        // SAFETY: the library is never unloaded, so its table is there, and by the promise of `load` nobody writes it and
        // its entries' handlers are what they say.
        unsafe { table.register_c_table(&*self.table)? };
        Ok(())
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("table", &self.table).finish()
    }
}
