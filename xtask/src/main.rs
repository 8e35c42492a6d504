//! Builds, tests and runs this workspace.

fn main() {}
