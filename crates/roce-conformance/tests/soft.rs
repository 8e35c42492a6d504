//! All cases, in userspace over loopback.

use roce_conformance::{SoftLinks, for_every_link, for_lossy_links, run, run_lossy};

macro_rules! tests {
    ($run:ident $($module:ident { $($name:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $name() {
                let name = concat!(stringify!($module), "::", stringify!($name));
                super::$run(name, &super::SoftLinks::new());
            })*
        })*
    };
}

macro_rules! tests_of_every_link {
    ($($cases:tt)*) => { tests! { run $($cases)* } };
}

macro_rules! tests_of_lossy_links {
    ($($cases:tt)*) => { tests! { run_lossy $($cases)* } };
}

for_every_link!(tests_of_every_link);
for_lossy_links!(tests_of_lossy_links);
