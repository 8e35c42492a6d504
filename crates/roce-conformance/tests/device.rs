//! All cases that need no loss on demand, on the RDMA device that `ROCE_TEST_DEVICE` names.
//!
//! `ROCE_TEST_DEVICE=rxe0 cargo test -p roce-conformance --features verbs --test device -- --ignored`

use roce_conformance::{VerbsLinks, for_every_link, run};

macro_rules! tests {
    ($($module:ident { $($name:ident)* })*) => {
        $(mod $module {
            $(#[test]
            #[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
            fn $name() {
                let name = concat!(stringify!($module), "::", stringify!($name));
                super::run(name, &super::VerbsLinks::from_env());
            })*
        })*
    };
}

for_every_link!(tests);
